"""A run folder with made-up tables of a realistic shape (30 layers, 9 heads), to be drawn only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

N_LAYERS, N_HEADS, N_SELECTED = 30, 9, 16
ITEMS = {"a": 20.0, "b": 31.0, "c": 12.5, "d": 24.0}  # item → its Δcopy in nats


def write_run(run: Path, seed: int = 0) -> Path:
    """Write summary.csv, heads.csv, effects.csv and ablation.csv into `run`."""
    run.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    _summary().to_csv(run / "summary.csv", index=False)
    heads = _heads(rng)
    heads.to_csv(run / "heads.csv", index=False)
    _effects(heads, rng).to_csv(run / "effects.csv", index=False)
    _ablation(rng).to_csv(run / "ablation.csv", index=False)
    return run


def _summary() -> pd.DataFrame:
    rows = []
    for model, shift in (("smollm2-135m-q4", 0.0), ("qwen2.5-0.5b", -9.0)):
        for measure, mean in (
            ("G", -24.8 - shift),
            ("copy", 24.2 + shift),
            ("sem", 0.6),
            ("p_repeat_pre", 0.16),
        ):
            rows.append((model, "toolshed", measure, mean, mean - 2.1, mean + 1.9, 100, 52, 0.0001, 0.0002))
    columns = ["model", "env", "measure", "mean", "ci_lo", "ci_hi", "n", "n_clusters", "p", "p_holm"]
    return pd.DataFrame(rows, columns=columns)


def _heads(rng: np.random.Generator) -> pd.DataFrame:
    layer, head = np.divmod(np.arange(N_LAYERS * N_HEADS), N_HEADS)
    score = np.clip(rng.exponential(0.03, layer.size), 0, 1)
    strong = rng.choice(np.flatnonzero(layer > 7), N_SELECTED + 4, replace=False)
    score[strong] = rng.uniform(0.35, 0.97, strong.size)
    chosen = np.isin(np.arange(layer.size), np.argsort(-score)[:N_SELECTED])
    return pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "prefix_matching": score,
            "previous_token": rng.uniform(0, 0.5, layer.size),
            "duplicate_token": rng.uniform(0, 0.2, layer.size),
            "copying": rng.normal(0, 1, layer.size),
            "selected": chosen,
        }
    )


def _effects(heads: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for direction, strength in (("noise", 0.06), ("denoise", 0.28)):
        share = strength * heads["prefix_matching"] ** 2 * rng.uniform(0.2, 1.1, len(heads))
        share += rng.normal(0, 0.006, len(heads))
        for item, delta in ITEMS.items():
            own = share * rng.uniform(0.7, 1.3)
            for layer, head, value in zip(heads["layer"], heads["head"], own, strict=True):
                rows.append((item, direction, layer, head, value * delta, value))
    return pd.DataFrame(rows, columns=["item_id", "direction", "layer", "head", "effect_nats", "share"])


def _ablation(rng: np.random.Generator) -> pd.DataFrame:
    rows: list[tuple[str, str, int, str, float, float, float, int]] = []
    selected = {4: 23.1, 8: 13.5, 16: 3.2, 32: 2.0}
    for measure, sign in (("copy", 1.0), ("G", -1.0)):
        rows.append(("none", "none", 0, measure, sign * 22.9, sign * 22.9 - 2.2, sign * 22.9 + 2.4, 25))
        for k, value in selected.items():
            mean = sign * value + (0.0 if sign > 0 else 1.5)
            rows.append((f"top{k}", "selected", k, measure, mean, mean - 1.8, mean + 2.0, 25))
            for draw in range(5):
                mean = sign * (24 + 0.3 * k + float(rng.normal(0, 1.5)))
                rows.append((f"random_{draw}", "random", k, measure, mean, mean - 2, mean + 2, 25))
    return pd.DataFrame(rows, columns=["set", "kind", "k", "measure", "mean", "ci_lo", "ci_hi", "n"])
