"""OpenTelemetry's GenAI spans: `gen_ai.input.messages` and `gen_ai.output.messages` of parts, one transcript a thread.

A call is a part `tool_call` (`id`, `name`, `arguments`), a result a part `tool_call_response` (`id`, `response`; older:
`result`). Whether a call failed is in the span of its execution (`gen_ai.tool.call.id`): `error.type`, or the span's
status; a call without such a span is of unknown outcome. Content is opt-in: spans without messages are skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, text_of
from probes.items.logs.documents import parse_arguments
from probes.items.logs.readers.openai import declared
from probes.items.logs.readers.spans import Answer, Conversation, Span, as_json, read_spans, spans_of
from probes.items.logs.transcript import Call, Events, Record, Result, Role, Turn, skipped

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""The roles of messages in spans; a message of another role is taken for a user's."""

_MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")
_USED = ("text", "tool_call", "tool_call_response")


def recognises(value: Any) -> bool:
    """Whether a record holds a GenAI span."""
    return any(name.startswith("gen_ai.") for span in spans_of(value, "") for name in span.attributes)


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the spans."""
    yield from read_spans(records, _conversation, _answer)


def _conversation(span: Span) -> Conversation | None:
    attributes = span.attributes
    notes = [
        skipped(span.place, "part", f"{name} is no JSON (was it cut off?)")
        for name in (*_MESSAGES, "gen_ai.system_instructions")
        if attributes.get(name) and as_json(attributes[name]) is None
    ]
    messages = [
        (name, index, mapping(message))
        for name in _MESSAGES
        for index, message in enumerate(listed(as_json(attributes.get(name))))
    ]
    turns: list[Turn] = []
    if not messages:
        return (turns, (), notes) if notes else None
    instructions = text_of(
        [_plain(part) for part in listed(as_json(attributes.get("gen_ai.system_instructions")))]
    )
    if instructions:
        turns.append(Turn("system", f"{span.place}, gen_ai.system_instructions", instructions))
    for name, index, message in messages:
        place = f"{span.place}, {name}[{index}]"
        turns.append(_turn(message, place))
        for part in map(mapping, listed(message.get("parts"))):
            if part.get("type") not in _USED:
                notes.append(skipped(place, "part", f"no text: {part.get('type')}"))
            elif part["type"] == "tool_call" and not isinstance(part.get("name"), str):
                notes.append(skipped(place, "call", "it has no name"))
    return turns, declared(as_json(attributes.get("gen_ai.tool.definitions"))), notes


def _plain(part: Any) -> Any:
    """A part whose text is under `content`, as one whose text is under `text`."""
    one = mapping(part)
    return {"type": "text", "text": one["content"]} if isinstance(one.get("content"), str) else part


def _turn(message: Mapping[str, Any], place: str) -> Turn:
    parts = [mapping(part) for part in listed(message.get("parts"))]
    texts = [_plain(part) for part in parts if part.get("type") == "text"]
    calls = [
        _call(part) for part in parts if part.get("type") == "tool_call" and isinstance(part.get("name"), str)
    ]
    results = [_result(part) for part in parts if part.get("type") == "tool_call_response"]
    role = ROLES.get(str(message.get("role")), "user")
    return Turn(role, place, text_of(texts) or text_of(message.get("content")), tuple(calls), tuple(results))


def _call(part: Mapping[str, Any]) -> Call:
    arguments = part.get("arguments")
    if isinstance(arguments, str):
        return Call(part["name"], parse_arguments(arguments), named(part.get("id")), arguments)
    return Call(part["name"], {} if arguments is None else arguments, named(part.get("id")))


def _result(part: Mapping[str, Any]) -> Result:
    response = part.get("response", part.get("result"))
    return Result(_as_text(response), named(part.get("id")), named(part.get("name")))


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def _answer(span: Span) -> tuple[str, Answer] | None:
    call_id = named(span.attributes.get("gen_ai.tool.call.id"))
    if call_id is None:
        return None
    kind = named(span.attributes.get("error.type"))
    failed = kind is not None or span.failed
    said_by = f"error.type={kind}" if kind else "span status ERROR" if failed else "span without error"
    text = span.attributes.get("gen_ai.tool.call.result")
    return call_id, Answer(failed, said_by, kind, None if text is None else _as_text(text), span.attributes)
