"""The toolshed environment: text in, next world and outcome out.

Order of checks: the text is a call; it is `done()`; the tool exists; there are not too many values; each
keyword is in the schema and given once; per schema argument: present, then of its type; then whatever the
tool itself refuses.
"""

from __future__ import annotations

import random
from typing import Any

from envs.agent import Extraction, Reading
from envs.base import Action, Length, Outcome, Stream, Task, WrongAction
from envs.toolshed import easy, extraction, faults, perturb, replies, tasks
from envs.toolshed.calls import Call, parse_call
from envs.toolshed.replies import DONE
from envs.toolshed.tasks import Plan
from envs.toolshed.tools import KIND_NAMES, SYSTEM_PROMPT, TOOLS, Tool, has_kind
from envs.toolshed.world import World


class Toolshed:
    """A simulated workspace with twelve typed tools; answers to `envs.agent.AgentEnvironment[World]`."""

    name = "toolshed"
    system_prompt = SYSTEM_PROMPT
    demonstrations = replies.DEMONSTRATIONS

    def tasks(self, n: int, stream: Stream) -> tuple[Task[World], ...]:
        """The first n tasks, the paper's six templates in rotation, task i from the stream `toolshed-task-i`."""
        plans = (tasks.make_plan(index, stream(f"toolshed-task-{index}")) for index in range(n))
        return tuple(self._task(f"shed-{index:04d}", plan) for index, plan in enumerate(plans))

    def varied_tasks(self, n: int, stream: Stream) -> tuple[Task[World], ...]:
        """The first n tasks of all templates in rotation; those of the paper's templates are tasks of `tasks` too.

        The others are named `more-…` and drawn from the streams `toolshed-more-i`.
        """
        paper, more = tasks.PAPER_TEMPLATES, tasks.MORE_TEMPLATES
        found = []
        for index in range(n):
            block, place = divmod(index, len(paper) + len(more))
            if place < len(paper):
                number = block * len(paper) + place
                plan = tasks.make_plan(number, stream(f"toolshed-task-{number}"))
                found.append(self._task(f"shed-{number:04d}", plan))
            else:
                number = block * len(more) + place - len(paper)
                plan = tasks.make_plan(number, stream(f"toolshed-more-{number}"), more)
                found.append(self._task(f"more-{number:04d}", plan))
        return tuple(found)

    def rollout_tasks(self, n: int, stream: Stream) -> tuple[Task[World], ...]:
        """The first n tasks, of one call and of several in turn, task i from the stream `toolshed-rollout-i`."""
        plans = (easy.rollout_plan(index, stream(f"toolshed-rollout-{index}")) for index in range(n))
        return tuple(self._task(f"roll-{index:04d}", plan) for index, plan in enumerate(plans))

    def _task(self, task_id: str, plan: Plan) -> Task[World]:
        gold = tuple(Action(str(call)) for call in plan.calls)
        world = plan.start
        for action in gold:
            world, outcome = self.execute(world, action)
            if outcome.failure is not None:
                raise AssertionError(f"gold action {action.text} failed: {outcome.failure.standard}")
        return Task(task_id, plan.template, plan.goal, gold, plan.start, world)

    def reset(self, task: Task[World]) -> World:
        """The world a task starts in."""
        return task.start

    def execute(self, state: World, action: Action) -> tuple[World, Outcome]:
        """The next world and what came of the action; a failure leaves the world as it was."""
        try:
            call = parse_call(action.text)
            if call == Call(DONE):
                return state, Outcome(done=True)
            tool = _tool(call)
            after, answer = tool.effect(state, _bind(tool, call))
        except faults.ToolFault as fault:
            return state, Outcome(failure=fault.failure)
        return after, Outcome(result=answer)

    def observe(
        self, action: Action, outcome: Outcome, length: Length = "standard", echo: bool = False
    ) -> str:
        """The observation as text; `echo` adds the call to a failure."""
        if outcome.failure is None:
            return outcome.result
        text = outcome.failure.text(length)
        return f"{text}\nThis was the call: {action.text}" if echo else text

    def acknowledge(self) -> str:
        """A valence-free observation: the call arrived, nothing is said of how it went."""
        return "The desk has noted this call."

    def wrong_actions(self, state: World, gold: Action, rng: random.Random) -> tuple[WrongAction[World], ...]:
        """Spoilt versions of a gold call, every applicable operator once, in a fixed order."""
        return perturb.wrong_actions(state, parse_call(gold.text), rng)

    def success_like(self, wrong: WrongAction[World]) -> str:
        """What the wrong call would have been answered, had it worked: its meaning, run where that works."""
        _, outcome = self.execute(wrong.imagined, wrong.meant)
        if outcome.failure is not None:
            raise AssertionError(f"{wrong.meant.text} fails in its own world: {outcome.failure.standard}")
        return outcome.result

    def solved(self, task: Task[World], state: World) -> bool:
        """Whether the world is exactly what the gold calls leave behind: all was done, and nothing else."""
        return state == task.wanted

    def extract(self, raw: str, task: Task[World] | None = None) -> Extraction:
        """The first call of a reply, without fences, code marks and a label such as `Action:`, whatever the task."""
        return extraction.extract(raw)

    def clean(self, raw: str, task: Task[World] | None = None) -> Action:
        """The call that `extract` finds."""
        return self.extract(raw, task).action

    def stops(self, text: str, task: Task[World] | None = None) -> bool:
        """Whether a call, or a line that holds something else, is complete."""
        return extraction.ended(text)

    def canonical(self, text: str) -> str:
        """The call with its arguments named, sorted and in one spelling; else white space collapsed."""
        return replies.canonical(text)

    def reading(self, action: Action, cut_off: bool) -> Reading:
        """How a cleaned reply can be read; the beginning of an action is a tool's name before a bracket."""
        return replies.reading(action.text, cut_off)

    def ban_everywhere(self, text: str) -> bool:
        """Whether the text is a whole call that no other valid call can contain."""
        return replies.ban_everywhere(text)

    def tool(self, action: Action) -> str | None:
        """The tool's name as the call writes it, misspelt or not; None for a text that is no call."""
        call = replies.readable(action.text)
        return None if call is None else call.tool


def _tool(call: Call) -> Tool:
    if call.tool not in TOOLS:
        raise faults.no_such_tool(call.tool, TOOLS)
    return TOOLS[call.tool]


def _bind(tool: Tool, call: Call) -> dict[str, Any]:
    """Arguments by name; raises ToolFault for values that the schema does not take."""
    names = [each.name for each in tool.parameters]
    if len(call.positional) > len(names):
        raise faults.too_many_arguments(tool.name, tool.signature)
    given = dict(zip(names, call.positional, strict=False))
    for name, value in call.keywords:
        if name not in names:
            raise faults.argument_unknown(tool.name, name, tool.signature)
        if name in given:
            raise faults.argument_repeated(tool.name, name)
        given[name] = value
    for each in tool.parameters:
        if each.name not in given:
            raise faults.argument_missing(tool.name, each.name, tool.signature)
        value = given[each.name]
        if not has_kind(value, each.kind):
            got = type(value).__name__
            raise faults.wrong_type(tool.name, each.name, KIND_NAMES[each.kind], got, tool.signature)
    return given
