"""The twelve tools: what they take, what they do to a world, and what they answer.

An effect is a function (world, arguments) → (next world, answer) that raises ToolFault when it refuses. An
answer repeats neither a day nor a tool's last argument: it stays true of a call that left that argument out
or wrote the day in another way, which is what lets a counterfactual success be coherent with the call that
failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal

from envs.toolshed import faults
from envs.toolshed.world import Document, Mail, Meeting, Person, Reminder, Unit, World

Kind = Literal["str", "float", "list[str]"]
Arguments = Mapping[str, Any]
Effect = Callable[[World, Arguments], tuple[World, str]]

KIND_NAMES: Mapping[Kind, str] = {"str": "a text", "float": "a number", "list[str]": "a list of texts"}
_ADDRESS = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_LARGEST_AMOUNT = 1e12
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


@dataclass(frozen=True)
class Parameter:
    """One argument of a tool."""

    name: str
    kind: Kind
    about: str


@dataclass(frozen=True)
class Tool:
    """A tool: schema and effect. Every argument is required."""

    name: str
    about: str
    parameters: tuple[Parameter, ...]
    effect: Effect

    @property
    def signature(self) -> str:
        """As in the schema: `name(a: str, b: float)`."""
        return f"{self.name}({', '.join(f'{each.name}: {each.kind}' for each in self.parameters)})"


def has_kind(value: Any, kind: Kind) -> bool:
    """Whether a value is of the kind; truth values are no numbers, texts are no lists."""
    if kind == "str":
        return isinstance(value, str)
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _day(value: str) -> str:
    try:
        if not _DAY.fullmatch(value):
            raise ValueError
        return date.fromisoformat(value).isoformat()
    except ValueError:
        raise faults.bad_date("day", value) from None


def _time(value: str) -> str:
    if not _TIME.fullmatch(value):
        raise faults.bad_time("start", value)
    return value


def _person_at(world: World, name: str, address: str) -> Person:
    if not _ADDRESS.fullmatch(address):
        raise faults.bad_address(name, address)
    for person in world.people:
        if person.address == address:
            return person
    raise faults.unknown_entity("person_unknown", "person", address, (each.address for each in world.people))


def _document(world: World, location: str) -> Document:
    for document in world.documents:
        if document.location == location:
            return document
    known = (each.location for each in world.documents)
    raise faults.unknown_entity("document_unknown", "document", location, known)


def _directory(world: World, name: str) -> str:
    if name not in world.directories:
        raise faults.unknown_entity("directory_unknown", "directory", name, world.directories)
    return name


def _unit(world: World, name: str) -> Unit:
    for unit in world.units:
        if unit.name == name:
            return unit
    raise faults.unknown_entity("unit_unknown", "unit", name, (each.name for each in world.units))


def _card(person: Person) -> str:
    return f"{person.name} <{person.address}>"


def _show_directory(world: World, given: Arguments) -> tuple[World, str]:
    start = f"{_directory(world, given['directory'])}/"
    found = [each.location for each in world.documents if each.location.startswith(start)]
    return world, "; ".join(found) or "no documents"


def _open_document(world: World, given: Arguments) -> tuple[World, str]:
    return world, _document(world, given["location"]).text


def _save_document(world: World, given: Arguments) -> tuple[World, str]:
    location = given["location"]
    directory, _, stem = location.partition("/")
    _directory(world, directory)
    if not stem:
        raise faults.unknown_entity("document_unknown", "document", location, ())
    others = [each for each in world.documents if each.location != location]
    if any(each.locked for each in world.documents if each.location == location):
        raise faults.write_protected(location)
    saved = Document(location, given["text"])
    return replace(world, documents=tuple(sorted([*others, saved]))), f"Saved {location}."


def _remove_document(world: World, given: Arguments) -> tuple[World, str]:
    document = _document(world, given["location"])
    if document.locked:
        raise faults.write_protected(document.location)
    left = tuple(each for each in world.documents if each != document)
    return replace(world, documents=left), f"Removed {document.location}."


def _lookup_person(world: World, given: Arguments) -> tuple[World, str]:
    for person in world.people:
        if person.name == given["full_name"]:
            return world, f"{_card(person)}, {person.group}"
    known = (each.name for each in world.people)
    raise faults.unknown_entity("person_unknown", "person", given["full_name"], known)


def _group_members(world: World, given: Arguments) -> tuple[World, str]:
    members = [_card(each) for each in world.people if each.group == given["group"]]
    if not members:
        raise faults.unknown_entity("group_unknown", "group", given["group"], world.groups)
    return world, "; ".join(members)


def _day_agenda(world: World, given: Arguments) -> tuple[World, str]:
    day = _day(given["day"])
    found = [each for each in world.meetings if each.day == day]
    lines = [f"{each.ref} {each.start} {each.name}, with {', '.join(each.guests)}" for each in found]
    return world, "; ".join(lines) or "nothing booked"


def _book_meeting(world: World, given: Arguments) -> tuple[World, str]:
    day, start = _day(given["day"]), _time(given["start"])
    guests = tuple(_person_at(world, "guests", each).address for each in given["guests"])
    meeting = Meeting(world.next_ref(), given["name"], day, start, guests)
    meetings = tuple(sorted([*world.meetings, meeting]))
    return replace(world, meetings=meetings), f"Booked {meeting.name} at {start} as {meeting.ref}."


def _drop_meeting(world: World, given: Arguments) -> tuple[World, str]:
    for meeting in world.meetings:
        if meeting.ref == given["ref"]:
            left = tuple(each for each in world.meetings if each != meeting)
            return replace(world, meetings=left), f"Took {meeting.ref} ({meeting.name}) off the calendar."
    known = (each.ref for each in world.meetings)
    raise faults.unknown_entity("meeting_unknown", "meeting", given["ref"], known)


def _post_mail(world: World, given: Arguments) -> tuple[World, str]:
    person = _person_at(world, "address", given["address"])
    mail = Mail(person.address, given["topic"], given["text"])
    return replace(world, mails=tuple(sorted([*world.mails, mail]))), f"Mail on {mail.topic} is under way."


def _plan_reminder(world: World, given: Arguments) -> tuple[World, str]:
    reminder = Reminder(given["note"], _day(given["day"]))
    return replace(
        world, reminders=tuple(sorted([*world.reminders, reminder]))
    ), f"Will remind: {reminder.note}"


def _convert_amount(world: World, given: Arguments) -> tuple[World, str]:
    if not abs(given["amount"]) <= _LARGEST_AMOUNT:  # so written, it also refuses what is not a number
        raise faults.amount_out_of_range()
    unit, target = _unit(world, given["unit"]), _unit(world, given["target"])
    if unit.kind != target.kind:
        raise faults.unit_mismatch(unit.name, target.name)
    return world, f"{given['amount'] * unit.factor / target.factor:.2f}"


def _tool(name: str, about: str, effect: Effect, *parameters: tuple[str, Kind, str]) -> Tool:
    return Tool(name, about, tuple(Parameter(*each) for each in parameters), effect)


TOOLS: Mapping[str, Tool] = {
    tool.name: tool
    for tool in (
        _tool("show_directory", "Name the documents kept in one directory.", _show_directory,
              ("directory", "str", "which one, for example 'beds'")),
        _tool("open_document", "Give the text of one document.", _open_document,
              ("location", "str", "directory and document, for example 'beds/ivy.txt'")),
        _tool("save_document", "Put a text into a document, new or old.", _save_document,
              ("location", "str", "directory and document"), ("text", "str", "what it shall hold")),
        _tool("remove_document", "Take one document away for good.", _remove_document,
              ("location", "str", "directory and document")),
        _tool("lookup_person", "Give the address and the group of one person.", _lookup_person,
              ("full_name", "str", "first and last name")),
        _tool("group_members", "Name everyone who belongs to a group.", _group_members,
              ("group", "str", "which one, for example 'orchard'")),
        _tool("day_agenda", "Show the meetings of one day.", _day_agenda,
              ("day", "str", "written YYYY-MM-DD")),
        _tool("book_meeting", "Enter a meeting into the calendar.", _book_meeting,
              ("name", "str", "what it is called"), ("day", "str", "written YYYY-MM-DD"),
              ("start", "str", "written HH:MM"), ("guests", "list[str]", "mail addresses of those invited")),
        _tool("drop_meeting", "Strike a meeting from the calendar.", _drop_meeting,
              ("ref", "str", "its reference, for example 'mt-7'")),
        _tool("post_mail", "Mail a text to one person.", _post_mail,
              ("address", "str", "mail address of that person"), ("topic", "str", "a few words"),
              ("text", "str", "what the mail says")),
        _tool("plan_reminder", "Keep a note that comes back on a day.", _plan_reminder,
              ("note", "str", "what to be reminded of"), ("day", "str", "written YYYY-MM-DD")),
        _tool("convert_amount", "Express an amount in another unit.", _convert_amount,
              ("amount", "float", "how much"), ("unit", "str", "the unit it is in"),
              ("target", "str", "the unit wanted")),
    )
}  # fmt: skip


def _system_prompt() -> str:
    lines = [
        "You run the front desk of Fernhall, a botanical garden. You get one errand at a time and carry it "
        "out with the desk's tools, step by step.",
        "",
        "How to answer:",
        "- Every answer is exactly one tool call, on one line, without any other words.",
        "- Name each argument, as in tool(argument='value'). All arguments are required.",
        "- A day is written YYYY-MM-DD, a time HH:MM on the 24-hour clock.",
        "- Once the errand is complete, answer done().",
        "",
        "The desk's tools:",
    ]
    for tool in TOOLS.values():
        lines.append(f"* {tool.signature}: {tool.about}")
        lines += [f"  - {each.name}: {each.about}" for each in tool.parameters]
    return "\n".join(lines)


SYSTEM_PROMPT = _system_prompt()
