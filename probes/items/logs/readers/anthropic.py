"""Anthropic messages: blocks `tool_use` of an assistant, answered by blocks `tool_result` in a user's message.

`is_error` says whether a call failed. It is optional: without it the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_parts, text_of
from probes.items.logs.failure import error_type, verdict
from probes.items.logs.readers.openai import messages_of, transcripts
from probes.items.logs.transcript import Call, Events, Record, Result, Turn, skipped

_USED = ("tool_use", "tool_result")


def recognises(value: Any) -> bool:
    """Whether a record has a block `tool_use` or `tool_result`."""
    return any(
        mapping(block).get("type") in _USED
        for message in messages_of(value)
        for block in listed(message.get("content"))
    )


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records."""
    for each in transcripts(records):
        if isinstance(each, tuple):
            yield from turns(*each)
        else:
            yield each


def turns(
    message: Mapping[str, Any],
    place: str,
    key: str | None = None,
    further: Mapping[str, Any] | None = None,
    unmarked_succeeded: bool = False,
    restarts: bool = False,
) -> Events:
    """The turn of one message.

    Args:
        message: with `role` and `content`.
        place: where it is.
        key: as `Turn.key`.
        further: fields that its results have beside those of their blocks.
        unmarked_succeeded: a result without `is_error` succeeded.
        restarts: as `Turn.restarts`.
    """
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant"):
        yield skipped(place, "message", f"unknown role: {role}")
        return
    yield from other_parts(content, place, _USED)
    calls, results = [], []
    for block in map(mapping, listed(content)):
        if block.get("type") == "tool_use" and role == "assistant":
            name = block.get("name")
            if isinstance(name, str) and name:
                calls.append(Call(name, block.get("input"), named(block.get("id"))))
            else:
                yield skipped(place, "call", "it has no name")
        elif block.get("type") == "tool_result" and role == "user":
            inner = block.get("content")
            yield from other_parts(inner, place)
            fields = {**(further or {}), **{one: value for one, value in block.items() if one != "content"}}
            failed, said_by = verdict({"is_error": block.get("is_error")})
            if block.get("is_error") is None and unmarked_succeeded:
                failed, said_by = "no", "no is_error"
            call_id = named(block.get("tool_use_id"))
            results.append(Result(text_of(inner), call_id, None, failed, said_by, error_type(fields), fields))
        elif block.get("type") in _USED:
            yield skipped(place, "part", f"{block.get('type')} in a message of the role {role}")
    yield Turn(role, place, text_of(content), tuple(calls), tuple(results), key, restarts)
