"""`backfire agree`: do head scores rank heads as their causal effects on Δcopy do?

Effects: those of `backfire patch` in the same folder (z at the action positions, pre → neut). Scores: heads.csv, or
scored here under the seed; and in-context induction on the patched items' own transcripts, which no frozen set may be
chosen by (`uses_task_data`). agree.jsonl → agree.csv, agree_scores.csv, agree_suppressors.csv: effects on each
metric rank heads by themselves, so that the tables hold a ranking for each; --metric says which is shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from experiments.heads.ranking import ALL_SCORES, ranking
from experiments.mechanism.overlap import SAME, patched_entry
from experiments.mechanism.pairs import of_metric
from experiments.mechanism.patch_screen import NO_SCREEN
from experiments.mechanism.patch_tables import z_effects
from experiments.run.item_pools import read_pool
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemContext, ItemStudy, ItemUnit, Row, Tables
from experiments.run.seeds import stream
from experiments.run.session import Session, open_engine, open_model, read_wording, require_out
from experiments.run.study import (
    MetricOptions,
    ModelOptions,
    Report,
    RunOptions,
    SourceOptions,
    WordingOptions,
)
from experiments.run.tables import frame_text
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


@dataclass(frozen=True, kw_only=True)
class AgreeConfig(MetricOptions, RunOptions, WordingOptions, SourceOptions, ModelOptions):
    """What `backfire agree` is given: the items are those that were patched."""


@dataclass(frozen=True, kw_only=True)
class AgreeContext(ItemContext):
    """The effects by the folder's patches, and every score that needs no task data."""

    config: AgreeConfig
    effects: pd.DataFrame
    scores: pd.DataFrame


def open_agree(config: AgreeConfig) -> AgreeContext:
    """The patched items.

    Raises:
        InputError: nothing was patched in the folder, on other items, or not from pre to neut.
    """
    effects = copy_effects(config)
    items = select_items(read_pool(config), list(dict.fromkeys(effects["item_id"])))
    wording = read_wording(config)
    model = open_model(config, wording)
    engine = open_engine(model, config)
    session = Session(engine, items, wording, lambda name: stream(config.seed, name), cluster=config.cluster)
    scores, source = ranking(model, require_out(config), config.seed)
    return AgreeContext(
        session, recorded={"head_scores": source}, config=config, effects=effects, scores=scores
    )


def units(context: AgreeContext) -> list[ItemUnit]:
    """A unit an item."""
    return [ItemUnit((item.item_id,), item) for item in context.session.items]


def measure(context: AgreeContext, unit: ItemUnit) -> list[Row]:
    """The induction scores of an item's transcript."""
    session = context.session
    return [transcript_row(record_attention(session.engine, unit.item, CONDITION, session.wording))]


def copy_effects(config: AgreeConfig) -> pd.DataFrame:
    """Effects of single heads on Δcopy, from the patches of the run folder.

    Raises:
        InputError: nothing was patched there, on other items, or not from pre to neut.
    """
    out = require_out(config)
    effects = z_effects(out, "pre", CONDITION)
    settings = patched_entry(out, ("pre", CONDITION))["config"]
    if settings.get("screen") != NO_SCREEN:
        raise InputError(f"The patches in {out} are of screened heads only: a ranking needs all of them.")
    for name in SAME:
        there, here = settings.get(name), STUDY.settings(config)[name]
        if there != here:
            raise InputError(f"{out} was patched under another {name} ({there}, not {here}): give the same.")
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
        for row in folder.rows("agree").to_dict("records")
        if row["item_id"] in items
        for name, values in row["heads"].items()
    ]
    return pd.DataFrame(lines, columns=["item_id", "layer", "head", *TRANSCRIPT_SCORES])


def agree_tables(context: AgreeContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """Agreement of scores with effects and with each other, and the heads of negative effect."""
    session, rng_for = context.session, context.session.rng_for
    attended = mean_by_head(long_transcripts(folder, {item.item_id for item in session.items}))
    scores = context.scores.merge(attended, on=["layer", "head"])
    effects = session.clustered(context.effects)
    known = known_scores(scores)
    agreed = by_metric(effects, lambda own: agreement(scores, own, rng_for, known), METRICS)
    between = between_scores(scores, BY, known)
    return {
        "agree": agreed.assign(uses_task_data=agreed["score"].isin(TRANSCRIPT_SCORES)),
        "agree_scores": between.assign(uses_task_data=between["other"].isin(TRANSCRIPT_SCORES)),
        "agree_suppressors": by_metric(
            effects, lambda own: suppressors(own, scores, rng_for, known), METRICS
        ),
    }


def known_scores(scores: pd.DataFrame) -> list[str]:
    """The scores that a table of heads has."""
    return [name for name in (*ALL_SCORES, *TRANSCRIPT_SCORES) if name in scores.columns]


def report(context: AgreeContext, tables: Tables) -> Report:
    """Rank correlations, and the strongest heads of negative effect, of one metric."""
    metric, negative = context.config.metric, tables["agree_suppressors"]
    columns = [*SUPPRESSORS, *(["copy_suppression"] if "copy_suppression" in context.scores else [])]
    shown = [
        _shown(of_metric(tables["agree"], metric)),
        tables["agree_scores"],
        negative[negative["metric"] == metric].groupby("direction").head(8)[columns],
    ]
    return Report("\n\n".join([f"effects on {metric}:", *map(frame_text, shown)]))


def _shown(agreed: pd.DataFrame) -> pd.DataFrame:
    """Rank correlations over all heads and within layers, and how far the effects agree with themselves."""
    ranks = agreed[agreed["statistic"].str.startswith(("spearman", "reliability")) & agreed["k"].isna()]
    return ranks.drop(columns=["k", "effects_nats", "delta_nats"])


STUDY = ItemStudy(
    "agree",
    "backfire agree --out runs/first",
    AgreeConfig,
    rows="agree",
    open=open_agree,
    units=units,
    measure=measure,
    tables=agree_tables,
    report=report,
)
