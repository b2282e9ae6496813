"""`backfire patch`: what carries Δcopy (or any difference of two conditions), by exact activation patching.

    noise     run TO with one part's activation from FROM:   effect = logp(TO) − logp(patched)
    denoise   run FROM with one part's activation from TO:   effect = logp(patched) − logp(FROM)

logp is of a×, and of the reference action for the margin of the two, each patched from a run of the same action: tables
hold every metric of `probes.scoring.contrast` (--metric: which is shown, and which a screen ranks by).

share = effect / (logp(TO) − logp(FROM)), both of one metric; with --from pre --to neut that difference is Δcopy, with
--from neut --to fail Δsem, with --from neut_matched --to neut Δcopy against a record of equal length. --site says what
is taken (z of a head, its queries or pattern, keys or values by key/value head, a layer's MLP output or residual
stream), --at where.
All parts one by one, and joint sets of the top k heads by prefix-matching score, which no task data have chosen.

A share can exceed 1: with neut_matched as donor the recorded call's values become those of its filler, which heads that
still attend there then copy; that lowers a× more than no record at all would.

One folder holds patches of several sites and pairs: each has an entry of its own in run.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from experiments.heads.ranking import ranking
from experiments.mechanism.metric_views import of_metric, require_metric
from experiments.mechanism.pairs import FROM, TO, about_difference, pair_of, require_conditions
from experiments.mechanism.patch_screen import (
    NO_SCREEN,
    Screen,
    no_screen,
    parse_screen,
    run_screen,
    write_estimates,
)
from experiments.mechanism.patch_tables import GROUP, write_effects
from experiments.run.left_out import write_left_out
from experiments.run.progress import progress
from experiments.run.session import Session, about_items, open_run, open_session
from experiments.run.study import METRIC, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, whole_numbers
from experiments.run.tables import forwards_text, frame_text
from mech.errors import InputError
from mech.head_scores.induction import top_heads
from mech.heads import HeadSet
from probes.items.item import Item
from probes.scoring.contrast import contrast_of
from probes.scoring.metric_sums import effects_of, reference_notes, sums_of
from probes.scoring.pair import AT as PLACES
from probes.scoring.pair import SITES, LengthMismatch, PatchTask, patched, require_pattern_pair

DIRECTION = Option("direction", str, "both", "noise, denoise or both", ("noise", "denoise", "both"))
SITE = Option("site", str, "z", "what is patched; k and v are by key/value head", SITES)
AT = Option(
    "at",
    str,
    "candidate",
    "where: from where the call is repeated, at its tokens in the record, or at the observation",
    PLACES,
)
K = Option("k", whole_numbers, (4, 8, 16, 32), "sizes of the joint sets")
SCREEN = Option(
    "screen", str, NO_SCREEN, "all, or attribution:N to patch the N heads of largest estimate only"
)
DEFAULT = ("z", "candidate", "pre", "neut")


def run(args: argparse.Namespace) -> Report:
    """Patch every item in every asked direction, then derive the tables."""
    group = group_of(args)
    directions = ("noise", "denoise") if args.direction == "both" else (args.direction,)
    size = parse_screen(args.screen, group)
    require_defined(group, directions)
    session = open_session(args, one_env=True)
    session = require_conditions(session, pair_of(args))
    require_metric(session.items, args.metric)
    scores, source = ranking(session.model, args.out, args.seed)
    sets = {f"top{k}": top_heads(scores, k) for k in args.k if k <= len(scores)}
    too_large = [k for k in args.k if k > len(scores)]
    about = {**about_items(session), "head_scores": source, "sets": {name: str(sets[name]) for name in sets}}
    derived: dict[str, Any] = {"set_sha256": {name: heads.sha256 for name, heads in sets.items()}}
    if size is not None:
        derived["screen_metric"] = args.metric  # decides which heads are patched
    skipped: dict[str, str] = {}
    with open_run(replace(STUDY, name=entry_name(group)), args, session.model, about, derived) as folder:
        screen = no_screen(directions)
        if size is not None:
            screen = run_screen(folder, session, group, directions, size, args.metric, args.quiet)
        for item in progress(session.items, len(session.items), "patch", args.quiet):
            done = folder.done_ids("patches")
            todo = [name for name in directions if row_id(item, group, name) not in done]
            if todo:
                try:
                    rows = patch_item(session, item, group, todo, sets, screen)
                except LengthMismatch as reason:
                    skipped[item.item_id] = str(reason)
                else:
                    folder.append_all("patches", rows)
        if len(skipped) == len(session.items):
            raise InputError(f"No item can be patched at the {group[1]}: {next(iter(skipped.values()))}")
        shares, joint = write_effects(folder, session)
        if size is not None:
            write_estimates(folder)
        notes = [
            *write_left_out(folder, session),
            *reference_notes(folder.rows("patches").to_dict("records")),
        ]
        forwards = session.engine.forwards
        counts = {"forwards_run": forwards.ran, "forwards_saved": forwards.saved}
        folder.finish({**counts, "skipped": skipped, "screen": list(screen.notes)})
    text = [
        f"shares of {args.metric}:",
        told(of_metric(shares, args.metric), group),
        "",
        frame_text(of_group(of_metric(joint, args.metric), group)) if len(joint) else "",
        *screen.notes,
        *skips(skipped),
        *notes,
        *(f"There is no top {k}: the model has {len(scores)} heads." for k in too_large),
    ]
    return Report("\n".join([*text, forwards_text(forwards.ran, forwards.saved), f"written to {args.out}"]))


def group_of(args: argparse.Namespace) -> tuple[str, str, str, str]:
    """What a folder tells patches apart by: site, at, from, to."""
    return args.site, args.at, *pair_of(args)


def entry_name(group: tuple[str, str, str, str]) -> str:
    """The study's entry in run.json: `patch`, and its site, place and pair where they are not the default."""
    site, at, source, target = group
    return "patch" if group == DEFAULT else f"patch {site} {at} {source}>{target}"


