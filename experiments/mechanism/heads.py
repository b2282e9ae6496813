"""`backfire heads`: score every head on repeated random tokens and freeze a set, before any task data is seen.

heads.csv (all scores, `selected`) and heads.json (the frozen set with its hash), which later studies read; with
--format also heads_list.json and heads_map.json, the same set as others publish theirs (`mech.head_scores.head_lists`).
--scores all adds the causal copying scores: every head ablated on every sequence, kept sequence by sequence in
heads_causal_copying.jsonl.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import pandas as pd

from experiments.heads.ranking import ALL_SCORES, random_sequences
from experiments.run.durable import replace
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import open_model, open_run, require_out
from experiments.run.study import Flag, ModelOptions, OutOptions, Report, SeedOptions, Study, positive
from experiments.run.tables import frame_text
from mech.engine.engine import Engine
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


def run(config: HeadsConfig) -> Report:
    """Score heads, select, freeze."""
    require_out(config)
    if config.by in CAUSAL_SCORES and config.scores != "all":
        raise InputError(f"The score {config.by} is computed with --scores all only.")
    model = open_model(config)
    sequences = random_sequences(model, config.seed, config.n_sequences, config.length)
    scores = head_scores(model, sequences)
    # Before the folder is claimed: a mistake leaves no trace in it.
    top_heads(scores, config.top)
    with open_run(STUDY, config, model, {}) as folder:
        if config.scores == "all":
            scores = scores.merge(
                causal(folder, Engine(model), first(sequences, config.causal_sequences), config.quiet),
                on=["layer", "head"],
            )
        chosen = top_heads(scores, config.top, config.by)
        write_heads(folder, scores, chosen, config.by, FILES[config.format])
        folder.finish({"head_set_sha256": chosen.sha256})
    best = scores.sort_values(config.by, ascending=False).head(config.top)
    return Report(f"{frame_text(best)}\nselected {chosen}\nset {chosen.sha256[:12]}, written to {config.out}")


def first(sequences: RepeatedTokens, n: int) -> RepeatedTokens:
    """The first n of the sequences, or all where there are not so many."""
    return RepeatedTokens(sequences.tokens[:n], sequences.lead, sequences.length)


def causal(folder: RunFolder, engine: Engine, sequences: RepeatedTokens, quiet: bool) -> pd.DataFrame:
    """The causal scores of all heads, resumed from the folder's rows: one row a sequence and score."""
    units = [(index, score) for index in range(len(sequences.tokens)) for score in CAUSAL_SCORES]
    done = folder.done_ids("heads_causal_copying")
    mean = None
    for index, score in progress(units, len(units), "causal copying", quiet):
        row_id = f"{index}|{score}"
        if row_id not in done:
            mean = sequence_mean(engine, sequences) if mean is None else mean
            query = occurrence_query(sequences, index, CAUSAL_SCORES[score])
            drops = {str(head): drop for head, drop in ablation_drops(engine, query, mean).items()}
            folder.append(
                "heads_causal_copying", {"id": row_id, "sequence": index, "score": score, "heads": drops}
            )
    long = [
        {"layer": head.layer, "head": head.head, "score": row["score"], "drop": drop}
        for row in folder.rows("heads_causal_copying").to_dict("records")
        for head, drop in ((Head.parse(name), drop) for name, drop in row["heads"].items())
    ]
    return causal_table(pd.DataFrame(long))


def write_heads(
    folder: RunFolder, scores: pd.DataFrame, chosen: HeadSet, by: str, forms: Sequence[Form] = ()
) -> None:
    """heads.csv and heads.json of a run folder, and heads_FORM.json, best first, of each further form."""
    marked = scores.assign(selected=[Head(row.layer, row.head) in chosen for row in scores.itertuples()])
    folder.write_table("heads", marked)
    rows = [row for row in marked.itertuples() if row.selected]
    scored = [(Head(int(row.layer), int(row.head)), float(getattr(row, by))) for row in rows]
    replace(folder.path / "heads.json", head_list_text(scored, "heads", by))
    for form in forms:
        replace(folder.path / f"heads_{form}.json", head_list_text(best_first(scored), form))


STUDY = Study(
    "heads",
    "backfire heads --top 16 --out runs/first",
    HeadsConfig,
    run,
)
