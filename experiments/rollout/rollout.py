"""`backfire rollout`: an agent acts in an environment under every harness and change, and every step is kept.

harness × change × task × sample → steps.jsonl → rollouts.csv (one row each) → rollout_rates.csv, survival.csv,
rollout_contrasts.csv (paired, to the first arm), rollout_controls.csv (chosen heads among random ones),
rollout_factorial.csv; and rollout_extractions.csv: what was done to replies to get their actions
"""

from __future__ import annotations

import argparse

import pandas as pd

from envs.harness import parse_harnesses
from experiments.heads.ablation import ALPHA, BY, HOW, REFERENCE, WHERE
from experiments.heads.sets import HEADS
from experiments.rollout.arms import CHANGES, changes, parse_changes
from experiments.rollout.copies import with_copies
from experiments.rollout.environments import AGENT_ENV, open_environment
from experiments.rollout.policy import BAN_LEVELS
from experiments.rollout.rolling import arms_of, given_first, phrases, roll_out
from experiments.rollout.text import rollout_text
from experiments.run.run_folder import RunFolder
from experiments.run.seeds import py_stream, stream
from experiments.run.session import Session, open_model, open_run, read_wording, require_out
from experiments.run.study import (
    ITEMS,
    ON_MODEL,
    OUT,
    PROBLEMS,
    QUIET,
    SEED,
    WORDING,
    Option,
    Report,
    Study,
    not_negative_number,
    positive,
)
from mech.engine.engine import Engine
from mech.errors import InputError
from probes.rollouts.rates import contrasts, controls, extractions, factorial, rates
from probes.rollouts.steps import per_rollout
from probes.rollouts.survival import survival
from probes.stats.bootstrap import RngFactory

HARNESS = Option("harness", str, "all", "all, paper (its six), or a list such as verbatim,drop+ban")
TASKS = Option("tasks", positive, 24, "tasks, the same for every harness")
STEPS = Option("steps", positive, 6, "free steps at most")
TOKENS = Option(
    "tokens", positive, None, "tokens a reply has at most; by default 64 (toolshed) or 200 (coderepair)"
)
TEMPERATURE = Option("temperature", not_negative_number, 0.0, "0: greedy")
SAMPLES = Option("samples", positive, 1, "rollouts of a task, for a temperature above 0")
FIRST = Option(
    "first",
    str,
    "free",
    "given: the first call is a wrong one, and everything after is free",
    ("free", "given"),
)
BAN = Option("ban", str, "canonical", "how strictly +ban is kept", BAN_LEVELS)
CHANGE = Option("change", str, "none", f"all, or a list out of {', '.join(CHANGES)}")
DRAWS = Option("controls", positive, 1, "random layer-matched sets for ablate-random and knockout-random")


def three_thresholds(text: str) -> tuple[int, int, int]:
    """`3,4,6`: three numbers of at least 2."""
    numbers = [positive(part) for part in text.split(",")]
    if len(numbers) != 3 or min(numbers) < 2:
        raise ValueError(f"{text} is not three numbers from 2 on, such as 3,4,6")
    return numbers[0], numbers[1], numbers[2]


DETECTORS = Option(
    "detectors",
    three_thresholds,
    (3, 4, 6),
    "a loop: so often the same action and error, the same observation, in turn",
)


def run(args: argparse.Namespace) -> Report:
    """Roll out every arm that is not in the folder yet, then derive the tables."""
    harnesses = parse_harnesses(args.harness)
    parse_changes(args.change)
    if args.samples > 1 and args.temperature == 0:
        raise InputError("Greedy rollouts of a task are all the same: give --temperature with --samples.")
    require_out(args)
    wording = read_wording(args)
    with open_environment(args) as environment:
        tasks = environment.rollout_tasks(args.tasks, lambda name: py_stream(args.seed, name))
        given = given_first(environment, tasks, args.seed) if args.first == "given" else {}
        tasks = tuple(task for task in tasks if args.first == "free" or task.task_id in given)
        session = Session(
            Engine(open_model(args, wording)), [], wording, lambda name: stream(args.seed, name)
        )
        change = changes(session, args, {task.task_id for task in tasks})
        arms = arms_of(harnesses, change.changes)
        about = {
            **change.about,
            "wording_sha256": wording.sha256,
            "tasks": [task.task_id for task in tasks],
            "arms": [arm.name for arm in arms],
        }
        with open_run(STUDY, args, session.model, about, change.derived) as folder:
            roll_out(folder, session, environment, tasks, arms, args, given)
            by_id = {task.task_id: task for task in tasks}
            steps = with_copies(folder.rows("steps"), environment, by_id, phrases(wording))
            tables = derive(folder, steps, session.streams("rollout"), arms[0].name, args.detectors)
            folder.finish({"prefix_caches_run": session.engine.forwards.ran})
    return Report(f"{rollout_text(tables)}\nwritten to {args.out}")


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
        "rollouts": rollouts,
        "rollout_extractions": extractions(steps),
        "rollout_rates": rates(rollouts, rng_for),
        "survival": survival(steps, rng_for),
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
    "let the model act under harnesses, bans and changed heads, and count what it repeats",
    "backfire rollout --env toolshed --harness all --tasks 24 --out runs/rollouts",
    (
        *ON_MODEL,
        *(AGENT_ENV, PROBLEMS, WORDING, SEED),
        *(HARNESS, BAN, CHANGE, HEADS, BY, DRAWS, HOW, WHERE, ALPHA, REFERENCE, ITEMS),
        *(TASKS, STEPS, TOKENS, FIRST, TEMPERATURE, SAMPLES, DETECTORS),
        *(OUT, QUIET),
    ),
    run,
)
