"""Each measure against numbers done by hand, and everything that must be refused or left out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mech.errors import InputError
from probes.measures.measures import COLUMNS, DEFINITIONS, IDENTITIES, check_identity, measure
from probes.prompts.conditions import MANIPULATIONS

REFERENCE = Path(__file__).resolve().parent.parent.parent.parent / "shared" / "reference"

# One item: condition → candidate → log-probability. The failed action has 4 tokens.
HAND = {
    "pre": {"failed": -20.0, "gold": -10.0, "distractor0": -21.0, "distractor1": -30.0},
    "fail": {"failed": -5.0, "gold": -9.0, "distractor0": -6.0, "distractor1": -8.0},
    "neut": {"failed": -7.0, "gold": -9.5},
    "abstract": {"failed": -17.0, "gold": -9.0},
    "succ": {"failed": -6.0},
    "neut_pad": {"failed": -6.5},
    "neut_matched": {"failed": -16.0, "gold": -11.0},
    "neut_other": {"failed": -21.5, "gold": -12.0},
    "mark": {"failed": -22.0, "gold": -10.5},
    "ack": {"failed": -20.5},
    "fail_echo": {"failed": -3.0},
    "quote_matched": {"failed": -4.5},
    **{name: {"failed": -5.5} for name in ("fail_terse", "fail_verbose", "fail_instr", "fail_k2", "fail_k3")},
    **{name: {"failed": -12.0} for name in ("fail_early", "fail_other", "fail_unrelated")},
    "abstract_min": {"failed": -18.0, "gold": -11.0},
    "abstract_forbids": {"failed": -18.0},
}
ENDS = {
    "failed": -1.0,
    "gold": -3.0,
    "distractor0": -1.5,
    "distractor1": -1.0,
}  # of the token that ends the turn


def _rows(
    scores: dict[str, dict[str, float]], item: str = "t1-a", task: str = "t1", **columns: Any
) -> pd.DataFrame:
    lines = [
        {
            **{"model": "m", "env": "e", "item_id": item, "task_id": task},
            **{"condition": condition, "candidate": candidate, "logprob": logprob},
            **{"n_tokens": 4 if candidate == "failed" else 6},
            **{"is_greedy": condition == "fail" and candidate == "failed"},
            **{"end_logprob": ENDS[candidate], "end_is_argmax": True, "step_index": 1},
            **columns,
        }
        for condition, candidates in scores.items()
        for candidate, logprob in candidates.items()
    ]
    return pd.DataFrame(lines)


def _values(long: pd.DataFrame, item: str = "t1-a") -> dict[str, float]:
    return long[long["item_id"] == item].set_index("measure")["value"].to_dict()


def test_every_measure_is_what_its_definition_says() -> None:
    found = _values(measure(_rows(HAND)))
    assert list(found) == list(DEFINITIONS)
    softmax_pre = 1 / (1 + math.exp(10) + math.exp(-1) + math.exp(-10))
    softmax_fail = 1 / (1 + math.exp(-4) + math.exp(-1) + math.exp(-3))
    exact_pre = 1 / (1 + math.exp(10 - 2) + math.exp(-1 - 0.5) + math.exp(-10))
    exact_fail = 1 / (1 + math.exp(-4 - 2) + math.exp(-1 - 0.5) + math.exp(-3))
    levels = {name: HAND[name]["failed"] for name in MANIPULATIONS}
    assert found == pytest.approx({
        "G": -15.0, "copy": 13.0, "sem": 2.0, "G_negative": 1.0,
        "G_per_token": -3.75, "copy_per_token": 3.25, "sem_per_token": 0.5,
        "G_exact": -15.0, "copy_exact": 13.0, "sem_exact": 2.0,
        "p_repeat_pre": softmax_pre, "p_repeat_fail": softmax_fail, "p_repeat_shift": softmax_fail - softmax_pre,
        "p_repeat4_pre": softmax_pre, "p_repeat4_fail": softmax_fail,
        "p_repeat2_pre": 1 / (1 + math.exp(10)), "p_repeat2_fail": 1 / (1 + math.exp(-4)),
        "p_repeat_exact_pre": exact_pre, "p_repeat_exact_fail": exact_fail,
        "greedy_repeat_pre": 0.0, "greedy_repeat_fail": 1.0, "greedy_repeat_abstract": 0.0, "greedy_exact_fail": 1.0,
        "copy_succ": 14.0, "sem_succ": 1.0, "polarity": 1.0, "copy_pad": 13.5, "sem_pad": 1.5,
        "copy_matched": 9.0, "copy_other": 14.5, "other_damage": -1.5,
        "sem_first": -2.0, "copy_after": 17.0, "interaction": 4.0, "sem_first_min": 2.0, "copy_after_min": 13.0,
        "interaction_min": 0.0,
        "sem_ack": -1.5, "copy_ack": 13.5, "interaction_ack": 3.5,
        "margin_copy": 2.5 + 10.0, "margin_sem": 4.0 - 2.5, "margin_copy_matched": 2.5 + 5.0,
        "margin_copy_other": 2.5 + 9.5, "margin_other_damage": -9.5 + 10.0,
        "margin_sem_first": -11.5 + 10.0, "margin_copy_after": 4.0 + 11.5,
        "margin_interaction": 4.0 - 2.5 + 11.5 - 10.0, "margin_sem_first_min": -7.0 + 10.0,
        "margin_copy_after_min": 4.0 + 7.0, "margin_interaction_min": 4.0 - 2.5 + 7.0 - 10.0,
        **{f"G_{name}": -20.0 - level for name, level in levels.items()},
        **{f"delta_{name}": level + 5.0 for name, level in levels.items()},
        "delta_fail_early_moved": -7.0, "second_copy": 1.5,
        "repair": 1.0, "margin_shift": 1.0 - 15.0,
    }, abs=1e-12)  # fmt: skip
    assert (found["G_abstract"], found["delta_abstract"]) == (-3.0, -12.0)


def test_the_end_of_the_turn_counts_in_the_exact_measures_alone() -> None:
    other = _rows(HAND)
    after = (other["condition"] == "fail") & (other["candidate"] == "failed")
    other.loc[after, "end_logprob"], other.loc[after, "end_is_argmax"] = -4.0, False
    before, now = _values(measure(_rows(HAND))), _values(measure(other))
    changed = {name for name in before if before[name] != pytest.approx(now[name])}
    assert changed == {"G_exact", "sem_exact", "p_repeat_exact_fail", "greedy_exact_fail"}
    assert (now["G_exact"], now["sem_exact"], now["greedy_exact_fail"]) == (-12.0, -1.0, 0.0)
    without = set(_values(measure(_rows(HAND).drop(columns=["end_logprob", "end_is_argmax"]))))
    assert set(DEFINITIONS) - without == {name for name in DEFINITIONS if "exact" in name}


def test_an_early_failure_is_told_apart_only_where_a_step_follows_it() -> None:
    found = _values(measure(_rows(HAND, step_index=0)))
    assert "delta_fail_early" in found and "delta_fail_early_moved" not in found


def test_sets_of_a_fixed_size_leave_out_items_that_cannot_fill_them() -> None:
    fewer = {name: {c: v for c, v in scores.items() if c != "distractor1"} for name, scores in HAND.items()}
    found = _values(measure(_rows(fewer)))
    assert found["p_repeat_fail"] == pytest.approx(1 / (1 + math.exp(-4) + math.exp(-1)))
    assert "p_repeat4_fail" not in found and found["p_repeat2_fail"] == pytest.approx(1 / (1 + math.exp(-4)))


def test_minus_G_is_copy_plus_sem() -> None:
    rng = np.random.default_rng(0)
    conditions = ("pre", "fail", "neut", "abstract")
    frames = [
        _rows({c: {"failed": -abs(float(rng.normal()) * 100)} for c in conditions}, item=f"i{i}")
        for i in range(50)
    ]
    wide = measure(pd.concat(frames)).pivot(index="item_id", columns="measure", values="value")
    np.testing.assert_allclose(-wide["G"], wide["copy"] + wide["sem"], atol=1e-9)
    assert len(wide) == 50


def test_both_orders_and_their_interaction_hold_on_every_item_and_in_margins() -> None:
    rng = np.random.default_rng(1)
    conditions = ("pre", "fail", "neut", "mark", "ack", "neut_other")
    frames = [
        _rows(
            {c: {n: -abs(float(rng.normal()) * 100) for n in ("failed", "gold")} for c in conditions},
            item=f"i{i}",
        )
        for i in range(50)
    ]
    wide = measure(pd.concat(frames)).pivot(index="item_id", columns="measure", values="value")
    for prefix, gain in (("", "G"), ("margin_", "margin_shift")):
        copy, sem, first, after, both = (
            wide[f"{prefix}{name}"] for name in ("copy", "sem", "sem_first", "copy_after", "interaction")
        )
        np.testing.assert_allclose(-wide[gain], copy + sem, atol=1e-9)
        np.testing.assert_allclose(-wide[gain], first + after, atol=1e-9)
        np.testing.assert_allclose(both, sem - first, atol=1e-9)
        np.testing.assert_allclose(both, after - copy, atol=1e-9)
        assert both.abs().min() > 1e-3
        np.testing.assert_allclose(
            copy, wide[f"{prefix}other_damage"] + wide[f"{prefix}copy_other"], atol=1e-9
        )


@pytest.mark.parametrize(
    "names", [set(signs) for _, signs in IDENTITIES], ids=[name for name, _ in IDENTITIES]
)
def test_every_identity_is_checked(names: set[str]) -> None:
    long = measure(_rows(HAND))
    assert names <= set(long["measure"])
    for name in names:
        broken = long[long["measure"].isin(names)].copy()
        broken.loc[broken["measure"] == name, "value"] += 1e-3
        with pytest.raises(RuntimeError, match="off by 0.001 nats on item t1-a"):
            check_identity(broken)


def test_without_a_reference_the_margin_is_over_the_distractors_that_are_known() -> None:
    scores = {
        c: {"failed": -10.0 * i, "distractor0": -2.0 * i, "distractor1": -4.0 * i}
        for i, c in enumerate(("pre", "neut", "fail"), start=1)
    }
    assert _values(measure(_rows(scores)))["margin_copy"] == pytest.approx((-20 + 6) - (-10 + 3))
    one = {c: {n: v for n, v in known.items() if n != "distractor1"} for c, known in scores.items()}
    assert _values(measure(_rows(one)))["margin_copy"] == pytest.approx((-20 + 4) - (-10 + 2))
    torn = {**scores, "neut": {"failed": -20.0, "distractor0": -4.0}}  # not over another set than before
    assert "margin_copy" not in _values(measure(_rows(torn)))
    # An item that has a reference is never held against its distractors, also where the reference is not scored.
    part = {**scores, "fail": {**scores["fail"], "gold": -1.0}}
    assert "margin_copy" not in _values(measure(_rows(part)))
    assert "margin_copy" not in _values(measure(_rows({c: {"failed": -3.0} for c in scores})))


def test_a_broken_identity_names_the_item() -> None:
    long = measure(pd.concat([_rows(HAND), _rows(HAND, item="t1-b")]))
    check_identity(long)
    broken = (long["item_id"] == "t1-b") & (long["measure"] == "sem")
    long.loc[broken, "value"] += 2e-5
    with pytest.raises(RuntimeError, match="t1-b"):
        check_identity(long)


def _reading(*conditions: str) -> set[str]:
    """The measures that need one of the conditions, told by their definitions in methods.md."""
    names = {
        "neut": [
            *("copy", "sem", "copy_per_token", "sem_per_token", "copy_exact", "sem_exact", "copy_matched"),
            *("copy_other", "interaction", "interaction_min", "copy_ack", "interaction_ack", "margin_copy"),
            *("margin_sem", "margin_copy_matched", "margin_copy_other", "margin_interaction"),
            "margin_interaction_min",
        ],
        "abstract": ["G_abstract", "delta_abstract", "greedy_repeat_abstract"],
        "quote_matched": ["G_quote_matched", "delta_quote_matched", "second_copy"],
        "neut_pad": ["copy_pad", "sem_pad", "G_neut_pad", "delta_neut_pad"],
        "neut_matched": [
            *("copy_matched", "G_neut_matched", "delta_neut_matched", "margin_copy_matched"),
        ],
        "neut_other": [
            *("copy_other", "other_damage"),
            *("margin_copy_other", "margin_other_damage"),
        ],
        "mark": [
            *("sem_first", "copy_after", "interaction", "sem_ack", "interaction_ack", "G_mark", "delta_mark"),
            *("margin_sem_first", "margin_copy_after", "margin_interaction"),
        ],
        "ack": ["sem_ack", "copy_ack", "interaction_ack"],
        "fail_early": ["G_fail_early", "delta_fail_early", "delta_fail_early_moved"],
    }
    return {name for condition in conditions for name in names[condition]}


@pytest.mark.parametrize(
    "gone",
    [
        "neut",
        "abstract",
        "quote_matched",
        "neut_pad",
        "neut_matched",
        "neut_other",
        "mark",
        "ack",
        "fail_early",
    ],
)
def test_a_measure_without_its_condition_is_left_out_and_never_zero(gone: str) -> None:
    lost = _reading(gone)
    found = measure(_rows({name: scores for name, scores in HAND.items() if name != gone}))
    assert set(found["measure"]) == set(DEFINITIONS) - lost
    # Also when another item has the condition, so that the column is there.
    both = measure(pd.concat([_rows({n: s for n, s in HAND.items() if n != gone}), _rows(HAND, item="full")]))
    assert set(both[both["item_id"] == "t1-a"]["measure"]) == set(DEFINITIONS) - lost
    assert set(both[both["item_id"] == "full"]["measure"]) == set(DEFINITIONS)


def test_without_the_failure_only_what_was_before_is_measured() -> None:
    found = set(_values(measure(_rows({n: s for n, s in HAND.items() if n != "fail"}))))
    assert found == {
        *("copy", "copy_per_token", "copy_exact", "copy_succ", "copy_pad", "copy_matched", "second_copy"),
        *("greedy_repeat_pre", "greedy_repeat_abstract"),
        *("p_repeat_pre", "p_repeat2_pre", "p_repeat4_pre", "p_repeat_exact_pre"),
        *("copy_other", "other_damage", "sem_first", "sem_first_min", "sem_ack", "copy_ack", "margin_copy"),
        *("margin_copy_matched", "margin_copy_other", "margin_other_damage", "margin_sem_first"),
        "margin_sem_first_min",
        *(f"G_{name}" for name in MANIPULATIONS),
    }


def test_a_missing_candidate_leaves_the_repeat_probability_out_where_it_is_missing() -> None:
    torn = {**HAND, "fail": {k: v for k, v in HAND["fail"].items() if k != "distractor1"}}
    found = _values(measure(_rows(torn)))
    assert not {"p_repeat_fail", "p_repeat4_fail", "p_repeat_shift"} & set(found)
    assert found["p_repeat_pre"] == _values(measure(_rows(HAND)))["p_repeat_pre"]


def test_an_item_with_fewer_distractors_is_normalised_over_its_own_candidates() -> None:
    pair = {
        name: {c: v for c, v in scores.items() if c in ("failed", "gold")} for name, scores in HAND.items()
    }
    found = _values(measure(pd.concat([_rows(pair), _rows(HAND, item="other")])))
    assert found["p_repeat_fail"] == pytest.approx(1 / (1 + math.exp(-4)))
    alone = {name: {"failed": scores["failed"]} for name, scores in HAND.items()}
    assert not {"p_repeat_pre", "p_repeat_fail", "repair"} & set(_values(measure(_rows(alone))))


def test_very_improbable_candidates_do_not_underflow() -> None:
    low = {c: {"failed": -5000.0, "gold": -5001.0} for c in ("pre", "fail")}
    assert _values(measure(_rows(low)))["p_repeat_pre"] == pytest.approx(1 / (1 + math.exp(-1)))


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = pd.concat([_rows(HAND), _rows(HAND, item="b", task="t2"), _rows(HAND, item="a", task="t3")])
    shuffled = rows.sample(frac=1, random_state=3)
    pd.testing.assert_frame_equal(measure(rows), measure(shuffled))
    assert measure(shuffled)["item_id"].unique().tolist() == ["a", "b", "t1-a"]
    assert tuple(measure(rows).columns) == COLUMNS


def test_ablations_are_measured_apart() -> None:
    weaker = {name: {c: v / 2 for c, v in scores.items()} for name, scores in HAND.items()}
    rows = pd.concat([_rows(HAND, ablation="none"), _rows(weaker, ablation="top:4")])
    long = measure(rows)
    assert tuple(long.columns) == (*COLUMNS, "ablation")
    gains = long[long["measure"] == "G"].set_index("ablation")["value"].to_dict()
    assert gains == {"none": -15.0, "top:4": -7.5}


def test_no_rows_give_no_measures() -> None:
    assert measure(_rows(HAND).iloc[:0]).empty


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("logprob", math.nan, "has no logprob"),
        ("logprob", -math.inf, "not finite"),
        ("logprob", 0.01, "not finite and ≤ 0"),
        ("n_tokens", 0, "no tokens"),
        ("n_tokens", 5, "two lengths"),
        ("is_greedy", "yes", "is_greedy"),
        ("is_greedy", None, "no is_greedy"),
        ("task_id", None, "no task_id"),
        ("task_id", "t9", "two tasks"),
        ("candidate", "other", "candidate"),
    ],
)
def test_a_row_that_could_only_give_a_wrong_number_is_refused(column: str, value: Any, sentence: str) -> None:
    rows = _rows(HAND).astype({column: object})
    rows.loc[0, column] = value
    with pytest.raises(InputError, match=sentence) as caught:
        measure(rows)
    assert "t1-a" in str(caught.value)


def test_a_score_that_stands_twice_is_refused_by_name() -> None:
    rows = pd.concat([_rows(HAND), _rows({"neut": {"failed": -3.0}})])
    with pytest.raises(InputError, match="t1-a/neut/failed occurs twice"):
        measure(rows)


def test_missing_columns_are_named() -> None:
    with pytest.raises(InputError, match="task_id, n_tokens"):
        measure(_rows(HAND).drop(columns=["task_id", "n_tokens"]))


@pytest.mark.needs_reference
def test_the_papers_own_scores_give_the_papers_own_identities() -> None:
    rows = pd.read_csv(REFERENCE / "ref_scores_smollm2-135m_sample.csv")
    rows["task_id"] = rows["item_id"].str.extract(r"^(\w+-\d+)", expand=False)
    rows = rows[rows["candidate"].isin(["failed", "gold", "distractor0", "distractor1"])]
    long = measure(rows)
    wide = long.pivot(index=["env", "item_id"], columns="measure", values="value")
    assert len(wide) > 5 and wide["G"].notna().any()
    both = wide.dropna(subset=["G", "copy", "sem"])
    np.testing.assert_allclose(both["G"] + both["copy"] + both["sem"], 0, atol=1e-9)
    np.testing.assert_allclose(wide["margin_shift"], wide["repair"] + wide["G"], atol=1e-9)
