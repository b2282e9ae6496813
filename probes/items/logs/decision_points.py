"""From the turns of a transcript to decision points: every call that failed is an item.

The context of a failed call is everything before its turn, as chat messages: the system prompt, the users' messages up
to the agent's first turn (`goal`), then what the agent said and called (`prefix_actions`) and what came back
(`prefix_observations`), verbatim: the frame of observations is "{observation}". Calls are written as one line of JSON,
or as the agent wrote them where the format has no structured calls. Consecutive turns of one side are one, joined by
line breaks. A summary that the agent was shown instead of the turns before it begins the context anew. What the agent
said in the failed call's own turn is kept in `meta` and is no part of the record.

n calls in one turn: each failed one is an item; the turn's text, its other calls and their results come before
it in the context, as a turn of their own. Results name their call by id, or answer open calls in order.
The cluster of an item (`task_id`) is its log: a transcript of a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from probes.items.item import FRAME, UNKNOWN, Item
from probes.items.logs.counterfactuals import Answers, Origin, Texts
from probes.items.logs.failure import Rule, decided
from probes.items.logs.repeats import canonical, repeated
from probes.items.logs.transcript import SKIPPED, Call, Note, Opened, Result, Turn, Verdict, skipped

ITEM, SUCCEEDED, UNDECIDED = "item", "succeeded", "unknown"
"""What becomes of a call, beside `SKIPPED`."""

_CALLS = 10_000  # of one turn; calls without any result beyond that begin another one
_SHOWN = 100  # characters of a result that an account of its call shows
_DEPTH = 32  # of arguments in an item's meta; deeper ones are kept as text
_OTHER_CALLS = "other_calls"  # of meta: no call of a log is known to be right in another task


@dataclass(frozen=True)
class Settings:
    """How calls become items.

    Attributes:
        rules: what decides on unknown outcomes.
        texts: the template texts.
        counterfactuals: `auto` takes texts of the log where a rule finds them, `template` never.
        goal: the user's request of a log that shows none; without it such calls are skipped.
        max_context: characters before a call; a longer context is skipped, never cut.
    """

    rules: tuple[Rule, ...]
    texts: Texts
    counterfactuals: Literal["auto", "template"] = "auto"
    goal: str | None = None
    max_context: int = 400_000


@dataclass
class _Open:
    """A call of the step that is being read; `number` is its place in the log, from 1."""

    call: Call
    place: str
    number: int
    result: Result | None = None


@dataclass
class _Step:
    """A turn of the agent, what came back of its calls, and what users said then.

    `before`: characters before it; `cut`: its own text went beyond what is kept.
    """

    before: int
    key: str | None = None
    texts: list[str] = field(default_factory=list)
    calls: list[_Open] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    answered: bool = False
    cut: bool = False

    def own(self) -> str:
        """The agent's side of the step."""
        return _joined([*self.texts, *(one.call.rendered() for one in self.calls)])

    def other(self) -> str:
        """The other side: results in the order of their calls, then users' messages."""
        return _joined([*(one.result.content for one in self.calls if one.result is not None), *self.said])


@dataclass
class _Context:
    """What the agent is shown: until a summary takes its place, all of the log so far.

    `shown`: (the agent's side, the other side) of every closed step; `length` is in characters.
    """

    system: list[str] = field(default_factory=list)
    goal: list[str] = field(default_factory=list)
    shown: list[tuple[str, str]] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True)
class _Failure:
    """A failed call that waits for the end of its log, and how much of which context is before it."""

    open: _Open
    result: Result
    said_by: str
    context: _Context
    before: int
    step: _Step
    repeated: tuple[str, float | None]


