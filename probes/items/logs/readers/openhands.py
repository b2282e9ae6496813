"""OpenHands' events, as a list or as JSON lines, of both generations.

With `kind`: `ActionEvent` (`tool_name`, `tool_call_id`, `tool_call.arguments`), `ObservationEvent` (`observation` with
`is_error`, `exit_code`), `AgentErrorEvent` (always a failure), `MessageEvent`, `SystemPromptEvent`; actions of one
`llm_response_id` are one turn. Older: events with `action` and `args`, answered by events with `observation`,
`content` and `cause`; the call is taken as the model wrote it where `tool_call_metadata.model_response` has it, whose
`id` tells the calls of one turn, else from `args` without what the program adds. `extras.metadata.exit_code` says
whether a command failed, the observation `error` is a failure.
`is_error` is false for every command that was run, so that the exit code decides where it is false; the code -1 is of a
command that still runs, and leaves the outcome unknown. Other events are skipped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_fields, other_parts, text_of
from probes.items.logs.documents import parse_arguments
from probes.items.logs.failure import verdict
from probes.items.logs.readers.openai import call_of
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Role, Turn, Verdict, skipped

_NO_CALLS = ("recall", "change_agent_state", "null", "condensation")
_ADDED = ("thought", "blocking", "confirmation_state", "hidden", "impl_source", "is_static")
_NO_RESULTS = ("agent_state_changed", "recall", "null", "think", "user_rejected")


def recognises(value: Any) -> bool:
    """Whether a record is an event or a list of them."""
    events = value if isinstance(value, list) else [value]
    return any(_newer(one) or _older(one) for one in events if isinstance(one, Mapping))


def _newer(event: Mapping[str, Any]) -> bool:
    kind = event.get("kind")
    return isinstance(kind, str) and (kind.endswith("Event") or kind == "UserRejectObservation")


def _older(event: Mapping[str, Any]) -> bool:
    acts = "action" in event and isinstance(event.get("args"), Mapping)
    return "source" in event and (acts or ("observation" in event and "content" in event))


def read(records: Iterable[Record]) -> Events:
    """The transcript of the records; a record that is a list of events is a transcript of its own."""
    alone = False
    for record in records:
        if isinstance(record.value, list):
            alone = False
            yield Opened()
            for index, event in enumerate(record.value):
                yield from _event(mapping(event), f"{record.place}, [{index}]", "message")
            continue
        if not alone:
            yield Opened()
        alone = True
        yield from _event(mapping(record.value), record.place, "record")


def _event(event: Mapping[str, Any], place: str, what: str) -> Events:
    if _newer(event):
        yield from _newer_event(event, place, what)
    elif _older(event):
        yield from _older_event(event, place, what)
    else:
        yield skipped(place, what, "no event of OpenHands")


def _newer_event(event: Mapping[str, Any], place: str, what: str) -> Events:
    kind = event["kind"]
    if kind == "SystemPromptEvent":
        texts = (
            text_of([event.get(name)]) for name in ("system_prompt", "dynamic_context") if event.get(name)
        )
        yield Turn("system", place, "\n".join(texts))
    elif kind == "MessageEvent":
        message = mapping(event.get("llm_message"))
        role = message.get("role")
        if role not in ("system", "user", "assistant"):
            yield skipped(place, what, f"unknown role: {role}")
            return
        yield from other_parts(message.get("content"), place)
        yield from other_fields(message, place)
        text = text_of([*listed(message.get("content")), *listed(event.get("extended_content"))])
        if isinstance(message.get("content"), str):
            text = message["content"]
        yield Turn(role, place, text, key=named(event.get("llm_response_id")))
    elif kind == "ActionEvent":
        tool, call = event.get("tool_name"), mapping(event.get("tool_call"))
        if not isinstance(tool, str) or not tool:
            yield skipped(place, "call", "it has no tool_name")
            return
        written = call.get("arguments", mapping(call.get("function")).get("arguments"))
        arguments = parse_arguments(written) if isinstance(written, str) else written
        if written is None:
            action = mapping(event.get("action"))
            arguments = {name: value for name, value in action.items() if name != "kind"}
        made = Call(
            tool, arguments, named(event.get("tool_call_id")), written if isinstance(written, str) else None
        )
        key = named(event.get("llm_response_id"))
        yield from other_parts(event.get("thought"), place)
        yield from other_fields(event, place)
        yield Turn("assistant", place, text_of(event.get("thought")), (made,), key=key)
    elif kind in ("ObservationEvent", "AgentErrorEvent", "UserRejectObservation"):
        yield from _newer_result(event, place)
    else:
        yield skipped(place, what, f"no part of the conversation: {kind}")


def _newer_result(event: Mapping[str, Any], place: str) -> Events:
    failed: Verdict = "unknown"
    said_by, fields = "", mapping(event.get("observation"))
    if event["kind"] == "AgentErrorEvent":
        text, failed, said_by = text_of(event.get("error")), "yes", "AgentErrorEvent"
    elif event["kind"] == "UserRejectObservation":
        text, fields = text_of(event.get("rejection_reason")), {"rejected": True}
    else:
        content = fields.get("content", fields.get("output"))
        yield from other_parts(content, place)
        text = text_of(content)
        failed, said_by = _verdict(fields)
    name = named(event.get("tool_name"))
    result = Result(text, named(event.get("tool_call_id")), name, failed, said_by, None, fields)
    yield Turn("tool", place, results=(result,))


def _verdict(fields: Mapping[str, Any]) -> tuple[Verdict, str]:
    """What the fields of an observation say of its call."""
    failed, said_by = verdict(fields)
    if failed == "yes" and not said_by.startswith("exit_code="):
        return failed, said_by
    code = fields.get("exit_code")
    if not isinstance(code, int) or isinstance(code, bool):
        return failed, said_by
    return ("unknown", "") if code == -1 else verdict({"exit_code": code})


def _older_event(event: Mapping[str, Any], place: str, what: str) -> Events:
    if "action" in event:
        action, arguments = str(event["action"]), mapping(event.get("args"))
        if action in ("message", "system"):
            speaker: Role = "assistant" if event["source"] == "agent" else "user"
            role: Role = "system" if action == "system" else speaker
            yield Turn(role, place, text_of(arguments.get("content")))
        elif action == "finish":
            yield Turn("assistant", place, text_of(arguments.get("final_thought")))
        elif action in _NO_CALLS or event["source"] != "agent":
            yield skipped(place, what, f"no call of the agent: {action}")
        else:
            made = mapping(event.get("tool_call_metadata"))
            call = _older_call(made, action, arguments, named(event.get("id")))
            key = named(mapping(made.get("model_response")).get("id"))
            yield Turn("assistant", place, text_of(arguments.get("thought")), (call,), key=key)
        return
    seen, extras = str(event["observation"]), mapping(event.get("extras"))
    if seen in _NO_RESULTS or event.get("cause") is None:
        yield skipped(place, what, f"no result of a call: {seen}")
        return
    fields = {**extras, **mapping(extras.get("metadata")), "observation": seen, "extras": extras}
    failed, said_by = _verdict(fields)
    if seen == "error":
        failed, said_by = "yes", "observation=error"
    result = Result(text_of(event.get("content")), named(event["cause"]), None, failed, said_by, None, fields)
    yield Turn("tool", place, results=(result,))


def _older_call(
    made: Mapping[str, Any], action: str, arguments: Mapping[str, Any], event_id: str | None
) -> Call:
    """The call of an older event: the model's own, else the program's action."""
    choices = listed(mapping(made.get("model_response")).get("choices"))
    message = mapping(mapping(choices[0]).get("message")) if choices else {}
    for one in listed(message.get("tool_calls")):
        call = call_of(one)
        if call is not None and call.id is not None and call.id == named(made.get("tool_call_id")):
            return Call(call.name, call.arguments, event_id, call.written)
    given = {name: value for name, value in arguments.items() if name not in _ADDED}
    return Call(named(made.get("function_name")) or action, given, event_id)
