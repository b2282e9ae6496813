"""`backfire scaling`: the decomposition on many models, one folder each, then one table and G against size.

RUN/MODEL/ is a whole decomposition run, resumed like any other; RUN/scaling.csv, scaling_fit.csv and summary.csv
put them together, and arms.csv where --ablate compares arms. A named model that is done is not loaded again; models may
be added to a run.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd

from experiments.heads.ablation import AblationOptions
from experiments.heads.arms import parse_arms
from experiments.measure import decomposition as decompose_items
from experiments.run.progress import progress
from experiments.run.run_folder import config_hash, read_frame, read_run, recorded
from experiments.run.session import open_folder, require_out
from experiments.run.study import (
    DeltaOptions,
    Flag,
    ItemOptions,
    LoadOptions,
    Report,
    RunOptions,
    Study,
    arguments,
    keyed,
)
from experiments.run.tables import frame_text
from mech.errors import InputError
from probes.measures.ablation_arms import by_arm, labelled
from probes.measures.scaling import fit_scaling, scaling_table
from probes.stats.families import corrected
from probes.stats.summaries import check_summary

SHOWN = ("G", "copy", "sem", "p_repeat_fail")


@dataclass(frozen=True, kw_only=True)
class ScalingConfig(DeltaOptions, AblationOptions, RunOptions, ItemOptions, LoadOptions):
    """What `backfire scaling` is given: what `decomposition` is, and several models."""

    models: Annotated[
        str,
        Flag(
            "names, folders, .gguf files or hub ids, with commas between; more may be added later",
            presentation=True,
        ),
    ] = "smollm2-135m-q4"


def run(config: ScalingConfig) -> Report:
    """Measure each model that is not measured yet, then write the tables over all of them."""
    names = [name.strip() for name in config.models.split(",") if name.strip()]
    folders = folder_names(names)
    out = require_out(config)
    parse_arms(config)  # a mistake there costs nothing
    with open_folder(STUDY, config) as folder:
        identities: dict[str, dict[str, Any]] = {}
        for name in progress(names, len(names), "models", config.quiet):
            place = out / folders[name]
            one = arguments(decompose_items.STUDY, {**keyed(config), "model": name, "out": place})
            # The files of a path may have changed since; a name means the same weights, or is refused.
            if Path(name).exists() or not is_done(place, decompose_items.STUDY.settings(one)):
                decompose_items.STUDY.run(one)
                gc.collect()  # the next model is loaded when this one is gone
            entry = read_run(place)["studies"].get("decomposition", {})
            for key, kind in (("name", str), ("n_parameters", int)):
                recorded(place, entry, f"provenance.model.{key}", kind)
            identities[name] = entry["provenance"]["model"]
        summaries = [read_summary(out / folders[name]) for name in names]
        parameters = {one["name"]: float(one["n_parameters"]) for one in identities.values()}
        summary = labelled(pd.concat(summaries, ignore_index=True))
        table = by_arm(summary, no_streams, lambda some, _: scaling_table([some], parameters))
        fits = by_arm(table, no_streams, lambda some, _: fit_scaling(some))
        folder.write_table("scaling", table)
        folder.write_table("scaling_fit", fits)
        folder.write_table(
            "summary", by_arm(summary, no_streams, lambda some, _: corrected(some, "headline"))
        )
        if any(has_arms(out / folders[name]) for name in names):
            folder.write_table("arms", arms_of_models([out / folders[name] for name in names]))
        folder.finish({"models": identities})
    shown = table[table["measure"].isin(SHOWN)].pivot_table(
        index=["env", "ablation", "n_parameters", "model"], columns="measure", values="mean", sort=False
    )
    return Report(f"{frame_text(shown.reset_index())}\n\n{frame_text(fits)}\nwritten to {out}")


def no_streams(name: str) -> np.random.Generator:
    """For tables that draw nothing; RuntimeError where one does."""
    raise RuntimeError(f"A table of scaling asked for random numbers: {name}.")


def has_arms(place: Path) -> bool:
    """Whether a model's run compares ablation arms."""
    return (place / "arms.csv").is_file()


def arms_of_models(places: Sequence[Path]) -> pd.DataFrame:
    """arms.csv of every model that has one, one below the other: the families are of one model each."""
    return pd.concat(
        [read_frame(place / "arms.csv") for place in places if has_arms(place)], ignore_index=True
    )


def folder_names(names: list[str]) -> dict[str, str]:
    """Model → its folder in the run.

    Raises:
        InputError: no model is named, or one twice, or two would share a folder.
    """
    if not names:
        raise InputError("Name at least one model with --models A,B,C.")
    found = {name: re.sub(r"[^A-Za-z0-9._-]+", "-", name.rstrip("/").rpartition("/")[2]) for name in names}
    if {".", "..", ""} & set(found.values()):
        raise InputError("A model of --models has no name of its own: write its folder's name, not . or ..")
    if len(set(names)) < len(names) or len(set(found.values())) < len(names):
        raise InputError("A model is named twice in --models (or two share the last part of their names).")
    return found


def is_done(place: Path, settings: Mapping[str, Any]) -> bool:
    """Whether the folder holds a finished decomposition run with these settings."""
    if not (place / "run.json").is_file():
        return False
    found = read_run(place)["studies"].get("decomposition", {})
    if not found.get("done"):
        return False
    # What the arms resolved to in this model (heads, hashes) follows from the settings and the model's own files.
    asked = {name: value for name, value in found["config"].items() if name != "ablations"}
    return config_hash(asked) == config_hash(settings)


def read_summary(place: Path) -> pd.DataFrame:
    """summary.csv of one model's run; InputError where it is gone."""
    if not (place / "summary.csv").is_file():
        raise InputError(f"{place / 'summary.csv'} is gone: remove {place} and run the same command again.")
    table = read_frame(place / "summary.csv")
    more = [name for name in ("ablation",) if name in table.columns]
    check_summary(table, str(place / "summary.csv"), more)
    return table


STUDY = Study(
    "scaling",
    "backfire scaling --models smollm2-135m,smollm2-360m,qwen2.5-0.5b --env all --limit 48 --out runs/scaling",
    ScalingConfig,
    run,
)
