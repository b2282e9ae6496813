"""Items of a recorded transcript lack what it cannot know: what needs it is left out by name, beside whole items."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.mechanism.ablation_tables import long_draws
from experiments.mechanism.mechanism_table import from_joint
from probes.items.item import Item, dump_items, item_line, load_items
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, item, shell  # noqa: F401 - a fixture

MINIMAL = ("item_id", "env", "task_id", "system_prompt", "goal", "failed_action", "obs_fail", "obs_neutral")
WHOLE = (*ITEMS, item(4, "grow(plant='yew', cups=)", "grow(plant='yew', cups=1)", "error: cups?"))


def minimal(one: Item) -> str:
    """The item's line with the fields alone that every item needs."""
    record = json.loads(item_line(one))
    return json.dumps({name: record[name] for name in MINIMAL})


@pytest.fixture
def sparse(shell: Shell) -> Shell:
    """Five items, of which two have no more than they must."""
    lines = [minimal(one) if one.item_id in ("garden-1", "garden-2") else item_line(one) for one in WHOLE]
    shell.items.write_text("\n".join(lines) + "\n")
    return shell


@pytest.fixture
def bare(shell: Shell) -> Shell:
    """Three items that have no more than they must."""
    shell.items.write_text("".join(f"{minimal(one)}\n" for one in ITEMS))
    return shell


def left_out(shell: Shell, study: str) -> dict[str, int]:
    table = shell.table("left_out")
    return dict(table.loc[table["study"] == study, ["what", "n"]].to_numpy().tolist())


def test_the_minimal_fields_make_an_item(tmp_path: Path) -> None:
    place = tmp_path / "items.jsonl"
    place.write_text(minimal(ITEMS[0]))
    (one,) = load_items(place)
    assert one.gold_action is one.obs_success is one.obs_fail_echo is one.tool is None
    assert (one.template, one.operator, one.error_type) == ("unknown",) * 3
    assert one.step_index == 0 and one.distractors == () and one.meta == {}
    assert list(one.candidates()) == ["failed"]
    record = {**json.loads(minimal(ITEMS[0])), "gold_action": None, "distractors": None, "meta": None}
    place.write_text(json.dumps({**record, "prefix_actions": ["a"], "prefix_observations": ["b"]}))
    assert load_items(place) == [
        replace(one, prefix_actions=("a",), prefix_observations=("b",), step_index=1)
    ]
    dump_items([one], tmp_path / "again.jsonl")
    assert load_items(tmp_path / "again.jsonl") == [one]


def test_probe_leaves_out_and_names_what_an_item_lacks(sparse: Shell) -> None:
    said = sparse.ran("probe")
    rows = {row["id"] for row in sparse.lines("scores")}
    assert "garden-1|succ|failed" not in rows and "garden-0|succ|failed" in rows
    assert "garden-1|pre|gold" not in rows and "garden-1|pre|failed" in rows
    measures = sparse.table("measures")
    assert measures["value"].notna().all()
    of = measures.groupby("measure")["item_id"].agg(set)
    everything, whole = {one.item_id for one in WHOLE}, {"garden-0", "garden-3", "garden-4"}
    assert of["G"] == of["copy"] == of["sem"] == everything
    for name in ("polarity", "p_repeat_pre", "p_repeat2_fail", "p_repeat4_fail", "repair", "margin_shift"):
        assert of[name] == whole, name
    assert "left out: succ: 2 items have no obs_success" in said.out
    assert any(
        line.startswith("left out: reference action: 2 items have no gold_action") for line in said.out
    )
    assert left_out(sparse, "probe") == {"succ": 2, "reference action": 2}
    assert set(sparse.about("probe")["provenance"]["left_out"]) == {"succ", "reference action"}
    profiles = sparse.table("profiles").groupby("axis")["n"].max()
    assert profiles["position"] == 5 and profiles["part"] == 3


def test_an_item_that_lacks_nothing_scores_the_same_beside_sparse_ones(sparse: Shell) -> None:
    sparse.ran("probe")
    dump_items(WHOLE, sparse.items)
    sparse.ran("probe", out="whole")
    whole = {row["id"]: row for row in sparse.lines("scores", "whole")}
    for row in sparse.lines("scores"):
        if row["item_id"] not in ("garden-1", "garden-2"):
            assert row["logprob"] == whole[row["id"]]["logprob"]


@pytest.mark.parametrize("kind", ["sparse", "bare"])
def test_every_study_runs_on_sparse_items(kind: str, request: pytest.FixtureRequest) -> None:
    shell: Shell = request.getfixturevalue(kind)
    ids = shell.tmp / "ids.json"
    ids.write_text('["garden-0", "garden-1", "garden-2"]')
    few = ["--ids", ids]
    for study, words in (
        ("decomposition", []),
        ("manipulations", ["--conditions", "all"]),
        ("patch", ["--k", "1", *few]),
        ("ablate", ["--heads", "top:2", "--controls", "1", *few]),
        ("joint", ["--k", "1", "--controls", "1", "--ablation-controls", "1", *few]),
    ):
        said = shell.ran(study, *words)
        assert not any("nan" in line.split() and "left out" in line for line in said.out)
    values = long_draws(pd.DataFrame(shell.lines("ablate")))["value"]
    assert len(values) and np.isfinite(values).all()
    lacking = left_out(shell, "manipulations")
    n = 2 if kind == "sparse" else 4
    for name in ("fail_terse", "fail_verbose", "fail_echo", "quote_matched", "fail_other"):
        assert lacking[name] == n, name
    assert left_out(shell, "ablate")["reference action"] >= 1
    joint = from_joint(shell.table("joint").fillna({"controls": ""}), shell.table("joint_off_target"))
    assert joint["reference_change"].notna().any() == (kind == "sparse")
    assert joint["share"].notna().all()
    offtarget = set(shell.table("ablate_off_target")["quantity"])
    assert ("reference_logprob" in offtarget) == (kind == "sparse")


def test_a_pair_of_conditions_takes_the_items_that_have_both(sparse: Shell) -> None:
    said = sparse.ran("patch", "--from", "succ", "--to", "fail", "--k", "1")
    assert {row["item_id"] for row in sparse.lines("patch")} == {"garden-0", "garden-3", "garden-4"}
    assert "left out: succ: 2 items have no obs_success" in said.out


@pytest.mark.parametrize("study", ["patch", "layers", "direct", "attribute", "circuit", "knockout"])
def test_a_pair_that_no_item_has_is_one_sentence(study: str, bare: Shell) -> None:
    pair = ["--to", "succ"] if study == "knockout" else ["--from", "succ", "--to", "fail"]
    bare(study, *pair).sentence("No item can be put under", "succ", "no obs_success")
