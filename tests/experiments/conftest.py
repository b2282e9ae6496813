"""Fixtures of this folder: shapes are checked in one test alone, which runs every study."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def shapes_unchecked() -> Iterator[None]:
    """No check of shapes, which takes a twelfth of the time here: the tests of mech and probes have it."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def shapes_checked(shapes_unchecked: None) -> None:
    """Checks as elsewhere, for the test that asks for it."""
    jaxtyping.config.update("jaxtyping_disable", False)
