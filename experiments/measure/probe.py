"""`backfire probe`: G, Δcopy and Δsem of every decision point, teacher-forced.

items × conditions × ablation arms × candidates → scores.jsonl → measures.csv → summary.csv, arms.csv
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from experiments.heads.arms import Group
from experiments.measure.measuring import (
    Scoring,
    ScoringOptions,
    ScoringUnit,
    arms_of,
    open_scoring,
    score_unit,
    scoring_study,
    scoring_units,
)
from experiments.run.left_out import conditions_of
from experiments.run.run_study import Row, Tables
from experiments.run.study import Flag, Report
from experiments.run.tables import arms_text, summary_text, unablated
from mech.engine.capture import everything_names
from mech.errors import InputError
from mech.interventions.hooks import hook_point
from mech.patching.patch import sweep_names
from probes.prompts.conditions import parse_conditions
from probes.scoring.score import DISTRACTORS_IN, run_decision_point
from probes.stats.families import family_lines

KEPT_CONDITIONS = ("pre", "neut", "fail")
"""With --cache, what is kept of these (where scored): all that `patch` takes donors, residuals and prefixes from."""


@dataclass(frozen=True, kw_only=True)
class ProbeConfig(ScoringOptions):
    """What `backfire probe` is given."""

    conditions: Annotated[str, Flag("core (pre, fail, succ, neut, abstract) or a list such as pre,neut")] = (
        "core"
    )
    distractors: Annotated[
        Literal["measured", "everywhere"],
        Flag("score them where a measure reads them (pre, fail) or everywhere"),
    ] = "measured"
    keep: Annotated[
        str,
        Flag(
            "with --cache: more hooks to keep, by their name in a block: attn.hook_pattern,hook_mlp_out",
            presentation=True,
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class Probing(Scoring):
    """Scores, and the hooks that are kept under each of some conditions (none without --cache)."""

    kept_conditions: Sequence[str]
    kept_hooks: Sequence[str]


@dataclass(frozen=True)
class KeepUnit(ScoringUnit):
    """An item whose activations are kept: it has no rows, and is run whenever there is a cache."""


def open_probe(config: ProbeConfig) -> Probing:
    """Conditions, arms and hooks; a mistake there costs nothing."""
    names = parse_conditions(config.conditions)
    if config.keep and config.cache is None:
        raise InputError("--keep says what to keep in the folder of --cache: name one.")
    where = DISTRACTORS_IN if config.distractors == "measured" else None
    scoring = open_scoring(config, names, where, four=where is not None)
    model = scoring.session.model
    kinds = [kind for kind in config.keep.split(",") if kind]
    keep = [*sweep_names(model), *everything_names(model, *kinds)]
    for name in keep:
        hook_point(model.bridge.hook_dict, name)  # an unknown name is refused before anything is run
    return Probing(
        **vars(scoring),
        kept_conditions=[name for name in KEPT_CONDITIONS if name in names] if config.cache else [],
        kept_hooks=keep,
    )


def units(context: Probing) -> list[ScoringUnit]:
    """Every group of questions, then every item that activations are kept of."""
    kept = context.session.items if context.kept_conditions else []
    return [*scoring_units(context), *(KeepUnit((), item, Group((), ())) for item in kept)]


def measure(context: Probing, unit: ScoringUnit) -> list[Row]:
    """The rows of a group of questions; or none, and the item's activations in the cache."""
    if not isinstance(unit, KeepUnit):
        return score_unit(context, unit)
    session = context.session
    for name in conditions_of(unit.item, context.kept_conditions):
        run_decision_point(session.engine, unit.item, name, session.wording, context.kept_hooks)
    return []


def report(context: Probing, tables: Tables) -> Report:
    """Mean and interval of every measure, the arms, and the family of the headline."""
    lines = [
        summary_text(unablated(tables["summary"])),
        *arms_text(arms_of(tables)),
        *family_lines(tables["summary"], "headline"),
    ]
    return Report("\n".join(lines))


STUDY = scoring_study(
    "probe",
    "backfire probe --limit 24 --out runs/first",
    ProbeConfig,
    open=open_probe,
    units=units,
    measure=measure,
    report=report,
)
