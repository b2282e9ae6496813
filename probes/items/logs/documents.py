"""The records of a log file: the lines of JSON lines, JSON documents, the samples of a zip, the lines of a text.

JSON lines and text are read line by line and samples one by one, so that a file may be larger than the memory; one
JSON document (or line, or sample) is read whole, up to `MAX_BYTES`. What cannot be read is a note with its place,
and reading goes on after it. Halves of surrogate pairs become U+FFFD, numbers that are not finite become texts; both
are noted.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from mech.errors import InputError
from mech.input_files import NotJson, parse_json
from probes.items.logs.transcript import Note, Record, skipped

MAX_BYTES = 256 * 2**20
"""Bytes of one line, document or sample; a longer one is skipped."""

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_UNREADABLE = (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError, KeyError)
_STARTS = (
    64  # lines that may be blank before the first that is looked at, and lines of text before JSON lines
)
_PACKED = "it is packed ({}): unpack it first"
_WIDE = "it is UTF-16 text: convert it to UTF-8"
_FOREIGN = {
    b"\x1f\x8b": _PACKED.format("gzip"),
    b"BZh": _PACKED.format("bzip2"),
    b"\xfd7zXZ": _PACKED.format("xz"),
    b"\x28\xb5\x2f\xfd": _PACKED.format("zstandard"),
    b"\xff\xfe": _WIDE,
    b"\xfe\xff": _WIDE,
}
"""First bytes of files that hold no text in UTF-8, and what to do with them."""


def records(
    stream: IO[bytes], path: str, recognised: Callable[[Any], bool], text: bool = False
) -> Iterator[Record | Note]:
    """The records of an open log, in order, and notes of what could not be read.

    Args:
        stream: opened in binary mode; needs no seeking, but for zip files.
        path: the name of the file; "-" for standard input.
        recognised: whether a JSON value or a line of text is of a known format: tells JSON lines behind lines of text
            (warnings, the output of a program) from a text with JSON in it.
        text: it is a text log, even if it begins like JSON.
    """
    first: list[bytes] = []
    while len(first) < _STARTS and not (first and first[-1].strip(_BLANK)):
        line = stream.readline(MAX_BYTES + 1)
        if not line:
            break
        first.append(line.removeprefix(_BOM) if not first else line)
    if not first:
        yield skipped("document", "record", "it is empty")
        return
    begin, start = first[-1].strip(_BLANK), len(first)
    foreign = next((why for magic, why in _FOREIGN.items() if begin.startswith(magic)), None)
    if foreign is not None:
        yield skipped("document", "record", foreign)
    elif begin.startswith(b"PK\x03\x04"):
        yield from _samples(path)
    elif text:
        yield from _text_lines(first, stream)
    else:
        whole = _is_json(begin)
        if whole is False and _json_behind(first, stream, recognised):
            yield from _json_lines(first, stream)
        elif not begin.startswith((b"{", b"[")):
            yield from _text_lines(first, stream)
        else:
            if len(first) == start:
                first.append(stream.readline(MAX_BYTES + 1))
            if whole or (begin not in (b"[", b"{") and _is_json(first[start].strip(_BLANK))):
                yield from _json_lines(first, stream)
            else:
                yield from _document(b"".join(first), stream)


def parse(raw: bytes) -> tuple[Any, list[str]]:
    """A JSON value that any file can hold, and what had to be changed or passed over in it.

    Raises:
        NotJson: it is none.
    """
    value, faults = parse_json(raw)
    return (_clean(value), faults) if faults else (value, [])


def parse_arguments(text: str) -> Any:
    """The object that a text of arguments says; the text itself where it says none, or one that no file could hold."""
    try:
        value, faults = parse(text.encode("utf-8", "replace"))
    except NotJson:
        return text
    return value if isinstance(value, dict) and not faults else text


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_clean(one) for one in value]
    if isinstance(value, dict):
        return {_clean(name): _clean(one) for name, one in value.items()}
    return value


def _json_behind(first: list[bytes], stream: IO[bytes], recognised: Callable[[Any], bool]) -> bool:
    """Whether the first line of a known format is one of JSON; `first` is extended by the lines that were looked at."""
    for at in range(len(first) - 1, len(first) + _STARTS):
        if at == len(first):
            first.append(stream.readline(MAX_BYTES + 1))
        if not first[at] or len(first[at]) > MAX_BYTES:
            return False
        try:
            value = parse(first[at])[0]
        except NotJson:
            value = first[at].decode("utf-8", "replace")
        if recognised(value):
            return not isinstance(value, str)
    return False


def _is_json(line: bytes) -> bool | None:
    """Whether a line is JSON; None where it is the beginning of a value that the next lines may end."""
    try:
        json.loads(line)
    except json.JSONDecodeError as error:
        begun = error.pos >= len(error.doc) or error.msg.startswith("Unterminated string")
        return None if begun else False
    except (ValueError, RecursionError):
        return False
    return True


def _lines(first: list[bytes], stream: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """(number, line, whether it is too long to be read) of every line."""
    number = 0
    ahead = iter(first)
    while True:
        line = next(ahead, None)
        if line is None:
            line = stream.readline(MAX_BYTES + 1)
        if not line:
            return
        number += 1
        too_long = len(line) > MAX_BYTES
        while too_long and not line.endswith(b"\n"):
            line = stream.readline(2**20)
            if not line:
                break
        yield number, line, too_long


def _json_lines(first: list[bytes], stream: IO[bytes]) -> Iterator[Record | Note]:
    for number, line, too_long in _lines(first, stream):
        place = f"line {number}"
        if too_long:
            yield skipped(place, "record", f"it is longer than {MAX_BYTES} bytes")
        elif not line.strip(_BLANK):
            yield skipped(place, "record", "blank line")
        else:
            yield from _parsed(line, place, cut="" if line.endswith(b"\n") else "the last line is cut off: ")


def _document(begin: bytes, stream: IO[bytes]) -> Iterator[Record | Note]:
    raw = begin + stream.read(max(0, MAX_BYTES + 1 - len(begin)))
    if len(raw) > MAX_BYTES:
        yield skipped("document", "record", f"one JSON document of more than {MAX_BYTES} bytes: split it")
        return
    found = list(_parsed(raw, "document"))
    if isinstance(found[-1], Record) or "Extra data" not in found[-1].why:
        yield from found
        return
    for number, piece in enumerate(_pieces(raw.decode("utf-8", "replace")), start=1):
        yield from _parsed(piece.encode(), f"document {number}")


def _pieces(text: str) -> Iterator[str]:
    """The JSON values that follow one another, as a console exporter writes them; the last may be torn."""
    decoder, at = json.JSONDecoder(), 0
    while at < len(text):
        try:
            end = decoder.raw_decode(text, at)[1]
        except (ValueError, RecursionError):
            end = len(text)
        while end < len(text) and text[end].isspace():
            end += 1
        yield text[at:end]
        at = end


def _parsed(raw: bytes, place: str, cut: str = "") -> Iterator[Record | Note]:
    try:
        value, faults = parse(raw)
    except NotJson as error:
        yield skipped(place, "record", f"{cut}it is no JSON that can be used ({error})")
        return
    for fault in faults:
        yield Note(place, "text", "changed", fault)
    yield Record(place, value)


def _text_lines(first: list[bytes], stream: IO[bytes]) -> Iterator[Record | Note]:
    for number, line, too_long in _lines(first, stream):
        place = f"line {number}"
        if too_long:
            yield skipped(place, "record", f"it is longer than {MAX_BYTES} bytes")
            continue
        text = line.decode("utf-8", "replace")
        if "\ufffd" in text and b"\xef\xbf\xbd" not in line:
            yield Note(place, "text", "changed", "it holds bytes that are no UTF-8 text")
        yield Record(place, text.rstrip("\r\n"))


def _samples(path: str) -> Iterator[Record | Note]:
    """The samples of Inspect's zip format."""
    if path == "-":
        yield skipped("document", "record", "a zip file cannot be read from standard input: name the file")
        return
    try:
        archive = zipfile.ZipFile(path)
    except _UNREADABLE as error:
        yield skipped("document", "record", f"it is no whole zip file ({error})")
        return
    with archive:
        entries = archive.infolist()
        samples = [one for one in entries if one.filename.startswith("samples/")]
        if not samples:
            yield skipped("document", "record", "it is a zip file without samples/")
        readable = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        if any(one.compress_type not in readable for one in samples):
            yield from _samples_by_library(path)
            return
        for one in samples:
            if one.file_size > MAX_BYTES:
                yield skipped(one.filename, "record", f"it is longer than {MAX_BYTES} bytes")
                continue
            try:
                raw = archive.read(one)
            except _UNREADABLE as error:
                yield skipped(one.filename, "record", f"it cannot be unpacked ({error})")
                continue
            yield from _parsed(raw, one.filename)


