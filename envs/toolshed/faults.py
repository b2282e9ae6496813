"""The errors of the tools, typed: each constructor is one family, with its text in three lengths.

No text quotes the call; a text may name the tool or the one value that was refused, as runtimes do. What
would help to correct the call (the signature, the names that do exist) is in the verbose text only.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.base import Failure


class ToolFault(Exception):
    """A tool's refusal, on its way to becoming an outcome."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.standard)
        self.failure = failure


def _fault(family: str, terse: str, standard: str, more: str) -> ToolFault:
    return ToolFault(Failure(family, f"[{terse}]", f"[error] {standard}", f"[error] {standard} {more}"))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none at all"


def unparsable(why: str) -> ToolFault:
    """The text is no call."""
    return _fault(
        "unparsable",
        "unreadable reply",
        f"The reply could not be read as a tool call: {why}.",
        "A reply is one line that holds a tool's name and its arguments in brackets, each as name=value.",
    )


def no_such_tool(tool: str, tools: Iterable[str]) -> ToolFault:
    """The name belongs to no tool."""
    return _fault(
        "no_such_tool",
        f"no tool {tool}",
        f"The desk has no tool named {tool}.",
        f"Tools on this desk: {_listed(tools)}.",
    )


def argument_missing(tool: str, name: str, signature: str) -> ToolFault:
    """A required argument was left out."""
    return _fault(
        "argument_missing",
        f"{name} missing",
        f"Tool {tool} cannot start without a value for {name}.",
        f"It is declared as {signature}, and every argument is required.",
    )


def argument_unknown(tool: str, name: str, signature: str) -> ToolFault:
    """An argument's name is not in the schema."""
    return _fault(
        "argument_unknown",
        f"{name} not accepted",
        f"Tool {tool} takes no argument called {name}.",
        f"It is declared as {signature}, and only these names are accepted.",
    )


def argument_repeated(tool: str, name: str) -> ToolFault:
    """An argument was given twice."""
    return _fault(
        "argument_repeated",
        f"{name} given twice",
        f"Tool {tool} was given {name} more than once.",
        "Every argument is given exactly once.",
    )


def too_many_arguments(tool: str, signature: str) -> ToolFault:
    """More values than the schema has places."""
    return _fault(
        "too_many_arguments",
        "too many arguments",
        f"Tool {tool} was given more values than it takes.",
        f"It is declared as {signature}.",
    )


def wrong_type(tool: str, name: str, wanted: str, got: str, signature: str) -> ToolFault:
    """A value of another type than the schema says."""
    return _fault(
        "wrong_type",
        f"{name} has the wrong type",
        f"Tool {tool} needs {name} to be {wanted}, and it was {got}.",
        f"It is declared as {signature}, and values are not converted.",
    )


def bad_date(name: str, value: str) -> ToolFault:
    """A day that is not written as YYYY-MM-DD, or is none."""
    return _fault(
        "bad_date",
        f"{name} unreadable",
        f"The value {value!r} for {name} is not a day the calendar can read.",
        "Days have four digits for the year, two for the month and two for the day, joined by hyphens.",
    )


def bad_time(name: str, value: str) -> ToolFault:
    """A time of day that is not written as HH:MM, or is none."""
    return _fault(
        "bad_time",
        f"{name} unreadable",
        f"The value {value!r} for {name} is not a time the calendar can read.",
        "Times have two digits for the hour, a colon and two digits for the minute, on the 24-hour clock.",
    )


def bad_address(name: str, value: str) -> ToolFault:
    """Something that is no mail address where one belongs."""
    return _fault(
        "bad_address",
        f"{name} holds no mail address",
        f"The value {value!r} for {name} does not have the shape of a mail address.",
        "The directory of people holds everyone's address.",
    )


def unknown_entity(family: str, kind: str, value: str, known: Iterable[str]) -> ToolFault:
    """A well-formed name of something that isn't there: person, group, document, meeting, unit, directory."""
    return _fault(
        family,
        f"{kind} not found",
        f"There is no {kind} {value!r} here.",
        f"What does exist: {_listed(known)}.",
    )


def amount_out_of_range() -> ToolFault:
    """A number the converter does not handle."""
    return _fault(
        "amount_out_of_range",
        "amount out of range",
        "The converter does not handle an amount of that size.",
        "Amounts are finite and below a million millions.",
    )


def unit_mismatch(unit: str, target: str) -> ToolFault:
    """Two units that measure different things."""
    return _fault(
        "unit_mismatch",
        "units do not match",
        f"A quantity in {unit} cannot be expressed in {target}.",
        "Both units have to measure the same kind of thing.",
    )


def write_protected(location: str) -> ToolFault:
    """A document nobody at the desk may change."""
    return _fault(
        "write_protected",
        "document is locked",
        f"The document {location!r} is locked and stays as it is.",
        "Locked documents belong to the building's own systems; the desk may look at them only.",
    )
