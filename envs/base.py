"""What every environment is made of: frozen values, and the protocol an environment answers to.

A state is an immutable value: `execute` returns the next one, so that "a failing call changes nothing" is the
statement `after == before`, and a counterfactual is a call executed in another state.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

State = TypeVar("State")
Length = Literal["terse", "standard", "verbose"]
Stream = Callable[[str], random.Random]  # name → its own generator: a draw in one place moves no other


@dataclass(frozen=True)
class Action:
    """One assistant turn, exactly as written."""

    text: str


@dataclass(frozen=True)
class Failure:
    """One error in three lengths; `error_type` is its family.

    No text quotes the whole action; an interpreter's traceback may quote a line of it, which an item then records.
    """

    error_type: str
    terse: str
    standard: str
    verbose: str

    def text(self, length: Length = "standard") -> str:
        """The error in the given length."""
        return {"terse": self.terse, "standard": self.standard, "verbose": self.verbose}[length]


@dataclass(frozen=True)
class Outcome:
    """What came of an action: a result or a failure; `done` when the action declared the task finished."""

    result: str = ""
    failure: Failure | None = None
    done: bool = False

    @property
    def ok(self) -> bool:
        """Whether the action took effect."""
        return self.failure is None


@dataclass(frozen=True)
class Task(Generic[State]):
    """A goal, the state it starts in, the actions that reach it, and the state they leave behind."""

    task_id: str
    template: str
    goal: str
    gold: tuple[Action, ...]
    start: State
    wanted: State


@dataclass(frozen=True)
class WrongAction(Generic[State]):
    """An action spoilt on purpose: what was changed, what it meant, and a state in which what it meant works.

    `imagined` is the state itself unless the action names what that state lacks or protects.
    """

    action: Action
    operator: str
    changed: str
    meant: Action
    imagined: State


class Environment(Protocol[State]):
    """Tasks, and what actions do. Every method is a function of its arguments alone."""

    name: str
    system_prompt: str

    def tasks(self, n: int, stream: Stream) -> tuple[Task[State], ...]:
        """The first n tasks of these streams; a larger n only adds tasks."""
        ...

    def reset(self, task: Task[State]) -> State:
        """The state a task starts in."""
        ...

    def execute(self, state: State, action: Action) -> tuple[State, Outcome]:
        """The next state and what came of the action; a failure leaves the state as it was."""
        ...

    def observe(
        self, action: Action, outcome: Outcome, length: Length = "standard", echo: bool = False
    ) -> str:
        """The observation as text; `echo` adds the action to a failure."""
        ...

    def acknowledge(self) -> str:
        """A valence-free observation: the action arrived, nothing is said of how it went."""
        ...

    def wrong_actions(self, state: State, gold: Action, rng: random.Random) -> tuple[WrongAction[State], ...]:
        """Spoilt versions of a gold action, every applicable operator once; each fails in the state."""
        ...

    def success_like(self, wrong: WrongAction[State]) -> str:
        """What a wrong action would have been answered, had it worked as it was meant."""
        ...

    def solved(self, task: Task[State], state: State) -> bool:
        """Whether the state is what the task wanted."""
        ...
