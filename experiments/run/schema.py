"""The columns of a run folder's rows and tables, written down once; a table may add columns after these.

A file's name is, or begins with, the name of the command that writes it. Those that several commands write have a
neutral name: scores.jsonl; measures, summary, breakdown, small_cells, equivalence, profiles, length_match, arms (all
studies of conditions, which write decomposition.csv and manipulations.csv too) and left_out.

Lengths are in tokens, log-probabilities and their differences in nats per action, shares between 0 and 1,
`ci_lo`, `ci_hi` (and `…_lo`, `…_hi`) the ends of a 95 % interval (empty below six clusters), `n` items, `n_clusters`
tasks, or what --cluster names; `deff` is the design effect, `p_holm` p corrected over a family of `family_size` tests
(`probes.stats.families`); p is empty where .05 could not be reached, and for shares and probabilities.
`metric` is a name of `probes.scoring.contrast.FORMS`: logprob, margin, diverging, or one of them per token, in whose
unit nats are then counted; a share divides by the same metric's difference.
Tables of a probe end with `ablation`, the label of the ablation arm ("none": the unablated model).
"""

from __future__ import annotations


def _columns(*names: str) -> tuple[str, ...]:
    """Names with spaces between."""
    return tuple(" ".join(names).split())


_INTERVAL = "mean ci_lo ci_hi n n_clusters"
# What was patched where: site (z, q, k, v, pattern, mlp_out or resid_pre), at (candidate, record or observation), and
# the pair of conditions. head counts query heads: empty for k and v, which have a kv_head, and for layers.
_PATCH = "site at from to kv_head screen"
# Paired by task and sample. n_changed: tasks on which the arms differ; n_chance: pairs in which all arms had a chance
# to repeat; n_unpaired: rollouts without a partner; family_size: tests in Holm's family (one metric's).
_PAIRED = "ci_lo ci_hi n n_clusters n_changed n_chance n_undefined n_unpaired p p_holm family_size"
# Row file of older folders → its name now.
RENAMED_ROWS = {
    **{"patches": "patch", "ablations": "ablate", "joint_sets": "joint", "attributions": "attribute"},
    **{"placebos": "placebo", "decisions": "predict", "steps": "rollout", "transcripts": "agree"},
    **{"estimates": "patch_estimates", "fits": "joint_fits", "causal_copying": "heads_causal_copying"},
}
ROWS: dict[str, tuple[str, ...]] = {
    # One candidate action of an item under one condition (`probe` and other studies of conditions). Rows also have
    # ablation (the arm) and, where an ablation is drawn anew, n_draws, logprob_sd and draws (by name, one value a
    # draw): log-probabilities are then means over the draws, and is_greedy is a share.
    "scores": _columns("id model env item_id task_id condition candidate logprob n_tokens is_greedy"),
    # One step of a rollout (`rollout`). given: the call was given, not written by the model; canonical: the same for
    # equal calls; kind: ok, done, failed, prose, truncated, unparsable, empty, banned_out or no_room; end: solved,
    # done, step_limit, ban_exhausted or no_room, on the last row only; n_ban_events: tokens of which the ban changed
    # the choice; extraction: what was done to raw to get action, names out of envs.agent.EDITS; dropped: other calls
    # or programs of the reply.
    "rollout": _columns(
        "id model env arm harness change task_id template n_gold sample index given raw action canonical",
        "kind error_type observation stop solved last end n_prompt_tokens n_new_tokens n_bans n_ban_events",
        "prompt_sha256 prompt_ids token_ids token_logprobs first_top ban_events extraction dropped",
    ),
}
TABLES: dict[str, tuple[str, ...]] = {
    # One measure of one item (`probe` and other studies of conditions); `probes.measures.measures` defines them.
    "measures": _columns("model env item_id task_id measure value"),
    # One measure over all items, with interval and test (`probe` and other studies of conditions).
    "summary": _columns("model env measure", _INTERVAL, "deff p p_holm family_size"),
    # One head and its scores on random tokens (`heads`): after these columns comes one for each score.
    "heads": _columns("layer head"),
    # One head or layer patched alone on one item (`patch`). site: z, q, k, v, pattern, mlp_out or resid_pre; at:
    # candidate, record or observation; head: a query head, empty for k and v, which have a kv_head, and for layers;
    # screen: how parts were chosen.
    "patch_effects": _columns("metric item_id direction layer head effect_nats share", _PATCH),
    # One named set of heads or layers patched together on one item (`patch`).
    "patch_sets": _columns("metric item_id direction effect_nats share set site at from to"),
    # One head or layer patched alone, over items (`patch`); columns as in patch_effects.csv. flagged: the difference
    # is too small to divide by.
    "patch": _columns(
        "metric direction layer head share ci_lo ci_hi effect_nats n n_clusters flagged",
        _PATCH,
    ),
    # One set patched together, beside the sum of its parts patched alone (`patch`). redundancy_nats: joint_nats minus
    # singles_nats.
    "patch_redundancy": _columns(
        "metric direction set joint_share share_lo share_hi joint_nats singles_nats redundancy_nats ci_lo",
        "ci_hi n n_clusters site at from to",
    ),
    # One head's mean estimate by attribution patching (`patch --screen attribution:N`); patched: it was patched
    # exactly, too.
    "patch_estimates": _columns("metric direction layer head estimate_nats n patched from to"),
    # One head or MLP on one item: exact effect beside its estimate by attribution patching (`attribute`). site: z
    # (heads) or mlp_out, which has no head; delta: the item's difference (nats), of which effects are a part.
    "attribute": _columns("metric item_id task_id direction delta site layer head effect_nats estimate_nats"),
    # One statistic of how well estimates rank units (`attribute`). scope: item (mean over items) or pooled (of the
    # means over items); statistic: spearman, spearman_within_layer, recall among the top k, reliability (of halves;
    # its range in ci_lo, ci_hi); with: what it is agreement with, in words; effects_nats, delta_nats: mean sum of the
    # units' exact effects, and the mean difference that they belong to.
    "attribute_screening": _columns(
        "metric site direction scope statistic k estimate ci_lo ci_hi n n_clusters n_units with effects_nats",
        "delta_nats",
    ),
    # One head or MLP with a large exact effect and a small estimate (`attribute`), with its rank by both.
    "attribute_false_negatives": _columns(
        "metric site direction scope item_id layer head effect_nats estimate_nats exact_rank estimate_rank",
    ),
    # How much of the exact effects a screen of that many units misses (`attribute`); worst: the largest miss of any
    # item.
    "attribute_screen_misses": _columns(
        "metric site direction screen quantity k mean ci_lo ci_hi worst n n_clusters",
    ),
    # One measure under one ablated set (`ablate`).
    "ablate": _columns("how metric set kind k measure mean ci_lo ci_hi n"),
    # One measure of the items of one kind (`decomposition` and other studies of conditions). by: operator,
    # error_type, template, step or quotes_source; level: its value.
    "breakdown": _columns("model env by level measure", _INTERVAL),
    # One level that breakdown.csv leaves out, as it has too few items (`decomposition` and other studies of
    # conditions).
    "small_cells": _columns("model env by level measure n"),
    # One quantity of the split over items: ratios of sums, medians, shares of items; no means of ratios of single
    # items (`decomposition` and other studies of conditions).
    "decomposition": _columns("model env quantity estimate ci_lo ci_hi n n_clusters deff"),
    # One measure and whether its whole interval lies inside ±delta (`decomposition` and other studies of conditions).
    "equivalence": _columns("model env measure mean ci_lo ci_hi delta equivalent"),
    # One way to write the failure, paired with the standard one (`manipulations`). delta: mean of L(condition) −
    # L(fail); G: mean of L(pre) − L(condition); Holm's family: all conditions of one model and environment.
    "manipulations": _columns(
        "model env condition delta ci_lo ci_hi n n_clusters deff p p_holm family_size G equivalent",
    ),
    # One part of a× and its share in a difference (`probe` and other studies of conditions). axis: position (level:
    # decile 0 to 9 of the token's place in a×) or part (level: before, error, after); mean: nats per item, summed
    # over the tokens of that level.
    "profiles": _columns("model env measure axis level", _INTERVAL),
    # One measure under one ablation arm, paired with the unablated model (against: none) or an earlier arm
    # (`--ablate`). removed: share of mean_against; family: "ablation arms" or "arms against arms", of one model,
    # environment and measure.
    "arms": _columns(
        "model env measure ablation against mean mean_against difference ci_lo ci_hi n n_clusters p p_holm",
        "family_size family removed removed_lo removed_hi",
    ),
    # One length-matched condition and its mismatch in tokens. shared_tokens: mean share of a×'s tokens in the call
    # recorded in its place; empty where a× itself is recorded.
    "length_match": _columns(
        "model env condition n mean_mismatch max_abs_mismatch share_exact shared_tokens",
    ),
    # One measure of one model (`scaling`).
    "scaling": _columns("model n_parameters env measure", _INTERVAL),
    # G on log10(parameters) (`scaling`): slope in nats per decade; loo: range of the crossing when one model is left
    # out.
    "scaling_fit": _columns("env group n_models slope intercept r2 crossing_parameters loo_lo loo_hi note"),
    # One line of a published table beside ours (`compare --paper`).
    "compare": _columns(
        "model env measure ours ours_lo ours_hi ours_n paper paper_lo paper_hi paper_n difference overlap",
        "same_sign paper_excludes_zero",
    ),
    # One condition and candidate (kind score), or one measure, over items that both sides have (`compare --items`).
    # …_abs: |ours − published| in `unit`; same_…: share of equal counts.
    "compare_items": _columns(
        "model env kind condition candidate measure unit n n_only_ours n_only_published median_abs max_abs",
        "median_abs_per_token max_abs_per_token item_of_max same_n_tokens same_ctx_tokens pearson spearman",
    ),
    # One score or measure of one item, ours beside the published one (`compare --items`). found_in: both, ours or
    # published.
    "compare_item_pairs": _columns(
        "model env kind item_id condition candidate measure unit found_in ours published difference",
        "per_token n_tokens n_tokens_published ctx_tokens ctx_tokens_published",
    ),
    # One head set whose attention to the sources is knocked out (`knockout`). share: of L(to) − L(from), lost; p:
    # rank of a selected set among its random ones.
    "knockout": _columns(
        "from to metric sources set kind k share ci_lo ci_hi effect_nats n n_clusters flagged p p_holm",
        "family_size",
    ),
    # One selected set by one method in one metric, beside controls of one kind (`joint`). control_lo, control_hi:
    # extremes of drawn controls, or the interval where there is one set; excess: share beyond the mean of the
    # controls, paired by item; excess_p is what Holm's correction takes.
    "joint": _columns(
        "env from to metric method direction set k share ci_lo ci_hi effect_nats controls n_controls",
        "control_mean control_lo control_hi percentile p excess excess_lo excess_hi excess_p excess_p_holm",
        "family_size n_draws draw_sd n n_clusters",
    ),
    # What else a selected set changes by one method (`joint`). quantity: reference (log p of the reference action) or
    # sem (Δsem); whole, under: its value unablated and under the method; change: paired, nats; equivalent: the
    # interval lies inside ±delta.
    "joint_off_target": _columns(
        "env from to method set k quantity whole under change ci_lo ci_hi delta equivalent n n_clusters",
    ),
    # One statistic of agreement between the head effects of two differences (`overlap`). statistic: spearman,
    # spearman_within_layer, jaccard, recall; reliability and its kinds (of halves; the range of the splits in ci_lo,
    # ci_hi), beyond_zero; of: the difference it describes, empty where it compares both; with, effects_nats,
    # delta_nats: as in attribute_screening.csv, of the difference named in `of`, or of the second.
    "overlap": _columns(
        "metric direction statistic of k estimate ci_lo ci_hi chance n n_clusters with effects_nats",
        "delta_nats",
    ),
    # What else an ablated set changes against the unablated model (`ablate`); equivalent: the interval lies inside
    # ±delta.
    "ablate_off_target": _columns(
        "how set kind k quantity whole ablated change ci_lo ci_hi delta equivalent n n_clusters",
    ),
    # One control set and how well it is matched (`ablate`). k: heads of the selected set; n_heads: its own; ratio: of
    # output norms (norm) or damage (damage); reached: its damage is as large as the selected set's.
    "ablate_control_sets": _columns("set kind k n_heads ratio displaced reached"),
    # Share of the difference that one ablated set removes (`ablate`). how: what takes the place of z; draw_sd:
    # standard deviation of the share over draws of donors.
    "ablate_removed": _columns(
        "how metric set kind k share ci_lo ci_hi effect_nats n n_clusters flagged draw_sd",
    ),
    # One ablated set beside its controls of one kind (`ablate`). control: the kind that random_… describes;
    # percentile: of 100 controls, how many remove less.
    "ablate_controls": _columns(
        "how metric set k share random_mean random_lo random_hi n_controls p p_holm family_size control",
        "percentile",
    ),
    # One dose curve, share against number of heads (`ablate`). area: mean share over 0 … k_max; trend: Spearman of
    # share and k; control_…: areas of the controls.
    "ablate_dose": _columns(
        "how metric measure control k_max n_sizes area ci_lo ci_hi trend control_mean control_lo control_hi",
        "n_controls p p_holm family_size percentile n n_clusters flagged",
    ),
    # One placebo and its live counterpart on the same items (`placebo`). behaves: found is as expected; alive: the
    # counterpart is found; powered: the minimal detectable effect (mde) is at most half of the counterpart's size in
    # the same unit (live). Intervals: `probes.effects.placebo_checks`.
    "placebo": _columns(
        "what metric expected found ci_lo ci_hi threshold unit counterpart positive positive_lo positive_hi",
        "live mde behaves alive powered passed n n_clusters",
    ),
    # One statistic of agreement between a head score and head effects (`agree`). k: of jaccard and recall; chance: of
    # a random order; reliability…: of the effects with themselves by halves (score empty; the range in ci_lo, ci_hi).
    "agree": _columns(
        "metric direction score statistic k estimate ci_lo ci_hi chance n n_clusters n_heads flagged with",
        "effects_nats delta_nats uses_task_data",
    ),
    # Two head scores and how far they rank heads alike (`agree`).
    "agree_scores": _columns("score other spearman kendall n_heads uses_task_data"),
    # One head whose effect has its interval below 0 (`agree`); after these columns comes one for each score.
    "agree_suppressors": _columns(
        "metric direction layer head effect_nats ci_lo ci_hi p p_holm n n_clusters n_heads",
    ),
    # One set of heads that a search found, on one test set (the training items first), in one metric (`circuit`):
    # shares of the mean delta (nats, or nats a token). reached: the search met its target; random_mean and later
    # columns: random sets, as in circuit_controls.csv.
    "circuit": _columns(
        "method criterion target k heads reached test_set metric necessity necessity_lo necessity_hi",
        "sufficiency sufficiency_lo sufficiency_hi faithfulness faithfulness_lo faithfulness_hi n n_clusters",
        "delta random_mean percentile p n_controls displaced excess excess_p p_holm family_size",
        "completeness_mean completeness_worst",
    ),
    # One found set beside one kind of control sets, by the criterion of the search (`circuit`). displaced: heads of a
    # control that had to come from another layer (mean); control_k: heads of a control (mean); ratio: what it was
    # matched in, over the found set's own (mean); p: rank among the controls; excess: share beyond their mean, paired
    # by item, whose p is corrected.
    "circuit_controls": _columns(
        "method criterion k test_set metric control share control_mean control_lo control_hi n_controls",
        "control_k displaced ratio percentile p excess excess_lo excess_hi excess_p p_holm family_size n",
        "n_clusters",
    ),
    # One head of a found set (`circuit`). cost: share lost on held-out tasks without it; spare: less than 1 %; alone:
    # its own share on training tasks.
    "circuit_heads": _columns("method layer head order cost spare prefix_matching alone sign"),
    # One subset removed from both the found set and the model (`circuit`). gap: difference of what is left of the
    # two.
    "circuit_completeness": _columns("method test_set subset k_removed removed circuit_left model_left gap"),
    # One repeat of a search on two halves of the training clusters (by task or template), or on two draws of random
    # tokens (tokens) (`circuit`). k_other etc.: of the other half; recall_N: of its top N. Empty cells: searches too
    # costly to repeat.
    "circuit_stability": _columns(
        "method variation label n_items n_items_other k k_other reached reached_other jaccard kendall",
        "spearman spearman_within_layer recall_8 recall_16 recall_32",
    ),
    # One statistic of circuit_stability.csv over repeats. lowest, highest: extremes; lo, hi: middle 95 %; chance: of
    # two random orders.
    "circuit_stability_summary": _columns(
        "method variation statistic mean lo hi lowest highest n_repeats chance",
    ),
    # Share against the number of heads, by search (`circuit`). ci_lo, ci_hi of the method "random": extremes of its
    # draws.
    "circuit_curve": _columns("method test_set metric k share ci_lo ci_hi n"),
    # One head (`circuit`): its score, its estimated share, how many searches chose it, whether the smallest found set
    # has it.
    "circuit_ranking": _columns("layer head prefix_matching estimate n_methods selected"),
    # The table of the whole suite (`mechanism`): one row a pair of conditions, metric, method, place (where:
    # candidate or all positions), number of heads and kind of control. …_change: off target, nats (or nats a token);
    # sem_equivalent: the change of Δsem is shown to be within the bound.
    "mechanism": _columns(
        "env from to metric method where direction k share ci_lo ci_hi controls n_controls control_mean",
        "control_lo control_hi percentile p excess excess_lo excess_hi excess_p excess_p_holm family_size",
        "n_draws draw_sd reference_change sem_change sem_equivalent prose_change code_change n n_clusters",
    ),
    # One head, or (without head) one layer's MLP: total, direct and indirect effect (`direct`). role by its direct
    # effect: copying, suppression, or empty.
    "direct": _columns(
        "metric direction kind layer head total_share total_lo total_hi total_nats direct_share direct_lo",
        "direct_hi direct_nats indirect_share indirect_lo indirect_hi indirect_nats role n n_clusters",
        "flagged p p_holm family_size from to",
    ),
    # One layer patched alone (`layers`). site: mlp_out, or resid_pre, whose last layer is what the final norm reads.
    "layers": _columns(
        "metric site direction layer share ci_lo ci_hi effect_nats n n_clusters flagged from to",
    ),
    # One set of sender heads patched into the keys of induction heads (`path`). set: previous-token, all, random0, …;
    # random_lo, random_hi, p: the selected senders among the random ones.
    "path": _columns(
        "metric set kind k share ci_lo ci_hi effect_nats n n_clusters flagged random_lo random_hi n_controls",
        "p p_holm family_size how from to",
    ),
    # One rollout (`rollout`); rates and shares are of its free steps, as `probes.rollouts.steps` defines them. After
    # these columns come loop detectors, whose names hold their thresholds: same_action_error_3, same_observation_4,
    # alternating_6.
    "rollout": _columns(
        "model env arm harness change task_id template sample solved end n_steps n_new_tokens",
        "n_prompt_tokens n_failed parseable_share ok_share prose_rate truncated_rate unparsable_rate",
        "empty_rate banned_out exact_repeat_rate canonical_repeat_rate near_repeat_rate repeat_per_chance",
        "first_chance_repeats again_share cycle2 cycle3 stuck stuck_near recovered demonstration_share",
        "runtime_share n_ban_events ban_active",
    ),
    # How often one edit was made to get actions out of replies (`rollout`). n_steps: free steps of the arm; "not
    # recorded": steps of older versions.
    "rollout_extractions": _columns("model env arm harness change edit n n_steps share"),
    # One metric of one arm over rollouts (`rollout`). n: rollouts in which it is defined; n_undefined: the others;
    # n_chance: of n, those with a chance to repeat.
    "rollout_rates": _columns("model env arm harness change metric", _INTERVAL, "n_undefined n_chance"),
    # One metric of one arm against the baseline, paired by task and sample (`rollout`). n_changed: tasks on which the
    # arms differ; n_chance: pairs in which both arms had a chance to repeat; n_unpaired: rollouts without a partner;
    # family_size: tests in Holm's family (one metric's).
    "rollout_contrasts": _columns("model env metric arm baseline baseline_mean arm_mean difference", _PAIRED),
    # One metric of a change and a ban, alone and together (`rollout`). by_change: H/X − H; by_ban: H+ban − H;
    # by_both: H+ban/X − H; interaction, with the interval: both − change − ban.
    "rollout_factorial": _columns(
        "model env metric harness change by_change by_ban by_both interaction",
        _PAIRED,
    ),
    # A chosen set's difference among those of random sets, on the same rollouts (`rollout`). control_lo, control_hi:
    # their extremes; n_as_far: sets that change at least as much.
    "rollout_controls": _columns(
        "model env metric arm baseline difference n_controls control_mean control_lo control_hi n_as_far n",
        "n_clusters n_undefined p p_holm family_size",
    ),
    # One change at one number of heads (`compare RUN RUN …`). k: heads that the change is made to (all of them for
    # knockout-all); other columns as in rollout_contrasts.csv.
    "compare_doses": _columns(
        "model env metric harness change k arm baseline baseline_mean arm_mean difference",
        _PAIRED,
    ),
    # Kaplan-Meier estimate of "no canonical repeat yet" at one time (`rollout`). t: free steps since the first
    # failure.
    "rollout_survival": _columns(
        "model env arm harness change t at_risk events censored survival ci_lo ci_hi",
    ),
    # How well one predictor, taken before a step, tells steps that repeat from others (`predict`). brier, ece: of
    # probabilities alone.
    "predict": _columns(
        "model env arm predictor auc ci_lo ci_hi n n_repeats n_clusters n_undefined n_dropped flagged brier",
        "ece",
    ),
    # The same under an ablation (`predict`). auc: under the ablation; auc_whole: unablated, on the same points;
    # difference with its interval.
    "predict_arms": _columns(
        "model env arm predictor ablation auc auc_whole difference ci_lo ci_hi n n_repeats n_clusters",
        "n_dropped flagged",
    ),
    # One bin of predicted probabilities and how often these steps repeat (`predict`).
    "predict_calibration": _columns(
        "model env arm predictor bin predicted observed ci_lo ci_hi n n_clusters",
    ),
    # One kind of statistic and population in simulations of `probes.stats.bootstrap` (`calibrate`). error: p at most
    # .05 under the null; flips: of the sign flips alone; attainable: what an exact test can reject; coverage: of the
    # 95 % interval; below, above: on which side it misses.
    "calibrate": _columns(
        "statistic population n_clusters simulations skew_items skew_clusters error flips attainable",
        "coverage below above width",
    ),
    # One method of one part of the work (`bench`). timed of `of`: sequences or heads that were run, to which seconds
    # are scaled; ratio: of the part's first method; fraction: of the rate of a matrix product.
    "bench": _columns("part method seconds timed of ratio max_diff_nats gflop gflop_per_s fraction"),
    # What a study left out of how many items (all studies). what: a condition or a measure; why: a sentence.
    "left_out": _columns("study what n why"),
}
