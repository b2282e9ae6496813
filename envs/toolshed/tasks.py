"""Tasks of two or three calls: the sentence a user would write, and the calls that carry it out.

PAPER_TEMPLATES are the six kinds of the paper's design: rollouts take these, and pools that are held against its
numbers. TEMPLATES has eight more, so that there are enough kinds of task to generalise over: texts moved and read,
meetings put off and noted, mail after a look at a group, a reminder with an address, several guests, a number by mail.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta

from envs.toolshed.calls import Call
from envs.toolshed.world import DIRECTORIES, LOCKED_DOCUMENT, TIMES, World, make_days, make_world

TaskPlan = tuple[str, tuple[Call, ...]]
Draw = Callable[[World, random.Random], TaskPlan]


@dataclass(frozen=True)
class Plan:
    """A task before its calls were run."""

    template: str
    goal: str
    calls: tuple[Call, ...]
    start: World


def make_plan(index: int, rng: random.Random, templates: Mapping[str, Draw] | None = None) -> Plan:
    """The task of this index: templates (the paper's where none are given) in rotation, everything else drawn."""
    known = PAPER_TEMPLATES if templates is None else templates
    template = list(known)[index % len(known)]
    world = make_world(rng)
    goal, calls = known[template](world, rng)
    return Plan(template, goal, calls, world)


def _call(tool: str, **keywords: object) -> Call:
    return Call(tool, tuple(keywords.items()))


def _forward(world: World, rng: random.Random) -> TaskPlan:
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


def _call_off(world: World, rng: random.Random) -> TaskPlan:
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


def _invite(world: World, rng: random.Random) -> TaskPlan:
    person = rng.choice(world.people)
    name = rng.choice(("Catch-up", "First visit", "Handover", "Plant clinic"))
    day, start = make_days(rng, 1)[0], rng.choice(TIMES)
    goal = f"Book the meeting {name!r} on {day} at {start} and invite {person.name}, nobody else."
    return goal, (
        _call("lookup_person", full_name=person.name),
        _call("book_meeting", name=name, day=day, start=start, guests=[person.address]),
    )


def _name_list(world: World, rng: random.Random) -> TaskPlan:
    group = rng.choice(world.groups)
    names = ", ".join(each.name for each in world.people if each.group == group)
    location = f"{rng.choice(('beds', 'minutes', 'orders'))}/names.txt"
    goal = f"Who is in the group {group!r}? Save their full names, with commas between them, in {location}."
    return goal, (
        _call("group_members", group=group),
        _call("save_document", location=location, text=names),
    )


def _clear_out(world: World, rng: random.Random) -> TaskPlan:
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


def _measure(world: World, rng: random.Random) -> TaskPlan:
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


def _move(world: World, rng: random.Random) -> TaskPlan:
    document = rng.choice([each for each in world.documents if each.location != LOCKED_DOCUMENT])
    directory, _, stem = document.location.partition("/")
    location = f"{rng.choice([each for each in DIRECTORIES if each != directory])}/{stem}"
    goal = f"{document.location} is in the wrong place: its text belongs in {location}. Leave no copy behind."
    return goal, (
        _call("open_document", location=document.location),
        _call("save_document", location=location, text=document.text),
        _call("remove_document", location=document.location),
    )


def _postpone(world: World, rng: random.Random) -> TaskPlan:
    meeting = rng.choice(world.meetings)
    later = (date.fromisoformat(meeting.day) + timedelta(days=rng.choice((7, 14)))).isoformat()
    goal = (
        f"Put off {meeting.name!r} from {meeting.day} to {later}: strike the old entry and book it anew, "
        "with the same start and the same guests."
    )
    return goal, (
        _call("day_agenda", day=meeting.day),
        _call("drop_meeting", ref=meeting.ref),
        _call("book_meeting", name=meeting.name, day=later, start=meeting.start, guests=list(meeting.guests)),
    )


def _round_mail(world: World, rng: random.Random) -> TaskPlan:
    group = rng.choice(world.groups)
    first = next(each for each in world.people if each.group == group)
    topic, text = rng.choice(_NEWS)
    goal = f"Find out who is in {group!r} and mail the first of them the text {text!r}, with the topic {topic!r}."
    return goal, (
        _call("group_members", group=group),
        _call("post_mail", address=first.address, topic=topic, text=text),
    )


def _ring_back(world: World, rng: random.Random) -> TaskPlan:
    person, day = rng.choice(world.people), make_days(rng, 1)[0]
    goal = f"Look up the address of {person.name} and plan a reminder for {day} that says 'write to' and the address."
    return goal, (
        _call("lookup_person", full_name=person.name),
        _call("plan_reminder", note=f"write to {person.address}", day=day),
    )


def _quote(world: World, rng: random.Random) -> TaskPlan:
    person, unit = rng.choice(world.people), rng.choice(world.units)
    target = rng.choice([each for each in world.units if each.kind == unit.kind and each != unit])
    amount = rng.choice((15, 21, 28, 36, 48, 64, 72, 96)) + rng.choice((0.0, 0.5))
    goal = (
        f"{person.name} asks what {amount} {unit.name} are in {target.name}: "
        "mail the bare number, with the topic 'amount'."
    )
    return goal, (
        _call("convert_amount", amount=amount, unit=unit.name, target=target.name),
        _call("lookup_person", full_name=person.name),
        _call(
            "post_mail",
            address=person.address,
            topic="amount",
            text=f"{amount * unit.factor / target.factor:.2f}",
        ),
    )


def _note_down(world: World, rng: random.Random) -> TaskPlan:
    meeting = rng.choice(world.meetings)
    location = f"{rng.choice(DIRECTORIES)}/diary.txt"
    goal = f"Write the name of the meeting on {meeting.day}, and nothing else, into {location}."
    return goal, (
        _call("day_agenda", day=meeting.day),
        _call("save_document", location=location, text=meeting.name),
    )


def _gather(world: World, rng: random.Random) -> TaskPlan:
    group = rng.choice(world.groups)
    guests = [each.address for each in world.people if each.group == group]
    name = rng.choice(("Inventory", "Planting day", "Rehearsal", "Safety drill"))
    day, start = make_days(rng, 1)[0], rng.choice(TIMES)
    goal = f"Everyone in {group!r} is to come to the meeting {name!r} on {day} at {start}: book it."
    return goal, (
        _call("group_members", group=group),
        _call("book_meeting", name=name, day=day, start=start, guests=guests),
    )


def _read_up(world: World, rng: random.Random) -> TaskPlan:
    document = rng.choice([each for each in world.documents if each.location != LOCKED_DOCUMENT])
    directory, day = document.location.partition("/")[0], make_days(rng, 1)[0]
    goal = (
        f"List {directory}, read {document.location} there, "
        f"and plan a reminder for {day} with the very words of the document."
    )
    return goal, (
        _call("show_directory", directory=directory),
        _call("open_document", location=document.location),
        _call("plan_reminder", note=document.text, day=day),
    )


_NEWS = (
    ("frost", "cover the citrus tonight"),
    ("keys", "the spare keys are in the kiosk"),
    ("parking", "the east gate is shut this week"),
    ("tools", "bring the long rake back"),
)

PAPER_TEMPLATES: dict[str, Draw] = {
    "forward": _forward,
    "call_off": _call_off,
    "invite": _invite,
    "name_list": _name_list,
    "clear_out": _clear_out,
    "measure": _measure,
}

MORE_TEMPLATES: dict[str, Draw] = {
    "move": _move,
    "postpone": _postpone,
    "round_mail": _round_mail,
    "ring_back": _ring_back,
    "quote": _quote,
    "note_down": _note_down,
    "gather": _gather,
    "read_up": _read_up,
}

TEMPLATES: dict[str, Draw] = {**PAPER_TEMPLATES, **MORE_TEMPLATES}
