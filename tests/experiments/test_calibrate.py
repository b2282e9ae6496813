"""`backfire calibrate`: the table says what the tests and intervals are worth; the runs it draws from are checked."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments.cli import main
from experiments.run.schema import TABLES
from probes.stats import coverage


def _measures(folder: Path, n_tasks: int = 9) -> Path:
    rng = np.random.default_rng(0)
    lines = [
        ("m", "toolshed", f"t{task}i{item}", f"t{task}", name, value)
        for task in range(n_tasks)
        for item in range(1 + task % 3)
        for name, value in (
            ("G", -np.exp(rng.normal())),
            ("copy", np.exp(rng.normal())),
            ("p_repeat_fail", rng.random()),
        )
    ]
    folder.mkdir()
    table = pd.DataFrame(lines, columns=["model", "env", "item_id", "task_id", "measure", "value"])
    table.to_csv(folder / "measures.csv", index=False)
    return folder


def test_a_small_calibration_meets_what_is_promised(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = _measures(tmp_path / "run")
    words = ["calibrate", "--simulations", "500", "--draws", "400", "--clusters", "6,13", "--quiet"]
    assert main([*words, "--from", str(source), "--out", str(tmp_path / "out")]) == 0
    table = pd.read_csv(tmp_path / "out" / "calibrate.csv")
    assert tuple(table.columns) == TABLES["calibrate"]
    made = table[~table["population"].str.contains("run:|1.0")]
    sure = 3 * np.sqrt(0.05 * 0.95 / made["simulations"])  # three standard errors of the simulation
    assert (made["coverage"] >= 0.93 - sure).all() and (
        made["error"].dropna() <= 0.055 + sure.loc[made["error"].notna()]
    ).all()
    assert table[table["statistic"] == "rate"]["error"].isna().all()  # no test of "the rate is 0"
    assert set(table.loc[table["n_clusters"] == 6, "attainable"]) == {2 / 64}
    assert {"run: G", "run: copy", "run: p_repeat_fail"} <= set(table["population"])
    out = capsys.readouterr().out
    assert "mean: coverage at least" in out and "error of the test at most" in out


def test_a_simulation_draws_whole_clusters_of_the_run(tmp_path: Path) -> None:
    measures = pd.read_csv(_measures(tmp_path / "run") / "measures.csv")
    [ratio] = [one for one in coverage.run_populations(measures) if one.statistic == "ratio"]
    block = ratio.draw(np.random.default_rng(1), 8, 50)
    wide = measures.pivot(index=["task_id", "item_id"], columns="measure", values="value")
    known = {
        tuple(group["copy"].round(12)): tuple((-group["G"]).round(12)) for _, group in wide.groupby("task_id")
    }
    for column in range(50):
        for code in range(8):
            mine = block.codes == code
            top = tuple(block.numerators[mine, column].round(12))
            assert known[top] == tuple(block.denominators[mine, column].round(12))
    assert ratio.truth == pytest.approx(wide["copy"].sum() / -wide["G"].sum())


def test_what_cannot_be_simulated_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, sentence in (
        (["--clusters", "5,8"], "Fewer than 6 clusters"),
        (["--from", str(tmp_path)], "There is no"),
        (["--from", str(_measures(tmp_path / "few", 4))], "fewer than 6 tasks"),
    ):
        assert main(["calibrate", *words, "--out", str(tmp_path / "out")]) == 2
        assert sentence in capsys.readouterr().err
