"""ReAct text: lines that begin with `Thought:`, `Action:`, `Action Input:` and `Observation:` (perhaps numbered).

`Question:` or `User:` begins a user's text, `System:` the system prompt, `Final Answer:` the last turn; lines
without a label go on with the label before them, and text before the first one is the user's. An action is
`Action: tool` with `Action Input: …`, or `Action: tool[input]`. A second `Question:` after an action begins another
transcript. Text has no error field: every outcome is unknown until a rule of the user says it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from probes.items.logs.documents import parse_arguments
from probes.items.logs.transcript import Call, Event, Events, Opened, Record, Result, Turn

_LABEL = re.compile(
    r"(Thought|Action Input|Action|Observation|Final Answer|Question|User|System)(?: ?\d+)?:[ \t]?(.*)",
    re.DOTALL,
)
_BRACKETS = re.compile(r"\s*([\w .-]+?)\s*\[(.*)\]\s*", re.DOTALL)


def recognises(value: Any) -> bool:
    """Whether a line of text has a label of an agent's turn."""
    match = _LABEL.match(value) if isinstance(value, str) else None
    return match is not None and match[1] not in ("User", "System")


class _Part:
    """A labelled piece of text: its label, the place of its first line, its lines as written and without the label."""

    def __init__(self, label: str, place: str, written: str, text: str) -> None:
        self.label, self.place = label, place
        self.written, self.lines = [written], [text]

    @property
    def text(self) -> str:
        return "\n".join(self.lines).strip()

    @property
    def as_written(self) -> str:
        return "\n".join(self.written).strip()


def read(records: Iterable[Record]) -> Events:
    """The transcripts of a text."""
    acted = False
    waiting: list[_Part] = []  # of the agent's turn that is being read
    yield Opened()
    for part in _parts(records):
        if part.label in ("Thought", "Action", "Action Input", "Final Answer"):
            if part.label == "Action" and any(one.label == "Action" for one in waiting):
                yield from _turn(waiting)
                waiting = []
            waiting.append(part)
            continue
        if waiting:
            acted = True
            yield from _turn(waiting)
            waiting = []
        if part.label == "Question" and acted:
            acted = False
            yield Opened()
        yield from _other(part)
    yield from _turn(waiting)


def _parts(records: Iterable[Record]) -> Iterator[_Part]:
    part: _Part | None = None
    for record in records:
        line = str(record.value)
        match = _LABEL.match(line)
        if match is None and part is not None:
            part.written.append(line)
            part.lines.append(line)
            continue
        if part is not None:
            yield part
        part = (
            _Part(match[1], record.place, line, match[2])
            if match
            else _Part("User", record.place, line, line)
        )
    if part is not None:
        yield part


def _other(part: _Part) -> Iterator[Event]:
    if part.label == "Observation":
        yield Turn("tool", part.place, results=(Result(part.text),))
    elif part.text:
        yield Turn("system" if part.label == "System" else "user", part.place, part.text)


def _turn(parts: list[_Part]) -> Iterator[Event]:
    if not parts:
        return
    action = next((one for one in parts if one.label == "Action" and one.text), None)
    words = "\n".join(one.as_written for one in parts if not _of_call(one, action))
    calls = () if action is None else (_call(action, [one for one in parts if one.label == "Action Input"]),)
    yield Turn("assistant", parts[0].place, words, calls)


def _of_call(part: _Part, action: _Part | None) -> bool:
    return action is not None and (part is action or part.label == "Action Input")


def _call(action: _Part, inputs: list[_Part]) -> Call:
    text = "\n".join(one.as_written for one in (action, *inputs))
    brackets = None if inputs else _BRACKETS.fullmatch(action.text)
    if brackets:
        return Call(brackets[1], parse_arguments(brackets[2]), None, brackets[2], text)
    written = "\n".join(one.text for one in inputs)
    return Call(action.text, parse_arguments(written), None, written, text)
