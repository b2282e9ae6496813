"""Inspect's logs: the samples of a `.eval` file (zip), or of a `.json` log; each sample (and epoch) is a transcript.

A call is `tool_calls[]`: `id`, `function`, `arguments`; a result a message of the role `tool`: `tool_call_id`,
`function`, `content` and `error` (`type`, `message`). No error means that the call succeeded. Of a failed call the
model is shown `error.message`, which is therefore the observation. `attachment://` references are resolved.
A `.eval` file that is packed with zstandard is read through the library inspect_ai (`pip install 'backfire[inspect]'`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_parts, text_of
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Turn, skipped

_ATTACHMENT = "attachment://"


def recognises(value: Any) -> bool:
    """Whether a record is a sample or a whole log."""
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("eval"), Mapping) and "version" in value:
        return True
    return "epoch" in value and "messages" in value and "id" in value


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records, one a sample and epoch."""
    for record in records:
        if not recognises(record.value):
            yield skipped(record.place, "record", "no sample and no log of Inspect")
        elif "epoch" in record.value:
            yield from _sample(record.value, record.place)
        elif not listed(record.value.get("samples")):
            yield skipped(record.place, "record", "the log has no samples")
        else:
            for index, sample in enumerate(record.value["samples"]):
                yield from _sample(mapping(sample), f"{record.place}, samples[{index}]")


def _sample(sample: Mapping[str, Any], place: str) -> Events:
    yield Opened(f"{sample.get('id')}, epoch {sample.get('epoch')}")
    attachments = mapping(sample.get("attachments"))
    for index, message in enumerate(listed(sample.get("messages"))):
        yield from _message(mapping(_resolved(message, attachments)), f"{place}, messages[{index}]")


def _resolved(value: Any, attachments: Mapping[str, Any]) -> Any:
    if isinstance(value, str) and value.startswith(_ATTACHMENT):
        return attachments.get(value.removeprefix(_ATTACHMENT), value)
    if isinstance(value, list):
        return [_resolved(one, attachments) for one in value]
    if isinstance(value, Mapping):
        return {key: _resolved(one, attachments) for key, one in value.items()}
    return value


def _message(message: Mapping[str, Any], place: str) -> Events:
    role, content = message.get("role"), message.get("content")
    if role not in ("system", "user", "assistant", "tool"):
        yield skipped(place, "message", f"unknown role: {role}")
        return
    yield from other_parts(content, place)
    if role == "tool":
        yield Turn("tool", place, results=(_result(message, text_of(content)),))
        return
    calls = []
    for one in map(mapping, listed(message.get("tool_calls"))):
        if isinstance(one.get("function"), str) and one["function"]:
            calls.append(Call(one["function"], one.get("arguments"), named(one.get("id"))))
        else:
            yield skipped(place, "call", "it has no function")
    yield Turn(role, place, text_of(content), tuple(calls))


def _result(message: Mapping[str, Any], text: str) -> Result:
    error = message.get("error")
    kind, name = mapping(error).get("type"), message.get("function")
    return Result(
        (text_of(mapping(error).get("message")) or text) if error else text,
        named(message.get("tool_call_id")),
        name if isinstance(name, str) else None,
        "yes" if error else "no",
        f"error.type={kind}" if error else "no error",
        kind if isinstance(kind, str) and kind else None,
        {key: value for key, value in message.items() if key != "content"},
    )
