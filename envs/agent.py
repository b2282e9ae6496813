"""What a rollout needs of an environment beyond a pool of decision points, and how a reply is read.

A policy's reply is raw text. An environment extracts the action from it (which the transcript then holds), names what
it changed or left out, says whether the action can be read, and gives it a canonical form, equal for equal actions in
other spelling.

| reading | a reply of which, after cleaning, |
|---|---|
| `empty` | nothing is left |
| `call` | the whole can be read: a call of the grammar, a program that parses |
| `prose` | nothing looks like the beginning of an action |
| `truncated` | the beginning of an action is there, and its end is missing |
| `unparsable` | the rest: an action with a slip of form |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

from envs.base import Action, Environment, State, Stream, Task

Reading = Literal["empty", "prose", "truncated", "unparsable", "call"]
Edit = Literal[
    "line ends changed",  # CR and CR LF to LF
    "fence removed",  # of a block of code
    "stray fence removed",  # one that closes a block which nothing opened
    "label removed",  # `Action:` before a call
    "code marks removed",  # single backticks around it
    "prompts removed",  # `>>>` and `...`, and the lines between them that have none
    "indentation removed",  # of the whole program
    "blanks replaced",  # blanks and invisible characters that Python does not take, outside of texts
    "text removed",  # words, or code that is no program, before or after the action
    "helper added",  # another program of the reply, put before the chosen one, which uses what it defines
    "other program dropped",
    "second call dropped",  # one or more calls after the first
]
"""What can be done to a reply to get its action; a step's row names what was."""
EDITS: tuple[Edit, ...] = get_args(Edit)

# Python's text literals, as alternatives of a pattern with re.DOTALL: closed in three quotes, not closed (to the end of
# the text), closed in one.
QUOTED = r"""
    (?:"{3}(?:\\.|[^\\])*?"{3} | '{3}(?:\\.|[^\\])*?'{3})
    | (?P<open>(?:"{3}|'{3}).* | "(?:\\.|[^"\\\n])*\Z | '(?:\\.|[^'\\\n])*\Z)
    | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
"""


@dataclass(frozen=True)
class Demonstration:
    """A task carried out: its goal, and (action, observation) pairs."""

    goal: str
    steps: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Extraction:
    """The action in a raw reply and how it was got.

    edits: what was changed or left out, in the order of EDITS. dropped: other calls or programs of the reply.
    """

    action: Action
    edits: tuple[Edit, ...] = ()
    dropped: str = ""


@runtime_checkable  # the types in signatures are checked while testing
class AgentEnvironment(Environment[State], Protocol[State]):
    """An environment in which a policy can act. Every method is a function of its arguments alone."""

    demonstrations: tuple[Demonstration, ...]
    """Tasks carried out before the task's own, the same for every harness and task: they show the form of a reply."""

    def rollout_tasks(self, n: int, stream: Stream) -> tuple[Task[State], ...]:
        """The first n tasks to act on; a larger n only adds tasks. Every one changes the state it starts in."""
        ...

    def extract(self, raw: str, task: Task[State] | None = None) -> Extraction:
        """The action in a raw reply, without what chat models put around it. Extracting it again changes nothing.

        What the task asks for may decide which part of a reply is its action; without a task, nothing is known of that.
        """
        ...

    def clean(self, raw: str, task: Task[State] | None = None) -> Action:
        """The action that `extract` finds."""
        ...

    def stops(self, text: str, task: Task[State] | None = None) -> bool:
        """Whether the reply to the task that was decoded so far is at its end, whatever would follow."""
        ...

    def canonical(self, text: str) -> str:
        """A text that is equal for equal actions in other spelling, and its own canonical form."""
        ...

    def reading(self, action: Action, cut_off: bool) -> Reading:
        """How a cleaned reply can be read; `cut_off` where the token limit ended it."""
        ...

    def ban_everywhere(self, text: str) -> bool:
        """Whether forbidding a failed action wherever it is in a reply forbids no other valid action.

        False: only a reply that is this action and nothing else may be forbidden.
        """
        ...

    def tool(self, action: Action) -> str | None:
        """The tool an action calls, as it is written there; None where that cannot be read or there are no tools."""
        ...


def canonical_form(text: str, written: Callable[[str], str | None], plain: Callable[[str], str]) -> str:
    """`written(text)`, the canonical spelling of what can be read (None: it cannot); else `plain(text)`.

    What cannot be read must not become equal to what can: where `plain` would make it readable (a line break in a
    quoted text, say), the text stays as it is. So the form of a form is itself, if `written` and `plain` keep
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
