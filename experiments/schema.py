"""The columns of a run folder's rows and tables, written down once; a table may add columns after these.

Lengths are in tokens, log-probabilities and their differences in nats per action, shares between 0 and 1,
`ci_lo`, `ci_hi` (and `…_lo`, `…_hi`) the ends of a 95 % interval (empty below six clusters), `n` items, `n_clusters`
tasks, or what --cluster names; `deff` is the design effect, `p_holm` p corrected over a family of `family_size` tests
(`probes.families`); p is empty where .05 could not be reached, and for shares and probabilities. Tables of a
probe end with `ablation`, the label of the ablation arm ("none": the whole model).
"""

from __future__ import annotations

_INTERVAL = ("mean", "ci_lo", "ci_hi", "n", "n_clusters")

SCORES = (
    *("id", "model", "env", "item_id", "task_id", "condition", "candidate"),
    *("logprob", "n_tokens", "is_greedy"),
)  # and whatever else the scorer knows of a row: ablation; n_draws, logprob_sd and draws (by name, one value a draw)
# where an ablation is drawn anew: then log-probabilities are means over the draws and is_greedy is a share
MEASURES = ("model", "env", "item_id", "task_id", "measure", "value")
SUMMARY = ("model", "env", "measure", *_INTERVAL, "deff", "p", "p_holm", "family_size")
HEADS = ("layer", "head")  # and one column per score
# What was patched where: site (z, q, k, v, pattern, mlp_out or resid_pre), at (candidate, record or observation), and
# the pair of conditions. head counts query heads: empty for k and v, which have a kv_head, and for layers.
_PATCH = ("site", "at", "from", "to", "kv_head", "screen")
EFFECTS = ("item_id", "direction", "layer", "head", "effect_nats", "share", *_PATCH)
JOINT = ("item_id", "direction", "effect_nats", "share", "set", "site", "at", "from", "to")
SHARES = (
    *("direction", "layer", "head", "share", "ci_lo", "ci_hi", "effect_nats", "n", "n_clusters", "flagged"),
    *_PATCH,
)
REDUNDANCY = (
    *("direction", "set", "joint_share", "share_lo", "share_hi", "joint_nats", "singles_nats"),
    *("redundancy_nats", "ci_lo", "ci_hi", "n", "n_clusters", "site", "at", "from", "to"),
)
# Means over items of what attribution says of each head; patched: exactly, too.
ESTIMATES = ("direction", "layer", "head", "estimate_nats", "n", "patched", "from", "to")
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
ABLATION = ("how", "metric", "set", "kind", "k", "measure", "mean", "ci_lo", "ci_hi", "n")

