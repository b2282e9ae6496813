"""What the figures compute before they draw, on tables small enough to do by hand; and what they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from figures.ablate import dose_numbers
from figures.circuit import circuit_numbers
from figures.head_map import head_grid
from figures.labels import overlap
from figures.load import (
    FigureError,
    MissingTable,
    first_way,
    read_heads,
    selected_heads,
)
from figures.patch_by_score import spearman
from figures.summary import split_numbers
from tests.figure_tables import READS, read_table
from tests.synthetic_run import write_run


def test_minus_g_turns_sign_and_bounds() -> None:
    rows = [
        ("m", "e", name, mean, mean - 1, mean + 3, 9)
        for name, mean in (("G", -5.0), ("copy", 4.0), ("sem", 1.0))
    ]
    numbers = split_numbers(
        pd.DataFrame(rows, columns=["model", "env", "measure", "mean", "ci_lo", "ci_hi", "n"])
    )
    last = numbers.set_index("quantity").loc["−G"]
    assert (last["mean"], last["ci_lo"], last["ci_hi"]) == (5.0, 2.0, 6.0)


def test_random_controls_are_summed_up_by_median_and_range() -> None:
    rows = [("none", "none", 0, 9.0), ("top4", "selected", 4, 3.0)]
    rows += [(f"random_{i}", "random", 4, mean) for i, mean in enumerate((8.0, 11.0, 9.5))]
    table = pd.DataFrame(rows, columns=["set", "kind", "k", "mean"]).assign(measure="copy", n=7)
    table = table.assign(ci_lo=table["mean"] - 1, ci_hi=table["mean"] + 2)
    found = dose_numbers(table, "copy").set_index("kind")
    assert found.loc["random", ["mean", "lo", "hi", "n_draws"]].tolist() == [9.5, 8.0, 11.0, 3]
    assert found.loc["selected", ["k", "mean", "lo", "hi"]].tolist() == [4, 3.0, 2.0, 5.0]
    with pytest.raises(
        FigureError, match="unknown kind other: it is one of none, selected, random, norm, damage"
    ):
        dose_numbers(table.replace({"kind": {"none": "other"}}), "copy")
    with pytest.raises(FigureError, match="2 rows of copy for kind selected and k = 4"):
        dose_numbers(pd.concat([table, table[table["kind"] == "selected"]]), "copy")


def test_the_grid_has_heads_as_rows_layers_as_columns_and_blanks_where_nothing_was_measured() -> None:
    table = pd.DataFrame({"layer": [0, 2, 2], "head": [1, 0, 1], "share": [0.1, 0.2, 0.3]})
    expected = [[np.nan, np.nan, 0.2], [0.1, np.nan, 0.3]]
    np.testing.assert_array_equal(head_grid(table, "share"), expected)


def test_spearman_ranks_ties_by_their_mean_and_is_undefined_for_a_constant() -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 3, 2, 4: covariance 4.5, variances 4.5 and 5.
    assert spearman(pd.Series([1.0, 5, 5, 9]), pd.Series([0.0, 7, 2, 8])) == pytest.approx(
        4.5 / np.sqrt(4.5 * 5)
    )
    assert np.isnan(spearman(pd.Series([1.0, 1.0]), pd.Series([0.0, 7.0])))


def test_boxes_that_only_touch_do_not_overlap() -> None:
    assert overlap((0.0, 0.0, 2.0, 2.0), (1.0, 1.0, 3.0, 3.0))
    assert not overlap((0.0, 0.0, 2.0, 2.0), (2.0, 0.0, 3.0, 2.0))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("name", sorted({table for _, table in READS}))
def test_a_missing_column_is_named(name: str, run: Path, tmp_path: Path) -> None:
    read = {column for (_, table), columns in READS.items() if table == name for column in columns}
    assert read <= set(read_table(run, name))
    table = pd.read_csv(run / name).head(9)
    for column in read:
        table.drop(columns=column).to_csv(tmp_path / name, index=False)
        with pytest.raises(FigureError, match=f"{name} lacks the column {column}"):
            read_table(tmp_path, name)


def test_text_an_empty_table_and_a_file_that_is_no_table_are_refused_by_name(tmp_path: Path) -> None:
    header = ",".join(READS["load", "heads.csv"])
    path = tmp_path / "heads.csv"
    for content, message in (
        (f"{header}\n0,1,high\n", "text in the column prefix_matching"),
        (f"{header}\n", "has no rows"),
        ("", "not a readable csv table"),
        (f"{header}\n0,1,0.5\n0,1,0.5\n", "lists a head twice"),
    ):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(FigureError, match=message):
            read_heads(tmp_path)
    path.unlink()
    with pytest.raises(MissingTable, match=r"heads\.csv is not in"):
        read_heads(tmp_path)


def test_selected_heads_come_best_first_and_a_table_without_the_column_has_none() -> None:
    table = pd.DataFrame({"layer": [3, 1, 2], "head": [0, 1, 2], "prefix_matching": [0.2, 0.9, 0.5]})
    assert selected_heads(table) == []
    assert selected_heads(table.assign(selected=[True, True, False])) == [(1, 1), (3, 0)]


def circuit_tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A curve of two sizes and the table of the sets found, of which greedy's did not reach the target."""
    rows = [
        (m, side, "logprob", k, k / 4, 0.1, 0.9, 9)
        for m in ("score", "greedy")
        for side in ("training", "held-out")
        for k in (1, 3)
    ]
    curve = pd.DataFrame(rows, columns=list(READS["circuit", "circuit_curve.csv"]))
    found = [
        (m, "necessity", 0.9, k, done, "held-out", metric, *([share] * 9), 9)
        for metric, share in (("logprob", 0.75), ("margin", 0.5))
        for m, k, done in (("score", 3, "True"), ("greedy", 1, "False"))
    ]
    return curve, pd.DataFrame(found, columns=list(READS["circuit", "circuit.csv"]))


