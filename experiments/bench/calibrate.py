"""`backfire calibrate`: the error of the tests and the coverage of the intervals, where the truth is known.

Simulated data with few clusters of uneven sizes, and (with --from) whole clusters drawn from a run's measures.csv, go
through the very functions that make the tables: `probes.stats.bootstrap`. calibrate.csv; docs/statistics.md shows one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd

from experiments.run.progress import progress
from experiments.run.run_folder import read_frame
from experiments.run.seeds import stream
from experiments.run.session import open_folder
from experiments.run.study import Flag, OutOptions, Report, SeedOptions, Study, positive, whole_numbers
from experiments.run.tables import frame_text
from mech.errors import InputError
from probes.stats.bootstrap import MIN_CLUSTERS
from probes.stats.coverage import calibrate, populations, run_populations


@dataclass(frozen=True, kw_only=True)
class CalibrateConfig(OutOptions, SeedOptions):
    """What `backfire calibrate` is given."""

    clusters: Annotated[tuple[int, ...], Flag("numbers of clusters, with commas between", whole_numbers)] = (
        6,
        8,
        13,
        24,
        48,
    )
    simulations: Annotated[
        int, Flag("simulations of each line; medians have a quarter of them", positive)
    ] = 4000
    draws: Annotated[int, Flag("bootstrap draws of each interval", positive)] = 2000
    from_: Annotated[
        Path | None,
        Flag(
            "run folder whose measures.csv is drawn from too, whole clusters with replacement",
            presentation=True,
        ),
    ] = None


def run(config: CalibrateConfig) -> Report:
    """Simulate every population with every number of clusters; the table and its worst lines."""
    if min(config.clusters) < MIN_CLUSTERS:
        raise InputError(f"Fewer than {MIN_CLUSTERS} clusters have neither test nor interval: ask for more.")
    chosen = populations()
    derived = {}
    if config.from_ is not None:
        chosen += run_populations(read_measures(config.from_))
        derived["from_sha256"] = hashlib.sha256((config.from_ / "measures.csv").read_bytes()).hexdigest()
    with open_folder(STUDY, config, derived=derived) as folder:
        cells = [(one, n_clusters) for one in chosen for n_clusters in config.clusters]
        lines = [
            calibrate(
                one,
                n_clusters,
                config.simulations,
                config.draws,
                lambda name: stream(config.seed, f"calibrate/{name}"),
            )
            for one, n_clusters in progress(cells, len(cells), "calibrate", config.quiet)
        ]
        table = pd.DataFrame(lines)
        folder.write_table("calibrate", table)
        folder.finish({"n_lines": len(table)})
    return Report(f"{text(table)}\nwritten to {config.out}")


def read_measures(source: Path) -> pd.DataFrame:
    """measures.csv of a run.

    Raises:
        InputError: it is not there, or is of several models or environments.
    """
    path = source / "measures.csv"
    if not path.is_file():
        raise InputError(f"There is no {path}: name the folder of a finished `backfire probe` run.")
    measures = read_frame(path)
    if len(measures[["model", "env"]].drop_duplicates()) != 1:
        raise InputError(f"{path} must be of one model and one environment.")
    return measures


def text(table: pd.DataFrame) -> str:
    """The table, and what the worst line of each statistic is."""
    shown = table.drop(columns=["below", "above"])
    lines = [frame_text(shown), ""]
    for statistic, part in table.groupby("statistic", sort=False):
        low = part.loc[part["coverage"].idxmin()]
        sentence = (
            f"{statistic}: coverage at least {low['coverage']:.3f} ({low['population']}, {low['n_clusters']})"
        )
        if part["error"].notna().any():
            high = part.loc[part["error"].idxmax()]
            sentence += f"; error of the test at most {high['error']:.3f} ({high['population']}, {high['n_clusters']})"
        lines.append(sentence)
    return "\n".join(lines)


STUDY = Study(
    "calibrate",
    "backfire calibrate --simulations 4000 --from runs/first --out runs/calibrate",
    CalibrateConfig,
    run,
)
