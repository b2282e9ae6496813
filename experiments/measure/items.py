"""`backfire items`: the environment's decision points as JSON lines, and a table of what is in them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from experiments.run.left_out import of_candidates, of_conditions
from experiments.run.session import read_items
from experiments.run.study import Flag, PoolOptions, Report, Study
from probes.items.item import FRAME, dump_items
from probes.prompts.conditions import CONDITIONS


@dataclass(frozen=True, kw_only=True)
class ItemsConfig(PoolOptions):
    """What `backfire items` is given."""

    out: Annotated[Path | None, Flag("file to write the items to", presentation=True)] = None


def run(config: ItemsConfig) -> Report:
    """Make (or read and select) items; write them where --out says."""
    items = read_items(config)
    environments = ", ".join(sorted({item.env for item in items}))
    lines = [f"{len(items)} items, {len({item.task_id for item in items})} tasks, environment {environments}"]
    for title, counts in (
        ("operators", Counter(item.operator for item in items)),
        ("error families", Counter(item.error_type for item in items)),
        ("templates", Counter(item.template for item in items)),
        ("system prompts", Counter(_first_words(item.system_prompt) for item in items)),
        ("frames", Counter(str(item.meta.get(FRAME, "as the wording says")) for item in items)),
    ):
        lines.append(f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    first = items[0]
    lines += [
        "",
        f"example {first.item_id}",
        f"  goal      {first.goal}",
        f"  failed    {first.failed_action}",
    ]
    lines += [f"  observed  {first.obs_fail}", f"  reference {first.gold_action or '(none)'}"]
    lines += [
        f"{one.what}: {one.why}" for one in [*of_conditions(items, tuple(CONDITIONS)), *of_candidates(items)]
    ]
    if config.out is not None:
        dump_items(items, config.out)
        lines.append(f"written to {config.out}")
    return Report("\n".join(lines))


def _first_words(prompt: str) -> str:
    """Enough of a system prompt to know it by."""
    return repr(" ".join(prompt.split()[:6]))


STUDY = Study(
    "items",
    "backfire items --seed 0 --out items.jsonl",
    ItemsConfig,
    run,
)
