"""`backfire predict --ablate`: every decision point under every arm, each prompt the agent's, AUCs paired by point."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from envs.toolshed import Toolshed
from experiments.run.schema import TABLES
from mech.engine import reference
from mech.engine.queries import Query
from mech.heads import HeadSet
from mech.interventions.intervention import NOTHING, scale_heads
from probes.rollouts.prediction import auc, auc_differences
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import FP64, NATS

HEADS = "L0H1,L1H0,L2H3"
LABEL = "L0H1+L1H0+L2H3@zero"
SMALL = ("--tasks", "2", "--steps", "3", "--tokens", "5", "--quiet")


@pytest.fixture(autouse=True)
def short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the tests of rollouts: a random model reads no tools."""
    monkeypatch.setattr("envs.toolshed.Toolshed.system_prompt", "Answer with one call.")
    monkeypatch.setattr("envs.toolshed.Toolshed.demonstrations", Toolshed.demonstrations[:1])


def test_every_decision_point_is_scored_under_every_arm(shell: Shell) -> None:
    words = ("--harness", "verbatim", "--change", "none,ablate", "--how", "zero", "--heads", HEADS)
    shell.ran("rollout", *words, *SMALL, "--first", "given")
    shell.ran("predict", "--ablate", f"{HEADS}@how=zero")
    points = shell.lines("predict")
    steps = {row["id"]: row for row in shell.lines("rollout")}
    assert {(row["change"], row["ablation"]) for row in points} == {
        (change, label) for change in ("none", "ablate") for label in ("none", LABEL)
    }
    model, change = loaded_once(str(shell.model)), scale_heads(HeadSet.parse(HEADS), 0.0)
    end = model.tokenizer.convert_tokens_to_ids("<end>")
    assert len({row["id"] for row in points}) == len(points)
    for row in points:
        under = NOTHING if row["ablation"] == "none" else change
        assert row["id"] == row["step"] + ("" if row["ablation"] == "none" else f"|{LABEL}")
        action = (*model.tokenizer.encode(row["failed_action"], add_special_tokens=False), end)
        [score] = reference.score(model, [Query(tuple(steps[row["step"]]["prompt_ids"]), action, under)])
        assert row["logp_fail_exact"] == pytest.approx(score.total, abs=NATS)
        assert -row["G"] == pytest.approx(row["copy"] + row["sem"], abs=FP64 * 10)
    for name in ("predict", "predict_calibration"):
        table = shell.table(name)
        assert set(table["ablation"]) == {"none", LABEL} and set(table["arm"]) == {
            "verbatim",
            "verbatim/ablate",
        }
    differences = shell.table("predict_arms")
    assert tuple(differences.columns) == TABLES["predict_arms"] and set(differences["ablation"]) == {LABEL}
    areas = shell.table("predict").set_index(["arm", "predictor", "ablation"])["auc"]
    for line in differences.to_dict("records"):
        here, whole = (areas[line["arm"], line["predictor"], name] for name in (LABEL, "none"))
        assert line["auc"] == pytest.approx(here, nan_ok=True)
        assert line["difference"] == pytest.approx(here - whole, nan_ok=True)


def test_without_arms_the_points_and_tables_are_those_of_the_whole_model(shell: Shell) -> None:
    words = ("--harness", "verbatim", "--change", "none,ablate", "--how", "zero", "--heads", HEADS)
    shell.ran("rollout", *words, *SMALL, "--first", "given")
    shell.ran("predict")
    assert {(row["change"], row["ablation"]) for row in shell.lines("predict")} == {("none", "none")}
    assert not shell.path("predict_arms.csv").exists()
    shell("predict", "--ablate", "L0H1@how=zero").sentence("other settings", "ablate")


def test_an_arm_with_values_of_its_own_for_every_question_is_refused(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim", *SMALL, "--first", "given")
    shell("predict", "--ablate", "L0H1@how=resample").sentence("serves ablate, joint and probe")
    shell("predict", "--ablate", "L0H1@how=men").sentence("'men' is no 'how'")


def test_the_difference_of_two_areas_is_paired_by_point() -> None:
    """Known answers: one predictor that is perfect and one that is reversed differ by one, in every draw."""
    rng = np.random.default_rng(0)
    repeats = np.tile([0, 1], 40)
    base = {"model": "m", "env": "e", "arm": "verbatim"}
    lines = []
    for at, repeat in enumerate(repeats):
        step = {**base, "task_id": f"t{at // 4}", "step": f"s{at}", "repeats": repeat}
        noise = rng.normal()
        lines += [
            {**step, "ablation": "none", "good": -repeat, "noise": noise},
            {**step, "ablation": "mine", "good": repeat, "noise": noise + rng.normal()},
        ]
    points = pd.DataFrame(lines)
    table = auc_differences(points, ["good", "noise"], lambda name: np.random.default_rng(1), 500)
    found = table.set_index("predictor")
    good, noise = found.loc["good"], found.loc["noise"]
    assert good["auc"] == 1 and good["auc_whole"] == 0 and good["difference"] == 1
    assert good["ci_lo"] == pytest.approx(1) and good["ci_hi"] == pytest.approx(1) and good["flagged"]
    assert good["n"] == 80 and good["n_repeats"] == 40 and good["n_clusters"] == 20
    whole = points[points["ablation"] == "none"]
    assert noise["auc_whole"] == pytest.approx(auc(whole["noise"], whole["repeats"]))
    assert noise["ci_lo"] < noise["difference"] < noise["ci_hi"] and not noise["flagged"]
