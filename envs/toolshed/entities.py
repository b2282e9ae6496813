"""Things that aren't there: a name of the right shape that the world lacks, and the world that has it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from envs.toolshed.calls import Call
from envs.toolshed.world import (
    FIRST_NAMES,
    GROUPS,
    LAST_NAMES,
    LINES,
    STEMS,
    TIMES,
    Document,
    Meeting,
    Person,
    Unit,
    World,
    address_of,
    make_days,
)

Ghost = tuple[str, World]

_GROUPS = ("arboretum", "nursery", "rockery", "seedbank")
_MEETINGS = ("Hedge survey", "Lantern night", "Rain barrels", "Volunteer tea")
_UNITS = {
    "length": (Unit("rod", "length", 5.0292), Unit("fathom", "length", 1.8288)),
    "mass": (Unit("stone", "mass", 6.35029318), Unit("quintal", "mass", 100.0)),
    "volume": (Unit("bushel", "volume", 35.23907016688), Unit("firkin", "volume", 40.91481)),
}


def _person(world: World, rng: random.Random) -> tuple[Person, World]:
    firsts = [
        each for each in FIRST_NAMES if not any(one.name.startswith(f"{each} ") for one in world.people)
    ]
    lasts = [each for each in LAST_NAMES if not any(one.name.endswith(f" {each}") for one in world.people)]
    name = f"{rng.choice(firsts)} {rng.choice(lasts)}"
    person = Person(name, address_of(name), rng.choice(GROUPS))
    return person, replace(world, people=tuple(sorted([*world.people, person])))


def _name(world: World, gold: Call, rng: random.Random) -> Ghost:
    person, imagined = _person(world, rng)
    return person.name, imagined


def _address(world: World, gold: Call, rng: random.Random) -> Ghost:
    person, imagined = _person(world, rng)
    return person.address, imagined


def _group(world: World, gold: Call, rng: random.Random) -> Ghost:
    group = rng.choice(_GROUPS)
    first, one_more = _person(world, rng)
    second, _ = _person(one_more, rng)
    members = [replace(each, group=group) for each in (first, second)]
    return group, replace(world, people=tuple(sorted([*world.people, *members])))


def _document(world: World, gold: Call, rng: random.Random) -> Ghost:
    directory = gold.value("location").partition("/")[0]
    taken = {each.location for each in world.documents}
    places = [f"{directory}/{stem}.txt" for stem in STEMS[directory]]
    place = rng.choice([each for each in places if each not in taken])
    texts = [each for each in LINES if all(each != one.text for one in world.documents)] or list(LINES)
    document = Document(place, rng.choice(texts))
    return place, replace(world, documents=tuple(sorted([*world.documents, document])))


def _meeting(world: World, gold: Call, rng: random.Random) -> Ghost:
    ref = f"mt-{int(world.next_ref()[3:]) + rng.randrange(3, 15)}"
    guest = rng.choice(world.people).address
    meeting = Meeting(ref, rng.choice(_MEETINGS), make_days(rng, 1)[0], rng.choice(TIMES), (guest,))
    return ref, replace(world, meetings=tuple(sorted([*world.meetings, meeting])))


def _unit(world: World, gold: Call, rng: random.Random) -> Ghost:
    kind = next(each.kind for each in world.units if each.name == gold.value("unit"))
    unit = rng.choice(_UNITS[kind])
    return unit.name, replace(world, units=tuple(sorted([*world.units, unit])))


# By argument. A unit is replaced where it is the target: the amount keeps the unit the task named.
GHOSTS: dict[str, Callable[[World, Call, random.Random], Ghost]] = {
    "full_name": _name,
    "address": _address,
    "guests": _address,
    "group": _group,
    "location": _document,
    "ref": _meeting,
    "target": _unit,
}
