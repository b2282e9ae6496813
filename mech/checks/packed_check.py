"""The load-time checks of the engine: a packed row over a prefix cache against full hooked forwards, on this model.

What a block must be passed is read off the model (`mech.engine.blocks`); here it is shown that nothing was missed.
Two actions share a row, one of them under an edit of z, so that masks, positions, prefix cache and edit location all
have to be right.

The probe has a dozen tokens, a sliding window may have thousands. The window is therefore narrowed until the probe
reaches past it, and cache, greedy decoding and packed row are checked again: a few short forwards, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from mech.checks.checks import LIMITS, CheckResult, Trace, check_cache, logits_of
from mech.engine import packed, reference
from mech.engine.blocks import sliding_window
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, scale_heads
from mech.models.model import Model


def check_packed_row(model: Model, run: Trace) -> CheckResult:
    """Packed scores equal those of full forwards, with and without an edit at the action positions."""
    ids = tuple(run.ids[0].tolist())
    middle = len(ids) // 2
    edit = scale_heads(HeadSet([Head(model.n_layers // 2, model.n_heads - 1)]), 0.0, "candidate")
    queries = [
        Query(ids[: middle + 1], ids[middle + 1 :]),
        Query(ids[: middle + 1], ids[middle + 1 :], edit),
        Query(ids[:-1], ids[-2:]),
    ]
    prefix_cache = packed.grow(model, PrefixCache((), NOTHING.fingerprint), ids[:middle], NOTHING)
    pairs = zip(packed.score_row(model, queries, prefix_cache), reference.score(model, queries), strict=True)
    worst = max(float(abs(fast.logprobs - slow.logprobs).max()) for fast, slow in pairs)
    limit = LIMITS.get(model.dtype, LIMITS[torch.float32])
    sentence = "a packed row over a prefix cache scores as full forwards do"
    if worst > limit:
        sentence = f"a packed row is off by {worst:.3g} nats: this architecture cannot be scored exactly"
    return CheckResult("packed_row", worst <= limit, worst, limit, sentence)


def check_window(model: Model, run: Trace) -> list[CheckResult]:
    """Scores across the edge of a sliding window are those of full forwards; no results without such layers."""
    window = sliding_window(model)
    if window is None:
        return []
    narrow = max(2, min(window, run.ids.shape[1]) // 2)  # transformers' cache cannot hold a window of 1
    with _sliding_window(model.hf_config, narrow):
        inside = Trace(run.ids, logits_of(model, run.ids)[0])
        results = [*check_cache(model, inside), check_packed_row(model, inside)]
    moved = float((inside.logits - run.logits).abs().max())
    results = [
        replace(one, name=f"window_{one.name}", sentence=f"across a window of {narrow}: {one.sentence}")
        for one in results
    ]
    sentence = f"a window of {narrow} instead of {window} moves the logits"
    if not moved > 0:
        sentence = f"not true that {sentence}: what lies beyond the window of this model cannot be checked"
    return [CheckResult("window", moved > 0, moved, None, sentence), *results]


@contextmanager
def _sliding_window(config: Any, size: int) -> Iterator[None]:
    """Another window in the body: the stock forward and `mech.engine.blocks` make their masks by it, call by call."""
    before = config.sliding_window
    config.sliding_window = size
    try:
        yield
    finally:
        config.sliding_window = before
