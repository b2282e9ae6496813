"""Plain `{role, content}` messages with calls marked: what anyone can write by hand or from a log of their own.

An assistant's message with `failed: true` is a call that failed, with `failed: false` one that did not, with
`failed: null` one of unknown outcome; its content is the call, the next message of another role is the result. The
result may carry the outcome instead (`is_error`, `status`, `error`, an exit code): then the assistant's message before
it is the call. `tool` names the tool. Records are as in `probes.items.logs.readers.openai`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import other_parts, text_of
from probes.items.logs.failure import error_type, verdict
from probes.items.logs.readers.openai import messages_of, transcripts
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Turn, skipped

_TOOL = "unnamed"
_OWN = ("role", "content", "failed", "tool")


def recognises(value: Any) -> bool:
    """Whether a record holds messages with a role and a content."""
    return any("content" in message for message in messages_of(value))


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records."""
    held: tuple[Mapping[str, Any], str] | None = None  # an assistant's message whose answer is still to come
    for each in transcripts(records):
        if not isinstance(each, tuple):
            if isinstance(each, Opened):
                yield from _alone(held)
                held = None
            yield each
            continue
        message, place = each
        role = message.get("role")
        if role not in ("system", "user", "assistant", "tool"):
            yield skipped(place, "message", f"unknown role: {role}")
            continue
        yield from other_parts(message.get("content"), place)
        if message.get("tool_calls"):
            yield skipped(place, "part", "tool_calls in a plain message (--format openai reads them)")
        if role == "assistant":
            yield from _alone(held)
            held = each
        elif held is not None and role != "system" and _is_call(held[0], message):
            yield from _pair(held, message, place)
            held = None
        else:
            yield from _alone(held)
            held = None
            if role == "tool":
                yield Turn("tool", place, results=(Result(text_of(message.get("content"))),))
            else:
                yield Turn(role, place, text_of(message.get("content")))
    yield from _alone(held)


def _alone(held: tuple[Mapping[str, Any], str] | None) -> Events:
    """An assistant's message that no result follows: a call without result if it is marked, else a text."""
    if held is not None:
        message, place = held
        text = text_of(message.get("content"))
        marked = "failed" in message and text.strip()
        yield Turn("assistant", place, "" if marked else text, (_call(message),) if marked else ())


def _is_call(message: Mapping[str, Any], answer: Mapping[str, Any]) -> bool:
    marked = "failed" in message or answer.get("role") == "tool" or verdict(answer)[0] != "unknown"
    return marked and bool(text_of(message.get("content")).strip())


def _call(message: Mapping[str, Any]) -> Call:
    text, tool = text_of(message.get("content")), message.get("tool")
    return Call(tool if isinstance(tool, str) and tool else _TOOL, text, None, text, text)


def _pair(held: tuple[Mapping[str, Any], str], answer: Mapping[str, Any], place: str) -> Events:
    message, call_place = held
    fields = {**{key: value for key, value in message.items() if key not in _OWN}, **answer}
    failed, said_by = verdict(answer)
    if isinstance(message.get("failed"), bool):
        failed, said_by = verdict({"failed": message["failed"]})
    text = text_of(answer.get("content"))
    yield Turn("assistant", call_place, "", (_call(message),))
    yield Turn(
        "tool", place, results=(Result(text, None, None, failed, said_by, error_type(fields), fields),)
    )
