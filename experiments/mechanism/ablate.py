"""`backfire ablate`: take heads out of the whole run, and measure a difference of conditions again, beside controls.

A head set is frozen before task data are seen (by its score on random tokens, or by name). Its z is replaced at every
position, prefix included, or at the action positions alone, in one way or several (--how;
`experiments.heads.ablation`). Controls: `experiments.heads.control_sets`. Of both candidates every metric
(`probes.scoring.contrast`) is kept, under the two conditions of the pair (--from, --to) and under fail. Under the
same interventions, what should stay: losses on prose, code and random tokens (of ways that need no donor), the
reference action, Δsem. ablate.jsonl → tables: `experiments.mechanism.ablation_tables`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import pandas as pd

from experiments.heads.ablation import (
    METHODS,
    CleanRuns,
    Donors,
    DrawsOptions,
    PlaceOptions,
    Replacement,
    replacement,
    score_under,
)
from experiments.heads.control_sets import (
    NamedSet,
    SetsOptions,
    about_sets,
    head_sets,
    notes_of,
    selected_sets,
)
from experiments.heads.reference_sets import ReferenceSet, reference_set
from experiments.mechanism.ablation_tables import ablation_tables
from experiments.mechanism.pairs import PairSweepOptions, pair_of, require_conditions, scores_under
from experiments.run.left_out import noted, of_candidates
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemContext, ItemStudy, Row, Tables, Unit
from experiments.run.session import Session, open_session
from experiments.run.study import DeltaOptions, Flag, Report, positive, positive_number
from experiments.run.tables import frame_text
from mech.errors import InputError
from mech.head_scores.induction import RepeatedTokens, repeated_tokens
from mech.interventions.intervention import Intervention
from probes.items.item import Item
from probes.scoring.contrast import contrast_of
from probes.scoring.text_loss import off_target_losses

logger = logging.getLogger(__name__)
FAIL = "fail"
N_SEQUENCES, LENGTH = 8, 32  # repeated random tokens: other ones than heads are chosen on
REFERENCE_LOGPROB = "reference"
"""Beside the metrics in a row's scores: log p of what the margin is against, nats."""


