"""Which part of a raw reply is its action, what is named of the rest, and where the turn ends."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.agent import EDITS
from envs.base import Action, Task
from envs.coderepair import CodeRepair, bundled_problems
from envs.coderepair.env import Bench
from envs.coderepair.extraction import ended, extract
from envs.coderepair.mutations import mutants
from envs.coderepair.problems import Problem
from envs.harness import HARNESSES
from envs.rollout import run
from envs.sandbox import Limits, Sandbox
from envs.toolshed import Toolshed
from envs.toolshed import extraction as calls
from tests.envs.test_replies import PIECES
from tests.rollout_cases import PHRASES, saying, streams

SHED = Toolshed()
PROGRAM = "def double(x):\n    return 2 * x"
WANTED = frozenset({"double"})
DOCUMENTED = 'def double(x):\n    """Twice.\n\n    ```\n    double(2)\n    ```\n    """\n    return 2 * x'
COMMENTED = "def double(x):\n    # ```\n    # double(2)\n    # ```\n    return 2 * x"
QUOTING = "def double(x):\n    fence = '```'\n    return 2 * x if fence else 0"
HELPER = "def twice(x):\n    return 2 * x"
HELPED = "def double(x):\n    return twice(x)"
WRONG = "def double(x):\n    return 3 * x"
STRAY, FENCE, TEXT, OTHER = "stray fence removed", "fence removed", "text removed", "other program dropped"

RIGHT = [
    # in the words of the report
    (f"{PROGRAM}\n```", PROGRAM, (STRAY,)),
    (f"{PROGRAM}\n```\nThis function doubles x.", PROGRAM, (STRAY, TEXT)),
    (f"```python\n{DOCUMENTED}\n```", DOCUMENTED, (FENCE,)),
    (f"```python\r\n{PROGRAM}\r\n```\r\n".replace("x):\n", "x):\r\n"), PROGRAM, ("line ends changed", FENCE)),
    (f"  {PROGRAM}", PROGRAM, ()),
    (f"``` python\n{PROGRAM}\n```", PROGRAM, (FENCE,)),
    (f"```python title=x\n{PROGRAM}\n```", PROGRAM, (FENCE,)),
    (f"```\n1. take x\n2. double it\n```\n```python\n{PROGRAM}\n```", PROGRAM, (FENCE, TEXT)),
    # others of their kind
    (DOCUMENTED, DOCUMENTED, ()),
    (f"{DOCUMENTED}\n```\nIt's done.", DOCUMENTED, (STRAY, TEXT)),
    (f"{COMMENTED}\n```", COMMENTED, (STRAY,)),
    (f"```python\n{QUOTING}\n```", QUOTING, (FENCE,)),
    (
        "    import math\n    def double(x):\n        return 2 * x",
        f"import math\n{PROGRAM}",
        ("indentation removed",),
    ),
    (f"```py\n{PROGRAM}", PROGRAM, (FENCE,)),
    (f"```{{.python .numbered}}\n{PROGRAM}\n```", PROGRAM, (FENCE,)),
    (f"~~~python\n{PROGRAM}\n~~~", PROGRAM, (FENCE,)),
    (f"````markdown\nLook:\n```python\n{PROGRAM}\n```\n````", PROGRAM, (FENCE, TEXT)),
    (f"Here's what I'd do: ```python\n{PROGRAM}\n```", PROGRAM, (FENCE, TEXT)),
    (
        "Use ```python def double(x): return 2 * x``` here",
        "def double(x): return 2 * x",
        (FENCE, TEXT),
    ),
    (f"```bash\npip install numpy\n```\nThen\n```python\n{PROGRAM}\n```", PROGRAM, (FENCE, TEXT)),
    (f"```\nls\n```\n```python\n{PROGRAM}\n```", PROGRAM, (FENCE, TEXT)),
    (f"```\nA small note.\n```\n\n{PROGRAM}", PROGRAM, (FENCE, TEXT)),
    (f'Use """ for docs.\n```python\n{DOCUMENTED}\n```', DOCUMENTED, (FENCE, TEXT)),
    (f"Here is the function:\n\n{PROGRAM}\n\nThis function doubles its argument.", PROGRAM, (TEXT,)),
    (f"Sure\n{PROGRAM}", PROGRAM, (TEXT,)),
    (f"{PROGRAM}\n\nEnjoy", PROGRAM, (TEXT,)),
    (f"{PROGRAM}\n\n- it takes x\n- it gives 2 * x", PROGRAM, (TEXT,)),
    (f"{PROGRAM}\n\nExample usage:\n    print(double(2))", PROGRAM, (TEXT,)),
    ("`def double(x): return 2 * x`", "def double(x): return 2 * x", ("code marks removed",)),
    (f"\ufeff{PROGRAM}", PROGRAM, ("blanks replaced",)),
    (PROGRAM.replace("    ", "\u00a0" * 4), PROGRAM, ("blanks replaced",)),
    (PROGRAM.replace("return ", "return\u202f"), PROGRAM, ("blanks replaced",)),
    (
        ">>> def double(x):\n...     return 2 * x\n...\n>>> n = double(2)\n>>> n\n4",
        f"{PROGRAM}\n\nn = double(2)\nn",
        ("prompts removed",),
    ),
    (
        "1. Plan\n2. Code:\n   ```python\n   import math\n   def double(x):\n       return 2 * x\n   ```\n3. Done",
        f"import math\n{PROGRAM}",
        (FENCE, "indentation removed", TEXT),
    ),
    (
        f"```python\n{HELPER}\n```\n```python\n{HELPED}\n```",
        f"{HELPER}\n\n{HELPED}",
        (FENCE, "helper added"),
    ),
    (
        "import math\n\nHere is the function:\n\ndef double(x):\n    return math.floor(2 * x)",
        "import math\n\ndef double(x):\n    return math.floor(2 * x)",
        (TEXT, "helper added"),
    ),
    (f"```\n{HELPER}\n```\n```\n{PROGRAM}\n```", PROGRAM, (FENCE, OTHER)),
    (f"```\n{HELPER}\n\n\n# much longer\n```\n{PROGRAM}", PROGRAM, (FENCE, OTHER)),
    (f"```\n{WRONG}\n```\nI meant:\n```\n{PROGRAM}\n```", PROGRAM, (FENCE, TEXT, OTHER)),
]


