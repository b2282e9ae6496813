"""Holm families are declared in one place, corrected by it and counted; levels have no null of zero."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures.measures import DEFINITIONS
from probes.stats.families import FAMILIES, corrected, family_lines, holm, null_is_zero


def _table() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "env": ["a", "a", "a", "b", "b"],
            "metric": ["logprob", "logprob", "margin", "logprob", "logprob"],
            "p": [0.01, 0.04, 0.03, math.nan, 0.2],
            "last": range(5),
        }
    )


def test_a_family_is_corrected_apart_by_metric_and_its_own_columns() -> None:
    table = corrected(_table(), "joint")
    assert table.columns.tolist() == ["env", "metric", "p", "p_holm", "family_size", "last"]
    np.testing.assert_allclose(table["p_holm"], [0.02, 0.04, 0.03, math.nan, 0.2])
    assert table["family_size"].tolist() == [2, 2, 1, 1, 1]  # the NaN of b is no test
    pd.testing.assert_frame_equal(corrected(table, "joint"), table)
    assert family_lines(table, "joint") == [
        "Holm family 'joint' (a, logprob): 2 tests",
        "Holm family 'joint' (a, margin): 1 test",
        "Holm family 'joint' (b, logprob): 1 test",
    ]


def test_rows_that_are_no_tests_of_the_family_are_neither_corrected_nor_counted() -> None:
    table = pd.DataFrame({"test_set": ["training", "held out", "other"], "p": [0.001, 0.02, 0.03]})
    found = corrected(table, "circuit")
    assert math.isnan(found["p_holm"][0]) and found["family_size"].tolist() == [0, 2, 2]
    np.testing.assert_allclose(found["p_holm"][1:], holm([0.02, 0.03]))
    assert corrected(table.iloc[:0], "circuit").empty
    none = corrected(table.assign(p=math.nan), "circuit")
    assert family_lines(none, "circuit") == ["Holm family 'circuit': no test (p cannot reach .05)"]


def test_an_unknown_family_or_a_table_without_its_columns_is_refused() -> None:
    with pytest.raises(InputError, match="'no such' is no family"):
        corrected(_table(), "no such")
    with pytest.raises(InputError, match="lacks the columns sources"):
        corrected(_table(), "knockout")


def test_families_are_of_tables_that_the_schema_knows_with_columns_that_they_have() -> None:
    for family in FAMILIES.values():
        assert family.null and set(family.within) <= set(TABLES[family.table]), family.name


def test_probabilities_shares_and_rates_have_no_null_of_zero_and_differences_have() -> None:
    levels = {name for name in DEFINITIONS if not null_is_zero(name)}
    assert levels == {
        name
        for name in DEFINITIONS
        if name == "G_negative" or (name.startswith(("p_repeat", "greedy_")) and not name.endswith("shift"))
    }
    assert null_is_zero("p_repeat_shift") and null_is_zero("G") and not null_is_zero("share_copy_positive")
