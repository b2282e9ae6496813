"""`backfire compare`: per-item scores beside published ones, and rollouts of several sizes beside each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.cli import main
from experiments.run import schema
from experiments.run.run_folder import config_hash
from figures.compare_items import draw_compare_items, pair_numbers
from figures.load import MissingTable
from probes.measures import item_compare
from probes.rollouts.steps import per_rollout
from tests.figure_tables import read_table
from tests.step_cases import rollout, together
from tests.study_cases import Said

SCORES = {  # item, condition, candidate → log-probability
    ("i1", "pre", "failed"): -20.0,
    ("i1", "fail", "failed"): -4.0,
    ("i1", "neut", "failed"): -5.0,
    ("i1", "pre", "gold"): -10.0,
    ("i2", "pre", "failed"): -30.0,
    ("i2", "fail", "failed"): -6.0,
    ("i2", "neut", "failed"): -8.0,
    ("i2", "pre", "gold"): -12.0,
    ("i3", "pre", "failed"): -9.0,
}


def score_rows(**columns: Any) -> list[dict[str, Any]]:
    """The rows of a run that scored these."""
    return [
        {
            "id": f"{item}|{condition}|{candidate}", "model": "fig-1m-q4", "env": "tools", "item_id": item,
            "task_id": f"t-{item}", "condition": condition, "candidate": candidate, "logprob": value,
            "n_tokens": 10 if candidate == "failed" else 5, "is_greedy": False, "ctx_tokens": 600, **columns,
        }
        for (item, condition, candidate), value in SCORES.items()
    ]  # fmt: skip


def published(shift: float = 0.0, **changed: float) -> pd.DataFrame:
    """The same scores as another repository keeps them, all `shift` nats lower."""
    rows = [{name: row[name] for name in ("item_id", "condition", "candidate", "logprob", "n_tokens", "ctx_tokens")}
            for row in score_rows()]  # fmt: skip
    table = pd.DataFrame(rows).assign(model="fig-1m")
    return table.assign(logprob=table["logprob"] - shift)


@pytest.fixture
def scoring(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Said]:
    """`backfire compare …` in a folder with the run `run`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    write_rows(tmp_path / "run" / "scores.jsonl", score_rows())

    def said(*words: str) -> Said:
        capsys.readouterr()
        code = main(["compare", *words])
        shown = capsys.readouterr()
        return Said(code, shown.out.splitlines(), shown.err.splitlines())

    return said


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(Path("run") / name, keep_default_na=False, na_values=[""])


def test_the_same_scores_differ_by_exactly_zero_in_every_form_of_file(scoring: Callable[..., Said]) -> None:
    table = published()
    table.to_csv("long.csv", index=False)
    write_rows(Path("long.jsonl"), table.to_dict("records"))
    wide = table.pivot(index="item_id", columns=["condition", "candidate"], values="logprob")
    wide.columns = [f"lp__{condition}__{candidate}" for condition, candidate in wide.columns]
    counts = {"ntok__pre__failed": 10, "ctx__pre": 600, "G": [-16.0, -24.0, None]}
    wide.reset_index().assign(model="fig-1m", **counts).to_csv("wide.csv", index=False)
    for name in ("long.csv", "long.jsonl", "wide.csv"):
        said = scoring("--items", "run", "--published", name, "--within", "0.000001")
        assert said.code == 0, said.err
        assert "matched: 9 scores and 6 measures of 3 items" in said.out
        assert any(line.startswith("largest difference: 0.000000 nats") for line in said.out)
        assert any("The weights are not the same: ours are fig-1m-q4" in line for line in said.out)
        assert any(line.startswith("Within 1e-06 nats in every one of the ") for line in said.out)
        pairs = read("compare_item_pairs.csv")
        assert set(pairs["difference"]) == {0.0} and set(pairs["found_in"]) == {"both"}
        failed = read("compare_items.csv").set_index(["condition", "candidate"]).loc[("pre", "failed")]
        assert (failed["n"], failed["max_abs"], failed["pearson"]) == (3, 0, pytest.approx(1))
        assert (failed["same_n_tokens"], failed["same_ctx_tokens"]) == (1, 1)


