"""`backfire import`: the failed calls of agent logs as decision points, with an account of everything that was read."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Annotated, Literal

from experiments.run.study import Flag, Report, Study, positive
from mech.errors import InputError
from probes.items.item import Item, item_line
from probes.items.logs.counterfactuals import DEFAULT_TEXTS, load_texts
from probes.items.logs.decision_points import ITEM, SUCCEEDED, UNDECIDED, Settings
from probes.items.logs.failure import parse_rules
from probes.items.logs.formats import FORMATS
from probes.items.logs.importing import read_log, readable, unique_names
from probes.items.logs.transcript import SKIPPED, Note

REPORT = ("file", "place", "what", "fate", "why", "log", "item_id", "text")
"""Columns of the account: one line for every record, part and call."""

SHOWN = 10  # reasons and places that are written out
_REASONS = 1000  # different ones that are counted


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """What `backfire import` is given."""

    log: Annotated[tuple[str, ...], Flag("log files; - is standard input", str, positional=True)] = ()
    out: Annotated[Path | None, Flag("file to write the items to", presentation=True)] = None
    format: Annotated[
        str | None, Flag("format of the logs; recognised where it is not given", choices=tuple(FORMATS))
    ] = None
    failed_when: Annotated[
        tuple[str, ...],
        Flag(
            "rule for calls of unknown outcome: FIELD=VALUE, FIELD!=VALUE or FIELD~REGEX (content~REGEX is the text)",
            str,
            repeatable=True,
        ),
    ] = ()
    report: Annotated[
        Path | None, Flag("CSV file: what became of every record, part and call, and why", presentation=True)
    ] = None
    counterfactuals: Annotated[
        Literal["auto", "template"],
        Flag("neutral and success texts: from the log where it has them, or always the templates"),
    ] = "auto"
    texts: Annotated[Path | None, Flag("JSON file with the template texts")] = None
    goal: Annotated[str | None, Flag("the user's request, for logs that show none")] = None
    max_context: Annotated[
        int, Flag("characters before a failed call; a call with more is skipped", positive)
    ] = 400_000


@dataclass
class Account:
    """Counts of what became of the input; bounded, however large the input is."""

    formats: Counter[str] = field(default_factory=Counter)
    fates: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str, str], str] = field(default_factory=dict)
    undecided: Counter[str] = field(default_factory=Counter)
    places: list[str] = field(default_factory=list)
    items: Counter[tuple[str, str]] = field(default_factory=Counter)
    clusters: int = 0
    copies: int = 0
    _last_cluster: str = ""
    _seen: dict[bytes, str] = field(default_factory=dict)  # digest of a decision point: its cluster

    def note(self, name: str, note: Note) -> None:
        """Count a note of the log of that name."""
        self.fates[note.what, note.fate] += 1
        if note.what == "file":
            self.formats[note.why.removeprefix("format ")] += 1
        elif note.fate == UNDECIDED:
            tool = note.text.partition(":")[0]
            self.undecided[
                tool if tool in self.undecided or len(self.undecided) < _REASONS else "others"
            ] += 1
            self.places += [f"{name}, {note.place}: {note.text!r}"] if len(self.places) < SHOWN else []
        elif note.fate not in ("used", ITEM, SUCCEEDED):
            key = (note.what, note.fate, note.why)
            if key not in self.reasons and len(self.reasons) >= _REASONS:
                key = (note.what, note.fate, "other reasons")
            self.reasons[key] += 1
            self.first.setdefault(key, f"{name}, {note.place}")

    def item(self, item: Item) -> None:
        """Count an item."""
        for key in ("repeated_next", "neutral_from", "success_from", "fail_from"):
            self.items[key, item.meta[key]] += 1
        self.clusters += item.task_id != self._last_cluster
        self._last_cluster = item.task_id
        shown = (item.goal, item.prefix_actions, item.prefix_observations, item.failed_action, item.obs_fail)
        digest = hashlib.sha256(repr(shown).encode()).digest()[:16]
        self.copies += self._seen.setdefault(digest, item.task_id) != item.task_id

    def lines(self) -> Iterator[str]:
        """The account in sentences."""
        read = ", ".join(f"{n} as {name}" for name, n in self.formats.items())
        yield f"logs: {read or 'none recognised'}"
        yield f"records: {self.fates['record', 'used']} used, {self.fates['record', SKIPPED]} skipped"
        fates = {one: self.fates["call", one] for one in (ITEM, SUCCEEDED, UNDECIDED, SKIPPED)}
        yield (
            f"calls: {sum(fates.values())} = {fates[ITEM]} failed and are items + {fates[SUCCEEDED]} succeeded "
            f"+ {fates[UNDECIDED]} of unknown outcome + {fates[SKIPPED]} skipped"
        )
        if self.formats and not any(fates.values()):
            yield "no call was found: is that the format of the logs? (--format names another)"
        if fates[ITEM]:
            yield f"items: {fates[ITEM]} in {self.clusters} logs (the clusters of intervals)"
            if self.copies:
                yield f"copies: {self.copies} items stand word for word in an earlier log, too (a copied session?)"
            yield f"repeated in the next turn: {self._by('repeated_next')}"
            yield f"neutral text: {self._by('neutral_from')}; success text: {self._by('success_from')}"
        for (what, fate, why), n in self.reasons.most_common(SHOWN):
            yield f"{fate}: {n} {what}: {why} (first: {self.first[what, fate, why]})"
        if len(self.reasons) > SHOWN:
            yield f"and {len(self.reasons) - SHOWN} more reasons (--report FILE has all)"
        if self.undecided:
            tools = ", ".join(f"{tool} {n}" for tool, n in self.undecided.most_common(SHOWN))
            yield f"unknown: {tools}. Decide with --failed-when RULE. The first of them:"
            yield from (f"  {place}" for place in self.places)

    def _by(self, key: str) -> str:
        return ", ".join(f"{value} {n}" for (name, value), n in sorted(self.items.items()) if name == key)


def run(config: ImportConfig) -> Report:
    """Read the logs; write the items and the account.

    Raises:
        InputError: there is no log or no place to write, a file cannot be read or written, or a rule is none.
    """
    if not config.log:
        raise InputError("Name the logs to import (- is standard input).")
    if config.out is None:
        raise InputError("Say where to write the items with --out FILE.")
    _refuse_shared_files(config)
    if "-" in config.log and sys.stdin is None:
        raise InputError("Standard input is closed: name a file.")
    standard_input = io.BytesIO() if sys.stdin is None else sys.stdin.buffer
    settings = Settings(
        rules=parse_rules([readable(rule) for rule in config.failed_when]),
        texts=load_texts(config.texts or DEFAULT_TEXTS),
        counterfactuals=config.counterfactuals,
        goal=readable(config.goal) if config.goal and config.goal.strip() else None,
        max_context=config.max_context,
    )
    account = Account()
    with ExitStack() as files:
        items = files.enter_context(written(config.out, "item file"))
        table = None
        if config.report is not None:
            # Every field is quoted: csv leaves one with a carriage return as it is, and readers then split the line.
            file = files.enter_context(written(config.report, "report"))
            table = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
            table.writerow(REPORT)
        for path, name in zip(config.log, unique_names(list(config.log)), strict=True):
            for one in read_log(path, name, settings, standard_input, config.format):
                if isinstance(one, Item):
                    account.item(one)
                    items.write(f"{item_line(one)}\n")
                    continue
                account.note(name, one)
                if table is not None:
                    row = (name, one.place, one.what, one.fate, one.why, one.log, one.item_id, one.text)
                    table.writerow(row)
    n = account.fates["call", ITEM]
    end = [
        f"written to {readable(str(config.out))}" if n else "no item comes of these logs: nothing is written"
    ]
    if config.report is not None:
        end.append(f"the account of every record and call: {readable(str(config.report))}")
    return Report("\n".join([*account.lines(), *end]), ok=n > 0)


def _refuse_shared_files(config: ImportConfig) -> None:
    """Refuse a file that is named twice, however it is spelt: a log would count twice, or be written over."""
    given = [("log", path) for path in config.log]
    given += [("file of template texts", str(config.texts))] if config.texts else []
    given += [("item file", str(config.out))]
    given += [("report", str(config.report))] if config.report else []
    roles: dict[str, str] = {}
    for role, path in given:
        real = path if path == "-" else os.path.realpath(path)
        if roles.get(real) == role:
            raise InputError(f"The {role} '{readable(path)}' is named twice: name it once.")
        if real in roles:
            raise InputError(
                f"'{readable(path)}' is named as the {roles[real]} and as the {role}: name two files."
            )
        roles[real] = role


@contextmanager
def written(target: Path, what: str) -> Iterator[IO[str]]:
    """A text file that appears whole, when the block ends without an exception and wrote something, or not at all.

    A device or a pipe is written to as it is.

    Raises:
        InputError: it cannot be written.
    """
    place = Path(os.path.realpath(target))  # a link stays one
    try:
        if place.exists() and not place.is_file():
            with place.open("w", encoding="utf-8", newline="") as file:
                yield file
            return
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f"{place.name}.", suffix=".partial")
    except OSError as error:
        raise InputError(f"Cannot write the {what} '{target}': {error.strerror or error}.") from error
    partial = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
        if partial.stat().st_size:
            partial.chmod(0o644)
            os.replace(partial, place)
    except OSError as error:
        raise InputError(f"Cannot write the {what} '{target}': {error.strerror or error}.") from error
    finally:
        with suppress(FileNotFoundError):  # it is in its place
            partial.unlink()


STUDY = Study(
    "import",
    "backfire import session.jsonl --out items.jsonl --report report.csv",
    ImportConfig,
    run,
)
