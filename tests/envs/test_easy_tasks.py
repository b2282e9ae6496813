"""Tasks to act on: one call or several in turn, every value of the easy ones in the goal, a strict check at the end."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace

import pytest

from envs.agent import AgentEnvironment
from envs.base import Action, Task
from envs.harness import HARNESSES
from envs.rollout import first_wrong, run
from envs.toolshed import Toolshed
from envs.toolshed.calls import parse_call
from envs.toolshed.easy import EASY
from envs.toolshed.tasks import PAPER_TEMPLATES
from envs.toolshed.world import Document, Person, World
from experiments.run.seeds import py_stream
from tests.rollout_cases import PHRASES, saying, streams

SHED = Toolshed()
EXTRA = "plan_reminder(note='nobody asked', day='2027-03-14')"
# What else could be done instead of, or beside, the one call that each easy task asks for.
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
        name for pair in zip(EASY, PAPER_TEMPLATES, strict=True) for name in pair
    ]
    assert [task.template for task in tasks] == [task.template for task in tasks[:12]] * 4
    assert [len(task.gold) == 1 for task in tasks] == [True, False] * 24
    assert [task.task_id for task in tasks] == [f"roll-{index:04d}" for index in range(48)]


def test_rollout_tasks_and_what_stands_before_them_are_what_they_were() -> None:
    drawn = SHED.rollout_tasks(24, lambda name: py_stream(0, name))
    text = repr((drawn, SHED.demonstrations, SHED.system_prompt))
    assert (
        hashlib.sha256(text.encode()).hexdigest()
        == "b79edc790f18dbd8359829fd1e58a729574c62ddecf81bec23f23ab78e91a18f"
    )  # as the versions with six templates drew them: recorded rollouts are of these


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


def test_a_copy_of_a_demonstration_shows(tasks: tuple[Task[World], ...]) -> None:
    calls = [parse_call(action) for shown in SHED.demonstrations for action, _ in shown.steps]
    values = [value for call in calls for _, value in call.keywords]
    for seed in range(5):
        for task in SHED.rollout_tasks(48, streams(seed)):
            assert not any(value in f"{task.goal}{task.gold}{task.start}" for value in values)
            for call in calls:
                after, _ = SHED.execute(task.start, Action(str(call)))
                assert not SHED.solved(task, after)


def test_demonstrations_are_read_as_calls_and_answered_as_the_tools_answer() -> None:
    for shown in SHED.demonstrations:
        for action, observation in shown.steps:
            assert SHED.clean(action) == Action(action) and SHED.reading(Action(action), False) == "call"
            call = parse_call(action)
            world = SHED.rollout_tasks(1, streams(0))[0].start
            person = Person("Ottilie Zander", "ottilie.zander@fernhall.example", "visitors")
            attic = Document("attic/clock.txt", "it is wound")
            furnished = replace(world, people=(*world.people, person), documents=(*world.documents, attic))
            assert SHED.execute(furnished, Action(str(call)))[1].result == observation