def test_a_difference_is_found_where_it_is_and_in_what_follows(scoring: Callable[..., Said]) -> None:
    table = published()
    table.loc[(table["item_id"] == "i2") & (table["condition"] == "fail"), "logprob"] -= 0.25
    table.loc[table["item_id"] == "i1", "n_tokens"] = 11
    table.to_csv("long.csv", index=False)
    said = scoring("--items", "run", "--published", "long.csv", "--within", "0.2")
    assert said.code == 1 and any(
        line.startswith("Not within 0.2 nats in every one of the ") for line in said.out
    )
    assert scoring("--items", "run", "--published", "long.csv", "--within", "0.26").code == 0
    assert scoring("--items", "run", "--published", "long.csv").code == 0
    pairs = read("compare_item_pairs.csv").set_index(["item_id", "condition", "measure"])
    assert pairs.loc[("i2", "fail", "logprob"), "difference"] == pytest.approx(0.25)
    assert pairs.loc[("i2", "fail", "logprob"), "per_token"] == pytest.approx(0.025)
    assert pairs.loc[("i2", "-", "G"), "difference"] == pytest.approx(-0.25)
    assert pairs.loc[("i2", "-", "sem"), "difference"] == pytest.approx(0.25)
    assert pairs.loc[("i2", "-", "copy"), "difference"] == 0
    summary = read("compare_items.csv").set_index(["condition", "candidate", "measure"])
    fail = summary.loc[("fail", "failed", "logprob")]
    assert (fail["n"], fail["item_of_max"], fail["same_n_tokens"]) == (2, "i2", 0.5)
    assert fail["median_abs"] == pytest.approx(0.125) and fail["max_abs"] == pytest.approx(0.25)


def test_what_one_side_alone_has_is_counted_and_named(scoring: Callable[..., Said]) -> None:
    table = published()
    table.loc[table["item_id"] == "i1", "item_id"] = "elsewhere"
    other = table.assign(model="elm-2m")
    table = table[~((table["item_id"] == "i2") & (table["condition"] == "neut"))]
    twice = table.iloc[[0]].assign(logprob=-1.0)
    pd.concat([twice, table, other]).to_csv("long.csv", index=False)
    said = scoring("--items", "run", "--published", "long.csv")
    text = "\n".join(said.out)
    assert "only ours: 1 items (i1); 3 numbers of items that both have (i2 neut, i2 copy, i2 sem)" in text, (
        text
    )
    assert "only published: 1 items (elsewhere)" in text
    assert "left out: 9 published rows of other models or environments" in text
    assert "1 published rows stand twice: the later one counts" in text
    summary = read("compare_items.csv").set_index(["condition", "candidate", "measure"])
    counts = ["n", "n_only_ours", "n_only_published"]
    assert summary.loc[("neut", "failed", "logprob"), counts].tolist() == [0, 2, 1]
    pairs = read("compare_item_pairs.csv")
    assert set(pairs.loc[pairs["item_id"] == "elsewhere", "found_in"]) == {"published"}


def test_measures_alone_are_compared_in_their_own_unit(scoring: Callable[..., Said]) -> None:
    pd.DataFrame({"item_id": ["i1", "i2"], "G": [-16.0, -24.5], "G_negative": [1, 0]}).to_csv(
        "m.csv", index=False
    )
    said = scoring("--items", "run", "--published", "m.csv", "--within", "0.4")
    assert said.code == 1 and not any("The weights are not the same" in line for line in said.out)
    assert "token counts of the action not published; context lengths not published" in said.out
    pairs = read("compare_item_pairs.csv")
    assert set(pairs["kind"]) == {"measure"} and dict(zip(pairs["measure"], pairs["unit"], strict=True)) == {
        "G": "nats", "G_negative": "probability",
    }  # fmt: skip
    # A probability that differs by 1 is no difference in nats.
    assert scoring("--items", "run", "--published", "m.csv", "--within", "0.6").code == 0


def test_ablated_rows_are_no_part_of_the_comparison(scoring: Callable[..., Said]) -> None:
    rows = score_rows(ablation="none")
    rows += [{**row, "id": row["id"] + "|top", "ablation": "top:16", "logprob": -1.0} for row in rows]
    write_rows(Path("run/scores.jsonl"), rows)
    published().to_csv("long.csv", index=False)
    assert scoring("--items", "run", "--published", "long.csv", "--within", "0.001").code == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a,b\n1,2\n", ["has no column item_id", "lp__CONDITION__CANDIDATE", "measures such as G"]),
        ("item_id,logprob\ni1,-1\n", ["has no per-item numbers", "condition"]),
        ("item_id,G,logprob\ni1,-1,-1\n", ["scores without the columns condition, candidate"]),
        ("item_id,G\ni1,low\n", ["a G that is no number on line 1"]),
        ("item_id,G,model\ni1,-1,elm-2m\n", ["no row whose model is fig-1m", "it has elm-2m"]),
        ("item_id,G\nother,-1\n", ["No item of", "is in run"]),
        ('{"item_id": "i1"', ["line 1", "is no JSON"]),
        (None, ["Cannot read"]),
    ],
)
def test_a_file_that_cannot_be_compared_is_one_sentence(
    text: str | None, parts: list[str], scoring: Callable[..., Said]
) -> None:
    if text is not None:
        Path("other").write_text(text)
    scoring("--items", "run", "--published", "other").sentence("backfire compare: ", *parts)
    assert not Path("run/compare_item_pairs.csv").exists()


