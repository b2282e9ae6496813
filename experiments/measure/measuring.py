"""What every study of decision points does: score what is not scored yet, then derive the tables that the rows allow.

Studies of one run folder share scores.jsonl: a condition that one study scored, another finds there. A row is taken
for done only if it answers the very question asked now, prompt and action, so that two wordings or two item files
under equal ids cannot be mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd

from experiments.heads.ablation import AblationOptions
from experiments.heads.arms import Arms, Group, ablation_arms, grouped, parse_arms
from experiments.run.durable import naming
from experiments.run.left_out import LeftOut, conditions_of, noted, of_candidates, of_conditions
from experiments.run.run_folder import RunFolder, in_schema
from experiments.run.run_study import ItemContext, ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import open_session
from experiments.run.study import DeltaOptions, SessionOptions
from probes.items.item import Item
from probes.measures.ablation_arms import ArmTable, arm_contrasts, by_arm, labelled
from probes.measures.breakdowns import breakdown, item_attributes, small_cells
from probes.measures.decompose import decomposition_table, equivalences
from probes.measures.manipulations import length_match, manipulations
from probes.measures.measures import measure
from probes.measures.profiles import profiles
from probes.prompts.conditions import AS_LONG_AS
from probes.scoring.score import DISTRACTORS_IN, ScoringQuery, build_queries, question, score_queries, scored
from probes.stats.bootstrap import summarise
from probes.stats.layout import UNABLATED


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(DeltaOptions, AblationOptions, SessionOptions):
    """What every study of scores is given."""


@dataclass(frozen=True, kw_only=True)
class Scoring(ItemContext):
    """The context of a study of scores.

    Attributes:
        names_of: the conditions of an item.
        distractors_in: the conditions under which the distractors are scored; None: all.
        arms: the ablation arms, the unablated model first.
        delta: nats within which a change counts as none.
    """

    names_of: Callable[[Item], Sequence[str]]
    distractors_in: Sequence[str] | None
    arms: Arms
    delta: float

    @property
    def learned(self) -> Mapping[str, MutableMapping[str, Any]]:
        """The constants that were fitted (how=optimal), by arm."""
        return {arm.label: arm.instead.fits for arm in self.arms.arms if arm.instead}


@dataclass(frozen=True)
class ScoringUnit(ItemUnit):
    """The questions of an item that are scored together."""

    group: Group


def open_scoring(
    config: ScoringOptions,
    names: Sequence[str],
    distractors_in: Sequence[str] | None = DISTRACTORS_IN,
    four: bool = True,
    further: Callable[[Sequence[Item]], Sequence[LeftOut]] = lambda _: (),
) -> Scoring:
    """The session and the arms; the conditions and measures that items cannot have are noted.

    Args:
        config: of the study.
        names: the conditions asked for.
        distractors_in: the conditions under which the distractors are scored; None: all.
        four: whether the choice among four candidates is noted where items have fewer.
        further: what else items cannot have.

    Raises:
        InputError: as `open_session` and `ablation_arms`; a malformed arm before anything is loaded.
    """
    parse_arms(config)
    session = open_session(config)
    arms = ablation_arms(session, config)
    items = session.items
    left_out = [*further(items), *of_conditions(items, names), *of_candidates(items, four)]
    return Scoring(
        noted(session, left_out),
        recorded=arms.about,
        decided=arms.derived,
        names_of=lambda item: conditions_of(item, names),
        distractors_in=distractors_in,
        arms=arms,
        delta=config.delta,
    )


def scoring_units(context: Scoring) -> list[ScoringUnit]:
    """An item at a time, its arms in groups: a group's rows are on the disk before the next is scored."""
    return [
        ScoringUnit(group.row_ids(item.item_id), item, group)
        for item in context.session.items
        for group in grouped(
            context.arms.arms,
            [
                (name, candidate)
                for name in context.names_of(item)
                for candidate in scored(item, name, context.distractors_in)
            ],
        )
    ]


def score_unit(context: Scoring, unit: ScoringUnit) -> list[Row]:
    """The rows of a group, scored together, so that they do not depend on where a run was interrupted."""
    return score_queries(context.session.engine, unit.item, unit_queries(context, unit))


def expected_questions(context: Scoring, unit: ScoringUnit) -> dict[str, Row]:
    """What rows of the group have to answer."""
    return {scoring.id: question(scoring) for scoring in unit_queries(context, unit)}


def unit_queries(context: Scoring, unit: ScoringUnit) -> list[ScoringQuery]:
    """The questions of a group."""
    session, keys = context.session, set(unit.group.keys)
    names = list(dict.fromkeys(name for name, _ in unit.group.keys))
    questions = build_queries(
        session.model,
        unit.item,
        names,
        session.wording,
        distractors_in=context.distractors_in,
        end_of_turn=True,
    )
    return unit.group.build_queries([one for one in questions if (one.condition, one.candidate) in keys])


def score_tables(context: Scoring, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """Every table that the rows of the folder allow, of every arm in it; `arms` where there are two or more.

    Arms of other studies of the folder come after the context's own.
    """
    session, delta = context.session, context.delta
    rows = session.clustered(labelled(folder.rows("scores")))
    with naming(folder.path / "scores.jsonl"):
        measures = measure(rows)
        present = list(dict.fromkeys([*context.arms.labels, *rows["ablation"]]))
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
    return tables


def arms_of(tables: Tables) -> pd.DataFrame:
    """The table `arms`; empty where there is the unablated model only."""
    return tables.get("arms", in_schema("arms", pd.DataFrame()))


scoring_study: partial[ItemStudy[Any, Any, ScoringUnit]] = partial(
    ItemStudy,
    rows="scores",
    tables=score_tables,
    expected=expected_questions,
    notes=lambda context, _: context.arms.notes,
    extra=lambda context, _: context.arms.fitted,
)
"""A study that scores its items under conditions and arms, and has the tables that follow."""
