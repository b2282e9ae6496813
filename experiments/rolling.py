"""One rollout after another, and the rows that each leaves: what `backfire rollout` does.

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

from envs.agent import AgentEnvironment
from envs.base import Task
from envs.harness import Harness, Phrases
from envs.rollout import Rollout, Step, first_wrong
from envs.rollout import run as act
from experiments.changes_in_loop import Change
from experiments.environments import REPLY_TOKENS
from experiments.policies import ModelPolicy
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.seeds import py_stream
from experiments.session import Session
from mech.decoding import Decoding
from probes.wording import Wording


@dataclass(frozen=True, eq=False)
class Arm:
    """A harness under a change; the first arm of a study is what the others are compared with."""

    harness: Harness
    change: Change

    @property
    def name(self) -> str:
        """`verbatim`, `verbatim+ban/hide`."""
        return self.harness.name if self.change.name == "none" else f"{self.harness.name}/{self.change.name}"


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
