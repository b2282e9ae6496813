"""Studies that map over independent units (an item, an item under an ablation), and the one function that runs them.

A study says how a context is opened, which units there are and which rows each gives, how a unit is measured, which
tables follow from the rows, and what is reported. `run_study` owns the rest: the run folder, resuming, progress, what
is left out, the count of forwards, the tables' files and the closing lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import pandas as pd

from experiments.run.frames import in_schema
from experiments.run.left_out import write_left_out
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, open_run
from experiments.run.study import OutOptions, Report, Study
from experiments.run.tables import forwards_text
from mech.errors import InputError
from probes.items.item import Item

Row = dict[str, Any]
Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class ItemContext:
    """What a study of decision points works with, opened once; `run_study` reads these, the study's functions more.

    Attributes:
        session: engine, items, wording.
        recorded: what run.json says beside versions, model, items and wording.
        decided: what decides rows as a setting does but comes from elsewhere: part of the run's identity.
    """

    session: Session
    recorded: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    decided: Mapping[str, Any] = field(default_factory=dict, kw_only=True)

    @property
    def about(self) -> Mapping[str, Any]:
        """Recorded in run.json beside versions and model."""
        return {**about_items(self.session), **self.recorded}

    @property
    def derived(self) -> Mapping[str, Any]:
        """What is decided elsewhere than in the settings."""
        return self.decided

    @property
    def entry(self) -> str | None:
        """The run's name in run.json, where it is not the study's."""
        return None


@dataclass(frozen=True)
class Unit:
    """A part of a study that needs no other part, and the ids of its rows; one without rows is measured every time."""

    row_ids: tuple[str, ...]


@dataclass(frozen=True)
class ItemUnit(Unit):
    """One item."""

    item: Item


C = TypeVar("C", bound=OutOptions)
X = TypeVar("X", bound=ItemContext)
U = TypeVar("U", bound=Unit)


@dataclass(frozen=True)
class ItemStudy(Study[C], Generic[C, X, U]):
    """A subcommand that maps over units.

    Attributes:
        rows: NAME of NAME.jsonl, which the units' rows are in.
        open: the config → the context. A mistake in the settings is found here, before the folder is claimed.
        prepare: the context with what it takes from the folder, once that is claimed: rows of an earlier run, or a
            selection that the rows of a first pass decide.
        units: the independent parts, in the order in which they are measured.
        measure: the rows of one unit: those that it names, in any order.
        tables: NAME → frame for NAME.csv, from the rows in the folder.
        report: what is said at the end, without the lines that every study ends with.
        expected: row id → columns that a row of an earlier run must have to be an answer to this one's question.
        notes: lines for the report from the rows.
        extra: recorded in run.json at the end.
    """

    run: Callable[[C], Report] = field(init=False, repr=False)
    rows: str = field(kw_only=True)
    open: Callable[[C], X] = field(kw_only=True)
    units: Callable[[X], Sequence[U]] = field(kw_only=True)
    measure: Callable[[X, U], Iterable[Row]] = field(kw_only=True)
    tables: Callable[[X, RunFolder], Tables] = field(kw_only=True)
    report: Callable[[X, Tables], Report] = field(kw_only=True)
    prepare: Callable[[X, RunFolder], X] = field(default=lambda context, _: context, kw_only=True)
    expected: Callable[[X, U], Mapping[str, Row]] | None = field(default=None, kw_only=True)
    notes: Callable[[X, pd.DataFrame], Sequence[str]] = field(default=lambda *_: (), kw_only=True)
    extra: Callable[[X, Tables], Mapping[str, Any]] = field(default=lambda *_: {}, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", partial(run_study, self))


def run_study(study: ItemStudy[C, X, U], config: C) -> Report:
    """Measure the units whose rows are missing, write the tables, and report.

    Raises:
        InputError: a setting, an input file or the run folder cannot be used.
        FloatingPointError: the model gives numbers that are not finite.
    """
    context = study.open(config)
    session, counter = context.session, context.session.engine.forwards
    with open_run(study, config, session.model, context.about, context.derived, context.entry) as folder:
        context = study.prepare(context, folder)
        measure_units(study, context, folder, config.quiet)
        tables = {name: in_schema(name, table) for name, table in study.tables(context, folder).items()}
        for name, table in tables.items():
            folder.write_table(name, table)
        notes = [*write_left_out(folder, session), *study.notes(context, folder.rows(study.rows))]
        counts = {"forwards_run": counter.ran, "forwards_saved": counter.saved}
        folder.finish({**counts, **study.extra(context, tables)})
    report = study.report(context, tables)
    ran = forwards_text(counter.ran, counter.saved)
    return Report("\n".join([report.text, *notes, ran, f"written to {config.out}"]), report.ok)


def measure_units(study: ItemStudy[C, X, U], context: X, folder: RunFolder, quiet: bool) -> None:
    """Append the rows that are missing, unit by unit; a unit that lacks a row is measured whole.

    Raises:
        InputError: a row of an earlier run answers another question than the one that has its id now.
    """
    units = study.units(context)
    before = {row["id"]: row for row in folder.rows(study.rows).to_dict("records")} if study.expected else {}
    for unit in progress(units, len(units), folder.study, quiet):
        if study.expected and any(name in before for name in unit.row_ids):
            _refuse_other_questions(folder, before, study.expected(context, unit))
        missing = set(unit.row_ids) - folder.done_ids(study.rows)
        if unit.row_ids and not missing:
            continue
        rows = list(study.measure(context, unit))
        if {row["id"] for row in rows} != set(unit.row_ids):
            raise RuntimeError(f"'{study.name}' measured other rows of a unit than {unit.row_ids}")
        if missing:
            folder.append_all(study.rows, [row for row in rows if row["id"] in missing])


def _refuse_other_questions(
    folder: RunFolder, before: Mapping[str, Row], expected: Mapping[str, Row]
) -> None:
    for name, columns in expected.items():
        row = before.get(name)
        if row is not None and any(row[column] != value for column, value in columns.items()):
            raise InputError(
                f"{folder.path} holds a row '{name}' of another prompt, action or ablation (other items, another "
                "wording or other heads under the same ids): choose another --out."
            )
