"""`backfire path`: the induction circuit's second step, from previous-token heads into the keys of induction heads.

Senders are the top k heads by previous-token score, receivers the top k by prefix matching, both on repeated random
tokens. At the positions where the record holds a×, what the senders write is replaced (by zero, or the mean over those
positions of other tasks' items); only the receivers' keys there see it. Controls: as many random heads of the senders'
layers. Each candidate (a×, the reference action) is run by itself. path.jsonl → path.csv (share of Δcopy lost, by every
metric, with the controls' range and p).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated, Literal

import pandas as pd
import torch
from torch import Tensor

from experiments.heads.control_sets import UNABLATED, NamedSet, Sets
from experiments.heads.ranking import ranking
from experiments.mechanism.pairs import (
    PairContext,
    PairSweepOptions,
    by_pair,
    of_metric,
    pair_session,
    pair_units,
    references_said,
    row_id,
)
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import Session, require_out
from experiments.run.study import Flag, Report, positive
from experiments.run.tables import frame_text
from mech.engine.capture import everything_names
from mech.engine.engine import Run
from mech.errors import InputError
from mech.head_scores.controls import distinct_controls
from mech.head_scores.induction import top_heads
from mech.heads import HeadSet
from mech.patching.patch import all_heads
from mech.patching.paths import patch_path, path_names, sharing_keys
from probes.effects.dose import against_controls, share_removed
from probes.items.item import Item
from probes.scoring.contrast import contrast_of
from probes.scoring.metric_sums import Sums, by_metric, metrics_of, sums_of, token_counts
from probes.scoring.record import recorded_call
from probes.scoring.score import build_queries, system_length
from probes.stats.bootstrap import RngFactory
from probes.stats.families import family_lines


@dataclass(frozen=True, kw_only=True)
class PathConfig(PairSweepOptions):
    """What `backfire path` is given."""

    senders: Annotated[int, Flag("heads of highest previous-token score", positive)] = 8
    receivers: Annotated[int, Flag("heads of highest prefix-matching score", positive)] = 8
    how: Annotated[
        Literal["mean", "zero"],
        Flag("what replaces the senders: mean over other tasks' items, or zero"),
    ] = "mean"
    controls: Annotated[int, Flag("random sets of as many heads of the senders' layers", positive)] = 20


@dataclass(frozen=True, kw_only=True)
class PathContext(PairContext):
    """The receivers, and sets of senders by label.

    `sharing`: query heads that share the receivers' keys and do not see the change.
    """

    config: PathConfig
    receivers: HeadSet
    sharing: HeadSet
    senders: Sets

    @cached_property
    def means(self) -> Mapping[str, Tensor]:
        """Task → what replaces the senders' z, [layer, head, d_head]: `record_means`, or zero."""
        if self.config.how == "mean":
            return record_means(self.session, self.pair[1], self.config.quiet)
        model = self.session.model
        zero = torch.zeros(
            model.n_layers, model.n_heads, model.d_head, dtype=model.dtype, device=model.device
        )
        return {item.task_id: zero for item in self.session.items}


def open_path(config: PathConfig) -> PathContext:
    """Receivers, the chosen senders, all heads as senders, and the controls.

    Raises:
        InputError: more heads are asked for than there are, a table lacks a score, no sender is below a receiver.
    """
    session = pair_session(config)
    model, out = session.model, require_out(config)
    by_previous, _ = ranking(model, out, config.seed, "previous_token")
    by_prefix, _ = ranking(model, out, config.seed)
    receivers = top_heads(by_prefix, config.receivers)
    chosen = top_heads(by_previous, config.senders, "previous_token")
    if chosen.heads[0].layer >= receivers.heads[-1].layer:
        raise InputError(
            f"No sender of {chosen} is in a layer below a receiver of {receivers}: ask for more."
        )
    drawn = distinct_controls(chosen, model.n_layers, model.n_heads, config.controls, session.rng_for)
    named = [
        NamedSet("previous-token", "selected", chosen),
        NamedSet("all", "selected", all_heads(model)),
        *(NamedSet(f"random{draw}", "random", one.heads, one.displaced) for draw, one in enumerate(drawn)),
    ]
    senders = {one.label: one for one in named}
    sharing = sharing_keys(model, receivers)
    recorded = {
        "receivers": str(receivers),
        "sharing_keys": str(sharing),
        "senders": {one.label: str(one.heads) for one in named if one.label != "all"},
        "displaced": {one.label: one.displaced for one in named if one.displaced},
    }
    hashes = {one.label: one.heads.sha256 for one in named}
    return PathContext(
        session,
        recorded=recorded,
        decided={"receivers_sha256": receivers.sha256, "senders_sha256": hashes},
        study="path",
        config=config,
        receivers=receivers,
        sharing=sharing,
        senders=senders,
    )


def record_run(
    session: Session, item: Item, condition: str, keep: list[str], candidate: str = "failed"
) -> tuple[Run, tuple[int, ...]]:
    """A candidate's run under a condition with activations kept at a×'s tokens in the record, and their positions."""
    model = session.model
    places = tuple(recorded_call(model, item, condition, session.wording))
    [scoring] = build_queries(model, item, [condition], session.wording, [candidate])
    shared = min(system_length(model, item), places[0])
    return session.engine.run(scoring.query, keep, shared, {"record": places}), places


