"""backfire mechanism: a plan that counts what is asked, stages resumed in one folder, one table out of theirs."""

from __future__ import annotations

import argparse

import pandas as pd
import pytest

from experiments.demo import arguments
from experiments.mechanism import STUDY
from experiments.mechanism_stages import Stage, stages
from experiments.mechanism_table import COLUMNS, from_joint, markdown
from experiments.seeds import stream
from experiments.session import Session
from experiments.workload import Work, leaves, sizes
from mech.engine import Engine
from probes.wording import load_wording
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture


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
    found = asked(
        shell, "joint", "--k", "1,2", "--controls", "2", "--ablation-controls", "1", "--reference-items", "2"
    )
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