def hows(text: str) -> tuple[str, ...]:
    """Read `mean,resample`; each name once, in the given order. ValueError for an unknown name."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise ValueError(
            f"'{unknown[0] if unknown else text}' is no way to replace z: choose from {', '.join(METHODS)}"
        )
    return names


@dataclass(frozen=True, kw_only=True)
class AblateConfig(PairSweepOptions, DeltaOptions, PlaceOptions, DrawsOptions, SetsOptions):
    """What `backfire ablate` is given."""

    how: Annotated[
        tuple[str, ...], Flag(f"what takes the place of z, one or several of {','.join(METHODS)}", hows)
    ] = ("mean",)
    controlled: Annotated[
        Literal["first", "all"],
        Flag(
            "controls under the first --how alone, or under every one but optimal (which would be fitted for each "
            "control)"
        ),
    ] = "first"
    control_draws: Annotated[
        int, Flag("with resample: donors of every item under control sets", positive)
    ] = 4
    delta_loss: Annotated[
        float, Flag("nats a token within which a change of a loss counts as none", positive_number)
    ] = 0.1


@dataclass(frozen=True)
class AblationUnit(Unit):
    """What one row is about: a way, a set, and an item (None: the losses on texts)."""

    how: str
    put: Replacement
    one: NamedSet
    item: Item | None


@dataclass(frozen=True, kw_only=True)
class AblateContext(ItemContext):
    """The sets of heads, the unablated model first, and way → what it puts in the place of their z.

    `planned`: candidates under conditions that are scored (passages of texts are not counted).
    """

    config: AblateConfig
    sets: Sequence[NamedSet]
    puts: Mapping[str, Replacement]
    reference: ReferenceSet | None
    clean: CleanRuns
    planned: int = 0

    @property
    def pair(self) -> tuple[str, str]:
        """The two conditions, without and with."""
        return pair_of(self.config)

    @property
    def learned(self) -> Mapping[str, MutableMapping[str, Any]]:
        """The constants that were fitted, by way."""
        return {how: put.fits for how, put in self.puts.items()}

    @cached_property
    def sequences(self) -> RepeatedTokens:
        """Repeated random tokens, on which a loss is read."""
        return repeated_tokens(
            self.session.model, self.session.rng_for("off-target tokens"), N_SEQUENCES, LENGTH
        )


def open_ablate(config: AblateConfig) -> AblateContext:
    """The session, the sets and the replacements.

    Raises:
        InputError: there is no difference between the conditions, or conditions, sets or references cannot be had.
    """
    session, pair = open_session(config, one_env=True), pair_of(config)
    if pair[0] == pair[1]:
        raise InputError(f"--from and --to are both {pair[0]}: there is no difference to ablate.")
    session = require_conditions(session, conditions_read(pair))
    session = noted(session, of_candidates(session.items))
    selected = selected_sets(session, config)
    needs = bool(set(config.how) - {"zero", "scale"}) or bool({"norm", "damage"} & set(config.control_kinds))
    reference = reference_set(session, config) if needs else None
    sets = head_sets(session, config, selected, reference)
    donors = None if reference is None else Donors(session, reference)
    puts = {
        how: replacement(session, config, how=how, reference=reference, donors=donors) for how in config.how
    }
    for put in puts.values():
        put.require(config.where)
    recorded = {
        **about_sets(sets),
        "mean_reference": {} if reference is None else reference.about,
        "replacements": {how: dict(put.about) for how, put in puts.items()},
    }
    hashes = {
        "set_sha256": {one.label: one.heads.sha256 for one in sets if one.heads},
        "replacement_sha256": {how: put.sha256 for how, put in puts.items()},
    }
    context = AblateContext(
        session,
        recorded=recorded,
        decided=hashes,
        config=config,
        sets=sets,
        puts=puts,
        reference=reference,
        clean=CleanRuns(session),
    )
    planned = sum(_questions(unit, pair) for unit in units(context))
    if not config.quiet:
        logger.info("ablate: %d questions under %d ways and %d sets", planned, len(puts), len(sets))
    return replace(context, planned=planned, recorded={**recorded, "planned_questions": planned})


def conditions_read(pair: tuple[str, str]) -> list[str]:
    """The conditions that are scored."""
    return list(dict.fromkeys([*pair, FAIL]))


def units(context: AblateContext) -> list[AblationUnit]:
    """The unablated model, then way by way its sets; controls where --controlled says."""
    items, sets = [None, *context.session.items], context.sets
    first = next(iter(context.puts))
    found = [_unit("none", context.puts[first], sets[0], item) for item in items]
    if context.config.where == "candidate":  # item by item: all sets start from one item's clean runs
        return found + [
            one for item in items for how in context.puts for one in _ways(context, how, sets, item)
        ]
    return found + [
        unit
        for how in context.puts
        for one in sets[1:]
        for item in items
        for unit in _ways(context, how, [one], item)
    ]


def _ways(
    context: AblateContext, how: str, sets: Sequence[NamedSet], item: Item | None
) -> list[AblationUnit]:
    """The units of a way and an item (None: of the texts, in ways that need no donor)."""
    config, put = context.config, context.puts[how]
    if item is None and put.by_question:
        return []
    controlled = (how == next(iter(context.puts)) or config.controlled == "all") and how != "optimal"
    fewer = put if put.draws == 1 else put.with_draws(min(put.draws, config.control_draws))
    return [
        _unit(how, put if one.kind == "selected" else fewer, one, item)
        for one in sets
        if one.kind == "selected" or (one.kind != "none" and controlled)
    ]


def _unit(how: str, put: Replacement, one: NamedSet, item: Item | None) -> AblationUnit:
    row_id = f"{how}|{one.label}|{item.item_id if item else 'prose'}"
    return AblationUnit((row_id,), how, put, one, item)


def _questions(unit: AblationUnit, pair: tuple[str, str]) -> int:
    if unit.item is None:
        return 0
    candidates = 2 if unit.item.gold_action is not None else 1 + len(unit.item.distractors)
    draws = unit.put.draws if unit.one.heads else 1
    return draws * candidates * len(conditions_read(pair))


def measure(context: AblateContext, unit: AblationUnit) -> list[Row]:
    """One row: what the set's ablation leaves of an item's scores, or of the losses on texts."""
    one, (source, target) = unit.one, context.pair
    keys = {"id": unit.row_ids[0], "how": unit.how, "set": one.label, "kind": one.kind, "k": one.k}
    if unit.item is None:
        change = unit.put.fixed(one.heads or None, context.config.where)
        found = off_target(context.session, context.sequences, change)
    else:
        found = on_item(
            context.session, unit.item, unit.put, one, context.config.where, context.pair, context.clean
        )
    return [{**keys, "from": source, "to": target, **found}]


def on_item(
    session: Session,
    item: Item,
    put: Replacement,
    one: NamedSet,
    where: str,
    pair: tuple[str, str],
    clean: CleanRuns | None = None,
) -> dict[str, Any]:
    """An item's metrics under every condition and draw: `scores` is metric → condition → a number a draw, nats."""
    contrast = contrast_of(session.model, item, session.wording)
    names = conditions_read(pair)
    used = put if one.heads else put.with_draws(1)
    by_draw = score_under(
        session, item, names, contrast.candidates, used, one.heads or None, where, clean=clean
    )
    scores: dict[str, dict[str, list[float]]] = {}
    for rows in by_draw:
        for name in names:
            of = scores_under(rows, name)
            values = contrast.values(of)
            if contrast.references:
                totals = [of[candidate].total for candidate in contrast.references]
                values[REFERENCE_LOGPROB] = math.fsum(totals) / len(totals)
            for metric, value in values.items():
                scores.setdefault(metric, {}).setdefault(name, []).append(value)
    return {
        "item_id": item.item_id,
        "task_id": item.task_id,
        "references": contrast.references_are,
        "scores": scores,
    }


