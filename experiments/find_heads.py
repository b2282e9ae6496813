"""`backfire heads`: score every head on repeated random tokens and freeze a set, before any task data is seen.

heads.csv (all scores, `selected`) and heads.json (the frozen set with its hash), which later studies read.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pandas as pd

from experiments.durable import replace
from experiments.options import ON_MODEL, OUT, SEED, Option, Report, Study, positive
from experiments.records import EXACT_FLOATS, RunFolder
from experiments.seeds import stream
from experiments.session import open_model, open_run, require_out
from experiments.tables import frame_text
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.induction import SCORES, head_scores, repeated_tokens, top_heads
from mech.model import Model

N_SEQUENCES = Option("n-sequences", positive, 8, "random sequences")
LENGTH = Option("length", positive, 48, "tokens in a sequence before it repeats")
TOP = Option("top", positive, 16, "how many heads to select")
BY = Option("by", str, "prefix_matching", "the score that selects", SCORES)


def run(args: argparse.Namespace) -> Report:
    """Score heads, select, freeze."""
    require_out(args)
    model = open_model(args)
    scores = score_heads(model, args.seed, args.n_sequences, args.length)
    chosen = top_heads(
        scores, args.top, args.by
    )  # before the folder is claimed: a mistake leaves no trace in it
    with open_run(STUDY, args, model, {}) as folder:
        write_heads(folder, scores, chosen, args.by)
        folder.finish({"head_set_sha256": chosen.sha256})
    best = scores.sort_values(args.by, ascending=False).head(args.top)
    return Report(f"{frame_text(best)}\nselected {chosen}\nset {chosen.sha256[:12]}, written to {args.out}")


def score_heads(model: Model, seed: int, n_sequences: int = 8, length: int = 48) -> pd.DataFrame:
    """Scores of all heads; the sequences depend on the seed and the vocabulary only."""
    return head_scores(model, repeated_tokens(model, stream(seed, "repeated tokens"), n_sequences, length))


def write_heads(folder: RunFolder, scores: pd.DataFrame, chosen: HeadSet, by: str) -> None:
    """heads.csv and heads.json of a run folder."""
    marked = scores.assign(selected=[Head(row.layer, row.head) in chosen for row in scores.itertuples()])
    folder.write_table("heads", marked)
    rows = [row for row in marked.itertuples() if row.selected]
    listed = [{"layer": int(r.layer), "head": int(r.head), "score": float(getattr(r, by))} for r in rows]
    frozen = {"by": by, "k": len(chosen), "sha256": chosen.sha256, "heads": listed}
    replace(folder.path / "heads.json", json.dumps(frozen, indent=2) + "\n")


def ranking(model: Model, path: Path, seed: int, by: str = "prefix_matching") -> tuple[pd.DataFrame, str]:
    """Head scores of a run folder where `heads` was run, else scored here under the seed; and which of the two.

    Raises:
        InputError: the folder's table is not of a model of this size, or lacks the score.
    """
    table = path / "heads.csv"
    if not table.is_file():
        return score_heads(model, seed), f"scored under seed {seed}"
    try:
        scores = pd.read_csv(table, **EXACT_FLOATS)
    except ValueError as error:
        raise InputError(f"{table} is not a table of head scores: run `backfire heads` again.") from error
    complete = {"layer", "head", by} <= set(scores.columns)
    if len(scores) != model.n_layers * model.n_heads or not complete:
        raise InputError(
            f"{table} does not score {by} for the {model.n_layers * model.n_heads} heads of this model."
        )
    return scores, str(table.name)


STUDY = Study(
    "heads",
    "find induction-style heads on repeated random tokens and freeze a set",
    "backfire heads --top 16 --out runs/first",
    (*ON_MODEL, SEED, N_SEQUENCES, LENGTH, TOP, BY, OUT),
    run,
)
