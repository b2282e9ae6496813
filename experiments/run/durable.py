"""Files that survive kill -9 and a full disk: whole rows appended, whole files replaced, one writer.

A process that dies leaves at most one torn last line in a row file; `parse_rows` says where whole rows end.
What the disk refuses (no space, no permission, a file for a folder) becomes one InputError sentence.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from experiments.run.row_types import row_faults
from mech.errors import InputError
from mech.input_files import NotJson, parse_json, read_bytes


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into an InputError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"Cannot write {path} ({error.strerror}): rows so far are kept; make room or choose a folder "
            "that can be written, and run the same command again."
        ) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let a refusal inside the block name the file whose contents it is about."""
    try:
        yield
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from error


def take_lock(folder: Path) -> IO[bytes]:
    """Hold `folder/.lock` until the file returned is closed.

    The kernel lets go of it when the process dies, also by kill -9, so a lock is never stale.

    Raises:
        InputError: another process, or another claim in this one, holds it.
    """
    lock = open(folder / ".lock", "ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        lock.close()
        raise InputError(
            f"{folder} is being written by another run: wait for it, or choose another --out."
        ) from error
    except OSError:
        lock.close()
        raise
    return lock


def append_bytes(path: Path, data: bytes) -> None:
    """Append all of `data` and wait for the disk; on any failure take back the part that was written."""
    with open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            written = 0
            while written < len(data):
                written += file.write(data[written:])
            os.fsync(file.fileno())
        except BaseException:
            file.truncate(size)
            raise


def replace(path: Path, text: str) -> None:
    """Put a new file in the old one's place in one step: a reader sees either, never a part."""
    part = path.with_name(f".{path.name}.tmp")
    with writing(path):
        with open(part, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


def parse_rows(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The whole rows of a row file and the number of bytes they take; no file, no rows.

    A last line that has no line break, or that is no row, is left out: its writer died in the middle of it.

    Raises:
        InputError: the file cannot be read; another line is no row (JSON object with an `id`, finite numbers, and the
            columns of its file as `experiments.run.row_types` says), or an id occurs twice.
    """
    lines = read_bytes(path, "row file").split(b"\n") if path.exists() else [b""]
    torn = lines.pop()  # what follows the last line break: nothing, or a torn row
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    size = 0
    for number, line in enumerate(lines, start=1):
        row, faults = _row(line)
        if row is None and number == len(lines) and not torn:
            break
        if row is not None:
            faults += row_faults(path.stem, row)
        if row is None or faults:
            what = "; ".join(faults[:3])
            raise InputError(f"{path}, line {number}, is not a row ({what}): restore or delete that line.")
        row_id = row["id"]
        if row_id in seen:
            raise InputError(f"{path}, line {number}, repeats the row '{row_id}': delete one of the two.")
        seen.add(row_id)
        rows.append(row)
        size += len(line) + 1
    return rows, size


def _row(line: bytes) -> tuple[dict[str, Any] | None, list[str]]:
    """A line as an object that has an id (else None), and its faults."""
    try:
        row, faults = parse_json(line)
    except NotJson as error:
        return None, [str(error)]
    if not isinstance(row, dict):
        return None, ["it is no JSON object"]
    return (row, faults) if "id" in row else (None, ["it has no id"])


def to_json(value: Mapping[str, Any], what: str, indent: int | None = None, sort_keys: bool = False) -> str:
    """One JSON text; numpy's numbers and arrays become plain ones, floats read back exactly.

    Raises:
        InputError: a number is NaN or infinite; the sentence begins with `what` and names the place.
    """
    for place, number in _floats(value, ""):
        if not math.isfinite(number):
            raise InputError(
                f"{what} holds {number} at '{place}', not a finite number: nothing was recorded."
            )
    return json.dumps(value, sort_keys=sort_keys, allow_nan=False, default=_plain, indent=indent)


def _floats(value: Any, place: str) -> Iterator[tuple[str, float]]:
    """Every float in a nested value, with its dotted place."""
    if isinstance(value, (float, np.floating)):
        yield place, float(value)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _floats(item, f"{place}.{key}" if place else str(key))
    elif isinstance(value, (list, tuple, np.ndarray)):
        for index, item in enumerate(value):
            yield from _floats(item, f"{place}[{index}]")


def _plain(value: Any) -> Any:
    """The Python value of a numpy one."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")
