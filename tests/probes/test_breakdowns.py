"""Breakdowns on frames small enough for means done by hand, and what is left out of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures import breakdowns
from probes.measures.breakdowns import breakdown, item_attributes, small_cells
from probes.stats.bootstrap import cluster_bootstrap

# item → (task, operator, step, whether the error quotes the submission, G)
ITEMS: dict[str, tuple[str, str, int, bool | None, float]] = {
    "a": ("t1", "typo", 0, True, -1.0),
    "b": ("t1", "typo", 1, True, -2.0),
    "c": ("t2", "typo", 0, False, -6.0),
    "d": ("t2", "drop", 2, None, -10.0),
    "e": ("t3", "drop", 0, False, -20.0),
    "f": ("t3", "typo", 10, False, 5.0),
}


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def _measures(model: str = "m", env: str = "e") -> pd.DataFrame:
    lines = [
        {"model": model, "env": env, "item_id": item, "task_id": task, "measure": name, "value": value}
        for item, (task, _, _, _, gain) in ITEMS.items()
        for name, value in (("G", gain), ("copy", -gain), ("repair", 1.0))
    ]
    return pd.DataFrame(lines)


def _attributes(**more: Any) -> pd.DataFrame:
    lines = [
        {
            **{"env": "e", "item_id": item, "operator": operator, "error_type": f"{operator} error"},
            **{"template": "one", "step_index": step, "quotes_source": quotes, **more},
        }
        for item, (_, operator, step, quotes, _) in ITEMS.items()
    ]
    return pd.DataFrame(lines)


def _cells(table: pd.DataFrame, measure: str = "G") -> dict[tuple[str, str], tuple[float, int, int]]:
    chosen = table[table["measure"] == measure]
    return {
        (row.by, row.level): (pytest.approx(row.mean), row.n, row.n_clusters) for row in chosen.itertuples()
    }


def test_every_cell_of_three_items_has_the_mean_of_its_own_items() -> None:
    table = breakdown(_measures(), _attributes(), _rng, n_draws=200)
    assert set(table.columns) == set(TABLES["breakdown"])
    assert _cells(table) == {
        ("operator", "typo"): (-1.0, 4, 3),
        ("error_type", "typo error"): (-1.0, 4, 3),
        ("template", "one"): (-34 / 6, 6, 3),
        ("step", "0"): (-9.0, 3, 3),
        ("quotes_source", "false"): (-7.0, 3, 2),
    }
    assert set(table["measure"]) == {"G", "copy"}  # repair was not asked for, sem was not measured
    assert table["by"].drop_duplicates().tolist() == list(breakdowns.SPLITS)


def test_small_cells_are_counted_and_an_empty_attribute_is_no_level() -> None:
    left = small_cells(_measures(), _attributes(), ["G"])
    assert set(left.columns) == set(TABLES["small_cells"])
    assert {(row.by, row.level): row.n for row in left.itertuples()} == {
        ("operator", "drop"): 2,
        ("error_type", "drop error"): 2,
        ("step", "1"): 1,
        ("step", "2"): 1,
        ("step", "10"): 1,
        ("quotes_source", "true"): 2,
    }
    assert left[left["by"] == "step"]["level"].tolist() == ["1", "2", "10"]  # as numbers, not as words
    table = breakdown(_measures(), _attributes(), _rng, ["G"], n_draws=50)
    for by, expected in (("operator", 6), ("step", 6), ("quotes_source", 5)):
        counted = table.loc[table["by"] == by, "n"].sum() + left.loc[left["by"] == by, "n"].sum()
        assert counted == expected  # d has no quotes_source


def test_a_cell_of_one_task_has_a_mean_and_no_interval() -> None:
    table = breakdown(_measures().assign(task_id="t1"), _attributes(), _rng, ["G"], n_draws=50)
    assert table["mean"].notna().all() and (table["n_clusters"] == 1).all()
    assert table[["ci_lo", "ci_hi"]].isna().all().all()


def test_a_cell_is_the_cluster_bootstrap_of_its_items_on_a_stream_of_its_own() -> None:
    names: list[str] = []

    def rng_for(name: str) -> np.random.Generator:
        names.append(name)
        return _rng(name)

    table = breakdown(_measures(), _attributes(), rng_for, ["G"], n_draws=500)
    assert len(set(names)) == len(names) == len(table)
    typo = table[(table["by"] == "operator") & (table["level"] == "typo")].iloc[0]
    rng = _rng("breakdown/m/e/operator/typo/G")
    expected = cluster_bootstrap([-1.0, -2.0, -6.0, 5.0], ["t1", "t1", "t2", "t3"], rng, n_draws=500)
    np.testing.assert_array_equal([typo["ci_lo"], typo["ci_hi"]], [expected.lo, expected.hi])
    assert np.isnan(typo["ci_lo"]) and typo["mean"] == expected.mean == -1.0  # three tasks are too few


def test_attributes_may_differ_between_models() -> None:
    both = pd.concat([_measures("m"), _measures("other")])
    same = breakdown(both, _attributes(), _rng, ["G"], n_draws=20)
    assert _cells(same[same["model"] == "m"]) == _cells(same[same["model"] == "other"])
    swapped = pd.concat([_attributes(model="m"), _attributes(model="other", operator="all")])
    table = breakdown(both, swapped, _rng, ["G"], n_draws=20)
    assert ("operator", "all") in _cells(table[table["model"] == "other"])
    assert ("operator", "all") not in _cells(table[table["model"] == "m"])


def test_score_rows_give_one_line_an_item() -> None:
    rows = pd.concat([_attributes(model="m", condition=name) for name in ("pre", "fail")])
    found = item_attributes(rows)
    assert found["item_id"].tolist() == list(ITEMS) and "condition" not in found.columns
    pd.testing.assert_frame_equal(
        breakdown(_measures(), found, _rng, n_draws=20),
        breakdown(_measures(), _attributes(), _rng, n_draws=20),
    )
    with pytest.raises(InputError, match="Item a has two values"):
        item_attributes(pd.concat([rows, rows.assign(operator="other")]))


@pytest.mark.parametrize(
    ("measures", "attributes", "sentence"),
    [
        (
            _measures(),
            _attributes().drop(columns=["operator", "step_index"]),
            "lack the columns operator, step_index",
        ),
        (_measures(), _attributes().iloc[1:], "Item a is measured and has no attributes"),
        (_measures(), pd.concat([_attributes(), _attributes().iloc[:1]]), "occurs twice: env e, item_id a"),
        (pd.concat([_measures(), _measures()]), _attributes(), "occurs twice"),
        (_measures().assign(value=math.nan), _attributes(), "item a has no value"),
        (_measures().drop(columns="task_id"), _attributes(), "lack the columns task_id"),
    ],
)
def test_what_could_only_give_a_wrong_table_is_refused(
    measures: pd.DataFrame, attributes: pd.DataFrame, sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        breakdown(measures, attributes, _rng, n_draws=10)


def test_nothing_measured_gives_an_empty_table() -> None:
    table = breakdown(_measures().iloc[:0], _attributes(), _rng)
    assert table.empty


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.permutations(range(18)), st.permutations(range(6)))
def test_the_order_of_lines_does_not_matter(lines: list[int], items: list[int]) -> None:
    table = breakdown(_measures(), _attributes(), _rng, n_draws=30)
    shuffled = breakdown(_measures().iloc[lines], _attributes().iloc[items], _rng, n_draws=30)
    pd.testing.assert_frame_equal(table, shuffled)