def _samples_by_library(path: str) -> Iterator[Record | Note]:
    """Samples that this Python cannot unpack (zstandard), one by one through the library that wrote them."""
    try:
        log = import_module("inspect_ai.log")
    except ImportError:
        why = "its samples are packed with zstandard: pip install 'backfire[inspect]', or convert it to JSON"
        yield skipped("document", "record", why)
        return
    try:
        summaries = log.read_eval_log_sample_summaries(path)
    except _UNREADABLE as error:
        yield skipped("document", "record", f"inspect_ai cannot read it ({error})")
        return
    for summary in summaries:
        place = f"samples/{summary.id}_epoch_{summary.epoch}.json"
        try:
            sample = log.read_eval_log_sample(path, id=summary.id, epoch=summary.epoch)
            raw = sample.model_dump_json(exclude={"events"}).encode()
        except _UNREADABLE as error:
            yield skipped(place, "record", f"inspect_ai cannot read it ({error})")
            continue
        yield from _parsed(raw, place)


def opened(path: str, standard_input: IO[bytes]) -> IO[bytes]:
    """The log, open for reading; "-" is standard input.

    Raises:
        InputError: it is missing, a folder, or may not be read.
    """
    if path == "-":
        return standard_input
    try:
        return io.BufferedReader(io.FileIO(Path(path)), 2**20)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot read the log '{path}': {reason}.") from error