@pytest.fixture(scope="module")
def task() -> Iterator[tuple[CodeRepair, Task[Bench]]]:
    problem = Problem("code-9001", "Double a number.", PROGRAM, ("assert double(2) == 4",), ())
    with Sandbox(Limits(cpu_s=1, wall_s=10)) as sandbox:
        repair = CodeRepair(sandbox, [problem])
        yield repair, repair.tasks(1, streams(0))[0]


@pytest.mark.parametrize(("raw", "program", "edits"), RIGHT)
def test_a_right_program_is_found_whatever_stands_around_it(
    raw: str, program: str, edits: tuple[str, ...], task: tuple[CodeRepair, Task[Bench]]
) -> None:
    found = extract(raw, WANTED)
    assert (found.action.text, found.edits) == (program, edits)
    assert extract(program, WANTED).action.text == program
    repair, errand = task
    rollout = run(repair, errand, HARNESSES["verbatim+ban"], PHRASES, saying([raw]), max_steps=1)
    (step,) = rollout.steps
    assert (rollout.end, step.raw, step.action, step.extraction) == ("solved", raw, program, edits)
    assert step.canonical == repair.canonical(program) and step.dropped == found.dropped


def test_what_is_asked_for_may_stand_in_several_blocks() -> None:
    two = frozenset({"double", "twice"})
    for raw in (f"```\n{HELPED}\n```\n```\n{HELPER}\n```", f"{HELPED}\n```\nand\n```\n{HELPER}\n```"):
        found = extract(raw, two)
        names: dict[str, object] = {}
        exec(found.action.text, names)
        double = names["double"]
        assert callable(double) and double(4) == 8
        assert "helper added" in found.edits and found.dropped == ""
    constant = (
        "import math\n\n```\nHALF = 0.5\n```\n```\ndef double(x):\n    return math.floor(x / HALF)\n```"
    )
    assert extract(constant, WANTED).action.text.startswith("import math\n\nHALF = 0.5\n\ndef double")


def test_other_programs_of_a_reply_are_kept_in_the_row() -> None:
    assert extract(f"```\n{WRONG}\n```\n```\n{PROGRAM}\n```", WANTED).dropped == WRONG
    assert (
        extract(f"```\n{PROGRAM}\n```\n```\n{WRONG}\n```", WANTED).action.text == WRONG
    )  # as large: the last
    longer = f"{PROGRAM}  # checked"
    assert extract(f"```\n{longer}\n```\n```\n{WRONG}\n```", WANTED).action.text == longer


