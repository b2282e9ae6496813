"""Checks that run the model: each compares two numbers that must agree, or makes a change that must be seen.

    bridge(x) = transformers(x)                      the wrapped model against the stock forward
    f(suffix | cache(prefix)) = f(prefix + suffix)   and the cache is as long as what it has read,
                                                     and greedy decoding with it chooses as without
    Σ_k pattern[q, k] = 1, pattern[q, k > q] = 0
    Σ_h z_h W_O[h] + b_O = attention output
    a change at a hook of layer l moves the logits   for every hook written to and every l

The last is one forward a length: row r of a batch is changed by one hook of one layer only, and compared with
a row that is not changed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mech.interventions.hooks import hooked
from mech.models.model import Model

CACHE_REMEDY = "install transformers>=5.9,<5.24, whose key/value cache the bridge reads"
LIMITS = {torch.float64: 1e-6, torch.float32: 5e-4, torch.float16: 0.25, torch.bfloat16: 1.0}
"""Largest difference of logits that is rounding (attention's softmax is float32 also in a float64 model)."""
SUM_LIMITS = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest relative difference of a sum over heads that is rounding."""

N_GREEDY = 8
N_SUFFIX = 4
CAUSAL_HOOKS = {
    1: {
        "hook_z": "blocks.{}.attn.hook_z",
        "hook_resid_pre": "blocks.{}.hook_resid_pre",
        "hook_mlp_out": "blocks.{}.hook_mlp_out",
        "hook_pattern": "blocks.{}.attn.hook_pattern",
    },
    2: {"hook_attn_scores": "blocks.{}.attn.hook_attn_scores"},
}
"""The hooks this project writes to or cuts at, by the number of tokens that show it: over a single key the
softmax does not see a change of scores, and a second token costs as much as the first."""


@dataclass(frozen=True)
class CheckResult:
    """One check: a failed one refuses the model, a flagged one passes with something the user should know."""

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


def logits_of(model: Model, ids: Tensor) -> Tensor:
    """Logits [batch, pos, d_vocab] of ids [batch, pos] through the bridge."""
    with torch.no_grad():
        logits: Tensor = model.bridge(ids, return_type="logits")
    return logits


def stock_logits(hf_model: Any, ids: Tensor) -> Tensor:
    """Logits [pos, d_vocab] of ids [1, pos] through the transformers model, not yet wrapped."""
    with torch.no_grad():
        logits: Tensor = hf_model(ids).logits[0]
    return logits


def trace(model: Model, ids: Tensor) -> Trace:
    """One forward of ids [1, pos] that keeps z, k, v, the pattern and the attention output of every layer."""
    names = ("hook_z", "hook_k", "hook_v", "hook_pattern", "hook_out")
    seen: dict[str, list[Tensor]] = {name: [] for name in names}

    def keep(name: str) -> Callable[[Tensor, Any], None]:
        return lambda value, point: seen[name].append(value.detach().clone())

    hooks = [(f"blocks.{layer}.attn.{name}", keep(name)) for layer in range(model.n_layers) for name in seen]
    with hooked(model, hooks, fires=1):
        logits = logits_of(model, ids)
    return Trace(ids, logits[0], seen)


def _compare(name: str, value: float, limit: float, claim: str, remedy: str) -> CheckResult:
    """A result that passes when value <= limit; a NaN fails."""
    passed = value <= limit
    sentence = f"{claim} (largest difference {value:.2g}, limit {limit:.2g})"
    return CheckResult(
        name, passed, value, limit, sentence if passed else f"not true that {sentence}: {remedy}"
    )


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
        weight = attention.W_O.detach().reshape(model.n_heads, model.d_head, model.d_model)
        summed = torch.einsum("phd,hdm->pm", z, weight)
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
    """Whether the cache is as long as what it read, and a suffix and greedy decoding on it are right."""
    n_prefix = run.ids.shape[1] - N_SUFFIX
    with torch.no_grad():
        first = model.bridge.original_model(run.ids[:, :n_prefix], use_cache=True)
        cache = first.past_key_values
        length = min(int(cache.get_seq_length(layer)) for layer in range(model.n_layers))
        second = model.bridge.original_model(run.ids[:, n_prefix:], past_key_values=cache, use_cache=True)
    sentence = f"the cache holds {length} positions after {n_prefix} tokens"
    right = length == n_prefix
    gap = float((second.logits[0] - run.logits[n_prefix:]).abs().max())
    claim = "a suffix scored on the cache equals the full forward"
    return [
        CheckResult(
            "cache_length",
            right,
            float(length),
            float(n_prefix),
            sentence if right else f"{sentence}: {CACHE_REMEDY}",
        ),
        _compare("suffix_on_cache", gap, LIMITS[model.dtype], claim, CACHE_REMEDY),
        _check_greedy(model, run, second),
    ]


def _check_greedy(model: Model, run: Trace, out: Any) -> CheckResult:
    """Greedy decoding from `out`, the cached forward of run.ids, against one uncached forward over its text.

    The value is the largest margin by which the full forward prefers another token than the cached loop
    chose, so that a near-tie is no failure.
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
    """Every hook in CAUSAL_HOOKS fires once a layer, and a change there, in any layer, moves the logits."""
    results = []
    for n_tokens, names in CAUSAL_HOOKS.items():
        results.extend(_causal(model, run.ids[:, :n_tokens], names))
    return results


def _causal(model: Model, ids: Tensor, names: dict[str, str]) -> list[CheckResult]:
    """The checks of the hooks `names` (short → full name, layer open), in one forward of ids."""
    sites = [(name, layer) for name in names for layer in range(model.n_layers)]
    hooks = [(names[name].format(layer), _disturb(name, row)) for row, (name, layer) in enumerate(sites)]
    with hooked(model, hooks, fires=1):
        logits = logits_of(model, ids.repeat(len(sites) + 2, 1))[:, -1]
    base = logits[-1]
    rounding = torch.finfo(model.dtype).eps * float(base.abs().max())
    floor = 4 * max(float((logits[-2] - base).abs().max()), rounding)
    effects = (logits[: len(sites)] - base).abs().amax(-1).reshape(len(names), model.n_layers)
    results = []
    for name, by_layer in zip(names, effects, strict=True):
        weakest = float(by_layer.min())
        sentence = f"fires once a layer, and a change there moves the logits (by {weakest:.2g} or more)"
        if not weakest > floor:
            sentence = (
                f"a change at {name} of layer {int(by_layer.argmin())} moves no logit, so that results from "
                "there would read as 'no effect'; use another version of TransformerLens"
            )
        results.append(CheckResult(f"causal_{name}", weakest > floor, weakest, floor, sentence))
    return results


def _disturb(name: str, row: int) -> Callable[[Tensor, Any], Tensor]:
    """Add a fixed wave to one row of the batch, of the row's own size (of size 1 for scores and patterns)."""

    def hook(value: Tensor, point: Any) -> Tensor:
        one = value[row]
        wave = torch.sin(1.7 * torch.arange(1, one.numel() + 1, device=value.device) ** 1.1).to(value.dtype)
        size = 1.0 if name in ("hook_attn_scores", "hook_pattern") else 1.0 + float(one.std())
        changed = value.clone()
        changed[row] = one + size * wave.reshape(one.shape)
        return changed

    return hook
