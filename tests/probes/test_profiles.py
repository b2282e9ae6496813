"""Token profiles by hand: which token belongs where, and that nothing is lost on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures.profiles import DIFFERENCES, LEVELS, PARTS, parts, profiles, tenths
from tests.tolerances import FP64

TOKENS = st.lists(st.integers(0, 2), min_size=1, max_size=9)


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def _rows(
    item: str, action: list[int], reference: list[int], logprobs: dict[str, list[float]], **more: Any
) -> list[dict[str, Any]]:
    """Rows of the failed action under each condition, and of the reference action under pre."""
    base = {"model": "m", "env": "e", "item_id": item, "task_id": f"t-{item}", **more}
    rows = [
        {**base, "condition": name, "candidate": "failed", "token_ids": action, "token_logprobs": values}
        for name, values in logprobs.items()
    ]
    gold = {"condition": "pre", "candidate": "gold", "token_ids": reference}
    rows.append({**base, **gold, "token_logprobs": [-1.0] * len(reference)})
    return [{**row, "logprob": float(sum(row["token_logprobs"]))} for row in rows]


# Five tokens; the reference differs in the third. Token by token: copy 1 2 3 4 5, sem 0 0 -1 0 2.
HAND = _rows(
    "a",
    [7, 8, 1, 9, 5],
    [7, 8, 2, 3, 9, 5],
    {
        "pre": [-9.0, -9.0, -9.0, -9.0, -9.0],
        "neut": [-8.0, -7.0, -6.0, -5.0, -4.0],
        "fail": [-8.0, -7.0, -7.0, -5.0, -2.0],
    },
)


def _means(table: pd.DataFrame, measure: str, axis: str) -> list[float]:
    return table[(table["measure"] == measure) & (table["axis"] == axis)]["mean"].tolist()


def test_each_token_is_counted_in_its_part_and_in_its_tenth() -> None:
    table = profiles(pd.DataFrame(HAND), _rng, n_draws=20)
    assert set(table.columns) == set(TABLES["profiles"])
    assert _means(table, "copy", "part") == [3.0, 3.0, 9.0]
    assert _means(table, "sem", "part") == [0.0, -1.0, 2.0]
    assert _means(table, "G", "part") == [-3.0, -2.0, -11.0]
    # The middles of five tokens lie at 0.1, 0.3, 0.5, 0.7 and 0.9 of the action.
    assert _means(table, "copy", "position") == [0, 1.0, 0, 2.0, 0, 3.0, 0, 4.0, 0, 5.0]
    levels = table.groupby("axis")["level"].unique().map(list).to_dict()
    assert levels == {axis: list(names) for axis, names in LEVELS.items()}


def test_a_mean_is_per_item_and_an_item_without_tokens_there_counts_as_zero() -> None:
    other = _rows("b", [7], [6], {"pre": [-3.0], "neut": [-2.0], "fail": [-2.5]})
    table = profiles(pd.DataFrame([*HAND, *other]), _rng, n_draws=200)
    assert _means(table, "copy", "part") == [1.5, 2.0, 4.5]
    assert (table["n"] == 2).all() and (table["n_clusters"] == 2).all()
    error = table[(table["measure"] == "copy") & (table["level"] == "error")].iloc[0]
    assert np.isnan([error["ci_lo"], error["ci_hi"]]).all()  # two tasks are too few


@pytest.mark.parametrize(
    ("action", "reference", "expected"),
    [
        ([1, 2, 3, 4], [1, 2, 9, 4], "bbea"),
        ([1, 2, 3, 4], [9, 8, 7, 6], "eeee"),
        ([1, 2, 4], [1, 2, 3, 4], "bbe"),  # something left out: what it departs with
        ([1, 2, 3, 4], [1, 2, 4], "bbea"),  # something put in
        ([1, 1, 1], [1, 1], "bbe"),  # the end may not use what the beginning has
        ([1, 1], [1, 1, 1], "bb"),
        ([2, 1, 2], [2], "bee"),
        ([1, 2, 1, 2, 1], [1, 2, 1], "bbbee"),
        ([5], [6], "e"),
        ([1, 2], [1, 2], "bb"),
    ],
)
def test_the_error_is_what_lies_between_the_shared_ends(
    action: list[int], reference: list[int], expected: str
) -> None:
    assert "".join(PARTS[index][0] for index in parts(action, reference)) == expected


@given(TOKENS, TOKENS)
def test_before_and_after_are_the_references_own_and_never_overlap(
    action: list[int], reference: list[int]
) -> None:
    found = parts(action, reference)
    assert len(found) == len(action) and (np.diff(found) >= 0).all()
    before, after = int((found == 0).sum()), int((found == 2).sum())
    assert before + after <= len(reference)
    assert action[:before] == reference[:before]
    assert action[len(action) - after :] == reference[len(reference) - after :]
    rest = slice(before, len(action) - after), slice(before, len(reference) - after)
    left, right = action[rest[0]], reference[rest[1]]
    assert not (left and right) or (left[0] != right[0] and (len(left) == 1 or left[-1] != right[-1]))
    assert bool((found == 1).any()) == (before < len(action))


@given(st.integers(1, 200))
def test_tenths_are_even_and_symmetric(n_tokens: int) -> None:
    found = tenths(n_tokens)
    assert len(found) == n_tokens and found.min() >= 0 and found.max() <= 9
    counts = np.bincount(found, minlength=10)
    assert counts.max() - counts.min() <= 1
    if n_tokens % 10 == 0:
        assert (counts == n_tokens // 10).all()


def test_a_single_token_lies_in_the_middle() -> None:
    assert tenths(1).tolist() == [5] and tenths(2).tolist() == [2, 7]
    assert tenths(10).tolist() == list(range(10))


def _random_rows(seed: int, n_items: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(n_items):
        reference = rng.integers(0, 4, size=int(rng.integers(1, 25))).tolist()
        action = [*reference[: len(reference) // 2], 4, *reference[len(reference) // 2 + 1 :]]
        scores = {name: (-rng.exponential(3, size=len(action))).tolist() for name in ("pre", "neut", "fail")}
        rows += _rows(f"i{index:02d}", action, reference, scores)
    return pd.DataFrame(rows)


@pytest.mark.parametrize("seed", range(3))
def test_levels_sum_to_the_measure_and_minus_g_is_the_sum_of_its_parts_in_each(seed: int) -> None:
    rows = _random_rows(seed)
    table = profiles(rows, _rng, n_draws=20)
    failed = rows[rows["candidate"] == "failed"].pivot(index="item_id", columns="condition", values="logprob")
    for measure, (one, other) in DIFFERENCES.items():
        mean = (failed[one] - failed[other]).mean()
        for axis in LEVELS:
            assert sum(_means(table, measure, axis)) == pytest.approx(mean, abs=FP64)
    for axis in LEVELS:
        together = np.add(_means(table, "copy", axis), _means(table, "sem", axis))
        np.testing.assert_allclose(together, -np.array(_means(table, "G", axis)), atol=FP64)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.permutations(range(16)))
def test_the_order_of_the_rows_does_not_matter(order: list[int]) -> None:
    rows = _random_rows(7, n_items=4)
    pd.testing.assert_frame_equal(
        profiles(rows, _rng, n_draws=30), profiles(rows.iloc[order], _rng, n_draws=30)
    )


def test_a_measure_is_over_the_items_that_have_both_its_conditions() -> None:
    part = [
        row
        for row in _random_rows(1).to_dict("records")
        if row["item_id"] != "i00" or row["condition"] != "neut"
    ]
    table = profiles(pd.DataFrame(part), _rng, n_draws=20)
    assert table.groupby("measure")["n"].unique().map(list).to_dict() == {
        "G": [12],
        "copy": [11],
        "sem": [11],
    }
    rows = pd.DataFrame(part)
    only = profiles(rows[rows["condition"] != "fail"], _rng, n_draws=20)
    assert set(only["measure"]) == {"copy"}
    assert profiles(rows.iloc[:0], _rng).empty


def _changed(index: int, **cells: Any) -> list[dict[str, Any]]:
    return [{**row, **cells} if number == index else row for number, row in enumerate(HAND)]


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (_changed(1, token_ids=[7, 8, 1, 9, 6]), "failed action of a is tokenised in more than one way"),
        (_changed(1, token_logprobs=[-1.0] * 4), "a has not one log-probability for each token"),
        (_changed(3, token_ids=[]), "gold action of a is tokenised"),
        (_changed(1, task_id="t-b"), "a belongs to two tasks"),
        ([*HAND, HAND[0]], "occurs twice"),
        ([{k: v for k, v in row.items() if k != "token_ids"} for row in HAND], "lack the columns token_ids"),
    ],
)
def test_rows_that_do_not_correspond_are_refused(rows: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        profiles(pd.DataFrame(rows), _rng)


def test_tokens_that_do_not_sum_to_the_score_are_not_recorded() -> None:
    with pytest.raises(RuntimeError, match=r"tokens of a miss its G by 0\.001"):
        profiles(pd.DataFrame(_changed(0, logprob=-45.001)), _rng)


def test_an_item_without_a_reference_action_has_positions_and_no_parts() -> None:
    table = profiles(pd.DataFrame(HAND[:3]), lambda name: np.random.default_rng(0))
    assert set(table["axis"]) == {"position"}
    whole = profiles(pd.DataFrame(HAND), lambda name: np.random.default_rng(0))
    positions = whole[whole["axis"] == "position"].reset_index(drop=True)
    pd.testing.assert_frame_equal(table, positions)
