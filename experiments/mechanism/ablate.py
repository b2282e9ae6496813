"""`backfire ablate`: take heads out of the whole run, and measure a difference of conditions again, beside controls.

A head set is frozen before task data are seen (by its score on random tokens, or by name). Its z is replaced at every
position, prefix included, or at the action positions alone, in one way or several (--how;
`experiments.heads.ablation`). Controls: `experiments.heads.control_sets`. Of both candidates every metric
(`probes.scoring.contrast`) is kept, under the two conditions of the pair (--from, --to) and under fail. Under the
same interventions, what should stay: losses on prose, code and random tokens (of ways that need no donor), the
reference action, Δsem. ablations.jsonl → tables: `experiments.mechanism.ablation_tables`.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from experiments.heads.ablation import (
    ALPHA,
    BY,
    DRAWS,
    METHODS,
    REFERENCE,
    WHERE,
    CleanRuns,
    Donors,
    Replacement,
    reference_set,
    replacement,
    score_under,
)
from experiments.heads.control_sets import CONTROL_KINDS
from experiments.heads.sets import (
    CONTROLS,
    HEADS,
    Ablated,
    K,
    about_sets,
    head_sets,
    notes_of,
    selected_sets,
)
from experiments.mechanism.ablation_tables import Tables, write_tables
from experiments.mechanism.pairs import FROM, TO, pair_of, require_conditions
from experiments.run.left_out import noted, of_candidates, write_left_out
from experiments.run.progress import progress
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import (
    DELTA,
    METRIC,
    ON_ITEMS,
    ON_MODEL,
    RUNNING,
    Option,
    Report,
    Study,
    positive,
    positive_number,
)
from experiments.run.tables import forwards_text, frame_text
from mech.engine.queries import Score
from mech.errors import InputError
from mech.head_scores.induction import RepeatedTokens, repeated_tokens
from mech.interventions.intervention import Intervention
from probes.items.item import Item
from probes.scoring.contrast import contrast_of
from probes.scoring.text_loss import off_target_losses

logger = logging.getLogger(__name__)


def hows(text: str) -> tuple[str, ...]:
    """Read `mean,resample`; each name once, in the given order. ValueError for an unknown name."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in METHODS]
    if unknown or not names:
        raise ValueError(
            f"'{unknown[0] if unknown else text}' is no way to replace z: choose from {', '.join(METHODS)}"
        )
    return names


HOWS = Option("how", hows, ("mean",), f"what takes the place of z, one or several of {','.join(METHODS)}")
CONTROLLED = Option(
    "controlled",
    str,
    "first",
    "controls under the first --how alone, or under every one but optimal (which would be fitted for each control)",
    ("first", "all"),
)
CONTROL_DRAWS = Option("control-draws", positive, 4, "with resample: donors of every item under control sets")
DELTA_LOSS = Option(
    "delta-loss", positive_number, 0.1, "nats a token within which a change of a loss counts as none"
)
FAIL = "fail"
N_SEQUENCES, LENGTH = 8, 32  # repeated random tokens: other ones than heads are chosen on
REFERENCE_LOGPROB = "reference"
"""Beside the metrics in a row's scores: log p of what the margin is against, nats."""


@dataclass(frozen=True)
class Unit:
    """What one row is about: a way, a set, and an item (None: the losses on texts)."""

    how: str
    put: Replacement
    one: Ablated
    item: Item | None

    @property
    def row_id(self) -> str:
        """The id of the row; the unablated model has one row whatever the ways."""
        return f"{self.how}|{self.one.label}|{self.item.item_id if self.item else 'prose'}"


