"""Fixtures of this folder: figures are drawn with few pixels and fonts that need no subsetting."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from figures import style


@pytest.fixture(scope="session", autouse=True)
def quick_settings() -> Iterator[dict[str, Any]]:
    """Settings that are cheap to draw with, in every test of this folder; gives the figures' own settings."""
    own = dict(style._SETTINGS)
    style._SETTINGS.update({"savefig.dpi": 60, "pdf.fonttype": 3})
    yield own
    style._SETTINGS.update(own)
