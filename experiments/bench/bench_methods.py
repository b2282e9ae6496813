"""What the packed engine is measured against: stock `transformers` with SDPA attention, used as well as it can be.

    PrefixCached    the paper's method: one growing cache, cropped to the longest prefix it shares with the next
                    sequence; the rest is pushed, the head reads the action's positions only
    full_forwards   no cache: every sequence from its first token, the head again at the action's positions only

The model is loaded a second time: the bridge replaces modules of the one it wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from mech.engine.queries import Query, Score, token_logprobs
from mech.engine.trie import common_prefix
from mech.errors import InputError
from mech.models.checkpoints import resolve
from mech.models.model import Model


def load_stock(model: Model, cache_dir: Path) -> Any:
    """The same checkpoint as a plain transformers model with SDPA attention, in the same dtype, on the same device.

    Raises:
        InputError: the checkpoint's weights are no longer those of `model`.
    """
    checkpoint = resolve(model.identity.name, cache_dir, pre=model.identity.pre)
    if checkpoint.sha256 != model.identity.sha256:
        raise InputError(f"The weights of '{model.identity.name}' changed while they were measured.")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        stock: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder, dtype=model.dtype, attn_implementation="sdpa", local_files_only=True
        )
    finally:
        if shown:
            logging.enable_progress_bar()
    return stock.to(model.device).eval()


class PrefixCached:
    """Sequential scoring on one cache of keys and values; what the last sequence shares with the next is kept."""

    def __init__(self, stock: Any) -> None:
        self._stock = stock
        self._cache = DynamicCache()
        self._tokens: tuple[int, ...] = ()

    @torch.no_grad()
    def warm(self, tokens: Sequence[int]) -> None:
        """Leave exactly these tokens in the cache, whatever was there."""
        kept = self._keep(tokens, len(tokens))
        if kept < len(tokens):
            self._push(tokens, kept, 1)

    @torch.no_grad()
    def score(self, queries: Sequence[Query]) -> list[Score]:
        """Score the queries one after another; raises FloatingPointError where a logit is not finite."""
        scores = []
        for query in queries:
            kept = self._keep(query.tokens, query.candidate.start)
            scores.append(_read(self._push(query.tokens, kept, len(query.action)), query))
        return scores

    def _keep(self, tokens: Sequence[int], most: int) -> int:
        """Crop to what the cache shares with these tokens, `most` of them at the most; how many are left."""
        kept = min(common_prefix([self._tokens, tokens]), most)
        if kept < len(self._tokens):
            self._cache.crop(kept - len(self._tokens))  # a count to remove, negative; 0 would remove nothing
        self._tokens = tuple(tokens[:kept])
        return kept

    def _push(self, tokens: Sequence[int], kept: int, n_logits: int) -> Tensor:
        self._tokens = tuple(tokens)
        ids = torch.tensor([tokens[kept:]], device=self._stock.device)
        out = self._stock(input_ids=ids, past_key_values=self._cache, use_cache=True, logits_to_keep=n_logits)
        return out.logits[0]


@torch.no_grad()
def full_forwards(stock: Any, queries: Sequence[Query]) -> list[Score]:
    """Score each query by a forward of its whole sequence; raises FloatingPointError where a logit is not finite."""
    scores = []
    for query in queries:
        ids = torch.tensor([query.tokens], device=stock.device)
        out = stock(input_ids=ids, use_cache=False, logits_to_keep=len(query.action))
        scores.append(_read(out.logits[0], query))
    return scores


def _read(logits: Tensor, query: Query) -> Score:
    values, best = token_logprobs(logits, torch.tensor(query.action, device=logits.device))
    return Score(values.double().cpu().numpy(), best.cpu().numpy())