def row_id(item: Item, group: tuple[str, str, str, str], direction: str) -> str:
    """The id of a row."""
    site, at, source, target = group
    return f"{item.item_id}|{site}|{at}|{source}>{target}|{direction}"


def require_defined(group: tuple[str, str, str, str], directions: tuple[str, ...]) -> None:
    """Raise InputError for a site, place or direction that has no meaning, before anything is run."""
    site, at, source, target = group
    if site != "pattern":
        return
    if at != "candidate":
        raise InputError(
            f"Attention patterns are patched from the action positions, not at the {at}: leave out --at."
        )
    for direction in directions:
        donor, recipient = (source, target) if direction == "noise" else (target, source)
        require_pattern_pair(donor, recipient)


def patch_item(
    session: Session,
    item: Item,
    group: tuple[str, str, str, str],
    directions: list[str],
    sets: Mapping[str, HeadSet],
    screen: Screen,
) -> list[dict[str, Any]]:
    """One row a direction: the differences, and by sum the effect (nats) of every part and joint set.

    Raises:
        LengthMismatch: the two conditions of this item do not correspond where they are patched.
    """
    contrast = contrast_of(session.model, item, session.wording)
    tasks = {
        candidate: PatchTask.of(session.engine, item, group, session.wording, candidate)
        for candidate in contrast.candidates
    }
    first = tasks["failed"]
    differences = about_difference(contrast, {name: (task.low, task.high) for name, task in tasks.items()})
    ends: dict[str, dict[str, float]] = {"logprob_from": {}, "logprob_to": {}}
    for candidate, task in tasks.items():
        ends["logprob_from"].update(sums_of(contrast, candidate, task.low.score))
        ends["logprob_to"].update(sums_of(contrast, candidate, task.high.score))
    rows = []
    for direction in directions:
        effects: dict[str, dict[str, dict[str, float]]] = {"heads": {}, "sets": {}}
        for candidate, task in tasks.items():
            base = (task.high if direction == "noise" else task.low).score
            sign = -1.0 if direction == "noise" else 1.0
            single, joint = patched(session.engine, task, direction, sets, screen.heads[direction])
            scores = {"heads": {str(part): score for part, score in single.items()}, "sets": joint}
            for name in sums_of(contrast, candidate, base):  # also where there are no sets
                for kind in effects:
                    effects[kind][name] = {}
            for kind, found in scores.items():
                for part, score in found.items():
                    for name, value in effects_of(contrast, candidate, sign, score, base).items():
                        effects[kind][name][part] = value
        rows.append(
            {
                "id": row_id(item, group, direction),
                "item_id": item.item_id,
                "task_id": item.task_id,
                "direction": direction,
                **dict(zip(GROUP, group, strict=True)),
                "screen": screen.name,
                "n_positions": len(first.positions) or len(first.low.query.action),
                **ends,
                **differences,
                **effects,
                "members": {name: str(sets[name]) for name in effects["sets"]["failed"]},
            }
        )
    return rows


def of_group(table: pd.DataFrame, group: tuple[str, str, str, str]) -> pd.DataFrame:
    """The rows of one site, place and pair, without the columns that say so."""
    here = (table[list(GROUP)] == list(group)).all(axis=1)
    rows = table[here].drop(columns=[*GROUP, "screen"], errors="ignore")
    numbers = [name for name in ("head", "kv_head") if name in rows and rows[name].isna().all()]
    return rows.drop(columns=numbers)


def told(shares: pd.DataFrame, group: tuple[str, str, str, str]) -> str:
    """The largest shares of each direction."""
    here = of_group(shares, group)
    best = here.sort_values(["direction", "share"], ascending=[True, False]).groupby("direction").head(8)
    return frame_text(best)


def skips(skipped: Mapping[str, str]) -> list[str]:
    """The items that were left out, with the reason of the first."""
    if not skipped:
        return []
    return [f"{len(skipped)} items left out ({', '.join(skipped)}): {next(iter(skipped.values()))}"]


STUDY = Study(
    "patch",
    "attribute a difference of two conditions to heads or layers by exact noising and denoising",
    "backfire patch --from pre --to neut --site z --direction both --limit 4 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, FROM, TO, SITE, AT, DIRECTION, K, SCREEN, METRIC, *RUNNING),
    run,
)
