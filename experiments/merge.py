"""`backfire merge`: shards of a study, joined into the folder that a run without shards would have written.

Rows come in the order of such a run, and tables are made of them as at its end. Every study of the folders that was run
with --shard is joined, in the order of the first folder's run.json; what the folders hold beside (a ranking of heads,
fitted constants) is taken over.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

from experiments.commands import COMMANDS
from experiments.run.durable import parse_rows, to_json, writing
from experiments.run.durable import replace as replace_file
from experiments.run.executors.recorded import Recorded
from experiments.run.executors.writer import FAILURES
from experiments.run.flags import read_config
from experiments.run.run_folder import SCHEMA_VERSION, read_run, settings_file
from experiments.run.run_study import ItemStudy, run_study
from experiments.run.session import require_out
from experiments.run.study import ExecutorOptions, Flag, OutOptions, Report, Shard, Study, arguments, shard
from mech.errors import InputError


@dataclass(frozen=True, kw_only=True)
class MergeConfig(OutOptions):
    """What `backfire merge` is given."""

    run: Annotated[
        tuple[str, ...], Flag("run folders of all shards, in any order", str, positional=True)
    ] = ()


@dataclass(frozen=True)
class Part:
    """One shard's folder: its entries in run.json, and which shard each of them is (None: of all units)."""

    path: Path
    studies: Mapping[str, Any]

    def shard(self, entry: str) -> Shard | None:
        """The shard that an entry is."""
        text = self.studies[entry]["provenance"].get("shard")
        return None if text is None else shard(text)


def run(config: MergeConfig) -> Report:
    """Check that the folders are all shards of the same studies, and run these on their rows."""
    out = require_out(config)
    if not config.run:
        raise InputError("Name the shards' folders: backfire merge RUN RUN … --out RUN.")
    parts = [Part(Path(name), read_run(name)["studies"]) for name in config.run]
    entries = [name for name in parts[0].studies if parts[0].shard(name) is not None]
    if not entries:
        raise InputError(f"{parts[0].path} is no shard: it was run without --shard.")
    for entry in entries:
        parts = ordered(parts, entry)
    studies = {entry: study_of(entry) for entry in entries}
    take_over(parts, out, entries, {study.rows for study in studies.values()})
    reports = [join(parts, out, entry, study, config.quiet) for entry, study in studies.items()]
    for name in {study.rows for study in studies.values()}:
        joined = {row["id"] for row in parse_rows(out / f"{name}.jsonl")[0]}
        left = [row for part in parts for row in rows_of(part, name) if row not in joined]
        if left:
            raise InputError(
                f"The shards' {name}.jsonl has rows of no shard, such as '{left[0]}': {out} lacks them."
            )
    return Report("\n".join(report.text for report in reports), all(report.ok for report in reports))


def ordered(parts: Sequence[Part], entry: str) -> list[Part]:
    """The folders in the order of their shards.

    Raises:
        InputError: a folder has another study, other settings or weights, or is not finished; or a shard is missing
            or there twice.
    """
    first = parts[0].studies[entry]
    found: dict[int, Part] = {}
    of = 0
    for part in parts:
        own = part.studies.get(entry)
        number = None if own is None else part.shard(entry)
        if own is None or number is None:
            raise InputError(f"{part.path} has no shard of '{entry}', which {parts[0].path} has.")
        weights = [one["provenance"].get("model", {}).get("sha256") for one in (own, first)]
        if own["config_hash"] != first["config_hash"] or weights[0] != weights[1]:
            raise InputError(f"{part.path} has '{entry}' under other settings than {parts[0].path}.")
        if not own["done"]:
            raise InputError(
                f"{part.path} has not finished shard {number} of '{entry}': run its command again."
            )
        of = of or number.of
        if number.of != of or number.number in found:
            other = found.get(number.number, parts[0]).path
            raise InputError(f"{part.path} is shard {number} of '{entry}', which does not go with {other}.")
        found[number.number] = part
    missing = [f"{number}/{of}" for number in range(1, of + 1) if number not in found]
    if missing:
        raise InputError(f"Shards of '{entry}' are missing: {', '.join(missing)}.")
    return [found[number] for number in sorted(found)]


def study_of(entry: str) -> ItemStudy[Any, Any, Any]:
    """The study of an entry of run.json; InputError where no command has that name, or it has no shards."""
    name = entry.split(" ")[0]
    study = import_module(COMMANDS[name].module).STUDY if name in COMMANDS else None
    if not isinstance(study, ItemStudy):
        raise InputError(f"'{entry}' is no study that has shards.")
    return study


def take_over(parts: Sequence[Part], out: Path, entries: Sequence[str], rows: set[str]) -> None:
    """Begin the folder with what the shards hold beside the rows that are joined; nothing where it is begun already.

    Files and entries of the first shard, which the others must have under the same settings; row files of all shards,
    such as fitted constants, each row once.
    """
    if (out / "run.json").is_file():
        return
    first = parts[0]
    others = {name: one for name, one in first.studies.items() if name not in entries}
    for name, one in others.items():
        for part in parts:
            if part.studies.get(name, {}).get("config_hash") != one["config_hash"]:
                raise InputError(
                    f"{part.path} has not the '{name}' that {first.path} has: their shards differ."
                )
    left = {"run.json", *(f"{name}.jsonl" for name in (*rows, FAILURES)), *map(settings_file, entries)}
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise InputError(f"{out} is not empty, and no run folder: choose another --out.")
        replace_file(
            out / "run.json", to_json({"schema": SCHEMA_VERSION, "studies": others}, "run.json", 2) + "\n"
        )
        for file in sorted(first.path.iterdir()):
            if file.is_file() and file.name not in left and file.suffix != ".jsonl" and file.name[0] != ".":
                shutil.copyfile(file, out / file.name)
    beside = {file.stem for part in parts for file in part.path.glob("*.jsonl") if file.name not in left}
    for name in sorted(beside):
        union = {key: row for part in reversed(parts) for key, row in rows_of(part, name).items()}
        ordered_ids = dict.fromkeys(key for part in parts for key in rows_of(part, name))
        lines = [to_json(union[key], f"Row '{key}' of {name}.jsonl") + "\n" for key in ordered_ids]
        replace_file(out / f"{name}.jsonl", "".join(lines))


def join(
    parts: Sequence[Part], out: Path, entry: str, study: ItemStudy[Any, Any, Any], quiet: bool
) -> Report:
    """Run a study on the rows of its shards."""
    settings = read_config(parts[0].path / settings_file(entry), study.options)
    alone = {name: value for name, value in vars(ExecutorOptions()).items()}
    config = arguments(study, {**settings, **alone, "out": out, "quiet": quiet})
    rows = {key: row for part in parts for key, row in rows_of(part, study.rows).items()}
    about = {
        str(part.shard(entry)): {
            "folder": str(part.path),
            "end": part.studies[entry]["end"],
            **part.studies[entry].get("extra", {}),
        }
        for part in parts
    }
    recorded = Recorded(rows, out, entry, parts[0].studies[entry]["config_hash"], {"shards": about})
    return run_study(study, config, recorded)


def rows_of(part: Part, name: str) -> dict[str, dict[str, Any]]:
    """Id → row of a shard's row file; empty where there is none."""
    return {row["id"]: row for row in parse_rows(part.path / f"{name}.jsonl")[0]}


STUDY = Study(
    "merge",
    "backfire merge runs/part-1 runs/part-2 --out runs/whole",
    MergeConfig,
    run,
)