def test_options_that_do_not_belong_together_are_refused(scoring: Callable[..., Said]) -> None:
    published().to_csv("long.csv", index=False)
    scoring("--items", "run").sentence("--published FILE")
    scoring("run", "--items", "run", "--published", "long.csv").sentence("leave out other runs")
    scoring("run", "--published", "long.csv").sentence("belong to --items")
    scoring("--items", "nowhere", "--published", "long.csv").sentence("nowhere", "scores.jsonl")
    scoring("--items", "run", "--published", "long.csv", "--names", "fig-1m-q4=elm").sentence(
        "whose model is elm"
    )


def test_the_figure_holds_the_pairs_that_both_sides_have(scoring: Callable[..., Said]) -> None:
    table = published(0.5)
    table[table["item_id"] != "i3"].to_csv("long.csv", index=False)
    assert scoring("--items", "run", "--published", "long.csv").code == 0
    written = draw_compare_items(Path("run"))
    found = pd.read_csv(written[2])
    assert len(found) == 8 + 6 and "i3" not in set(found["item_id"])
    np.testing.assert_allclose(found.loc[found["kind"] == "score", "difference"], 0.5)
    pairs = read_table(Path("run"), "compare_item_pairs.csv")
    with pytest.raises(MissingTable, match="both sides have"):
        pair_numbers(pairs[pairs["found_in"] == "ours"])


def test_the_reference_measures_agree_with_a_second_opinion(reference_dir: Path) -> None:
    table = pd.read_csv(reference_dir / "q4_core_sample.csv")
    found = item_compare.published_items(table, "the sample")
    assert len(found.measures) == 175 and found.scores.empty
    sample = pd.read_csv(reference_dir / "ref_scores_smollm2-135m_sample.csv")
    scores = item_compare.published_items(sample, "the scores", "smollm2-135m", {"toolshed"})
    assert len(scores.scores) == 71 and scores.elsewhere == 73
    assert set(scores.measures["measure"]) == {"G", "copy", "sem"}


HIDDEN = {4: "aaab", 8: "aabc"}


def dose_run(folder: Path, size: int, first: str = "aaaa") -> Path:
    """A folder of `rollout` whose change `knockout` was made to so many heads."""
    folder.mkdir()
    arms = {"verbatim": first, "verbatim/knockout": HIDDEN[size], "verbatim/knockout-random0": "aaaa"}
    steps = together(
        *(rollout(said, arm=arm, task=f"t{task}") for arm, said in arms.items() for task in range(8))
    )
    per_rollout(steps).to_csv(folder / "rollout.csv", index=False)
    heads = ",".join(f"L0H{head}" for head in range(size))
    entry = {
        "config": {"seed": 0}, "config_hash": config_hash({"seed": 0}), "command": "", "start": "", "end": "",
        "provenance": {"sets": {"selected": heads}}, "done": True, "resumes": [],
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps({"schema": 1, "studies": {"rollout": entry}}))
    return folder


def test_rollouts_of_several_sizes_are_one_table_by_size(scoring: Callable[..., Said]) -> None:
    for size in (8, 4):
        dose_run(Path(f"hide{size}"), size)
    said = scoring("hide8", "hide4")
    assert said.code == 0, said.err
    table = pd.read_csv("hide8/compare_doses.csv")
    assert tuple(table.columns) == schema.TABLES["compare_doses"]
    rows = table[table["metric"] == "repeat_per_chance"]
    assert rows[["change", "k", "n", "n_changed"]].to_numpy().tolist() == [
        ["knockout", 4, 8, 8],
        ["knockout", 8, 8, 8],
    ]
    np.testing.assert_allclose(rows["difference"], [-1 / 3, -2 / 3])
    assert set(rows["family_size"]) == {2} and rows["p"].tolist() == [2 / 2**8] * 2
    assert "verbatim/knockout of 4" in "\n".join(said.out)


def test_runs_whose_first_arm_differs_are_no_doses_of_one_change(scoring: Callable[..., Said]) -> None:
    dose_run(Path("hide8"), 8)
    dose_run(Path("hide4"), 4, first="aaab")
    scoring("hide8", "hide4").sentence("differ in their first arm (verbatim)")
    dose_run(Path("more8"), 8)
    scoring("hide8", "more8").sentence("occurs twice")
    scoring("hide8", "run").sentence("--paper FILE")
