"""Checks that run the model: each compares two numbers that must agree, or makes a change that must be seen.

    bridge(x) = transformers(x)                      the wrapped model against the stock forward
    f(suffix | cache(prefix)) = f(prefix + suffix)   and the cache is as long as what it has read,
                                                     and greedy decoding with it chooses as without
    Σ_k pattern[q, k] = 1, pattern[q, k > q] = 0
    Σ_h z_h W_O[h] + b_O = attention output
    a change at a hook of layer l moves the logits   for every hook that is edited and every l
    a packed row over a prefix cache = full forwards

`mech.engine.blocks` reads the arguments of a block off the model; the last check shows that none is missing. Two
actions share a row, one of them under an edit of z, so masks, positions, prefix cache and edit location all have to be
right. The probe has a dozen tokens, a sliding window may have thousands: the window is narrowed until the probe is
longer, and cache, greedy decoding and packed row are checked again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.capture import capture_hooks, everything_names
from mech.engine.layout import sliding_window
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query
from mech.heads import Head, HeadSet
from mech.interventions.edits import HOOKS, hook_name
from mech.interventions.hooks import hooked
from mech.interventions.intervention import NOTHING, scale_heads
from mech.interventions.site_check import disturbed
from mech.models.model import Model

CACHE_REMEDY = "install transformers>=5.9,<5.24, whose key/value cache the bridge reads"
LIMITS = {torch.float64: 1e-5, torch.float32: 5e-4, torch.float16: 0.25, torch.bfloat16: 1.0}
"""Largest difference of logits that is rounding (stock attention's softmax is float32 also in a float64 model; fused
attention's is not, which is why 1e-6 was too little)."""
SUM_LIMITS = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest relative difference of a sum over heads that is rounding."""

N_GREEDY = 8
N_SUFFIX = 4
CAUSAL_SITES = {1: ("z", "resid_pre", "mlp_out", "pattern"), 2: ("scores",)}
"""The sites this project edits, by the number of tokens that show a change: over a single key the softmax does not
depend on the score."""


@dataclass(frozen=True)
class CheckResult:
    """One check: a failed one refuses the model, a flagged one passes with a sentence for the user."""

    name: str
    passed: bool
    value: float | None
    limit: float | None
    sentence: str
    flagged: bool = False


@dataclass
class Trace:
    """One forward over `ids` [1, pos]: logits [pos, d_vocab] and, by hook, each layer's value."""

    ids: Tensor
    logits: Tensor
    seen: dict[str, list[Tensor]] = field(default_factory=dict)


@torch.no_grad()
def logits_of(model: Model, ids: Tensor) -> Tensor:
    """Logits [batch, pos, d_vocab] of ids [batch, pos] through the bridge."""
    return model.bridge(ids, return_type="logits")


@torch.no_grad()
def stock_logits(hf_model: Any, ids: Tensor) -> Tensor:
    """Logits [pos, d_vocab] of ids [1, pos] through the transformers model, not yet wrapped."""
    return hf_model(ids).logits[0]


def trace(model: Model, ids: Tensor) -> Trace:
    """One forward of ids [1, pos] that keeps z, k, v, the pattern and the attention output of every layer."""
    kinds = ("hook_z", "hook_k", "hook_v", "hook_pattern", "hook_out")
    found: dict[str, Tensor] = {}
    names = {kind: everything_names(model, f"attn.{kind}") for kind in kinds}

    def keep(name: str, value: Tensor) -> None:
        found[name] = value.clone()

    with hooked(model, capture_hooks(model, sum(names.values(), []), keep), fires=1):
        logits = logits_of(model, ids)
    return Trace(ids, logits[0], {kind: [found[name] for name in names[kind]] for kind in kinds})


def _compare(name: str, value: float, limit: float, claim: str, remedy: str) -> CheckResult:
    """A result that passes when value <= limit; a NaN fails."""
    sentence = f"{claim} (largest difference {value:.2g}, limit {limit:.2g})"
    if not value <= limit:
        return CheckResult(name, False, value, limit, f"not true that {sentence}: {remedy}")
    return CheckResult(name, True, value, limit, sentence)


def check_finite(run: Trace) -> CheckResult:
    """No logit is NaN or infinite."""
    bad = int((~torch.isfinite(run.logits)).sum())
    remedy = "the weights are damaged or the dtype overflows; fetch them again or use float32"
    sentence = "all logits are finite" if not bad else f"{bad} logits are not finite: {remedy}"
    return CheckResult("finite_logits", bad == 0, float(bad), 0.0, sentence)


def check_stock(model: Model, run: Trace, stock: Tensor) -> CheckResult:
    """The bridge computes what transformers computes from the same weights."""
    gap = float((run.logits - stock).abs().max())
    claim = "the bridge's logits equal the stock transformers forward"
    remedy = "TransformerLens rebuilds this architecture wrongly; use another version or another model"
    return _compare("stock_forward", gap, LIMITS[model.dtype], claim, remedy)


def check_attention_rows(model: Model, run: Trace) -> CheckResult:
    """Every attention row sums to one and looks at no later position."""
    patterns = torch.stack([pattern[0] for pattern in run.seen["hook_pattern"]])
    uneven = (patterns.sum(-1) - 1).abs().max()
    ahead = patterns.triu(1).abs().max()
    remedy = "the attention of this model is not the causal softmax this project assumes"
    claim = "attention rows sum to 1 and are causal"
    limit = max(SUM_LIMITS[model.dtype], SUM_LIMITS[torch.float32])
    return _compare("attention_rows", float(torch.maximum(uneven, ahead)), limit, claim, remedy)


def check_head_sum(model: Model, run: Trace) -> CheckResult:
    """The heads' contributions through W_O add up to the attention output, relative to its size."""
    worst = 0.0
    for layer in range(model.n_layers):
        attention = model.bridge.blocks[layer].attn
        z = run.seen["hook_z"][layer].reshape(-1, model.n_heads, model.d_head)
        summed = torch.einsum("phd,hdm->pm", z, model.w_o(layer))
        if attention.b_O is not None:
            summed = summed + attention.b_O.detach()
        out = run.seen["hook_out"][layer][0]
        gap = float((summed - out).abs().max() / out.abs().max())
        worst = gap if math.isnan(gap) else max(worst, gap)
    claim = "the sum over heads of z W_O is the attention output"
    remedy = "this architecture changes z after hook_z, so heads cannot be patched there"
    return _compare("head_sum", worst, SUM_LIMITS[model.dtype], claim, remedy)


def check_kv_heads(model: Model, run: Trace) -> CheckResult:
    """Keys and values have n_kv_heads heads, z and the pattern have n_heads."""
    n = run.ids.shape[1]
    wanted = {
        "hook_k": n * model.n_kv_heads * model.d_head,
        "hook_v": n * model.n_kv_heads * model.d_head,
        "hook_z": n * model.n_heads * model.d_head,
        "hook_pattern": n * n * model.n_heads,
    }
    wrong = [name for name, size in wanted.items() if any(value.numel() != size for value in run.seen[name])]
    sizes = f"{model.n_heads} heads of size {model.d_head}, {model.n_kv_heads} key/value heads"
    sentence = f"activations have {sizes}" if not wrong else f"{', '.join(wrong)} do not have {sizes}"
    return CheckResult("head_counts", not wrong, float(len(wrong)), 0.0, sentence)


def check_cache(model: Model, run: Trace) -> list[CheckResult]:
    """The cache has the length of its prefix, and a suffix and greedy decoding on it are right."""
    n_prefix = run.ids.shape[1] - N_SUFFIX
    with torch.no_grad():
        first = model.bridge.original_model(run.ids[:, :n_prefix], use_cache=True)
        cache = first.past_key_values
        length = min(int(cache.get_seq_length(layer)) for layer in range(model.n_layers))
        second = model.bridge.original_model(run.ids[:, n_prefix:], past_key_values=cache, use_cache=True)
    right = length == n_prefix
    sentence = f"the cache holds {length} positions after {n_prefix} tokens"
    if not right:
        sentence = f"{sentence}: {CACHE_REMEDY}"
    gap = float((second.logits[0] - run.logits[n_prefix:]).abs().max())
    claim = "a suffix scored on the cache equals the full forward"
    return [
        CheckResult("cache_length", right, float(length), float(n_prefix), sentence),
        _compare("suffix_on_cache", gap, LIMITS[model.dtype], claim, CACHE_REMEDY),
        _check_greedy(model, run, second),
    ]


def _check_greedy(model: Model, run: Trace, out: Any) -> CheckResult:
    """Greedy decoding from `out`, the cached forward of run.ids, against one uncached forward over its tokens.

    The value is the largest margin by which the full forward prefers another token, so a near-tie does not fail.
    """
    chosen = [out.logits[:, -1:].argmax(-1)]
    with torch.no_grad():
        while len(chosen) < N_GREEDY:
            out = model.bridge.original_model(chosen[-1], past_key_values=out.past_key_values, use_cache=True)
            chosen.append(out.logits[:, -1:].argmax(-1))
    tokens = torch.cat(chosen, dim=1)
    full = logits_of(model, torch.cat([run.ids, tokens[:, :-1]], dim=1))[0, run.ids.shape[1] - 1 :]
    margins = full.max(-1).values - full.gather(-1, tokens[0, :, None])[:, 0]
    claim = "greedy decoding with the cache chooses as without it"
    return _compare("greedy_cached", float(margins.max()), LIMITS[model.dtype], claim, CACHE_REMEDY)


def check_causal_hooks(model: Model, run: Trace) -> list[CheckResult]:
    """Every site in CAUSAL_SITES fires once a layer, and a change there moves the logits, in every layer."""
    results = []
    for n_tokens, sites in CAUSAL_SITES.items():
        names = [hook_name(site, layer) for site in sites for layer in range(model.n_layers)]
        moved, floor = disturbed(model, run.ids[:, :n_tokens], names)
        for site, by_layer in zip(sites, moved.reshape(len(sites), model.n_layers), strict=True):
            name, weakest = HOOKS[site].rpartition(".")[2], float(by_layer.min())
            sentence = f"fires once a layer, and a change there moves the logits (by {weakest:.2g} or more)"
            if not weakest > floor:
                sentence = (
                    f"a change at {name} of layer {int(by_layer.argmin())} moves no logit, so patching there would "
                    "show no effect; use another version of TransformerLens"
                )
            results.append(CheckResult(f"causal_{name}", weakest > floor, weakest, floor, sentence))
    return results


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
    # Fused where nobody listens to scores, eager where somebody does: both are used, both must be right.
    listening = [(hook_name("scores", layer), lambda scores, point: None) for layer in range(model.n_layers)]
    found = packed.score_row(model, queries, prefix_cache)
    with hooked(model, listening, fires=1):
        eager = packed.score_row(model, queries, prefix_cache)
    pairs = zip([*found, *eager], reference.score(model, queries) * 2, strict=True)
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
        sentence = f"not true that {sentence}: positions beyond the window of this model cannot be checked"
    return [CheckResult("window", moved > 0, moved, None, sentence), *results]


@contextmanager
def _sliding_window(config: Any, size: int) -> Iterator[None]:
    """Another window in the body; the stock forward and `mech.engine.blocks` read it at each call."""
    before = config.sliding_window
    config.sliding_window = size
    try:
        yield
    finally:
        config.sliding_window = before
