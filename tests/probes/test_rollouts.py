"""Measures of rollouts by hand; rates, paired contrasts, the factorial and survival against slow or known answers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from experiments.run import schema
from mech.errors import InputError
from probes.rollouts import steps as rollout_measures
from probes.rollouts.rates import contrasts, controls, extractions, factorial, is_draw_of, metrics, rates
from probes.rollouts.steps import per_rollout, per_step
from probes.rollouts.survival import survival
from probes.stats.families import holm
from tests.step_cases import rng, rollout, together

DETECTORS = ("same_action_error_3", "same_observation_4", "alternating_6")


def one(steps: pd.DataFrame, **thresholds: float) -> pd.Series:
    table = per_rollout(steps, **thresholds)
    assert len(table) == 1
    return table.iloc[0]


def test_the_columns_are_the_schemas() -> None:
    table = per_rollout(rollout("aA"))
    assert tuple(table.columns) == (*schema.TABLES["rollout"], *DETECTORS)  # the order of the measures
    arms = [f"verbatim{ban}{x}" for ban in ("", "+ban") for x in ("", "/knockout", "/knockout-random0")]
    steps = together(*(rollout("aA", arm=arm, task_id=task) for arm in arms for task in ("one", "two")))
    table = per_rollout(steps)
    for name, found in (
        ("rates", rates(table, rng)),
        ("contrasts", contrasts(table, rng)),
        ("controls", controls(table)),
        ("factorial", factorial(table, rng)),
        ("survival", survival(steps, rng)),
    ):
        assert set(found.columns) == set(schema.TABLES[f"rollout_{name}"]), name
    assert set(rollout_measures._NEEDED) <= set(schema.ROWS["rollout"]) == set(rollout("a").columns)


def test_solved_after_a_failure_is_told_apart_from_solved_at_once() -> None:
    assert one(rollout("aB", end="solved"))["recovered"] == 1
    assert one(rollout("ab"))["recovered"] == 0
    assert one(rollout("aB", given=1, end="solved"))["recovered"] == 1
    assert math.isnan(one(rollout("B", end="solved"))["recovered"])


def test_near_repeats_count_in_the_loops_of_a_ban_alone() -> None:
    long = "save(text='the gate is open today"
    steps = rollout("abc", canonical=[long, f"{long}s", f"{long}t"], action=[long, f"{long}s", f"{long}t"])
    found = one(steps)
    assert found["near_repeat_rate"] == 2 / 3 and not found["stuck"] and found["stuck_near"]
    assert not one(rollout("abc"))["stuck_near"]


def test_copies_are_shares_of_free_steps_and_unknown_without_their_column() -> None:
    copies = ["demonstration", "runtime", None, "demonstration"]
    found = one(rollout("abcA", given=1).assign(copies=copies))
    assert found["demonstration_share"] == 1 / 3 and found["runtime_share"] == 1 / 3
    assert math.isnan(one(rollout("ab"))["runtime_share"])


def test_a_step_without_room_took_no_action() -> None:
    found = one(rollout("aaa", {"a": "failed"}, end="no_room", kind=["failed", "failed", "no_room"]))
    assert found["end"] == "no_room" and found["n_failed"] == 2 and found["repeat_per_chance"] == 1 / 2


def test_a_call_that_worked_and_is_sent_again_is_no_repeat_of_a_failure_and_is_counted_apart() -> None:
    found = one(rollout("ABAA"))
    assert found["again_share"] == 2 / 3
    assert math.isnan(found["canonical_repeat_rate"]) and math.isnan(found["repeat_per_chance"])
    assert math.isnan(one(rollout("A"))["again_share"])


def test_every_measure_of_a_rollout_is_what_one_counts_by_hand() -> None:
    # Given: a. Then a repeats, p (prose) and t (truncated) fail, p repeats, A is right, and a fails once more.
    steps = rollout(
        "aaptpAa", {"p": "prose", "t": "truncated"}, given=1, n_ban_events=[9, 0, 2, 0, 0, 1, 0]
    )  # fmt: skip
    found = one(steps)
    assert found["n_steps"] == 6 and found["n_failed"] == 5
    assert found["n_new_tokens"] == 60 and found["n_prompt_tokens"] == sum(range(101, 107))
    assert found["parseable_share"] == 3 / 6 and found["ok_share"] == 1 / 6
    assert found["prose_rate"] == 2 / 6 and found["truncated_rate"] == 1 / 6
    assert found["unparsable_rate"] == found["empty_rate"] == 0
    assert found["exact_repeat_rate"] == found["canonical_repeat_rate"] == 3 / 5
    assert found["near_repeat_rate"] == 0 and found["again_share"] == 3 / 6
    assert found["repeat_per_chance"] == 3 / 6 and found["first_chance_repeats"] == 1
    assert found["n_ban_events"] == 3 and found["ban_active"] == 2 / 6
    assert bool(found["stuck"]) and not found["cycle2"] and not found["banned_out"] and not found["solved"]
    assert found["end"] == "step_limit"


def test_a_given_step_is_history_and_in_none_of_the_models_rates() -> None:
    given, free = one(rollout("aA", given=1, end="solved")), one(rollout("aA", end="solved"))
    assert (given["n_steps"], given["n_failed"], given["parseable_share"]) == (1, 0, 1)
    assert math.isnan(given["canonical_repeat_rate"]) and given["repeat_per_chance"] == 0
    assert (free["n_steps"], free["n_failed"]) == (2, 1)
    repeated = one(rollout("aa", given=1))
    assert repeated["canonical_repeat_rate"] == repeated["repeat_per_chance"] == 1
    assert one(rollout("aa"))["canonical_repeat_rate"] == 0.5
    prose = one(rollout("pA", {"p": "prose"}, given=1))
    assert prose["prose_rate"] == 0 and prose["parseable_share"] == 1
    both_given = one(rollout("aaA", given=2))
    assert both_given["repeat_per_chance"] == 0 and not both_given["stuck"]
    only = one(rollout("a", given=1))
    assert per_step(rollout("aab", given=2))["at_risk"].tolist() == [False, False, True]
    assert only["n_steps"] == 0 and math.isnan(only["parseable_share"]) and math.isnan(only["ban_active"])


def test_a_rate_over_chances_and_one_over_failures_differ_where_a_repeat_succeeds() -> None:
    found = one(rollout("aAb", canonical=["x", "x", "y"]))
    assert found["canonical_repeat_rate"] == 0 and found["repeat_per_chance"] == 1 / 2
    assert found["first_chance_repeats"] == 1 and found["exact_repeat_rate"] == 0
    late = one(rollout("abA", canonical=["x", "y", "x"]))
    assert late["first_chance_repeats"] == 0 and late["repeat_per_chance"] == 1 / 2


def test_without_failures_or_chances_rates_are_undefined_and_not_zero() -> None:
    found = one(rollout("AB", end="solved"))
    undefined = ["exact_repeat_rate", "canonical_repeat_rate", "near_repeat_rate"]
    assert found[[*undefined, "repeat_per_chance", "first_chance_repeats"]].isna().all()
    last = one(rollout("Ba"))
    assert last["canonical_repeat_rate"] == 0 and math.isnan(last["repeat_per_chance"])


def test_a_ban_that_leaves_nothing_is_a_chance_not_taken_and_stays_visible() -> None:
    found = one(rollout("ax", {"x": "banned_out"}, end="ban_exhausted", canonical=["a", ""]))
    assert found["banned_out"] and found["end"] == "ban_exhausted"
    assert found["repeat_per_chance"] == 0 and found["n_failed"] == 1 and found["parseable_share"] == 0.5


def test_stuck_needs_the_step_limit_and_two_failed_repeats() -> None:
    assert one(rollout("aaa"))["stuck"]
    assert not one(rollout("aa"))["stuck"]
    assert not one(rollout("aaaA", end="solved"))["stuck"]
    assert not one(rollout("aBa", canonical=["x"] * 3))["stuck"]  # one of the two repeats succeeded
    assert one(rollout("aaa", given=1))["stuck"]


def test_patterns_count_where_a_free_step_completes_them() -> None:
    assert one(rollout("ababab"))["cycle2"] and one(rollout("ababab"))["alternating_6"]
    assert not one(rollout("ababc", given=4))["cycle2"]
    assert one(rollout("abab", given=3))["cycle2"]
    assert one(rollout("abcabc"))["cycle3"] and not one(rollout("abcabc"))["cycle2"]
    assert one(rollout("aaa"))["same_action_error_3"] and not one(rollout("aab"))["same_action_error_3"]
    assert not one(rollout("aaab", given=3))["same_action_error_3"]
    assert one(rollout("aaaa"))["same_observation_4"] and not one(rollout("aaa"))["same_observation_4"]


def test_thresholds_are_arguments_and_stand_in_the_names() -> None:
    found = one(rollout("aabab"), action_error=2, observation=2, alternation=4)
    assert found["same_action_error_2"] and found["same_observation_2"] and found["alternating_4"]
    near = rollout("ab", canonical=["lookup(Kim)", "lookup(Tim)"])
    assert one(near)["near_repeat_rate"] == 1 / 2 and one(near, similarity=0.95)["near_repeat_rate"] == 0
    with pytest.raises(InputError, match="at least 2"):
        per_rollout(near, observation=1)


def test_steps_are_marked_whatever_their_order_and_rollouts_keep_theirs() -> None:
    steps = together(rollout("aa", arm="z"), rollout("aA", arm="b", end="solved"), rollout("ba", sample=1))
    marked = per_step(steps)
    assert marked["canonical_repeat"].tolist() == [False, True, False, False, False, False]
    assert marked["at_risk"].tolist() == [False, True] * 3
    shuffled = steps.sample(frac=1, random_state=np.random.default_rng(1).bit_generator)
    again = per_rollout(shuffled).sort_values("arm", ignore_index=True)
    pd.testing.assert_frame_equal(again, per_rollout(steps).sort_values("arm", ignore_index=True))
    assert per_rollout(steps)["arm"].tolist() == ["z", "b", "verbatim"]
    assert per_step(steps.head(0)).empty and per_rollout(steps.head(0)).empty


def test_rollouts_that_are_not_whole_are_refused() -> None:
    steps = rollout("abc")
    for broken, sentence in (
        (steps.drop(index=1), "missing or occurs twice"),
        (steps.head(2), "does not end with its last step"),
        (together(steps, steps), "missing or occurs twice"),
        (steps.assign(end=None), "no known end"),
        (steps.assign(kind=["failed", "wrong", "failed"]), "'wrong' is not a kind"),
        (steps.drop(columns=["given", "end"]), "lack the columns given, end"),
        (steps.assign(canonical=["a", None, "c"]), "no canonical"),
    ):
        with pytest.raises(InputError, match=sentence):
            per_rollout(broken)


def _many(outcomes: dict[tuple[str, str, int], str]) -> pd.DataFrame:
    """(arm, task, sample) → actions; a rollout that ends on a capital letter is solved."""
    return together(
        *(
            rollout(actions, arm=arm, task=task, sample=sample, end="solved" if actions[-1].isupper() else "step_limit")
            for (arm, task, sample), actions in outcomes.items()
        )
    )  # fmt: skip


def test_rates_are_means_over_rollouts_with_tasks_as_clusters() -> None:
    steps = _many(
        {("verbatim", f"t{task}", sample): actions
         for task, row in enumerate((("aaa", "aA"), ("A", "abA"), ("aab", "A")))
         for sample, actions in enumerate(row)}
    )  # fmt: skip
    rollouts = per_rollout(steps)
    table = rates(rollouts, rng, n_draws=500).set_index("metric")
    assert table.index[0] == "parseable_share"
    assert (
        set(table.index) == set(metrics(rollouts)) == set(rollouts.columns) - {*rollout_measures.KEYS, "end"}
    )
    solved = table.loc["solved"]
    assert (solved["mean"], solved["n"], solved["n_clusters"], solved["n_undefined"]) == (4 / 6, 6, 3, 0)
    repeats = table.loc["canonical_repeat_rate"]
    assert repeats["mean"] == pytest.approx(np.mean([2 / 3, 0, 0, 1 / 3]))
    assert (repeats["n"], repeats["n_clusters"], repeats["n_undefined"]) == (4, 3, 2)
    assert (solved["n_chance"], repeats["n_chance"]) == (4, 4)  # "A" twice has no failure, so no chance
    assert np.isnan(repeats["ci_lo"]) and np.isnan(repeats["ci_hi"])  # three tasks: no interval
    alone = (
        rates(per_rollout(rollout("A", end="solved")), rng).set_index("metric").loc["canonical_repeat_rate"]
    )
    assert math.isnan(alone["mean"]) and (alone["n"], alone["n_undefined"]) == (0, 1)


def test_a_contrast_pairs_the_same_task_and_the_same_sample() -> None:
    steps = _many(
        {
            ("verbatim", "t1", 0): "aaaa", ("verbatim", "t1", 1): "abcd", ("verbatim", "t2", 0): "aab",
            ("verbatim", "t2", 1): "A", ("verbatim", "t3", 0): "ab",
            ("drop", "t1", 1): "abab", ("drop", "t1", 0): "aaab", ("drop", "t2", 0): "aaa",
            ("drop", "t2", 1): "aa", ("drop", "t4", 0): "ab",
        }
    )  # fmt: skip
    table = contrasts(per_rollout(steps), rng, n_draws=500).set_index("metric")
    found = table.loc["canonical_repeat_rate"]
    differences = [
        2 / 4 - 3 / 4,
        2 / 4 - 0,
        2 / 3 - 1 / 3,
    ]  # t1 0, t1 1, t2 0; t2 1 is undefined under verbatim
    assert found["difference"] == pytest.approx(np.mean(differences))
    counts = [found[name] for name in ("n", "n_clusters", "n_undefined", "n_unpaired")]
    assert counts == [3, 2, 1, 2]
    assert found["baseline_mean"] == pytest.approx(np.mean([3 / 4, 0, 1 / 3]))
    assert found["arm_mean"] == pytest.approx(np.mean([2 / 4, 2 / 4, 2 / 3]))
    assert found["n_changed"] == 2 and found["n_chance"] == 3
    assert found[["ci_lo", "ci_hi", "p", "p_holm"]].isna().all() and found["family_size"] == 0  # two tasks
    assert table.loc["solved", "difference"] == -1 / 4 and table.loc["solved", "n"] == 4
    assert set(table["arm"]) == {"drop"} and set(table["baseline"]) == {"verbatim"}
    turned = contrasts(per_rollout(steps), rng, baseline="drop", n_draws=500).set_index("metric")
    assert turned.loc["solved", "difference"] == 1 / 4
    with pytest.raises(InputError, match="'abstract' was not run for m on e"):
        contrasts(per_rollout(steps), rng, baseline="abstract")


def _studied(arms: tuple[str, ...], n_tasks: int = 12, n_samples: int = 2) -> pd.DataFrame:
    """Random rollouts of up to five steps, the more repeating the later the arm stands."""
    draw = np.random.default_rng(7)
    outcomes = {}
    for place, arm in enumerate(arms):
        for task, sample in itertools.product(range(n_tasks), range(n_samples)):
            actions = "a" if draw.random() < 0.9 else "F"
            while len(actions) < 5 and actions[-1].islower():
                repeats = draw.random() < 0.2 + 0.6 * place / len(arms)
                actions += actions[-1] if repeats else str(draw.choice(list("bcdeFGHI")))
            outcomes[arm, f"t{task}", sample] = actions
    return _many(outcomes)


def test_holm_is_over_the_arms_of_one_measure_and_says_how_many_they_are() -> None:
    rollouts = per_rollout(_studied(("verbatim", "abstract", "drop", "verbatim/ablate")))
    other = rollouts.assign(model="n")
    table = contrasts(pd.concat([rollouts, other]), rng, n_draws=400)
    for (_, metric), family in table.groupby(["model", "metric"]):
        assert family["arm"].tolist() == ["abstract", "drop", "verbatim/ablate"], metric
        np.testing.assert_array_equal(family["p_holm"], holm(family["p"]))
        assert set(family["family_size"]) == {int(family["p"].notna().sum())}
    same = table[table["metric"] == "prose_rate"]  # no prose anywhere: nothing to test
    assert same["p"].isna().all() and set(same["family_size"]) == {0} and set(same["difference"]) == {0}
    assert set(table.loc[table["metric"] == "solved", "family_size"]) <= {1, 2, 3}


@pytest.mark.parametrize(("loops", "p"), [(6, 2 / 2**6), (5, None), (11, 2 / 2**11)])
def test_loops_of_one_arm_against_none_of_the_other_are_mcnemars_exact_test(
    loops: int, p: float | None
) -> None:
    # Of 24 tasks the first arm loops in so many, the other in none: only tasks that differ tell of a sign.
    steps = _many(
        {(arm, f"t{task:02}", 0): "aaa" if arm == "verbatim" and task < loops else "abc"
         for arm in ("verbatim", "verbatim/knockout") for task in range(24)}
    )  # fmt: skip
    found = contrasts(per_rollout(steps), rng, n_draws=200).set_index("metric").loc["stuck"]
    assert (found["baseline_mean"], found["arm_mean"]) == (loops / 24, 0)
    assert (found["n"], found["n_clusters"], found["n_changed"]) == (24, 24, loops)
    if p is None:
        assert np.isnan(found["p"]) and found["family_size"] == 0
    else:
        assert found["p"] == pytest.approx(p) == found["p_holm"] and found["family_size"] == 1


def _with_controls(n_controls: int, repeating: int) -> pd.DataFrame:
    """12 tasks: verbatim loops in all, knockout in none, `repeating` of the random arms in none, the others in all."""
    arms = {"verbatim": "aaa", "verbatim/knockout": "abc"}
    for draw in range(n_controls):
        arms[f"verbatim/knockout-random{draw}"] = "abc" if draw < repeating else "aaa"
    return per_rollout(
        _many({(arm, f"t{task}", 0): said for arm, said in arms.items() for task in range(12)})
    )


def test_chosen_heads_stand_among_random_sets_on_the_same_rollouts() -> None:
    found = controls(_with_controls(20, 1)).set_index("metric").loc["stuck"]
    assert (found["arm"], found["baseline"], found["difference"]) == ("verbatim/knockout", "verbatim", -1)
    assert (found["n_controls"], found["control_mean"]) == (20, -1 / 20)
    assert (found["control_lo"], found["control_hi"], found["n_as_far"]) == (-1, 0, 1)
    assert found["p"] == pytest.approx(2 / 21) and found["n"] == 12
    few = controls(_with_controls(18, 0)).set_index("metric").loc["stuck"]
    assert np.isnan(few["p"]) and few["family_size"] == 0  # 1 / 19 is above .05
    assert controls(_with_controls(19, 0)).set_index("metric").loc["stuck", "p"] == pytest.approx(1 / 20)
    same = controls(_with_controls(20, 0)).set_index("metric").loc["solved"]
    assert (
        same["difference"] == 0 and same["p"] == 1
    )  # all sets change as much: a test like any other, and a member


def test_a_rollout_that_one_control_leaves_undefined_is_compared_in_none() -> None:
    rollouts = _with_controls(3, 0)
    gone = (rollouts["arm"] == "verbatim/knockout-random1") & (rollouts["task_id"] == "t3")
    rollouts.loc[gone, "repeat_per_chance"] = math.nan
    found = controls(rollouts).set_index("metric").loc["repeat_per_chance"]
    assert (found["n"], found["n_undefined"]) == (11, 1)


def test_arms_of_random_heads_are_compared_and_are_no_members_of_the_family() -> None:
    table = contrasts(_with_controls(3, 0), rng, n_draws=200)
    rows = table[table["metric"] == "stuck"].set_index("arm")
    assert (
        rows.loc["verbatim/knockout", "family_size"] == 1 and rows.loc["verbatim/knockout", "p"] == 2 / 2**12
    )
    assert rows.loc["verbatim/knockout-random0", "family_size"] == 0
    assert is_draw_of("knockout-random3", "knockout") and is_draw_of("ablate-random0", "ablate")
    assert not is_draw_of("knockout-random3", "ablate") and not is_draw_of("knockout", "knockout")
    assert not is_draw_of("knockout-all", "knockout")


SQUARE = ("verbatim", "verbatim/ablate", "verbatim+ban", "verbatim+ban/ablate")


def test_the_factorial_is_the_difference_of_differences_on_the_same_rollouts() -> None:
    steps = _studied((*SQUARE, "drop", "drop/ablate", "drop+ban", "verbatim/knockout"))
    rollouts = per_rollout(steps)
    table = factorial(rollouts, rng, n_draws=300)
    assert set(zip(table["harness"], table["change"], strict=True)) == {("verbatim", "ablate")}
    wide = rollouts.set_index(["task_id", "sample", "arm"])["repeat_per_chance"].unstack("arm")[list(SQUARE)]
    known = wide.dropna()
    plain, changed, banned, both = (known[arm] for arm in SQUARE)
    found = table.set_index("metric").loc["repeat_per_chance"]
    assert found["by_change"] == pytest.approx((changed - plain).mean())
    assert found["by_ban"] == pytest.approx((banned - plain).mean())
    assert found["by_both"] == pytest.approx((both - plain).mean())
    assert found["interaction"] == pytest.approx(found["by_both"] - found["by_change"] - found["by_ban"])
    assert found["ci_lo"] < found["interaction"] < found["ci_hi"]
    assert found["n"] == len(known) < 24 and found["n_undefined"] == len(wide) - len(known)
    assert found["n_clusters"] == known.index.get_level_values("task_id").nunique()
    fewer = rollouts[~((rollouts["arm"] == SQUARE[3]) & (rollouts["task_id"] == "t0"))]
    solved = factorial(fewer, rng, n_draws=300).set_index("metric").loc["solved"]
    assert (solved["n"], solved["n_unpaired"]) == (22, 6)


def test_holm_in_the_factorial_is_over_harnesses_and_changes_of_one_measure() -> None:
    arms = tuple(f"{harness}{ban}{change}" for harness in ("verbatim", "abstract")
                 for ban in ("", "+ban") for change in ("", "/ablate", "/knockout"))  # fmt: skip
    table = factorial(per_rollout(_studied(arms, n_tasks=8)), rng, n_draws=200)
    solved = table[table["metric"] == "solved"]
    assert len(solved) == 4 and set(solved["family_size"]) == {int(solved["p"].notna().sum())}
    np.testing.assert_array_equal(solved["p_holm"], holm(solved["p"]))


def test_rollouts_that_cannot_be_paired_are_refused() -> None:
    rollouts = per_rollout(together(rollout("a"), rollout("a", arm="drop")))
    for table in (rates, contrasts, factorial):
        with pytest.raises(InputError, match="A rollout occurs twice: model m, env e, arm verbatim"):
            table(pd.concat([rollouts, rollouts]), rng)
        with pytest.raises(InputError, match="one to one"):
            table(rollouts.assign(harness="verbatim"), rng)
        with pytest.raises(InputError, match="one to one"):
            table(rollouts.assign(arm="verbatim", task_id=["a", "b"]), rng)


def test_survival_is_the_product_over_a_hand_worked_table() -> None:
    # Chances until the first repeat, + where the rollout ended without: 1, 1, 2+, 2, 3+, 4, and one without a chance.
    ends = ("aa", "aab", "abC", "abbA", "abcD", "abcda", "A")
    steps = _many({("verbatim", f"t{place}", 0): actions for place, actions in enumerate(ends)})
    table = survival(steps, rng, n_draws=400)
    assert table["t"].tolist() == [0, 1, 2, 3, 4]
    assert table["at_risk"].tolist() == [7, 6, 4, 2, 1]
    assert table["events"].tolist() == [0, 2, 1, 0, 1]
    assert table["censored"].tolist() == [1, 0, 1, 1, 0]
    expected = [1, 4 / 6, 4 / 6 * 3 / 4, 4 / 6 * 3 / 4, 0]
    np.testing.assert_allclose(table["survival"], expected, atol=1e-12)
    assert table["ci_lo"][1] < 4 / 6 < table["ci_hi"][1]
    # One task of seven is at risk at t = 4: too many draws lack it.
    assert np.isnan(table["ci_lo"][4]) and np.isnan(table["ci_hi"][4])


def test_the_clock_starts_at_the_first_failure_and_given_steps_do_not_run_it() -> None:
    table = survival(rollout("aab", given=1), rng)
    assert table[["at_risk", "events"]].to_numpy().tolist() == [[1, 0], [1, 1]]
    assert table["ci_lo"].isna().all()  # one task
    table = survival(rollout("ABaCa", canonical=list("ABaCa")), rng)
    assert table["events"].tolist() == [0, 0, 1] and table["at_risk"].tolist() == [1, 1, 1]
    table = survival(rollout("aAx", {"x": "banned_out"}, end="ban_exhausted", canonical=["a", "A", ""]), rng)
    assert table["censored"].tolist() == [0, 0, 1] and table["survival"].tolist() == [1, 1, 1]


def test_without_censoring_survival_is_the_share_not_yet_repeated() -> None:
    lengths = [1, 1, 2, 3, 3, 3, 5]
    steps = _many({("verbatim", f"t{i}", 0): "zbcdef"[:n] + "z" for i, n in enumerate(lengths)})
    table = survival(steps, rng).set_index("t")["survival"]
    for t in range(6):
        assert table[t] == pytest.approx(np.mean(np.array(lengths) > t))


def test_the_interval_of_survival_is_a_bootstrap_over_tasks() -> None:
    kinds = ("aa", "abb", "abcD", "abcdd", "abC")  # all four samples of a task are the same
    steps = _many({("verbatim", f"t{t}", s): kinds[t % 5] for t in range(15) for s in range(4)})
    table = survival(steps, rng, n_draws=4000)
    time, event = np.array([1, 2, 3, 4, 2]), np.array([True, True, False, True, False])
    draw, drawn = np.random.default_rng(3), []
    for _ in range(4000):
        taken = draw.integers(15, size=15) % 5
        alive = 1.0
        for t in (1, 2):
            alive *= 1 - (event[taken] & (time[taken] == t)).sum() / (time[taken] >= t).sum()
        drawn.append(alive)
    lo, hi = np.quantile(drawn, [0.025, 0.975])
    at_two = table[table["t"] == 2].iloc[0]
    assert (at_two["at_risk"], at_two["events"], at_two["survival"]) == (48, 12, pytest.approx(0.6))
    assert at_two["ci_lo"] == pytest.approx(lo, abs=0.03) and at_two["ci_hi"] == pytest.approx(hi, abs=0.03)
    # Four samples of a task are not four tasks: taken for independent, the interval would be half as wide.
    alone = survival(steps.assign(task_id=steps["task_id"] + steps["sample"].astype(str)), rng, n_draws=4000)
    narrow = alone[alone["t"] == 2].iloc[0]
    assert narrow["survival"] == at_two["survival"]
    assert narrow["ci_hi"] - narrow["ci_lo"] < 0.65 * (at_two["ci_hi"] - at_two["ci_lo"])


def test_arms_models_and_environments_are_kept_apart() -> None:
    steps = together(rollout("aa", arm="drop"), rollout("ab"), rollout("aa").assign(model="n"))
    table = survival(steps, rng).query("t == 1").set_index(["model", "arm"])["survival"]
    assert table.to_dict() == {("m", "drop"): 0, ("m", "verbatim"): 1, ("n", "verbatim"): 0}
    means = rates(per_rollout(steps), rng).query("metric == 'repeat_per_chance'")
    assert means["mean"].tolist() == [1, 0, 1] and means["arm"].tolist() == ["drop", "verbatim", "verbatim"]


def test_how_often_a_reply_was_edited_is_counted_by_arm_and_edit() -> None:
    marks = [["fence removed"], [], ["fence removed", "text removed"], []]
    steps = together(
        rollout("aaaa", given=1, extraction=marks), rollout("bb", arm="drop/knockout", extraction=[[], []])
    )
    found = extractions(steps)
    assert set(found.columns) == set(schema.TABLES["rollout_extractions"])
    cells = found[["arm", "harness", "change", "edit", "n", "n_steps", "share"]].to_numpy().tolist()
    assert cells == [
        ["verbatim", "verbatim", "none", "fence removed", 1, 3, 1 / 3],  # the given step is not counted
        ["verbatim", "verbatim", "none", "text removed", 1, 3, 1 / 3],
    ]


def test_steps_of_older_versions_count_as_not_recorded() -> None:
    old, new = rollout("aa"), rollout("bb", task="t2", extraction=[["label removed"], []])
    for steps in (old.drop(columns=["extraction", "dropped"]), old.assign(extraction=math.nan)):
        found = extractions(steps)
        assert found[["edit", "n", "n_steps", "share"]].to_numpy().tolist() == [["not recorded", 2, 2, 1.0]]
        both = extractions(together(steps, new))
        assert dict(zip(both["edit"], both["n"], strict=True)) == {"label removed": 1, "not recorded": 2}
        assert len(per_rollout(steps)) == 1  # nothing else needs the column
