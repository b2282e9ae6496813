"""OpenAI chat messages: `tool_calls` of an assistant, answered by messages of the role `tool`.

A record is one message (the file is one transcript), a list of messages, or an object with `messages` (and perhaps
`tools`): each of these is a transcript. A result has no error field of its own; fields that some frameworks add
(`is_error`, `status`, `error`, an exit code) are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_fields, other_parts, text_of
from probes.items.logs.documents import parse_arguments
from probes.items.logs.failure import error_type, verdict
from probes.items.logs.transcript import Call, Events, Note, Opened, Record, Result, Role, Turn, skipped

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def recognises(value: Any) -> bool:
    """Whether a record has a call or a result as OpenAI writes them."""
    return any(
        message.get("tool_calls")
        or message.get("function_call")
        or (message.get("role") == "tool" and "tool_call_id" in message)
        or message.get("role") == "function"
        for message in messages_of(value)
    )


def messages_of(value: Any) -> list[Mapping[str, Any]]:
    """The messages of a record that is a message, a list of them, or an object with `messages`."""
    if isinstance(value, Mapping) and "messages" in value:
        value = value["messages"]
    listed_messages = [value] if isinstance(value, Mapping) else listed(value)
    return [one for one in listed_messages if isinstance(one, Mapping) and "role" in one]


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records."""
    for each in transcripts(records):
        if isinstance(each, tuple):
            yield from turns(*each)
        else:
            yield each


def transcripts(records: Iterable[Record]) -> Iterator[Opened | Note | tuple[Mapping[str, Any], str]]:
    """`Opened` for every transcript, and its messages, each with its place; a record that holds none is a note."""
    alone = False
    for record in records:
        value, place = record.value, record.place
        if isinstance(value, Mapping) and "role" in value:
            if not alone:
                yield Opened()
            alone = True
            yield value, place
            continue
        whole = value.get("messages") if isinstance(value, Mapping) else value
        if not isinstance(whole, list):
            yield skipped(place, "record", "no message, no list of messages, no object with 'messages'")
            continue
        alone = False
        yield Opened(_name(value), declared(mapping(value).get("tools")))
        if isinstance(value, Mapping) and value.get(
            "system"
        ):  # where Anthropic's requests have the system prompt
            yield {"role": "system", "content": value["system"]}, f"{place}, system"
        for index, message in enumerate(whole):
            if isinstance(message, Mapping):
                yield message, f"{place}, messages[{index}]"
            else:
                yield skipped(f"{place}, messages[{index}]", "message", "no object")


def _name(value: Any) -> str:
    for key in ("id", "conversation_id", "session_id", "task_id", "instance_id"):
        found = named(mapping(value).get(key))
        if found is not None:
            return found
    return ""


def declared(tools: Any) -> tuple[str, ...]:
    """The names in a list of tool definitions: `function.name`, or `name`."""
    names = (
        mapping(mapping(one).get("function")).get("name") or mapping(one).get("name") for one in listed(tools)
    )
    return tuple(name for name in names if isinstance(name, str))


def turns(message: Mapping[str, Any], place: str) -> Events:
    """The turn of one message."""
    role = _ROLES.get(str(message.get("role")))
    content = message.get("content")
    if role is None:
        yield skipped(place, "message", f"unknown role: {message.get('role')}")
        return
    yield from other_parts(content, place)
    yield from other_fields(message, place)
    if role == "tool":
        yield Turn("tool", place, results=(_result(message, text_of(content)),))
        return
    made = [*listed(message.get("tool_calls"))]
    if message.get("function_call"):
        made.append({"function": message["function_call"]})
    calls = [call_of(one) for one in made]
    for call in calls:
        if call is None:
            yield skipped(place, "call", "it has no function name")
    yield Turn(role, place, text_of(content), tuple(call for call in calls if call is not None))


def call_of(value: Any) -> Call | None:
    """A member of `tool_calls`: a function with arguments as JSON text (or an object), or a custom tool's input."""
    one = mapping(value)
    function = mapping(one.get("function")) or mapping(one.get("custom"))
    name = function.get("name")
    if not isinstance(name, str) or not name:
        return None
    written = function.get("arguments", function.get("input", ""))
    if isinstance(written, str):
        return Call(name, parse_arguments(written), named(one.get("id")), written)
    return Call(name, written, named(one.get("id")))


def _result(message: Mapping[str, Any], text: str) -> Result:
    fields = {key: value for key, value in message.items() if key != "content"}
    failed, said_by = verdict(fields)
    name = message.get("name")
    return Result(
        text,
        named(message.get("tool_call_id")),
        name if isinstance(name, str) else None,
        failed,
        said_by,
        error_type(fields),
        fields,
    )
