"""Harnesses: one small history in every way of writing it, in full; what is banned, and how widely."""

from __future__ import annotations

import pytest

from envs.base import Action, Task
from envs.errors import InputError
from envs.harness import HARNESSES, Ban, Harness, Past, Request, parse_harnesses, write
from envs.toolshed import Toolshed
from envs.toolshed.world import World
from tests.rollout_cases import PHRASES, streams

SHED = Toolshed()
WORKED = Past("day_agenda(day='2027-03-17')", "nothing booked")
MISSPELT = Past("drop_meetin(ref='mt-7')", "no such tool", "no_such_tool", "drop_meetin")
CUT = Past("drop_meeting(ref='mt", "unreadable", "unparsable")
EMPTY = Past("", "unreadable", "unparsable")
HISTORY = (MISSPELT, WORKED, MISSPELT, EMPTY, CUT)


@pytest.fixture(scope="module")
def task() -> Task[World]:
    return SHED.rollout_tasks(1, streams(0))[0]


def written(name: str, task: Task[World], history: tuple[Past, ...] = HISTORY) -> Request:
    return write(HARNESSES[name], SHED, task, history, PHRASES)


def turns(*contents: tuple[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": content} for role, content in contents)


def step(action: str, observation: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("assistant", action), ("user", f"Seen: {observation}")


SHOWN = (
    ("user", "Mail what attic/clock.txt says to 'ottilie.zander@fernhall.example', with the topic 'clock'."),
    *step("open_document(location='attic/clock.txt')", "it is wound"),
    *step(
        "post_mail(address='ottilie.zander@fernhall.example', topic='clock', text='it is wound')",
        "Mail on clock is under way.",
    ),
    ("user", "Save the text 'lock the shed' in the document 'attic/shed.txt'."),
    *step("save_document(location='attic/shed.txt', text='lock the shed')", "Saved attic/shed.txt."),
    ("user", "Plan the reminder 'wind the clock' for 2031-01-08."),
    *step("plan_reminder(note='wind the clock', day='2031-01-08')", "Will remind: wind the clock"),
)
VERBATIM = (
    *step("drop_meetin(ref='mt-7')", "no such tool"),
    *step("day_agenda(day='2027-03-17')", "nothing booked"),
    *step("drop_meetin(ref='mt-7')", "no such tool"),
    *step("", "unreadable"),
    *step("drop_meeting(ref='mt", "unreadable"),
)
ABSTRACT = (
    ("user", "(try 1: drop_meetin failed, no_such_tool)"),
    *step("day_agenda(day='2027-03-17')", "nothing booked"),
    ("user", "(try 2: drop_meetin failed, no_such_tool)"),
    ("user", "(try 3: something failed, unparsable)"),
    ("user", "(try 4: something failed, unparsable)"),
)
DROP = step("day_agenda(day='2027-03-17')", "nothing booked")


@pytest.mark.parametrize(
    ("history", "told", "failed_turns"),
    [
        ("verbatim", VERBATIM, (13, 17, 21)),
        ("verbatim+instr", VERBATIM, (13, 17, 21)),
        ("abstract", ABSTRACT, ()),
        ("drop", DROP, ()),
    ],
)
def test_a_history_is_written_in_full_as_its_harness_writes_it(
    history: str, told: tuple[tuple[str, str], ...], failed_turns: tuple[int, ...], task: Task[World]
) -> None:
    system = SHED.system_prompt
    if history == "verbatim+instr":
        system += "\nDo not send a failed call again."
    wanted = turns(("system", system), *SHOWN, ("user", task.goal), *told)
    assert written(history, task) == Request(wanted, failed_turns, (), 12)
    banned = written(f"{history}+ban", task)
    assert (banned.messages, banned.failed_turns) == (wanted, failed_turns)


def test_the_failed_turns_hold_the_failed_calls(task: Task[World]) -> None:
    request = written("verbatim", task)
    assert [request.messages[turn]["content"] for turn in request.failed_turns] == [
        MISSPELT.action,
        MISSPELT.action,
        CUT.action,
    ]
    assert {request.messages[turn]["role"] for turn in request.failed_turns} == {"assistant"}


@pytest.mark.parametrize("name", [name for name in HARNESSES if name.endswith("+ban")])
def test_bans_are_the_distinct_failed_texts_so_far_and_never_an_empty_one(
    name: str, task: Task[World]
) -> None:
    assert written(name, task).bans == (Ban(MISSPELT.action, True), Ban(CUT.action, False))
    counts = [len(written(name, task, HISTORY[:n]).bans) for n in range(len(HISTORY) + 1)]
    assert counts == [0, 1, 1, 1, 1, 2]


def test_without_a_ban_nothing_is_forbidden(task: Task[World]) -> None:
    for name in HARNESSES:
        assert bool(written(name, task).bans) == name.endswith("+ban")


def test_the_demonstrations_are_the_same_in_every_harness_and_task(task: Task[World]) -> None:
    others = SHED.rollout_tasks(3, streams(5))
    for name in HARNESSES:
        for history in ((), HISTORY):
            for each in (task, *others):
                request = written(name, each, history)
                assert request.messages[1 : request.opening] == turns(*SHOWN)
                assert request.messages[request.opening]["content"] == each.goal
            system = request.messages[0]["content"]
            assert system.startswith(SHED.system_prompt)
            more = system.removeprefix(SHED.system_prompt)
            assert more == ("\nDo not send a failed call again." if "instr" in name else "")


def test_before_anything_failed_all_harnesses_but_the_instruction_write_the_same(task: Task[World]) -> None:
    requests = {name: written(name, task, (WORKED,)) for name in HARNESSES if "instr" not in name}
    assert all(request == requests["verbatim"] for request in requests.values())


def test_a_request_does_not_share_its_messages_with_another(task: Task[World]) -> None:
    first = written("verbatim", task)
    first.messages[first.opening]["content"] = "spoilt"
    assert written("verbatim", task).messages[first.opening]["content"] == task.goal


def test_harnesses_are_asked_for_by_name_or_by_group() -> None:
    assert [each.name for each in parse_harnesses("all")] == [
        "verbatim",
        "verbatim+instr",
        "abstract",
        "drop",
        "verbatim+ban",
        "verbatim+instr+ban",
        "abstract+ban",
        "drop+ban",
    ]
    assert [each.name for each in parse_harnesses("paper")] == [
        "verbatim",
        "verbatim+instr",
        "abstract",
        "drop",
        "verbatim+ban",
        "abstract+ban",
    ]
    assert parse_harnesses(" drop+ban, verbatim,drop+ban") == (Harness("drop", True), Harness("verbatim"))
    assert [each.name for each in parse_harnesses("drop+ban,paper")][:2] == ["drop+ban", "verbatim"]


@pytest.mark.parametrize("text", ["verbatum", "verbatim,+ban", "drop+ban+ban", "ALL"])
def test_an_unknown_harness_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(InputError, match="choose from all, paper, verbatim, .*drop[+]ban"):
        parse_harnesses(text)


def test_an_empty_list_and_an_unknown_history_are_refused() -> None:
    with pytest.raises(InputError, match="list of harnesses is empty"):
        parse_harnesses(" , ")
    with pytest.raises(InputError, match="no way of writing history 'verbatum'"):
        Harness("verbatum")


def test_the_tool_of_an_action_is_the_name_that_it_writes() -> None:
    assert SHED.tool(Action(MISSPELT.action)) == "drop_meetin"
    assert SHED.tool(Action(CUT.action)) is None
