"""`backfire rollout`: an agent acts in an environment under every harness and change, and every step is kept.

harness × change × task × sample → rollout.jsonl → rollout.csv (one row each) → rollout_rates.csv, rollout_survival.csv,
rollout_contrasts.csv (paired, to the first arm), rollout_controls.csv (chosen heads among random ones),
rollout_factorial.csv; and rollout_extractions.csv: what was done to replies to get their actions
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd

from envs.agent import AgentEnvironment
from envs.base import Task
from envs.harness import HARNESSES, Past, Phrases, parse_harnesses, write
from experiments.rollout.arms import ChangeOptions, changes, parse_changes
from experiments.rollout.environments import AgentOptions, open_environment
from experiments.rollout.rolling import RollingOptions, arms_of, given_first, phrases, roll_out
from experiments.rollout.text import rollout_text
from experiments.run.run_folder import RunFolder
from experiments.run.seeds import py_stream, stream
from experiments.run.session import Session, open_model, open_run, read_wording, require_out
from experiments.run.study import Flag, ModelOptions, Report, Study, positive
from mech.engine.engine import Engine
from mech.errors import InputError
from probes.rollouts.rates import contrasts, controls, extractions, factorial, rates
from probes.rollouts.steps import per_rollout
from probes.rollouts.survival import survival
from probes.stats.bootstrap import RngFactory


def three_thresholds(text: str) -> tuple[int, int, int]:
    """`3,4,6`: three numbers of at least 2."""
    numbers = [positive(part) for part in text.split(",")]
    if len(numbers) != 3 or min(numbers) < 2:
        raise ValueError(f"{text} is not three numbers from 2 on, such as 3,4,6")
    return numbers[0], numbers[1], numbers[2]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(RollingOptions, ChangeOptions, AgentOptions, ModelOptions):
    """What `backfire rollout` is given."""

    env: Annotated[Literal["toolshed", "coderepair"], Flag("environment the agent acts in")] = "toolshed"
    items: Annotated[Path | None, Flag("items as JSON lines, instead of the environment's own")] = None
    harness: Annotated[str, Flag("all, paper (its six), or a list such as verbatim,drop+ban")] = "all"
    tasks: Annotated[int, Flag("tasks, the same for every harness", positive)] = 24
    first: Annotated[
        Literal["free", "given"],
        Flag("given: the first call is a wrong one, and everything after is free"),
    ] = "free"
    detectors: Annotated[
        tuple[int, int, int],
        Flag("a loop: so often the same action and error, the same observation, in turn", three_thresholds),
    ] = (3, 4, 6)


def run(config: RolloutConfig) -> Report:
    """Roll out every arm that is not in the folder yet, then derive the tables."""
    harnesses = parse_harnesses(config.harness)
    parse_changes(config.change)
    if config.samples > 1 and config.temperature == 0:
        raise InputError("Greedy rollouts of a task are all the same: give --temperature with --samples.")
    require_out(config)
    wording = read_wording(config)
    with open_environment(config.env, config.problems) as environment:
        tasks = environment.rollout_tasks(config.tasks, lambda name: py_stream(config.seed, name))
        given = given_first(environment, tasks, config.seed) if config.first == "given" else {}
        tasks = tuple(task for task in tasks if config.first == "free" or task.task_id in given)
        session = Session(
            Engine(open_model(config, wording)), [], wording, lambda name: stream(config.seed, name)
        )
        change = changes(session, config, {task.task_id for task in tasks})
        arms = arms_of(harnesses, change.changes)
        about = {
            **change.about,
            "wording_sha256": wording.sha256,
            "tasks": [task.task_id for task in tasks],
            "arms": [arm.name for arm in arms],
        }
        with open_run(STUDY, config, session.model, about, change.derived) as folder:
            roll_out(folder, session, environment, tasks, arms, config, given)
            by_id = {task.task_id: task for task in tasks}
            steps = with_copies(folder.rows("rollout"), environment, by_id, phrases(wording))
            tables = derive(folder, steps, session.streams("rollout"), arms[0].name, config.detectors)
            folder.finish({"prefix_caches_run": session.engine.forwards.ran})
    return Report(f"{rollout_text(tables)}\nwritten to {config.out}")


SHORTEST = 8
"""A shorter text (letters) may be part of another by chance."""


def with_copies(
    steps: pd.DataFrame,
    environment: AgentEnvironment[Any],
    tasks: Mapping[str, Task[Any]],
    phrases: Phrases,
) -> pd.DataFrame:
    """The rows of steps with the column `copies`: "demonstration", "runtime" (numbers aside), or None.

    A copy of the runtime's note is no repeat of an action (its number differs each time), and a demonstration's call
    that runs is no progress: both are counted apart from other steps.
    """
    shown = {environment.canonical(action) for each in environment.demonstrations for action, _ in each.steps}
    found: dict[Any, str | None] = {}
    for (_, task_id, _), rollout in steps.groupby(["arm", "task_id", "sample"], sort=False):
        harness = HARNESSES[rollout["harness"].iloc[0]]
        history: list[Past] = []
        for place, row in rollout.sort_values("index").iterrows():
            request = write(harness, environment, tasks[str(task_id)], history, phrases)
            notes = [
                each["content"]
                for each in request.messages[request.opening + 1 :]
                if each["role"] != "assistant"
            ]
            found[place] = _source(row, shown, notes)
            error = row["error_type"] if isinstance(row["error_type"], str) else None
            tool = row["tool"] if isinstance(row["tool"], str) else None
            history.append(Past(row["action"], row["observation"], error, tool))
    return steps.assign(copies=[found[place] for place in steps.index])


def _source(row: pd.Series, shown: set[str], notes: list[str]) -> str | None:
    if row["given"]:
        return None
    if row["canonical"] in shown:
        return "demonstration"
    text = _numberless(row["action"])
    return "runtime" if len(text) >= SHORTEST and any(text in _numberless(each) for each in notes) else None


def _numberless(text: str) -> str:
    return re.sub(r"\d+", "#", text)


def derive(
    folder: RunFolder,
    steps: pd.DataFrame,
    rng_for: RngFactory,
    baseline: str,
    detectors: tuple[int, int, int],
) -> dict[str, pd.DataFrame]:
    """Every table that the steps allow, written and returned by name; contrasts are to the arm `baseline`."""
    action_error, observation, alternation = detectors
    rollouts = per_rollout(steps, action_error=action_error, observation=observation, alternation=alternation)
    tables = {
        "rollout": rollouts,
        "rollout_extractions": extractions(steps),
        "rollout_rates": rates(rollouts, rng_for),
        "rollout_survival": survival(steps, rng_for),
    }
    if rollouts["arm"].nunique() > 1:
        tables["rollout_contrasts"] = contrasts(rollouts, rng_for, baseline)
    for name, found in (
        ("rollout_factorial", factorial(rollouts, rng_for)),
        ("rollout_controls", controls(rollouts)),
    ):
        if len(found):
            tables[name] = found
    for name, table in tables.items():
        folder.write_table(name, table)
    return tables


STUDY = Study(
    "rollout",
    "backfire rollout --env toolshed --harness all --tasks 24 --out runs/rollouts",
    RolloutConfig,
    run,
)
