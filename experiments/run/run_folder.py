"""The layout of a run folder, and the only code that writes one; `schema` has the columns.

    RUN/run.json    {"schema": 1, "studies": {"probe": {config, config_hash, provenance, command, start, end,
                    done, resumes, extra}, "heads": {…}, …}}: one entry per study, all on the same weights
    RUN/NAME.jsonl  rows, append-only, one JSON object a line, each with an `id` that occurs once in the file
    RUN/failures.jsonl  units that could not be measured, why, and after which row theirs belong
    RUN/STUDY.toml  the study's settings, all of them, as --config reads them
    RUN/NAME.csv    tables derived from the rows, replaced whole
    RUN/.lock       held while a process writes the folder

A row is on the disk when `append` returns; a killed process costs at most the row it was writing. Numbers are
finite or null in rows, finite or empty in tables.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import pandas as pd

from experiments.run.durable import append_bytes, parse_rows, replace, take_lock, to_json, writing
from experiments.run.frames import EXACT_FLOATS, csv_text, in_schema, numeric, read_frame
from experiments.run.run_json import SCHEMA_VERSION, config_hash, read_run, recorded
from experiments.run.schema import RENAMED_ROWS, ROWS, TABLES
from mech.errors import InputError
from mech.input_files import read_bytes

__all__ = [
    "RunFolder", "config_hash", "read_run", "recorded", "in_schema", "read_frame", "numeric", "utc_now",
    "EXACT_FLOATS", "SCHEMA_VERSION", "ROWS", "TABLES",
]  # fmt: skip

_BEFORE_RUN_JSON = {".lock", ".run.json.tmp"}  # all there is if the first process died at once
_NAME = re.compile(r"[A-Za-z0-9_-]+")


def settings_file(entry: str) -> str:
    """The file in which a finished run leaves its settings."""
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', entry)}.toml"


def utc_now() -> str:
    """The time as `2026-01-31T09:30:00+00:00`."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