def off_target(session: Session, sequences: RepeatedTokens, change: Intervention) -> dict[str, Any]:
    """The losses on text and random tokens (nats a token), each passage and sequence by itself."""
    losses = off_target_losses(session.engine, sequences, change)
    return {"item_id": "prose", "task_id": "prose", "references": "none", "scores": {}, "losses": losses}


def _margins(rows: pd.DataFrame) -> list[str]:
    """What the margin is against where an item has no reference action."""
    kinds = rows[(rows["kind"] == "none") & (rows["item_id"] != "prose")]["references"].value_counts()
    said = {
        "distractors": "have no reference action: their margin is against the mean of their distractors",
        "none": "have neither reference action nor distractors: of them log p(a×) alone is measured",
    }
    return [f"{kinds[kind]} items {what}" for kind, what in said.items() if kind in kinds]


def tables_of(context: AblateContext, folder: RunFolder) -> Tables:
    """All tables of the folder's rows."""
    config = context.config
    return ablation_tables(folder, context.session, context.sets, config.delta, config.delta_loss)


def report(context: AblateContext, tables: Tables) -> Report:
    """The dose curve, shares, controls, area, and what else the selected sets change; of one metric."""
    metric = context.config.metric
    curve = tables["ablate"][tables["ablate"]["metric"].isin([metric, "loss"])]
    shown = curve[curve["measure"].isin(["G", "copy", "sem", "prose_loss"])]
    wide = shown.pivot_table(
        index=["how", "k", "kind", "set"], columns="measure", values="mean"
    ).reset_index()
    removed, controls, dose = (
        table[table["metric"] == metric]
        for table in map(tables.__getitem__, ("ablate_removed", "ablate_controls", "ablate_dose"))
    )
    changes = tables["ablate_off_target"]
    parts = [
        wide,
        removed[removed["kind"] == "selected"],
        controls,
        dose.drop(columns=["n", "n_clusters", "flagged"]),
        changes[changes["kind"] == "selected"].drop(columns=["kind", "n", "n_clusters"]),
    ]
    return Report("\n\n".join(frame_text(part) for part in parts))


def notes(context: AblateContext, rows: pd.DataFrame) -> list[str]:
    """Which controls are not there, what the margin is against, how constants were fitted, and how much was asked."""
    fits = [
        f"optimal constants of {sum(one.kind == 'selected' for one in context.sets)} sets: "
        f"{fit['loss_at_mean']:.3f} nats a token on the reference items at the mean, {fit['loss_fitted']:.3f} fitted"
        for each in fitted(context).values()
        for fit in each.values()
    ]
    return [
        *notes_of(context.sets, context.config.control_kinds),
        *_margins(rows),
        *(() if context.reference is None else context.reference.notes),
        *fits,
        f"{context.planned} questions",
    ]


def fitted(context: AblateContext) -> dict[str, dict[str, dict[str, float]]]:
    """Way → what was fitted under it in this run."""
    return {how: put.fitted() for how, put in context.puts.items() if put.fits}


STUDY = ItemStudy(
    "ablate",
    "backfire ablate --heads top:16 --how mean,resample --controls 20 --k 4,8,16,32 --limit 12 --out runs/first",
    AblateConfig,
    rows="ablate",
    open=open_ablate,
    units=units,
    measure=measure,
    tables=tables_of,
    report=report,
    notes=notes,
    extra=lambda context, _: {"fitted": fitted(context)},
)
