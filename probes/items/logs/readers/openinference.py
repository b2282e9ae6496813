"""OpenInference spans (Phoenix): `llm.input_messages.0.message.role` and so on, one transcript a thread.

A call is `message.tool_calls.0.tool_call` (`id`, `function.name`, `function.arguments`), a result a message of the role
tool (`tool_call_id`, `content`). Whether a call failed is the status of the tool's span that has its id
(`tool_call.id`, or `tool.id`); a call without such a span is of unknown outcome.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_parts, text_of
from probes.items.logs.readers.openai import call_of
from probes.items.logs.readers.otel import ROLES
from probes.items.logs.readers.spans import Answer, Conversation, Span, as_json, read_spans, spans_of
from probes.items.logs.transcript import Events, Record, Result, Turn

_LEVELS = 32  # names inside one another that an attribute's name is taken apart into
_INDEX = re.compile(r"[0-9]{1,9}")


def recognises(value: Any) -> bool:
    """Whether a record holds a span of OpenInference."""
    return any(
        "openinference.span.kind" in span.attributes or _messages(span) for span in spans_of(value, "")
    )


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the spans."""
    yield from read_spans(records, _conversation, _answer)


def _messages(span: Span) -> list[tuple[str, Mapping[str, Any]]]:
    found = []
    for name in ("llm.input_messages", "llm.output_messages"):
        for index, one in enumerate(_list(span.attributes, name)):
            found.append((f"{span.place}, {name}[{index}]", mapping(mapping(one).get("message"))))
    return found


def _list(attributes: Mapping[str, Any], name: str) -> list[Any]:
    """A list that is under its name, or is written out under `name.0.…`, `name.1.…`."""
    if name in attributes:
        return listed(attributes[name])
    tree: dict[str, Any] = {}
    for key, value in attributes.items():
        if key.startswith(f"{name}."):
            *inner, last = key.removeprefix(f"{name}.").split(".", _LEVELS)
            at = tree
            for part in inner:
                at = at.setdefault(part, {})
                if not isinstance(at, dict):
                    break
            else:
                at[last] = value
    return listed(_lists(tree))


def _lists(tree: Any) -> Any:
    """A tree with lists where all names are numbers."""
    if not isinstance(tree, dict):
        return tree
    if tree and all(_INDEX.fullmatch(name) for name in tree):
        return [_lists(tree[name]) for name in sorted(tree, key=int)]
    return {name: _lists(value) for name, value in tree.items()}


def _conversation(span: Span) -> Conversation | None:
    messages = _messages(span)
    if not messages:
        return None
    tools = (
        as_json(mapping(mapping(one).get("tool")).get("json_schema"))
        for one in _list(span.attributes, "llm.tools")
    )
    names = (mapping(mapping(one).get("function")).get("name") or mapping(one).get("name") for one in tools)
    turns = [_turn(message, place) for place, message in messages]
    notes = [
        note
        for place, message in messages
        for note in other_parts(
            [mapping(one).get("message_content") for one in listed(message.get("contents"))], place
        )
    ]
    return turns, tuple(name for name in names if isinstance(name, str)), notes


def _turn(message: Mapping[str, Any], place: str) -> Turn:
    role = ROLES.get(str(message.get("role")), "user")
    contents = [mapping(mapping(one).get("message_content")) for one in listed(message.get("contents"))]
    text = text_of(message.get("content")) or text_of(contents)
    if role == "tool":
        result = Result(text, named(message.get("tool_call_id")), named(message.get("name")))
        return Turn("tool", place, results=(result,))
    calls = (call_of(mapping(one).get("tool_call")) for one in listed(message.get("tool_calls")))
    return Turn(role, place, text, tuple(call for call in calls if call is not None))


def _answer(span: Span) -> tuple[str, Answer] | None:
    if span.attributes.get("openinference.span.kind") != "TOOL":
        return None
    call_id = named(span.attributes.get("tool_call.id")) or named(span.attributes.get("tool.id"))
    if call_id is None:
        return None
    kind = named(span.attributes.get("exception.type"))
    said_by = "span status ERROR" if span.failed else "span without error"
    text = named(span.attributes.get("output.value"))
    return call_id, Answer(span.failed, said_by, kind, text, span.attributes)
