"""`backfire manipulations`: the same failure written in other ways, each against the standard record, paired.

Shorter, longer, with the call quoted, with as many tokens quoted that are not the call, repeated, moved, put in
abstract terms, with an instruction, and two placebos (a near and an unrelated call) in which a× was never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from experiments.heads.arms import ablation_arms, parse_arms
from experiments.measure.measuring import Scoring, ScoringOptions, scoring_study
from experiments.run.left_out import LeftOut, conditions_of, noted, of_candidates, of_conditions
from experiments.run.run_study import Tables
from experiments.run.session import open_session
from experiments.run.study import Flag, Report
from experiments.run.tables import frame_text
from probes.items.item import Item
from probes.prompts.conditions import CONDITIONS, parse_conditions
from probes.scoring.score import DISTRACTORS_IN
from probes.stats.families import family_lines
from probes.stats.layout import UNABLATED


@dataclass(frozen=True, kw_only=True)
class ManipulationsConfig(ScoringOptions):
    """What `backfire manipulations` is given."""

    conditions: Annotated[str, Flag("all, or a list; pre and fail are always among them")] = "all"


def open_manipulations(config: ManipulationsConfig) -> Scoring:
    """The conditions asked for; what items cannot be put under is noted."""
    asked = {*parse_conditions(config.conditions), "pre", "fail"}
    parse_arms(config)  # a mistake there costs nothing
    session = open_session(config)
    arms = ablation_arms(session, config)
    names = [name for name in CONDITIONS if name in asked]
    items = session.items
    session = noted(session, [*of_steps(items, names), *of_conditions(items, names), *of_candidates(items)])
    early = {item.item_id: _movable(item, items) for item in items}

    def names_of(item: Item) -> list[str]:
        possible = conditions_of(item, names)
        return [name for name in possible if name != "fail_early" or early[item.item_id]]

    return Scoring(session, names_of=names_of, distractors_in=DISTRACTORS_IN, arms=arms, delta=config.delta)


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
    open_manipulations,
    report,
)
