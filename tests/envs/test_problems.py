"""The bundled problems are sound, their asserts have teeth and they are our own; the loader refuses bad files."""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.coderepair.problems import BUNDLED, Problem, bundled_problems, load_problems
from envs.errors import InputError

OURS = bundled_problems()
REPOSITORY = Path(__file__).resolve().parent.parent.parent
RECORD = {
    "task_id": 3,
    "prompt": "Write a function that doubles.",
    "code": "def twice(x):\n    return 2 * x",
    "test_list": ["assert twice(2) == 4", "assert twice(-1) == -2"],
    "test_imports": [],
}


def run(program: str | ast.Module, problem: Problem, steps: int = 20_000) -> None:
    """Run the program and its asserts here; RuntimeError after so many turns of loops and calls of functions."""
    tree = copy.deepcopy(program) if isinstance(program, ast.Module) else ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While, ast.FunctionDef)):
            node.body.insert(0, ast.parse("_tick()").body[0])
    left = steps

    def tick() -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("out of steps")

    names: dict[str, Any] = {"_tick": tick}
    exec(compile(ast.fix_missing_locations(tree), "<program>", "exec"), names)
    for statement in (*problem.imports, *problem.tests):
        exec(statement, names)


FLIPPED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}


class DropNot(ast.NodeTransformer):
    """Drops the one `not` that stands at the given place of the walk."""

    def __init__(self, target: ast.UnaryOp):
        self.target = target

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        return node.operand if node is self.target else node


def mutants(code: str) -> Iterator[tuple[str, ast.Module]]:
    """(kind, tree) of every comparison and truth value flipped, number moved by one, `not` dropped."""
    for place, node in enumerate(ast.walk(ast.parse(code))):
        kinds: list[tuple[str, int]] = []
        if isinstance(node, ast.Compare):
            kinds = [("comparison", part) for part in range(len(node.ops))]
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            kinds = [("number", 1), ("number", -1)]
        elif isinstance(node, ast.Constant) and type(node.value) is bool:
            kinds = [("truth value", 0)]
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            kinds = [("not", 0)]
        for kind, detail in kinds:
            tree = ast.parse(code)
            same = list(ast.walk(tree))[place]
            if isinstance(same, ast.Compare):
                same.ops[detail] = FLIPPED[type(same.ops[detail])]()
            elif isinstance(same, ast.Constant) and isinstance(same.value, int):
                same.value = not same.value if kind == "truth value" else same.value + detail
            elif isinstance(same, ast.UnaryOp):
                tree = DropNot(same).visit(tree)
            yield kind, tree


def fate(tree: ast.Module, problem: Problem) -> str:
    """How the asserts answer a mutant: the name of the exception, or "passed"."""
    try:
        run(tree, problem)
    except Exception as error:
        return f"{type(error).__name__}: {error}" if isinstance(error, RuntimeError) else type(error).__name__
    return "passed"


def test_there_are_at_least_sixty_problems_with_three_to_five_asserts_each() -> None:
    assert len(OURS) >= 60
    assert [p.task_id for p in OURS] == [f"code-{n:04d}" for n in range(1, len(OURS) + 1)]
    assert {len(p.tests) for p in OURS} <= {3, 4, 5}
    for what in ("prompt", "code", "function"):
        assert len({getattr(p, what) for p in OURS}) == len(OURS), what


@pytest.mark.parametrize("problem", OURS, ids=lambda problem: problem.function)
def test_the_reference_passes_and_every_assert_calls_it(problem: Problem) -> None:
    run(problem.code, problem)
    for test in problem.tests:
        called = {node.func.id for node in ast.walk(ast.parse(test)) if isinstance(node, ast.Call)
                  and isinstance(node.func, ast.Name)}  # fmt: skip
        assert problem.function in called, test
    assert 3 <= len(problem.code.split("\n")) <= 14
    assert problem.prompt.startswith("Write a function ") and problem.prompt.endswith(".")


def test_the_file_is_plain_and_sorted() -> None:
    text = BUNDLED.read_bytes().decode("ascii")
    lines = text.split("\n")
    assert lines.pop() == ""
    records = [json.loads(line) for line in lines]
    keys = ["task_id", "prompt", "code", "test_list", "test_imports"]
    assert all(list(record) == keys for record in records)
    assert [record["task_id"] for record in records] == list(range(1, len(records) + 1))
    for record in records:
        for piece in (record["prompt"], record["code"], *record["test_list"]):
            assert all(line == line.rstrip() for line in piece.split("\n")) and piece == piece.strip()
            assert "\t" not in piece and "print" not in piece
        modules = {
            alias.name
            for node in ast.walk(ast.parse(record["code"]))
            if isinstance(node, ast.Import)
            for alias in node.names
        }
        assert modules <= {"math", "re"}, record["task_id"]