def run(args: argparse.Namespace) -> Report:
    """Measure every item under every way and set, whole sets first, then derive the tables."""
    session = open_session(args, one_env=True)
    pair = pair_of(args)
    if pair[0] == pair[1]:
        raise InputError(f"--from and --to are both {pair[0]}: there is no difference to ablate.")
    session = require_conditions(session, tuple(dict.fromkeys([*pair, FAIL])))
    session = noted(session, of_candidates(session.items))
    selected = selected_sets(session, args)
    needs = bool(set(args.how) - {"zero", "scale"}) or bool({"norm", "damage"} & set(args.control_kinds))
    reference = reference_set(session, args) if needs else None
    sets = head_sets(session, args, selected, args.control_kinds, reference)
    donors = None if reference is None else Donors(session, reference)
    puts = {how: replacement(session, args, how=how, reference=reference, donors=donors) for how in args.how}
    units = units_of(session, args, sets, puts)
    planned = sum(_questions(unit, pair) for unit in units)
    if not args.quiet:
        logger.info("ablate: %d questions under %d ways and %d sets", planned, len(puts), len(sets))
    about = {
        **about_items(session),
        **about_sets(sets),
        "mean_reference": {} if reference is None else reference.about,
        "replacements": {how: dict(put.about) for how, put in puts.items()},
        "planned_questions": planned,
    }
    derived = {
        "set_sha256": {one.label: one.heads.sha256 for one in sets if one.heads is not None},
        "replacement_sha256": {how: put.sha256 for how, put in puts.items()},
    }
    sequences = repeated_tokens(session.model, session.rng_for("off-target tokens"), N_SEQUENCES, LENGTH)
    clean = CleanRuns(session)
    with open_run(STUDY, args, session.model, about, derived) as folder:
        for unit in progress(units, len(units), "ablate", args.quiet):
            if unit.row_id not in folder.done_ids("ablations"):
                folder.append("ablations", measured(session, unit, pair, args.where, sequences, clean))
        tables = write_tables(folder, session, sets, args.delta, args.delta_loss)
        notes = [
            *write_left_out(folder, session),
            *notes_of(sets, args.control_kinds),
            *_margins(folder.rows("ablations")),
        ]
        notes += [] if reference is None else reference.notes
        fitted = {how: put.fitted() for how, put in puts.items() if put.fits}
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved, "fitted": fitted})
    notes += [
        f"optimal constants of {len(selected)} sets: {fit['loss_at_mean']:.3f} nats a token on the reference items at "
        f"the mean, {fit['loss_fitted']:.3f} fitted"
        for those in fitted.values()
        for fit in those.values()
    ]
    ending = [
        *notes,
        f"{planned} questions",
        forwards_text(forwards.ran, forwards.saved),
        f"written to {args.out}",
    ]
    return Report("\n".join([report(tables, args.metric), *ending]))


def units_of(
    session: Session, args: argparse.Namespace, sets: Sequence[Ablated], puts: dict[str, Replacement]
) -> list[Unit]:
    """The whole model, then way by way its sets; controls where --controlled says."""
    first, *_ = puts
    found = []
    for item in [None, *session.items]:
        found.append(Unit("none", puts[first], sets[0], item))
    if args.where == "candidate":  # item by item: all sets start from one item's clean runs
        by_item = [_item_units(args, sets, puts, item) for item in [None, *session.items]]
        return found + [unit for units in by_item for unit in units]
    for how in puts:
        for one in sets[1:]:
            for item in [None, *session.items]:
                found += _item_units(args, [one], {how: puts[how]}, item, first)
    return found


def _item_units(
    args: argparse.Namespace,
    sets: Sequence[Ablated],
    puts: dict[str, Replacement],
    item: Item | None,
    first: str | None = None,
) -> list[Unit]:
    """The units of an item (None: of the texts, in ways that need no donor)."""
    first = next(iter(puts)) if first is None else first
    found = []
    for how, put in puts.items():
        controlled = (how == first or args.controlled == "all") and how != "optimal"
        if item is not None or not put.by_question:
            found += [
                Unit(how, _fewer(put, one, args), one, item)
                for one in sets
                if one.kind == "selected" or (one.kind != "none" and controlled)
            ]
    return found


