"""Code repair: references pass, mutants fail and change nothing, observations read the same on every Python."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import pytest

from envs.base import Action, Environment, Task
from envs.coderepair import CodeRepair
from envs.coderepair.env import SYSTEM_PROMPT, Bench, unfenced
from envs.coderepair.observation import FAMILIES, exception_line, failure, quotes_source, success
from envs.coderepair.problems import Problem, bundled_problems
from envs.errors import InputError
from envs.sandbox import ExecResult, Frame, Isolation, Limits, Sandbox

LENGTHS = ("terse", "standard", "verbose")
DOUBLE = Problem(
    "code-9001",
    "Double every number.",
    "def double(values):\n    return [value * 2 for value in values]",
    ("assert double([1]) == [2]", "assert double([]) == []", "assert double([0, 3]) == [0, 6]"),
    (),
)


def streams(seed: int) -> Callable[[str], random.Random]:
    return lambda name: random.Random(f"{seed}/{name}")


@pytest.fixture(scope="module")
def env() -> Iterator[CodeRepair]:
    with Sandbox(Limits(cpu_s=1, wall_s=10)) as sandbox:
        yield CodeRepair(sandbox, [DOUBLE, *bundled_problems()[:5]])


@pytest.fixture(scope="module")
def task(env: CodeRepair) -> Task[Bench]:
    return next(task for task in env.tasks(6, streams(1)) if task.task_id == DOUBLE.task_id)


def observed(env: CodeRepair, program: str, problem: Problem = DOUBLE) -> dict[str, str]:
    """The observation in every length, and the family."""
    state = Bench(problem)
    after, outcome = env.execute(state, Action(program))
    assert outcome.failure is not None and after == state
    texts = {length: env.observe(Action(program), outcome, length) for length in LENGTHS}
    return {"family": outcome.failure.error_type, **texts}


def test_the_class_answers_to_the_protocol(env: CodeRepair) -> None:
    protocol: Environment[Bench] = env
    assert protocol.name == "coderepair" and protocol.system_prompt == SYSTEM_PROMPT == SYSTEM_PROMPT.strip()


def test_more_tasks_only_add_and_every_stream_has_its_order(env: CodeRepair) -> None:
    six = env.tasks(6, streams(1))
    assert env.tasks(3, streams(1)) == six[:3]
    assert len({task.task_id for task in six}) == 6
    assert {env.tasks(6, streams(seed))[0].task_id for seed in range(20)} == {task.task_id for task in six}
    with pytest.raises(InputError, match="There are 6 problems"):
        env.tasks(7, streams(1))


def test_a_goal_is_the_prompt_and_the_asserts(task: Task[Bench]) -> None:
    assert task.goal == (
        "Double every number.\n\nThe asserts:\nassert double([1]) == [2]\nassert double([]) == []\n"
        "assert double([0, 3]) == [0, 6]"
    )
    assert task.template == "code" and task.gold == (Action(DOUBLE.code),)


def test_gold_solves_its_task_and_a_failure_changes_nothing(env: CodeRepair) -> None:
    for task in env.tasks(6, streams(1)):
        state = env.reset(task)
        assert not env.solved(task, state)
        failed, outcome = env.execute(state, Action("def nothing():\n    pass"))
        assert failed == state and not outcome.ok and not env.solved(task, failed)
        after, outcome = env.execute(failed, task.gold[0])
        assert outcome.ok and not outcome.done and env.solved(task, after)
        assert env.observe(task.gold[0], outcome) == success(len(task.start.problem.tests))
        again, _ = env.execute(after, Action("x"))
        assert again == after  # what was solved stays solved


def test_a_test_failure_shows_its_assert(env: CodeRepair) -> None:
    program = "def double(values):\n    return [value + 1 for value in values]"
    assert observed(env, program) == {
        "family": "test_failure",
        "terse": "A test fails.",
        "standard": "assert double([0, 3]) == [0, 6]\nAssertionError",
        "verbose": (
            "2 of 3 tests passed, and then one failed:\nassert double([0, 3]) == [0, 6]\nAssertionError"
        ),
    }


def test_an_error_shows_its_frames(env: CodeRepair) -> None:
    program = "def double(values):\n    return [\n        vlue * 2\n        for value in values\n    ]"
    assert observed(env, program) == {
        "family": "runtime_error",
        "terse": "NameError: name 'vlue' is not defined",
        "standard": (
            'File "tests.py", line 1, in <module>\n'
            "  assert double([1]) == [2]\n"
            'File "solution.py", line 3, in double\n'
            "  vlue * 2\n"
            "NameError: name 'vlue' is not defined"
        ),
        "verbose": (
            "0 of 3 tests passed, and then:\n"
            "Traceback (most recent call last):\n"
            '  File "tests.py", line 1, in <module>\n'
            "    assert double([1]) == [2]\n"
            '  File "solution.py", line 3, in double\n'
            "    vlue * 2\n"
            "NameError: name 'vlue' is not defined"
        ),
    }


def test_a_program_that_does_not_compile_shows_the_place(env: CodeRepair) -> None:
    assert observed(env, "def double(values)\n    return values") == {
        "family": "syntax_error",
        "terse": "SyntaxError: expected ':'",
        "standard": "File \"solution.py\", line 1\n  def double(values)\nSyntaxError: expected ':'",
        "verbose": (
            "0 of 3 tests passed, and then:\n"
            "  File \"solution.py\", line 1\n    def double(values)\nSyntaxError: expected ':'"
        ),
    }


def test_an_endless_loop_has_one_sentence_a_length(env: CodeRepair) -> None:
    texts = observed(env, "def double(values):\n    while True:\n        pass")
    assert texts["family"] == "timeout"
    assert len({texts[length] for length in LENGTHS}) == 3
    assert not any("\n" in texts[length] for length in LENGTHS)


def test_a_recursion_is_cut_at_its_third_repeat(env: CodeRepair) -> None:
    program = "def double(values):\n    if values == 1:\n        return 1\n    return double([values]) + [0]"
    texts = observed(env, program)
    assert texts["standard"] == (
        'File "tests.py", line 1, in <module>\n  assert double([1]) == [2]\n'
        + 'File "solution.py", line 4, in double\n  return double([values]) + [0]\n' * 3
        + "RecursionError: maximum recursion depth exceeded"
    )


@pytest.mark.parametrize(
    ("program", "family"),
    [
        ("raise SystemExit(0)", "exited"),
        ("def double(values):\n    return bytearray(1 << 40)", "memory_limit"),
        ("print('x' * 10_000_000)", "output_limit"),
        ("import os\nos.kill(os.getpid(), 9)", "killed"),
    ],
)
def test_what_no_item_is_made_of_has_a_sentence_too(env: CodeRepair, program: str, family: str) -> None:
    texts = observed(env, program)
    assert texts["family"] == family and family not in FAMILIES
    assert texts["standard"].startswith("The program ") and texts["standard"].endswith(".")


def test_echo_adds_the_program_to_a_failure_alone(env: CodeRepair, task: Task[Bench]) -> None:
    action = Action("def double(values):\n    return values")
    _, outcome = env.execute(task.start, action)
    echoed = env.observe(action, outcome, echo=True)
    assert echoed == f"{env.observe(action, outcome)}\nThis was the program:\n{action.text}"
    _, outcome = env.execute(task.start, task.gold[0])
    assert env.observe(task.gold[0], outcome, echo=True) == outcome.result


def test_neutral_and_success_texts(env: CodeRepair, task: Task[Bench]) -> None:
    assert not re.search(r"error|fail|pass|success|done|ok\b|not |wrong", env.acknowledge(), re.IGNORECASE)
    assert success(1) == "The program passes its test."
    assert success(3) == "The program passes all of its 3 tests."


def test_wrong_actions_fail_one_an_operator_and_mean_gold(env: CodeRepair) -> None:
    for task in env.tasks(4, streams(2)):
        wrong = env.wrong_actions(task.start, task.gold[0], random.Random(5))
        assert len(wrong) >= 5 and len({each.operator for each in wrong}) == len(wrong)
        for each in wrong:
            after, outcome = env.execute(task.start, each.action)
            assert after == task.start and outcome.failure is not None
            assert outcome.failure.error_type in FAMILIES
            assert each.meant == task.gold[0] and each.imagined == task.start
            assert env.success_like(each) == success(len(task.start.problem.tests))
        assert env.wrong_actions(task.start, task.gold[0], random.Random(5)) == wrong
    drawn = {env.wrong_actions(task.start, task.gold[0], random.Random(seed)) for seed in range(4)}
    assert len(drawn) > 1


def test_more_failing_mutants_of_an_operator_can_be_had(env: CodeRepair) -> None:
    (found,) = env.failing_mutants([(DOUBLE, DOUBLE.code)], [random.Random(0)], per_operator=2)
    operators = [each.operator for each in found]
    assert max(map(operators.count, operators)) == 2 and len({each.code for each in found}) == len(found)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nx = 1\n```", "x = 1"),
        ("\n```\nx = 1\n\ny = 2\n```\n", "x = 1\n\ny = 2"),
        ("x = 1\n", "x = 1\n"),
        ("Here:\n```python\nx = 1\n```", "Here:\n```python\nx = 1\n```"),
        ("```python\nx = 1\n```\nor\n```\nx = 2\n```", "```python\nx = 1\n```\nor\n```\nx = 2\n```"),
    ],
)
def test_only_a_text_that_is_one_fenced_block_is_unfenced(text: str, program: str) -> None:
    assert unfenced(text) == program


def test_a_fenced_program_is_run(env: CodeRepair, task: Task[Bench]) -> None:
    _, outcome = env.execute(task.start, Action(f"```python\n{DOUBLE.code}\n```"))
    assert outcome.ok


def result(
    exception: str, message: str, frames: tuple[Frame, ...] = (), outcome: str = "runtime_error"
) -> ExecResult:
    """A result with these parts after one of three tests passed."""
    isolation = Isolation("none", "none", "limits")
    return ExecResult(outcome, 1, 3, exception, message, frames, "", "", False, 0.1, isolation)


# as written by Python 3.10, 3.11, 3.12 and 3.13 (each message once), and the one form
MESSAGES = [
    ("ValueError", ["min() arg is an empty sequence", "min() iterable argument is empty"],
     "ValueError: min() iterable argument is empty"),
    ("ZeroDivisionError", ["integer division or modulo by zero", "integer modulo by zero"],
     "ZeroDivisionError: integer division or modulo by zero"),
    ("ZeroDivisionError", ["float modulo", "float modulo by zero"], "ZeroDivisionError: float modulo by zero"),
    ("TypeError", ["string indices must be integers", "string indices must be integers, not 'str'"],
     "TypeError: string indices must be integers"),
    ("TypeError", ["'type' object is not subscriptable", "type 'int' is not subscriptable"],
     "TypeError: 'type' object is not subscriptable"),
    ("TypeError", ["'reverze' is an invalid keyword argument for sort()",
                   "sort() got an unexpected keyword argument 'reverze'. Did you mean 'reverse'?"],
     "TypeError: sort() got an unexpected keyword argument 'reverze'"),
    ("TypeError", ["int() takes at most 2 arguments (3 given)", "int expected at most 2 arguments, got 3"],
     "TypeError: int expected at most 2 arguments, got 3"),
    ("TypeError", ["replace expected at least 2 arguments, got 1",
                   "replace() takes at least 2 positional arguments (1 given)"],
     "TypeError: replace expected at least 2 arguments, got 1"),
    ("TypeError", ["must be str, not int", "find() argument 1 must be str, not int"],
     "TypeError: must be str, not int"),
    ("TypeError", ["expected string or bytes-like object", "expected string or bytes-like object, got 'int'"],
     "TypeError: expected string or bytes-like object"),
    ("UnboundLocalError", ["local variable 'z' referenced before assignment",
                           "cannot access local variable 'z' where it is not associated with a value"],
     "UnboundLocalError: cannot access local variable 'z' where it is not associated with a value"),
    ("NameError", ["free variable 'z' referenced before assignment in enclosing scope",
                   "cannot access free variable 'z' where it is not associated with a value in enclosing scope"],
     "NameError: cannot access free variable 'z' where it is not associated with a value in enclosing scope"),
    ("RecursionError", ["maximum recursion depth exceeded", "maximum recursion depth exceeded in comparison",
                        "maximum recursion depth exceeded while calling a Python object"],
     "RecursionError: maximum recursion depth exceeded"),
    ("AttributeError", ["'A' object has no attribute 'b'",
                        "'A' object has no attribute 'b' and no __dict__ for setting new attributes"],
     "AttributeError: 'A' object has no attribute 'b'"),
    ("ImportError", ["cannot import name 'b' from 'math' (/usr/lib/math.so)",
                     "cannot import name 'b' from 'math' (unknown location)"],
     "ImportError: cannot import name 'b' from 'math'"),
    ("ValueError", ["Exceeds the limit (4300) for integer string conversion",
                    "Exceeds the limit (4300 digits) for integer string conversion"],
     "ValueError: Exceeds the limit (4300 digits) for integer string conversion"),
    ("SyntaxError", ["invalid syntax. Perhaps you forgot a comma? (solution.py, line 3)",
                     "invalid syntax. Maybe you meant '==' or ':=' instead of '='?", "invalid syntax"],
     "SyntaxError: invalid syntax"),
    ("KeyError", ["<function f at 0x7f2e18b4c0d0>", "<function f at 0x104e5d300>"],
     "KeyError: <function f at 0x...>"),
    ("TypeError", ["f() missing 1 required positional argument: 'x'"],
     "TypeError: f() missing 1 required positional argument: 'x'"),
    ("TypeError", ["f() takes 2 positional arguments but 3 were given"],
     "TypeError: f() takes 2 positional arguments but 3 were given"),
    ("StopIteration", [""], "StopIteration"),
    ("KeyError", ["'a (b)'"], "KeyError: 'a (b)'"),
]  # fmt: skip


@pytest.mark.parametrize(("exception", "messages", "line"), MESSAGES)
def test_messages_of_all_versions_become_one(exception: str, messages: list[str], line: str) -> None:
    assert {exception_line(result(exception, message)) for message in messages} == {line}


def test_a_renamed_exception_keeps_its_newer_name() -> None:
    message = "missing ), unterminated subpattern at position 0"
    for name in ("error", "PatternError"):
        assert exception_line(result(name, message)) == f"PatternError: {message}"
    assert exception_line(result("error", "bad char in struct format")) == "error: bad char in struct format"


def test_a_long_message_is_cut() -> None:
    assert exception_line(result("KeyError", "x" * 5000)) == f"KeyError: {'x' * 300}..."


def test_frames_of_comprehensions_join_their_callers() -> None:
    top, call = Frame("tests.py", 1, "<module>", "assert f(1)"), Frame("solution.py", 2, "f", "return [")
    inner = Frame("solution.py", 3, "<listcomp>", "g(x)")
    old = failure(result("NameError", "g", (top, call, inner, inner)), ())
    new = failure(result("NameError", "g", (top, Frame("solution.py", 3, "f", "g(x)"))), ())
    assert old == new
    nested = Frame("solution.py", 3, "<genexpr>", "g(x)")  # which every version has
    assert "<genexpr>" in failure(result("NameError", "g", (top, call, nested)), ()).standard


def test_a_recursion_reads_the_same_wherever_it_ended() -> None:
    top, f, g = (Frame("tests.py", 1, "<module>", "t"), Frame("s", 1, "f", "g()"), Frame("s", 2, "g", "f()"))
    ends = [(f, g), (g, f), (g, Frame("s", 9, "h", "x"))]
    texts = {
        failure(result("RecursionError", "m", (top, f, g, f, g, f, g, f, g, f, *end)), ()) for end in ends
    }
    assert len(texts) == 1
    assert texts.pop().standard.count(", in f") == 3


def test_a_quoted_line_must_be_longer_than_eight_characters() -> None:
    program = "def f(x):\n    x += 1\n    return x * 100"
    assert quotes_source("  return x * 100\nNameError", program)
    assert not quotes_source("x += 1", program)
    assert quotes_source("def f(x):", program) and not quotes_source("return x", program)


def test_texts_have_no_trailing_blanks() -> None:
    frame = Frame("tests.py", 1, "<module>", "  assert f(1)  ")
    for texts in (
        failure(result("E", " a \n b ", (frame,)), ()),
        failure(result("E", "", (), "test_failure"), ("", "assert x \n ")),
    ):
        for text in (texts.terse, texts.standard, texts.verbose):
            assert not re.search(r"[ \t]+(\n|$)", text) and text == text.strip()
