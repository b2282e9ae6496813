"""`backfire patch`: which heads carry Δcopy (or any difference of two conditions), by exact activation patching.

    noise     run TO with z of a head from FROM:   effect = logp(TO) − logp(patched)
    denoise   run FROM with z of a head from TO:   effect = logp(patched) − logp(FROM)

share = effect / (logp(TO) − logp(FROM)); with --from pre --to neut that difference is Δcopy. All heads one by one, and
joint sets of the top k by prefix-matching score, which no task data have chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

import pandas as pd

from experiments.find_heads import ranking
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, whole_numbers
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.heads import Head, HeadSet
from mech.induction import top_heads
from mech.patching import patch_heads, patch_sets
from mech.queries import Score
from probes.effects import head_shares, item_shares, redundancy
from probes.items import Item
from probes.scoring import asks, decision_run

FROM = Option("from", str, "pre", "condition without what is to be attributed")
TO = Option("to", str, "neut", "condition with it")
DIRECTION = Option("direction", str, "both", "noise, denoise or both", ("noise", "denoise", "both"))
K = Option("k", whole_numbers, (4, 8, 16, 32), "sizes of the joint sets")


def run(args: argparse.Namespace) -> Report:
    """Patch every item in every asked direction, then derive the tables."""
    session = open_session(args)
    for name in (vars(args)["from"], args.to):
        asks(session.model, session.items[0], [name], session.wording)  # an unknown one is refused at once
    directions = ("noise", "denoise") if args.direction == "both" else (args.direction,)
    scores, source = ranking(session.model, args.out, args.seed)
    sets = {f"top{k}": top_heads(scores, k) for k in args.k if k <= len(scores)}
    about = {**about_items(session), "head_scores": source, "sets": {name: str(sets[name]) for name in sets}}
    derived = {"set_sha256": {name: heads.sha256 for name, heads in sets.items()}}
    with open_run(STUDY, args, session.model, about, derived) as folder:
        for item in progress(session.items, len(session.items), "patch", args.quiet):
            done = folder.done_ids("patches")
            todo = [name for name in directions if f"{item.item_id}|{name}" not in done]
            if todo:
                folder.append_all(
                    "patches", patch_item(session, item, vars(args)["from"], args.to, todo, sets)
                )
        shares, joint = write_effects(folder, session, sets)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    best = shares.sort_values(["direction", "share"], ascending=[True, False]).groupby("direction").head(8)
    text = "\n".join([frame_text(best), "", frame_text(joint), meter_text(meter.ran, meter.saved)])
    return Report(f"{text}\nwritten to {args.out}")


def patch_item(
    session: Session, item: Item, source: str, target: str, directions: list[str], sets: Mapping[str, HeadSet]
) -> list[dict[str, Any]]:
    """One row a direction: the difference, and the effect (nats) of every head and joint set."""
    low = decision_run(session.engine, item, source, session.wording)
    high = decision_run(session.engine, item, target, session.wording)
    rows = []
    for direction in directions:
        recipient, donor = (high, low) if direction == "noise" else (low, high)
        sign = -1.0 if direction == "noise" else 1.0

        def effect(score: Score, sign: float = sign, base: float = recipient.score.total) -> float:
            return sign * (score.total - base)

        single = patch_heads(session.engine, recipient, donor)
        joint = patch_sets(session.engine, recipient, donor, sets)
        rows.append(
            {
                "id": f"{item.item_id}|{direction}",
                "item_id": item.item_id,
                "task_id": item.task_id,
                "direction": direction,
                "from": source,
                "to": target,
                "logprob_from": low.score.total,
                "logprob_to": high.score.total,
                "delta": high.score.total - low.score.total,
                "heads": {str(head): effect(score) for head, score in single.items()},
                "sets": {name: effect(score) for name, score in joint.items()},
            }
        )
    return rows


def long_effects(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a patch: layer and head for single heads, `set` for joint ones."""
    lines = []
    for row in rows.to_dict("records"):
        known = [row["item_id"], row["task_id"], row["direction"], row["delta"]]
        for name, effect in row["heads"].items():
            head = Head.parse(name)
            lines.append([*known, head.layer, head.head, None, effect])
        lines += [[*known, None, None, name, effect] for name, effect in row["sets"].items()]
    columns = ["item_id", "task_id", "direction", "delta", "layer", "head", "set", "effect_nats"]
    return pd.DataFrame(lines, columns=columns)


def write_effects(
    folder: RunFolder, session: Session, sets: Mapping[str, HeadSet]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """effects.csv and joint.csv (heads and sets by item); shares.csv and redundancy.csv (over items), returned."""
    long = long_effects(folder.rows("patches"))
    each = item_shares(long)
    single = each["set"].isna()
    folder.write_table("effects", each[single].drop(columns="set"))
    folder.write_table("joint", each[~single].drop(columns=["layer", "head"]))
    members = {name: [(head.layer, head.head) for head in heads] for name, heads in sets.items()}
    shares, joint = head_shares(long, session.rng_for), redundancy(long, members, session.rng_for)
    folder.write_table("shares", shares)
    folder.write_table("redundancy", joint)
    return shares, joint


STUDY = Study(
    "patch",
    "attribute a difference of two conditions to heads by exact noising and denoising",
    "backfire patch --from pre --to neut --direction both --limit 4 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, DIRECTION, K, *RUNNING),
    run,
)
