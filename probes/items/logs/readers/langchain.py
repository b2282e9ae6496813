"""LangChain messages: `type` human, ai, system or tool, as they are dumped in three ways.

Flat (`type`, `content`, …), with `data` (`messages_to_dict`), or as a constructor (`lc`, `id`, `kwargs`). Records are
as in `probes.items.logs.readers.openai`. A call is `tool_calls[]`: `name`, `args`, `id`, and `invalid_tool_calls[]`,
whose arguments are no JSON; a result a tool message: `tool_call_id`, `content`, `status` (success or error).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_fields, other_parts, text_of
from probes.items.logs.failure import error_type, verdict
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Role, Turn, skipped

_ROLES: Mapping[str, Role] = {
    "system": "system",
    "human": "user",
    "ai": "assistant",
    "AIMessageChunk": "assistant",
    "tool": "tool",
    "function": "tool",
}
_CLASSES = {
    "SystemMessage": "system",
    "HumanMessage": "human",
    "AIMessage": "ai",
    "AIMessageChunk": "ai",
    "ToolMessage": "tool",
}


def recognises(value: Any) -> bool:
    """Whether a record holds a LangChain message."""
    if isinstance(value, Mapping) and "messages" in value:
        value = value["messages"]
    messages = value if isinstance(value, list) else [value]
    return any(_flat(one) is not None for one in messages)


def _flat(message: Any) -> Mapping[str, Any] | None:
    """A message in the flat form; None for what is none."""
    one = mapping(message)
    if one.get("lc") and isinstance(one.get("kwargs"), Mapping):
        kind = _CLASSES.get(str((listed(one.get("id")) or [""])[-1]))
        return None if kind is None else {**one["kwargs"], "type": kind}
    if not isinstance(one.get("type"), str) or one["type"] not in _ROLES:
        return None
    if isinstance(one.get("data"), Mapping):
        return {**one["data"], "type": one["type"]}
    return one if "content" in one and "role" not in one else None


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records."""
    alone = False
    for record in records:
        value, place = record.value, record.place
        if _flat(value) is not None:
            if not alone:
                yield Opened()
            alone = True
            yield from _message(value, place, "record")
            continue
        whole = value.get("messages") if isinstance(value, Mapping) else value
        if not isinstance(whole, list):
            yield skipped(place, "record", "no LangChain message and no list of them")
            continue
        alone = False
        yield Opened(named(mapping(value).get("id")) or named(mapping(value).get("thread_id")) or "")
        for index, message in enumerate(whole):
            yield from _message(message, f"{place}, messages[{index}]", "message")


def _message(value: Any, place: str, what: str) -> Events:
    message = _flat(value)
    if message is None:
        yield skipped(place, what, "no LangChain message")
        return
    role, content = _ROLES[message["type"]], message.get("content")
    yield from other_parts(content, place, ("tool_use",))  # which is in tool_calls as well
    yield from other_fields(mapping(message.get("additional_kwargs")), place)
    if role == "tool":
        fields = {key: one for key, one in message.items() if key not in ("content", "type")}
        failed, said_by = verdict(fields)
        name = message.get("name")
        result = Result(
            text_of(content),
            named(message.get("tool_call_id")),
            name if isinstance(name, str) else None,
            failed,
            said_by,
            error_type(fields),
            fields,
        )
        yield Turn("tool", place, results=(result,))
        return
    calls = []
    for one in map(mapping, [*listed(message.get("tool_calls")), *listed(message.get("invalid_tool_calls"))]):
        arguments, tool = one.get("args"), one.get("name")
        if isinstance(tool, str) and tool:
            written = arguments if isinstance(arguments, str) else None
            calls.append(Call(tool, arguments, named(one.get("id")), written))
        else:
            yield skipped(place, "call", "it has no name")
    yield Turn(role, place, text_of(content), tuple(calls))
