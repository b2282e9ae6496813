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

from experiments.heads.arms import WHOLE, Arm, grouped
from experiments.run.durable import naming
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session
from mech.errors import InputError
from mech.interventions.intervention import NOTHING
from probes.items.item import Item
from probes.measures.ablation_arms import ARMS, ArmTable, arm_contrasts, by_arm, labelled
from probes.measures.breakdowns import breakdown, item_attributes, small_cells
from probes.measures.decompose import decomposition_table, equivalences
from probes.measures.manipulations import length_match, manipulations
from probes.measures.measures import measure
from probes.measures.profiles import profiles
from probes.prompts.conditions import AS_LONG_AS
from probes.scoring.score import ScoringQuery, build_queries, question, row_id, score_asks, scored
from probes.stats.bootstrap import summarise
from probes.stats.layout import UNABLATED


@dataclass(frozen=True)
class Tables:
    """What a run folder's score rows amount to; see `experiments.run.schema` for the columns."""

    measures: pd.DataFrame
    summary: pd.DataFrame
    decomposition: pd.DataFrame
    manipulations: pd.DataFrame
    arms: pd.DataFrame


def score_all(
    folder: RunFolder,
    session: Session,
    names_of: Callable[[Item], Sequence[str]],
    distractors_in: Sequence[str] | None,
    quiet: bool,
    arms: Sequence[Arm] = (WHOLE,),
) -> None:
    """Append the rows of every item under its conditions and every arm that are not in the folder yet.

    An item at a time, its arms in the groups of `experiments.heads.arms.grouped`: a group's rows are on the disk
    before the next is scored, and a group of which rows are missing is scored whole, so that rows do not depend on
    where a run was interrupted.

    Raises:
        InputError: a row of the folder answers another question than the one that has its id now.
    """
    before = {row["id"]: row for row in folder.rows("scores").to_dict("records")}
    for item in progress(session.items, len(session.items), folder.study, quiet):
        names = names_of(item)
        wanted = [
            row_id(item.item_id, name, one, arm.label)
            for arm in arms
            for name in names
            for one in scored(item, name, distractors_in)
        ]
        questions = build_queries(
            session.model, item, names, session.wording, None, NOTHING, distractors_in, end_of_turn=True
        )
        if any(one in before for one in wanted):
            for group in grouped(arms, questions):
                _refuse_other_questions(folder, before, group)
        if folder.done_ids("scores").issuperset(wanted):
            continue
        for group in grouped(arms, questions):
            done = folder.done_ids("scores")
            if not done.issuperset(scoring.id for scoring in group):
                rows = score_asks(session.engine, item, group)
                folder.append_all("scores", [row for row in rows if row["id"] not in done])


def _refuse_other_questions(
    folder: RunFolder, before: Mapping[str, Any], questions: Sequence[ScoringQuery]
) -> None:
    for scoring in questions:
        row = before.get(scoring.id)
        if row is not None and any(row[name] != value for name, value in question(scoring).items()):
            raise InputError(
                f"{folder.path} holds a row '{scoring.id}' of another prompt, action or ablation (other items, another "
                "wording or other heads under the same ids): choose another --out."
            )


def derive(folder: RunFolder, session: Session, delta: float, labels: Sequence[str] = ()) -> Tables:
    """Write every table that the rows of the folder allow, of every arm in it; `arms` where there are two or more.

    Args:
        folder: holds the score rows.
        session: its streams.
        delta: nats within which a change counts as none.
        labels: the order of the arms in `arms`; arms of other studies of the folder come behind them.
    """
    rows = session.clustered(labelled(folder.rows("scores")))
    with naming(folder.path / "scores.jsonl"):
        measures = measure(rows)
        present = list(dict.fromkeys([*labels, *rows["ablation"]]))
        rng_for = session.rng_for
        parts = {"sem": delta, "sem_pad": delta, "sem_succ": delta, "second_copy": delta}
        attributes = item_attributes(rows)

        def of_arms(table: ArmTable) -> pd.DataFrame:
            return by_arm(measures, rng_for, table, present)

        tables = {
            "measures": measures,
            "summary": of_arms(summarise),
            "decomposition": of_arms(decomposition_table),
            "equivalence": of_arms(lambda some, rng: equivalences(some, parts, rng)),
            "breakdown": of_arms(lambda some, rng: breakdown(some, attributes, rng)),
            "small_cells": of_arms(lambda some, _: small_cells(some, attributes)),
            "manipulations": of_arms(lambda some, rng: manipulations(some, rng, delta).assign(bound=delta)),
        }
        if set(present) - {UNABLATED}:
            tables["arms"] = arm_contrasts(measures, present, rng_for)
        if {"pre", "neut", "fail"} <= set(rows["condition"]):
            tables["profiles"] = by_arm(rows, rng_for, profiles, present)
        if set(AS_LONG_AS) & set(rows["condition"]):
            tables["length_match"] = length_match(rows[rows["ablation"] == UNABLATED])
    for name, table in tables.items():
        folder.write_table(name, table)
    return Tables(
        measures,
        tables["summary"],
        tables["decomposition"],
        tables["manipulations"],
        tables.get("arms", pd.DataFrame(columns=list(ARMS))),
    )
