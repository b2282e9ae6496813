"""Strict reading of files that people write: all faults of a file in one message, each with its place.

JSON allows values that give a wrong number or a crash later: two fields of one name (the last one wins), NaN, numbers
too large for a float, halves of a surrogate pair, which no tokenizer takes. Here they are faults.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from mech.errors import InputError

SHOWN = 20  # faults of a file that are listed; the rest are counted
MAX_DEPTH = 64  # objects and lists inside one another


class NotJson(ValueError):
    """The text is not JSON; the message says where."""


# An escaped half of a surrogate pair; a number that may be too large for a float.
_ODD = re.compile(rb"\\u[dD][89a-fA-F]|[eE]\+?[0-9]{3}|[0-9]{300}")


class _Object(dict[str, Any]):
    """A JSON object with the names of fields that occur in it twice."""

    doubled: tuple[str, ...] = ()


def read_bytes(path: str | os.PathLike[str], what: str) -> bytes:
    """The bytes of a file of the kind `what` ("item file"); InputError where it cannot be read."""
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:  # the latter: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"Cannot read the {what} '{os.fspath(path)}': {reason}.") from error


def parse_json(raw: bytes) -> tuple[Any, list[str]]:
    """The value of a JSON text in UTF-8 (a byte-order mark is allowed), and its faults, each a clause.

    Raises:
        NotJson: it is not UTF-8, not JSON, or nested deeper than `MAX_DEPTH`.
    """
    odd: list[str] = []  # repeated fields and NaN; without them the values need no further check

    def made(pairs: list[tuple[str, Any]]) -> _Object:
        found = _Object(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            found.doubled = tuple(dict.fromkeys(name for name in names if names.count(name) > 1))
            odd.extend(found.doubled)
        return found

    def constant(name: str) -> float:
        odd.append(name)
        return float(name)

    try:
        value = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=made, parse_constant=constant)
    except UnicodeDecodeError as error:
        raise NotJson(f"it is not UTF-8 text (byte {error.start})") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}" if error.lineno > 1 else f"column {error.colno}"
        raise NotJson(f"{error.msg}, {place}") from error
    except RecursionError as error:
        raise NotJson("it is nested too deeply") from error
    except ValueError as error:  # a whole number of thousands of digits
        raise NotJson("it holds a number that is too long") from error
    if odd or _ODD.search(raw) or raw.count(b"{") + raw.count(b"[") > MAX_DEPTH:
        return value, list(_faults(value))
    return value, []


def _faults(value: Any) -> Iterator[str]:
    """Values that JSON allows and this package does not, outermost first."""
    left: deque[tuple[str, Any, int]] = deque([("", value, 0)])
    while left:
        place, one, depth = left.popleft()
        if depth > MAX_DEPTH:
            raise NotJson("it is nested too deeply")
        if isinstance(one, _Object):
            for name in one.doubled:
                yield f"the field '{_printable(_joined(place, name))}' occurs twice in one object"
            for name, each in one.items():
                if not _is_text(name):
                    yield f"the name of the field '{_printable(_joined(place, name))}' {_HALF}"
                left.append((_joined(place, name), each, depth + 1))
        elif isinstance(one, list):
            left.extend((f"{place}[{index}]", each, depth + 1) for index, each in enumerate(one))
        elif isinstance(one, str) and not _is_text(one):
            yield f"{_called(place)} {_HALF}"
        elif isinstance(one, float) and not math.isfinite(one):
            yield f"{_called(place)} is no finite number"


_HALF = "holds half of a surrogate pair, which is no character (was the text cut inside an emoji?)"


def _is_text(text: str) -> bool:
    """Whether the text can be encoded in UTF-8, without half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _called(place: str) -> str:
    return f"the field '{_printable(place)}'" if place else "the value"


def _printable(text: str) -> str:
    """The text, at most 200 characters, with escapes for what UTF-8 cannot encode."""
    short = text if len(text) <= 200 else f"{text[:200]}…"
    return short.encode("utf-8", "backslashreplace").decode()


def checked(kind: TypeAdapter, value: Any) -> tuple[Any, list[str]]:
    """A JSON value validated as `kind`, or None and all faults, each a clause."""
    try:
        return kind.validate_python(value), []
    except ValidationError as error:
        return None, list(dict.fromkeys(_clause(each) for each in error.errors(include_url=False)))


def _clause(error: Any) -> str:
    """One of pydantic's errors as a clause: the place in the file and the fault."""
    place = ""
    for part in error["loc"]:
        place = f"{place}[{part}]" if isinstance(part, int) else _joined(place, str(part))
    what = _called(place)
    if error["type"] == "missing":
        return f"{what} is missing"
    if error["type"] == "extra_forbidden":
        return f"{what} is not known here"
    if error["type"] == "value_error":
        return f"{what} {error['ctx']['error']}"
    if error["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return f"{what} must be an object"
    return f"{what} {_WORDS.get(error['type'], error['msg'].replace('Input should be', 'must be'))}"


_WORDS = {
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "list_type": "must be a list",
    "too_short": "must not be empty",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "string_too_short": "must be a non-empty string",
    "finite_number": "must be a finite number",
}


def refuse(path: str | os.PathLike[str], what: str, faults: Sequence[str]) -> None:
    """Raise InputError with all faults of a file, if any, each beginning with its place, in file order."""
    if not faults:
        return
    name = os.fspath(path)
    if len(faults) == 1:
        raise InputError(f"{name}, {faults[0]}.")
    lines = [f"  {fault}" for fault in faults[:SHOWN]]
    if len(faults) > SHOWN:
        lines.append(f"  and {len(faults) - SHOWN} more")
    raise InputError("\n".join([f"The {what} '{name}' has {len(faults)} faults:", *lines]))
