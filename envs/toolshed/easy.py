"""Tasks of one call, for policies to act on: the goal names every value in the form the tool wants.

A small model can carry them out by copying. Each changes the world, so that the world says whether it was done.
In a rollout they alternate with the tasks of several calls.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from envs.toolshed import tasks
from envs.toolshed.calls import Call
from envs.toolshed.tasks import Plan, TaskPlan
from envs.toolshed.world import DIRECTORIES, LOCKED_DOCUMENT, STEMS, TIMES, World, make_days, make_world

_NOTES = (
    "air the seed room", "clean the labels", "feed the carp", "oil the gate", "sort the bulbs", "water the figs",
)  # fmt: skip
_TEXTS = (  # none of them is what a document holds from the start
    "closed until noon", "gloves are in the shed", "mulch came today", "six trays are left", "the hose leaks",
    "use the north door",
)  # fmt: skip
_TOPICS = ("gate", "hose", "news", "plants", "shed")
_MEETINGS = ("Bee talk", "Fern walk", "Key return", "Soil check")


def rollout_plan(index: int, rng: random.Random) -> Plan:
    """The task of this index in a cycle of twelve: easy ones at even places, the paper's at odd ones."""
    task_plans = tasks.PAPER_TEMPLATES if index % 2 else EASY
    template = list(task_plans)[index // 2 % len(task_plans)]
    world = make_world(rng)
    goal, calls = task_plans[template](world, rng)
    return Plan(template, goal, calls, world)


def _remind(world: World, rng: random.Random) -> TaskPlan:
    note, day = rng.choice(_NOTES), make_days(rng, 1)[0]
    call = Call("plan_reminder", (("note", note), ("day", day)))
    return f"Plan the reminder {note!r} for {day}.", (call,)


def _strike(world: World, rng: random.Random) -> TaskPlan:
    ref = rng.choice(world.meetings).ref
    return f"Strike the meeting {ref!r} from the calendar.", (Call("drop_meeting", (("ref", ref),)),)


def _discard(world: World, rng: random.Random) -> TaskPlan:
    places = [each.location for each in world.documents if each.location != LOCKED_DOCUMENT]
    location = rng.choice(places)
    return f"Remove the document {location!r}.", (Call("remove_document", (("location", location),)),)


def _write_down(world: World, rng: random.Random) -> TaskPlan:
    directory = rng.choice(DIRECTORIES)
    location, text = f"{directory}/{rng.choice(STEMS[directory])}.txt", rng.choice(_TEXTS)
    call = Call("save_document", (("location", location), ("text", text)))
    return f"Save the text {text!r} in the document {location!r}.", (call,)


def _send(world: World, rng: random.Random) -> TaskPlan:
    address, topic, text = rng.choice(world.people).address, rng.choice(_TOPICS), rng.choice(_TEXTS)
    call = Call("post_mail", (("address", address), ("topic", topic), ("text", text)))
    return f"Mail the text {text!r} to {address!r}, with the topic {topic!r}.", (call,)


def _book(world: World, rng: random.Random) -> TaskPlan:
    name, day, start = rng.choice(_MEETINGS), make_days(rng, 1)[0], rng.choice(TIMES)
    guest = rng.choice(world.people).address
    call = Call("book_meeting", (("name", name), ("day", day), ("start", start), ("guests", [guest])))
    return f"Book the meeting {name!r} on {day} at {start}. Invite {guest!r}, nobody else.", (call,)


EASY: dict[str, Callable[[World, random.Random], TaskPlan]] = {
    "remind": _remind,
    "strike": _strike,
    "discard": _discard,
    "write_down": _write_down,
    "send": _send,
    "book": _book,
}
