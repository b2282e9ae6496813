"""`backfire compare RUN RUN …` of folders that `rollout` wrote: what a change does, by how many heads it is made to.

RUN/rollout.csv of each, with the size of its selected set from run.json → compare_doses.csv. The runs must share their
first arm, rollout by rollout: what differs between them is then the number of heads and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from experiments.rollout.text import contrast_text
from experiments.run.durable import naming, replace
from experiments.run.frames import csv_text, read_frame
from experiments.run.run_json import read_run
from experiments.run.schema import TABLES
from experiments.run.seeds import stream
from experiments.run.study import Report
from mech.errors import InputError
from mech.heads import HeadSet
from probes.rollouts.rates import contrasts, is_random, metrics

_DOSE = re.compile(r"(.+) of (\d+)")


def is_rollout(run: Path) -> bool:
    """Whether a folder holds the table of a rollout study."""
    return (run / "rollout.csv").is_file()


def compare_doses(runs: Sequence[Path], out: Path | None) -> Report:
    """Write the arms of all runs, each paired with the arm they share, and say what each does.

    Args:
        runs: folders of `rollout`, with or without several sizes among them.
        out: the csv file; by default compare_doses.csv in the first run.

    Raises:
        InputError: a folder lacks a table, two have the same arm with as many heads, or their first arms differ.
    """
    parts, baseline = [], None
    for run in runs:
        rollouts = _read(run)
        first = str(rollouts["arm"].iloc[0])
        shared = rollouts[rollouts["arm"] == first].reset_index(drop=True)
        if baseline is None:
            baseline = shared
            parts.append(shared)
        elif not _same(baseline, shared):
            raise InputError(
                f"{run} and {runs[0]} differ in their first arm ({first}): other tasks, settings or weights."
            )
        parts.append(_by_size(rollouts[rollouts["arm"] != first], _size(run)))
    assert baseline is not None  # the command asks for one run at least
    together = pd.concat(parts, ignore_index=True)
    first = str(baseline["arm"].iloc[0])
    seed = int(read_run(runs[0])["studies"]["rollout"]["config"].get("seed", 0))
    with naming(runs[0] / "rollout.csv"):
        table = contrasts(together, lambda name: stream(seed, name), first)
    doses = _with_size(table, together)
    target = out or runs[0] / "compare_doses.csv"
    replace(target, csv_text(doses))
    return Report(f"{contrast_text(table)}\nwritten to {target}")


def _read(run: Path) -> pd.DataFrame:
    """The rollouts of a run without those of random heads."""
    path = run / "rollout.csv"
    table = read_frame(path)
    lacking = [name for name in TABLES["rollout"] if name not in table.columns]
    if lacking or table.empty:
        raise InputError(f"{path} is no table of rollouts: it lacks {', '.join(lacking) or 'rows'}.")
    return table[~table["change"].map(is_random)].reset_index(drop=True)


def _size(run: Path) -> int:
    """How many heads the run selected; 0 where its changes need none."""
    chosen = read_run(run)["studies"]["rollout"]["provenance"].get("sets", {}).get("selected")
    return len(HeadSet.parse(chosen)) if chosen else 0


def _by_size(rollouts: pd.DataFrame, size: int) -> pd.DataFrame:
    """Arms whose change is made to the selected heads, named with how many those are."""
    sized = rollouts["change"].isin(["knockout", "ablate"])
    label = rollouts["change"].where(~sized, rollouts["change"] + f" of {size}")
    plain = rollouts["change"] == "none"
    return rollouts.assign(
        change=label, arm=rollouts["harness"].where(plain, rollouts["harness"] + "/" + label)
    )


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    keys = ["model", "env", "task_id", "sample"]
    values = [*keys, *metrics(one)]
    if metrics(one) != metrics(other) or len(one) != len(other):
        return False
    left, right = (table[values].sort_values(keys, ignore_index=True) for table in (one, other))
    return left.equals(right)


def _with_size(table: pd.DataFrame, rollouts: pd.DataFrame) -> pd.DataFrame:
    """The contrasts with harness, change and k in front of their numbers; arms of one change by their size."""
    named = rollouts.drop_duplicates("arm").set_index("arm")[["harness", "change"]]
    sizes = named["change"].map(lambda change: _DOSE.fullmatch(change))
    joined = table.assign(
        harness=table["arm"].map(named["harness"]),
        change=table["arm"].map(sizes.map(lambda found: found[1] if found else None).fillna(named["change"])),
        k=table["arm"].map(sizes.map(lambda found: int(found[2]) if found else None)).astype("Int64"),
    )
    order = ["model", "env", "metric", "harness", "change", "k"]
    return joined[list(TABLES["compare_doses"])].sort_values(order[2:], kind="stable", ignore_index=True)
