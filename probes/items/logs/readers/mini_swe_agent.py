"""mini-swe-agent's trajectories (`trajectory_format: mini-swe-agent-1.…`): messages, with commands in code blocks.

A call is a member of `extra.actions` (`command`, perhaps `tool_call_id`) or of `tool_calls`; in the older form, which
has neither, the one block of shell code of the message. The next messages are the results. Their `extra.returncode`
says whether the command failed, or, in the older form, `<returncode>` at the beginning of the message: not 0 is a
failure. `info.exit_status` is of the whole run and decides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import listed, mapping, named, other_fields, other_parts, text_of
from probes.items.logs.failure import verdict
from probes.items.logs.readers.openai import call_of
from probes.items.logs.transcript import Call, Events, Opened, Record, Result, Turn, skipped

_BLOCK = re.compile(r"```(?:mswea_bash_command|bash|sh)\s*\n(.*?)\n```", re.DOTALL)
_CODE = re.compile(r"\s*<returncode>\s*(-?\d+)\s*</returncode>")


def recognises(value: Any) -> bool:
    """Whether a record is a trajectory."""
    return isinstance(value, Mapping) and str(value.get("trajectory_format")).startswith("mini-swe-agent")


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records."""
    for record in records:
        if not recognises(record.value):
            yield skipped(record.place, "record", "no trajectory of mini-swe-agent")
            continue
        yield Opened(named(record.value.get("instance_id")) or "")
        waiting = 0  # commands that no message has answered yet
        for index, message in enumerate(map(mapping, listed(record.value.get("messages")))):
            place = f"{record.place}, messages[{index}]"
            for event in _message(message, place, waiting):
                if isinstance(event, Turn):
                    waiting = len(event.calls) if event.role == "assistant" else waiting - len(event.results)
                yield event


def _message(message: Mapping[str, Any], place: str, waiting: int) -> Events:
    role, content = message.get("role"), message.get("content")
    extra = mapping(message.get("extra"))
    if role == "exit":
        yield skipped(place, "message", f"the end of the run: {extra.get('exit_status')}")
    elif role == "assistant":
        yield from other_parts(content, place)
        yield from other_fields(message, place)
        yield _assistant(message, extra, text_of(content), place)
    elif role in ("user", "tool") and (role == "tool" or (waiting > 0 and _answers(extra, text_of(content)))):
        yield from other_parts(content, place)
        yield Turn("tool", place, results=(_result(message, extra, text_of(content)),))
    elif role in ("system", "user"):
        yield from other_parts(content, place)
        yield Turn(role, place, text_of(content))
    else:
        yield skipped(place, "message", f"unknown role: {role}")


def _assistant(message: Mapping[str, Any], extra: Mapping[str, Any], text: str, place: str) -> Turn:
    structured = [
        call for one in listed(message.get("tool_calls")) for call in [call_of(one)] if call is not None
    ]
    if structured:
        return Turn("assistant", place, text, tuple(structured))
    blocks = list(_BLOCK.finditer(text))
    actions = [mapping(one) for one in listed(extra.get("actions"))]
    if actions:
        commands = [(str(one.get("command", "")), named(one.get("tool_call_id"))) for one in actions]
    elif "actions" in extra or len(blocks) != 1:
        commands = []
    else:
        commands = [(block[1], None) for block in blocks]
    calls = []
    for command, call_id in commands:
        block = next((one for one in blocks if one[1].strip() == command.strip()), None)
        written = block[0] if block else None
        calls.append(Call("bash", {"command": command}, call_id, command, written))
        text = text.replace(written, "", 1) if written else text
    return Turn("assistant", place, text.strip() if calls else text, tuple(calls))


def _answers(extra: Mapping[str, Any], text: str) -> bool:
    """Whether a user's message is the output of a command: it has a return code, in a field or at its beginning."""
    return "returncode" in extra or _CODE.match(text) is not None


def _result(message: Mapping[str, Any], extra: Mapping[str, Any], text: str) -> Result:
    code = _CODE.match(text)
    fields = {"returncode": int(code[1]), **extra} if code else dict(extra)
    failed, said_by = verdict({"returncode": fields.get("returncode")})
    return Result(text, named(message.get("tool_call_id")), None, failed, said_by, None, fields)