BROKEN = "def double(x)\n    return 2"
HARD = f"import math\nThis one is hard:\n{BROKEN}"
HALF = f"{PROGRAM}\nelse:\n    return 0"


@pytest.mark.parametrize(
    ("raw", "program"),
    [
        # The syntax error of the program asked for is the reply's, whatever else parses.
        (f"```\nimport math\n```\n```\n{BROKEN}\n```\n```\n{HELPER}\n```", BROKEN),
        (HARD, HARD),
        # A broken program is not cut to the part of it that parses.
        ("def double(x):\n    y = 2 * x\n    return y +", "def double(x):\n    y = 2 * x\n    return y +"),
        (HALF, HALF),
        ("def double(x):\n    return 2 * x\nprint double(2)", "def double(x):\n    return 2 * x\nprint double(2)"),
        (f"{PROGRAM}\nprint n", f"{PROGRAM}\nprint n"),
        (f"{PROGRAM}\nreturn x y", f"{PROGRAM}\nreturn x y"),
        # What fails when it runs is left to run, and what may be there is no word.
        (f"from math import *\n{PROGRAM}\ntau", f"from math import *\n{PROGRAM}\ntau"),
        (f"{PROGRAM}\nprint(dubble)", f"{PROGRAM}\nprint(dubble)"),
        (f"{PROGRAM}\nreturn 3", f"{PROGRAM}\nreturn 3"),
        (f"```\n{HELPER}\n```", HELPER),
        # No program at all: as it stands.
        ("double", "double"),
        ("Sure, here it is:", "Sure, here it is:"),
        ("```\nls -l\n```", "ls -l"),
        ("", ""),
    ],
)  # fmt: skip
def test_what_is_no_right_program_is_not_made_one(raw: str, program: str) -> None:
    assert extract(raw, WANTED).action.text == program


def test_no_program_of_the_pool_nor_a_mutant_is_touched() -> None:
    for problem in bundled_problems():
        wanted = frozenset(problem.names)
        for code in [problem.code, *(mutant.code for mutant in mutants(problem.code))]:
            for names in (wanted, frozenset({"absent"}), frozenset()):
                assert extract(code, names) == type(extract(code, names))(Action(code)), code


@pytest.mark.parametrize(
    ("text", "end"),
    [
        (f"```python\n{PROGRAM}\n```", None),
        (f"{PROGRAM}\n```", None),  # the fence that nothing opened
        (f"```python\n{DOCUMENTED}\n```", None),
        (f"```python\n{QUOTING}\n```", None),
        (f"```\na plan: import it\n```\n```python\n{PROGRAM}\n```", None),
        (f"```bash\npip install x\n```\n```python\n{PROGRAM}\n```", None),
        (f"```\n{HELPER}\n```\n```\n{PROGRAM}\n```", None),
        (f"~~~\n{PROGRAM}\n~~~", None),
        ("```\ndef double(x)\n    return 2\n```", None),  # broken, and closed
        ("````markdown\nLook:\n```python\ndef double(x)\n    return 2\n```", None),
        (f"```\n{PROGRAM}\n```", None),
    ],
)
def test_a_turn_ends_with_the_fence_that_closes_its_program_and_no_other(text: str, end: None) -> None:
    assert [at for at in range(len(text) + 1) if ended(text[:at], WANTED)] == [len(text)]
    assert ended(f"{text}\nmore\n```\n", WANTED)


def test_a_turn_goes_on_where_no_program_is_closed() -> None:
    for text in (PROGRAM, f"```\n{PROGRAM}\n", f"```\n{HELPER}\n```\n", "```\nls\n```\n", "```" * 9):
        assert not any(ended(text[:at], WANTED) for at in range(len(text) + 1))


@settings(max_examples=300, deadline=None)
@given(text=st.lists(PIECES, max_size=25).map("".join))
@example(text="'```\ndef double(x):\n    pass\n```'\n```")
def test_what_is_extracted_is_extracted_again_and_an_end_is_final(text: str) -> None:
    for names in (frozenset({"f"}), frozenset({"absent"})):
        found = extract(text, names)
        assert extract(found.action.text, names).action == found.action
        ends = [ended(text[:at], names) for at in range(len(text) + 1)]
        assert ends == sorted(ends)
    assert [calls.ended(text[:at]) for at in range(len(text) + 1)] == sorted(
        calls.ended(text[:at]) for at in range(len(text) + 1)
    )