def test_the_found_sizes_are_marked_on_the_curve_and_what_was_not_found_is_told_apart() -> None:
    curve, circuit = circuit_tables()
    numbers = circuit_numbers(curve, circuit)
    marked = numbers[numbers["found"]]
    assert set(zip(marked["method"], marked["k"], marked["reached"], strict=True)) == {
        ("score", 3, True),
        ("greedy", 1, False),
    }
    crosses = numbers[numbers["other_metric"]]
    assert len(marked) == 6 and len(numbers) == len(curve) + 2
    assert set(crosses["metric"]) == {"margin"} and set(crosses["share"]) == {0.5}
    assert len(circuit_numbers(curve, circuit[circuit["metric"] == "logprob"])) == len(curve)


def test_a_curve_that_cannot_be_drawn_is_refused() -> None:
    curve, circuit = circuit_tables()
    with pytest.raises(FigureError, match="unknown method luck"):
        circuit_numbers(curve.replace({"method": {"score": "luck"}}), circuit)
    with pytest.raises(FigureError, match="lacks the size 5 that score found"):
        circuit_numbers(curve, circuit.replace({"k": {3: 5}}))
    with pytest.raises(FigureError, match="is of one metric"):
        circuit_numbers(curve.assign(metric=["logprob", "margin"] * (len(curve) // 2)), circuit)
    with pytest.raises(FigureError, match="two rows of method score"):
        circuit_numbers(pd.concat([curve, curve[:1]]), circuit)
    with pytest.raises(MissingTable, match="held-out"):
        circuit_numbers(curve[curve["test_set"] == "training"], circuit)


def test_of_several_ways_and_metrics_the_first_way_and_one_metric_are_drawn() -> None:
    cells = [(how, metric) for how in ("resample", "mean") for metric in ("logprob", "margin", "loss")]
    table = pd.DataFrame(cells, columns=["how", "metric"]).assign(value=range(6))
    assert first_way(table)["value"].tolist() == [0, 2]
    assert first_way(table, "margin")["value"].tolist() == [1, 2]
    older = table.drop(columns=["how", "metric"])
    assert first_way(older).equals(older)


def test_controls_of_one_set_a_size_are_not_in_the_picture() -> None:
    rows = [("none", "none", 0, 9.0), ("top4", "selected", 4, 3.0)]
    rows += [("top4/damage0", "damage", 4, 5.0), ("top4/sink0", "sink", 4, 8.0)]
    table = pd.DataFrame(rows, columns=["set", "kind", "k", "mean"]).assign(measure="copy", n=7)
    found = dose_numbers(table.assign(ci_lo=0.0, ci_hi=9.0), "copy")
    assert set(found["kind"]) == {"none", "selected", "damage"}
