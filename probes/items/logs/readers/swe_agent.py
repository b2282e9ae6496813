"""SWE-agent's trajectories (`.traj`): `trajectory[]` of `thought`, `action` and `observation`.

The messages before the first action are those of `history` (else of the first step's `query`); demonstrations
(`is_demo`) stand there as turns without calls. The format has no error field: whether an action failed is unknown until
a rule of the user says it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_fields, other_parts, text_of
from probes.items.logs.failure import verdict
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Turn, skipped


def recognises(value: Any) -> bool:
    """Whether a record is a trajectory."""
    steps = listed(value.get("trajectory")) if isinstance(value, Mapping) else []
    return bool(steps) and isinstance(steps[0], Mapping) and {"action", "observation"} <= set(steps[0])


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records."""
    for record in records:
        if not recognises(record.value):
            yield skipped(record.place, "record", "no trajectory of SWE-agent")
            continue
        steps = listed(record.value["trajectory"])
        yield Opened(named(record.value.get("instance_id")) or named(record.value.get("environment")) or "")
        yield from _before(record.value, mapping(steps[0]), record.place)
        for index, step in enumerate(steps):
            yield from _step(mapping(step), f"{record.place}, trajectory[{index}]")


def _before(value: Mapping[str, Any], first: Mapping[str, Any], place: str) -> Events:
    """The messages up to the first turn of the agent, with demonstrations, whoever speaks in them."""
    name = "history" if listed(value.get("history")) else "trajectory[0].query"
    found = listed(value.get("history")) or listed(first.get("query"))
    for index, message in enumerate(map(mapping, found)):
        role = message.get("role")
        demonstrated = message.get("is_demo") is True
        if role == "assistant" and not demonstrated:
            return
        if role == "tool" and demonstrated:
            role = "user"
        if role in ("system", "user", "assistant"):
            yield from other_parts(message.get("content"), f"{place}, {name}[{index}]")
            yield Turn(role, f"{place}, {name}[{index}]", text_of(message.get("content")))
        else:
            yield skipped(f"{place}, {name}[{index}]", "message", f"unknown role: {role}")


def _step(step: Mapping[str, Any], place: str) -> Events:
    yield from other_fields(step, place)
    action = text_of(step.get("action")).strip()
    thought = text_of(step.get("thought") or ("" if action else step.get("response"))).strip()
    if not action:
        yield skipped(place, "call", "the step has no action")
        yield Turn("assistant", place, thought)
        if text_of(step.get("observation")):
            yield Turn("user", place, text_of(step.get("observation")))
        return
    yield Turn("assistant", place, thought, (Call(action.split()[0], action, None, action, action),))
    if "observation" not in step or step["observation"] is None:
        return
    fields = {key: value for key, value in step.items() if key not in ("observation", "query", "response")}
    failed, said_by = verdict(fields)
    yield Turn(
        "tool",
        place,
        results=(Result(text_of(step["observation"]), None, None, failed, said_by, None, fields),),
    )