def test_replies_of_a_thousand_tokens_are_read_in_time() -> None:
    """Worst cases; a turn asks once for every token that may come next."""
    for text in (
        "```\n" * 1000,
        "```python\n" + "x = '`'\n" * 500,
        ("```\n" + "def f(x\n" * 5) * 90,
        'It\'s """ ```\n' * 300,
        "Here is more text\nx = (\n" * 150,
        "x\u00a0= 1\n" * 600,
        "((" * 2000,
        "drop_meeting(\n" * 300,
        "drop_meeting(ref='''" + "a\n" * 1900,
    ):
        start = time.perf_counter()
        extract(text, WANTED)
        calls.extract(text)
        assert time.perf_counter() - start < 5
        start = time.perf_counter()
        for _ in range(20):
            ended(text, WANTED)
            calls.ended(text)
        assert (time.perf_counter() - start) / 20 < 0.1


CALL = "drop_meeting(ref='mt-7')"
SAVE = "save_document(location='a.txt', text='b')"


@pytest.mark.parametrize(
    ("raw", "call", "edits", "dropped"),
    [
        ("save_document(\n    location='a.txt',\n    text='b',\n)", SAVE, (), ""),
        ("save_document(location='a.txt',\r\n  text='b')\r\n", SAVE, (), ""),
        ("save_document(location='a.txt', text='''b''')", SAVE, (), ""),
        ("save_document(location='a.txt', text=(\n'b'))", SAVE, (), ""),
        ("save_document(location=\\\n'a.txt', text='b')", SAVE, (), ""),
        ("save_document(location='a\\\n.txt', text='b')", SAVE, (), ""),
        ("save_document(  # to a file\n  location='a.txt',  # it's here\n  text='b')  # so", SAVE, (), ""),
        ("```python\nsave_document(\n  location='a.txt',\n  text='b'\n)\n```", SAVE, (FENCE,), ""),
        ("Action: save_document(\n'a.txt',\n'b')\nI hope.", SAVE, ("label removed", TEXT), ""),
        ("`save_document(\n'a.txt',\n'b')`", SAVE, ("code marks removed",), ""),
        (f"{CALL}; done()", CALL, ("second call dropped",), "done()"),
        (f"{CALL} done()", CALL, ("second call dropped",), "done()"),
        (f"{CALL}, done()", CALL, ("second call dropped",), "done()"),
        (f"{CALL}\ndone()", CALL, ("second call dropped",), "done()"),
        (f"{CALL}\n\nAction: {SAVE}\ndone()", CALL, ("second call dropped",), f"{SAVE}\ndone()"),
        (f"save_document(\n'a.txt',\n'b'); {CALL}", SAVE, ("second call dropped",), CALL),
        (f"{CALL}; save_document(loc", CALL, ("second call dropped",), "save_document(loc"),
        (f"```\n{CALL}\n{SAVE}\n```", CALL, (FENCE, "second call dropped"), SAVE),
        (f"{CALL}\nThat will do.", CALL, (TEXT,), ""),
        (f"Tool: {CALL}", CALL, ("label removed",), ""),
        ("plan_remindr(\n note='a')", "plan_remindr(note='a')", (), ""),  # no such tool, and a call
    ],
)
def test_the_first_call_is_the_action_however_many_lines_it_has(
    raw: str, call: str, edits: tuple[str, ...], dropped: str
) -> None:
    found = SHED.extract(raw)
    assert SHED.canonical(found.action.text) == SHED.canonical(call)
    assert SHED.reading(found.action, False) == "call"
    assert (found.edits, found.dropped) == (edits, dropped)
    assert SHED.extract(found.action.text).action == found.action


def test_text_in_three_quotes_keeps_its_line_breaks() -> None:
    raw = "save_document(location='a.txt', text='''b\nc\n\nd''')\nmore"
    (step, *_) = run(
        SHED, SHED.rollout_tasks(1, streams(0))[0], HARNESSES["verbatim"], PHRASES, saying([raw]), 1
    ).steps
    assert step.action == raw.removesuffix("\nmore") and step.raw == raw
    assert SHED.canonical(step.action) == r"save_document(location='a.txt', text='b\nc\n\nd')"
    assert step.extraction == (TEXT,) and step.dropped == ""


