"""Harnesses: how a runtime writes what has happened so far, and which actions it forbids.

| history | a failed step is |
|---|---|
| `verbatim` | the call as it was written and the error |
| `verbatim+instr` | the same; the system prompt says not to repeat a failed call |
| `abstract` | one note of the runtime's, without the call |
| `drop` | deleted |

Successful steps are there verbatim in all of them. `+ban`: every action that has failed so far is forbidden to the
policy, which must not write it again; how it is kept from that is the policy's affair. The system prompt, save for the
instruction, and the demonstrations after it are the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envs.agent import AgentEnvironment
from envs.base import State, Task
from envs.errors import InputError

Message = dict[str, str]
HISTORIES = ("verbatim", "verbatim+instr", "abstract", "drop")
_BAN = "+ban"


@dataclass(frozen=True)
class Harness:
    """How history is written (one of HISTORIES), and whether failed actions are banned."""

    history: str
    ban: bool = False

    def __post_init__(self) -> None:
        if self.history not in HISTORIES:
            raise InputError(
                f"There is no way of writing history '{self.history}': choose from {', '.join(HISTORIES)}."
            )

    @property
    def keeps_failed_calls(self) -> bool:
        """Whether a failed call is in the transcript, so that attention to it can be knocked out."""
        return self.history.startswith("verbatim")

    @property
    def name(self) -> str:
        """As it is asked for and recorded: `verbatim`, `drop+ban`."""
        return f"{self.history}{_BAN}" if self.ban else self.history


HARNESSES: dict[str, Harness] = {
    harness.name: harness for ban in (False, True) for harness in (Harness(each, ban) for each in HISTORIES)
}
GROUPS: dict[str, tuple[str, ...]] = {
    "all": tuple(HARNESSES),
    "paper": ("verbatim", "verbatim+instr", "abstract", "drop", "verbatim+ban", "abstract+ban"),
}


@dataclass(frozen=True)
class Phrases:
    """The runtime's wording, as plain values.

    `abstract` is a function (error family, tool or None, number of the failure from 1) → note; `instruction_join`
    is between the system prompt and the instruction.
    """

    observation_role: str
    observation_prefix: str
    abstract: Callable[[str, str | None, int], str]
    instruction: str
    instruction_join: str


@dataclass(frozen=True)
class Past:
    """A step that was taken: the cleaned action, what was observed, and of a failure its family and the tool."""

    action: str
    observation: str
    error_type: str | None = None
    tool: str | None = None


@dataclass(frozen=True)
class Ban:
    """An action that must not be written again: wherever it is in a reply, or only as the whole of one."""

    text: str
    everywhere: bool


@dataclass(frozen=True)
class Request:
    """What a policy is asked: messages to answer, which of them hold a failed call verbatim, and what is forbidden.

    `failed_turns` are indices of `messages`, in order; an empty reply that failed is no call and is not among them.
    `bans` are in the order in which they failed first; the first `opening` messages are the same for every task.
    """

    messages: tuple[Message, ...]
    failed_turns: tuple[int, ...] = ()
    bans: tuple[Ban, ...] = ()
    opening: int = 0


def parse_harnesses(text: str) -> tuple[Harness, ...]:
    """Read `all`, `paper` or `a,b,c` (a group may be among the names); each once, in the order first given.

    Raises InputError for an unknown name, listing the known ones, and for an empty list.
    """
    known = ", ".join((*GROUPS, *HARNESSES))
    names: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        names += GROUPS.get(part, (part,) if part else ())
    unknown = [name for name in names if name not in HARNESSES]
    if unknown:
        raise InputError(f"There is no harness '{unknown[0]}': choose from {known}.")
    if not names:
        raise InputError(f"The list of harnesses is empty: choose from {known}.")
    return tuple(HARNESSES[name] for name in dict.fromkeys(names))


def write(
    harness: Harness,
    environment: AgentEnvironment[State],
    task: Task[State],
    history: Sequence[Past],
    phrases: Phrases,
) -> Request:
    """What the policy sees of a task and of the steps taken so far, as this harness writes them."""
    system = environment.system_prompt
    if harness.history == "verbatim+instr":
        system = f"{system}{phrases.instruction_join}{phrases.instruction}"
    opening = [_turn("system", system), *_demonstrated(environment, phrases)]
    messages = [*opening, _turn("user", task.goal)]
    failed_turns, n_failures = [], 0
    for past in history:
        if past.error_type is not None:
            n_failures += 1
            if harness.history == "drop":
                continue
            if harness.history == "abstract":
                note = phrases.abstract(past.error_type, past.tool, n_failures)
                messages.append(_turn(phrases.observation_role, note))
                continue
            if past.action:
                failed_turns.append(len(messages))
        messages += _step(past.action, past.observation, phrases)
    bans = _bans(environment, history) if harness.ban else ()
    return Request(tuple(messages), tuple(failed_turns), bans, len(opening))


def _demonstrated(environment: AgentEnvironment[State], phrases: Phrases) -> list[Message]:
    messages: list[Message] = []
    for shown in environment.demonstrations:
        messages.append(_turn("user", shown.goal))
        for action, observation in shown.steps:
            messages += _step(action, observation, phrases)
    return messages


def _step(action: str, observation: str, phrases: Phrases) -> list[Message]:
    observed = f"{phrases.observation_prefix}{observation}"
    return [_turn("assistant", action), _turn(phrases.observation_role, observed)]


def _bans(environment: AgentEnvironment[State], history: Sequence[Past]) -> tuple[Ban, ...]:
    failed = dict.fromkeys(past.action for past in history if past.error_type is not None and past.action)
    return tuple(Ban(text, environment.ban_everywhere(text)) for text in failed)


def _turn(role: str, content: str) -> Message:
    return {"role": role, "content": content}
