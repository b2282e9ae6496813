"""Made-up tables of patching in depth (sites, layers, direct effects, the path), to be drawn only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from experiments.run.schema import TABLES

N_LAYERS, N_HEADS, N_KV = 30, 9, 3
PAIR = {"from": "pre", "to": "neut"}
MATCHED = {"from": "neut_matched", "to": "neut"}
PANELS = (("candidate", MATCHED, ("q", "pattern", "z")), ("record", MATCHED, ("q", "k", "v", "z")))


def write_patching(run: Path, seed: int = 5) -> None:
    """Write patch.csv, patch_redundancy.csv, layers.csv, direct.csv and path.csv into `run`."""
    rng = np.random.default_rng(seed)
    tables = {
        "patch": _shares(rng),
        "patch_redundancy": _redundancy(rng),
        "layers": _layers(rng),
        "direct": _direct(rng),
        "path": _path(rng),
    }
    for name, table in tables.items():
        shares = [column for column in table.columns if column.endswith(("share", "_lo", "_hi"))]
        margin = table.assign(metric="margin", **{column: 0.8 * table[column] for column in shares})
        both = pd.concat([table.assign(metric="logprob"), margin])
        both[list(TABLES[name])].to_csv(run / f"{name}.csv", index=False)


def _shares(rng: np.random.Generator) -> pd.DataFrame:
    layer, kv = np.divmod(np.arange(N_LAYERS * N_KV), N_KV)
    parts = []
    for site in ("k", "v"):
        share = rng.normal(0, 0.02, layer.size) + 0.2 * (rng.uniform(size=layer.size) > 0.93)
        table = pd.DataFrame({"layer": layer, "kv_head": kv, "share": share})
        parts.append(table.assign(site=site, at="record", direction="noise", **MATCHED))
    table = pd.concat(parts).assign(
        head=np.nan, effect_nats=1.0, n=4, n_clusters=4, flagged=False, screen="all"
    )
    return table.assign(ci_lo=table["share"] - 0.01, ci_hi=table["share"] + 0.01)


def _redundancy(rng: np.random.Generator) -> pd.DataFrame:
    rows = [
        {"at": at, **pair, "site": site, "set": f"top{k}", "joint_share": share, "direction": direction}
        for at, pair, sites in PANELS
        for direction in ("denoise", "noise")
        for site in sites
        for k, share in zip((8, 16, 32), np.sort(rng.uniform(-0.05, 0.9, 3)), strict=True)
    ]
    table = pd.DataFrame(rows)
    nats = {name: 1.0 for name in ("joint_nats", "singles_nats", "redundancy_nats", "ci_lo", "ci_hi")}
    ends = {"share_lo": table["joint_share"] - 0.06, "share_hi": table["joint_share"] + 0.07}
    return table.assign(**nats, **ends, n=4, n_clusters=4)


def _layers(rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for direction in ("denoise", "noise"):
        for layer in range(N_LAYERS + 1):
            arrived = 1 / (1 + np.exp(-(layer - 21) / 2)) if 0 < layer < N_LAYERS else float(layer > 0)
            rows.append(("resid_pre", direction, layer, arrived))
            if layer < N_LAYERS:
                rows.append(("mlp_out", direction, layer, rng.normal(0.02, 0.03)))
    table = pd.DataFrame(rows, columns=["site", "direction", "layer", "share"])
    ends = {"ci_lo": table["share"] - 0.05, "ci_hi": table["share"] + 0.05}
    return table.assign(**ends, effect_nats=1.0, n=4, n_clusters=4, flagged=False, **PAIR)


def _direct(rng: np.random.Generator) -> pd.DataFrame:
    layer, head = np.divmod(np.arange(N_LAYERS * N_HEADS), N_HEADS)
    parts = []
    for direction in ("denoise", "noise"):
        direct = rng.normal(0, 0.008, layer.size) + 0.1 * (rng.uniform(size=layer.size) > 0.96)
        table = pd.DataFrame({"direction": direction, "layer": layer, "head": head, "direct_share": direct})
        table["total_share"] = direct * rng.uniform(0.4, 1.8, layer.size) + rng.normal(0, 0.01, layer.size)
        parts.append(table)
    table = pd.concat(parts, ignore_index=True)
    table["indirect_share"] = table["total_share"] - table["direct_share"]
    for name in ("total", "direct", "indirect"):
        share = table[f"{name}_share"]
        table = table.assign(
            **{f"{name}_lo": share - 0.01, f"{name}_hi": share + 0.01, f"{name}_nats": share}
        )
    role = np.where(table["direct_lo"] > 0, "copying", np.where(table["direct_hi"] < 0, "suppression", ""))
    p = np.where(role == "", 0.5, 1e-5)
    cells = {
        "role": role,
        "n": 16,
        "n_clusters": 16,
        "flagged": False,
        "p": p,
        "p_holm": np.minimum(300 * p, 1.0),
        "family_size": 270,
    }
    return table.assign(kind="head", **cells, **PAIR)


def _path(rng: np.random.Generator) -> pd.DataFrame:
    rows = [("previous-token", "selected", 8, 0.31), ("all", "selected", 270, 0.62)]
    rows += [(f"random{draw}", "random", 8, float(rng.normal(0.01, 0.02))) for draw in range(20)]
    table = pd.DataFrame(rows, columns=["set", "kind", "k", "share"])
    spread = table.loc[table["kind"] == "random", "share"]
    beaten = {"random_lo": spread.min(), "random_hi": spread.max(), "n_controls": 20, "p": 1 / 21}
    for name, value in beaten.items():
        table[name] = np.where(table["set"] == "previous-token", value, np.nan)
    table = table.assign(p_holm=table["p"], family_size=1)
    ends = {"ci_lo": table["share"] - 0.05, "ci_hi": table["share"] + 0.05}
    return table.assign(**ends, effect_nats=1.0, n=4, n_clusters=4, flagged=False, how="mean", **PAIR)
