"""What a rollout needs of an environment beyond a pool of decision points, and how a reply is read.

A policy's reply is raw text. An environment cleans it into an action (which the transcript then holds), says
whether it can be read, and gives it a canonical form, equal for equal actions in other spelling.

| reading | a reply of which, after cleaning, |
|---|---|
| `empty` | nothing is left |
| `call` | the whole can be read: a call of the grammar, a program that parses |
| `prose` | nothing looks like the beginning of an action |
| `truncated` | the beginning of an action stands there, and its end is missing |
| `unparsable` | the rest: an action with a slip of form |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from envs.base import Action, Environment, State, Stream, Task

Reading = Literal["empty", "prose", "truncated", "unparsable", "call"]


@dataclass(frozen=True)
class Demonstration:
    """An errand carried out: its goal, and (action, observation) pairs."""

    goal: str
    steps: tuple[tuple[str, str], ...]


@runtime_checkable  # the types in signatures are checked while testing
class AgentEnvironment(Environment[State], Protocol[State]):
    """An environment in which a policy can act. Every method is a function of its arguments alone."""

    demonstrations: tuple[Demonstration, ...]
    """Errands carried out before the task's own, the same for every harness and task: they show the form of a reply."""

    def rollout_tasks(self, n: int, stream: Stream) -> tuple[Task[State], ...]:
        """The first n tasks to act on; a larger n only adds tasks. Every one changes the state it starts in."""
        ...

    def clean(self, raw: str) -> Action:
        """The action in a raw reply, without what chat models put around it. Cleaning twice changes nothing."""
        ...

    def stops(self, text: str) -> bool:
        """Whether the reply decoded so far is at its end, whatever would follow."""
        ...

    def canonical(self, text: str) -> str:
        """A text that is equal for equal actions in other spelling, and its own canonical form."""
        ...

    def reading(self, action: Action, cut_off: bool) -> Reading:
        """How a cleaned reply can be read; `cut_off` where the token limit ended it."""
        ...

    def ban_everywhere(self, text: str) -> bool:
        """Whether forbidding a failed action wherever it stands in a reply forbids no other valid action.

        False: only a reply that is this action and nothing else may be forbidden.
        """
        ...

    def tool(self, action: Action) -> str | None:
        """The tool an action calls, as it is written there; None where that cannot be read or there are no tools."""
        ...


def canonical_form(text: str, written: Callable[[str], str | None], plain: Callable[[str], str]) -> str:
    """`written(text)`, the canonical spelling of what can be read (None: it cannot); else `plain(text)`.

    What cannot be read must not become equal to what can: where `plain` would make it readable (a line break in a
    quoted text, say), the text stays as it stands. So the form of a form is itself, if `written` and `plain` keep
    their own results.
    """
    spelt = written(text)
    if spelt is not None:
        return spelt
    short = plain(text)
    return text if written(short) is not None else short


def collapsed(text: str) -> str:
    """The text with every run of white space as one blank, and none at its ends."""
    return " ".join(text.split())


def unclosed(text: str) -> bool:
    """Whether some kind of bracket is opened more often than closed, quoted ones counted like others."""
    return any(text.count(opening) > text.count(closing) for opening, closing in ("()", "[]", "{}"))
