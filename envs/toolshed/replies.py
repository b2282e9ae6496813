"""Replies as tool calls: how they are read and spelt; what is cut off them, `envs.toolshed.extraction` says."""

from __future__ import annotations

import math
from typing import Any

from envs.agent import Demonstration, Reading, canonical_form, collapsed, unclosed
from envs.toolshed import faults
from envs.toolshed.calls import MAX_CHARACTERS, Call, parse_call
from envs.toolshed.tools import TOOLS

DONE = "done"
NAMES = (*TOOLS, DONE)
# Turns of chat and not examples in the system prompt: after those SmolLM2-135M wrote few readable calls, after these
# nearly all (tried on tasks of another seed). None ends with done(): it would then say so after every result. No task
# has their names and days, so that a copy shows.
DEMONSTRATIONS: tuple[Demonstration, ...] = (
    Demonstration(
        "Mail what attic/clock.txt says to 'ottilie.zander@fernhall.example', with the topic 'clock'.",
        (
            ("open_document(location='attic/clock.txt')", "it is wound"),
            (
                "post_mail(address='ottilie.zander@fernhall.example', topic='clock', text='it is wound')",
                "Mail on clock is under way.",
            ),
        ),
    ),
    Demonstration(
        "Save the text 'lock the shed' in the document 'attic/shed.txt'.",
        (("save_document(location='attic/shed.txt', text='lock the shed')", "Saved attic/shed.txt."),),
    ),
    Demonstration(
        "Plan the reminder 'wind the clock' for 2031-01-08.",
        (("plan_reminder(note='wind the clock', day='2031-01-08')", "Will remind: wind the clock"),),
    ),
)

_EXACT = 2**53  # whole numbers up to here are floats too


def readable(text: str) -> Call | None:
    """The call, or None where the text is none."""
    try:
        return parse_call(text)
    except faults.ToolFault:
        return None


def reading(text: str, cut_off: bool) -> Reading:
    """How a cleaned reply can be read: see `envs.agent`.

    The beginning of an action is the name of a tool before the first bracket; of a reply that was cut off before
    any bracket, the beginning of such a name.
    """
    if not text:
        return "empty"
    if readable(text) is not None:
        return "call"
    head, bracket, _ = text.partition("(")
    if head.strip() not in NAMES:
        begun = cut_off and not bracket and any(name.startswith(head.strip()) for name in NAMES)
        return "truncated" if begun else "prose"
    return "truncated" if cut_off or unclosed(text) else "unparsable"


def ban_everywhere(text: str) -> bool:
    """Whether no other valid call can contain this one.

    The beginning of a call (`truncated`, and any other text that cannot be read) is the beginning of valid ones
    too. A whole call is no part of another one, unless its tool's name is how a real tool's name ends: the wrong
    `reminder(day='…')` is part of the right `plan_reminder(day='…')`. Left aside: a call quoted as the value of an
    argument, which no task asks for.
    """
    call = readable(text)
    return call is not None and not any(name.endswith(call.tool) and name != call.tool for name in NAMES)


def canonical(text: str) -> str:
    """The call with arguments by name where the schema names them, in alphabetical order, values in one spelling.

    An amount given as a whole number is the number. Texts that are no call: white space collapsed.
    """
    return canonical_form(text, _written_call, collapsed)


def _written_call(text: str) -> str | None:
    call = readable(text)
    if call is None:
        return None
    keywords, positional = list(call.keywords), call.positional
    parameters = TOOLS[call.tool].parameters if call.tool in TOOLS else ()
    names = [each.name for each in parameters[: len(positional)]]
    if len(names) == len(positional) and not set(names) & {name for name, _ in keywords}:
        keywords, positional = [*zip(names, positional, strict=True), *keywords], ()
    floats = {each.name for each in parameters if each.kind == "float"}
    given = [_written(value) for value in positional]
    given += [
        f"{name}={_written(_number(value) if name in floats else value)}"
        for name, value in sorted(keywords, key=lambda each: each[0])
    ]
    written = f"{call.tool}({', '.join(given)})"
    return written if len(written) <= MAX_CHARACTERS else None


def _number(value: Any) -> Any:
    """A whole number as the float it equals."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and abs(value) <= _EXACT else value


def _written(value: Any) -> str:
    """A literal that is read as an equal value; `repr` alone has none for infinity and very large numbers."""
    if isinstance(value, float):
        value += 0.0  # no minus before zero
        return repr(value) if math.isfinite(value) else f"{'-' if value < 0 else ''}1e999"
    if isinstance(value, complex):
        real, imaginary = _written(value.real), _written(value.imag)
        sign = "-" if imaginary.startswith("-") else "+"
        return f"{real} {sign} {imaginary.lstrip('-')}j"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 12_000:
        return hex(value)  # Python refuses to write so many decimal digits
    if isinstance(value, list):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_written, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, set):
        return f"{{{', '.join(sorted(map(_written, value)))}}}" if value else "set()"
    if isinstance(value, dict):
        pairs = sorted((_written(key), _written(held)) for key, held in value.items())
        return f"{{{', '.join(f'{key}: {held}' for key, held in pairs)}}}"
    return "..." if value is ... else repr(value)