# by: operator, error_type, template, step or quotes_source; level: a value of it.
BREAKDOWN = ("model", "env", "by", "level", "measure", *_INTERVAL)
# Not the mean of an item's ratios: ratios of sums, medians and shares over items.
DECOMPOSITION = ("model", "env", "quantity", "estimate", "ci_lo", "ci_hi", "n", "n_clusters", "deff")
# equivalent: the whole interval lies inside ±delta.
EQUIVALENCE = ("model", "env", "measure", "mean", "ci_lo", "ci_hi", "delta", "equivalent")
# delta: mean of the paired L(condition) − L(fail); G: that of L(pre) − L(condition); Holm's family: all
# conditions of one model and environment.
MANIPULATIONS = (
    *("model", "env", "condition", "delta", "ci_lo", "ci_hi", "n", "n_clusters"),
    *("deff", "p", "p_holm", "family_size", "G", "equivalent"),
)
# axis: position (level: decile 0 to 9 of the token's place in a×) or part (level: before, error, after);
# mean: nats per item, summed over the tokens of that level.
PROFILES = ("model", "env", "measure", "axis", "level", *_INTERVAL)
# An ablation arm against the whole model (against: none) or an earlier arm, paired; removed: share of mean_against.
# family: "ablation arms" or "arms against arms", of one model, environment and measure.
ARMS = (
    *("model", "env", "measure", "ablation", "against", "mean", "mean_against"),
    *("difference", "ci_lo", "ci_hi", "n", "n_clusters", "p", "p_holm", "family_size", "family"),
    *("removed", "removed_lo", "removed_hi"),
)
# shared_tokens: mean share of a×'s tokens in the call recorded in its place; empty where a× itself is recorded.
LENGTH_MATCH = (
    *("model", "env", "condition", "n", "mean_mismatch", "max_abs_mismatch", "share_exact", "shared_tokens"),
)
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
# A selected set by one method beside its controls (random | strength), whose extremes are control_lo and control_hi.
CARRIED = (
    *("env", "method", "direction", "set", "k", "share", "ci_lo", "ci_hi", "effect_nats"),
    *("controls", "n_controls", "control_mean", "control_lo", "control_hi", "percentile", "p"),
    *("excess", "excess_lo", "excess_hi", "n", "n_clusters"),
)
# quantity: reference (log p of the reference action) or sem (the mark of failure); change: paired, nats.
CARRIED_OFFTARGET = (
    *("env", "method", "set", "k", "quantity", "whole", "under", "change", "ci_lo", "ci_hi"),
    *("delta", "equivalent", "n", "n_clusters"),
)
# statistic: spearman, jaccard, reliability, beyond_zero; of: the difference it is of, empty where it is of both.
OVERLAP = ("direction", "statistic", "of", "k", "estimate", "ci_lo", "ci_hi", "chance", "n", "n_clusters")

# What else an ablation changes, against the whole model; equivalent: the interval lies inside ±delta.
OFFTARGET = (
    *("how", "set", "kind", "k", "quantity", "whole", "ablated", "change", "ci_lo", "ci_hi"),
    *("delta", "equivalent", "n", "n_clusters"),
)
# How well controls match: n_heads beside k, that of the selected set; ratio: of output norms (norm) or damage (damage).
CONTROL_SETS = ("set", "kind", "k", "n_heads", "ratio", "displaced", "reached")
# Of ablate, how: what takes the place of z; draw_sd: SD over the draws of donors of the share.
REMOVED = (
    *("how", "metric", "set", "kind", "k", "share", "ci_lo", "ci_hi", "effect_nats"),
    *("n", "n_clusters", "flagged", "draw_sd"),
)
# control: the kind of the controls that random_… speaks of; percentile: of 100 controls, how many remove less.
CONTROLS = (
    *("how", "metric", "set", "k", "share", "random_mean", "random_lo", "random_hi", "n_controls", "p"),
    *("control", "percentile"),
)
# The dose curve's area (mean share over 0 … k_max) against those of the controls; trend: Spearman of share on k.
DOSE = (
    *("how", "metric", "measure", "control", "k_max", "n_sizes", "area", "ci_lo", "ci_hi", "trend"),
    *("control_mean", "control_lo", "control_hi", "n_controls", "p", "percentile"),
    *("n", "n_clusters", "flagged"),
)
# found must meet expected, and the counterpart on the same items be alive; intervals as probes.placebo_checks says.
PLACEBOS = (
    *("what", "expected", "found", "ci_lo", "ci_hi", "threshold", "unit"),
    *("counterpart", "positive", "positive_lo", "positive_hi", "alive", "passed", "n", "n_clusters"),
)
# Rank agreement of a score with effects; k of jaccard alone; chance: if the score ordered heads at random.
AGREEMENT = (
    *("direction", "score", "statistic", "k", "estimate", "ci_lo", "ci_hi", "chance"),
    *("n", "n_clusters", "n_heads", "flagged", "uses_task_data"),
)
SCORE_AGREEMENT = ("score", "other", "spearman", "kendall", "n_heads", "uses_task_data")
# Heads whose effect has its interval below 0; and a column per score beside these.
SUPPRESSORS = (
    *("direction", "layer", "head", "effect_nats", "ci_lo", "ci_hi", "p", "p_holm"),
    *("n", "n_clusters", "n_heads"),
)
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

