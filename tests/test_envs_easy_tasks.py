"""Tasks to act on: one call or several in turn, every value of the easy ones in the goal, a strict check at the end."""

from __future__ import annotations

import random

import pytest

from envs.agent import AgentEnvironment
from envs.base import Action, Task
from envs.harness import HARNESSES
from envs.rollout import first_wrong, run
from envs.toolshed import Toolshed
from envs.toolshed.calls import parse_call
from envs.toolshed.easy import EASY
from envs.toolshed.replies import EXAMPLE
from envs.toolshed.tasks import TEMPLATES
from envs.toolshed.tools import SYSTEM_PROMPT
from envs.toolshed.world import World
from tests.rollout_cases import PHRASES, saying, streams

SHED = Toolshed()
EXTRA = "plan_reminder(note='nobody asked', day='2027-03-14')"
# What else could be done instead of, or beside, the one call that each easy errand asks for.
AMISS = {
    "remind": lambda gold: [gold.replace("2027", "2028")],
    "strike": lambda gold: [gold, EXTRA],
    "discard": lambda gold: ["remove_document(location='boiler/settings.txt')"],
    "write_down": lambda gold: [gold.replace(".txt", ".md")],
    "send": lambda gold: [gold, gold],
    "book": lambda gold: [gold.replace("guests=['", "guests=[], name2=['")],
}


@pytest.fixture(scope="module")
def tasks() -> tuple[Task[World], ...]:
    shed: AgentEnvironment[World] = SHED  # the class answers to the protocol (checked by mypy too)
    return shed.rollout_tasks(48, streams(3))


def after(task: Task[World], calls: list[str]) -> World:
    world = SHED.reset(task)
    for text in calls:
        world, _ = SHED.execute(world, Action(text))
    return world


def test_errands_of_one_call_alternate_with_those_of_several(tasks: tuple[Task[World], ...]) -> None:
    assert [task.template for task in tasks[:12]] == [
        name for pair in zip(EASY, TEMPLATES, strict=True) for name in pair
    ]
    assert [task.template for task in tasks] == [task.template for task in tasks[:12]] * 4
    assert [len(task.gold) == 1 for task in tasks] == [True, False] * 24
    assert [task.task_id for task in tasks] == [f"roll-{index:04d}" for index in range(48)]


def test_a_larger_number_only_adds_tasks_and_each_has_its_own_stream(tasks: tuple[Task[World], ...]) -> None:
    assert SHED.rollout_tasks(7, streams(3)) == tasks[:7]
    assert SHED.rollout_tasks(7, streams(4)) != tasks[:7]
    names: list[str] = []

    def stream(name: str) -> random.Random:
        names.append(name)
        return random.Random(name)

    SHED.rollout_tasks(3, stream)
    assert names == ["toolshed-rollout-0", "toolshed-rollout-1", "toolshed-rollout-2"]


def test_the_goal_of_an_easy_errand_names_every_value_as_the_tool_wants_it(
    tasks: tuple[Task[World], ...],
) -> None:
    for task in tasks[::2]:
        (gold,) = task.gold
        for _, value in parse_call(gold.text).keywords:
            for each in value if isinstance(value, list) else [value]:
                assert each in task.goal, (task.goal, each)


def test_every_task_changes_the_world_it_starts_in(tasks: tuple[Task[World], ...]) -> None:
    for task in tasks:
        assert task.wanted != task.start
        assert not SHED.solved(task, task.start)


def test_the_gold_policy_solves_every_task_and_stops_there(tasks: tuple[Task[World], ...]) -> None:
    for task in tasks:
        policy = saying(gold.text for gold in task.gold)
        rollout = run(SHED, task, HARNESSES["verbatim+ban"], PHRASES, policy, max_steps=6)
        assert rollout.end == "solved"
        assert [step.kind for step in rollout.steps] == ["ok"] * len(task.gold)
        assert [step.solved for step in rollout.steps] == [False] * (len(task.gold) - 1) + [True]


def test_a_task_in_which_something_else_changed_too_is_not_solved(tasks: tuple[Task[World], ...]) -> None:
    for task in tasks:
        gold = [each.text for each in task.gold]
        assert SHED.solved(task, after(task, gold))
        assert not SHED.solved(task, after(task, [EXTRA, *gold]))


@pytest.mark.parametrize("template", list(EASY))
def test_an_easy_errand_done_amiss_is_not_solved(template: str, tasks: tuple[Task[World], ...]) -> None:
    mine = [task for task in tasks if task.template == template]
    assert len(mine) == 4
    for task in mine:
        assert not SHED.solved(task, after(task, AMISS[template](task.gold[0].text)))


def test_the_first_call_of_every_task_has_wrong_versions_and_all_are_drawn(
    tasks: tuple[Task[World], ...],
) -> None:
    operators = set()
    for index, task in enumerate(tasks):
        wrong = first_wrong(SHED, task, random.Random(index))
        assert wrong == first_wrong(SHED, task, random.Random(index))
        world, outcome = SHED.execute(task.start, wrong.action)
        assert not outcome.ok and world == task.start
        assert SHED.clean(wrong.action.text) == wrong.action  # nothing of it is lost on the way
        operators.add(wrong.operator)
    assert len(operators) >= 7


def test_a_copy_of_the_example_shows_and_does_no_harm(tasks: tuple[Task[World], ...]) -> None:
    values = [value for _, value in parse_call(EXAMPLE).keywords]
    for seed in range(5):
        for task in SHED.rollout_tasks(48, streams(seed)):
            assert not any(value in f"{task.goal}{task.gold}{task.start}" for value in values)
            world, outcome = SHED.execute(task.start, Action(EXAMPLE))
            assert world == task.start
            assert outcome.failure is not None and outcome.failure.error_type == "person_unknown"


def test_the_prompt_of_rollouts_is_the_system_prompt_and_one_reply() -> None:
    assert SHED.rollout_prompt == f"{SYSTEM_PROMPT}\n\nWrite the tool call, and no other words:\n{EXAMPLE}"
    assert SHED.system_prompt == SYSTEM_PROMPT
    assert SHED.clean(EXAMPLE) == Action(EXAMPLE) and SHED.reading(Action(EXAMPLE), False) == "call"
