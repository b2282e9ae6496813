"""Ablation arms: every arm in one folder as in a folder of its own, paired with the unablated, and never mixed up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest

from experiments.heads.ablation import METHODS, ArmOptions
from experiments.heads.arms import ArmSpec, parse_arms
from experiments.run.run_folder import RunFolder
from experiments.run.schema import TABLES
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import scale_heads
from probes.measures.measures import measure
from probes.prompts.wording import load_wording
from probes.scoring.score import DISTRACTORS_IN, build_queries, score_item, score_queries
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import IDENTITY, NATS

ARMS = {
    "L0H1+L1H3": "L0H1,L1H3",
    "L0H1+L1H3@zero": "L0H1,L1H3@how=zero",
    "random-L1H3@scale0.2": "random:L1H3@how=scale@alpha=0.2",
    "L1H3@zero@candidate": "L1H3@how=zero@where=candidate",
    "L0H1+L1H3@candidate": "L0H1,L1H3@where=candidate",
}
PER_TABLE = ("measures", "summary", "decomposition", "equivalence", "breakdown", "manipulations", "profiles")


def arms(*words: str) -> list[str]:
    """`--ablate WORD` for each."""
    return [part for word in words for part in ("--ablate", word)]


def by_label(rows: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["ablation"], []).append(row)
    return found


def test_every_arm_has_the_rows_of_a_run_of_its_own(shell: Shell) -> None:
    shell.ran_for_rows("probe", *arms(*ARMS.values()), "--limit", "1")
    rows = by_label(shell.lines("scores"))
    assert list(rows)[0] == "none" and set(rows) == {"none", *ARMS}
    shell.ran_for_rows("probe", "--limit", "1", out="clean")
    assert rows["none"] == shell.lines("scores", "clean")
    for at, (label, word) in enumerate(ARMS.items()):
        shell.ran_for_rows("probe", *arms(word), "--limit", "1", out=f"alone{at}")
        alone = by_label(shell.lines("scores", f"alone{at}"))
        assert alone["none"] == rows["none"]
        assert [row["id"] for row in alone[label]] == [f"{row['id']}|{label}" for row in rows["none"]]
        if "@candidate" not in label:
            assert alone[label] == rows[label]  # bit for bit
        found = {row["id"]: row for row in rows[label]}
        for row in alone[label]:
            assert abs(row["logprob"] - found[row["id"]]["logprob"]) <= NATS
        changed = [abs(a["logprob"] - b["logprob"]) for a, b in zip(alone[label], rows["none"], strict=True)]
        assert max(changed) > 10 * NATS
    words = ("--limit", "1", "--engine", "reference")
    shell.ran_for_rows("probe", *arms(*ARMS.values()), *words, out="slow")
    slow = {row["id"]: row for row in shell.lines("scores", "slow")}
    for row in shell.lines("scores"):
        assert abs(row["logprob"] - slow[row["id"]]["logprob"]) <= NATS
        assert row["intervention"] == slow[row["id"]]["intervention"]
    assert len(slow) == 6 * len(rows["none"])


def test_an_arm_has_every_measure_and_the_identity_holds_in_each(shell: Shell) -> None:
    shell.ran("decomposition", *arms("L0H1,L1H3", "L0H1,L1H3@how=zero"))
    shell.once("decomposition", out="clean")
    measures = shell.table("measures")
    wide = measures.pivot(index=["ablation", "item_id"], columns="measure", values="value")
    assert len(wide) == 9
    assert (wide["G"] + wide["copy"] + wide["sem"]).abs().max() <= IDENTITY
    for name in PER_TABLE:
        table, clean = shell.table(name), shell.table(name, "clean")
        assert tuple(table.columns[: len(TABLES[name])]) == TABLES[name] and table.columns[-1] == "ablation"
        whole = table[table["ablation"] == "none"].reset_index(drop=True)
        pd.testing.assert_frame_equal(whole, clean, check_dtype=False)
        if len(clean):
            assert set(table["ablation"]) == {"none", "L0H1+L1H3", "L0H1+L1H3@zero"}, name
    assert not shell.path("arms.csv", "clean").exists()


def test_arms_are_paired_with_the_whole_model_and_with_each_other(shell: Shell) -> None:
    said = shell.ran("probe", *arms("L0H1,L1H3@how=zero", "random:L1H3@how=zero"))
    wide = shell.table("measures").pivot(index=["measure", "item_id"], columns="ablation", values="value")
    table = shell.table("arms")
    assert tuple(table.columns) == TABLES["arms"]
    pairs = {("L0H1+L1H3@zero", "none"), ("random-L1H3@zero", "none"), ("random-L1H3@zero", "L0H1+L1H3@zero")}
    assert set(zip(table["ablation"], table["against"], strict=True)) == pairs
    for line in table.to_dict("records"):
        values = wide.loc[line["measure"]][[line["ablation"], line["against"]]].dropna()
        here, there = values[line["ablation"]], values[line["against"]]
        assert line["difference"] == pytest.approx((here - there).mean()) and line["n"] == len(values)
        assert line["mean"] - line["mean_against"] == pytest.approx(line["difference"], abs=1e-12)
        if not np.isnan(line["removed"]):
            assert line["removed"] == pytest.approx(1 - here.sum() / there.sum())
        family = table[
            (table["measure"] == line["measure"])
            & ((table["against"] == "none") == (line["family"] == "ablation arms"))
        ]
        assert line["family_size"] == family["p"].notna().sum() and len(family) == 2 - (
            line["against"] != "none"
        )
    assert set(table["family"]) == {"ablation arms", "arms against arms"}
    assert table["removed"].notna().any()
    assert any("ablation L0H1+L1H3@zero against the unablated model" in line for line in said.out)


def test_what_an_arm_is_stands_in_run_json_and_decides_whether_a_run_may_go_on(shell: Shell) -> None:
    words = arms("top:2@how=zero", "random:2")
    shell.ran_for_rows("probe", *words)
    entry = shell.about("probe")
    about = entry["provenance"]["ablations"]
    assert list(about) == ["top2@zero", "random2"]
    assert about["top2@zero"]["how"] == "zero" and about["random2"]["how"] == "mean"
    assert HeadSet.parse(about["random2"]["heads"]).sha256 == about["random2"]["sha256"]
    assert not set(HeadSet.parse(about["random2"]["heads"])) & set(HeadSet.parse(about["top2@zero"]["heads"]))
    assert about["random2"]["reference"]["n"] == 4
    assert set(entry["config"]["ablations"]) == set(about)
    assert entry["config"]["ablate"] == ["top:2@how=zero", "random:2"]
    shell("probe", *arms("top:2@how=zero")).sentence("other settings", "ablate")
    shell("probe").sentence("other settings", "ablate")
    before = shell.path("scores.jsonl").read_bytes()
    shell.ran_for_rows("probe", *words)
    assert shell.path("scores.jsonl").read_bytes() == before
    longer = shell.ran_for_rows("probe", *arms("random:top:2"), out="longer")
    assert (
        longer.out
        and shell.about("probe", "longer")["provenance"]["ablations"]["random2"]["heads"]
        == (about["random2"]["heads"])
    )


def test_none_is_the_default_and_always_there(shell: Shell) -> None:
    words = ["--limit", "1", "--reference-items", shell.reference]
    shell.ran_for_rows("probe", *words)
    config = shell.about("probe")["config"]
    assert config["ablate"] == "none" and "ablations" not in config
    rows = shell.lines("scores")
    assert {row["ablation"] for row in rows} == {"none"} and all(row["id"].count("|") == 2 for row in rows)
    shell.ran_for_rows("probe", *words, "--ablate", "none")  # the same run
    shell.ran_for_rows("probe", "--limit", "1", *arms("none", "L1H3@how=zero"), out="both")
    assert shell.lines("scores", "both")[: len(rows)] == rows


@pytest.mark.parametrize("stop", [2, 4])
def test_a_run_killed_in_an_item_goes_on_to_the_same_rows(
    stop: int, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--limit", "2", "--conditions", "pre,fail", *arms("L1H3@how=zero", "L1H3@where=candidate")]
    shell.ran("probe", *words, out="whole")
    write, calls = RunFolder.append_all, []

    def killed(self: RunFolder, name: str, rows: Sequence[dict[str, Any]]) -> None:
        calls.append(name)
        if len(calls) > stop:
            raise KeyboardInterrupt
        write(self, name, rows)
        if len(calls) == stop:  # and a row that was being written
            with self.path.joinpath(f"{name}.jsonl").open("ab") as file:
                file.write(b'{"id": "garden-0|fai')

    monkeypatch.setattr(RunFolder, "append_all", killed)
    assert shell("probe", *words).code == 130
    monkeypatch.setattr(RunFolder, "append_all", write)
    n_before = len(shell.path("scores.jsonl").read_bytes().splitlines())
    shell.ran("probe", *words)
    whole = shell.path("scores.jsonl", "whole").read_bytes()
    assert 1 < n_before < len(whole.splitlines())
    assert shell.path("scores.jsonl").read_bytes() == whole
    assert shell.path("arms.csv").read_bytes() == shell.path("arms.csv", "whole").read_bytes()


def test_rows_of_a_group_that_was_written_in_part_are_completed(shell: Shell) -> None:
    words = ["--limit", "1", *arms("L1H3@how=zero@where=candidate", "L0H1@where=candidate")]
    shell.ran_for_rows("probe", *words)
    whole = shell.path("scores.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    shell.path("scores.jsonl").write_bytes(b"".join(lines[:-7]))
    shell.ran_for_rows("probe", *words)
    assert shell.path("scores.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["top:2@how=men"], "'men' is no 'how': choose from mean"),
        (["top:2@where=somewhere"], "'somewhere' is no 'where': choose from all, candidate"),
        (["top:2@hw=mean"], "has no option 'hw': write HEADS[@how=…]"),
        (["top:2@how=mean@how=zero"], "says an option twice"),
        (["@how=mean"], "names no heads"),
        (["top:2@alpha=0.5"], "alpha is the factor of how=scale"),
        (["top:2@how=scale@alpha=half"], "alpha is a number, not 'half'"),
        (["top:2@draws=4"], "draws are of how=resample"),
        (["top:2@how=resample@draws=0"], "draws is a whole number from 1"),
        (["top:2", "top:2"], "is given twice"),
        (["top:2", "top:2@how=mean"], "are one arm, top2"),
        (["random:2", "random:top:2"], "are one arm, random2"),
        (["top:12", "not:L0H0,L0H1"], None),
        (["top:x"], "'top:x' is not a head set"),
    ],
)
def test_an_arm_that_is_mistyped_is_one_sentence(words: list[str], says: str | None, shell: Shell) -> None:
    if says is None:
        shell.ran_for_rows("probe", "--limit", "1", "--conditions", "pre", *arms(*words))
        return
    shell("probe", *arms(*words), out="none").sentence("backfire probe: ", says)
    assert not (shell.tmp / "none").exists()


def test_two_words_for_the_same_arm_are_refused(shell: Shell) -> None:
    shell("probe", *arms("L0H1,L1H3", "L1H3,L0H1"), out="none").sentence(
        "ablate the same heads in the same way"
    )


def spec(*words: str, **more: Any) -> list[ArmSpec]:
    return parse_arms(ArmOptions(ablate=words or "none", **more))


def test_a_label_says_what_an_arm_is_whatever_the_defaults() -> None:
    assert spec() == [] and spec("none") == []
    labels = {
        "top:16": "top16",
        "random:16": "random16",
        "random3:16": "random3-16",
        "random:top:16": "random16",
        "random2:L1H3": "random2-L1H3",
        "not:top:16": "not-top16",
        "top:8@heads/mine.json": "top8-of-mine",
        "mine.json": "mine",
        "L1H2,L3H4": "L1H2+L3H4",
        "top:16@how=scale@alpha=0.25": "top16@scale0.25",
        "top:16@how=zero@where=candidate": "top16@zero@candidate",
        "top:16@how=resample@draws=5": "top16@resample@draws5",
    }
    for word, label in labels.items():
        [found] = spec(word)
        assert found.label == label
    [usual] = spec("top:16", how="resample", where="candidate")
    [named] = spec("top:16@how=resample@where=candidate")
    assert usual.label == named.label == "top16@resample@candidate"
    [other] = spec("top:16@how=mean", how="resample")
    assert other.label == "top16"
    long = [spec(f"L0H1,L0H2,L1H0,{last}")[0].label for last in ("L1H1", "L1H2")]
    assert long[0] != long[1] and all(label.startswith("L0H1+3-") for label in long)
    assert "mean" in METHODS
    with pytest.raises(InputError, match="after an option"):
        spec("top:8@how=zero@mine.json")


def test_draws_are_measured_one_by_one_and_then_averaged(shell: Shell) -> None:
    engine, wording = Engine(loaded_once(str(shell.model))), load_wording()
    changes = [scale_heads(HeadSet.parse("L0H1,L1H3"), alpha) for alpha in (0.0, 2.0, 5.0)]
    item, names = ITEMS[0], ["pre", "neut", "fail"]
    questions = build_queries(
        engine.model, item, names, wording, None, distractors_in=DISTRACTORS_IN, end_of_turn=True
    )
    whole = score_queries(engine, item, questions)
    drawn = score_queries(engine, item, [scoring.under("mine", changes) for scoring in questions])
    alone = [score_item(engine, item, names, wording, None, change, DISTRACTORS_IN) for change in changes]
    for row, *singles in zip(drawn, *alone, strict=True):
        assert row["n_draws"] == 3 and row["ablation"] == "mine" and row["id"].endswith("|mine")
        assert row["draws"]["logprob"] == [one["logprob"] for one in singles]
        assert row["logprob"] == pytest.approx(np.mean([one["logprob"] for one in singles]))
        assert row["end_logprob"] == pytest.approx(np.mean([one["end_logprob"] for one in singles]))
        assert row["is_greedy"] == pytest.approx(np.mean([one["is_greedy"] for one in singles]))
        spread = np.std([one["logprob"] for one in singles], ddof=1)
        assert row["logprob_sd"] == pytest.approx(spread) and spread > 0
        assert sum(row["token_logprobs"]) == pytest.approx(row["logprob"])
        json.dumps(row, allow_nan=False)
    both = measure(pd.DataFrame([*whole, *drawn]))
    singly = [measure(pd.DataFrame(rows)).set_index("measure")["value"] for rows in alone]
    found = both[both["ablation"] == "mine"].set_index("measure")
    assert set(found.index) == set(singly[0].index) and (found["n_draws"] == 3).all()
    for name, line in found.iterrows():
        values = [one[name] for one in singly]
        assert line["value"] == pytest.approx(np.mean(values), abs=1e-9)
        assert line["draw_sd"] == pytest.approx(np.std(values, ddof=1), abs=1e-9)
    of_whole = both[both["ablation"] == "none"].set_index("measure")
    assert of_whole["value"].to_dict() == measure(pd.DataFrame(whole)).set_index("measure")["value"].to_dict()
    assert of_whole["n_draws"].isna().all()
    uneven = [
        *drawn[:-1],
        {**drawn[-1], "draws": {name: one[:2] for name, one in drawn[-1]["draws"].items()}},
    ]
    with pytest.raises(InputError, match="unequal numbers of draws"):
        measure(pd.DataFrame(uneven))
