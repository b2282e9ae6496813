"""One progress bar for all studies: on stderr, and only where a person is watching."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")


def progress(iterable: Iterable[T], total: int | None, desc: str, quiet: bool = False) -> Iterator[T]:
    """Pass the items through and show how many are done; silent when quiet or when stderr is no terminal."""
    silent = quiet or not sys.stderr.isatty()
    yield from tqdm(iterable, total=total, desc=desc, file=sys.stderr, disable=silent, dynamic_ncols=True)


@contextmanager
def bar(desc: str, quiet: bool = False) -> Iterator[Callable[[int, int], None]]:
    """For work that counts itself: a function of (done, total) that moves the bar."""
    silent = quiet or not sys.stderr.isatty()
    with tqdm(desc=desc, file=sys.stderr, disable=silent, dynamic_ncols=True) as shown:

        def show(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield show
