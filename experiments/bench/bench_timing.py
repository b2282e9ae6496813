"""Methods that answer the same questions, timed in turns, and the table that compares them.

    seconds       median of a method's times for a unit of work (an item), mean over units
    ratio         its seconds / the seconds of the first method of its part, which is ours
    gflop         operations the work cannot do without; fraction = gflop / seconds / the rate of the "rate" part

Methods of a unit follow one another, A B C A B C …: on a shared machine a second is worth little, a ratio of two
seconds of one minute more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import TypeVar

import pandas as pd

T = TypeVar("T")
RATE = "rate"


@dataclass(frozen=True)
class Method:
    """One way to do a unit of work.

    Attributes:
        part: methods of one part answer the same questions; RATE is one large matrix product.
        name: as the table shows it.
        work: what is timed; gives log-probabilities (nats) by the name of the question.
        ready: done before each time, untimed.
        done: how many questions `work` answers …
        of: … of how many; its time is multiplied by of / done.
        flop: operations the whole work needs, or None where nobody asks.
    """

    part: str
    name: str
    work: Callable[[], Mapping[str, float]]
    ready: Callable[[], object] = lambda: None
    done: int = 1
    of: int = 1
    flop: int | None = None


@dataclass(frozen=True)
class Turn:
    """One time of one method: the unit of work it was for, seconds scaled to all of it, and the answers."""

    unit: int
    method: Method
    seconds: float
    answers: Mapping[str, float]


def spread(things: Sequence[T], n: int) -> list[T]:
    """At most n of them, evenly spaced and away from the ends."""
    n = min(n, len(things))
    return [things[(2 * i + 1) * len(things) // (2 * n)] for i in range(n)]


def turns(rounds: Iterable[tuple[int, Sequence[Method]]], clock: Callable[[], float]) -> Iterator[Turn]:
    """Do the units' methods in the order given and time each by the clock (seconds)."""
    for unit, methods in rounds:
        for method in methods:
            method.ready()
            start = clock()
            answers = method.work()
            yield Turn(unit, method, (clock() - start) * method.of / method.done, answers)


def compare(done: Iterable[Turn]) -> pd.DataFrame:
    """One line a method, in the order in which they came; `fraction` is NaN where none is of the RATE part."""
    by_method: dict[tuple[str, str], list[Turn]] = {}
    for turn in done:
        by_method.setdefault((turn.method.part, turn.method.name), []).append(turn)
    first: dict[str, list[Turn]] = {}
    for (part, _), its in by_method.items():
        first.setdefault(part, its)
    rate = _flop(first[RATE]) / _seconds(first[RATE]) if RATE in first else float("nan")
    lines = []
    for (part, name), its in by_method.items():
        seconds, flop = _seconds(its), _flop(its)
        lines.append(
            {
                "part": part,
                "method": name,
                "seconds": seconds,
                "timed": its[0].method.done,
                "of": its[0].method.of,
                "ratio": seconds / _seconds(first[part]),
                "max_diff_nats": _difference(its, first[part]),
                "gflop": flop / 1e9,
                "gflop_per_s": flop / seconds / 1e9,
                "fraction": flop / seconds / rate,
            }
        )
    return pd.DataFrame(lines)


def _seconds(its: Sequence[Turn]) -> float:
    units = {turn.unit for turn in its}
    return fmean(median(turn.seconds for turn in its if turn.unit == unit) for unit in units)


def _flop(its: Sequence[Turn]) -> float:
    return fmean(float("nan") if turn.method.flop is None else turn.method.flop for turn in its)


def _difference(its: Sequence[Turn], ours: Sequence[Turn]) -> float:
    """Largest difference of two answers to one question of one unit."""
    known = {(turn.unit, name): value for turn in ours for name, value in turn.answers.items()}
    return max(abs(value - known[turn.unit, name]) for turn in its for name, value in turn.answers.items())


def report_text(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """The table for reading: a block a part under its title, then what was reached of the machine's rate."""
    lines = []
    for part, title in titles.items():
        lines += [title, f"  {'':<34}{'seconds':>9}{'ratio':>9}   largest difference, nats"]
        for row in table[table.part == part].itertuples():
            scaled = f"   timed on {row.timed} of {row.of}, scaled" if row.timed < row.of else ""
            apart = f"{row.max_diff_nats:.1e}" if row.ratio != 1 else ""
            lines.append(
                f"  {row.method:<34}{row.seconds:>9.3f}{row.ratio:>8.1f}x   {apart:<8}{scaled}".rstrip()
            )
        lines.append("")
    [rate] = table[table.part == RATE].itertuples()
    lines.append(f"rate of a {rate.method}: {rate.gflop_per_s:.1f} GFLOP/s")
    for row in table[(table.part != RATE) & table.gflop.notna()].itertuples():
        lines.append(
            f"{row.part} needs {row.gflop:.1f} GFLOP: {row.gflop_per_s:.1f} GFLOP/s, {row.fraction:.0%} of that rate"
        )
    return "\n".join(lines)
