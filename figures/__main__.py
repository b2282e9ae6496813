"""`python -m figures RUN`: draw the figures of a run folder again, from its tables alone."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from figures.load import DIFFERENCES, FigureError, Heads
from figures.report import write_all


def parse_heads(text: str) -> Heads:
    """Read `L18H6,L17H3`; raises FigureError for anything else."""
    found = [re.fullmatch(r"\s*L(\d+)H(\d+)\s*", part) for part in text.split(",")]
    if not all(found):
        raise FigureError(f"'{text}' is not a list of heads: write it like L18H6,L17H3.")
    return [(int(match[1]), int(match[2])) for match in found if match]


def main(arguments: list[str] | None = None) -> int:
    """Draw, print one line per file; a FigureError is one line on the error stream and exit status 2."""
    parser = argparse.ArgumentParser(
        prog="python -m figures", description="Draw the figures of a run folder."
    )
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument(
        "--heads", help="heads to outline, like L18H6,L17H3 (default: those selected in heads.csv)"
    )
    parser.add_argument(
        "--metric",
        choices=list(DIFFERENCES),
        default="logprob",
        help="what effects are counted in: log p(a×), its margin over the reference call, its diverging tokens",
    )
    options = parser.parse_args(arguments)
    try:
        selected = None if options.heads is None else parse_heads(options.heads)
        for path in write_all(options.run, selected, say=print, metric=options.metric):
            print(path)
    except FigureError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
