"""run.json: what it holds, and the one reader that checks it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import NotRequired, TypedDict

from experiments.run.durable import to_json
from mech.errors import InputError
from mech.input_files import SHOWN, NotJson, checked, parse_json

SCHEMA_VERSION = 1

_OPEN = ConfigDict(strict=True, extra="allow")  # more may be said
Value = TypeVar("Value")


def config_hash(config: Mapping[str, Any]) -> str:
    """SHA-256 of the settings as JSON with sorted keys: equal settings in any order have equal hashes."""
    return hashlib.sha256(to_json(config, "The configuration", sort_keys=True).encode()).hexdigest()


@with_config(_OPEN)
class _Model(TypedDict):
    """What run.json says of the model that a study used; more may be said."""

    name: NotRequired[str | None]
    sha256: NotRequired[str | None]
    dtype: NotRequired[str | None]
    device: NotRequired[str | None]
    n_parameters: NotRequired[int]


@with_config(_OPEN)
class _Provenance(TypedDict):
    model: NotRequired[_Model | None]


@with_config(_OPEN)
class _Entry(TypedDict):
    config: dict[str, Any]
    config_hash: str
    provenance: _Provenance
    command: str
    start: str
    end: str | None
    done: bool
    resumes: list[dict[str, Any]]
    extra: NotRequired[dict[str, Any]]


@with_config(_OPEN)
class _Run(TypedDict):
    schema: int
    studies: dict[str, _Entry]


_RUN = TypeAdapter(_Run)


def read_run(path: Path | str) -> dict[str, Any]:
    """The contents of run.json, without claiming the folder.

    Raises:
        InputError: there is none, it cannot be read or is damaged, or another version of backfire wrote it.
    """
    file = Path(path) / "run.json"
    try:
        record, faults = parse_json(file.read_bytes())
    except (OSError, NotJson) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise InputError(
            f"{path} is not a run folder: its run.json is missing or cannot be read ({reason})."
        ) from error
    if (
        not isinstance(record, dict)
        or type(record.get("schema")) is not int
        or record["schema"] != SCHEMA_VERSION
    ):
        raise InputError(
            f"{file} is not of schema {SCHEMA_VERSION}: use the version of backfire that wrote it."
        )
    faults += checked(_RUN, record)[1]
    if not faults:
        faults = [
            f"the settings of '{name}' are not those of its config_hash"
            for name, entry in record["studies"].items()
            if config_hash(entry["config"]) != entry["config_hash"]
        ]
    if faults:
        what = "; ".join(faults[:SHOWN])
        raise InputError(f"{file} is damaged ({what}): restore it, or choose another --out.")
    return record


def recorded(path: Path | str, entry: Mapping[str, Any], place: str, kind: type[Value]) -> Value:
    """What a study's entry of run.json has at a dotted place, such as `config.seed`.

    Raises:
        InputError: there is nothing of this kind; the sentence names file and place.
    """
    found: Any = entry
    for name in place.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    if not isinstance(found, kind) or isinstance(found, bool):
        raise InputError(f"{Path(path) / 'run.json'} is damaged: '{place}' of a study is no {_KINDS[kind]}.")
    return found


_KINDS: Mapping[type, str] = {str: "text", int: "whole number", list: "list", dict: "object"}
