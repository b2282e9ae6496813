"""What every log format is read into: transcripts of turns, with the calls of an agent and their results.

A reader yields events. `Opened` begins a transcript, a `Turn` adds to it, a `Note` says of a piece of the input what
became of it. What a reader cannot use is a note and never an exception: the rest of the log is read all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Verdict = Literal["yes", "no", "unknown"]
"""Whether a call failed, as far as the log says."""

Role = Literal["system", "user", "assistant", "tool"]

SKIPPED = "skipped"


@dataclass(frozen=True)
class Record:
    """One JSON value of a log (a line, a sample, a whole document), or one line of a text log; `place` says where."""

    place: str
    value: Any


@dataclass(frozen=True)
class Call:
    """One call of a tool.

    Attributes:
        name: the tool.
        arguments: parsed JSON; the text where the log has arguments that are no JSON object.
        id: by which a result names it; None where the format has no ids.
        written: the arguments as the log writes them, where it writes a text; tells exact from canonical repeats.
        text: the call as the agent wrote it, in a format without structured calls.
        left_out: why no item is made of this call, whatever its result; empty where one may be.
    """

    name: str
    arguments: Any
    id: str | None = None
    written: str | None = None
    text: str | None = None
    left_out: str = ""

    def rendered(self) -> str:
        """The call as it is written in a transcript: the agent's own text, else one line of JSON."""
        if self.text is not None:
            return self.text
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


@dataclass(frozen=True)
class Result:
    """What came back of a call.

    Attributes:
        content: the text that the agent was shown.
        call_id: the call's id; None where the format has none (results then answer calls in their order).
        failed: whether the call failed.
        said_by: the field that said so, with its value; empty where none did.
        error_type: the kind of error, where the log names one.
        fields: the result's own fields, which a rule of the user may ask for.
    """

    content: str
    call_id: str | None = None
    name: str | None = None
    failed: Verdict = "unknown"
    said_by: str = ""
    error_type: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Opened:
    """A transcript begins; `tools` are the tools that the log declares."""

    name: str = ""
    tools: tuple[str, ...] = ()


@dataclass(frozen=True)
class Turn:
    """One message, or a part of one: results come before the text of the same turn.

    `key`: assistant turns of one key are one turn, even where results of their first calls are between them.
    `restarts`: the agent is no longer shown what stands before this turn.
    """

    role: Role
    place: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    key: str | None = None
    restarts: bool = False


@dataclass(frozen=True)
class Note:
    """What became of a piece of the input: its place, what it is (record, message, part, call, …), its fate and why.

    `log`, `item_id` and `text` (the tool, and the beginning of its result) are filled in for calls.
    """

    place: str
    what: str
    fate: str
    why: str = ""
    log: str = ""
    item_id: str = ""
    text: str = ""


Event = Opened | Turn | Note
Events = Iterator[Event]


def skipped(place: str, what: str, why: str) -> Note:
    """The note of a piece that is not used."""
    return Note(place, what, SKIPPED, why)
