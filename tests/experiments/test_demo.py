"""backfire demo: what its three sentences say of the tables."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.demo import conclusion


def write(folder: Path, lo: float, hi: float) -> None:
    summary = {"measure": ["G", "copy", "sem"], "mean": [-20.0, 19.0, 1.0], "n": 8}
    pd.DataFrame({**summary, "ci_lo": lo, "ci_hi": hi}).to_csv(folder / "summary.csv", index=False)
    rows = [
        ("knockout", "random", "logprob", 0.8, 0.6, 0.9, -0.01, 0.03),
        ("denoise", "random", "logprob", 0.95, 0.9, 1.0, 0.1, 0.2),
        ("knockout", "norm", "logprob", 0.1, 0.1, 0.1, 0.1, 0.1),
        ("knockout", "random", "margin", 0.2, 0.2, 0.2, 0.2, 0.2),
    ]
    columns = ["method", "controls", "metric", "share", "ci_lo", "ci_hi", "control_lo", "control_hi"]
    table = pd.DataFrame(rows, columns=columns).assign(n=8, n_controls=3)
    table.to_csv(folder / "joint.csv", index=False)


def test_the_sentences_hold_the_numbers_of_log_p_and_of_random_heads(tmp_path: Path) -> None:
    write(tmp_path, -25.0, -15.0)
    one, two, three, *_ = conclusion(tmp_path).splitlines()
    assert "+20.0 nats [15.0, 25.0]" in one and one.endswith("(G = -20.0; 8 items): the feedback backfires.")
    assert two.startswith("2. 95% of that") and "(Δcopy = 19.0, Δsem = 1.0 nats)" in two
    assert "removes 80% of Δcopy [60%, 90%]" in three and "remove -1% to 3% (3 sets, 8 items)" in three
    assert three.endswith("give 95% of it.")


@pytest.mark.parametrize(
    ("lo", "hi", "verdict"),
    [
        (-25.0, 1.0, "no inversion beyond noise"),
        (float("nan"), float("nan"), "too few tasks for an interval"),
    ],
)
def test_the_verdict_is_that_of_the_interval(tmp_path: Path, lo: float, hi: float, verdict: str) -> None:
    write(tmp_path, lo, hi)
    assert conclusion(tmp_path).splitlines()[0].endswith(f"{verdict}.")
