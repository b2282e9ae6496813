"""The figures of a run folder, drawn in a process of their own: no other room imports `figures`."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

from mech.errors import InputError

logger = logging.getLogger(__name__)


def draw(out: Path) -> None:
    """Draw every figure of the run folder, in a process of its own: nobody imports the figures room."""
    result = subprocess.run(
        [sys.executable, "-m", "figures", str(out)], capture_output=True, text=True, check=False
    )
    if result.returncode:
        raise InputError(f"The figures could not be drawn: {result.stderr.strip()}")
    logger.info("%s", (result.stderr + result.stdout).strip())