class RunFolder:
    """A run folder claimed for one study; use it in a `with` block, which gives the claim back at the end."""

    def __init__(self, path: Path, study: str, lock: IO[bytes], clock: Callable[[], str]) -> None:
        self.path = path
        self.study = study
        self._lock = lock
        self._clock = clock
        self._ids: dict[str, dict[str, None]] = {}  # file → its ids, in order
        self.settings = ""  # what STUDY.toml is to hold
        self._traceless = False  # a study new to this folder that has written nothing into it yet

    @classmethod
    def open(
        cls,
        path: Path | str,
        study: str,
        config: Mapping[str, Any],
        provenance: Mapping[str, Any],
        command: str,
        clock: Callable[[], str] = utc_now,
    ) -> RunFolder:
        """Claim the folder for a study: create it, or resume in it under the same configuration.

        Args:
            path: the folder; made if absent.
            study: whose entry of run.json this is.
            config: the settings, plain JSON values; whatever may change a row belongs here.
            provenance: see `experiments.run.provenance`; its `["model"]["sha256"]` is one for all studies.
            command: the command line as typed.
            clock: gives the time as text.

        Raises:
            InputError: the folder holds other things, other settings of this study (they are named) or other
                weights, is being written by another run, or cannot be written.
        """
        folder = Path(path)
        settings = json.loads(to_json(config, "The configuration"))
        fresh = {"config": settings, "config_hash": config_hash(settings)}
        with writing(folder):
            _refuse_foreign(folder)
            folder.mkdir(parents=True, exist_ok=True)
            run = cls(folder, study, take_lock(folder), clock)
        try:
            run._enter({**fresh, "provenance": dict(provenance), "command": command})
        except BaseException:
            run.close()
            raise
        return run

    def _enter(self, fresh: dict[str, Any]) -> None:
        """Write this study's entry, or check that the one there may be continued."""
        exists = (self.path / "run.json").exists()
        record: dict[str, Any] = read_run(self.path) if exists else {"schema": SCHEMA_VERSION, "studies": {}}
        studies = record["studies"]
        for other in studies.values():
            _refuse_other_weights(self.path, other["provenance"], fresh["provenance"])
        entry = studies.get(self.study)
        self._traceless = entry is None
        if entry is None:
            studies[self.study] = {**fresh, "start": self._clock(), "end": None, "done": False, "resumes": []}
        else:
            _refuse_other_config(self.path, self.study, entry, fresh)
            _refuse_other_shard(self.path, self.study, entry, fresh)
            resume = {"start": self._clock(), "command": fresh["command"], "provenance": fresh["provenance"]}
            entry.update(end=None, done=False, resumes=[*entry["resumes"], resume])
        self._write_record(record)

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InputError) and self._traceless:
            record = read_run(
                self.path
            )  # refused before it wrote a row: its settings must not bind the next try
            del record["studies"][self.study]
            self._write_record(record)
        self.close()

    def close(self) -> None:
        """Give the folder back to other runs."""
        self._lock.close()

    def append(self, name: str, row: Mapping[str, Any]) -> None:
        """Write one row to NAME.jsonl; see `append_all`."""
        self.append_all(name, [row])

    def append_all(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write rows to NAME.jsonl and return when they are on the disk (one wait for all of them).

        Raises:
            InputError: a row has no `id`, repeats one, lacks a column of the schema or holds a number that is
                not finite: then none of these rows is written. Or the disk refuses: earlier rows are kept.
        """
        path = self._file(name, "jsonl")
        lines = self._lines(name, rows)
        try:
            with writing(path):
                append_bytes(path, "".join(lines.values()).encode())
        except BaseException:
            del self._ids[name]  # what is on the disk is read, and repaired, before the next row
            raise
        self._ids[name].update(dict.fromkeys(lines))

    def insert_all(
        self, name: str, rows: Sequence[Mapping[str, Any]], after: str | None, passing: Collection[str]
    ) -> None:
        """Write rows into the middle of NAME.jsonl, which is replaced whole: rows that were to be there long ago.

        Args:
            name: of the file.
            rows: the rows.
            after: the id of the row after which they go; None, at the start.
            passing: ids of rows that may follow that one and come before these.

        Raises:
            InputError: as `append_all`.
        """
        path = self._file(name, "jsonl")
        lines = self._lines(name, rows)
        known = list(self._ids[name])
        at = known.index(after) + 1 if after in self._ids[name] else 0
        while at < len(known) and known[at] in passing:
            at += 1
        old = read_bytes(path, "row file").splitlines(keepends=True) if path.exists() else []
        new = [line.encode() for line in lines.values()]
        replace(path, b"".join([*old[:at], *new, *old[at:]]).decode())
        self._ids[name] = dict.fromkeys([*known[:at], *lines, *known[at:]])

    def last_id(self, name: str) -> str | None:
        """The id of the last row of NAME.jsonl; None where there is none."""
        return next(reversed(self._known(name)), None)

    def _lines(self, name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Id → line of rows that may be written."""
        known = self._known(name)
        self._traceless = False
        path = self._file(name, "jsonl")
        lines: dict[str, str] = {}
        for row in rows:
            row_id = _check_row(name, row)
            if row_id in known or row_id in lines:
                raise InputError(f"A row '{row_id}' is in {path} already; a row is written once.")
            lines[row_id] = to_json(row, f"Row '{row_id}' of {path}") + "\n"
        return lines

    def done_ids(self, name: str) -> set[str]:
        """The ids in NAME.jsonl, after cutting off a torn last line; empty if there is no such file.

        Raises:
            InputError: a line other than the last is not a row (it is named), or an id occurs twice.
        """
        return set(self._known(name))

    def rows(self, name: str) -> pd.DataFrame:
        """The rows of NAME.jsonl as a frame, in the order written; repairs and raises as `done_ids`."""
        self._known(name)
        return pd.DataFrame(parse_rows(self._file(name, "jsonl"))[0])

    def write_table(self, name: str, frame: pd.DataFrame) -> Path:
        """Write NAME.csv, whole or not at all; equal frames give equal bytes, and floats read back exactly.

        The frame is brought `in_schema`.

        Raises:
            InputError: a column of the schema is missing, a number is infinite, or the disk refuses; the table that
                was there before is kept.
        """
        frame = in_schema(name, frame)
        numbers = frame.select_dtypes("number").to_numpy(dtype=float, na_value=np.nan)
        if np.isinf(numbers).any():
            raise InputError(f"Table '{name}' holds an infinite number and was not written.")
        path = self._file(name, "csv")
        self._traceless = False
        replace(path, csv_text(frame))
        return path

    def read_table(self, name: str) -> pd.DataFrame:
        """NAME.csv as any study of this folder wrote it; an empty cell is NaN and nothing else is.

        Raises:
            InputError: there is no such table yet, it is no csv table, or it lacks a column of its schema.
        """
        path = self._file(name, "csv")
        if not path.exists():
            raise InputError(f"{path} does not exist: run the study that writes it first.")
        table = read_frame(path)
        missing = [column for column in TABLES.get(name, ()) if column not in table.columns]
        if missing:
            raise InputError(
                f"{path} lacks the columns {', '.join(missing)}: run the study that writes it again."
            )
        return table

    def finish(self, extra: Mapping[str, Any] | None = None) -> None:
        """Mark the study done, with the time and whatever else it has to say in run.json, and write its STUDY.toml."""
        record = read_run(self.path)
        record["studies"][self.study].update(end=self._clock(), done=True, extra=dict(extra or {}))
        if self.settings:
            replace(self.path / settings_file(self.study), self.settings)
        self._write_record(record)

    def _known(self, name: str) -> dict[str, None]:
        """The ids in NAME.jsonl; the first look at a file repairs its tail."""
        if name not in self._ids:
            path = self._file(name, "jsonl")
            rows, whole = parse_rows(path)
            if path.exists() and path.stat().st_size > whole:
                with writing(path):
                    os.truncate(path, whole)
            self._ids[name] = {row["id"]: None for row in rows}
        return self._ids[name]

    def _write_record(self, record: Mapping[str, Any]) -> None:
        replace(self.path / "run.json", to_json(record, "run.json", indent=2) + "\n")

    def _file(self, name: str, suffix: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' must be a bare name, without folder or suffix")
        return self.path / f"{name}.{suffix}"


class FolderView(RunFolder):
    """A run folder that another process writes, as a worker sees it: rows are read, and what is appended is collected.

    A folder that is not there, on another machine, has no rows.
    """

    def __init__(self, path: Path, study: str) -> None:
        super().__init__(path, study, io.BytesIO(), utc_now)
        self._fresh: dict[str, list[Mapping[str, Any]]] = {}

    def append_all(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Collect rows for `taken`, but for those that the file has: another worker may have had the same to add."""
        new = [row for row in rows if row["id"] not in self._known(name)]
        self._ids[name].update(dict.fromkeys(self._lines(name, new)))
        self._fresh.setdefault(name, []).extend(new)

    def rows(self, name: str) -> pd.DataFrame:
        """The rows of the file and those collected, in the order in which they came."""
        rows = [*parse_rows(self._file(name, "jsonl"))[0], *self._fresh.get(name, [])]
        return pd.DataFrame({row["id"]: row for row in rows}.values())

    def taken(self) -> dict[str, list[Mapping[str, Any]]]:
        """File → the rows collected since this was last asked."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def _known(self, name: str) -> dict[str, None]:
        if name not in self._ids:
            self._ids[name] = {row["id"]: None for row in parse_rows(self._file(name, "jsonl"))[0]}
        return self._ids[name]


def _refuse_foreign(folder: Path) -> None:
    """Raise if there are files but no run.json (rows are never written among other files), or rows of an old name."""
    names = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    if names - _BEFORE_RUN_JSON and "run.json" not in names:
        raise InputError(f"{folder} is not a run folder (files, but no run.json): choose another --out.")
    for old, new in RENAMED_ROWS.items():
        if f"{old}.jsonl" in names:
            raise InputError(f"{folder / old}.jsonl has another name now: rename it to {new}.jsonl.")


def _refuse_other_config(folder: Path, study: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise, naming the settings that differ."""
    if old["config_hash"] == new["config_hash"]:
        return
    there, here = _flat(old["config"]), _flat(new["config"])
    pairs = {key: (there.get(key, "absent"), here.get(key, "absent")) for key in sorted({*there, *here})}
    differing = ", ".join(f"{key} ({a} there, {b} here)" for key, (a, b) in pairs.items() if a != b)
    raise InputError(f"{folder} has a '{study}' run with other settings: {differing}; choose another --out.")


def _refuse_other_shard(folder: Path, study: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise if the folder has another part of the study: rows of two parts would not be in order."""
    there, here = (side["provenance"].get("shard", "all units") for side in (old, new))
    if there != here:
        raise InputError(
            f"{folder} has {there} of '{study}', not {here}: choose another --out for each shard."
        )


def _refuse_other_weights(folder: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise if two studies of a folder would speak of different numbers: not every table names model and precision."""
    kinds = {
        "sha256": "weights",
        "tokenizer_sha256": "tokenizer",
        "chat_template_sha256": "chat template",
        "dtype": "precision",
        "device": "device",
    }
    for name, what in kinds.items():
        before, now = ((side.get("model") or {}).get(name) for side in (old, new))
        if before and now and before != now:
            raise InputError(
                f"{folder} was made with another {what} ({before[:14]}, not {now[:14]}): choose another --out."
            )


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted keys, so that the one that differs can be named."""
    flat: dict[str, Any] = {}
    for key, item in settings.items():
        nested = isinstance(item, Mapping) and item
        flat.update(_flat(item, f"{prefix}{key}.") if nested else {f"{prefix}{key}": item})
    return flat


def _check_row(name: str, row: Mapping[str, Any]) -> str:
    """The id of a row that has every column of its schema."""
    row_id = row.get("id")
    if not isinstance(row_id, str) or not row_id:
        raise InputError(f"A row of '{name}' has no id.")
    missing = [column for column in ROWS.get(name, ()) if column not in row]
    if missing:
        raise InputError(f"Row '{row_id}' of '{name}' lacks {', '.join(missing)}.")
    return row_id
