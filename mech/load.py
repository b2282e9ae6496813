"""`load_model`: from a name, a folder or a model in memory to a checked `Model`.

    name, folder, GGUF file → transformers model ┐
    transformers model in memory                 ├→ TransformerBridge → load-time checks → Model
    TransformerBridge in memory                  ┘

Raw weights: nothing is folded or centred, and compatibility mode is off. Attention is eager, so that scores and
patterns can be hooked. Files are read from a local folder; nothing is resolved online.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from mech.checks.checks import CheckResult, stock_logits
from mech.checks.run_checks import probe_ids, require, run_checks
from mech.errors import InputError
from mech.models.chat import settings_for
from mech.models.checkpoints import Checkpoint, resolve, tokenizer_folder
from mech.models.hashes import tensors_sha256
from mech.models.model import Identity, Model
from mech.models.tokenizers import PROBE, Statement, settle

DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def default_cache_dir() -> Path:
    """Where converted checkpoints go unless the caller says otherwise."""
    return Path.home() / ".cache" / "backfire"


def load_model(
    name_or_model: str | PreTrainedModel | TransformerBridge,
    tokenizer: Any = None,
    *,
    dtype: str | None = None,
    device: str | None = None,
    cache_dir: Path | None = None,
    check: bool = True,
    pre: str | None = None,
) -> Model:
    """Load a model, or take one that is in memory, and refuse it if a load-time check fails.

    Args:
        name_or_model: `smollm2-135m-q4` (bundled), a short name of `mech.models.checkpoints.SHORT_NAMES`, a folder, a
            `.gguf` file or a hub id; or a transformers model or a TransformerBridge, used in its own dtype and on its
            own device. It is put into evaluation mode with eager attention; TransformerLens wraps a transformers model
            in place. Its identity is the hash of its tensors.
        tokenizer: of a transformers model in memory; of a bridge, its own if None. Where the `tokenizer.json` that it
            was read from is on this machine, the ids must be those of that file, as for a folder.
        dtype: for a name: "float32" if None; scores in half precision change with the batch.
        device: for a name: a torch device; "cpu" if None.
        cache_dir: for a name: the folder of de-quantised GGUF checkpoints; `default_cache_dir()` if None.
        check: run the self-checks of `mech.checks.run_checks`.
        pre: the pre-tokenizer of a GGUF file that names none or a wrong one, a name of
            `mech.models.pre_tokenizers.RULES`.

    Raises:
        InputError: unknown name, unreadable or incomplete weights, unusable dtype, device or cache folder, an
            unsupported tokenizer or model, a bridge in compatibility mode or with hooks, an argument that does not
            apply to a name or to a model in memory, or a failed check.
    """
    if isinstance(name_or_model, str):
        if tokenizer is not None:
            raise InputError("A tokenizer is given with a model in memory: one that is named has its own.")
        loaded = _load(name_or_model, dtype or "float32", device or "cpu", cache_dir, pre)
    else:
        if (dtype, device, cache_dir, pre) != (None, None, None, None):
            raise InputError(
                "A model in memory is used as it is: convert and move it before, not by arguments."
            )
        loaded = _take(name_or_model, tokenizer)
    if check:
        require(loaded.check(), loaded.model.identity.name)
    return loaded.model


def load_redrawn(
    name: str,
    generator: torch.Generator,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    cache_dir: Path | None = None,
    check: bool = True,
    pre: str | None = None,
) -> Model:
    """The placebo of a model: its configuration and tokenizer with randomly initialised weights.

    transformers initialises the architecture as for training from scratch; no weight is read. The identity is a hash of
    the checkpoint's hash and the generator's state, which decides every weight and is not changed. Other arguments,
    checks and errors as `load_model`.
    """

    def fresh(checkpoint: Checkpoint, wanted: torch.dtype) -> Any:
        with torch.random.fork_rng(devices=[]), _reading(f"The configuration of '{checkpoint.name}'"):
            config = AutoConfig.from_pretrained(checkpoint.folder, local_files_only=True)
            torch.random.set_rng_state(generator.get_state())
            return AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=wanted)

    loaded = _load(name, dtype, device, cache_dir, pre, read=fresh)
    if check:
        require(loaded.check(), loaded.model.identity.name)
    model = loaded.model
    digest = hashlib.sha256(model.identity.sha256.encode() + generator.get_state().numpy().tobytes())
    identity = replace(model.identity, name=f"{name} (weights re-drawn)", sha256=digest.hexdigest())
    return replace(model, identity=identity)


def examine_model(
    name: str,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    cache_dir: Path | None = None,
    pre: str | None = None,
) -> tuple[Model, list[CheckResult]]:
    """Load a model and return it with every check's result, without refusing it, for a diagnosis.

    Every byte of the checkpoint is hashed again. InputError as `load_model`, except for failed checks.
    """
    loaded = _load(name, dtype, device, cache_dir, pre, full=True)
    return loaded.model, loaded.check()


@dataclass(frozen=True)
class _Loaded:
    """A model and the reference of its checks: stock logits on the probe ids, and the statements of its files."""

    model: Model
    stock: torch.Tensor
    statement: Statement
    gguf_metadata: dict[str, Any]

    def check(self) -> list[CheckResult]:
        return run_checks(self.model, self.stock, self.gguf_metadata, self.statement)


def _load(
    name: str,
    dtype: str,
    device: str,
    cache_dir: Path | None,
    pre: str | None,
    *,
    full: bool = False,
    read: Callable[[Checkpoint, torch.dtype], Any] | None = None,
) -> _Loaded:
    """The model with the reference of its checks; `read` replaces its weights, `full` hashes every byte again."""
    if dtype not in DTYPES:
        raise InputError(f"'{dtype}' is not a dtype: choose one of {', '.join(DTYPES)}.")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter: a build of torch without that device
        raise InputError(f"The device '{device}' cannot be used here: {_first_line(error)}") from error
    with _quiet():
        checkpoint = resolve(name, cache_dir or default_cache_dir(), pre=pre, full=full)
        tokenizer, statement = settle(_read_tokenizer(checkpoint), checkpoint.folder)
        if checkpoint.gguf_metadata:
            stated = checkpoint.gguf_metadata.get("tokenizer.ggml.pre")
            statement = replace(statement, pre=pre or stated, by_hand=pre is not None)
        hf_model = _in_memory((read or _read_weights)(checkpoint, DTYPES[dtype])).eval()
        checkpoint.require_unchanged()
        tensors = tensors_sha256(hf_model.state_dict())
        if read is None and dtype == "float32" and checkpoint.tensors_sha256 not in (None, tensors):
            raise InputError(
                f"The weights of '{name}' are not those that were converted: delete '{checkpoint.folder}'."
            )
        hf_model = hf_model.to(device)
        # Counted and run before the bridge takes the model apart; tied parameters count once.
        n_parameters = sum(parameter.numel() for parameter in hf_model.parameters())
        with _reading(f"The configuration of '{checkpoint.name}'"):
            stock = stock_logits(hf_model, probe_ids(tokenizer, device))
        bridge = _wrap(checkpoint.name, str(checkpoint.folder), hf_model, tokenizer)
    identity = Identity(
        name=name,
        source=checkpoint.source,
        sha256=checkpoint.sha256,
        n_parameters=n_parameters,
        architecture=type(hf_model).__name__,
        tensors_sha256=tensors,
        pre=pre,
    )
    model = Model(bridge, tokenizer, identity, settings_for(tokenizer))
    return _Loaded(model, stock, statement, checkpoint.gguf_metadata)


def _take(given: PreTrainedModel | TransformerBridge, tokenizer: Any) -> _Loaded:
    """As `_load`, for a model in memory; a bridge is compared with a plain model of the same weights."""
    if not isinstance(given, (PreTrainedModel, TransformerBridge)):
        raise InputError(
            f"load_model takes a name, a transformers model or a TransformerBridge, not {type(given).__name__}."
        )
    bridge = given if isinstance(given, TransformerBridge) else None
    tokenizer = bridge.tokenizer if bridge is not None and tokenizer is None else tokenizer
    if tokenizer is None:
        raise InputError("A model in memory needs its tokenizer: write load_model(model, tokenizer).")
    if bridge is not None:
        _require_raw(bridge)
    hf_model: Any = given if bridge is None else _unwrapped(bridge)
    origin = hf_model.config.name_or_path or type(hf_model).__name__
    hf_model.set_attn_implementation("eager")
    hf_model.eval()
    with _quiet():
        tokenizer, statement = _settle_in_memory(tokenizer)
        tensors = tensors_sha256(hf_model.state_dict())
        n_parameters = sum(parameter.numel() for parameter in hf_model.parameters())
        with _reading(f"The model '{origin}' in memory"):
            stock = stock_logits(hf_model, probe_ids(tokenizer, hf_model.device))
        if bridge is None:
            bridge = _wrap(origin, origin, hf_model, tokenizer)
    bridge.eval()
    identity = Identity(
        name=f"{origin} (in memory)",
        source="memory",
        sha256=tensors,
        n_parameters=n_parameters,
        architecture=type(hf_model).__name__,
        tensors_sha256=tensors,
    )
    return _Loaded(Model(bridge, tokenizer, identity, settings_for(tokenizer)), stock, statement, {})


def _require_raw(bridge: TransformerBridge) -> None:
    """Raise InputError for a bridge with folded weights or hooks."""
    if bridge.compatibility_mode:
        raise InputError(
            "The bridge is in compatibility mode, which folds and centres weights: boot it anew without "
            "enable_compatibility_mode()."
        )
    hooks = [name for name, point in bridge.hook_dict.items() if point.fwd_hooks or point.bwd_hooks]
    if hooks:
        raise InputError(f"The bridge has a hook on '{hooks[0]}': remove it first (bridge.reset_hooks()).")


def _unwrapped(bridge: TransformerBridge) -> Any:
    """A plain transformers model that shares the tensors of a bridge, under transformers' names."""
    wrapped: Any = bridge.original_model
    weights = {name.replace("._original_component", ""): one for name, one in wrapped.state_dict().items()}
    with torch.random.fork_rng(devices=[]):
        plain = type(wrapped)(wrapped.config)
    names = list(plain.state_dict())
    absent = [name for name in names if name not in weights]
    if absent:
        raise InputError(
            f"The bridge does not hold the weight '{absent[0]}' of {type(wrapped).__name__} under its name: give the "
            "transformers model instead."
        )
    plain.load_state_dict({name: weights[name] for name in names}, assign=True)
    plain.tie_weights()
    return plain.to(wrapped.device)


