"""ATIF, the Agent Trajectory Interchange Format (`schema_version: ATIF-v1.…`): one JSON document a trajectory.

`steps[]` have a `source` (system, user, agent), a `message`, `tool_calls[]` (`tool_call_id`, `function_name`,
`arguments`) and `observation.results[]` (`source_call_id`, `content`). Several results of one call are one, joined by
line breaks; a result without `source_call_id` beside others that have one is of no call. The format has no error field;
`is_error` in the `extra` of a result (also under the name `tool_result_is_error`) is read, with the other fields of a
failure. Steps that were copied from an earlier trajectory, or dispatched without the model, stay in the context and
give no item.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_fields, other_parts, text_of
from probes.items.logs.failure import error_type, verdict
from probes.items.logs.readers.openai import declared
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Role, Turn, Verdict, skipped

_ROLES: Mapping[str, Role] = {"system": "system", "user": "user", "agent": "assistant"}


def recognises(value: Any) -> bool:
    """Whether a record is a trajectory."""
    return isinstance(value, Mapping) and str(value.get("schema_version")).upper().startswith("ATIF")


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records, sub-agents' after that which they belong to."""
    for record in records:
        if not recognises(record.value):
            yield skipped(record.place, "record", "no ATIF trajectory")
            continue
        yield from _trajectory(record.value, record.place)


def _trajectory(value: Mapping[str, Any], place: str) -> Events:
    name = named(value.get("trajectory_id")) or named(value.get("session_id")) or ""
    yield Opened(name, declared(mapping(value.get("agent")).get("tool_definitions")))
    for index, step in enumerate(listed(value.get("steps"))):
        yield from _step(step, f"{place}, steps[{index}]")
    for index, inner in enumerate(listed(value.get("subagent_trajectories"))):
        yield from _trajectory(mapping(inner), f"{place}, subagent_trajectories[{index}]")


def _step(step: Any, place: str) -> Events:
    role = _ROLES.get(str(mapping(step).get("source")))
    if role is None:
        yield skipped(place, "message", f"unknown source: {mapping(step).get('source')}")
        return
    yield from other_parts(step.get("message"), place)
    yield from other_fields(step, place)
    left_out = ""
    if step.get("is_copied_context") is True:
        left_out = "copied from an earlier trajectory"
    elif step.get("llm_call_count") == 0:
        left_out = "not called by the model (llm_call_count 0)"
    calls = []
    for one in map(mapping, listed(step.get("tool_calls"))):
        tool = one.get("function_name")
        if isinstance(tool, str) and tool:
            calls.append(Call(tool, one.get("arguments"), named(one.get("tool_call_id")), left_out=left_out))
        else:
            yield skipped(place, "call", "it has no function_name")
    yield Turn(role, place, text_of(step.get("message")), tuple(calls))
    answers = [mapping(one) for one in listed(mapping(step.get("observation")).get("results"))]
    of_call: dict[str, list[Mapping[str, Any]]] = {}  # which may have several
    for one in answers:
        yield from other_parts(one.get("content"), place)
        call_id = named(one.get("source_call_id"))
        if call_id is not None:
            of_call.setdefault(call_id, []).append(one)
    for parts in of_call.values():
        yield Turn("tool", place, results=(_result(parts),))
    for one in answers:
        if named(one.get("source_call_id")) is not None:
            continue
        if calls and not of_call:
            yield Turn("tool", place, results=(_result([one]),))
        elif text_of(one.get("content")):
            yield Turn("user", place, text_of(one.get("content")))


def _result(parts: list[Mapping[str, Any]]) -> Result:
    """The result of a call, which failed if any of its parts says so."""
    extras = [mapping(one.get("extra")) for one in parts]
    extra = next((one for wanted in ("yes", "no") for one in extras if _verdict(one)[0] == wanted), extras[0])
    failed, said_by = _verdict(extra)
    return Result(
        "\n".join(text for one in parts for text in [text_of(one.get("content"))] if text),
        named(parts[0].get("source_call_id")),
        None,
        failed,
        said_by,
        error_type(extra),
        {**extra, "extra": extra},
    )


def _verdict(extra: Mapping[str, Any]) -> tuple[Verdict, str]:
    marked = {"is_error": extra["tool_result_is_error"]} if "tool_result_is_error" in extra else {}
    return verdict({**marked, **extra})
