"""Code repair items: what they record is what happens, and a pool is a function of its seed and its problems."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from itertools import permutations
from pathlib import Path

import pytest

from envs.coderepair import CodeRepair
from envs.coderepair.mutations import OPERATORS, mutants
from envs.coderepair.observation import FAMILIES, quotes_source
from envs.coderepair.problems import Problem, bundled_problems, load_problems
from envs.errors import InputError as NotSoMany
from envs.sandbox import Sandbox
from mech.errors import InputError
from probes.items.coderepair import LIMITS, Pool, build_coderepair_items, coderepair_pool
from probes.items.item import Item, item_line, load_items
from probes.prompts.conditions import CORE, condition_messages
from probes.prompts.wording import load_wording

PROBLEMS = bundled_problems()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(LIMITS) as opened:
        yield opened


@pytest.fixture(scope="module")
def pool(sandbox: Sandbox) -> Pool:
    """The items of a dozen problems, some of which have loops that a slip makes endless."""
    return coderepair_pool(3, PROBLEMS, n_tasks=14, sandbox=sandbox)


def lines(items: list[Item]) -> list[str]:
    return [item_line(item) for item in items]


def test_equal_seeds_give_equal_bytes_other_seeds_others_and_progress_is_reported(sandbox: Sandbox) -> None:
    few = PROBLEMS[:1]
    told: list[tuple[int, int]] = []
    first = build_coderepair_items(5, few, sandbox=sandbox, on_progress=lambda *now: told.append(now))
    assert told == [(1, 1)]
    assert lines(build_coderepair_items(5, few, sandbox=sandbox)) == lines(first)
    assert lines(build_coderepair_items(6, few, sandbox=sandbox)) != lines(first)


def test_more_tasks_only_add_items(pool: Pool, sandbox: Sandbox) -> None:
    fewer = build_coderepair_items(3, PROBLEMS, n_tasks=2, sandbox=sandbox)
    assert set(lines(fewer)) < set(lines(pool.items))


def test_the_pool_has_every_error_family_and_most_operators(pool: Pool) -> None:
    families = Counter(item.error_type for item in pool.items)
    assert set(families) == set(FAMILIES) and families["timeout"] <= 10
    assert len({item.operator for item in pool.items} & set(OPERATORS)) >= 15
    assert {item.meta["traceback_quotes_source"] for item in pool.items} == {True, False}
    assert len({item.task_id for item in pool.items}) == 14 and pool.left_out == {}
    assert [item.item_id for item in pool.items] == sorted({item.item_id for item in pool.items})
    assert set(pool.outcomes) >= {"passed", *FAMILIES}


def test_what_an_item_records_is_what_happens(pool: Pool, sandbox: Sandbox) -> None:
    problems = {problem.task_id: problem for problem in PROBLEMS}
    sample = [item for item in pool.items if item.error_type != "timeout"][::3] + [
        item for item in pool.items if item.error_type == "timeout"
    ][:1]
    assert {item.error_type for item in sample} == set(FAMILIES)
    jobs = [
        (problems[item.task_id], program)
        for item in sample
        for program in (item.failed_action, *item.distractors, item.gold_action)
    ]
    results = iter(CodeRepair(sandbox, PROBLEMS).run(jobs))
    for item in sample:
        failed, first, second, gold = (next(results) for _ in range(4))
        assert failed.outcome == item.error_type, item.item_id
        assert failed.n_passed == item.meta["tests_passed_before_failure"]
        assert failed.n_tests == item.meta["n_tests"] == len(problems[item.task_id].tests)
        assert {first.outcome, second.outcome} <= set(FAMILIES)
        assert gold.outcome == "passed"


def test_an_item_is_a_mutant_of_its_reference_and_says_which(pool: Pool) -> None:
    tasks = {item.task_id for item in pool.items}
    by_id = {problem.task_id: problem for problem in PROBLEMS if problem.task_id in tasks}
    made = {name: {each.code: each for each in mutants(problem.code)} for name, problem in by_id.items()}
    for item in pool.items:
        found = made[item.task_id]
        mutant = found[item.failed_action]
        assert (mutant.operator, mutant.changed, mutant.line) == (
            item.operator,
            item.meta["changed"],
            item.meta["line"],
        )
        assert item.item_id == f"{item.task_id}-{item.operator}"
        assert item.gold_action == by_id[item.task_id].code
        assert set(item.distractors) <= set(found)
        operators = {found[each].operator for each in item.distractors}
        assert len(operators | {item.operator}) == 3
        assert (item.env, item.template, item.step_index, item.tool) == ("coderepair", "code", 0, None)
        assert item.prefix_actions == item.prefix_observations == ()


def test_no_candidate_is_the_beginning_of_another(pool: Pool) -> None:
    for item in pool.items:
        texts = item.candidates()
        assert list(texts) == ["failed", "gold", "distractor0", "distractor1"]
        assert not any(one.startswith(other) for one, other in permutations(texts.values(), 2))


def test_observations_are_clean(pool: Pool) -> None:
    for item in pool.items:
        record = asdict(item)
        for name in (name for name in record if name.startswith("obs_")):
            text = record[name]
            assert text == text.strip() and not re.search(r"[ \t]\n", text), name
            assert not re.search(r"\^\^|Did you mean|0x[0-9a-f]{4}", text), (item.item_id, name)
            assert not re.search(r'File "(?!solution\.py"|tests\.py")|site-packages|/lib/python', text)
        assert item.failed_action in item.obs_fail_echo and item.obs_fail in item.obs_fail_echo
        assert item.obs_fail_echo.count(item.failed_action) == 1
        for text in (item.obs_fail, item.obs_fail_verbose, item.obs_success, item.obs_neutral):
            assert item.failed_action not in text and item.gold_action not in text
        quoted = quotes_source(item.obs_fail, item.failed_action)
        assert item.meta["traceback_quotes_source"] == quoted
        assert len(item.obs_fail_terse) <= len(item.obs_fail) < len(item.obs_fail_verbose)


def test_only_the_wrong_program_varies_within_a_problem(pool: Pool) -> None:
    for field in ("goal", "gold_action", "obs_success", "obs_neutral", "system_prompt"):
        values = {item.task_id: {getattr(each, field) for each in pool.items if each.task_id == item.task_id}
                  for item in pool.items}  # fmt: skip
        assert all(len(each) == 1 for each in values.values()), field


def test_the_placebo_observation_answers_the_first_distractor(pool: Pool) -> None:
    observed = {(item.task_id, item.failed_action): item.obs_fail for item in pool.items}
    known = [item for item in pool.items if (item.task_id, item.distractors[0]) in observed]
    assert len(known) == len(pool.items)
    for item in known:
        assert item.obs_fail_other == observed[item.task_id, item.distractors[0]]


def test_a_cap_holds_for_every_operator_and_mixes_families(sandbox: Sandbox) -> None:
    few = PROBLEMS[:2]
    whole, capped = (build_coderepair_items(5, few, None, cap, sandbox) for cap in (None, 1))
    per_operator = Counter(item.operator for item in whole)
    assert Counter(item.operator for item in capped) == {name: min(1, n) for name, n in per_operator.items()}
    assert set(lines(capped)) < set(lines(whole))


ONE_SLIP = Problem("code-9001", "Give one.", "def one():\n    return 1", ("assert one() in (1, None)",), ())
BROKEN = Problem("code-9002", "Give two.", "def two():\n    return 1", ("assert two() == 2",), ())


def test_a_problem_without_enough_failing_mutants_or_a_passing_reference_is_left_out(
    sandbox: Sandbox,
) -> None:
    pool = coderepair_pool(0, [ONE_SLIP, BROKEN, PROBLEMS[0]], sandbox=sandbox)
    assert {item.task_id for item in pool.items} == {PROBLEMS[0].task_id}
    assert pool.left_out == {
        "code-9001": "only 1 failing mutants",
        "code-9002": "the reference does not pass (test_failure)",
    }


def test_where_operators_are_few_their_other_mutants_are_distractors(sandbox: Sandbox) -> None:
    code = "def add(a, b):\n    return a + b + a"
    problem = Problem(
        "code-9003", "Add.", code, ("assert add(2, 3) == 7", "assert add(0, 0) in (0, None)"), ()
    )
    names = {"undefined_name", "arithmetic_flip"}
    pool = coderepair_pool(1, [problem], sandbox=sandbox)
    assert names <= {item.operator for item in pool.items}
    assert all(len(set(item.candidates().values())) == 4 for item in pool.items)


@pytest.mark.parametrize("numbers", [{"n_tasks": 0}, {"per_operator": 0}, {"n_tasks": 10_000}])
def test_impossible_numbers_are_refused(numbers: dict[str, int], sandbox: Sandbox) -> None:
    with pytest.raises((InputError, NotSoMany)):
        build_coderepair_items(0, sandbox=sandbox, **numbers)


def test_every_core_condition_can_be_written(pool: Pool) -> None:
    wording = load_wording()
    for item in pool.items[::20]:
        rendered = {name: condition_messages(item, name, wording) for name in CORE}
        assert all(messages[-1]["role"] == "user" for messages in rendered.values())
        assert len({str(messages) for messages in rendered.values()}) == len(CORE)


@pytest.mark.needs_reference
def test_items_can_be_made_of_mbpp(reference_dir: Path, sandbox: Sandbox) -> None:
    mbpp = load_problems(reference_dir / "mbpp_sanitized.json")
    chosen = random.Random(2).sample(mbpp, 3)
    pool = coderepair_pool(0, chosen, sandbox=sandbox)
    assert len({item.task_id for item in pool.items}) + len(pool.left_out) == 3
    assert len(pool.items) >= 15
    for item in pool.items:
        assert item.task_id.startswith("mbpp-")
        assert not any(text != text.rstrip() for text in item.candidates().values())


@pytest.mark.needs_reference
def test_reference_items_fail_in_this_sandbox_as_recorded(reference_dir: Path, sandbox: Sandbox) -> None:
    items = load_items(reference_dir / "coderepair_items.jsonl")
    slow = [item for item in items if item.error_type == "timeout"][:1]  # which take their whole time
    quick = [item for item in items if item.error_type != "timeout" and item.task_id != "mbpp-0123"]
    sample = random.Random(7).sample(quick, 20) + slow
    jobs = []
    for item in sample:
        tests = tuple(item.goal.split("The tests are:\n")[1].split("\n"))
        assert len(tests) == item.meta["n_tests"] and all(each.startswith("assert ") for each in tests)
        problem = Problem(item.task_id, "", item.gold_action, tests, ())
        jobs += [(problem, item.failed_action), (problem, item.gold_action)]
    results = CodeRepair(sandbox, PROBLEMS).run(jobs)
    for item, failed, gold in zip(sample, results[::2], results[1::2], strict=True):
        assert failed.outcome == item.error_type, item.item_id
        assert gold.outcome == "passed", item.item_id
        if item.error_type != "timeout":
            assert failed.n_passed == item.meta["tests_passed_before_failure"], item.item_id


@pytest.mark.needs_reference
def test_the_flag_for_quoted_lines_is_the_one_of_the_reference_items(reference_dir: Path) -> None:
    items = load_items(reference_dir / "coderepair_items.jsonl")
    other = [
        item.item_id
        for item in items
        if quotes_source(item.obs_fail, item.failed_action) != item.meta["traceback_quotes_source"]
    ]
    assert len(items) == 266 and len(other) <= 1  # one text lost a backslash on its way into that file
