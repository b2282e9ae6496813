"""`backfire manipulations`: the same failure written in other ways, each against the standard record, paired.

Shorter, longer, with the call quoted, with as many tokens quoted that are not the call, repeated, moved, put in
abstract terms, with an instruction, and two placebos (a near and an unrelated call) in which a× was never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from experiments.measure.measuring import (
    Scoring,
    ScoringOptions,
    open_scoring,
    score_unit,
    scoring_study,
    scoring_units,
)
from experiments.run.left_out import LeftOut, conditions_of
from experiments.run.run_study import Tables
from experiments.run.study import Flag, Report
from experiments.run.tables import frame_text
from probes.items.item import Item
from probes.prompts.conditions import CONDITIONS, parse_conditions
from probes.stats.families import family_lines
from probes.stats.layout import UNABLATED


@dataclass(frozen=True, kw_only=True)
class ManipulationsConfig(ScoringOptions):
    """What `backfire manipulations` is given."""

    conditions: Annotated[str, Flag("all, or a list; pre and fail are always among them")] = "all"


def open_manipulations(config: ManipulationsConfig) -> Scoring:
    """The conditions asked for; what items cannot be put under is noted."""
    asked = {*parse_conditions(config.conditions), "pre", "fail"}
    names = [name for name in CONDITIONS if name in asked]
    context = open_scoring(config, names, four=False, further=lambda items: of_steps(items, names))
    early = {item.item_id for item in context.session.items if _movable(item, context.session.items)}

    def names_of(item: Item) -> list[str]:
        return [name for name in conditions_of(item, names) if name != "fail_early" or item.item_id in early]

    return replace(context, names_of=names_of)


def report(_: Scoring, tables: Tables) -> Report:
    """Every manipulation's paired change."""
    shown = tables["manipulations"].drop(columns=["model", "n_clusters", "deff", "p", "family_size"])
    lines = ["change of log p(a×) against the standard record, nats per action, and G of the same items"]
    for (env, label), group in shown.groupby(["env", "ablation"], sort=False):
        arm = "" if label == UNABLATED else f", ablation {label}"
        table = frame_text(group.drop(columns=["env", "ablation"]).sort_values("delta"))
        lines += ["", f"== {env}{arm}", table]
    return Report("\n".join([*lines, "", *family_lines(tables["manipulations"], "manipulations")]))


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


STUDY = scoring_study(
    "manipulations",
    "backfire manipulations --env toolshed --limit 24 --out runs/split",
    ManipulationsConfig,
    open=open_manipulations,
    units=scoring_units,
    measure=score_unit,
    report=report,
)