def _fewer(put: Replacement, one: Ablated, args: argparse.Namespace) -> Replacement:
    """The replacement with the draws that a control set is given."""
    if put.draws == 1 or one.kind == "selected":
        return put
    return put.with_draws(min(put.draws, args.control_draws))


def _questions(unit: Unit, pair: tuple[str, str]) -> int:
    """How many candidates under conditions the unit scores (texts: their passages are not counted)."""
    if unit.item is None:
        return 0
    candidates = 2 if unit.item.gold_action is not None else 1 + len(unit.item.distractors)
    draws = unit.put.draws if unit.one.heads is not None else 1
    return draws * candidates * len(dict.fromkeys([*pair, FAIL]))


def measured(
    session: Session,
    unit: Unit,
    pair: tuple[str, str],
    where: str,
    sequences: RepeatedTokens,
    clean: CleanRuns,
) -> dict[str, Any]:
    """One row: what the set's ablation leaves of an item's scores, or of the losses on texts.

    Raises:
        InputError: as `score_under`.
    """
    one = unit.one
    keys = {"id": unit.row_id, "how": unit.how, "set": one.label, "kind": one.kind, "k": one.k}
    pair_keys = {"from": pair[0], "to": pair[1]}
    if unit.item is None:
        change = unit.put.fixed(one.heads, where) if one.heads is not None else Intervention()
        return {**keys, **pair_keys, **off_target(session, sequences, change)}
    return {**keys, **pair_keys, **on_item(session, unit.item, unit.put, one, where, pair, clean)}


def on_item(
    session: Session,
    item: Item,
    put: Replacement,
    one: Ablated,
    where: str,
    pair: tuple[str, str],
    clean: CleanRuns | None = None,
) -> dict[str, Any]:
    """An item's metrics under every condition and draw: `scores` is metric → condition → a number a draw, nats."""
    contrast = contrast_of(session.model, item, session.wording)
    names = list(dict.fromkeys([*pair, FAIL]))
    used = put if one.heads is not None else put.with_draws(1)
    by_draw = score_under(session, item, names, contrast.candidates, used, one.heads, where, clean=clean)
    scores: dict[str, dict[str, list[float]]] = {}
    for rows in by_draw:
        for name in names:
            of = {
                row["candidate"]: Score(
                    np.array(row["token_logprobs"]), np.zeros(row["n_tokens"], dtype=bool)
                )
                for row in rows
                if row["condition"] == name
            }
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


def report(tables: Tables, metric: str) -> str:
    """The dose curve, shares, controls, area, and what else the selected sets change; of one metric."""
    curve = tables.ablation[tables.ablation["metric"].isin([metric, "loss"])]
    shown = curve[curve["measure"].isin(["G", "copy", "sem", "prose_loss"])]
    wide = shown.pivot_table(
        index=["how", "k", "kind", "set"], columns="measure", values="mean"
    ).reset_index()
    changes = tables.offtarget
    parts = [
        wide,
        _of(tables.removed[tables.removed["kind"] == "selected"], metric),
        _of(tables.controls, metric),
        _of(tables.dose, metric).drop(columns=["n", "n_clusters", "flagged"]),
        changes[changes["kind"] == "selected"].drop(columns=["kind", "n", "n_clusters"]),
    ]
    return "\n\n".join(frame_text(part) for part in parts)


def _of(table: Any, metric: str) -> Any:
    return table[table["metric"] == metric]


STUDY = Study(
    "ablate",
    "take a frozen head set out of the whole run and measure again, beside controls of six kinds",
    "backfire ablate --heads top:16 --how mean,resample --controls 20 --k 4,8,16,32 --limit 12 --out runs/first",
    (
        *(*ON_MODEL, *ON_ITEMS, METRIC, FROM, TO, HEADS, BY, HOWS, WHERE, ALPHA, DRAWS, K),
        *(CONTROLS, CONTROL_KINDS, CONTROLLED, CONTROL_DRAWS, REFERENCE, DELTA, DELTA_LOSS, *RUNNING),
    ),
    run,
)
