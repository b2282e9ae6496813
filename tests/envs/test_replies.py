"""How raw replies are read: cleaned, ended, classified, spelt canonically, and how widely they may be banned."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.agent import EDITS, AgentEnvironment
from envs.base import Action
from envs.coderepair import CodeRepair, bundled_problems
from envs.coderepair.replies import EXAMPLE
from envs.sandbox import Limits, Sandbox
from envs.toolshed import Toolshed
from envs.toolshed.tools import TOOLS
from envs.toolshed.world import make_world
from tests.rollout_cases import streams

SHED = Toolshed()
CALL = "drop_meeting(ref='mt-7')"


@pytest.fixture(scope="module")
def repair() -> Iterator[CodeRepair]:
    with Sandbox(Limits(cpu_s=1, wall_s=10)) as sandbox:
        environment: AgentEnvironment[object] = CodeRepair(sandbox)
        assert isinstance(environment, CodeRepair)
        yield environment


@pytest.mark.parametrize(
    "raw",
    [
        CALL,
        f"\n\n  {CALL}  \nand then some words",
        f"`{CALL}`",
        f"```\n{CALL}\n```",
        f"```python\n{CALL}\n```",
        f"```python {CALL}```",
        f"Action: {CALL}",
        f"TOOL : `{CALL}`",
        f"call:\n{CALL}",
        f"Action: Call: {CALL}",
        f"`Action: {CALL}`\r\n",
    ],
)
def test_cleaning_leaves_the_call_of_the_first_line_that_holds_something(raw: str) -> None:
    assert SHED.clean(raw) == Action(CALL)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("", ""),
        (" \n\t\n", ""),
        ("```python\n```", ""),
        ("Action:", ""),
        ("you: done()", "you: done()"),
        ("toolbox(a=1)", "toolbox(a=1)"),
        ("save_document(text='`x`', location='a')", "save_document(text='`x`', location='a')"),
        ("drop_meeting(", "drop_meeting("),
        ("drop_meeting(ref='mt-7'\nI will", "drop_meeting(ref='mt-7'"),
    ],
)
def test_cleaning_takes_nothing_else_away(raw: str, text: str) -> None:
    assert SHED.clean(raw) == Action(text)


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("", False),
        ("\n", False),
        ("\n\n  \n", False),
        (CALL, False),
        (f"{CALL}\n", True),
        (f"\n{CALL}\n", True),
        (f"{CALL}\nmore", True),
        ("```python\n", False),
        (f"```python\n{CALL}", False),
        (f"```python\n{CALL}\n", True),
        ("Action:\n", False),
    ],
)
def test_a_line_break_ends_a_turn_only_after_something_was_said(text: str, ended: bool) -> None:
    assert SHED.stops(text) is ended


@pytest.mark.parametrize(
    ("text", "cut_off", "kind"),
    [
        ("", False, "empty"),
        ("", True, "empty"),
        (CALL, False, "call"),
        (CALL, True, "call"),
        ("done()", False, "call"),
        ("drop_meetin(ref='mt-7')", False, "call"),
        ("drop_meeting('mt-7', 3, x=[1, 2])", False, "call"),
        ("I will strike the meeting.", False, "prose"),
        ("I will strike the meeting and then", True, "prose"),
        ("Sure (as you wish): drop_meeting(ref='mt-7')", False, "prose"),
        ("drop_meetin(ref='mt", False, "prose"),
        ("drop_meeting(ref='mt-7'", False, "truncated"),
        ("drop_meeting(ref='mt", True, "truncated"),
        ("book_meeting(name='a', guests=['b')", False, "truncated"),
        ("drop_meeting (ref='mt", False, "truncated"),
        ("drop_meeting", True, "truncated"),
        ("drop_mee", True, "truncated"),
        ("drop_mee", False, "prose"),
        ("drop_meeting", False, "unparsable"),
        ("drop_meeting(ref=mt-7)", False, "unparsable"),
        ("drop_meeting(ref='mt-7') and done()", False, "unparsable"),
        ("plan_reminder(note='it's cold', day='2027-03-14')", False, "unparsable"),
        ("done", False, "unparsable"),
    ],
)
def test_a_reply_that_is_no_call_has_a_kind(text: str, cut_off: bool, kind: str) -> None:
    assert SHED.reading(Action(text), cut_off) == kind


@pytest.mark.parametrize(
    "spellings",
    [
        (
            "plan_reminder(note='x', day='d')",
            "plan_reminder(day = \"d\",note='x')",
            "plan_reminder('x', 'd')",
            "plan_reminder('x', day='d')  # again",
        ),
        (
            "convert_amount(amount=1, unit='m', target='yd')",
            "convert_amount(1.0, 'm', 'yd')",
            "convert_amount(target='yd', unit='m', amount=1e0)",
        ),
        ("foo(1, b=2, a=3)", "foo(1,a=3,b=2)"),
        ("I  will\tdo it", "I will do it"),
        ("drop_meeting(ref='mt", "drop_meeting(ref='mt "),
    ],
)
def test_equal_actions_in_other_spelling_have_one_form(spellings: tuple[str, ...]) -> None:
    assert len({SHED.canonical(text) for text in spellings}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("plan_reminder(note='x', day='d')", "plan_reminder(note='d', day='x')"),
        ("plan_reminder(note='x  y', day='d')", "plan_reminder(note='x y', day='d')"),
        ("foo(1)", "foo(1.0)"),  # of an unknown tool no parameter is known to be an amount
        ("foo(1)", "foo(True)"),
        ("convert_amount(amount=True)", "convert_amount(amount=1)"),
        ("convert_amount(amount='1')", "convert_amount(amount=1)"),
        ("drop_meeting(ref=['a'])", "drop_meeting(ref=('a',))"),
        ("drop_meeting('a', ref='a')", "drop_meeting(ref='a')"),  # given twice: another error
        ("drop_meeting('a', 'b')", "drop_meeting('b', 'a')"),
        (
            "f('a\u3000b')\u3000",
            "f('a b')",
        ),  # the first cannot be read: white space that Python does not know
    ],
)
def test_different_actions_have_different_forms(one: str, other: str) -> None:
    assert SHED.canonical(one) != SHED.canonical(other)


def test_the_canonical_form_of_a_readable_call_means_the_same() -> None:
    world = make_world(random.Random(2))
    texts = [
        "convert_amount(12, 'm', 'yd')",
        "day_agenda('2027-03-14')",
        "foo(x=1)",
        "open_document(text='a')",
    ]
    for text in texts:
        canonical = SHED.canonical(text)
        assert canonical != text or "x=1" in text or "text" in text
        assert SHED.execute(world, Action(canonical)) == SHED.execute(world, Action(text))


def test_a_failed_call_that_ends_a_valid_one_is_banned_as_a_whole_only() -> None:
    wrong, right = "reminder(note='x', day='2027-03-14')", "plan_reminder(note='x', day='2027-03-14')"
    assert wrong in right and not SHED.ban_everywhere(wrong)
    assert SHED.ban_everywhere("reminders(note='x', day='2027-03-14')")


def test_a_failed_text_that_begins_a_valid_call_is_banned_as_a_whole_only() -> None:
    for text in (CALL[:-1], "drop_meeting(ref='", "drop_meeting", "drop", "I", "'"):
        assert text in CALL or text == "I"
        assert not SHED.ban_everywhere(text)


def test_what_is_banned_everywhere_stands_in_no_valid_call() -> None:
    calls = {gold.text for task in SHED.rollout_tasks(48, streams(3)) for gold in task.gold}
    assert all(SHED.ban_everywhere(text) for text in calls)
    for task in SHED.rollout_tasks(24, streams(3)):
        for wrong in SHED.wrong_actions(task.start, task.gold[0], random.Random(1)):
            text = wrong.action.text
            assert SHED.ban_everywhere(text) and not any(text in call for call in calls - {text})
    # Cut at any place, a call is the beginning of a valid one: none of these may be banned everywhere.
    for call in calls:
        assert not any(SHED.ban_everywhere(call[:length]) for length in range(1, len(call)))


def test_no_tool_is_named_like_the_end_of_another() -> None:
    assert not [(one, other) for one in TOOLS for other in TOOLS if one != other and other.endswith(one)]


PROGRAM = "def double(x):\n    return 2 * x"


@pytest.mark.parametrize(
    "raw",
    [
        PROGRAM,
        f" {PROGRAM}\n\n",
        f"```python\n{PROGRAM}\n```",
        f"Here it is:\n```py\n{PROGRAM}\n```\nIt doubles x.",
        f"```\n{PROGRAM}",
        f"```python \n{PROGRAM}\n``",
    ],
)
def test_cleaning_leaves_the_program_inside_a_fence(raw: str, repair: CodeRepair) -> None:
    assert repair.clean(raw) == Action(PROGRAM)


@pytest.mark.parametrize(
    ("text", "ended"),
    [
        ("", False),
        (f"{PROGRAM}\n\n\n", False),
        ("```", False),
        (f"```python\n{PROGRAM}\n", False),
        (f"```python\n{PROGRAM}\n``", False),
        (f"```python\n{PROGRAM}\n```", True),
        (f"Look:\n```\n{PROGRAM}\n```\n", True),
    ],
)
def test_a_closing_fence_ends_a_program(text: str, ended: bool, repair: CodeRepair) -> None:
    assert repair.stops(text) is ended


@pytest.mark.parametrize(
    ("text", "cut_off", "kind"),
    [
        ("", False, "empty"),
        (PROGRAM, True, "call"),
        ("double", False, "call"),
        ("return 2", False, "call"),  # parses, and does not compile: for the sandbox to say
        ("This function doubles x.", False, "prose"),
        ("This function doubles x, so that", True, "prose"),
        ("def double(x:\n    return 2 * x", False, "truncated"),
        ("def double(x):\n    return 2 *", True, "truncated"),
        ("def double(x):\n    return 2 *", False, "unparsable"),
        ("import math\ndef double(x)\n    return 2 * x", False, "unparsable"),
    ],
)
def test_a_reply_that_is_no_program_has_a_kind(
    text: str, cut_off: bool, kind: str, repair: CodeRepair
) -> None:
    assert repair.reading(Action(text), cut_off) == kind


def test_programs_that_differ_in_comments_and_layout_have_one_form(repair: CodeRepair) -> None:
    same = (PROGRAM, "# doubled\ndef double( x ):\n\n        return (2*x)  # twice")
    assert {repair.canonical(text) for text in same} == {PROGRAM}
    broken = ("def double(x)\n    return 2 * x", "def double(x)  # colon\n  return 2 * x")
    assert {repair.canonical(text) for text in broken} == {"def double(x) return 2 * x"}
    assert repair.canonical("def double(x):\n    return x * 2") != PROGRAM


def test_no_program_is_banned_but_as_a_whole(repair: CodeRepair) -> None:
    assert not any(repair.ban_everywhere(text) for text in (PROGRAM, "def", "", "import re"))
    assert repair.tool(Action(PROGRAM)) is None


def test_the_example_of_a_program_is_none_that_a_task_asks_for(repair: CodeRepair) -> None:
    [shown] = repair.demonstrations
    assert shown.steps[0][0] == EXAMPLE
    asserts = shown.goal.split("The asserts:\n")[1].splitlines()
    problem = replace(bundled_problems()[0], tests=tuple(asserts), imports=())
    assert repair.run([(problem, EXAMPLE)])[0].outcome == "passed"
    assert repair.reading(repair.clean(EXAMPLE), False) == "call"
    for problem in bundled_problems():
        assert "shout" not in f"{problem.prompt}{problem.code}{problem.tests}"


def test_tasks_to_act_on_are_those_of_the_pool_with_short_references(repair: CodeRepair) -> None:
    tasks = repair.tasks(96, streams(1))
    assert repair.rollout_tasks(24, streams(1)) == tasks[:24]
    problems = bundled_problems()
    long = max(problems, key=lambda each: len(each.code))
    padded = [
        *problems[:3],
        type(long)("code-9000", long.prompt, f"{long.code}\n{'#' * 420}", long.tests, ()),
    ]
    with Sandbox(Limits(cpu_s=1, wall_s=10)) as sandbox:
        some = CodeRepair(sandbox, padded)
        kept = [task.task_id for task in some.tasks(4, streams(1)) if task.task_id != "code-9000"]
        assert [task.task_id for task in some.rollout_tasks(3, streams(1))] == kept
        with pytest.raises(ValueError, match="There are 3 problems short enough"):
            some.rollout_tasks(4, streams(1))


PIECES = st.sampled_from(
    [
        *("drop_meeting", "(", ")", "ref=", "'mt-7'", ",", " ", "\n", "`", "```", "```python\n", "Action:"),
        *("[", "]", "{", "}", "1", "1e999", "-", "j", "+", "#", "\\", "0x", '"', "f'{", "...", "\t", "\r"),
        *(
            "def f(x):\n",
            "    return x",
            "convert_amount(",
            "amount=",
            "\u3000",
            "\x0c",
            "set()",
            "lambda: 0",
            '"""',
            "~~~\n",
            "\ufeff",
            ">>> ",
            "Here it is:\n",
        ),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=25).map("".join))


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, cut_off=st.booleans())
@example(text=f"f(x={'9' * 400}+1j)", cut_off=False)  # a sum that no float can hold
@example(text=f"f(x=0x{'f' * 3900})", cut_off=False)  # a number that Python does not write in decimals
@example(text="f(b='a\nb', a=1)", cut_off=False)  # readable only once its white space is collapsed
@example(text=f"f({'[' * 150}{']' * 150})", cut_off=True)
@example(text="f(" * 900, cut_off=True)
@example(text="f('\\ud800', '\ud800')", cut_off=False)
@example(text=f"f('{chr(1) * 2000}',  b='x  y', a=1)", cut_off=False)  # its repr is longer than a call may be
def test_no_text_is_too_odd_to_be_read(repair: CodeRepair, text: str, cut_off: bool) -> None:
    for environment in (SHED, repair):
        action = environment.clean(text)
        assert environment.clean(action.text) == action
        found = environment.extract(text)
        assert found.action == action and list(found.edits) == [each for each in EDITS if each in found.edits]
        kind = environment.reading(action, cut_off)
        assert (kind == "empty") == (action.text == "")
        canonical = environment.canonical(action.text)
        assert environment.canonical(canonical) == canonical
        assert environment.canonical(environment.canonical(text)) == environment.canonical(text)
        if kind == "call":
            assert environment.reading(Action(canonical), False) in ("call", "empty")
        if environment.stops(text):
            assert environment.stops(f"{text}x")
            if not environment.stops(text[:-1]):  # a turn ends there; a reply from elsewhere may go on
                assert environment.clean(f"{text}x") == action
        environment.ban_everywhere(action.text)
        environment.tool(action)
    _, outcome = SHED.execute(make_world(random.Random(0)), SHED.clean(text))
    readable = SHED.reading(SHED.clean(text), cut_off) == "call"
    assert readable or (outcome.failure is not None and outcome.failure.error_type == "unparsable")
