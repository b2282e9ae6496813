"""The environments that agents act in, by name; a sandbox lives as long as the block that asked for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from envs.agent import AgentEnvironment
from envs.coderepair import CodeRepair
from envs.coderepair.problems import load_problems
from envs.sandbox import Sandbox
from envs.toolshed import Toolshed
from experiments.run.study import Flag, WordingFileOptions
from mech.errors import InputError

REPLY_TOKENS = {"toolshed": 64, "coderepair": 200}
"""Caps on a reply, in tokens: the longest reference of these tasks has 49 and 139 of SmolLM2's (the paper's cap for
calls, 32, would cut off references)."""


@dataclass(frozen=True, kw_only=True)
class AgentOptions(WordingFileOptions):
    """What an environment that agents act in is made of, and how its transcripts are worded."""

    problems: Annotated[
        Path | None,
        Flag("coderepair's problems in MBPP's schema: JSON, JSON lines or a datasets folder"),
    ] = None


@contextmanager
def open_environment(name: str, path: Path | None) -> Iterator[AgentEnvironment[Any]]:
    """The environment of this name, CodeRepair's with the problems of this file, or the bundled ones.

    Raises:
        InputError: the problems cannot be read, or the sandbox cannot work here.
    """
    if name == "toolshed":
        yield Toolshed()
        return
    problems = load_problems(path) if path else None
    try:
        sandbox = Sandbox()
    except RuntimeError as error:
        raise InputError(f"The sandbox cannot work here: {error}") from error
    with sandbox:
        yield CodeRepair(sandbox, problems)
