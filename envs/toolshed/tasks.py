"""Six errands of two or three calls: the sentence a user would write, and the calls that carry it out."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta

from envs.toolshed.calls import Call
from envs.toolshed.world import LOCKED_DOCUMENT, TIMES, World, make_days, make_world

Errand = tuple[str, tuple[Call, ...]]


@dataclass(frozen=True)
class Plan:
    """A task before its calls were run."""

    template: str
    goal: str
    calls: tuple[Call, ...]
    start: World


def make_plan(index: int, rng: random.Random) -> Plan:
    """The errand of this index: templates in rotation, everything else drawn."""
    names = list(TEMPLATES)
    template = names[index % len(names)]
    world = make_world(rng)
    goal, calls = TEMPLATES[template](world, rng)
    return Plan(template, goal, calls, world)


def _call(tool: str, **keywords: object) -> Call:
    return Call(tool, tuple(keywords.items()))


def _forward(world: World, rng: random.Random) -> Errand:
    person = rng.choice(world.people)
    document = rng.choice([each for each in world.documents if each.location != LOCKED_DOCUMENT])
    topic = document.location.partition("/")[2].partition(".")[0]
    goal = (
        f"{person.name} would like to read {document.location}: mail the text over, with the topic {topic!r}."
    )
    return goal, (
        _call("lookup_person", full_name=person.name),
        _call("open_document", location=document.location),
        _call("post_mail", address=person.address, topic=topic, text=document.text),
    )


def _call_off(world: World, rng: random.Random) -> Errand:
    meeting = rng.choice(world.meetings)
    eve = (date.fromisoformat(meeting.day) - timedelta(days=1)).isoformat()
    note = f"{meeting.name} is off"
    goal = (
        f"The meeting {meeting.name!r} on {meeting.day} will not take place. "
        f"Strike it, and plan the reminder {note!r} for {eve}."
    )
    return goal, (
        _call("day_agenda", day=meeting.day),
        _call("drop_meeting", ref=meeting.ref),
        _call("plan_reminder", note=note, day=eve),
    )


def _invite(world: World, rng: random.Random) -> Errand:
    person = rng.choice(world.people)
    name = rng.choice(("Catch-up", "First visit", "Handover", "Plant clinic"))
    day, start = make_days(rng, 1)[0], rng.choice(TIMES)
    goal = f"Book the meeting {name!r} on {day} at {start} and invite {person.name}, nobody else."
    return goal, (
        _call("lookup_person", full_name=person.name),
        _call("book_meeting", name=name, day=day, start=start, guests=[person.address]),
    )


def _name_list(world: World, rng: random.Random) -> Errand:
    group = rng.choice(world.groups)
    names = ", ".join(each.name for each in world.people if each.group == group)
    location = f"{rng.choice(('beds', 'minutes', 'orders'))}/names.txt"
    goal = f"Who is in the group {group!r}? Save their full names, with commas between them, in {location}."
    return goal, (
        _call("group_members", group=group),
        _call("save_document", location=location, text=names),
    )


def _clear_out(world: World, rng: random.Random) -> Errand:
    document = rng.choice([each for each in world.documents if each.location != LOCKED_DOCUMENT])
    directory, day = document.location.partition("/")[0], make_days(rng, 1)[0]
    note = f"look through {directory} again"
    goal = (
        f"See what is in {directory}, remove {document.location} from it, "
        f"and plan the reminder {note!r} for {day}."
    )
    return goal, (
        _call("show_directory", directory=directory),
        _call("remove_document", location=document.location),
        _call("plan_reminder", note=note, day=day),
    )


def _measure(world: World, rng: random.Random) -> Errand:
    unit = rng.choice(world.units)
    target = rng.choice([each for each in world.units if each.kind == unit.kind and each != unit])
    amount = rng.choice((12, 18, 24, 35, 42, 56, 75, 90)) + rng.choice((0.0, 0.5))
    location = f"{rng.choice(('beds', 'minutes', 'orders'))}/amount.txt"
    goal = f"How much is {amount} {unit.name} in {target.name}? Save the bare number in {location}."
    result = f"{amount * unit.factor / target.factor:.2f}"
    return goal, (
        _call("convert_amount", amount=amount, unit=unit.name, target=target.name),
        _call("save_document", location=location, text=result),
    )


TEMPLATES: dict[str, Callable[[World, random.Random], Errand]] = {
    "forward": _forward,
    "call_off": _call_off,
    "invite": _invite,
    "name_list": _name_list,
    "clear_out": _clear_out,
    "measure": _measure,
}