def test_the_asserts_have_teeth() -> None:
    fates: dict[str, list[str]] = {"comparison": [], "number": [], "truth value": [], "not": []}
    for problem in OURS:
        own = []
        for kind, tree in mutants(problem.code):
            own.append(fate(tree, problem))
            fates[kind].append(own[-1])
        assert any(each != "passed" for each in own), f"{problem.task_id}: no mutant is caught"
    every = [each for found in fates.values() for each in found]
    caught = 1 - every.count("passed") / len(every)
    assert len(every) > 500 and len(fates["not"]) >= 15
    assert caught >= 0.85, f"{caught:.3f} of {len(every)} mutants are caught"
    # The other families have their share: programs that never end, and programs that raise.
    assert 5 <= every.count("RuntimeError: out of steps") <= 0.15 * len(every)
    assert sum(each in ("IndexError", "KeyError", "TypeError", "ValueError") for each in every) >= 20


def test_the_teeth_are_measured_on_mutants_that_differ_and_a_right_program_has_none() -> None:
    problem = OURS[0]
    assert fate(ast.parse(problem.code), problem) == "passed"
    for each in OURS:
        plain = ast.unparse(ast.parse(each.code))
        assert all(ast.unparse(tree) != plain for _, tree in mutants(each.code)), each.task_id
    loop = Problem("code-0", "p", "def f():\n    while True:\n        pass", ("assert f()",), ())
    assert fate(ast.parse(loop.code), loop) == "RuntimeError: out of steps"


