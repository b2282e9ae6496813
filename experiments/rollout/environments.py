"""The environments that agents act in, by name; a sandbox lives as long as the block that asked for it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from envs.agent import AgentEnvironment
from envs.coderepair import CodeRepair
from envs.coderepair.problems import load_problems
from envs.sandbox import Sandbox
from envs.toolshed import Toolshed
from experiments.run.study import ENV, Option
from mech.errors import InputError

AGENT_ENV = Option("env", str, ENV.default, "environment the agent acts in", ("toolshed", "coderepair"))
REPLY_TOKENS = {"toolshed": 64, "coderepair": 200}
"""Caps on a reply, in tokens: the longest reference of these tasks has 49 and 139 of SmolLM2's (the paper's cap for
calls, 32, would cut off references)."""


@contextmanager
def open_environment(args: argparse.Namespace) -> Iterator[AgentEnvironment[Any]]:
    """The environment that --env names, CodeRepair's with the problems of --problems.

    Raises:
        InputError: the problems cannot be read, or the sandbox cannot work here.
    """
    if args.env == "toolshed":
        yield Toolshed()
        return
    problems = load_problems(args.problems) if args.problems else None
    try:
        sandbox = Sandbox()
    except RuntimeError as error:
        raise InputError(f"The sandbox cannot work here: {error}") from error
    with sandbox:
        yield CodeRepair(sandbox, problems)