# Effects of a head or (without head) a layer's MLP; role by its direct effect: carries, holds back, or empty.
DIRECT = (
    *("direction", "kind", "layer", "head", "total_share", "total_lo", "total_hi", "total_nats"),
    *("direct_share", "direct_lo", "direct_hi", "direct_nats"),
    *("indirect_share", "indirect_lo", "indirect_hi", "indirect_nats"),
    *("role", "n", "n_clusters", "flagged", "p", "p_holm", "from", "to"),
)
# site: mlp_out, or resid_pre, whose last layer is what the final norm reads.
LAYERS = (
    *("site", "direction", "layer", "share", "ci_lo", "ci_hi", "effect_nats", "n", "n_clusters", "flagged"),
    *("from", "to"),
)
# set: the senders (previous-token, all, random0, …); random_lo, random_hi, p: selected sets against the random ones.
PATH = (
    *("set", "kind", "k", "share", "ci_lo", "ci_hi", "effect_nats", "n", "n_clusters", "flagged"),
    *("random_lo", "random_hi", "n_controls", "p", "how", "from", "to"),
)

# A step of a rollout. given: the call was put there, not written by the model; canonical: the same for equal calls;
# kind: ok, done, failed, prose, truncated, unparsable, empty, banned_out or no_room; end: solved, done, step_limit,
# ban_exhausted or no_room, on the last row only; n_ban_events: tokens of which the ban changed the choice. extraction:
# what was done to raw to get action, names out of envs.agent.EDITS; dropped: other calls or programs of the reply.
STEPS = (
    *("id", "model", "env", "arm", "harness", "change", "task_id", "template", "n_gold", "sample", "index"),
    *("given", "raw", "action", "canonical", "kind", "error_type", "observation", "stop", "solved", "last"),
    *("end", "n_prompt_tokens", "n_new_tokens", "n_bans", "n_ban_events"),
    *("prompt_sha256", "prompt_ids", "token_ids", "token_logprobs", "first_top", "ban_events"),
    *("extraction", "dropped"),
)
# One row a rollout; rates and shares are of its free steps, as probes.rollout_measures says. After these come the
# loop detectors, whose names hold their thresholds: same_action_error_3, same_observation_4, alternating_6.
ROLLOUTS = (
    *("model", "env", "arm", "harness", "change", "task_id", "template", "sample"),
    *("solved", "end", "n_steps", "n_new_tokens", "n_prompt_tokens", "n_failed"),
    *("parseable_share", "ok_share", "prose_rate", "truncated_rate", "unparsable_rate", "empty_rate"),
    *("banned_out", "exact_repeat_rate", "canonical_repeat_rate", "near_repeat_rate", "repeat_per_chance"),
    *("first_chance_repeats", "again_share", "cycle2", "cycle3", "stuck", "stuck_near", "recovered"),
    *("demonstration_share", "runtime_share", "n_ban_events", "ban_active"),
)
# How often each edit of extraction was made; n_steps: free steps of the arm. "not recorded": steps of older versions.
EXTRACTIONS = ("model", "env", "arm", "harness", "change", "edit", "n", "n_steps", "share")
# n: rollouts in which the metric is defined; n_undefined: the others.
RATES = ("model", "env", "arm", "harness", "change", "metric", *_INTERVAL, "n_undefined")
# Paired by task and sample. n_unpaired: rollouts without a partner; Holm's family: one metric's.
_PAIRED = ("ci_lo", "ci_hi", "n", "n_clusters", "n_undefined", "n_unpaired", "p", "p_holm", "family_size")
CONTRASTS = ("model", "env", "metric", "arm", "baseline", "difference", *_PAIRED)
# by_change: H/X − H; by_ban: H+ban − H; by_both: H+ban/X − H; interaction, with the interval: both − change − ban.
FACTORIAL = (
    *("model", "env", "metric", "harness", "change", "by_change", "by_ban", "by_both", "interaction"),
    *_PAIRED,
)
# t: free steps since the first failure; survival: Kaplan-Meier, of "no canonical repeat yet".
SURVIVAL = (
    *("model", "env", "arm", "harness", "change", "t", "at_risk", "events", "censored", "survival"),
    *("ci_lo", "ci_hi"),
)
# How a predictor, taken before a step, tells steps that repeat from others; brier, ece: of probabilities alone.
PREDICT = (
    *("model", "env", "arm", "predictor", "auc", "ci_lo", "ci_hi", "n", "n_repeats", "n_clusters"),
    *("n_undefined", "n_dropped", "flagged", "brier", "ece"),
)
# auc: under the ablation; auc_whole: of the whole model, on the same points; the difference with its interval.
PREDICT_ARMS = (
    *("model", "env", "arm", "predictor", "ablation", "auc", "auc_whole", "difference", "ci_lo", "ci_hi"),
    *("n", "n_repeats", "n_clusters", "n_dropped", "flagged"),
)
CALIBRATION = (
    *("model", "env", "arm", "predictor", "bin", "predicted", "observed", "ci_lo", "ci_hi"),
    *("n", "n_clusters"),
)

