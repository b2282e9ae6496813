"""What a run was made with: versions, platform, threads, commit of the code, identity of the model."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("backfire", "torch", "transformers", "transformer-lens", "numpy")
_ROOT = Path(__file__).resolve().parent.parent.parent


def provenance(model_info: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that may change a number and is not in the configuration.

    Args:
        model_info: identity of the model, passed through under `model`; its `sha256` guards a run folder.

    Returns:
        Plain JSON values. The version of a package that is not installed is None, and so is the commit of
        code that does not run from a git checkout; neither is an error.
    """
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "threads": _torch_threads(),
        "git": git_state(_ROOT),
        "model": dict(model_info),
    }


def code_versions() -> dict[str, str | None]:
    """The versions of the packages that numbers depend on, and the commit of this code where it is a checkout."""
    return {**{name: _version(name) for name in PACKAGES}, "commit": git_state(_ROOT)["commit"]}


def git_state(root: Path) -> dict[str, Any]:
    """Commit of the checkout at `root`, and whether tracked files differ from it.

    Both are None when `root` is not the top of a checkout (an installed package may lie inside another
    repository, whose commit would say nothing), when it has no commit yet, or when git is absent.
    """
    top = _git(root, "rev-parse", "--show-toplevel")
    commit = _git(root, "rev-parse", "--verify", "HEAD")
    changes = _git(root, "status", "--porcelain", "--untracked-files=no")
    if top is None or commit is None or changes is None or Path(top).resolve() != root.resolve():
        return {"commit": None, "dirty": None}
    return {"commit": commit, "dirty": bool(changes)}


def _git(root: Path, *args: str) -> str | None:
    """Output of a git command, or None if there is no git or it refuses."""
    # Inside a git hook GIT_DIR points at the repository of the hook, not at this one.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), *args]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch_threads() -> int | None:
    """Threads torch computes with, or None when nothing was computed with it: importing it takes seconds."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())