class Anonymous(ast.NodeTransformer):
    """A program with its names replaced by numbers, in the order in which they come."""

    def __init__(self) -> None:
        self.numbers: dict[str, str] = {}

    def _number(self, name: str) -> str:
        return self.numbers.setdefault(name, f"v{len(self.numbers)}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._number(node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._number(node.arg))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._number(node.name)
        return self.generic_visit(node)


def shape(code: str) -> str:
    return ast.dump(Anonymous().visit(ast.parse(code)))


def words(prompt: str) -> set[str]:
    return {word.strip(".,;:'\"()") for word in prompt.lower().split()}


def test_shapes_see_through_names_only() -> None:
    assert shape("def f(a):\n    return a + 1") == shape("def g(b):\n  return b + 1")
    assert shape("def f(a):\n    return a + 1") != shape("def f(a):\n    return a + 2")


# An invalid escape in one of their programs: a DeprecationWarning, from Python 3.12 on a SyntaxWarning.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")
def test_no_problem_is_one_of_mbpp(reference_dir: Path) -> None:
    mbpp = load_problems(reference_dir / "mbpp_sanitized.json")
    theirs = {definition.name for each in mbpp for definition in ast.walk(ast.parse(each.code))
              if isinstance(definition, ast.FunctionDef)}  # fmt: skip
    assert not theirs & {problem.function for problem in OURS}
    assert not {shape(each.code) for each in mbpp} & {shape(problem.code) for problem in OURS}
    prompts = [words(each.prompt) for each in mbpp]
    for problem in OURS:
        own = words(problem.prompt)
        overlap = max(len(own & other) / len(own | other) for other in prompts)
        assert overlap < 0.5, f"{problem.task_id}: {overlap:.2f} of its words are those of one prompt"


# ---------------------------------------------------------------- the loader


def test_mbpp_loads_whole_and_in_order(reference_dir: Path) -> None:
    source = reference_dir / "mbpp_sanitized.json"
    raw = json.loads(source.read_text(encoding="utf-8"))
    problems = load_problems(source)
    assert len(problems) == len(raw) == 427
    assert [p.task_id for p in problems[:3]] == ["mbpp-0002", "mbpp-0003", "mbpp-0004"]
    for problem, record in zip(problems, raw, strict=True):
        assert problem.task_id == f"mbpp-{record['task_id']:04d}"
        assert list(problem.tests) == [test.strip() for test in record["test_list"]]
        assert problem.imports == tuple(record["test_imports"])
        assert problem.code.split() == record["code"].split()
        assert not any(line != line.rstrip() for line in problem.code.split("\n"))
        assert all(problem.function in test for test in problem.tests)


def write(folder: Path, *records: Any, name: str = "problems.jsonl") -> Path:
    file = folder / name
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return file


def test_a_list_and_lines_of_the_same_records_are_equal(tmp_path: Path) -> None:
    records = [json.loads(line) for line in BUNDLED.read_text(encoding="utf-8").splitlines()]
    lines = write(tmp_path, *records[::-1])
    whole = tmp_path / "problems.json"
    whole.write_bytes(b"\xef\xbb\xbf" + json.dumps(records, indent=1).encode())
    assert load_problems(lines, prefix="code") == load_problems(str(whole), prefix="code") == OURS


def test_the_full_schema_is_read_too(tmp_path: Path) -> None:
    record = {
        "text": " Write a function that doubles. ",
        "code": "class Two:\n\tn = 2   \r\n\ndef twice(x):\r\n    return Two.n * x \n\n  \n",
        "task_id": 7,
        "test_setup_code": "one = Two()\n",
        "test_list": ["assert twice(one.n) == 4 "],
        "challenge_test_list": [],
    }
    (problem,) = load_problems(write(tmp_path, record))
    assert problem == Problem(
        "mbpp-0007",
        "Write a function that doubles.",
        "class Two:\n\tn = 2\n\ndef twice(x):\n    return Two.n * x",
        ("assert twice(one.n) == 4",),
        ("one = Two()",),
    )
    assert problem.function == "twice"
    run(problem.code, problem)


def test_the_function_is_the_one_that_the_asserts_call_most() -> None:
    code = "def helper(x):\n    return x\n\ndef main(x):\n    return helper(x)"
    tests = ("assert main(helper(1)) == 1", "assert sorted(main([2, 1])) == [1, 2]")
    assert Problem("code-1", "p", code, tests, ()).function == "main"


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in RECORD.items() if name != key}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ([1], "line 2: a problem is a JSON object, not a list"),
        (without("task_id"), "line 2: the key 'task_id' is missing"),
        (without("prompt"), "line 2: the key 'prompt' is missing"),
        (without("code"), "line 2: the key 'code' is missing"),
        (without("test_list"), "line 2: the key 'test_list' is missing"),
        (RECORD | {"task_id": "3"}, "line 2: 'task_id' must be a whole number, not text"),
        (RECORD | {"task_id": True}, "line 2: 'task_id' must be a whole number, not a bool"),
        (RECORD | {"task_id": -3}, "line 2: 'task_id' must be at least 0, not -3"),
        (RECORD | {"task_id": 1}, r"line 2: the task_id 1 is taken already \(line 1\); remove one"),
        (RECORD | {"prompt": 5}, "line 2: 'prompt' must be text, not a whole number"),
        (RECORD | {"prompt": " "}, "line 2: 'prompt' is empty"),
        (RECORD | {"code": []}, "line 2: 'code' must be text, not a list"),
        (RECORD | {"code": "\n"}, "line 2: 'code' is empty"),
        (RECORD | {"code": "def twice(x)"}, r"line 2: the code does not compile: .* \(line 1\)"),
        (RECORD | {"code": "return 1"}, "line 2: the code does not compile: 'return' outside function"),
        (RECORD | {"code": "x = '\0'"}, "line 2: the code does not compile: .*null bytes"),
        (RECORD | {"test_list": "assert twice(1)"}, "line 2: 'test_list' must be a list, not text"),
        (RECORD | {"test_list": []}, "line 2: 'test_list' is empty"),
        (
            RECORD | {"test_list": ["assert twice(1)", 2]},
            "line 2: 'test_list' must hold text only, not a whole",
        ),
        (RECORD | {"test_list": ["assert twice("]}, r"line 2: the test 'assert twice\(' does not compile"),
        (RECORD | {"test_list": ["twice(1) == 2"]}, r"line 2: the test 'twice\(1\) == 2' must be one assert"),
        (RECORD | {"test_list": ["assert twice(1); x = 1"]}, "line 2: the test '.*' must be one assert"),
        (RECORD | {"test_list": [""]}, "line 2: the test '' must be one assert"),
        (RECORD | {"test_list": ["assert thrice(1)"]}, "line 2: the tests never call what the code defines"),
        (RECORD | {"test_imports": "import math"}, "line 2: 'test_imports' must be a list, not text"),
        (RECORD | {"test_imports": ["import"]}, "line 2: the statement 'import' does not compile"),
        (RECORD | {"test_setup_code": 1}, "line 2: 'test_setup_code' must be text, not a whole number"),
    ],
)
def test_a_bad_record_is_refused_by_line(tmp_path: Path, record: object, said: str) -> None:
    file = write(tmp_path, RECORD | {"task_id": 1}, record)
    with pytest.raises(InputError, match=rf"problems\.jsonl, {said}.*\.$"):
        load_problems(file)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no problems"),
        (b"\n \n", "holds no problems"),
        (b"[]", "holds no problems"),
        (
            b"[" + json.dumps(RECORD).encode() + b", 4]",
            "entry 2: a problem is a JSON object, not a whole number",
        ),
        (b"[{]", r"bad: not valid JSON: .* \(column 3\)"),
        (b"[\n{}\n", r"bad: not valid JSON: .* \(line \d, column \d\)"),
        (json.dumps(RECORD).encode() + b'\n{"task_id": 3', r"bad, line 2: not valid JSON: .* \(column \d+\)"),
        (b'{"task_id": ' + b"[" * 200_000, "bad, line 1: not readable as JSON"),
        (b"\xff\xfe", "is not UTF-8 text"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "bad"
    file.write_bytes(content)
    with pytest.raises(InputError, match=said):
        load_problems(file)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Cannot read the problem file '.*nowhere\.json': No such file"):
        load_problems(tmp_path / "nowhere.json")


# ---------------------------------------------------------------- dataset folders


def full_records() -> list[dict[str, Any]]:
    """Our problems as the full MBPP writes its own."""
    lines = BUNDLED.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [
        {
            "task_id": record["task_id"],
            "text": record["prompt"],
            "code": record["code"],
            "test_list": record["test_list"],
            "test_setup_code": "\n".join(record["test_imports"]),
            "challenge_test_list": [],
        }
        for record in records
    ]


def test_a_folder_saved_to_disk_is_read_with_and_without_splits(tmp_path: Path) -> None:
    import datasets  # a dependency of transformer-lens: always installed

    records = full_records()
    whole = datasets.Dataset.from_list(records)
    splits = datasets.DatasetDict({
        "train": datasets.Dataset.from_list(records[40:]),
        "test": datasets.Dataset.from_list(records[:40]),
    })  # fmt: skip
    whole.save_to_disk(tmp_path / "whole")
    splits.save_to_disk(tmp_path / "splits")
    assert load_problems(tmp_path / "whole", prefix="code") == OURS
    assert load_problems(tmp_path / "splits", prefix="code") == OURS

    datasets.Dataset.from_list([records[0], records[1] | {"code": "def"}]).save_to_disk(tmp_path / "bad")
    with pytest.raises(InputError, match=r"bad, row 2: the code does not compile"):
        load_problems(tmp_path / "bad")
    (tmp_path / "whole" / "data-00000-of-00001.arrow").write_bytes(b"torn")
    with pytest.raises(InputError, match="Cannot read the dataset folder '.*whole'"):
        load_problems(tmp_path / "whole")


def test_a_folder_of_parquet_files_is_read_and_two_datasets_are_not_mixed(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    records = full_records()
    hub = tmp_path / "hub"
    (hub / "full").mkdir(parents=True)
    for name, part in (("test", records[:50]), ("train", records[50:])):
        table = pyarrow.Table.from_pylist(part)
        pyarrow.parquet.write_table(table, hub / "full" / f"{name}-00000-of-00001.parquet")
    assert load_problems(hub, prefix="code") == load_problems(hub / "full", prefix="code") == OURS

    (hub / "small").mkdir()
    twice = pyarrow.Table.from_pylist([records[0], records[0]])
    pyarrow.parquet.write_table(twice, hub / "small" / "test.parquet")
    with pytest.raises(InputError, match=r"holds several datasets \(full, small\): name one of them\."):
        load_problems(hub)
    with pytest.raises(InputError, match=r"test\.parquet row 2: the task_id 1 is taken already"):
        load_problems(hub / "small")
    (hub / "small" / "test.parquet").write_bytes(b"torn")
    with pytest.raises(InputError, match="Cannot read the dataset folder '.*small'"):
        load_problems(hub / "small")
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        InputError, match="holds no dataset: neither parquet files nor what save_to_disk writes"
    ):
        load_problems(tmp_path / "empty")


def test_without_the_library_a_folder_is_refused_with_what_to_install(tmp_path: Path) -> None:
    """In an interpreter that sees the standard library and this repository only."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from envs.coderepair.problems import bundled_problems, load_problems\n"
        "from envs.errors import InputError\n"
        "assert len(bundled_problems()) >= 60\n"
        "try:\n    load_problems(sys.argv[2])\n"
        "except InputError as error:\n    sys.stdout.write(str(error))\n"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(REPOSITORY), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    wanted = "needs the library datasets: install it with pip install 'backfire[datasets]'."
    assert done.stdout == f"Reading problems from the folder '{tmp_path}' {wanted}"


def test_imports_run_between_program_and_asserts() -> None:
    needy = [problem for problem in OURS if problem.imports]
    assert needy
    for problem in needy:
        with pytest.raises(NameError):
            run(problem.code, replace(problem, imports=()))
