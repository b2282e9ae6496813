"""Where this machine keeps what is made once: converted checkpoints, executed item pools."""

from __future__ import annotations

import os
from pathlib import Path

from mech.load import default_cache_dir


def checkpoint_cache() -> Path:
    """BACKFIRE_CACHE, or a folder in the user's cache."""
    named = os.environ.get("BACKFIRE_CACHE")
    return Path(named) if named else default_cache_dir()