def _settle_in_memory(tokenizer: Any) -> tuple[Any, Statement]:
    """As `settle`, where the file that a tokenizer was read from is on this machine; else without a comparison.

    Raises:
        InputError: the ids differ from the file's, and the file lacks tokens that were added since.
    """
    folder = tokenizer_folder(tokenizer)
    if folder is None:
        return tokenizer, Statement(type(tokenizer).__name__, PROBE, None)
    settled, statement = settle(tokenizer, folder)
    lost = sorted(set(tokenizer.get_added_vocab()) - set(settled.get_vocab()))
    if lost:
        raise InputError(
            f"The tokenizer has the token '{lost[0]}', which '{folder}' lacks, and other ids than that folder says: "
            "save the tokenizer to a folder of its own and read it from there."
        )
    return settled, statement


def _read_tokenizer(checkpoint: Checkpoint) -> Any:
    with _reading(f"The tokenizer of '{checkpoint.name}'"):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint.folder, local_files_only=True)
        tokenizer("a")  # a setting of the wrong type fails only when it is used
    return tokenizer


def _read_weights(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """The transformers model; InputError where weights are unreadable, missing or of another shape.

    transformers fills a missing weight with random numbers and only warns, so its loading report is read.
    """
    with _reading(f"The weights of '{checkpoint.name}'"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            output_loading_info=True,
        )
    hf_model, report = loaded
    absent = sorted({*report["missing_keys"], *map(str, report["mismatched_keys"])})
    if absent:
        raise InputError(
            f"The checkpoint '{checkpoint.name}' lacks {len(absent)} weights its configuration asks for, "
            f"the first being {absent[0]}: it is incomplete or its config.json belongs to another model."
        )
    return hf_model


def _in_memory(hf_model: Any) -> Any:
    """The model with its weights copied: transformers maps the file, so a later change of it would change the model."""
    for tensor in (*hf_model.parameters(), *hf_model.buffers()):
        tensor.data = tensor.data.clone()
    return hf_model


def _wrap(name: str, path: str, hf_model: Any, tokenizer: Any) -> TransformerBridge:
    """The bridge around a transformers model, which it changes in place.

    TransformerLens sets missing special tokens on the tokenizer it is given, and replaces one that adds no BOS by one
    that does; so it gets a copy, marked as one that adds BOS.
    """
    private = copy.deepcopy(tokenizer)
    private.init_kwargs["add_bos_token"] = True
    private.init_kwargs.setdefault("name_or_path", path)
    if not hf_model.config.architectures:
        hf_model.config.architectures = [type(hf_model).__name__]
    try:
        bridge = TransformerBridge.boot_transformers(
            path, hf_model=hf_model, tokenizer=private, device=str(hf_model.device), dtype=hf_model.dtype
        )
    except Exception as error:  # a setting of the wrong type fails wherever it is first used
        raise InputError(
            f"TransformerLens cannot wrap '{name}' ({type(hf_model).__name__}): {_first_line(error)}"
        ) from error
    bridge.eval()
    return bridge


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Turn any exception of transformers over a damaged file into a sentence that names the model."""
    try:
        yield
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise InputError(
            f"{what} cannot be read ({_first_line(error)}): fetch or convert it again."
        ) from error


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def _quiet() -> Iterator[None]:
    """No loading bar and no load report of transformers in the body."""
    shown = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if shown:
            transformers_logging.enable_progress_bar()
