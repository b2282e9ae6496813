"""A policy acts in an environment, step by step, and every step is recorded.

    task → messages (as the harness writes them) → policy → raw reply → extracted action → environment → observation

| kind of a step | the reply |
|---|---|
| `ok` | was carried out |
| `done` | declared the task finished |
| `failed` | could be read, and was refused |
| `empty` `prose` `truncated` `unparsable` | could not be read (see `envs.agent`), and was answered with that error |
| `banned_out` | stopped half-way, since the bans left the policy nothing to write; nothing was carried out |
| `no_room` | was not begun, since the transcript fills the model's positions |

| end of a rollout | when |
|---|---|
| `solved` | after a step the state is exactly what the task wanted: all was done, and nothing else |
| `done` | the policy declared the task finished, and it is not solved |
| `step_limit` | so many free steps were taken |
| `ban_exhausted` | a step was `banned_out` |
| `no_room` | a step had `no_room` |

The goal is checked after every step, so that a rollout ends as soon as it is solved. What a model may write is an
outcome, never an exception.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal

from envs.agent import AgentEnvironment, Edit
from envs.base import Action, Outcome, State, Task, WrongAction
from envs.errors import InputError
from envs.harness import Harness, Past, Phrases, Request, write

Kind = Literal["ok", "done", "failed", "empty", "prose", "truncated", "unparsable", "banned_out", "no_room"]
End = Literal["solved", "done", "step_limit", "ban_exhausted", "no_room"]
Stop = Literal["end_of_turn", "stop_text", "special_token", "token_limit", "ban_exhausted", "no_room"]


@dataclass(frozen=True)
class Reply:
    """What a policy answers: the text as decoded, why it stopped, and whatever it wants recorded with the step."""

    text: str
    stop: Stop
    about: Mapping[str, Any] = field(default_factory=dict, hash=False)


Policy = Callable[[Request], Reply]


@dataclass(frozen=True)
class Step:
    """One step. `given`: the action was given and not written by the policy; its `stop` is "given".

    raw: the reply as decoded. action: extracted from it, as the transcript holds it. canonical: equal for equal actions
    in other spelling. extraction: what was done to the reply to get the action (of `envs.agent.EDITS`). dropped: other
    calls or programs that stood in it. error_type: the family of the failure, None where there is none. tool: the
    tool's name as written.
    observation: in standard length, without the wording's prefix; "" after `banned_out`. solved: after this step.
    n_bans: how many actions were forbidden. about: the policy's own record.
    """

    index: int
    given: bool
    raw: str
    action: str
    canonical: str
    kind: Kind
    error_type: str | None
    tool: str | None
    observation: str
    stop: str
    solved: bool
    n_bans: int = 0
    extraction: tuple[Edit, ...] = ()
    dropped: str = ""
    about: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def past(self) -> Past:
        """The step as later requests tell it."""
        return Past(self.action, self.observation, self.error_type, self.tool)


@dataclass(frozen=True)
class Rollout(Generic[State]):
    """A task, the steps taken in it (at least one), and why there are no more."""

    task: Task[State]
    steps: tuple[Step, ...]
    end: End


def run(
    environment: AgentEnvironment[State],
    task: Task[State],
    harness: Harness,
    phrases: Phrases,
    policy: Policy,
    max_steps: int,
    given: WrongAction[State] | None = None,
) -> Rollout[State]:
    """Let a policy act until the task is solved or one of the other ends is reached.

    Args:
        environment: where it acts.
        task: what it is to do.
        harness: how history is written, and whether failed actions are forbidden.
        phrases: the runtime's wording.
        policy: a function from a request to a reply.
        max_steps: free steps, at least 1; a given one is not counted.
        given: a first action that is not the policy's, and that fails.

    Raises:
        InputError: max_steps is below 1.
        AssertionError: the given action does not fail.
    """
    if max_steps < 1:
        raise InputError(f"A rollout takes at least 1 step, not {max_steps}.")
    state = environment.reset(task)
    steps: list[Step] = []
    if given is not None:
        steps.append(_given(environment, task, state, given))
    for _ in range(max_steps):
        request = write(harness, environment, task, [each.past for each in steps], phrases)
        reply = policy(request)
        if reply.stop in ("ban_exhausted", "no_room"):
            steps.append(_not_taken(environment, task, len(steps), reply, request))
            return Rollout(task, tuple(steps), reply.stop)
        step, state = _act(environment, task, state, len(steps), reply, len(request.bans))
        steps.append(step)
        if step.solved:
            return Rollout(task, tuple(steps), "solved")
        if step.kind == "done":
            return Rollout(task, tuple(steps), "done")
    return Rollout(task, tuple(steps), "step_limit")


def first_wrong(
    environment: AgentEnvironment[State], task: Task[State], rng: random.Random
) -> WrongAction[State]:
    """One of the wrong versions of a task's first gold action, in the state it starts in.

    Raises InputError where there is none.
    """
    found = environment.wrong_actions(environment.reset(task), task.gold[0], rng)
    if not found:
        raise InputError(f"No wrong action is known for the task '{task.task_id}': leave it out.")
    return rng.choice(found)


def _act(
    environment: AgentEnvironment[State],
    task: Task[State],
    state: State,
    index: int,
    reply: Reply,
    n_bans: int,
) -> tuple[Step, State]:
    """Carry a reply out: the step, and the state after it."""
    extracted = environment.extract(reply.text, task)
    action = extracted.action
    after, outcome = environment.execute(state, action)
    step = Step(
        index=index,
        given=False,
        raw=reply.text,
        action=action.text,
        canonical=environment.canonical(action.text),
        kind=_kind(environment, action, outcome, reply.stop == "token_limit"),
        error_type=outcome.failure.error_type if outcome.failure else None,
        tool=environment.tool(action),
        observation=_encodable(environment.observe(action, outcome)),
        stop=reply.stop,
        solved=environment.solved(task, after),
        n_bans=n_bans,
        extraction=extracted.edits,
        dropped=extracted.dropped,
        about=reply.about,
    )
    return step, after


def _kind(environment: AgentEnvironment[State], action: Action, outcome: Outcome, cut_off: bool) -> Kind:
    if outcome.done:
        return "done"
    if outcome.ok:
        return "ok"
    reading = environment.reading(action, cut_off)
    return "failed" if reading == "call" else reading


def _encodable(text: str) -> str:
    """The text with half characters written out: a call may spell one in an escape, and no tokenizer takes it."""
    return text.encode("utf-8", "backslashreplace").decode()


def _given(
    environment: AgentEnvironment[State], task: Task[State], state: State, wrong: WrongAction[State]
) -> Step:
    """The first step, which nobody chose: it has to fail, and so to leave the state as it was."""
    step, _ = _act(environment, task, state, 0, Reply(wrong.action.text, "end_of_turn"), 0)
    if step.error_type is None:
        raise AssertionError(
            f"the action given in the task '{task.task_id}' was to fail and did not: {wrong.action.text}"
        )
    return replace(step, given=True, stop="given")


def _not_taken(
    environment: AgentEnvironment[State], task: Task[State], index: int, reply: Reply, request: Request
) -> Step:
    """The step of a policy that had nothing left to write, or no room for it: its text so far, not carried out."""
    extracted = environment.extract(reply.text, task)
    text = extracted.action.text
    return Step(
        index=index,
        given=False,
        raw=reply.text,
        action=text,
        canonical=environment.canonical(text),
        kind="banned_out" if reply.stop == "ban_exhausted" else "no_room",
        error_type=None,
        tool=None,
        observation="",
        stop=reply.stop,
        solved=False,
        n_bans=len(request.bans),
        extraction=extracted.edits,
        dropped=extracted.dropped,
        about=reply.about,
    )
