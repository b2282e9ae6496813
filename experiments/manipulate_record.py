"""`backfire manipulations`: the same failure written in other ways, each against the standard record, paired.

Shorter, longer, with the call quoted, with as many tokens quoted that are not the call, repeated, moved, put in
abstract terms, with an instruction, and two placebos (a near and an unrelated call) in which a× was never written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence

from experiments.ablating import ABLATING, ablation
from experiments.measuring import derive, score_all
from experiments.options import DELTA, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study
from experiments.session import about_items, open_run, open_session
from experiments.tables import frame_text, meter_text
from probes.conditions import CONDITIONS, UNRELATED, parse_conditions
from probes.items import Item
from probes.scoring import DISTRACTORS_IN

CONDITIONS_ALL = Option("conditions", str, "all", "all, or a list; pre and fail are always among them")


def run(args: argparse.Namespace) -> Report:
    """Score what is missing, derive the tables, print every manipulation's paired change."""
    asked = {*parse_conditions(args.conditions), "pre", "fail"}
    session = open_session(args)
    change = ablation(session, args)
    choice = Choice([name for name in CONDITIONS if name in asked], session.items)
    about = {**about_items(session), "left_out": choice.left_out, **change.about}
    with open_run(STUDY, args, session.model, about, change.derived) as folder:
        score_all(folder, session, choice.names_of, DISTRACTORS_IN, args.quiet, change.intervention)
        tables = derive(folder, session, args.delta)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    shown = tables.manipulations.drop(columns=["model", "n_clusters", "p"])
    lines = ["change of log p(a×) against the standard record, nats per action, and G of the same items"]
    for env, group in shown.groupby("env", sort=True):
        lines += ["", f"== {env}", frame_text(group.drop(columns="env").sort_values("delta"))]
    lines += ["", *(f"left out: {name}: {why}" for name, why in choice.left_out.items())]
    lines += [meter_text(meter.ran, meter.saved), f"written to {args.out}"]
    return Report("\n".join(lines))


class Choice:
    """Which of some conditions an item is put under, and which are left out where, and why."""

    def __init__(self, names: Sequence[str], items: Sequence[Item]) -> None:
        self.names = names
        self.with_steps = {item.env for item in items if item.step_index}
        without_steps = sorted({item.env for item in items} - self.with_steps)
        self.left_out: dict[str, str] = {}
        if "fail_early" in names and without_steps:
            environments = ", ".join(without_steps)
            self.left_out["fail_early"] = (
                f"{environments} has no step to move the failure before: it would equal fail"
            )
        for name, (has, what) in _NEEDS.items():
            lacking = sum(not has(item) for item in items)
            if name in names and lacking:
                self.left_out[name] = f"{lacking} items have no {what}"

    def names_of(self, item: Item) -> list[str]:
        """The conditions of an item."""
        out = {name for name, (has, _) in _NEEDS.items() if not has(item)}
        out |= set() if item.env in self.with_steps else {"fail_early"}
        return [name for name in self.names if name not in out]


_NEEDS: Mapping[str, tuple[Callable[[Item], bool], str]] = {
    "fail_other": (lambda item: bool(item.distractors), "distractor"),
    "fail_unrelated": (lambda item: set(UNRELATED) <= set(item.meta), "unrelated call in the pool"),
    "quote_matched": (
        lambda item: item.failed_action in item.obs_fail_echo,
        "failed action in obs_fail_echo",
    ),
}
"""Condition → what an item must have for it, and how that is called."""


STUDY = Study(
    "manipulations",
    "write the same failure in other ways and measure each against the standard record",
    "backfire manipulations --env toolshed --limit 24 --out runs/split",
    (*ON_MODEL, *ON_ITEMS, *ABLATING, CONDITIONS_ALL, DELTA, *RUNNING),
    run,
)
