"""backfire circuit: found sets reach what they say, tasks do not leak, a stopped run ends with equal bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, shell  # noqa: F401 - a fixture

SMALL = ["--transfer", "none", "--controls", "2", "--subsets", "2", "--repeats", "1", "--screen", "4"]


def test_a(shell: Shell) -> None:
    from probes.items import dump_items
    dump_items(ITEMS, shell.items)
    said = shell("circuit", *SMALL, "--held-out", "0.5", "--max-size", "8")
    print("\n".join(said.out+said.err)); print(shell.table("circuit").T.to_string()); print(shell.table("circuit_heads")); print(shell.table("circuit_curve")); print(shell.table("circuit_completeness"))
    assert 0
