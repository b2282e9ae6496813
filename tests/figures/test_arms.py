"""Figures of tables with ablation arms: each arm drawn beside the unablated model, older tables as they were."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from figures.breakdown import draw_breakdown
from figures.load import read_arms
from figures.manipulations import draw_manipulations
from figures.predict import draw_predict
from figures.profiles import draw_profiles
from figures.scaling import draw_scaling
from figures.summary import READS, draw_summary
from figures.summary_repeats import draw_summary_repeats
from tests.synthetic_rollouts import write_rollouts
from tests.synthetic_run import write_measurement

DRAWN = {
    "summary": (draw_summary, draw_summary_repeats),
    "manipulations": (draw_manipulations,),
    "profiles": (draw_profiles,),
    "breakdown": (draw_breakdown,),
    "scaling": (draw_scaling,),
    "predict_calibration": (draw_predict,),
}
ALSO = {"scaling": ("scaling_fit",), "predict_calibration": ("predict",)}


def with_arms(path: Path) -> None:
    """Every line twice: of the unablated model, and of an arm."""
    table = pd.read_csv(path, keep_default_na=False, na_values=[""])
    both = [table.assign(ablation=name) for name in ("none", "top16@resample")]
    pd.concat(both).to_csv(path, index=False)


@pytest.mark.parametrize("name", list(DRAWN))
def test_every_arm_is_drawn_beside_the_whole_model(name: str, tmp_path: Path) -> None:
    write_measurement(tmp_path)
    write_rollouts(tmp_path)
    for table in (name, *ALSO.get(name, ())):
        with_arms(tmp_path / f"{table}.csv")
    for draw in DRAWN[name]:
        files = draw(tmp_path)
        drawn = pd.concat([pd.read_csv(file) for file in files if file.suffix == ".csv"])
        named = {"scaling": "env", "predict_calibration": "arm"}.get(name, "model")
        labels = drawn[named].dropna().astype(str)
        arms = labels[labels.str.endswith(", top16@resample ablated")]
        whole = labels[~labels.str.contains("ablated")]
        assert len(arms) == len(whole) > 0
        assert {one.removesuffix(", top16@resample ablated") for one in arms} == set(whole)


def test_a_table_without_arms_is_read_as_it_is(tmp_path: Path) -> None:
    write_measurement(tmp_path)
    before = read_arms(tmp_path, "summary.csv", READS)
    table = pd.read_csv(tmp_path / "summary.csv")
    table.assign(ablation="none").to_csv(tmp_path / "summary.csv", index=False)
    after = read_arms(tmp_path, "summary.csv", READS)
    assert before["model"].tolist() == after["model"].tolist() == table["model"].tolist()