@pytest.mark.parametrize(
    ("raw", "action", "kind"),
    [
        ("drop_meeting(ref='mt-7') and done()", "drop_meeting(ref='mt-7') and done()", "unparsable"),
        ("drop_meeting(ref='mt-7') if done() else 1", "drop_meeting(ref='mt-7') if done() else 1", "unparsable"),
        ("drop_meeting(ref='mt-7') if (1) else 2", "drop_meeting(ref='mt-7') if (1) else 2", "unparsable"),
        ("drop_meeting(ref='mt-7');", "drop_meeting(ref='mt-7');", "unparsable"),
        ("drop_meeting(ref='mt-7') I hope", "drop_meeting(ref='mt-7') I hope", "unparsable"),
        ("drop_meeting(ref=mt-7)", "drop_meeting(ref=mt-7)", "unparsable"),
        ("drop_meeting(\nref=mt-7)", "drop_meeting(\nref=mt-7)", "unparsable"),
        ("drop_meeting(\nref='mt-7' 3)", "drop_meeting(\nref='mt-7' 3)", "unparsable"),
        ("drop_meeting(\nref='mt-7') I hope", "drop_meeting(\nref='mt-7') I hope", "unparsable"),
        ("drop_meeting(ref='mt-7'\ndone()", "drop_meeting(ref='mt-7'", "truncated"),
        ("drop_meeting(ref='mt\n-7')", "drop_meeting(ref='mt", "truncated"),
        ("drop_meeting([1, 2)\n]", "drop_meeting([1, 2)", "truncated"),
        ("Note (see\n1)", "Note (see", "prose"),
        ("drop_meeting(\n" + "1,\n" * 30 + ")", "drop_meeting(", "truncated"),
    ],
)  # fmt: skip
def test_what_python_does_not_read_as_a_call_is_read_as_before(raw: str, action: str, kind: str) -> None:
    found = SHED.extract(raw).action
    assert (found.text, SHED.reading(found, False)) == (action, kind)


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("save_document(\n  location='a',\n  text='b'\n)\nmore\n", "save_document(\n  location='a',\n  text='b'\n)\n"),
        ("save_document(text='''b\nc''')\nx", "save_document(text='''b\nc''')\n"),
        ("drop_meeting(ref=\\\n'a')\nx", "drop_meeting(ref=\\\n'a')\n"),
        (f"{CALL}; done()\nx", f"{CALL}; done()\n"),
        ("drop_meeting(ref='mt\nx", "drop_meeting(ref='mt\n"),  # a text that the line ends
        ("drop_meeting(ref='a'\nI will now\nx", "drop_meeting(ref='a'\nI will now\n"),  # no argument
        ("drop_meeting(ref='a'\ndone()\nx", "drop_meeting(ref='a'\ndone()\n"),
        ("drop_meeting(ref=[1)\nx", "drop_meeting(ref=[1)\n"),
        (f"```\ndrop_meeting(ref='a'\n```\n{CALL}\n", "```\ndrop_meeting(ref='a'\n```\n"),
        ("I will (soon\nx", "I will (soon\n"),
        ("drop_meeting(\n" + "1,\n" * 40, "drop_meeting(\n" + "1,\n" * 19),
    ],
)  # fmt: skip
def test_a_turn_ends_with_the_line_of_the_closing_bracket(text: str, turn: str) -> None:
    first = next(at for at in range(len(text) + 1) if SHED.stops(text[:at]))
    assert text[:first] == turn


def test_one_line_replies_are_read_as_they_always_were() -> None:
    """Against the old rule, written out: the first line that holds something, unless it holds two calls."""
    rng = random.Random(5)
    pieces = [
        "drop_meeting(",
        "ref=",
        "'a'",
        ")",
        "[",
        "]",
        ",",
        " ",
        "I will",
        "`",
        "Action:",
        "(",
        "x",
        ";",
        '"',
    ]
    for _ in range(4000):
        line = "".join(rng.choices(pieces, k=rng.randint(1, 9)))
        old = line[calls._bare(line)[0] : calls._bare(line)[1]]
        new = SHED.extract(line)
        assert new.action.text == old or "second call dropped" in new.edits
        assert SHED.stops(f"{line}\n") == (
            bool(old) and calls._end(f"{line}\n", calls._bare(line)[0]) != "open"
        )


def test_every_edit_has_a_case_here() -> None:
    named = {edit for *_, edits in RIGHT for edit in edits} | {"label removed", "second call dropped"}
    assert named == set(EDITS)


def test_what_the_tests_call_is_what_is_wanted() -> None:
    two = replace(
        bundled_problems()[0], code=f"{HELPER}\n{HELPED}", tests=("assert double(1) == twice(1)",), imports=()
    )
    assert set(two.names) == {"double", "twice"}
