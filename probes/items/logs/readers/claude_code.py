"""Sessions of Claude Code (JSON lines): Anthropic messages in `message`, one line a content block or message.

Lines of one `message.id` are one turn. A failed call has `is_error: true`; the program writes no `is_error` for many
tools that succeeded, so that a result without it did. Lines of sub-agents (`isSidechain`, or `parent_tool_use_id` in
the stream of a run), of errors of the API, of the program itself (model `<synthetic>`) and of other types than `user`
and `assistant` are skipped. A summary (`isCompactSummary`) takes the place of all that stands before it. The system
prompt is not in the log. Lines are taken in the file's order: a session that was wound back holds both branches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probes.items.logs.content import mapping, named
from probes.items.logs.readers import anthropic
from probes.items.logs.transcript import Events, Opened, Record, skipped


def recognises(value: Any) -> bool:
    """Whether a record is a line of a session."""
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        return False
    spoken = value["type"] in ("user", "assistant") and isinstance(value.get("message"), Mapping)
    return "sessionId" in value or (spoken and "session_id" in value)


def read(records: Iterable[Record]) -> Events:
    """The transcripts of the records, one a session."""
    session = None
    for record in records:
        line, place = mapping(record.value), record.place
        if line.get("type") not in ("user", "assistant") or not isinstance(line.get("message"), Mapping):
            yield skipped(place, "record", f"no message: type {line.get('type')}")
        elif line.get("isSidechain") is True or line.get("parent_tool_use_id"):
            name = "isSidechain" if line.get("isSidechain") is True else "parent_tool_use_id"
            yield skipped(place, "record", f"a sub-agent's turn ({name})")
        elif line.get("isApiErrorMessage") is True:
            yield skipped(place, "record", "an error of the API, no turn of the model")
        elif line["message"].get("model") == "<synthetic>":
            yield skipped(place, "record", "written by the program, no turn of the model")
        else:
            if session is None or _session(line) != session:
                session = _session(line)
                yield Opened(session)
            message = {"role": line["type"], **line["message"]}
            further = {key: line[key] for key in ("toolUseResult", "tool_use_result") if key in line}
            yield from anthropic.turns(
                message,
                place,
                named(message.get("id")),
                further,
                unmarked_succeeded=True,
                restarts=line.get("isCompactSummary") is True,
            )


def _session(line: Mapping[str, Any]) -> str:
    return named(line.get("sessionId")) or named(line.get("session_id")) or ""
