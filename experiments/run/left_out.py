"""What a study leaves out of which items because they lack what it needs: said, recorded, and in a table.

run.json has it under `left_out`, left_out.csv has a line each (study, what, n, why), and the report names it. What is
left out is never a zero or a NaN in a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from experiments.run.run_folder import RunFolder
from experiments.run.schema import TABLES
from experiments.run.session import Session
from mech.errors import InputError
from probes.items.item import Item
from probes.prompts.conditions import lacking

REFERENCE_ACTION = "reference action"
FOUR_CANDIDATES = "p_repeat4"


@dataclass(frozen=True)
class LeftOut:
    """A condition or measure that `n` items are left out of, and why."""

    what: str
    n: int
    why: str


def of_conditions(items: Sequence[Item], names: Sequence[str]) -> list[LeftOut]:
    """The conditions that some items cannot be put under."""
    found = []
    for name in names:
        reasons = Counter(reason for item in items for reason in [lacking(item, name)] if reason)
        if reasons:
            why = ", ".join(f"{n} items have {reason}" for reason, n in reasons.items())
            found.append(LeftOut(name, reasons.total(), why))
    return found


def of_candidates(items: Sequence[Item], four: bool = False) -> list[LeftOut]:
    """The reference action where items have none; `four`: and the choice among four, where distractors are scored."""
    without = sum(item.gold_action is None for item in items)
    found = []
    if without:
        needs = "p_repeat, repair and margin_shift need it"
        found.append(LeftOut(REFERENCE_ACTION, without, f"{without} items have no gold_action ({needs})"))
    fewer = sum(item.gold_action is not None and len(item.distractors) < 2 for item in items)
    if four and fewer:
        found.append(LeftOut(FOUR_CANDIDATES, fewer, f"{fewer} items have fewer than two distractors"))
    return found


def conditions_of(item: Item, names: Sequence[str]) -> list[str]:
    """The conditions that the item can be put under."""
    return [name for name in names if lacking(item, name) is None]


def restricted(session: Session, names: Collection[str]) -> Session:
    """The session with the items that can be put under all of these conditions; what the others lack is noted.

    Raises:
        InputError: there is no such item.
    """
    left_out = of_conditions(session.items, list(names))
    items = [item for item in session.items if len(conditions_of(item, list(names))) == len(names)]
    if not items:
        raise InputError(
            f"No item can be put under {' and '.join(names)}: {left_out[0].what}: {left_out[0].why}."
        )
    return noted(replace(session, items=items), left_out)


def noted(session: Session, left_out: Sequence[LeftOut]) -> Session:
    """The session with a note of what is left out, which `session.about_items` records."""
    return replace(session, left_out={**session.left_out, **{one.what: (one.n, one.why) for one in left_out}})


def write_left_out(folder: RunFolder, session: Session) -> list[str]:
    """Put the session's notes into left_out.csv, in the place of the study's earlier ones; the lines for its report."""
    lines = [(folder.study, what, n, why) for what, (n, why) in session.left_out.items()]
    table = pd.DataFrame(lines, columns=list(TABLES["left_out"]))
    if (folder.path / "left_out.csv").exists():
        old = folder.read_table("left_out")
        table = pd.concat([old[old["study"] != folder.study], table], ignore_index=True)
        folder.write_table("left_out", table)
    elif lines:
        folder.write_table("left_out", table)
    return [f"left out: {what}: {why}" for what, (_, why) in session.left_out.items()]
