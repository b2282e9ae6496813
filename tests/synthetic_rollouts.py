"""Made-up tables of rollouts (rates, survival, prediction), to be drawn only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.run.schema import TABLES

HARNESSES = ("verbatim", "verbatim+instruction", "abstract", "drop", "verbatim+ban", "abstract+ban")
CHANGES = ("ablate", "knockout", "knockout-all", "ablate-random0", "knockout-random0")
ARMS = (
    *HARNESSES,
    *(f"verbatim/{change}" for change in CHANGES),
    *(f"verbatim+ban/{change}" for change in CHANGES),
)
PREDICTORS = ("G", "copy", "sem", "p_repeat_before")
N_TASKS = 24


def write_rollouts(
    run: Path, arms: Sequence[str] = ARMS, models: Sequence[str] = ("smollm2-135m-q4",), seed: int = 11
) -> None:
    """Write rollout_rates.csv, rollout_survival.csv, predict.csv and predict_calibration.csv into `run`."""
    rng = np.random.default_rng(seed)
    tables: dict[str, list[tuple[object, ...]]] = {"rollout_rates": [], "rollout_survival": []}
    for model in models:
        for arm in arms:
            harness, _, change = arm.partition("/")
            names = (model, "toolshed", arm, harness, change or "none")
            again = {"drop": 0.85, "abstract": 0.2}.get(harness.removesuffix("+ban"), 0.5)
            again *= (0.1 if "+ban" in harness else 1) * (0.5 if change in CHANGES[:3] else 1)
            tables["rollout_rates"] += [(*names, *cells) for cells in _rates(again, rng)]
            tables["rollout_survival"] += [(*names, *cells) for cells in _survival(again, rng)]
    tables["predict"], tables["predict_calibration"] = _prediction(models, rng)
    for name, rows in tables.items():
        pd.DataFrame(rows, columns=list(TABLES[name])).to_csv(run / f"{name}.csv", index=False)


def _rates(again: float, rng: np.random.Generator) -> list[tuple[object, ...]]:
    means = {
        "parseable_share": 0.75 - 0.1 * again, "solved": 0.35 - 0.2 * again, "repeat_per_chance": 0.9 * again,
        "canonical_repeat_rate": again, "exact_repeat_rate": 0.8 * again, "stuck": 0.7 * again, "n_steps": 5.0,
    }  # fmt: skip
    rows: list[tuple[object, ...]] = []
    for metric, mean in means.items():
        value = float(np.clip(mean + rng.normal(0, 0.03), 0, 1)) if metric != "n_steps" else mean
        n = 17 if "repeat" in metric else N_TASKS
        low, high = max(0.0, value - 0.11), min(1.0, value + 0.12)
        rows.append((metric, value, low, high, n, n, N_TASKS - n, 17))
    return rows


def _survival(again: float, rng: np.random.Generator) -> list[tuple[object, ...]]:
    alive, at_risk, rows = 1.0, N_TASKS, []
    censored = 6
    for t in range(6):
        events = 0 if t == 0 else int(rng.binomial(at_risk, again * 0.6))
        alive *= 1 - events / at_risk if at_risk else 1
        arm = 0.0 if t == 0 else 0.12
        ends = (max(0.0, alive - arm), min(1.0, alive + arm)) if at_risk > 2 else (np.nan, np.nan)
        rows.append((t, at_risk, events, censored, alive, *ends))
        at_risk = max(at_risk - events - censored, 0)
        censored = min(1, at_risk)
    return rows


def _prediction(
    models: Sequence[str], rng: np.random.Generator
) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    areas: list[tuple[object, ...]] = []
    bins: list[tuple[object, ...]] = []
    for model in models:
        names = (model, "toolshed", "verbatim")
        for predictor, area in zip(PREDICTORS, (0.25, 0.78, 0.52, 0.83), strict=True):
            scores = (0.17, 0.06) if predictor == "p_repeat_before" else (np.nan, np.nan)
            spread = (area - 0.08, area + 0.07, 86, 41, 22, 0, 0, False)
            areas.append((*names, predictor, area, *spread, *scores))
        for place in range(8):
            predicted = (place + 0.5) / 8
            observed = float(np.clip(predicted**1.4 + rng.normal(0, 0.04), 0, 1))
            ends = (max(0.0, observed - 0.15), min(1.0, observed + 0.15))
            bins.append((*names, "p_repeat_before", place, predicted, observed, *ends, 11, 9))
    return areas, bins