# Simulations of `probes.stats`: error (p at most .05 under the null), attainable (what an exact test can reject),
# both (and the interval excludes the truth), coverage of the 95 % interval, below and above: on which side it misses.
CALIBRATE = (
    *("statistic", "population", "n_clusters", "simulations", "skew_items", "skew_clusters"),
    *("error", "flips", "attainable", "coverage", "below", "above", "width"),
)

# What a study left out of which items: `what` is a condition or a measure, `why` a sentence.
LEFT_OUT = ("study", "what", "n", "why")

ROWS: dict[str, tuple[str, ...]] = {"scores": SCORES, "steps": STEPS}
TABLES: dict[str, tuple[str, ...]] = {
    "measures": MEASURES,
    "summary": SUMMARY,
    "heads": HEADS,
    "effects": EFFECTS,
    "joint": JOINT,
    "shares": SHARES,
    "redundancy": REDUNDANCY,
    "estimates": ESTIMATES,
    "attribution": ATTRIBUTION,
    "screening": SCREENING,
    "false_negatives": FALSE_NEGATIVES,
    "screen_misses": SCREEN_MISSES,
    "knockout": KNOCKOUT,
    "overlap": OVERLAP,
    "carried": CARRIED,
    "carried_offtarget": CARRIED_OFFTARGET,
    "circuit": CIRCUIT,
    "circuit_heads": CIRCUIT_HEADS,
    "circuit_completeness": CIRCUIT_COMPLETENESS,
    "circuit_stability": CIRCUIT_STABILITY,
    "circuit_curve": CIRCUIT_CURVE,
    "circuit_ranking": CIRCUIT_RANKING,
    "direct": DIRECT,
    "layers": LAYERS,
    "path": PATH,
    "ablation": ABLATION,
    "controls": CONTROLS,
    "control_sets": CONTROL_SETS,
    "removed": REMOVED,
    "dose": DOSE,
    "offtarget": OFFTARGET,
    "placebos": PLACEBOS,
    "agreement": AGREEMENT,
    "score_agreement": SCORE_AGREEMENT,
    "suppressors": SUPPRESSORS,
    "breakdown": BREAKDOWN,
    "decomposition": DECOMPOSITION,
    "equivalence": EQUIVALENCE,
    "manipulations": MANIPULATIONS,
    "arms": ARMS,
    "profiles": PROFILES,
    "length_match": LENGTH_MATCH,
    "scaling": SCALING,
    "scaling_fit": SCALING_FIT,
    "compare": COMPARE,
    "calibrate": CALIBRATE,
    "left_out": LEFT_OUT,
    "rollouts": ROLLOUTS,
    "rollout_extractions": EXTRACTIONS,
    "rollout_rates": RATES,
    "rollout_contrasts": CONTRASTS,
    "rollout_factorial": FACTORIAL,
    "survival": SURVIVAL,
    "predict": PREDICT,
    "predict_arms": PREDICT_ARMS,
    "calibration": CALIBRATION,
}
