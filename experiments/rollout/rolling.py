"""One rollout after another, and the rows that each leaves: what `backfire rollout` does.

A rollout is finished when its last step is on the disk; a killed run does an unfinished one again, whose arithmetic
depends on nothing that other rollouts left, and so writes the same rows. Samples of a task have the same draws under
every harness and change (common random numbers). Every rollout of a harness begins with the same prefix cache, the
system prompt and the demonstrations of the format after it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from envs.agent import AgentEnvironment
from envs.base import Task, WrongAction
from envs.errors import InputError as EnvironmentInputError
from envs.harness import Harness, Phrases
from envs.rollout import Rollout, Step, first_wrong
from envs.rollout import run as act
from experiments.rollout.arms import Change
from experiments.rollout.environments import REPLY_TOKENS
from experiments.rollout.policy import BAN_LEVELS, NOT_WRITTEN, ModelPolicy
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.seeds import py_stream
from experiments.run.session import Session
from experiments.run.study import Flag, OutOptions, not_negative_number, positive
from mech.decoding.decode import Decoding
from mech.errors import InputError
from probes.prompts.wording import Wording

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RollingOptions(OutOptions):
    """How an agent acts."""

    ban: Annotated[str, Flag("how strictly +ban is kept", choices=BAN_LEVELS)] = "canonical"
    steps: Annotated[int, Flag("free steps at most", positive)] = 6
    tokens: Annotated[
        int | None,
        Flag("tokens a reply has at most; by default 64 (toolshed) or 200 (coderepair)", positive),
    ] = None
    temperature: Annotated[float, Flag("0: greedy", not_negative_number)] = 0.0
    samples: Annotated[int, Flag("rollouts of a task, for a temperature above 0", positive)] = 1


@dataclass(frozen=True, eq=False)
class Arm:
    """A harness under a change; the first arm of a study is what the others are compared with."""

    harness: Harness
    change: Change

    @property
    def name(self) -> str:
        """`verbatim`, `verbatim+ban/knockout`."""
        return self.harness.name if self.change.name == "none" else f"{self.harness.name}/{self.change.name}"


def arms_of(harnesses: Sequence[Harness], changes: Sequence[Change]) -> list[Arm]:
    """Every harness under every change, changes outermost, but for arms that knock out calls where none are kept.

    Such an arm would be its harness once more, and count twice in Holm's families.

    Raises:
        InputError: no arm is left.
    """
    arms = [Arm(harness, change) for change in changes for harness in harnesses]
    idle = [
        arm
        for arm in arms
        if len(arm.change.persistent.knockout_heads) and not arm.harness.keeps_failed_calls
    ]
    if len(idle) == len(arms):
        raise InputError("These harnesses keep no failed call that could be knocked out: add verbatim.")
    if idle:
        names = ", ".join(arm.name for arm in idle)
        logger.warning("left out, as no failed call is there to be knocked out: %s", names)
    return [arm for arm in arms if arm not in idle]


def roll_out(
    folder: RunFolder,
    session: Session,
    environment: AgentEnvironment[Any],
    tasks: Sequence[Task[Any]],
    arms: Sequence[Arm],
    config: RollingOptions,
    given: Mapping[str, WrongAction[Any]],
) -> None:
    """Append the steps of every rollout that is not finished in the folder; `given` has first actions by task."""
    finished: set[str] = set()
    begun: dict[str, dict[str, dict[Any, Any]]] = {}
    for row in folder.rows("rollout").to_dict("records"):
        name = row["id"].rpartition("|")[0]
        begun.setdefault(name, {})[row["id"]] = row
        if row["last"]:
            finished.add(name)
    units = list(itertools.product(arms, tasks, range(config.samples)))
    for arm, task, sample in progress(units, len(units), "rollout", config.quiet):
        name = f"{arm.name}|{task.task_id}|{sample}"
        if name in finished:
            continue
        rollout = one_rollout(session, environment, task, arm, sample, config, given.get(task.task_id))
        steps = list(step_rows(name, session, environment, arm, sample, rollout))
        folder.append_all("rollout", _unwritten(folder, begun.get(name, {}), steps))


def _unwritten(
    folder: RunFolder, begun: Mapping[str, Mapping[str, Any]], steps: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The rows of a rollout that are not in the folder; those that a killed run left must be the same.

    Raises:
        InputError: they are not: a rollout made of two would be none.
    """
    for row in steps:
        if row["id"] in begun and any(
            begun[row["id"]][name] != row[name] for name in ("token_ids", "action")
        ):
            raise InputError(
                f"The rollout of '{row['id']}' does not go as it went before {folder.path} was left: another machine, "
                "version or time limit. Choose another --out."
            )
    return [row for row in steps if row["id"] not in begun]


def given_first(
    environment: AgentEnvironment[Any], tasks: Sequence[Task[Any]], seed: int
) -> dict[str, WrongAction[Any]]:
    """A wrong first action of each task, the same in every arm; tasks of which none is known are left out.

    Raises:
        InputError: no task has one.
    """
    found: dict[str, WrongAction[Any]] = {}
    for task in tasks:
        try:
            found[task.task_id] = first_wrong(environment, task, py_stream(seed, f"given/{task.task_id}"))
        except EnvironmentInputError:
            logger.warning("left out: no wrong first action is known for %s", task.task_id)
    if not found:
        raise InputError("No wrong first action is known for any of these tasks: use --first free.")
    return found


def one_rollout(
    session: Session,
    environment: AgentEnvironment[Any],
    task: Task[Any],
    arm: Arm,
    sample: int,
    config: RollingOptions,
    given: WrongAction[Any] | None = None,
) -> Rollout[Any]:
    """One rollout; the draws of a sample are the same in every arm."""
    limit = config.tokens or REPLY_TOKENS[environment.name]
    how = Decoding(limit, config.temperature, lambda text: environment.stops(text, task))
    rng = session.rng_for(f"rollout/{task.task_id}/{sample}")
    policy = ModelPolicy(session.engine, environment, arm.change.persistent, how, config.ban, rng, task)
    return act(environment, task, arm.harness, phrases(session.wording), policy, config.steps, given)


def phrases(wording: Wording) -> Phrases:
    """The wording's sentences as a harness takes them."""
    return Phrases(
        wording.observation_role,
        wording.observation_prefix,
        wording.abstract,
        wording.negative_instruction,
        wording.negative_instruction_join,
    )


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
        *("stop", "solved", "n_bans", "dropped"),
    )
    return {**{name: getattr(step, name) for name in names}, "extraction": list(step.extraction)}
