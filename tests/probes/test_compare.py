"""Two summaries side by side: every published line is there, nearest runs are taken, agreement is by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures.compare import compare, disagreements, only_ours
from probes.stats.summaries import check_summary

COLUMNS = ["model", "env", "measure", "mean", "ci_lo", "ci_hi", "n", "n_clusters"]


def _table(
    *lines: tuple[str, str, float, float, float, int], model: str = "fig-1m", **more: str
) -> pd.DataFrame:
    """env, measure, mean, lo, hi, n."""
    rows = [(model, *line, line[-1] // 2) for line in lines]
    return pd.DataFrame(rows, columns=COLUMNS).assign(**more)


PAPER = _table(
    ("tools", "G", -24.0, -26.0, -22.0, 100),
    ("tools", "sem", 2.0, 1.5, 2.9, 100),
    ("tools", "polarity", 0.2, -0.1, 0.5, 60),
    ("tools", "greedy", 0.0, 0.0, 0.0, 100),
    ("repair", "G", -80.0, -90.0, -70.0, 60),
)
OURS = _table(
    ("tools", "G", -25.0, -27.0, -23.0, 100),
    ("tools", "sem", -0.5, -0.9, -0.1, 100),
    ("tools", "polarity", -0.1, -0.3, 0.1, 60),
    ("tools", "greedy", 0.02, 0.0, 0.05, 100),
    ("tools", "ours_alone", 1.0, 0.5, 1.5, 100),
    model="fig-1m-q4",
)


def test_every_published_line_is_there_in_its_order() -> None:
    table = compare(OURS, PAPER)
    assert set(table.columns) == {*TABLES["compare"], "paper_model", "run"}
    assert table[["env", "measure"]].to_numpy().tolist() == PAPER[["env", "measure"]].to_numpy().tolist()
    assert (table["model"] == "fig-1m-q4").all() and (table["paper_model"] == "fig-1m").all()
    assert table["paper"].tolist() == PAPER["mean"].tolist()
    assert table["paper_n"].tolist() == [100, 100, 60, 100, 60]


def test_agreement_is_the_one_done_by_hand() -> None:
    table = compare(OURS, PAPER).set_index(["env", "measure"])
    shown = table[["difference", "overlap", "same_sign", "paper_excludes_zero"]]
    assert shown.loc[("tools", "G")].tolist() == [-1.0, True, True, True]
    assert shown.loc[("tools", "sem")].tolist() == [-2.5, False, False, True]
    assert shown.loc[("tools", "polarity")].tolist() == [pytest.approx(-0.3), True, False, False]
    assert shown.loc[("tools", "greedy")].tolist() == [0.02, True, False, False]
    missing = table.loc[("repair", "G")]
    assert missing["paper"] == -80.0 and bool(missing["paper_excludes_zero"])
    assert (
        missing[["ours", "ours_lo", "ours_hi", "ours_n", "difference", "overlap", "same_sign", "run"]]
        .isna()
        .all()
    )


def test_a_disagreement_needs_a_published_sign() -> None:
    found = disagreements(compare(OURS, PAPER))
    assert found[["env", "measure"]].to_numpy().tolist() == [
        ["tools", "sem"]
    ]  # polarity has no published sign
    # A mean of exactly zero has no sign: where the paper has one, that is another.
    zero = OURS.assign(mean=OURS["mean"].where(OURS["measure"] != "G", 0.0))
    assert disagreements(compare(zero, PAPER))["measure"].tolist() == ["G", "sem"]


def test_what_only_we_measured_is_counted_once() -> None:
    runs = pd.concat([OURS.assign(run="a"), OURS.assign(run="b"), OURS.assign(model="elm", run="c")])
    found = only_ours(runs, PAPER)
    assert found[found["model"] == "fig-1m-q4"].to_numpy().tolist() == [["fig-1m-q4", "tools", "ours_alone"]]
    assert len(found) == 1 + len(OURS)  # the paper has nothing of the other model
    assert list(found.columns) == ["model", "env", "measure"]


def test_of_several_runs_the_one_of_nearest_size_is_taken_and_named() -> None:
    runs = pd.concat(
        [
            _table(
                ("tools", "G", -1.0, -2.0, 0.0, 74), ("tools", "polarity", 9.0, 8.0, 10.0, 74), run="extended"
            ),
            _table(
                ("tools", "G", -2.0, -3.0, -1.0, 99), ("tools", "polarity", 8.0, 7.0, 9.0, 99), run="core"
            ),
            _table(
                ("tools", "G", -3.0, -4.0, -2.0, 101), ("tools", "polarity", 7.0, 6.0, 8.0, 46), run="later"
            ),
            _table(("repair", "G", -7.0, -8.0, -6.0, 3), run="code"),
        ]
    )
    table = compare(runs, PAPER).set_index(["env", "measure"])
    chosen = table[["ours", "ours_n", "run"]].dropna()
    assert chosen.to_numpy().tolist() == [[-2.0, 99, "core"], [9.0, 74, "extended"], [-7.0, 3, "code"]]


def test_an_empty_interval_of_ours_leaves_the_overlap_open() -> None:
    one_task = _table(("tools", "G", -25.0, np.nan, np.nan, 3))
    line = compare(one_task, PAPER).iloc[0]
    assert pd.isna(line["overlap"]) and bool(line["same_sign"]) and line["difference"] == -1.0


def test_intervals_that_touch_overlap() -> None:
    touching, apart = (_table(("tools", "G", -21.0, lo, -20.0, 9)) for lo in (-22.0, -21.9))
    assert compare(touching, PAPER)["overlap"].tolist()[0] is True
    assert compare(apart, PAPER)["overlap"].tolist()[0] is False


def test_names_may_be_given() -> None:
    ours = OURS.assign(model="mine")
    with pytest.raises(InputError, match=r"none of our models \(mine\); it has fig-1m"):
        compare(ours, PAPER)
    table = compare(ours, PAPER, {"mine": "fig-1m"})
    assert set(table["model"]) == {"mine"} and set(table["paper_model"]) == {"fig-1m"}
    with pytest.raises(InputError, match="no model 'yours' in our runs: they are of mine"):
        compare(ours, PAPER, {"yours": "fig-1m"})


def test_two_models_of_ours_may_be_one_of_the_papers() -> None:
    both = pd.concat([OURS, OURS.assign(model="fig-1m", mean=-1.0), OURS.assign(model="elm")])
    table = compare(both, PAPER)
    assert table["model"].value_counts().to_dict() == {"fig-1m": 5, "fig-1m-q4": 5}
    assert (table[table["model"] == "fig-1m"]["ours"].dropna() == -1.0).all()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.permutations(range(5)), st.sampled_from([0.5, 4.0, -2.0]))
def test_agreement_knows_neither_order_nor_unit(order: list[int], factor: float) -> None:
    def scaled(table: pd.DataFrame) -> pd.DataFrame:
        bounds = np.sort(table[["ci_lo", "ci_hi"]].to_numpy() * factor, axis=1)
        return table.assign(mean=table["mean"] * factor, ci_lo=bounds[:, 0], ci_hi=bounds[:, 1])

    table = compare(OURS, PAPER)
    other = compare(scaled(OURS.iloc[order]), scaled(PAPER))
    said = ["overlap", "same_sign", "paper_excludes_zero"]
    pd.testing.assert_frame_equal(table[said], other[said])
    np.testing.assert_allclose(other["difference"], table["difference"] * factor)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.drop(columns=["ci_lo", "n"]), "The table lacks the columns ci_lo, n"),
        (lambda t: t.assign(mean=t["mean"].where(t["measure"] != "sem")), "no mean on line 2"),
        (lambda t: t.assign(env=t["env"].where(t["measure"] != "G")), "no env on line 1"),
        (lambda t: t.assign(n=["1", "2", "many", "4", "5"]), "a n that is no number on line 3"),
        (lambda t: t.assign(ci_hi=np.inf), "a ci_hi that is no number on line 1"),
        (lambda t: pd.concat([t, t.iloc[3:4]]), "has a line twice: fig-1m, tools, greedy"),
    ],
)
def test_a_table_that_is_no_summary_is_refused_by_name_and_place(
    change: Callable[[pd.DataFrame], pd.DataFrame], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        check_summary(change(PAPER), "The table")
    for pair in ((change(PAPER), OURS), (PAPER.assign(model="fig-1m"), change(PAPER))):
        with pytest.raises(InputError):
            compare(*pair)


def test_a_summary_is_read_as_text_and_numbers() -> None:
    typed = PAPER.astype(str).assign(model=7, ci_lo=np.nan)
    found = check_summary(typed, "It")
    assert found["model"].tolist() == ["7"] * 5 and found["mean"].tolist() == PAPER["mean"].tolist()
    assert found["n"].tolist() == [100, 100, 60, 100, 60] and found["ci_lo"].isna().all()


def test_the_paper_beside_itself_agrees_in_everything(reference_dir: Path) -> None:
    paper = pd.read_csv(reference_dir / "paper_summary.csv")
    ours = paper[paper["model"] == "smollm2-135m"].assign(model="smollm2-135m-q4")
    table = compare(ours, paper)
    assert len(table) == len(ours) == 59 and (table["difference"] == 0).all()
    assert table["overlap"].all() and table["same_sign"].all()
    assert disagreements(table).empty and only_ours(ours, paper).empty