class Transcript:
    """One transcript, turn by turn; every method yields the notes and items that are certain by then."""

    def __init__(self, name: str, log_format: str, opened: Opened, settings: Settings) -> None:
        """Begin; `name` is unique among all logs and is the items' cluster."""
        self.name = name
        self._format, self._settings = log_format, settings
        self._tools = dict.fromkeys(opened.tools)
        self._context = _Context()
        self._step: _Step | None = None
        # failures of the last closed step
        self._waiting: list[tuple[_Open, Result, str, _Step, _Context, int]] = []
        self._failures: list[_Failure] = []
        self._answers = Answers()
        self._numbers = 0

    def add(self, turn: Turn) -> Iterator[Note]:
        """Add a turn."""
        if turn.restarts:
            yield from self._close()
            self._settle(None)  # the next turn does not see these failures
            self._context = _Context(self._context.system)
        if turn.role == "assistant":
            if self._step is None or self._begins_another(turn, self._step):
                yield from self._close()
                self._step = _Step(self._context.length, turn.key)
            step = self._step
            step.cut |= not self._keep(step.texts, turn.text)
            for call in turn.calls:
                self._numbers += 1
                self._context.length += len(call.rendered())
                self._tools.setdefault(call.name)
                step.calls.append(_Open(call, turn.place, self._numbers))
            for _ in turn.results:
                yield skipped(turn.place, "result", "a result in a turn of the agent")
            return
        for call in turn.calls:
            yield skipped(turn.place, "call", f"{call.name}: a call in a turn of the role {turn.role}")
        for result in turn.results:
            yield from self._answer(result, turn.place)
        if not turn.text.strip():
            return
        if self._step is not None:
            self._keep(self._step.said, turn.text)
            self._step.answered = True
        elif turn.role == "system" and not self._context.goal:
            self._keep(self._context.system, turn.text)
        else:
            self._keep(self._context.goal, turn.text)

    def end(self) -> Iterator[Note | Item]:
        """End the transcript: the items of all its failed calls, in their order."""
        yield from self._close()
        self._settle(None)
        for failure in self._failures:
            item = self._item(failure)
            yield self._note(failure.open, ITEM, failure.said_by, item.item_id)
            yield item
        self._failures = []

    def _keep(self, texts: list[str], text: str) -> bool:
        """Put a text into the context unless that is too long by now to be of use; whether nothing of it is lost."""
        self._context.length += len(text)
        if not text.strip():
            return True
        if self._context.length <= self._settings.max_context:
            texts.append(text)
            return True
        return False

    def _begins_another(self, turn: Turn, step: _Step) -> bool:
        """Whether an assistant's message is another turn: the other side spoke since, and it has not the same key."""
        answered = step.answered or len(step.calls) >= _CALLS
        return answered and not (turn.key is not None and turn.key == step.key)

    def _answer(self, result: Result, place: str) -> Iterator[Note]:
        """Give a result to its call; one without a call is not used, but stays in the context as a text."""
        step = self._step
        waiting = [] if step is None else [one for one in step.calls if one.result is None]
        if result.call_id is not None and any(one.call.id is not None for one in waiting):
            waiting = [one for one in waiting if one.call.id == result.call_id]
        elif result.name is not None:
            waiting = [one for one in waiting if one.call.name == result.name] or waiting
        if step is None or not waiting:
            if step is None:
                yield skipped(place, "result", "it stands before the agent's first turn")
                return
            yield skipped(place, "result", "no open call that it answers (its text stays in the context)")
            self._keep(step.said, result.content)
        else:
            waiting[0].result = result
            self._context.length += len(result.content)
        step.answered = True

    def _close(self) -> Iterator[Note]:
        """End the step that is being read: what its calls were, and how they repeat the failures of the last one."""
        step, self._step = self._step, None
        if step is None:
            return
        self._settle([one.call for one in step.calls])
        before = len(self._context.shown)
        for one in step.calls:
            yield from self._judged(one, step, before)
        if self._context.length > self._settings.max_context:
            return
        own, other = step.own(), step.other()
        if own.strip():
            self._context.shown.append((own, other))
        elif self._context.shown:  # an empty turn of the agent: the other side goes on
            last = self._context.shown.pop()
            self._context.shown.append((last[0], _joined([last[1], other])))
        else:
            self._context.goal.append(other)

    def _judged(self, one: _Open, step: _Step, before: int) -> Iterator[Note]:
        """What one call was; a failure waits for the next step."""
        result = one.result
        if result is None:
            yield self._note(one, SKIPPED, "no result in the log")
            return
        failed: Verdict
        failed, said_by = decided(result, one.call.name, self._settings.rules)
        if failed == "unknown":
            yield self._note(one, UNDECIDED, "no field says whether it failed")
            return
        if failed == "no":
            if self._context.length <= self._settings.max_context:
                self._answers.add(one.call.name, one.number, result.content, canonical(one.call))
            yield self._note(one, SUCCEEDED, said_by)
            return
        reason = self._reason(one, step)
        if reason:
            yield self._note(one, SKIPPED, f"failed, but {reason}")
        else:
            self._waiting.append((one, result, said_by, step, self._context, before))

    def _reason(self, one: _Open, step: _Step) -> str:
        """Why no item can be made of a failed call; empty where one can."""
        if one.call.left_out:
            return one.call.left_out
        if not one.call.rendered().strip():
            return "the call is empty"
        if not _joined(self._context.goal) and not self._settings.goal:
            return "no user's message comes before it (--goal TEXT gives one)"
        others = sum(len(text) for text in _beside(one, step))
        if step.cut or step.before + others > self._settings.max_context:
            return f"its context has more than {self._settings.max_context} characters (--max-context)"
        return ""

    def _settle(self, following: Sequence[Call] | None) -> None:
        """Say of the waiting failures how the next turn repeats them."""
        for one, result, said_by, step, context, before in self._waiting:
            again = repeated(one.call, following)
            self._failures.append(_Failure(one, result, said_by, context, before, step, again))
        self._waiting = []

    def _note(self, one: _Open, fate: str, why: str, item_id: str = "") -> Note:
        shown = "" if one.result is None else one.result.content[:_SHOWN]
        return Note(one.place, "call", fate, why, self.name, item_id, f"{one.call.name}: {shown}")

    def _item(self, failure: _Failure) -> Item:
        one, settings = failure.open, self._settings
        call, result, texts = one.call, failure.result, settings.texts
        text, tool = call.rendered(), call.name
        observation = result.content if result.content.strip() else texts.empty
        neutral = success = None
        if settings.counterfactuals == "auto":
            neutral = self._answers.neutral(tool, result.content)
            success = self._answers.success(tool, one.number, result.content, neutral)
        neutral_from: Origin = "template" if neutral is None else "log"
        success_from: Origin = "template" if success is None else "log"
        pairs = failure.context.shown[: failure.before]
        others = [other for other in failure.step.calls if other is not one]
        if others:
            pairs = [*pairs, _beside(one, failure.step)]
        again, alike = failure.repeated
        return Item(
            item_id=f"{self.name}: call {one.number}",
            env=f"log (neutral: {neutral_from}, success: {success_from})",
            task_id=self.name,
            template=self._format,
            step_index=len(pairs),
            error_type=result.error_type or UNKNOWN,
            system_prompt=_joined(failure.context.system),
            goal=_joined(failure.context.goal) or (settings.goal or ""),
            prefix_actions=tuple(own for own, _ in pairs),
            prefix_observations=tuple(other for _, other in pairs),
            failed_action=text,
            obs_fail=observation,
            obs_fail_terse=texts.terse,
            obs_fail_echo=texts.echoed(observation, text),
            obs_success=texts.success if success is None else success,
            obs_neutral=texts.neutral if neutral is None else neutral,
            tool=tool,
            meta={
                FRAME: "{observation}",
                "format": self._format,
                "place": one.place,
                "call": {"name": tool, "arguments": _shallow(call.arguments), "id": call.id},
                "tools": list(self._tools),
                "turn_text": _joined(failure.step.texts),
                "parallel_calls": len(others),
                "failed_by": failure.said_by,
                "fail_from": "log" if result.content.strip() else "template",
                "neutral_from": neutral_from,
                "success_from": success_from,
                "terse_from": "template",
                "echo_from": "template",
                "repeated_next": again,
                "repeat_similarity": alike,
                _OTHER_CALLS: [],
            },
        )


def _beside(one: _Open, step: _Step) -> tuple[str, str]:
    """The turn's text with its other calls, and their results; both empty for a call that is alone."""
    others = [other for other in step.calls if other is not one]
    if not others:
        return "", ""
    own = _joined([*step.texts, *(other.call.rendered() for other in others)])
    return own, _joined([other.result.content for other in others if other.result is not None])


def _joined(texts: Sequence[str]) -> str:
    return "\n".join(text for text in texts if text.strip())


def _shallow(value: Any) -> Any:
    """The arguments, or their JSON text where they are nested deeper than an item file takes."""
    level, depth = [value], 0
    while level:
        if depth > _DEPTH:
            return canonical(Call("", value))
        inner = (
            one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list))
        )
        level = [each for one in inner for each in one]
        depth += 1
    return value
