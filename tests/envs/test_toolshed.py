"""The toolshed: gold calls work, wrong calls fail and change nothing, imagined successes fit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest

from envs.base import Action, Environment, Task, WrongAction
from envs.toolshed import Toolshed
from envs.toolshed.calls import Call, parse_call
from envs.toolshed.perturb import OPERATORS
from envs.toolshed.prompts import SYSTEM_PROMPTS
from envs.toolshed.tasks import MORE_TEMPLATES, PAPER_TEMPLATES, TEMPLATES
from envs.toolshed.tools import SYSTEM_PROMPT, TOOLS
from envs.toolshed.world import LOCKED_DOCUMENT, World, make_world

FAMILIES = {
    "drop_argument": {"argument_missing"},
    "misspell_tool": {"no_such_tool"},
    "rename_argument": {"argument_unknown"},
    "confuse_type": {"wrong_type"},
    "humanise_date": {"bad_date"},
    "unknown_entity": {
        "person_unknown",
        "group_unknown",
        "document_unknown",
        "meeting_unknown",
        "unit_unknown",
    },
    "name_for_address": {"bad_address"},
    "readonly_target": {"write_protected"},
}
SHED = Toolshed()


def streams(seed: int) -> Callable[[str], random.Random]:
    return lambda name: random.Random(f"{seed}/{name}")


@pytest.fixture(scope="module")
def tasks() -> tuple[Task[World], ...]:
    env: Environment[World] = SHED  # the class answers to the protocol (checked by mypy too)
    return env.tasks(48, streams(3))


@pytest.fixture(scope="module", params=["paper", "all"])
def spoilt(request: pytest.FixtureRequest) -> list[tuple[World, Action, WrongAction[World]]]:
    """Every wrong action of every gold action, with the world it is tried in."""
    found = []
    for task in (
        SHED.tasks(48, streams(3)) if request.param == "paper" else SHED.varied_tasks(112, streams(3))
    ):
        world, rng = SHED.reset(task), random.Random(task.task_id)
        for gold in task.gold:
            found += [(world, gold, wrong) for wrong in SHED.wrong_actions(world, gold, rng)]
            world, _ = SHED.execute(world, gold)
    return found


def run(text: str, world: World | None = None) -> str:
    """The error family of a call, or its result."""
    _, outcome = SHED.execute(world or make_world(random.Random(1)), Action(text))
    return outcome.failure.error_type if outcome.failure else outcome.result


def test_there_are_twelve_tools_fourteen_templates_and_eight_operators() -> None:
    assert (len(TOOLS), len(PAPER_TEMPLATES), len(TEMPLATES), len(OPERATORS)) == (12, 6, 14, 8)
    assert list(TEMPLATES) == [*PAPER_TEMPLATES, *MORE_TEMPLATES]


def test_every_system_prompt_shows_every_tool_and_argument_and_is_another_text() -> None:
    assert SHED.system_prompt == SYSTEM_PROMPT == SYSTEM_PROMPTS["desk"]
    assert len(SYSTEM_PROMPTS) == len(set(SYSTEM_PROMPTS.values())) == 6
    for name, prompt in SYSTEM_PROMPTS.items():
        for tool in TOOLS.values():
            assert tool.about in prompt and all(each.about in prompt for each in tool.parameters)
            named = prompt[prompt.index(tool.about) - 80 - len(tool.signature) :]
            assert tool.name in named and all(each.name in named for each in tool.parameters)
            assert tool.signature in prompt or name in ("schema", "prose")
        assert "done()" in prompt and "YYYY-MM-DD" in prompt and "HH:MM" in prompt
        assert "one line" in prompt or "single" in prompt
        assert prompt == prompt.strip()
    lines = SYSTEM_PROMPTS["schema"].splitlines()
    schemas = [json.loads(line) for line in lines if line.startswith("{")]
    assert [each["name"] for each in schemas] == list(TOOLS)
    compile(SYSTEM_PROMPTS["stubs"], "stubs", "exec")


def test_the_papers_tasks_are_among_the_varied_ones_as_they_are(tasks: tuple[Task[World], ...]) -> None:
    varied = SHED.varied_tasks(112, streams(3))
    assert SHED.varied_tasks(20, streams(3)) == varied[:20]
    assert [task for task in varied if task.task_id.startswith("shed")] == list(tasks)
    assert [task.template for task in varied] == list(TEMPLATES) * 8
    assert len({task.task_id for task in varied}) == 112
    assert {len(task.gold) for task in varied} == {2, 3}
    ways = {tuple(parse_call(gold.text).tool for gold in task.gold) for task in varied}
    assert len(ways) == 14  # no template is another one under a new name


@pytest.mark.parametrize("template", list(TEMPLATES))
def test_gold_calls_succeed_and_complete_the_task(template: str) -> None:
    mine = [task for task in SHED.varied_tasks(112, streams(3)) if task.template == template]
    assert len(mine) == 8
    for task in mine:
        world = SHED.reset(task)
        assert not SHED.solved(task, world)
        for gold in task.gold:
            assert not SHED.solved(task, world)
            world, outcome = SHED.execute(world, gold)
            assert outcome.ok
            assert outcome.result
        assert SHED.solved(task, world)
        after, outcome = SHED.execute(world, Action("done()"))
        assert after == world
        assert outcome.ok
        assert outcome.done


def test_a_task_with_one_call_too_many_is_not_solved(tasks: tuple[Task[World], ...]) -> None:
    task = tasks[0]
    world = SHED.reset(task)
    extra = Action("plan_reminder(note='nobody asked', day='2027-03-14')")
    for action in (*task.gold, extra):
        world, _ = SHED.execute(world, action)
    assert not SHED.solved(task, world)


def test_tasks_use_every_tool_and_a_larger_number_only_adds_tasks(tasks: tuple[Task[World], ...]) -> None:
    assert {parse_call(gold.text).tool for task in tasks for gold in task.gold} == set(TOOLS)
    assert SHED.tasks(7, streams(3)) == tasks[:7]
    assert SHED.tasks(7, streams(4)) != tasks[:7]


@pytest.mark.parametrize("operator", list(OPERATORS))
def test_every_operator_yields_its_families_and_a_failing_call_never_changes_the_world(
    operator: str, spoilt: list[tuple[World, Action, WrongAction[World]]]
) -> None:
    seen = set()
    for world, gold, wrong in spoilt:
        if wrong.operator != operator:
            continue
        before = repr(world)
        after, outcome = SHED.execute(world, wrong.action)
        assert outcome.failure is not None
        assert after == world
        assert repr(world) == before
        assert wrong.action != gold
        seen.add(outcome.failure.error_type)
    assert seen == FAMILIES[operator]


def test_the_families_are_twelve() -> None:
    assert len(set().union(*FAMILIES.values())) == 12


def test_only_the_echo_quotes_the_call_and_the_lengths_are_ordered(
    spoilt: list[tuple[World, Action, WrongAction[World]]],
) -> None:
    for world, _, wrong in spoilt:
        _, outcome = SHED.execute(world, wrong.action)
        terse = SHED.observe(wrong.action, outcome, "terse")
        standard = SHED.observe(wrong.action, outcome)
        verbose = SHED.observe(wrong.action, outcome, "verbose")
        assert len(terse) < len(standard) < len(verbose)
        for text in (terse, standard, verbose):
            assert wrong.action.text not in text
        for length in ("terse", "standard", "verbose"):
            echo = SHED.observe(wrong.action, outcome, length, echo=True)  # type-checked Literal
            assert wrong.action.text in echo
            assert echo.startswith(SHED.observe(wrong.action, outcome, length))


def test_an_imagined_success_never_tells_what_the_wrong_call_did_not_say(
    spoilt: list[tuple[World, Action, WrongAction[World]]],
) -> None:
    for _, gold, wrong in spoilt:
        answer = SHED.success_like(wrong)
        said = wrong.action.text
        for value in texts_of(parse_call(gold.text)):
            assert value in said or value not in answer


def texts_of(call: Call) -> list[str]:
    """Names, days, addresses, places of a call; numbers and bare words (topics, units) occur by chance."""
    values = [each for _, value in call.keywords for each in (value if isinstance(value, list) else [value])]
    return [each for each in values if isinstance(each, str) and len(each) > 8]


def test_the_success_of_a_misspelt_tool_is_the_answer_of_the_tool_it_meant(
    spoilt: list[tuple[World, Action, WrongAction[World]]],
) -> None:
    slips = [each for each in spoilt if each[2].operator == "misspell_tool"]
    assert {parse_call(gold.text).tool for _, gold, _ in slips} == set(TOOLS)
    for world, gold, wrong in slips:
        _, outcome = SHED.execute(world, gold)
        assert SHED.success_like(wrong) == outcome.result
        misspelt = parse_call(wrong.action.text)
        assert misspelt.tool not in TOOLS
        assert misspelt.keywords == parse_call(gold.text).keywords


def test_the_success_of_an_unknown_name_speaks_of_that_name(
    spoilt: list[tuple[World, Action, WrongAction[World]]],
) -> None:
    named = {"lookup_person", "remove_document", "drop_meeting"}
    checked = set()
    for _, _, wrong in spoilt:
        call = parse_call(wrong.action.text)
        if wrong.operator == "unknown_entity" and call.tool in named:
            checked.add(call.tool)
            assert call.value(wrong.changed) in SHED.success_like(wrong)
    assert checked == named


def test_the_success_on_a_locked_target_speaks_of_that_target(
    spoilt: list[tuple[World, Action, WrongAction[World]]],
) -> None:
    answers = {SHED.success_like(wrong) for _, _, wrong in spoilt if wrong.operator == "readonly_target"}
    assert answers == {f"Saved {LOCKED_DOCUMENT}.", f"Removed {LOCKED_DOCUMENT}."}


def test_a_success_keeps_the_unit_that_only_the_imagined_world_knows() -> None:
    gold = Action("convert_amount(amount=10.0, unit='m', target='yd')")
    world = make_world(random.Random(1))
    wrongs = SHED.wrong_actions(world, gold, random.Random(5))
    wrong = next(each for each in wrongs if each.operator == "unknown_entity")
    metres = {"rod": 5.0292, "fathom": 1.8288}[parse_call(wrong.action.text).value("target")]
    assert SHED.success_like(wrong) == f"{10.0 / metres:.2f}"


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("", "unparsable"),
        ("I will look that up for you.", "unparsable"),
        ("lookup_person(full_name=", "unparsable"),
        ("lookup_person(full_name=open('x'))", "unparsable"),
        ("lookup_person(full_name='A' + 'B')", "unparsable"),
        ("lookup_person(**{'full_name': 'A B'})", "unparsable"),
        ("desk.lookup_person(full_name='A B')", "unparsable"),
        ("lookup_person(full_name='A B'); done()", "unparsable"),
        ("__import__('os')", "no_such_tool"),
        ("lookup_person(full_name='\\d')", "person_unknown"),
        ("lookup_person(full_name=" + "-" * 3000 + "1)", "unparsable"),
        ("lookup_person(full_name='\x00')", "unparsable"),
        ("(" * 900 + ")" * 900, "unparsable"),
        ("-" * 3000 + "1", "unparsable"),
        ("lookup_person(full_name='" + 5000 * "x" + "')", "unparsable"),
        ("done(now=True)", "no_such_tool"),
        ("lookup_person('A B', 'C')", "too_many_arguments"),
        ("lookup_person('A B', full_name='A B')", "argument_repeated"),
        ("lookup_person(full_name='A B', full_name='A B')", "argument_repeated"),
        ("show_directory(directory='cellar')", "directory_unknown"),
        ("save_document(location='cellar/a.txt', text='x')", "directory_unknown"),
        ("save_document(location='beds', text='x')", "document_unknown"),
        ("day_agenda(day='2027-02-30')", "bad_date"),
        ("day_agenda(day='20270213')", "bad_date"),
        ("plan_reminder(note='x', day='٢٠٢٧-02-13')", "bad_date"),
        ("book_meeting(name='x', day='2027-02-13', start='9:30', guests=[])", "bad_time"),
        ("convert_amount(amount=True, unit='m', target='yd')", "wrong_type"),
        ("convert_amount(amount=1e999, unit='m', target='yd')", "amount_out_of_range"),
        (f"convert_amount(amount={10**400}, unit='m', target='yd')", "amount_out_of_range"),
        ("convert_amount(amount=1, unit='m', target='kg')", "unit_mismatch"),
        (f"remove_document(location='{LOCKED_DOCUMENT}')", "write_protected"),
    ],
)
def test_malformed_calls_fail_with_a_named_family(text: str, family: str) -> None:
    assert run(text) == family


@pytest.mark.parametrize(
    "text",
    [
        "convert_amount(amount=10, unit='m', target='cm')",
        "convert_amount(10, 'm', target='cm')",
        "  `convert_amount(10, 'm', 'cm')`\n",
        "```python\nconvert_amount(10, 'm', 'cm')\n```",
    ],
)
def test_positional_arguments_and_code_marks_are_read(text: str) -> None:
    assert run(text) == "1000.00"


def test_a_call_prints_as_it_was_read() -> None:
    text = "book_meeting(name=\"Ann's\", day='2027-02-13', start='09:30', guests=['a@b.c', 'd@e.f'])"
    assert str(parse_call(text)) == text


def test_meetings_are_numbered_on_and_can_be_booked_and_dropped() -> None:
    start = make_world(random.Random(1))
    person = start.people[0]
    ref = start.next_ref()
    book = f"book_meeting(name='Tea', day='2027-02-13', start='09:30', guests=['{person.address}'])"
    world, outcome = SHED.execute(start, Action(book))
    assert outcome.result == f"Booked Tea at 09:30 as {ref}."
    assert person.address in run("day_agenda(day='2027-02-13')", world)
    world, _ = SHED.execute(world, Action(f"drop_meeting(ref='{ref}')"))
    assert world == start


def test_no_two_people_share_a_first_or_a_last_name() -> None:
    for seed in range(20):
        people = make_world(random.Random(seed)).people
        assert len({each.name.split()[0] for each in people}) == len(people)
        assert len({each.name.split()[1] for each in people}) == len(people)
        assert len({each.group for each in people}) == 4
