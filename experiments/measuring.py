"""What every study of decision points does: score what is not scored yet, then derive the tables that the rows allow.

Studies of one run folder share scores.jsonl: a condition that one study scored, another finds there. A row is taken
for done only if it answers the very question asked now, prompt and action, so that two wordings or two item files
under equal ids cannot be mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.durable import naming
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session
from mech.errors import InputError
from mech.interventions import NOTHING, Intervention
from probes.breakdowns import breakdown, item_attributes, small_cells
from probes.conditions import AS_LONG_AS
from probes.decompose import decompose, equivalences
from probes.items import Item
from probes.lengths import length_match
from probes.manipulations import manipulations
from probes.measures import measure
from probes.profiles import profiles
from probes.scoring import Ask, asks, question, score_item, scored
from probes.stats import summarise


@dataclass(frozen=True)
class Tables:
    """What a run folder's score rows amount to; see `experiments.schema` for the columns."""

    measures: pd.DataFrame
    summary: pd.DataFrame
    decomposition: pd.DataFrame
    manipulations: pd.DataFrame


def score_all(
    folder: RunFolder,
    session: Session,
    names_of: Callable[[Item], Sequence[str]],
    distractors_in: Sequence[str] | None,
    quiet: bool,
    intervention: Intervention = NOTHING,
) -> None:
    """Append the rows of every item under its conditions that are not in the folder yet, an item at a time.

    Raises:
        InputError: a row of the folder answers another question than the one that has its id now.
    """
    before = {row["id"]: row for row in folder.rows("scores").to_dict("records")}
    for item in progress(session.items, len(session.items), folder.study, quiet):
        names = names_of(item)
        wanted = [
            f"{item.item_id}|{name}|{one}" for name in names for one in scored(item, name, distractors_in)
        ]
        if any(row_id in before for row_id in wanted):
            now = asks(
                session.model,
                item,
                names,
                session.wording,
                None,
                intervention,
                distractors_in,
                end_of_turn=True,
            )
            _refuse_other_questions(folder, before, now)
        done = folder.done_ids("scores")
        if not done.issuperset(wanted):
            rows = score_item(
                session.engine, item, names, session.wording, None, intervention, distractors_in
            )
            folder.append_all("scores", [row for row in rows if row["id"] not in done])


def _refuse_other_questions(folder: RunFolder, before: Mapping[str, Any], questions: Sequence[Ask]) -> None:
    for ask in questions:
        row = before.get(ask.id)
        if row is not None and any(row[name] != value for name, value in question(ask).items()):
            raise InputError(
                f"{folder.path} holds a row '{ask.id}' of another prompt, action or ablation (other items, another "
                "wording or other heads under the same ids): choose another --out."
            )


def derive(folder: RunFolder, session: Session, delta: float) -> Tables:
    """Write every table that the rows of the folder allow; `delta` (nats) is what counts as unchanged."""
    rows = session.clustered(folder.rows("scores"))
    with naming(folder.path / "scores.jsonl"):
        measures = measure(rows)
        rng_for = session.rng_for
        parts = {"sem": delta, "sem_pad": delta, "sem_succ": delta, "second_copy": delta}
        tables = {
            "measures": measures,
            "summary": summarise(measures, rng_for),
            "decomposition": decompose(measures, rng_for),
            "equivalence": equivalences(measures, parts, rng_for),
            "breakdown": breakdown(measures, item_attributes(rows), rng_for),
            "small_cells": small_cells(measures, item_attributes(rows)),
            "manipulations": manipulations(measures, rng_for, delta).assign(bound=delta),
        }
        if {"pre", "neut", "fail"} <= set(rows["condition"]):
            tables["profiles"] = profiles(rows, rng_for)
        if set(AS_LONG_AS) & set(rows["condition"]):
            tables["length_match"] = length_match(rows)
    for name, table in tables.items():
        folder.write_table(name, table)
    return Tables(measures, tables["summary"], tables["decomposition"], tables["manipulations"])
