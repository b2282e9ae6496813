"""The toolshed environment: text in, next world and outcome out.

Order of checks: the text is a call; it is `done()`; the tool exists; there are not too many values; each
keyword is in the schema and given once; per schema argument: present, then of its type; then whatever the
tool itself refuses.
"""

from __future__ import annotations

import random
from typing import Any

from envs.base import Action, Length, Outcome, Stream, Task, WrongAction
from envs.toolshed import faults, perturb, tasks
from envs.toolshed.calls import Call, parse_call
from envs.toolshed.tools import KIND_NAMES, SYSTEM_PROMPT, TOOLS, Tool, has_kind
from envs.toolshed.world import World

DONE = "done"


class Toolshed:
    """A simulated workspace with twelve typed tools; answers to `envs.base.Environment[World]`."""

    name = "toolshed"
    system_prompt = SYSTEM_PROMPT

    def tasks(self, n: int, stream: Stream) -> tuple[Task[World], ...]:
        """The first n tasks, six templates in rotation, task i from the stream `toolshed-task-i`."""
        return tuple(self._task(index, stream(f"toolshed-task-{index}")) for index in range(n))

    def _task(self, index: int, rng: random.Random) -> Task[World]:
        plan = tasks.make_plan(index, rng)
        gold = tuple(Action(str(call)) for call in plan.calls)
        world = plan.start
        for action in gold:
            world, outcome = self.execute(world, action)
            if outcome.failure is not None:
                raise AssertionError(f"gold action {action.text} failed: {outcome.failure.standard}")
        return Task(f"shed-{index:04d}", plan.template, plan.goal, gold, plan.start, world)

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
