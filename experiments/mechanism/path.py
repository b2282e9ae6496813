"""`backfire path`: the induction circuit's second step, from previous-token heads into the keys of induction heads.

Senders are the top k heads by previous-token score, receivers the top k by prefix matching, both on repeated random
tokens. At the positions where the record holds a×, what the senders write is replaced (by zero, or the mean over those
positions of other tasks' items); only the receivers' keys there see it. Controls: as many random heads of the senders'
layers. Each candidate (a×, the reference action) is run by itself. path.jsonl → path.csv (share of Δcopy lost, by every
metric, with the controls' range and p).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from experiments.heads.ranking import ranking
from experiments.mechanism.metric_views import of_metric, require_metric
from experiments.mechanism.pairs import FROM, TO, for_pair, pair_of, require_conditions
from experiments.run.left_out import write_left_out
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import METRIC, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive
from experiments.run.tables import forwards_text, frame_text
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
from probes.scoring.metric_sums import Sums, by_metric, metrics_of, reference_notes, sums_of, token_counts
from probes.scoring.record import recorded_call
from probes.scoring.score import build_queries, system_length
from probes.stats.bootstrap import RngFactory
from probes.stats.families import corrected, family_lines

SENDERS = Option("senders", positive, 8, "heads of highest previous-token score")
RECEIVERS = Option("receivers", positive, 8, "heads of highest prefix-matching score")
HOW = Option(
    "how",
    str,
    "mean",
    "what stands in the senders' place: mean over other tasks' items, or zero",
    ("mean", "zero"),
)
CONTROLS = Option("controls", positive, 20, "random sets of as many heads of the senders' layers")


@dataclass(frozen=True)
class Paths:
    """The receivers, and sets of senders by label: (kind, heads)."""

    receivers: HeadSet
    senders: Mapping[str, tuple[str, HeadSet]]
    displaced: Mapping[str, int]


def run(args: argparse.Namespace) -> Report:
    """Cut the path for every item and set of senders, then derive the table."""
    session, pair = open_session(args, one_env=True), pair_of(args)
    session = require_conditions(session, pair)
    require_metric(session.items, args.metric)
    paths = choose(session, args)
    sharing = sharing_keys(session.model, paths.receivers)
    about = {
        **about_items(session),
        "receivers": str(paths.receivers),
        "sharing_keys": str(sharing),
        "senders": {name: str(heads) for name, (_, heads) in paths.senders.items() if name != "all"},
        "displaced": dict(paths.displaced),
    }
    hashes = {name: heads.sha256 for name, (_, heads) in paths.senders.items()}
    derived = {"receivers_sha256": paths.receivers.sha256, "senders_sha256": hashes}
    with open_run(for_pair(STUDY, pair), args, session.model, about, derived) as folder:
        todo = [item for item in session.items if row_id(item, pair, "none") not in folder.done_ids("path")]
        means = record_means(session, pair[1], args.quiet) if todo and args.how == "mean" else None
        for item in progress(todo, len(todo), "path", args.quiet):
            done = folder.done_ids("path")
            rows = path_item(session, item, pair, paths, means)
            folder.append_all("path", [row for row in rows if row["id"] not in done])
        table = write_path(folder, session)
        notes = [*write_left_out(folder, session), *reference_notes(folder.rows("path").to_dict("records"))]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved})
    here = table[(table["from"] == pair[0]) & (table["to"] == pair[1]) & (table["kind"] == "selected")]
    notes += family_lines(here[here["metric"] == args.metric], "path")
    here = of_metric(here, args.metric)
    shown = [
        "set",
        "k",
        "share",
        "ci_lo",
        "ci_hi",
        "effect_nats",
        "random_lo",
        "random_hi",
        "n_controls",
        "p",
        "p_holm",
        "n",
    ]
    text = [
        f"receivers: {paths.receivers}",
        f"query heads that share their keys and do not see the change: {sharing if len(sharing) else 'none'}",
        f"shares of {args.metric}:",
        frame_text(here[shown]),
        *notes,
        forwards_text(forwards.ran, forwards.saved),
        f"written to {args.out}",
    ]
    return Report("\n".join(text))


def choose(session: Session, args: argparse.Namespace) -> Paths:
    """Receivers, the chosen senders, all heads as senders, and the controls.

    Raises:
        InputError: more heads are asked for than there are, a table lacks a score, no sender stands below a receiver.
    """
    model = session.model
    by_previous, _ = ranking(model, args.out, args.seed, "previous_token")
    by_prefix, _ = ranking(model, args.out, args.seed)
    receivers = top_heads(by_prefix, args.receivers)
    chosen = top_heads(by_previous, args.senders, "previous_token")
    if chosen.heads[0].layer >= receivers.heads[-1].layer:
        raise InputError(
            f"No sender of {chosen} stands in a layer below a receiver of {receivers}: ask for more."
        )
    senders: dict[str, tuple[str, HeadSet]] = {
        "previous-token": ("selected", chosen),
        "all": ("selected", all_heads(model)),
    }
    displaced = {}
    drawn = distinct_controls(chosen, model.n_layers, model.n_heads, args.controls, session.rng_for)
    for draw, control in enumerate(drawn):
        senders[f"random{draw}"] = ("random", control.heads)
        if control.displaced:
            displaced[f"random{draw}"] = control.displaced
    return Paths(receivers, senders, displaced)


def row_id(item: Item, pair: tuple[str, str], label: str) -> str:
    """The id of a row."""
    return f"{item.item_id}|{pair[0]}>{pair[1]}|{label}"


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


def path_item(
    session: Session, item: Item, pair: tuple[str, str], paths: Paths, means: Mapping[str, Tensor] | None
) -> list[dict[str, Any]]:
    """One row a set of senders: every sum (nats) without the path; the last row is of the whole run."""
    model, engine = session.model, session.engine
    contrast = contrast_of(model, item, session.wording)
    runs = {name: record_run(session, item, pair[1], path_names(model), name) for name in contrast.candidates}
    before: Sums = {}
    for scoring in build_queries(model, item, [pair[0]], session.wording, contrast.candidates):
        [start] = engine.score([scoring.query], system_length(model, item))
        before.update(sums_of(contrast, scoring.candidate, start))
    counts = token_counts(contrast, {name: len(run.query.action) for name, (run, _) in runs.items()})
    nothing = torch.zeros(model.n_layers, model.n_heads, model.d_head, dtype=model.dtype, device=model.device)
    how, value = ("zero", nothing) if means is None else ("mean", means[item.task_id])
    rows = []
    for label, (kind, heads) in {**paths.senders, "none": ("none", HeadSet(()))}.items():
        after: Sums = {}
        for candidate, (run, places) in runs.items():
            score = run.score
            if kind != "none":
                score = patch_path(engine, run, paths.receivers, heads, value, places)
            after.update(sums_of(contrast, candidate, score))
        about = {"item_id": item.item_id, "task_id": item.task_id, "from": pair[0], "to": pair[1], "how": how}
        measured = {
            "k": len(heads),
            "references": contrast.references_are,
            "n_tokens": counts,
            "before": before,
            "after": after,
            "n_positions": len(runs["failed"][1]),
        }
        rows.append({"id": row_id(item, pair, label), **about, "set": label, "kind": kind, **measured})
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


def write_path(folder: RunFolder, session: Session) -> pd.DataFrame:
    """path.csv, of every pair in the folder."""
    rows = long_path(session.clustered(folder.rows("path")))
    tables = []
    for (source, target), part in rows.groupby(["from", "to"], sort=False):
        streams = session.streams(f"path/{source}>{target}")

        def derive(own: pd.DataFrame, streams: RngFactory = streams) -> pd.DataFrame:
            removed = share_removed(own, streams)
            beaten = against_controls(removed)[["set", "random_lo", "random_hi", "n_controls", "p"]]
            return removed.merge(beaten, on="set", how="left")

        named = {"how": part["how"].iloc[0], "from": source, "to": target}
        tables.append(by_metric(part, derive).assign(**named))
    table = corrected(pd.concat(tables, ignore_index=True), "path")
    folder.write_table("path", table)
    return table


STUDY = Study(
    "path",
    "cut the path from previous-token heads into the keys of induction heads at the recorded call",
    "backfire path --senders 8 --receivers 8 --how mean --controls 20 --limit 4 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, SENDERS, RECEIVERS, HOW, CONTROLS, METRIC, *RUNNING),
    run,
)
