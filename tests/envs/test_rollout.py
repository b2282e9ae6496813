"""The loop: every kind of step and every end, with policies that are told what to say; nothing is lost."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.base import Action, Task, WrongAction
from envs.coderepair import CodeRepair
from envs.coderepair.problems import Problem, bundled_problems
from envs.errors import InputError
from envs.harness import HARNESSES, Ban, Request
from envs.rollout import Reply, Rollout, Step, Stop, first_wrong, run
from envs.sandbox import Limits, Sandbox
from envs.toolshed import Toolshed
from envs.toolshed.calls import parse_call
from envs.toolshed.world import World
from tests.rollout_cases import PHRASES, saying, streams

SHED = Toolshed()
DOUBLE = Problem(
    "code-9001", "Double a number.", "def double(x):\n    return 2 * x", ("assert double(2) == 4",), ()
)
LOOK = "day_agenda(day='2027-03-17')"
UNREADABLE = "[error] The reply could not be read as a tool call: it is not one expression."


@pytest.fixture(scope="module")
def repair() -> Iterator[CodeRepair]:
    with Sandbox(Limits(cpu_s=1, wall_s=10)) as sandbox:
        yield CodeRepair(sandbox, [DOUBLE, *bundled_problems()[:5]])


@pytest.fixture(scope="module")
def task() -> Task[World]:
    """A task of one call: plan a reminder."""
    return SHED.rollout_tasks(1, streams(0))[0]


def rolled(task: Task[World], *texts: str, harness: str = "verbatim", max_steps: int = 9) -> Rollout[World]:
    return run(SHED, task, HARNESSES[harness], PHRASES, saying(texts), min(max_steps, len(texts)))


def test_a_step_records_everything_about_it(task: Task[World]) -> None:
    rollout = rolled(task, f"\nAction: `{LOOK}`\nok?", "drop_meetin('mt-1')")
    assert rollout.steps == (
        Step(
            index=0,
            given=False,
            raw=f"\nAction: `{LOOK}`\nok?",
            action=LOOK,
            canonical=LOOK,
            kind="ok",
            error_type=None,
            tool="day_agenda",
            observation="nothing booked",
            stop="end_of_turn",
            solved=False,
            n_bans=0,
            extraction=("label removed", "code marks removed", "text removed"),
            about={"left": 1},
        ),
        Step(
            index=1,
            given=False,
            raw="drop_meetin('mt-1')",
            action="drop_meetin('mt-1')",
            canonical="drop_meetin('mt-1')",
            kind="failed",
            error_type="no_such_tool",
            tool="drop_meetin",
            observation="[error] The desk has no tool named drop_meetin.",
            stop="end_of_turn",
            solved=False,
            n_bans=0,
            about={"left": 0},
        ),
    )
    assert rollout.end == "step_limit" and rollout.task == task
    assert rollout.steps[0].about == {"left": 1}  # which equality of steps includes


@pytest.mark.parametrize(
    ("text", "stop", "kind", "error_type"),
    [
        (LOOK, "end_of_turn", "ok", None),
        (LOOK, "token_limit", "ok", None),
        ("drop_meeting(ref='mt-0')", "stop_text", "failed", "meeting_unknown"),
        ("drop_meetin(ref='mt-0')", "stop_text", "failed", "no_such_tool"),
        ("", "end_of_turn", "empty", "unparsable"),
        ("\n\n", "token_limit", "empty", "unparsable"),
        ("I will look.", "end_of_turn", "prose", "unparsable"),
        ("I will look and", "token_limit", "prose", "unparsable"),
        ("drop_meeting(ref='mt", "token_limit", "truncated", "unparsable"),
        ("drop_meeting(ref='mt", "special_token", "truncated", "unparsable"),
        ("drop_meet", "token_limit", "truncated", "unparsable"),
        ("drop_meeting(ref=mt-7)", "end_of_turn", "unparsable", "unparsable"),
    ],
)
def test_every_reply_is_a_step_whose_observation_goes_back(
    text: str, stop: Stop, kind: str, error_type: str | None, task: Task[World]
) -> None:
    asked: list[Request] = []
    policy = saying([text, text], stop, asked)
    rollout = run(SHED, task, HARNESSES["verbatim"], PHRASES, policy, max_steps=2)
    first = rollout.steps[0]
    assert (first.kind, first.error_type, first.stop, first.raw) == (kind, error_type, stop, text)
    assert first.observation and len(rollout.steps) == 2
    assert asked[1].messages[-2:] == (
        {"role": "assistant", "content": first.action},
        {"role": "user", "content": f"Seen: {first.observation}"},
    )


def test_a_solved_task_ends_the_rollout_at_once(task: Task[World]) -> None:
    rollout = run(
        SHED, task, HARNESSES["drop"], PHRASES, saying([LOOK, task.gold[0].text, LOOK]), max_steps=9
    )
    assert rollout.end == "solved" and [step.solved for step in rollout.steps] == [False, True]


def test_done_ends_an_unsolved_rollout(task: Task[World]) -> None:
    rollout = rolled(task, "done()", LOOK)
    (step,) = rollout.steps
    assert (rollout.end, step.kind, step.error_type, step.solved) == ("done", "done", None, False)


def test_a_task_in_which_too_much_was_done_is_never_solved(task: Task[World]) -> None:
    gold = task.gold[0].text
    rollout = rolled(task, gold.replace("2027", "2028"), gold, gold, "done()")
    assert rollout.end == "done" and not any(step.solved for step in rollout.steps)
    assert [step.kind for step in rollout.steps] == ["ok", "ok", "ok", "done"]


@pytest.mark.parametrize(("stop", "kind"), [("ban_exhausted", "banned_out"), ("no_room", "no_room")])
def test_a_policy_that_runs_out_of_words_or_room_ends_the_rollout_and_does_nothing(
    task: Task[World], stop: Stop, kind: str
) -> None:
    replies = iter([Reply("drop_meetin('mt-1')", "end_of_turn"), Reply(task.gold[0].text, stop, {"n": 3})])
    rollout = run(SHED, task, HARNESSES["verbatim+ban"], PHRASES, lambda request: next(replies), max_steps=9)
    last = rollout.steps[-1]
    assert rollout.end == stop and len(rollout.steps) == 2
    assert (last.kind, last.stop, last.error_type, last.observation) == (kind, stop, None, "")
    assert (last.action, last.solved, last.n_bans, last.about) == (task.gold[0].text, False, 1, {"n": 3})


def test_a_given_failure_comes_first_and_costs_no_free_step(task: Task[World]) -> None:
    wrong = first_wrong(SHED, task, random.Random(5))
    asked: list[Request] = []
    policy = saying([wrong.action.text, LOOK], "stop_text", asked)
    rollout = run(SHED, task, HARNESSES["verbatim+ban"], PHRASES, policy, max_steps=2, given=wrong)
    assert [step.given for step in rollout.steps] == [True, False, False]
    assert [step.index for step in rollout.steps] == [0, 1, 2]
    first, second, _ = rollout.steps
    assert (first.stop, first.raw, first.action, first.about) == (
        "given",
        wrong.action.text,
        wrong.action.text,
        {},
    )
    assert first.error_type is not None and second.error_type == first.error_type
    assert (
        dataclasses.replace(first, index=1, given=False, stop="stop_text", n_bans=1, about=second.about)
        == second
    )
    assert asked[0].bans == (Ban(wrong.action.text, True),)
    first = asked[0].opening + 1  # behind the goal
    assert asked[0].messages[first]["content"] == wrong.action.text and asked[0].failed_turns == (first,)
    assert rollout.end == "step_limit"


def test_a_given_action_that_works_is_an_error(task: Task[World]) -> None:
    gold = task.gold[0]
    for action in (gold, Action(LOOK), Action("done()")):
        works = WrongAction(action, "none", "nothing", gold, task.start)
        with pytest.raises(AssertionError, match="'roll-0000' was to fail and did not"):
            run(SHED, task, HARNESSES["verbatim"], PHRASES, saying([]), max_steps=2, given=works)


def test_bans_grow_with_distinct_failures_and_an_empty_reply_is_none(task: Task[World]) -> None:
    texts = ["", "foo(1)", LOOK, "foo(1)", "", " foo(1) ", "bar(2)", "no", LOOK]
    rollout = rolled(task, *texts, harness="abstract+ban")
    assert [step.n_bans for step in rollout.steps] == [0, 0, 1, 1, 1, 1, 1, 2, 3]
    assert [step.n_bans for step in rolled(task, *texts).steps] == [0] * 9


def test_the_history_of_an_abstract_harness_holds_no_failed_call(task: Task[World]) -> None:
    asked: list[Request] = []
    policy = saying(["foo(1)", "no", LOOK], "end_of_turn", asked)
    run(SHED, task, HARNESSES["abstract"], PHRASES, policy, max_steps=3)
    assert [turn["content"] for turn in asked[2].messages[asked[2].opening + 1 :]] == [
        "(try 1: foo failed, no_such_tool)",
        "(try 2: something failed, unparsable)",
    ]


def test_steps_that_failed_leave_the_state_as_it_was(task: Task[World]) -> None:
    failures = ["foo(1)", "", "I will", "drop_meeting(ref='mt-0')", "plan_reminder(note='a'"]
    assert rolled(task, *failures, task.gold[0].text).end == "solved"


def test_half_characters_that_a_call_spells_are_written_out(task: Task[World]) -> None:
    (step,) = rolled(task, "drop_meeting(ref='\\ud800')", max_steps=1).steps
    assert step.kind == "failed"
    (told,) = rolled(task, "plan_reminder(note='\\ud800', day='2027-03-14')", max_steps=1).steps
    assert told.kind == "ok" and told.observation == "Will remind: \\ud800"


def test_a_rollout_of_no_steps_is_refused(task: Task[World]) -> None:
    with pytest.raises(InputError, match="at least 1 step, not 0"):
        run(SHED, task, HARNESSES["verbatim"], PHRASES, saying([]), max_steps=0)


@settings(max_examples=100, deadline=None)
@given(
    texts=st.lists(
        st.one_of(st.text(), st.sampled_from([LOOK, "done()", "drop_meeting(ref='mt"])), min_size=1
    )
)
def test_no_reply_is_lost_whatever_it_says(task: Task[World], texts: list[str]) -> None:
    rollout = rolled(task, *texts, harness="verbatim+ban", max_steps=50)
    assert [step.raw for step in rollout.steps] == texts[: len(rollout.steps)]
    assert rollout.end == "step_limit" or rollout.steps[-1].kind == "done"


def test_gold_programs_solve_their_tasks(repair: CodeRepair) -> None:
    for task in repair.rollout_tasks(6, streams(2)):
        policy = saying(["Let me think.", f"Here it is:\n```python\n{task.gold[0].text}\n```\nIt works."])
        rollout = run(repair, task, HARNESSES["verbatim+ban"], PHRASES, policy, max_steps=3)
        assert rollout.end == "solved"
        assert [(step.kind, step.action) for step in rollout.steps] == [
            ("prose", "Let me think."),
            ("ok", task.gold[0].text),
        ]


@pytest.mark.parametrize(
    ("text", "stop", "kind", "error_type"),
    [
        ("def double(x):\n    return x", "end_of_turn", "failed", "test_failure"),
        ("def double(x):\n    return y", "end_of_turn", "failed", "runtime_error"),
        ("return 2", "end_of_turn", "failed", "syntax_error"),
        ("import os\nos._exit(0)", "end_of_turn", "failed", "exited"),
        ("", "end_of_turn", "empty", "runtime_error"),
        ("```python\n", "token_limit", "empty", "runtime_error"),
        ("It doubles.", "end_of_turn", "prose", "syntax_error"),
        ("def double(x):\n    return 2 *", "token_limit", "truncated", "syntax_error"),
        ("def double(x)\n    return 2", "end_of_turn", "unparsable", "syntax_error"),
    ],
)
def test_every_program_is_a_step_with_an_observation(
    text: str, stop: Stop, kind: str, error_type: str, repair: CodeRepair
) -> None:
    task = next(task for task in repair.rollout_tasks(6, streams(2)) if task.task_id == DOUBLE.task_id)
    (step,) = run(repair, task, HARNESSES["verbatim"], PHRASES, saying([text], stop), max_steps=1).steps
    assert (step.kind, step.error_type, step.tool) == (kind, error_type, None)
    assert step.observation


def test_a_given_program_fails_first(repair: CodeRepair) -> None:
    for index, task in enumerate(repair.rollout_tasks(3, streams(2))):
        wrong = first_wrong(repair, task, random.Random(index))
        assert repair.clean(wrong.action.text) == wrong.action
        policy = saying([task.gold[0].text])
        rollout = run(repair, task, HARNESSES["verbatim+ban"], PHRASES, policy, max_steps=1, given=wrong)
        first, second = rollout.steps
        assert first.given and first.error_type is not None and not first.solved
        assert rollout.end == "solved" and second.n_bans == 1


def test_a_task_without_a_wrong_action_is_refused(repair: CodeRepair) -> None:
    task = next(task for task in repair.rollout_tasks(6, streams(2)) if task.task_id == DOUBLE.task_id)
    nothing = dataclasses.replace(task, gold=(Action("pass"),))
    with pytest.raises(InputError, match="No wrong action is known for the task 'code-9001'"):
        first_wrong(repair, nothing, random.Random(0))


def test_tools_of_steps_are_those_their_calls_name() -> None:
    for task in SHED.rollout_tasks(12, streams(1)):
        policy = saying(gold.text for gold in task.gold)
        rollout = run(SHED, task, HARNESSES["drop+ban"], PHRASES, policy, max_steps=6)
        assert [step.tool for step in rollout.steps] == [parse_call(gold.text).tool for gold in task.gold]
        assert all(step.canonical == SHED.canonical(step.action) for step in rollout.steps)
