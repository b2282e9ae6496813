"""Studies that map over independent units (an item, an item under an ablation), and the one function that runs them.

A study says how a context is opened, which units there are and which rows each gives, how a unit is measured, which
tables follow from the rows, and what is reported. `run_study` owns the rest: the run folder, resuming, where units are
measured (`experiments.run.executors`), progress, units that fail, what is left out, the count of forwards, the tables'
files and the closing lines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import pandas as pd

from experiments.run.executors.crews import pool
from experiments.run.executors.identity import identity_of
from experiments.run.executors.serial import Serial
from experiments.run.executors.tasks import Executor, Outcome, Row, Task
from experiments.run.executors.writer import UnitWriter
from experiments.run.frames import in_schema
from experiments.run.left_out import write_left_out
from experiments.run.progress import bar
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, mapped_weights, open_run
from experiments.run.study import ExecutorOptions, OutOptions, Report, Shard, Study, narrowed
from experiments.run.tables import forwards_text
from mech.errors import InputError
from probes.items.item import Item

logger = logging.getLogger(__name__)

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

    @property
    def learned(self) -> Mapping[str, MutableMapping[str, Any]]:
        """What measuring adds to the context beside rows, and the end of the run reads; workers send it back."""
        return {}


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


@pd.option_context(
    "mode.string_storage", "python"
)  # pyarrow, where it is installed, is slow on short columns
def run_study(study: ItemStudy[C, X, U], config: C, executor: Executor | None = None) -> Report:
    """Measure the units whose rows are missing, write the tables, and report.

    A unit that cannot be measured is reported with its name, and the others are measured: the report is then not `ok`,
    there are no tables, and the same command measures that unit again. A shard has no tables either: they are made when
    shards are joined.

    Args:
        study: the study.
        config: its settings.
        executor: what measures the units; None is what the settings say.

    Raises:
        InputError: a setting, an input file or the run folder cannot be used.
        FloatingPointError: the model gives numbers that are not finite.
        Exception: what every unit failed with, where all did for one reason.
    """
    options = narrowed(config, ExecutorOptions)
    if options.executor == "serial" and (options.workers or options.threads):
        raise InputError("--workers and --threads are of --executor processes or ray: name one of them.")
    with mapped_weights(executor is None and options.executor == "processes"):
        context = study.open(config)
    session, counter = context.session, context.session.engine.forwards
    about = {**context.about, **({"shard": str(options.shard)} if options.shard else {})}
    with open_run(study, config, session.model, about, context.derived, context.entry) as folder:
        identity = None if options.executor == "serial" else identity_of(study, config, context)
        context = study.prepare(context, folder)
        units = study.units(context)
        if executor is None and identity is None:
            executor = Serial(study, context, units)
        elif executor is None:
            executor = pool(study, config, folder, identity or {}, options)
        own = range(len(units)) if options.shard is None else options.shard.places(len(units))
        failures = measure_units(study, context, units, own, folder, executor, config.quiet)
        if failures:
            return Report(_not_done(failures, len(own)), ok=False)
        session.model.require_unchanged()
        if not executor.here:
            learned = context.learned
            context = study.prepare(context, folder)  # once more, with what the rows of all workers say
            for name, found in learned.items():
                context.learned[name].update(found)
        counts = {"forwards_run": counter.ran, "forwards_saved": counter.saved, **executor.about}
        if options.shard is not None:
            folder.finish(
                {**counts, **study.extra(context, {}), "units": len(own), "units_in_all": len(units)}
            )
            return Report(_shard_text(options.shard, own, len(units), str(config.out)))
        tables = {name: in_schema(name, table) for name, table in study.tables(context, folder).items()}
        for name, table in tables.items():
            folder.write_table(name, table)
        notes = [*write_left_out(folder, session), *study.notes(context, folder.rows(study.rows))]
        folder.finish({**counts, **study.extra(context, tables)})
    report = study.report(context, tables)
    ran = forwards_text(counter.ran, counter.saved)
    return Report("\n".join([report.text, *notes, ran, f"written to {config.out}"]), report.ok)


def measure_units(
    study: ItemStudy[C, X, U],
    context: X,
    units: Sequence[U],
    own: range,
    folder: RunFolder,
    executor: Executor,
    quiet: bool,
) -> list[Outcome]:
    """Append the rows that are missing, in the order of the units; a unit that lacks a row is measured whole.

    Args:
        study: the study.
        context: its context, prepared.
        units: all its units.
        own: the places of those to measure.
        folder: claimed for it.
        executor: what measures them.
        quiet: no progress bar.

    Returns:
        The units that failed.

    Raises:
        InputError: a row of an earlier run answers another question than the one that has its id now.
        Exception: what every unit failed with, where all did for one reason.
    """
    before = {row["id"]: row for row in folder.rows(study.rows).to_dict("records")} if study.expected else {}
    done = folder.done_ids(study.rows)
    todo = []
    for place in own:
        unit = units[place]
        if study.expected and any(name in before for name in unit.row_ids):
            _refuse_other_questions(folder, before, study.expected(context, unit))
        if not unit.row_ids or not done.issuperset(unit.row_ids):
            todo.append(Task(place, unit.row_ids, _name(unit)))
    writer = UnitWriter(folder, study.rows, context, units)
    failures: list[Outcome] = []
    with bar(folder.study, quiet) as show, closing(executor.run(todo)) as outcomes:
        show(len(own) - len(todo), len(own), executor.label)
        for n, outcome in enumerate(outcomes, len(own) - len(todo) + 1):
            if outcome.failure is None:
                writer.write(outcome)
            else:
                failures.append(outcome)
                writer.failed(outcome)
            beside = [executor.label, f"{len(failures)} failed" if failures else ""]
            show(n, len(own), ", ".join(filter(None, beside)))
    if failures and len(failures) == len(own):
        reasons = {(type(one.failure.error), str(one.failure.error)) for one in failures if one.failure}
        if len(reasons) == 1 and failures[0].failure:
            failures[0].failure.again()
    writer.note_failures()
    return failures


def _name(unit: Unit) -> str:
    """What a report calls a unit: its item, where it is of one, and its rows."""
    item = getattr(unit, "item", None)
    rows = ", ".join([*unit.row_ids[:1], *(["…"] if len(unit.row_ids) > 1 else [])]) or "nothing to write"
    return rows if item is None else f"{item.item_id} ({rows})"


def _not_done(failures: Sequence[Outcome], n: int) -> str:
    """The units that failed, each with its reason; tracebacks of errors that are no refusals are logged."""
    lines = []
    for one in failures:
        if one.failure is not None:
            error = one.failure.error
            lines.append(f"  {one.task.name}: {type(error).__name__}: {error}")
            if not isinstance(error, (InputError, FloatingPointError)):
                logger.warning("%s", one.failure.trace or lines[-1].strip())
    return "\n".join(
        [
            f"not done: {len(lines)} of {n} units failed:",
            *lines,
            "the rows of the others are kept, and no table was written: the same command measures these units again",
        ]
    )


def _shard_text(shard: Shard, own: Sequence[int], n: int, out: str) -> str:
    return (
        f"shard {shard}: {len(own)} of {n} units are measured; `backfire merge` joins the shards and makes the tables"
        f"\nwritten to {out}"
    )


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
