"""Where an agent's words are from: a demonstration's own call, or what the runtime had written into the transcript.

A model in a loop copies what stands there. A copy of the runtime's note is no repeat of an action (its number differs
each time), and a demonstration's call that runs is no progress: both are told apart from other steps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from envs.agent import AgentEnvironment
from envs.base import Task
from envs.harness import HARNESSES, Past, Phrases, write

SHORTEST = 8
"""Letters below which a text stands in another by chance."""


def with_copies(
    steps: pd.DataFrame,
    environment: AgentEnvironment[Any],
    tasks: Mapping[str, Task[Any]],
    phrases: Phrases,
) -> pd.DataFrame:
    """The rows of steps with the column `copies`: "demonstration", "runtime" (numbers aside), or None."""
    shown = {environment.canonical(action) for each in environment.demonstrations for action, _ in each.steps}
    found: dict[Any, str | None] = {}
    for (_, task_id, _), rollout in steps.groupby(["arm", "task_id", "sample"], sort=False):
        harness = HARNESSES[rollout["harness"].iloc[0]]
        history: list[Past] = []
        for place, row in rollout.sort_values("index").iterrows():
            request = write(harness, environment, tasks[str(task_id)], history, phrases)
            told = [
                each["content"]
                for each in request.messages[request.opening + 1 :]
                if each["role"] != "assistant"
            ]
            found[place] = _source(row, shown, told)
            error = row["error_type"] if isinstance(row["error_type"], str) else None
            tool = row["tool"] if isinstance(row["tool"], str) else None
            history.append(Past(row["action"], row["observation"], error, tool))
    return steps.assign(copies=[found[place] for place in steps.index])


def _source(row: pd.Series, shown: set[str], told: list[str]) -> str | None:
    if row["given"]:
        return None
    if row["canonical"] in shown:
        return "demonstration"
    text = _numberless(row["action"])
    return "runtime" if len(text) >= SHORTEST and any(text in _numberless(each) for each in told) else None


def _numberless(text: str) -> str:
    return re.sub(r"\d+", "#", text)
