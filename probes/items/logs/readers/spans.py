"""Spans of OpenTelemetry, however they are exported: OTLP's JSON, the SDK's console form, Phoenix's rows.

Spans of a trace come in any order and every model call carries the whole conversation so far, so that a file of spans
is read to its end before its transcripts are known: the longest conversation of each thread is kept in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from mech.input_files import NotJson
from probes.items.logs.content import listed, mapping, named
from probes.items.logs.documents import parse
from probes.items.logs.transcript import Events, Note, Opened, Record, Result, Turn, skipped


@dataclass(frozen=True)
class Span:
    """One span: ids, its start as a text that sorts, attributes by dotted name, and whether its status is an error."""

    place: str
    trace: str
    name: str
    start: str
    attributes: Mapping[str, Any]
    failed: bool


@dataclass(frozen=True)
class Answer:
    """What the span of a tool says of a call: its error (a kind, or empty), its result where it has one."""

    failed: bool
    said_by: str
    error_type: str | None
    text: str | None
    fields: Mapping[str, Any]


_NOTHING = Answer(False, "", None, None, {})


@dataclass
class _Thread:
    """The longest conversation seen of one thread of a trace; `ids` are those of all its calls."""

    trace: str
    name: str
    ids: set[str] = field(default_factory=set)
    turns: list[Turn] = field(default_factory=list)
    length: int = -1
    start: str = ""
    tools: tuple[str, ...] = ()
    notes: list[Note] = field(default_factory=list)


def spans_of(value: Any, place: str) -> Iterator[Span]:
    """The spans of a record: an OTLP request, one span, or a list of them; nothing for what is none."""
    if isinstance(value, list):
        for index, one in enumerate(value):
            yield from spans_of(one, f"{place}, [{index}]")
        return
    one = mapping(value)
    if "resourceSpans" in one:
        for resource in map(mapping, listed(one["resourceSpans"])):
            for scope in map(mapping, listed(resource.get("scopeSpans"))):
                for index, span in enumerate(map(mapping, listed(scope.get("spans")))):
                    yield _span(span, f"{place}, spans[{index}]")
    elif isinstance(one.get("attributes"), (Mapping, list)) and "name" in one:
        yield _span(one, place)


def _span(span: Mapping[str, Any], place: str) -> Span:
    context, status = mapping(span.get("context")), span.get("status")
    code = mapping(status).get("status_code", mapping(status).get("code", span.get("status_code")))
    raw = span.get("attributes")
    given = {str(mapping(one).get("key")): _value(mapping(one).get("value")) for one in listed(raw)}
    start = next(
        (span[name] for name in ("startTimeUnixNano", "start_time", "startTime") if name in span), ""
    )
    return Span(
        place,
        named(span.get("traceId")) or named(span.get("trace_id")) or named(context.get("trace_id")) or "",
        str(span.get("name")),
        str(start).zfill(20),
        given if isinstance(raw, list) else dict(_flat(mapping(raw), "")),
        str(code).upper() in ("ERROR", "STATUS_CODE_ERROR", "STATUSCODE.ERROR", "2"),
    )


def _value(value: Any) -> Any:
    """A value as OTLP wraps it."""
    one = mapping(value)
    if "arrayValue" in one:
        return [_value(each) for each in listed(mapping(one["arrayValue"]).get("values"))]
    if "kvlistValue" in one:
        pairs = map(mapping, listed(mapping(one["kvlistValue"]).get("values")))
        return {str(pair.get("key")): _value(pair.get("value")) for pair in pairs}
    if "intValue" in one:
        try:
            return int(one["intValue"])
        except (TypeError, ValueError):
            return one["intValue"]
    return next(iter(one.values()), None)


def _flat(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """Nested attributes under dotted names; lists stay as they are."""
    for name, one in value.items():
        if isinstance(one, Mapping):
            yield from _flat(one, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", one


def as_json(value: Any) -> Any:
    """The value that an attribute holds, as such or as JSON text; None where the text is no JSON."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value.encode("utf-8", "replace"))[0]
    except NotJson:
        return None


Conversation = tuple[list[Turn], tuple[str, ...], list[Note]]
"""The turns of a model call's span (none where they cannot be read), its tools, and notes of parts not used."""


def read_spans(
    records: Iterable[Record],
    conversation: Callable[[Span], Conversation | None],
    answer: Callable[[Span], tuple[str, Answer] | None],
) -> Events:
    """The transcripts of spans.

    Args:
        records: as `spans_of` takes them.
        conversation: what a model call's span holds; None for another span.
        answer: the call's id and what a tool's span says of it; None for another span.
    """
    threads: dict[tuple[str, str], list[_Thread]] = {}
    answers: dict[tuple[str, str], Answer] = {}
    for record in records:
        empty = True
        for span in spans_of(record.value, record.place):
            empty = False
            found, said = conversation(span), answer(span)
            if said is not None:
                answers[span.trace, said[0]] = said[1]
                yield Note(span.place, "span", "used")
            elif found is not None and found[0]:
                yield _kept(threads, span, found)
            else:
                yield from found[2] if found is not None else ()
                yield skipped(span.place, "span", f"no messages and no call in it: {span.name}")
        if empty:
            yield skipped(record.place, "record", "no span")
    for thread in sorted(chain.from_iterable(threads.values()), key=lambda one: one.start):
        trace = thread.trace
        yield Opened(thread.name, thread.tools)
        yield from thread.notes
        for turn in thread.turns:
            yield _answered(turn, answers, trace)
        last = thread.turns[-1]  # whose calls no later model call shows, but perhaps the spans of their tools
        known = [
            one.id for one in last.calls if one.id and answers.get((trace, one.id), _NOTHING).text is not None
        ]
        results = tuple(Result("", call_id) for call_id in known)
        if results:
            yield _answered(Turn("tool", last.place, results=results), answers, trace)


def _kept(threads: dict[tuple[str, str], list[_Thread]], span: Span, found: Conversation) -> Note:
    """Keep the longest conversation of those that begin with the same messages and share a call, where they have any.

    Conversations without a common call are runs of their own, even where they begin alike (a request sent twice).
    """
    turns = found[0]
    first = next((turn.text for turn in turns if turn.role == "user"), "")
    system = "\n".join(turn.text for turn in turns if turn.role == "system")
    ids = {call.id for turn in turns for call in turn.calls if call.id is not None}
    alike = threads.setdefault((span.trace, f"{system}\0{first}"), [])
    thread = next((one for one in alike if not ids or not one.ids or ids & one.ids), None)
    if thread is None:
        number = sum(len(some) for (trace, _), some in threads.items() if trace == span.trace)
        name = span.trace + (f", thread {number + 1}" if number else "")
        thread = _Thread(span.trace, name, start=span.start)
        alike.append(thread)
    thread.ids |= ids
    length = sum(max(1, len(turn.calls) + len(turn.results)) for turn in turns)
    if length > thread.length:
        thread.length = length
        thread.turns, thread.tools, thread.notes = found
    return Note(span.place, "span", "used")


def _answered(turn: Turn, answers: Mapping[tuple[str, str], Answer], trace: str) -> Turn:
    """A turn whose results know what the spans of their calls say."""
    results = []
    for result in turn.results:
        said = answers.get((trace, result.call_id or ""))
        if said is None:
            results.append(result)
            continue
        results.append(
            Result(
                result.content or said.text or "",
                result.call_id,
                result.name,
                "yes" if said.failed else "no",
                said.said_by,
                said.error_type,
                {**result.fields, **said.fields},
            )
        )
    return Turn(turn.role, turn.place, turn.text, turn.calls, tuple(results), turn.key)