def record_means(session: Session, condition: str, quiet: bool) -> dict[str, Tensor]:
    """Task → mean z over the recorded calls' positions in all items of other tasks, [layer, head, d_head].

    Raises:
        InputError: there are no items of another task.
    """
    tasks = {item.task_id for item in session.items}
    if len(tasks) < 2:
        raise InputError("A mean over other tasks' items needs items of two tasks at least: take --how zero.")
    names = everything_names(session.model, "attn.hook_z")
    sums: dict[str, Tensor] = {}
    counts = dict.fromkeys(tasks, 0)
    for item in progress(session.items, len(session.items), "means", quiet):
        found, places = record_run(session, item, condition, names)
        z = torch.stack([found.at["record"][name] for name in names]).double().sum(1)
        sums[item.task_id] = sums.get(item.task_id, torch.zeros_like(z)) + z
        counts[item.task_id] += len(places)
    total, count = torch.stack([sums[task] for task in sorted(tasks)]).sum(0), sum(counts.values())
    return {task: ((total - sums[task]) / (count - counts[task])).to(session.model.dtype) for task in tasks}


def measure(context: PathContext, unit: ItemUnit) -> list[Row]:
    """One row a set of senders: every sum (nats) without the path; the last row is of the clean run."""
    session, item, pair, how = context.session, unit.item, context.pair, context.config.how
    model, engine = session.model, session.engine
    contrast = contrast_of(model, item, session.wording)
    value = context.means[item.task_id]
    runs = {name: record_run(session, item, pair[1], path_names(model), name) for name in contrast.candidates}
    before: Sums = {}
    for scoring in build_queries(model, item, [pair[0]], session.wording, contrast.candidates):
        [start] = engine.score([scoring.query], system_length(model, item))
        before.update(sums_of(contrast, scoring.candidate, start))
    counts = token_counts(contrast, {name: len(run.query.action) for name, (run, _) in runs.items()})
    rows = []
    for one in (*context.senders.values(), UNABLATED):
        after: Sums = {}
        for candidate, (run, places) in runs.items():
            score = run.score
            if one.heads:
                score = patch_path(engine, run, context.receivers, one.heads, value, places)
            after.update(sums_of(contrast, candidate, score))
        about = {"item_id": item.item_id, "task_id": item.task_id, "from": pair[0], "to": pair[1], "how": how}
        measured = {
            "k": len(one.heads),
            "references": contrast.references_are,
            "n_tokens": counts,
            "before": before,
            "after": after,
            "n_positions": len(runs["failed"][1]),
        }
        rows.append(
            {"id": row_id(item, pair, one.label), **about, "set": one.label, "kind": one.kind, **measured}
        )
    return rows


def long_path(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a metric: as `share_removed` reads them, the difference left being the value."""
    lines = []
    for row in rows.to_dict("records"):
        known = {name: row[name] for name in ("item_id", "task_id", "from", "to", "how", "set", "kind", "k")}
        sums = {name: row["after"][name] - row["before"][name] for name in row["after"]}
        for metric, value in metrics_of(row["n_tokens"], sums).items():
            lines.append({**known, "metric": metric, "measure": "copy", "value": value})
    return pd.DataFrame(lines)


def path_tables(context: PathContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """path.csv, of every pair in the folder."""

    def derive(own: pd.DataFrame, streams: RngFactory) -> pd.DataFrame:
        removed = share_removed(own, streams)
        beaten = against_controls(removed)[["set", "random_lo", "random_hi", "n_controls", "p"]]
        return removed.merge(beaten, on="set", how="left")

    def of_pair(part: pd.DataFrame, streams: RngFactory) -> pd.DataFrame:
        return by_metric(part, partial(derive, streams=streams)).assign(how=part["how"].iloc[0])

    return {"path": by_pair(context, long_path(context.session.clustered(folder.rows("path"))), of_pair)}


def report(context: PathContext, tables: Tables) -> Report:
    """The shares of the selected senders, beside the controls' range."""
    table, sharing = context.of_pair(tables["path"]), context.sharing
    here = table[table["kind"] == "selected"]
    shown = ["set", "k", "share", "ci_lo", "ci_hi", "effect_nats", "random_lo", "random_hi"]
    lines = [
        f"receivers: {context.receivers}",
        f"query heads that share their keys and do not see the change: {sharing if len(sharing) else 'none'}",
        f"shares of {context.metric}:",
        frame_text(of_metric(here, context.metric)[[*shown, "n_controls", "p", "p_holm", "n"]]),
        *family_lines(here[here["metric"] == context.metric], "path"),
    ]
    return Report("\n".join(lines))


STUDY = ItemStudy(
    "path",
    "backfire path --senders 8 --receivers 8 --how mean --controls 20 --limit 4 --out runs/first",
    PathConfig,
    rows="path",
    open=open_path,
    units=lambda context: pair_units(context, [*context.senders, "none"]),
    measure=measure,
    tables=path_tables,
    report=report,
    notes=references_said,
)
