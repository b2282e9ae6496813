"""A loaded model as a value: TransformerLens bridge, tokenizer, chat settings and identity."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformer_lens.model_bridge import TransformerBridge

from mech.errors import InputError
from mech.models.lengths import Limit, limits

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """What exactly was loaded.

    `source` is a hub id with its commit, a folder or a file; `sha256` is of the weight files; tied parameters count
    once; `architecture` is the transformers class. `tensors_sha256` is of the weights in memory
    (`mech.models.hashes.tensors_sha256`); `pre` is the name of a GGUF file's pre-tokenizer if the user gave it.
    """

    name: str
    source: str
    sha256: str
    n_parameters: int
    architecture: str
    tensors_sha256: str = ""
    pre: str | None = None


@dataclass(frozen=True)
class Model:
    """A model to run, without caches and hooks.

    `n_kv_heads` < `n_heads` means grouped-query attention, where `hook_k`/`hook_v` have `n_kv_heads` heads and
    `hook_z`/`hook_q`/`hook_pattern` have `n_heads`. `special_in_content`: a special token spelt in a message is read as
    that token, not as text (`mech.models.chat`).
    """

    bridge: TransformerBridge
    tokenizer: Any
    identity: Identity
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    special_in_content: bool = False
    _logged: set[str] = field(default_factory=set, repr=False, compare=False)

    @property
    def n_layers(self) -> int:
        """Number of blocks."""
        return int(self.bridge.cfg.n_layers)

    @property
    def n_heads(self) -> int:
        """Query heads a layer."""
        return int(self.bridge.cfg.n_heads)

    @property
    def n_kv_heads(self) -> int:
        """Key/value heads a layer."""
        return int(getattr(self.bridge.cfg, "n_key_value_heads", None) or self.n_heads)

    @property
    def d_head(self) -> int:
        """Size of one head."""
        return int(self.bridge.cfg.d_head)

    @property
    def d_model(self) -> int:
        """Size of the residual stream."""
        return int(self.bridge.cfg.d_model)

    @property
    def d_vocab(self) -> int:
        """Size of the logits."""
        return int(self.bridge.cfg.d_vocab)

    def w_o(self, layer: int) -> Tensor:
        """The output projection by query head, [n_heads, d_head, d_model]; its input, not its output, has heads."""
        weight: Tensor = self.bridge.blocks[layer].attn.W_O.detach()
        return weight.reshape(self.n_heads, self.d_head, self.d_model)

    @property
    def hf_config(self) -> Any:
        """The transformers configuration of the text model."""
        original: Any = self.bridge.original_model
        return original.config.get_text_config()

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.bridge.original_model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return next(self.bridge.original_model.parameters()).dtype

    @cached_property
    def limits(self) -> list[Limit]:
        """The lengths beyond which a sequence is not scored, or not exactly, shortest first."""
        learned = self.bridge.cfg.positional_embedding_type == "standard"
        return limits(self.bridge.original_model, self.hf_config, learned)

    @property
    def n_positions(self) -> int | None:
        """The most tokens of a sequence; None for no limit."""
        return self.limits[0].n_tokens if self.limits else None

    def require_room(self, n_tokens: int) -> None:
        """Raise InputError for a sequence of more tokens than `n_positions`."""
        limit = self.n_positions
        if limit is not None and n_tokens > limit:
            reason = self.limits[0].reason if self.limits else f"takes {limit}"
            raise InputError(
                f"A prompt with its action has {n_tokens} tokens, and {self.identity.name} {reason}."
            )

    def length_notes(self, n_tokens: int) -> list[str]:
        """A note for a sequence longer than the model was trained for, else none; the first one is logged."""
        trained = getattr(self.hf_config, "max_position_embeddings", None)
        if not isinstance(trained, int) or n_tokens <= trained:
            return []
        note = f"longer than the {trained} positions that the model was trained for"
        if note not in self._logged:
            self._logged.add(note)
            logger.warning("%s: a sequence of %d tokens is %s.", self.identity.name, n_tokens, note)
        return [note]

    def require_eval_mode(self) -> None:
        """Raise InputError naming the first module in training mode, in which dropout changes every run."""
        for name, module in self.bridge.original_model.named_modules():
            if module.training:
                where = f"module '{name}'" if name else "the whole model"
                raise InputError(f"The model is in training mode ({where}): call model.bridge.eval() first.")
