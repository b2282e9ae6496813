"""`backfire rollout`: an agent acts in an environment under every harness and change, and every step is kept.

    harness × change × task × sample → steps.jsonl → rollouts.csv (one row each) → rollout_rates.csv, survival.csv,
                                       rollout_contrasts.csv (paired, to the first arm), rollout_factorial.csv

A rollout is finished when its last step is on the disk; a killed run does an unfinished one again, whose arithmetic
depends on nothing that other rollouts left, and so writes the same rows. Samples of a task have the same draws under
every harness and change (common random numbers). Every rollout of a harness begins with the same trunk, the system
prompt and the demonstrations of the format behind it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from envs.agent import AgentEnvironment
from envs.base import Task
from envs.harness import Harness, Phrases, parse_harnesses
from envs.rollout import Rollout, Step, first_wrong
from envs.rollout import run as act
from experiments.ablated_sets import HEADS
from experiments.ablating import ALPHA, BY, HOW, REFERENCE, WHERE
from experiments.changes_in_loop import CHANGES, Change, changes, parse_changes
from experiments.environments import AGENT_ENV, REPLY_TOKENS, open_environment
from experiments.options import (
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
from experiments.policies import BAN_LEVELS, ModelPolicy
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.rollout_text import rollout_text
from experiments.seeds import py_stream, stream
from experiments.session import Session, open_model, open_run, read_wording, require_out
from mech.decoding import Decoding
from mech.engine import Engine
from mech.errors import InputError
from probes.rollout_measures import per_rollout
from probes.rollout_survival import survival
from probes.rollout_tables import contrasts, factorial, rates
from probes.wording import Wording

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
DRAWS = Option("controls", positive, 1, "random layer-matched sets for ablate-random and hide-random")


@dataclass(frozen=True, eq=False)
class Arm:
    """A harness under a change; the first arm of a study is what the others are compared with."""

    harness: Harness
    change: Change

    @property
    def name(self) -> str:
        """`verbatim`, `verbatim+ban/hide`."""
        return self.harness.name if self.change.name == "none" else f"{self.harness.name}/{self.change.name}"


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
        session = Session(Engine(open_model(args)), [], wording, lambda name: stream(args.seed, name))
        change = changes(session, args)
        arms = [Arm(harness, one) for one in change.changes for harness in harnesses]
        about = {
            **change.about,
            "wording_sha256": wording.sha256,
            "tasks": [task.task_id for task in tasks],
            "arms": [arm.name for arm in arms],
        }
        with open_run(STUDY, args, session.model, about, change.derived) as folder:
            roll_out(folder, session, environment, tasks, arms, args)
            tables = derive(folder, session, arms)
            folder.finish({"trunks_run": session.engine.meter.ran})
    return Report(f"{rollout_text(tables)}\nwritten to {args.out}")


def roll_out(
    folder: RunFolder,
    session: Session,
    environment: AgentEnvironment[Any],
    tasks: Sequence[Task[Any]],
    arms: Sequence[Arm],
    args: argparse.Namespace,
) -> None:
    """Append the steps of every rollout that is not finished in the folder."""
    rows = folder.rows("steps")
    finished = set(rows.loc[rows["last"], "id"].str.rpartition("|")[0]) if len(rows) else set()
    units = list(itertools.product(arms, tasks, range(args.samples)))
    for arm, task, sample in progress(units, len(units), "rollout", args.quiet):
        name = f"{arm.name}|{task.task_id}|{sample}"
        if name in finished:
            continue
        done = folder.done_ids("steps")
        rollout = one_rollout(session, environment, task, arm, sample, args)
        steps = list(step_rows(name, session, environment, arm, sample, rollout))
        folder.append_all("steps", [row for row in steps if row["id"] not in done])


def one_rollout(
    session: Session,
    environment: AgentEnvironment[Any],
    task: Task[Any],
    arm: Arm,
    sample: int,
    args: argparse.Namespace,
) -> Rollout[Any]:
    """One rollout; the draws of a sample are the same in every arm."""
    limit = args.tokens or REPLY_TOKENS[environment.name]
    how = Decoding(limit, args.temperature, environment.stops)
    rng = session.rng_for(f"rollout/{task.task_id}/{sample}")
    policy = ModelPolicy(session.engine, environment, arm.change.standing, how, args.ban, rng)
    given = None
    if args.first == "given":
        given = first_wrong(environment, task, py_stream(args.seed, f"given/{task.task_id}"))
    return act(environment, task, arm.harness, phrases(session.wording), policy, args.steps, given)


def phrases(wording: Wording) -> Phrases:
    """The wording's sentences as a harness takes them."""
    return Phrases(
        wording.observation_role,
        wording.observation_prefix,
        wording.abstract,
        wording.negative_instruction,
        wording.negative_instruction_join,
    )


NOT_WRITTEN: Mapping[str, Any] = {
    "n_prompt_tokens": 0, "n_new_tokens": 0, "n_ban_events": 0, "prompt_sha256": None, "prompt_ids": [],
    "token_ids": [], "token_logprobs": [], "first_top": [], "ban_events": [], "ban_leaks": [], "notes": [],
}  # fmt: skip
"""What a row records of a step that the model did not write."""


def step_rows(
    name: str,
    session: Session,
    environment: AgentEnvironment[Any],
    arm: Arm,
    sample: int,
    rollout: Rollout[Any],
) -> Iterator[dict[str, Any]]:
    """The rows of a rollout, in order."""
    task = rollout.task
    for step in rollout.steps:
        last = step is rollout.steps[-1]
        yield {
            "id": f"{name}|{step.index}",
            "model": session.model.identity.name,
            "env": environment.name,
            "arm": arm.name,
            "harness": arm.harness.name,
            "change": arm.change.name,
            "task_id": task.task_id,
            "template": task.template,
            "n_gold": len(task.gold),
            "sample": sample,
            **_fields(step),
            "last": last,
            "end": rollout.end if last else None,
            **(NOT_WRITTEN if step.given else step.about),
        }


def _fields(step: Step) -> dict[str, Any]:
    names = (
        *("index", "given", "raw", "action", "canonical", "kind", "error_type", "tool", "observation"),
        *("stop", "solved", "n_bans"),
    )
    return {name: getattr(step, name) for name in names}


def derive(folder: RunFolder, session: Session, arms: Sequence[Arm]) -> dict[str, pd.DataFrame]:
    """Every table that the steps allow, written and returned by name."""
    steps = folder.rows("steps")
    rollouts = per_rollout(steps)
    rng_for = session.streams("rollout")
    tables = {
        "rollouts": rollouts,
        "rollout_rates": rates(rollouts, rng_for),
        "survival": survival(steps, rng_for),
    }
    if len(arms) > 1:
        tables["rollout_contrasts"] = contrasts(rollouts, rng_for, arms[0].name)
    crossed = factorial(rollouts, rng_for)
    if len(crossed):
        tables["rollout_factorial"] = crossed
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
        *(TASKS, STEPS, TOKENS, FIRST, TEMPERATURE, SAMPLES),
        *(OUT, QUIET),
    ),
    run,
)
