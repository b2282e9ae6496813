"""`backfire heads`: score every head on repeated random tokens and freeze a set, before any task data is seen.

heads.csv (all scores, `selected`) and heads.json (the frozen set with its hash), which later studies read; with
--format also heads_list.json and heads_map.json, the same set as others publish theirs (`mech.head_scores.head_lists`).
--scores all adds the causal copying scores: every head ablated on every sequence, kept sequence by sequence in
causal_copying.jsonl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from experiments.heads.ranking import ALL_SCORES, random_sequences
from experiments.run.durable import replace
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import Context, ItemStudy, Row, Tables, Unit
from experiments.run.session import open_model, require_out
from experiments.run.study import Flag, ModelOptions, OutOptions, Report, SeedOptions, positive
from experiments.run.tables import frame_text
from mech.engine.engine import Engine
from mech.engine.runs import ForwardCounter
from mech.errors import InputError
from mech.head_scores.causal_copying import (
    CAUSAL_SCORES,
    ablation_drops,
    causal_table,
    occurrence_query,
    sequence_mean,
)
from mech.head_scores.head_lists import Form, best_first, head_list_text
from mech.head_scores.induction import RepeatedTokens, head_scores, top_heads
from mech.heads import Head, HeadSet
from mech.models.model import Model

FILES: dict[str, Sequence[Form]] = {"none": (), "list": ("list",), "map": ("map",), "both": ("list", "map")}


@dataclass(frozen=True, kw_only=True)
class HeadsConfig(OutOptions, SeedOptions, ModelOptions):
    """What `backfire heads` is given."""

    n_sequences: Annotated[int, Flag("random sequences", positive)] = 8
    length: Annotated[int, Flag("tokens in a sequence before it repeats", positive)] = 48
    top: Annotated[int, Flag("how many heads to select", positive)] = 16
    by: Annotated[str, Flag("the score that selects", choices=ALL_SCORES)] = "prefix_matching"
    scores: Annotated[
        Literal["synthetic", "all"], Flag("all: causal copying too, by ablating every head (minutes)")
    ] = "synthetic"
    causal_sequences: Annotated[
        int, Flag("with --scores all, the first so many sequences are ablated on", positive)
    ] = 4
    format: Annotated[
        Literal["none", "list", "map", "both"],
        Flag("other forms the selected heads are written in", presentation=True),
    ] = "none"


@dataclass(frozen=True)
class HeadsContext(Context):
    """The sequences, the synthetic scores of all heads on them, and those that heads are ablated on."""

    config: HeadsConfig
    engine: Engine
    scores: pd.DataFrame
    causal: RepeatedTokens

    @property
    def model(self) -> Model:
        """The model that is scored."""
        return self.engine.model

    @cached_property
    def mean(self) -> Float[Tensor, "layer head d_head"]:
        """What an ablated head's z becomes."""
        return sequence_mean(self.engine, self.causal)

    @property
    def forwards(self) -> ForwardCounter | None:
        """Those of the causal scores; the synthetic ones are not run by an engine."""
        return self.engine.forwards if self.config.scores == "all" else None


@dataclass(frozen=True)
class CausalUnit(Unit):
    """A sequence on which every head is ablated, and the score that is read."""

    index: int
    score: str


def open_heads(config: HeadsConfig) -> HeadsContext:
    """Score heads synthetically, which takes seconds; a mistake in --top or --by leaves no trace in the folder."""
    require_out(config)
    if config.by in CAUSAL_SCORES and config.scores != "all":
        raise InputError(f"The score {config.by} is computed with --scores all only.")
    model = open_model(config)
    sequences = random_sequences(model, config.seed, config.n_sequences, config.length)
    scores = head_scores(model, sequences)
    top_heads(scores, config.top)
    return HeadsContext(config, Engine(model), scores, first(sequences, config.causal_sequences))


def first(sequences: RepeatedTokens, n: int) -> RepeatedTokens:
    """The first n of the sequences, or all where there are not so many."""
    return RepeatedTokens(sequences.tokens[:n], sequences.lead, sequences.length)


def units(context: HeadsContext) -> list[CausalUnit]:
    """With --scores all, one a sequence and score."""
    if context.config.scores != "all":
        return []
    indices = range(len(context.causal.tokens))
    return [CausalUnit((f"{index}|{score}",), index, score) for index in indices for score in CAUSAL_SCORES]


def measure(context: HeadsContext, unit: CausalUnit) -> list[Row]:
    """The drop of a causal score by each head's ablation."""
    query = occurrence_query(context.causal, unit.index, CAUSAL_SCORES[unit.score])
    found = ablation_drops(context.engine, query, context.mean)
    drops = {str(head): drop for head, drop in found.items()}
    return [{"id": unit.row_ids[0], "sequence": unit.index, "score": unit.score, "heads": drops}]


def heads_tables(context: HeadsContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """heads.csv; and heads.json, the frozen set, in every form asked for."""
    config, scores = context.config, context.scores
    if config.scores == "all":
        long = [
            {"layer": head.layer, "head": head.head, "score": row["score"], "drop": drop}
            for row in folder.rows("causal_copying").to_dict("records")
            for head, drop in ((Head.parse(name), drop) for name, drop in row["heads"].items())
        ]
        scores = scores.merge(causal_table(pd.DataFrame(long)), on=["layer", "head"])
    chosen = top_heads(scores, config.top, config.by)
    marked = scores.assign(selected=[Head(row.layer, row.head) in chosen for row in scores.itertuples()])
    write_forms(folder, marked, config.by, FILES[config.format])
    return {"heads": marked}


def write_forms(folder: RunFolder, marked: pd.DataFrame, by: str, forms: Sequence[Form] = ()) -> None:
    """heads.json of a run folder, and heads_FORM.json, best first, of each further form."""
    rows = [row for row in marked.itertuples() if row.selected]
    scored = [(Head(int(row.layer), int(row.head)), float(getattr(row, by))) for row in rows]
    replace(folder.path / "heads.json", head_list_text(scored, "heads", by))
    for form in forms:
        replace(folder.path / f"heads_{form}.json", head_list_text(best_first(scored), form))


def selected(tables: Tables) -> HeadSet:
    """The frozen set."""
    return HeadSet(
        Head(int(row.layer), int(row.head)) for row in tables["heads"].itertuples() if row.selected
    )


def report(context: HeadsContext, tables: Tables) -> Report:
    """The best heads, and the set with its hash."""
    table, config, chosen = tables["heads"], context.config, selected(tables)
    best = table.drop(columns="selected").sort_values(config.by, ascending=False).head(config.top)
    return Report(f"{frame_text(best)}\nselected {chosen}\nset {chosen.sha256[:12]}")


STUDY = ItemStudy(
    "heads",
    "find induction-style heads on repeated random tokens and freeze a set",
    "backfire heads --top 16 --out runs/first",
    HeadsConfig,
    rows="causal_copying",
    open=open_heads,
    units=units,
    measure=measure,
    tables=heads_tables,
    report=report,
    extra=lambda _, tables: {"head_set_sha256": selected(tables).sha256},
)
