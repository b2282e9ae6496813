"""`backfire manipulations`: the same failure written in other ways, each against the standard record, paired.

Shorter, longer, with the call quoted, with as many tokens quoted that are not the call, repeated, moved, put in
abstract terms, with an instruction, and two placebos (a near and an unrelated call) in which a× was never written.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from experiments.heads.ablation import ABLATING
from experiments.heads.arms import ablation_arms, parse_arms
from experiments.measure.measuring import derive, score_all
from experiments.run.left_out import (
    LeftOut,
    conditions_of,
    noted,
    of_candidates,
    of_conditions,
    write_left_out,
)
from experiments.run.session import about_items, open_run, open_session
from experiments.run.study import DELTA, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study
from experiments.run.tables import forwards_text, frame_text
from probes.items.item import Item
from probes.prompts.conditions import CONDITIONS, parse_conditions
from probes.scoring.score import DISTRACTORS_IN
from probes.stats.families import family_lines
from probes.stats.layout import UNABLATED

CONDITIONS_ALL = Option("conditions", str, "all", "all, or a list; pre and fail are always among them")


def run(args: argparse.Namespace) -> Report:
    """Score what is missing, derive the tables, print every manipulation's paired change."""
    asked = {*parse_conditions(args.conditions), "pre", "fail"}
    parse_arms(args)  # a mistake there costs nothing
    session = open_session(args)
    arms = ablation_arms(session, args)
    names = [name for name in CONDITIONS if name in asked]
    items = session.items
    session = noted(session, [*of_steps(items, names), *of_conditions(items, names), *of_candidates(items)])
    early = {item.item_id: _movable(item, items) for item in items}

    def names_of(item: Item) -> list[str]:
        possible = conditions_of(item, names)
        return [name for name in possible if name != "fail_early" or early[item.item_id]]

    about = {**about_items(session), **arms.about}
    with open_run(STUDY, args, session.model, about, arms.derived) as folder:
        score_all(folder, session, names_of, DISTRACTORS_IN, args.quiet, arms.arms)
        tables = derive(folder, session, args.delta, arms.labels)
        notes = [*write_left_out(folder, session), *arms.notes]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved, **arms.fitted})
    shown = tables.manipulations.drop(columns=["model", "n_clusters", "deff", "p", "family_size"])
    lines = ["change of log p(a×) against the standard record, nats per action, and G of the same items"]
    for (env, label), group in shown.groupby(["env", "ablation"], sort=False):
        arm = "" if label == UNABLATED else f", ablation {label}"
        lines += [
            "",
            f"== {env}{arm}",
            frame_text(group.drop(columns=["env", "ablation"]).sort_values("delta")),
        ]
    lines += ["", *family_lines(tables.manipulations, "manipulations"), *notes]
    lines += [forwards_text(forwards.ran, forwards.saved), f"written to {args.out}"]
    return Report("\n".join(lines))


def of_steps(items: Sequence[Item], names: Sequence[str]) -> list[LeftOut]:
    """`fail_early`, where no item of an environment has a step to move the failure before."""
    without = [item for item in items if not _movable(item, items)]
    if "fail_early" not in names or not without:
        return []
    environments = ", ".join(sorted({item.env for item in without}))
    why = f"{environments} has no step to move the failure before: it would equal fail"
    return [LeftOut("fail_early", len(without), why)]


def _movable(item: Item, items: Sequence[Item]) -> bool:
    """Whether the item's environment has items with steps before the failure."""
    return any(other.step_index for other in items if other.env == item.env)


STUDY = Study(
    "manipulations",
    "write the same failure in other ways and measure each against the standard record",
    "backfire manipulations --env toolshed --limit 24 --out runs/split",
    (*ON_MODEL, *ON_ITEMS, *ABLATING, CONDITIONS_ALL, DELTA, *RUNNING),
    run,
)
