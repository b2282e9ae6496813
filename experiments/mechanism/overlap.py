"""`backfire overlap`: has Δsem heads of its own, and are they Δcopy's? Two patched pairs of conditions, head by head.

Reads what `backfire patch` kept of all heads in the run folder (--from pre --to neut there, and --from neut --to fail
there or in --with), on the same items; writes overlap.csv (`probes.effects.overlap`): rank agreement, common heads,
and how far each ranking agrees with itself, by effects on each metric; --metric says which is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from experiments.mechanism.pairs import of_metric
from experiments.mechanism.patch import STUDY as PATCH
from experiments.mechanism.patch import entry_name
from experiments.mechanism.patch_tables import z_effects
from experiments.run.flags import read_config
from experiments.run.item_pools import read_pool
from experiments.run.run_folder import read_run, recorded, settings_file
from experiments.run.seeds import stream
from experiments.run.session import by_cluster, open_folder, require_out
from experiments.run.study import (
    ClusterOptions,
    Flag,
    FolderOptions,
    MetricOptions,
    Report,
    SeedOptions,
    Study,
    arguments,
)
from experiments.run.tables import frame_text
from mech.errors import InputError
from probes.effects.overlap import overlap
from probes.scoring.contrast import METRICS
from probes.stats.bootstrap import RngFactory

NAMES = {("pre", "neut"): "copy", ("neut", "fail"): "sem", ("pre", "fail"): "total"}


def pair(text: str) -> tuple[str, str]:
    """`pre,neut` as (from, to)."""
    parts = tuple(part.strip() for part in text.split(","))
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise ValueError(f"'{text}' is not two conditions: write pre,neut")
    return parts[0], parts[1]


@dataclass(frozen=True, kw_only=True)
class OverlapConfig(ClusterOptions, MetricOptions, FolderOptions, SeedOptions):
    """What `backfire overlap` is given."""

    one: Annotated[tuple[str, str], Flag("the one difference: its conditions, FROM,TO", pair)] = (
        "pre",
        "neut",
    )
    other: Annotated[tuple[str, str], Flag("the other difference", pair)] = ("neut", "fail")
    with_: Annotated[
        Path | None,
        Flag("run folder in which the other difference was patched, if not --out", presentation=True),
    ] = None


SAME = (
    "env",
    "templates",
    "problems",
    "items",
    "wording",
    "seed",
)  # decide what the patched items' transcripts are


def run(config: OverlapConfig) -> Report:
    """Compare the head effects of two differences that were patched before.

    Raises:
        InputError: a difference was not patched, or not on the same items.
    """
    out = require_out(config)
    patched = ((out, config.one), (config.with_ or out, config.other))
    one, other = (patched_entry(*each) for each in patched)
    require_same(one, other)
    effects = [clustered(*each, config.cluster) for each in patched]
    names = NAMES.get(config.one, "-".join(config.one)), NAMES.get(config.other, "-".join(config.other))
    hashes = {"patched": [one["config_hash"], other["config_hash"]]}
    with open_folder(STUDY, config, one["provenance"]["model"], derived=hashes) as folder:
        table = compared(effects[0], effects[1], names, lambda name: stream(config.seed, name))
        folder.write_table("overlap", table)
        folder.finish({})
    shown = of_metric(table, config.metric).drop(columns=["effects_nats", "delta_nats"])
    return Report(f"effects on {config.metric}:\n{frame_text(shown)}\nwritten to {out}")


def compared(
    one: pd.DataFrame, other: pd.DataFrame, names: tuple[str, str], rng_for: RngFactory
) -> pd.DataFrame:
    """`probes.effects.overlap` of every summed metric that both differences have effects on."""
    tables = []
    for metric in METRICS:
        effects = [rows[rows["metric"] == metric].drop(columns="metric") for rows in (one, other)]
        if any(len(rows) for rows in effects):
            table = overlap(effects[0], effects[1], names, rng_for)
            tables.append(table.assign(metric=metric)[["metric", *table.columns]])
    return pd.concat(tables, ignore_index=True)


def clustered(path: Path, conditions: tuple[str, str], level: str) -> pd.DataFrame:
    """`z_effects` of a patch with the cluster of each item in `task_id`; items are made again as the patch made them.

    Raises:
        InputError: as `z_effects`; the patch's settings or items are no longer at hand, or an item file has changed.
    """
    effects = z_effects(path, *conditions)
    if level == "task":
        return effects
    file = settings_file(path, entry_name(("z", "candidate", *conditions)))
    config = arguments(PATCH, read_config(file, PATCH.options))
    before, now = patched_entry(path, conditions)["config"], PATCH.settings(config)
    changed = [name for name in SAME if before.get(name) != now[name]]
    if changed:
        raise InputError(f"{file} names other {', '.join(changed)} than were patched: leave out --cluster.")
    return by_cluster(effects, read_pool(config), level)


def patched_entry(path: Path, conditions: tuple[str, str]) -> dict[str, Any]:
    """What run.json says of a finished patch of z at the action positions for this difference.

    Raises:
        InputError: there is none, or it has not come to its end.
    """
    entry = read_run(path)["studies"].get(entry_name(("z", "candidate", *conditions)))
    if entry is None:
        raise InputError(
            f"The patches in {path} are not from {conditions[0]} to {conditions[1]}: run `backfire patch` so first."
        )
    recorded(path, entry, "provenance.model.sha256", str)
    if not entry["done"]:
        raise InputError(f"The patches from {conditions[0]} to {conditions[1]} in {path} are not finished.")
    found: dict[str, Any] = entry
    return found


def require_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Raise InputError where two patches are of other weights, or of items that may not be the same."""
    if one["provenance"]["model"]["sha256"] != other["provenance"]["model"]["sha256"]:
        raise InputError(
            "The two differences were patched in models of different weights: nothing to compare."
        )
    for name in SAME:
        here, there = one["config"].get(name), other["config"].get(name)
        if here != there:
            raise InputError(f"The two differences were patched under another {name} ({here} and {there}).")


STUDY = Study(
    "overlap",
    "backfire overlap --out runs/first --with runs/first-sem",
    OverlapConfig,
    run,
)
