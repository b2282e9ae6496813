"""backfire mechanism: a plan that counts what is asked, stages resumed in one folder, one table out of theirs."""

from __future__ import annotations

import argparse
from dataclasses import replace

import pandas as pd
import pytest

from experiments.demo import arguments
from experiments.mechanism import STUDY
from experiments.mechanism_stages import Stage, stages
from experiments.mechanism_table import COLUMNS, NAMES, from_joint, markdown
from experiments.seeds import stream
from experiments.session import Session
from experiments.workload import Work, leaves, sizes
from mech.engine import Engine
from probes.items import dump_items
from probes.wording import load_wording
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture

FAR = {"unrelated_action": "XYZW", "unrelated_observation": "QJVK"}


def planned(shell: Shell, name: str) -> float:
    """Questions that the plan counts for a stage of three short items."""
    session = Session(
        Engine(loaded_once(str(shell.model))), list(ITEMS[:3]), load_wording(), lambda name: stream(0, name)
    )
    values = {"limit": 3, "few": 3, "deep": 3, "k": (1, 2), "controls": 2, "ablation_controls": 1}
    args = argparse.Namespace(**{**vars(arguments(STUDY, {})), **values})
    [stage] = [one for one in stages(args) if one.name == name]
    return stage.work(sizes(session, session.items, ("pre", "neut", "fail"))).questions


def asked(shell: Shell, study: str, *words: str) -> int:
    """Forwards that the reference path takes for them: one a question."""
    shell.ran(study, *words, "--engine", "reference")
    return shell.forwards(study)[0]


def test_the_plan_counts_the_questions_that_the_reference_path_answers(shell: Shell) -> None:
    found = asked(shell, "joint", "--k", "1,2", "--controls", "2", "--ablation-controls", "1")
    # Beside the questions: the mean and the drawn position of an ablation, and trunks of contexts.
    assert planned(shell, "joint") == pytest.approx(found, abs=3 + 2 * len(ITEMS))
    found = asked(shell, "patch", "--k", "1,2")
    assert planned(shell, "patch copy") == pytest.approx(found, abs=2 * len(ITEMS))


def test_work_adds_up_and_is_multiplied() -> None:
    one = leaves(10, 4, depth=0.5)
    assert one == Work(4, 20, 40) and (one + one) == one * 2


def rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    base = {"env": "shed", "method": "noise", "direction": "necessity", "set": "top4", "k": 4, "n": 9}
    own = {**base, "share": 0.5, "ci_lo": 0.41, "ci_hi": 0.62}
    random = {"control_mean": -0.02, "control_lo": -0.1, "control_hi": 0.03, "n_controls": 20, "p": 1 / 21}
    carried = pd.DataFrame(
        [{**own, **random, "controls": "random"}, {**own, **random, "controls": "strength", "p": 0.5}]
    )
    off = {"env": "shed", "method": "noise", "set": "top4", "k": 4}
    changes = pd.DataFrame(
        [
            {**off, "quantity": "reference", "change": -1.234, "equivalent": False},
            {**off, "quantity": "sem", "change": 0.1, "equivalent": True},
        ]
    )
    return carried, changes


def test_the_table_takes_random_controls_and_names_direction_and_changes() -> None:
    table = from_joint(*rows())
    assert tuple(table.columns) == COLUMNS and len(table) == 1
    row = table.iloc[0]
    assert row["p"] == pytest.approx(1 / 21) and row["reference_change"] == -1.234
    assert row["sem_equivalent"] == "true" and pd.isna(row["prose_change"])
    text = markdown(table)
    assert "| noising (z from `pre`): necessity | 50 % [41, 62] |" in text
    assert "| random, same layers | −2 % (−10 to 3; p 0.05) |" in text
    assert "log p of the reference action | −1.23 |" in text and "prose" not in text


def test_every_stage_is_a_study_with_options_it_has() -> None:
    args = argparse.Namespace(**{**vars(arguments(STUDY, {})), "limit": 24})
    found: list[Stage] = stages(args)
    assert len({stage.name for stage in found}) == len(found)
    for stage in found:
        assert set(stage.options) <= {option.key for option in stage.study.options}, stage.name


def test_the_whole_suite_runs_resumes_and_ends_in_one_table(shell: Shell) -> None:
    words = ["--k", "1,2", "--controls", "2", "--ablation-controls", "1", "--ablated-controls", "1"]
    words += ["--deep", "3", "--few", "3"]
    dump_items([replace(one, meta={**one.meta, **FAR}) for one in ITEMS[:3]], shell.items)
    said = shell("mechanism", *words)
    # A model of random weights is dead: the placebos say so, and the suite is done all the same.
    assert said.code == 1 and not said.err and any("placebo: a check fails" in line for line in said.out)
    table = shell.table("mechanism")
    assert tuple(table.columns) == COLUMNS
    assert set(zip(table["method"], table["where"], strict=True)) == set(NAMES) - {
        ("resample", "all"),
        ("zero", "all"),
    }
    carried, removed = shell.table("carried"), shell.table("removed")
    own = table[(table["method"] == "knockout") & (table["k"] == 2)].iloc[0]
    assert own["share"] == carried.query("method == 'knockout' and k == 2")["share"].iloc[0]
    everywhere = table[(table["where"] == "all") & (table["k"] == 2)].iloc[0]
    assert everywhere["share"] == removed.query("kind == 'selected' and k == 2")["share"].iloc[0]
    for name in ("overlap", "agreement", "circuit", "placebos", "direct", "layers", "path", "attribution"):
        assert len(shell.table(name)), name
    assert set(shell.table("shares")["site"]) == {"z", "pattern", "k", "v"}
    assert shell.path("mechanism.md").read_text().strip() in "\n".join(said.out)
    about = shell.about("mechanism")
    assert set(about["extra"]["seconds"]) == set(about["extra"]["planned_seconds"])
    before = {name: shell.path(name).read_bytes() for name in ("mechanism.csv", "joint_sets.jsonl")}
    assert shell("mechanism", *words).code == 1
    assert {name: shell.path(name).read_bytes() for name in before} == before
