"""Eight ways to get a call wrong, each knowing what it changed, what was meant, and where that would work.

An operator is a function (world, gold call, rng) → Spoilt, or None where it does not apply. `meant` is the
gold call for slips of form, executed in the world as it is; for a name of something that isn't there, or that
is locked, `meant` is the wrong call itself, executed in a world that has it, or has it unlocked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from envs.base import Action, WrongAction
from envs.toolshed import entities
from envs.toolshed.calls import Call
from envs.toolshed.tools import TOOLS
from envs.toolshed.world import LOCKED_DOCUMENT, World

RENAMED = {
    "directory": "dir", "location": "filepath", "text": "contents", "full_name": "person",
    "group": "group_name", "day": "when", "name": "label", "start": "start_time",
    "guests": "participants", "ref": "meeting", "address": "email", "topic": "headline", "note": "reminder",
    "amount": "number", "unit": "source", "target": "target_unit",
}  # fmt: skip
_MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


@dataclass(frozen=True)
class Spoilt:
    """A wrong call; `meant` and `imagined` are None where they are the gold call and the world itself."""

    call: Call
    changed: str
    meant: Call | None = None
    imagined: World | None = None


Operator = Callable[[World, Call, random.Random], "Spoilt | None"]


def wrong_actions(world: World, gold: Call, rng: random.Random) -> tuple[WrongAction[World], ...]:
    """The wrong versions of a gold call, one an operator where the operator applies."""
    found = []
    for name, operator in OPERATORS.items():
        spoilt = operator(world, gold, rng)
        if spoilt is not None:
            meant, imagined = spoilt.meant or gold, spoilt.imagined or world
            action = Action(str(spoilt.call))
            found.append(WrongAction(action, name, spoilt.changed, Action(str(meant)), imagined))
    return tuple(found)


def _drop_argument(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """The last argument is left out, where another one remains."""
    if len(gold.keywords) < 2:
        return None
    return Spoilt(Call(gold.tool, gold.keywords[:-1]), gold.keywords[-1][0])


def _misspell_tool(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """The tool's name in the other number, or with two letters swapped or one doubled."""
    name = gold.tool
    number = name[:-1] if name.endswith("s") else f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
    at = rng.randrange(name.index("_") + 2, len(name) - 1)
    swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    doubled = name[:at] + name[at] + name[at:]
    written = rng.choice([each for each in (number, swapped, doubled) if each not in TOOLS])
    return Spoilt(replace(gold, tool=written), "tool")


def _rename_argument(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """One argument under a name that would have been as good."""
    chosen = rng.choice([name for name, _ in gold.keywords])
    renamed = tuple((RENAMED[name] if name == chosen else name, value) for name, value in gold.keywords)
    return Spoilt(replace(gold, keywords=renamed), chosen)


def _confuse_type(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """A list as its only text, a number as a text, a text as the number or the list that it spells."""
    for name, value in gold.keywords:
        confused = _confused(name, value)
        if confused is not None:
            return Spoilt(gold.put(name, confused), name)
    return None


def _confused(name: str, value: object) -> object | None:
    if isinstance(value, list):
        return value[0] if len(value) == 1 else None
    if isinstance(value, float):
        return repr(value)
    if name == "text" and isinstance(value, str):
        if ", " in value:
            return value.split(", ")
        if value.replace(".", "", 1).isdigit():
            return float(value)
    return None


def _humanise_date(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """A day as people write it."""
    for name, value in gold.keywords:
        if name == "day":
            year, month, day = value.split("-")
            word, number = _MONTHS[int(month) - 1], int(day)
            ways = (f"{word} {number}, {year}", f"{number} {word} {year}", f"{day}/{month}/{year}")
            return Spoilt(gold.put(name, rng.choice(ways)), name)
    return None


def _unknown_entity(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """A person, group, document, meeting or unit that isn't there; the imagined world has it."""
    for name, value in gold.keywords:
        if gold.tool == "save_document" or name not in entities.GHOSTS:
            continue
        ghost, imagined = entities.GHOSTS[name](world, gold, rng)
        call = gold.put(name, [ghost] if isinstance(value, list) else ghost)
        return Spoilt(call, name, call, imagined)
    return None


def _name_for_address(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """A person's name where that person's address belongs."""
    names = {each.address: each.name for each in world.people}
    for name, value in gold.keywords:
        if name == "address":
            return Spoilt(gold.put(name, names[value]), name)
        if name == "guests":
            return Spoilt(gold.put(name, [names[each] for each in value]), name)
    return None


def _readonly_target(world: World, gold: Call, rng: random.Random) -> Spoilt | None:
    """The locked document as the target of a change; the imagined world has it unlocked."""
    if gold.tool not in ("save_document", "remove_document"):
        return None
    unlocked = tuple(replace(each, locked=False) for each in world.documents)
    call = gold.put("location", LOCKED_DOCUMENT)
    return Spoilt(call, "location", call, replace(world, documents=unlocked))


OPERATORS: dict[str, Operator] = {
    "drop_argument": _drop_argument,
    "misspell_tool": _misspell_tool,
    "rename_argument": _rename_argument,
    "confuse_type": _confuse_type,
    "humanise_date": _humanise_date,
    "unknown_entity": _unknown_entity,
    "name_for_address": _name_for_address,
    "readonly_target": _readonly_target,
}
