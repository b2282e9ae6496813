"""`backfire overlap`: has Δsem heads of its own, and are they Δcopy's? Two patched pairs of conditions, head by head.

Reads what `backfire patch` kept of all heads in the run folder (--from pre --to neut there, and --from neut --to fail
there or in --with), on the same items; writes overlap.csv (`probes.overlap`): rank agreement, common heads, and how far
each ranking agrees with itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.options import OUT, SEED, Option, Report, Study
from experiments.patch_tables import z_effects
from experiments.records import read_run
from experiments.seeds import stream
from experiments.session import open_folder, require_out
from experiments.tables import frame_text
from mech.errors import InputError
from probes.overlap import overlap

NAMES = {("pre", "neut"): "copy", ("neut", "fail"): "sem", ("pre", "fail"): "total"}


def pair(text: str) -> tuple[str, str]:
    """`pre,neut` as (from, to)."""
    parts = tuple(part.strip() for part in text.split(","))
    if len(parts) != 2 or not all(parts) or parts[0] == parts[1]:
        raise argparse.ArgumentTypeError(f"'{text}' is not two conditions: write pre,neut")
    return parts[0], parts[1]


ONE = Option("one", pair, ("pre", "neut"), "the one difference: its conditions, FROM,TO")
OTHER = Option("other", pair, ("neut", "fail"), "the other difference")
WITH = Option("with", Path, None, "run folder in which the other difference was patched, if not --out")


def run(args: argparse.Namespace) -> Report:
    """Compare the head effects of two differences that were patched before.

    Raises:
        InputError: a difference was not patched, or not on the same items.
    """
    out = require_out(args)
    elsewhere = vars(args)["with"] or out
    model = read_run(out)["studies"]
    weights = {entry["provenance"]["model"]["sha256"] for entry in model.values()}
    weights |= {
        entry["provenance"]["model"]["sha256"] for entry in read_run(elsewhere)["studies"].values()
    } - {None}
    if len(weights) > 1:
        raise InputError(f"{out} and {elsewhere} hold effects of different weights: nothing to compare.")
    effects = [z_effects(out, *args.one), z_effects(elsewhere, *args.other)]
    names = tuple(NAMES.get(each, "-".join(each)) for each in (args.one, args.other))
    identity = next(iter(model.values()))["provenance"]["model"]
    with open_folder(STUDY, args, identity) as folder:
        table = overlap(effects[0], effects[1], (names[0], names[1]), lambda name: stream(args.seed, name))
        folder.write_table("overlap", table)
        folder.finish({})
    return Report(f"{frame_text(table)}\nwritten to {out}")


STUDY = Study(
    "overlap",
    "does the mark of failure (Δsem) have heads of its own, and are they those of Δcopy",
    "backfire overlap --out runs/first --with runs/first-sem",
    (ONE, OTHER, WITH, SEED, OUT),
    run,
)
