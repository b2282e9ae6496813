"""The columns of a run folder's rows and tables, written down once; a table may add columns after these.

Lengths are in tokens, log-probabilities and their differences in nats per action, shares between 0 and 1,
`ci_lo`, `ci_hi` (and `…_lo`, `…_hi`) the ends of a 95 % interval, `n` items, `n_clusters` tasks.
"""

from __future__ import annotations

_INTERVAL = ("mean", "ci_lo", "ci_hi", "n", "n_clusters")

SCORES = (
    *("id", "model", "env", "item_id", "task_id", "condition", "candidate"),
    *("logprob", "n_tokens", "is_greedy"),
)  # and whatever else the scorer knows of a row
MEASURES = ("model", "env", "item_id", "task_id", "measure", "value")
SUMMARY = ("model", "env", "measure", *_INTERVAL, "p", "p_holm")
HEADS = ("layer", "head")  # and one column per score
EFFECTS = ("item_id", "direction", "layer", "head", "effect_nats", "share")
# Exact effects beside their estimates by attribution patching; site z (heads) or mlp_out, which has no head.
ATTRIBUTION = ("item_id", "task_id", "direction", "site", "layer", "head", "effect_nats", "estimate_nats")
# scope: item (mean over items) or pooled (of the means over items); statistic: spearman, or recall among the top k.
SCREENING = (
    *("site", "direction", "scope", "statistic", "k", "estimate", "ci_lo", "ci_hi"),
    *("n", "n_clusters", "n_units"),
)
FALSE_NEGATIVES = (
    *("site", "direction", "scope", "item_id", "layer", "head"),
    *("effect_nats", "estimate_nats", "exact_rank", "estimate_rank"),
)
# What a screen of that many units leaves out; worst: of any item.
SCREEN_MISSES = (
    *("site", "direction", "screen", "quantity", "k", "mean", "ci_lo", "ci_hi", "worst"),
    *("n", "n_clusters"),
)
ABLATION = ("set", "kind", "k", "measure", "mean", "ci_lo", "ci_hi", "n")

# by: operator, error_type, template, step or quotes_source; level: a value of it.
BREAKDOWN = ("model", "env", "by", "level", "measure", *_INTERVAL)
# Not the mean of an item's ratios: ratios of sums, medians and shares over items.
DECOMPOSITION = ("model", "env", "quantity", "estimate", "ci_lo", "ci_hi", "n", "n_clusters")
# equivalent: the whole interval lies inside ±delta.
EQUIVALENCE = ("model", "env", "measure", "mean", "ci_lo", "ci_hi", "delta", "equivalent")
# delta: mean of the paired L(condition) − L(fail); G: that of L(pre) − L(condition); Holm's family: all
# conditions of one model and environment.
MANIPULATIONS = (
    *("model", "env", "condition", "delta", "ci_lo", "ci_hi", "n", "n_clusters", "p", "p_holm"),
    *("G", "equivalent"),
)
# axis: position (level: decile 0 to 9 of the token's place in a×) or part (level: before, error, after);
# mean: nats per item, summed over the tokens of that level.
PROFILES = ("model", "env", "measure", "axis", "level", *_INTERVAL)
LENGTH_MATCH = ("model", "env", "condition", "n", "mean_mismatch", "max_abs_mismatch", "share_exact")
SCALING = ("model", "n_parameters", "env", "measure", *_INTERVAL)
# G on log10(parameters): slope in nats per decade; loo: range of the crossing when one model is left out.
SCALING_FIT = (
    *("env", "group", "n_models", "slope", "intercept", "r2"),
    *("crossing_parameters", "loo_lo", "loo_hi", "note"),
)
COMPARE = (
    *("model", "env", "measure", "ours", "ours_lo", "ours_hi", "ours_n"),
    *("paper", "paper_lo", "paper_hi", "paper_n"),
    *("difference", "overlap", "same_sign", "paper_excludes_zero"),
)
# share of L(to) - L(pre) that cutting the heads' attention to the sources removes.
KNOCKOUT = ("sources", "set", "kind", "k", "share", "ci_lo", "ci_hi", "effect_nats", "n", "n_clusters")
# A found set of heads on one test set (training first): shares of the mean delta; random sets by the criterion, of
# which so many heads had to be displaced to other layers.
CIRCUIT = (
    *("method", "criterion", "target", "k", "heads", "reached", "test_set"),
    *("necessity", "necessity_lo", "necessity_hi", "sufficiency", "sufficiency_lo", "sufficiency_hi"),
    *("faithfulness", "faithfulness_lo", "faithfulness_hi", "n", "n_clusters", "delta_nats"),
    *("random_mean", "percentile", "p", "n_controls", "displaced", "completeness_mean", "completeness_worst"),
)
# cost: share lost on held-out tasks without the head; spare: less than 1 %; alone: its own share on training tasks.
CIRCUIT_HEADS = (*("method", "layer", "head", "order", "cost", "spare", "prefix_matching", "alone", "sign"),)
CIRCUIT_COMPLETENESS = (
    *("method", "test_set", "subset", "k_removed", "removed", "circuit_left", "model_left", "gap"),
)
CIRCUIT_STABILITY = (
    *("method", "variation", "label", "n_items", "k", "reached", "jaccard", "kendall", "spearman"),
)
# ci_lo, ci_hi of the method "random": the extremes of its draws.
CIRCUIT_CURVE = ("method", "test_set", "k", "share", "ci_lo", "ci_hi", "n")
# Every head: its score, its estimated share, how many methods chose it, and whether the smallest found set has it.
CIRCUIT_RANKING = ("layer", "head", "prefix_matching", "estimate", "n_methods", "selected")

ROWS: dict[str, tuple[str, ...]] = {"scores": SCORES}
TABLES: dict[str, tuple[str, ...]] = {
    "measures": MEASURES,
    "summary": SUMMARY,
    "heads": HEADS,
    "effects": EFFECTS,
    "attribution": ATTRIBUTION,
    "screening": SCREENING,
    "false_negatives": FALSE_NEGATIVES,
    "screen_misses": SCREEN_MISSES,
    "knockout": KNOCKOUT,
    "circuit": CIRCUIT,
    "circuit_heads": CIRCUIT_HEADS,
    "circuit_completeness": CIRCUIT_COMPLETENESS,
    "circuit_stability": CIRCUIT_STABILITY,
    "circuit_curve": CIRCUIT_CURVE,
    "circuit_ranking": CIRCUIT_RANKING,
    "ablation": ABLATION,
    "breakdown": BREAKDOWN,
    "decomposition": DECOMPOSITION,
    "equivalence": EQUIVALENCE,
    "manipulations": MANIPULATIONS,
    "profiles": PROFILES,
    "length_match": LENGTH_MATCH,
    "scaling": SCALING,
    "scaling_fit": SCALING_FIT,
    "compare": COMPARE,
}
