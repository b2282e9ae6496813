"""Reading logs to items: format by format, with an account of everything that was read.

Every record of the input, every part that a reader names and every call has one note: what became of it, and why.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO

from mech.errors import InputError
from probes.items.item import Item
from probes.items.logs.decision_points import Settings, Transcript
from probes.items.logs.documents import opened, records
from probes.items.logs.formats import FORMATS, TEXT_FORMATS, recognise
from probes.items.logs.transcript import Event, Note, Opened, Record, skipped

LOOKED_AT = 50
"""Records by which a format is recognised."""

USED = "used"


def read_log(
    path: str, name: str, settings: Settings, standard_input: IO[bytes], log_format: str | None = None
) -> Iterator[Note | Item]:
    """The items of a log and the notes of all that it holds, while it is read.

    Args:
        path: the file; "-" for standard input.
        name: of the file among the logs, part of the ids.
        settings: how calls become items.
        standard_input: what "-" reads.
        log_format: a key of `FORMATS`; None recognises it by the first records.

    Raises:
        InputError: the file cannot be opened or read.
    """
    try:
        yield from _read(path, name, settings, standard_input, log_format)
    except OSError as error:
        raise InputError(f"Cannot read the log '{readable(path)}': {error.strerror or error}.") from error


def _read(
    path: str, name: str, settings: Settings, standard_input: IO[bytes], log_format: str | None
) -> Iterator[Note | Item]:
    with opened(path, standard_input) as stream:
        source = records(stream, path, lambda one: recognise([one]) is not None, log_format in TEXT_FORMATS)
        if log_format is None:
            ahead: list[Record | Note] = []
            for one in source:
                ahead.append(one)
                if len(ahead) == LOOKED_AT:
                    break
            log_format = recognise(one.value for one in ahead if isinstance(one, Record))
            source = chain(ahead, source)
        if log_format is None:
            yield from _unrecognised(source)
            return
        yield Note(readable(path), "file", USED, f"format {log_format}")
        yield from _items(name, log_format, settings, source)


def _unrecognised(source: Iterator[Record | Note]) -> Iterator[Note]:
    why = f"no format is recognised by the first {LOOKED_AT} records (--format names one)"
    for one in source:
        yield one if isinstance(one, Note) else skipped(one.place, "record", why)


def _items(
    name: str, log_format: str, settings: Settings, source: Iterator[Record | Note]
) -> Iterator[Note | Item]:
    transcript: Transcript | None = None
    number = 0
    for event in _events(log_format, source):
        if isinstance(event, Note):
            yield event
        elif isinstance(event, Opened):
            if transcript is not None:
                yield from transcript.end()
            number += 1
            parts = [name if number == 1 else f"{name} #{number}", *([event.name] if event.name else [])]
            transcript = Transcript(", ".join(parts), log_format, event, settings)
        elif transcript is not None:
            yield from transcript.add(event)
    if transcript is not None:
        yield from transcript.end()


def _events(log_format: str, source: Iterator[Record | Note]) -> Iterator[Event]:
    """The reader's events, with the notes of the input and one for every record that the reader takes."""
    aside: list[Note] = []  # notes of the input, until the reader yields
    refused: set[str] = set()

    def taken() -> Iterator[Record]:
        for one in source:
            if isinstance(one, Note):
                aside.append(one)
                continue
            yield one
            if one.place in refused:
                refused.discard(one.place)
            else:
                aside.append(Note(one.place, "record", USED))

    for event in FORMATS[log_format].read(taken()):
        yield from aside
        aside.clear()
        if isinstance(event, Note) and event.what == "record":
            refused.add(event.place)
        yield event
    yield from aside


def readable(text: str) -> str:
    """A file's name or an argument of a command, with "?" for bytes that are no UTF-8, which no file could hold."""
    return text.encode("utf-8", "replace").decode()


def unique_names(paths: list[str]) -> list[str]:
    """A short name for every path: the file's, or the path where two files have one name."""
    whole = [readable(path) for path in paths]
    short = ["standard input" if path == "-" else Path(path).name for path in whole]
    return [path if short.count(name) > 1 else name for path, name in zip(whole, short, strict=True)]
