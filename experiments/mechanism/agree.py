"""`backfire agree`: do head scores rank heads as their causal effects on Δcopy do?

Effects: those of `backfire patch` in the same folder (z at the action positions, pre → neut). Scores: heads.csv, or
scored here under the seed; and in-context induction on the patched items' own transcripts, which no frozen set may be
chosen by (`uses_task_data`). transcripts.jsonl → agreement.csv, score_agreement.csv, suppressors.csv: effects on each
metric rank heads by themselves, so that the tables hold a ranking for each; --metric says which is shown.
"""

from __future__ import annotations

import argparse
from typing import Any

import pandas as pd

from experiments.heads.ranking import ALL_SCORES, ranking
from experiments.mechanism.metric_views import of_metric
from experiments.mechanism.overlap import SAME, patched_entry
from experiments.mechanism.patch_screen import NO_SCREEN
from experiments.mechanism.patch_tables import z_effects
from experiments.run.item_pools import read_pool
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.seeds import stream
from experiments.run.session import Session, about_items, open_engine, open_run, read_wording, require_out
from experiments.run.study import (
    CLUSTER,
    ENV,
    ITEMS,
    METRIC,
    ON_MODEL,
    PROBLEMS,
    RUNNING,
    SEED,
    TEMPLATES,
    WORDING,
    Report,
    Study,
)
from experiments.run.tables import forwards_text, frame_text
from mech.errors import InputError
from mech.head_scores.transcript_induction import TRANSCRIPT_SCORES
from probes.effects.agreement import agreement, between_scores
from probes.effects.suppressors import SUPPRESSORS, suppressors
from probes.items.item import select_items
from probes.scoring.contrast import METRICS
from probes.scoring.metric_sums import by_metric
from probes.scoring.record import mean_by_head, record_attention

BY = "prefix_matching"  # what the other scores are compared with
CONDITION = "neut"


def run(args: argparse.Namespace) -> Report:
    """Score the patched items' transcripts, then derive the tables."""
    effects = copy_effects(args)
    wanted = list(dict.fromkeys(effects["item_id"]))
    items = select_items(read_pool(args), wanted)
    wording = read_wording(args)
    session = Session(
        open_engine(args, wording), items, wording, lambda name: stream(args.seed, name), cluster=args.cluster
    )
    scores, source = ranking(session.model, args.out, args.seed)
    with open_run(STUDY, args, session.model, {**about_items(session), "head_scores": source}) as folder:
        for item in progress(items, len(items), "transcripts", args.quiet):
            if item.item_id not in folder.done_ids("transcripts"):
                folder.append(
                    "transcripts", transcript_row(record_attention(session.engine, item, CONDITION, wording))
                )
        attended = mean_by_head(long_transcripts(folder, set(wanted)))
        tables = write_agreement(
            folder,
            scores.merge(attended, on=["layer", "head"]),
            session.clustered(effects),
            session,
            args.metric,
        )
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved})
    text = "\n\n".join([f"effects on {args.metric}:", *map(frame_text, tables)])
    return Report("\n".join([text, forwards_text(forwards.ran, forwards.saved), f"written to {args.out}"]))


def copy_effects(args: argparse.Namespace) -> pd.DataFrame:
    """Effects of single heads on Δcopy, from the patches of the run folder.

    Raises:
        InputError: nothing was patched there, on other items, or not from pre to neut.
    """
    effects = z_effects(require_out(args), "pre", CONDITION)
    entry = patched_entry(args.out, ("pre", CONDITION))
    settings = entry["config"]
    if settings.get("screen") != NO_SCREEN:
        raise InputError(
            f"The patches in {args.out} are of screened heads only: a ranking needs all of them."
        )
    for name in SAME:
        there, here = settings.get(name), STUDY.settings(args)[name]
        if there != here:
            raise InputError(
                f"{args.out} was patched under another {name} ({there}, not {here}): give the same."
            )
    return effects


def transcript_row(scored: pd.DataFrame) -> dict[str, Any]:
    """One item's transcript scores as a row: head → its TRANSCRIPT_SCORES, in their order."""
    first = scored.iloc[0]
    heads = {
        f"L{row.layer}H{row.head}": [float(getattr(row, n)) for n in TRANSCRIPT_SCORES]
        for row in scored.itertuples()
    }
    keys = {name: str(first[name]) for name in ("item_id", "task_id", "condition")}
    return {"id": keys["item_id"], **keys, "n_positions": int(first["n_positions"]), "heads": heads}


def long_transcripts(folder: RunFolder, items: set[str]) -> pd.DataFrame:
    """The kept rows of these items, one line a head."""
    lines = [
        (row["item_id"], *map(int, name[1:].split("H")), *values)
        for row in folder.rows("transcripts").to_dict("records")
        if row["item_id"] in items
        for name, values in row["heads"].items()
    ]
    return pd.DataFrame(lines, columns=["item_id", "layer", "head", *TRANSCRIPT_SCORES])


def write_agreement(
    folder: RunFolder, scores: pd.DataFrame, effects: pd.DataFrame, session: Session, metric: str
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """agreement.csv, score_agreement.csv, suppressors.csv; what is shown of them, of one metric."""
    known = [name for name in (*ALL_SCORES, *TRANSCRIPT_SCORES) if name in scores.columns]
    agreed = by_metric(effects, lambda own: agreement(scores, own, session.rng_for, known), METRICS)
    between = between_scores(scores, BY, known)
    agreed = agreed.assign(uses_task_data=agreed["score"].isin(TRANSCRIPT_SCORES))
    between = between.assign(uses_task_data=between["other"].isin(TRANSCRIPT_SCORES))
    negative = by_metric(effects, lambda own: suppressors(own, scores, session.rng_for, known), METRICS)
    folder.write_table("agreement", agreed)
    folder.write_table("score_agreement", between)
    folder.write_table("suppressors", negative)
    shown = [*SUPPRESSORS, "copy_suppression"] if "copy_suppression" in known else list(SUPPRESSORS)
    return (
        _shown(of_metric(agreed, metric)),
        between,
        negative[negative["metric"] == metric].groupby("direction").head(8)[shown],
    )


def _shown(agreed: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations over all heads and within layers, and how far the effects agree with themselves."""
    ranks = agreed[agreed["statistic"].str.startswith(("spearman", "reliability")) & agreed["k"].isna()]
    return ranks.drop(columns=["k", "effects_nats", "delta_nats"])


STUDY = Study(
    "agree",
    "compare the ranking of heads by every score with that by their causal effects",
    "backfire agree --out runs/first",
    (*ON_MODEL, ENV, TEMPLATES, PROBLEMS, ITEMS, WORDING, SEED, CLUSTER, METRIC, *RUNNING),
    run,
)
