"""Mutations: each operator's exact text on small programs, and what holds for every mutant of every program."""

from __future__ import annotations

import ast
import difflib
import hashlib
import random
import textwrap

import pytest

from envs.coderepair.mutations import OPERATORS, Mutant, mutants
from envs.coderepair.problems import bundled_problems
from envs.coderepair.source import Change, Source
from envs.errors import InputError
from tests.fresh_process import printed

BUNDLED = bundled_problems()


@pytest.fixture(scope="module")
def spoilt() -> dict[str, tuple[Mutant, ...]]:
    """Every bundled program and its mutants."""
    return {problem.code: mutants(problem.code) for problem in BUNDLED}


def texts(operator: str, code: str) -> list[str]:
    """What an operator makes of a program, in order."""
    return [each.code for each in mutants(code) if each.operator == operator]


# operator, the line in which something is changed, what becomes of it (all of the operator's mutants of the line)
LINES = [
    ("comparison_flip", "x = a < b", ["x = a <= b"]),
    ("comparison_flip", "x = (a) >= (b)", ["x = (a) > (b)"]),
    ("comparison_flip", "x = a < b <= c", ["x = a <= b <= c", "x = a < b < c"]),
    ("comparison_flip", "x = a << 1 > b", ["x = a << 1 >= b"]),
    ("comparison_flip", "x = a == b", ["x = a != b"]),
    ("comparison_flip", "x = a == b and c > d", ["x = a == b and c >= d"]),
    ("comparison_flip", 'x = "ü < ö" < b', ['x = "ü < ö" <= b']),
    ("comparison_flip", 'x = f"{a < b}"', []),
    ("off_by_one", "x = range(n)", ["x = range(n - 1)", "x = range(n + 1)"]),
    ("off_by_one", "x = range(1, n + 1)", ["x = range(2, n + 1)", "x = range(1, n)"]),
    ("off_by_one", "x = range(0, 5)", ["x = range(1, 5)", "x = range(0, 4)", "x = range(0, 6)"]),
    ("off_by_one", "x = a[1:n]", ["x = a[2:n]", "x = a[1:n - 1]", "x = a[1:n + 1]"]),
    ("off_by_one", "x = a[:-1]", ["x = a[:-2]", "x = a[:0]"]),
    ("off_by_one", "x = n > 1", ["x = n > 2", "x = n > 0"]),
    ("off_by_one", "x = (n) - 1", ["x = (n)"]),
    ("off_by_one", "x = (n + (1)) * 2", ["x = (n) * 2"]),
    ("off_by_one", "x = n + True", []),
    ("index_shift", "x = a[0]", ["x = a[1]"]),
    ("index_shift", "x = a[-1]", ["x = a[0]", "x = a[-2]"]),
    ("index_shift", "x = [a[i] for i in range(3)]", ["x = [a[i + 1] for i in range(3)]"]),
    ("index_shift", "x = a[i - 1]", ["x = a[i]"]),
    ("index_shift", "x = a[key]", []),
    ("arithmetic_flip", "x = a + b", ["x = a - b"]),
    ("arithmetic_flip", "x = a - b", ["x = a + b"]),
    ("arithmetic_flip", "x = a * b", ["x = a + b"]),
    ("arithmetic_flip", "x = a // b", ["x = a / b"]),
    ("arithmetic_flip", "x = a / b", ["x = a // b"]),
    ("arithmetic_flip", "x = a % b", ["x = a // b"]),
    ("arithmetic_flip", "x = a ** b", ["x = a * b"]),
    ("arithmetic_flip", "x += a", ["x -= a"]),
    ("arithmetic_flip", "x //= a", ["x /= a"]),
    ("arithmetic_flip", "x = c + a * b", ["x = c - a * b"]),  # c + a + b would be another tree
    ("arithmetic_flip", "x = 'a' + b", []),
    ("arithmetic_flip", "x = '%s' % b", []),
    ("logic_flip", "x = a and b", ["x = a or b"]),
    ("logic_flip", "x = not a or(b)", ["x = not a and(b)"]),
    ("logic_flip", "x = a and b or c", []),  # either flip would join the three
    ("boolean_flip", "x = True", ["x = False"]),
    ("boolean_flip", "x = f(a, flag=False)", ["x = f(a, flag=True)"]),
    ("boolean_flip", "x = sorted(a, reverse=True)", []),
    ("dropped_negation", "x = not a", ["x = a"]),
    ("dropped_negation", "x = not(a or b)", ["x = (a or b)"]),
    ("dropped_negation", "x = a not in b", ["x = a in b"]),
    ("dropped_negation", "x = a is not None", ["x = a is None"]),
    ("dropped_negation", "x = -a", ["x = a"]),
    ("dropped_negation", "x = -1", []),
    ("dropped_reverse", "x = a[::-1]", ["x = a[:]"]),
    ("dropped_reverse", "x = a[1::-1]", []),
    ("dropped_reverse", "x = sorted(a, reverse=True)", ["x = sorted(a)"]),
    ("dropped_reverse", "x = sorted(a, reverse=True, key=k)", ["x = sorted(a, key=k)"]),
    ("dropped_reverse", "a.sort(reverse = True)", ["a.sort()"]),
    ("dropped_reverse", "a.sort(reverse=True, key=k)", ["a.sort(key=k)"]),
    ("dropped_reverse", "x = list(reversed(a))", ["x = list(a)"]),
    ("dropped_reverse", "x = sorted(a, reverse=flag)", []),
    ("swapped_operands", "x = a - b", ["x = b - a"]),
    ("swapped_operands", "x = f(a, b + 1)", ["x = f(b + 1, a)"]),
    ("swapped_operands", "x = a + b", []),
    ("swapped_operands", "x = (a + b) - c", []),  # c - a + b would be another tree
    ("wrong_method", "a.append(b)", ["a.extend(b)", "a.add(b)"]),
    ("wrong_method", "x = a . lower()", ["x = a . upper()"]),
    ("wrong_method", "x = max(a)", ["x = min(a)"]),
    ("missing_call", "x = str(a) + b", ["x = a + b"]),
    ("missing_call", "x = a.strip().lower()", ["x = a.lower()", "x = a.strip()"]),
    ("missing_call", "a.sort()", []),
    ("missing_parentheses", "x = a.lower()", ["x = a.lower"]),
    ("wrong_initial", "x = 0", ["x = 1"]),
    ("wrong_initial", "x = []", ["x = {}"]),
    ("wrong_initial", "x = set()", ["x = {}"]),
    ("wrong_initial", "x = ''", ["x = []"]),
    ("wrong_initial", "x = a[0]; x = 2", ["x = 0; x = 2"]),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "line", "becomes"), LINES)
def test_an_operator_makes_these_texts_of_a_line(operator: str, line: str, becomes: list[str]) -> None:
    assert texts(operator, f"pass\n{line}  # ü\n") == [f"pass\n{each}  # ü\n" for each in becomes]


# operator, a whole program, its mutants
PROGRAMS = [
    ("dropped_return", "def f(x):\n    return(x + 1)\n", ["def f(x):\n    (x + 1)\n"]),
    ("dropped_return", "def f(x):\n    return x  # x\n", ["def f(x):\n    pass  # x\n"]),
    ("dropped_return", "def f(x):\n    return\n", []),
    ("printed_return", "def f(x):\n    return x + 1\n", ["def f(x):\n    print(x + 1)\n"]),
    (
        "early_return",
        "def f(x):\n    for y in x:\n        g(y)\n\n    return y\n",
        ["def f(x):\n    for y in x:\n        g(y)\n\n        return y\n"],
    ),
    ("early_return", "def f(x):\n    for y in x: g(y)\n    return y\n", []),
    (
        "dedented_line",
        "def f(x):\n  while x:\n    if x: g(x)\n    x -= 2\n  return x\n",
        ["def f(x):\n  while x:\n    if x: g(x)\n  x -= 2\n  return x\n"],
    ),
    ("missing_guard", "def f(n):\n    'd'\n    if n < 1:\n        return 1\n    return f(n - 1)\n",
     ["def f(n):\n    'd'\n    return f(n - 1)\n"]),
    ("missing_import", "import math\n\nprint(math.pi)\n", ["print(math.pi)\n"]),
    ("missing_import", "x = 1\nfrom math import pi\n\nprint(pi)\n", ["x = 1\n\nprint(pi)\n"]),
    ("missing_import", "import math; x = 1\n", []),
    ("dropped_reverse", "def f(a):\n    a.reverse()\n    return a\n", ["def f(a):\n    return a\n"]),
    (
        "undefined_name",
        "def total(items):\n    return sum(items)\n",
        ["def total(items):\n    return sum(item)\n"],
    ),
    ("undefined_name", "def f(s):\n    return s\n", ["def f(s):\n    return string\n"]),
    ("undefined_name", "def f():\n    return len\n", []),
    ("syntax_slip", "if a == b:\n    c\n", ["if a = b:\n    c\n", "if a == b\n    c\n"]),
    ("syntax_slip", "x = f(a) + 1\n", ["x = f(a + 1\n"]),
    ("syntax_slip", "def f(x) -> dict[str, int]:  # :\n    return x[1:]\n",
     ["def f(x) -> dict[str, int]  # :\n    return x[1:]\n"]),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "code", "becomes"), PROGRAMS)
def test_an_operator_makes_these_texts_of_a_program(operator: str, code: str, becomes: list[str]) -> None:
    assert texts(operator, code) == becomes


def test_a_mutant_says_what_was_changed_and_where() -> None:
    found = mutants("def f(n):\n    s = 'ü'\n    return n < 2\n")
    assert Mutant("comparison_flip", "def f(n):\n    s = 'ü'\n    return n <= 2\n", "< -> <=", 3) in found


def test_misspellings_take_turns_and_leave_the_name_undefined() -> None:
    code = "def f(words):\n    words = words + words\n    word = words\n    return words, words\n"
    found = [each.changed for each in mutants(code) if each.operator == "undefined_name"]
    assert found == [
        "words -> word_list",
        "words -> wods",
        "words -> worrds",
        "words -> word_list",
        "words -> wods",
    ]


def offered() -> list[tuple[Source, str, Change]]:
    """All that the operators offer for a sample of programs, kept or not."""
    found = []
    programs = [problem.code for problem in random.Random(4).sample(BUNDLED, 10)]
    for program in [*programs, "x = c + a * b\ny = (a + b) - c\n"]:
        source = Source(program)
        found += [
            (source, name, change) for name, operator in OPERATORS.items() for change in operator(source)
        ]
    return found


def test_a_change_is_kept_only_if_the_text_parses_as_intended() -> None:
    kept = dropped = 0
    for source, name, change in offered():
        text = source.apply(change)
        edited = source.data[: change.start] + change.text.encode() + source.data[change.end :]
        assert text in (None, edited.decode())
        if text is None:
            dropped += 1
            continue
        kept += 1
        if name == "syntax_slip":
            with pytest.raises(SyntaxError):
                ast.parse(text)
        else:
            assert ast.dump(ast.parse(text)) not in (source.dump, "")
    assert kept > 300 and dropped > 0


def test_a_change_of_another_meaning_is_refused() -> None:
    source = Source("x = a + b * c\n")
    product = next(
        node for node in source.nodes if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
    )

    def add(copy: ast.BinOp) -> ast.AST:
        return ast.BinOp(copy.left, ast.Add(), copy.right)

    at = source.code.index("*")
    assert source.edited(Change(at, at + 1, "+", "", product, add)) == "x = a + b + c\n"
    assert source.apply(Change(at, at + 1, "+", "", product, add)) is None
    assert source.apply(Change(at, at + 1, "* +", "", product, add)) is None
    assert source.apply(Change(at, at + 1, "/", "", product, None)) is None  # was to be an error and is none
    assert source.apply(Change(at, at + 1, "*/", "", product, None)) == "x = a + b */ c\n"


def test_every_mutant_differs_in_one_place_and_has_no_new_trailing_blank(
    spoilt: dict[str, tuple[Mutant, ...]],
) -> None:
    for code, found in spoilt.items():
        old = code.split("\n")
        for mutant in found:
            new = mutant.code.split("\n")
            blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
            hunks = [block for block in blocks if block[0] != "equal"]
            assert len(hunks) == 1, mutant
            _, start, end, _, _ = hunks[0]
            assert start < mutant.line <= max(end, start + 1) or mutant.operator in DELETING, mutant
            assert not [line for line in new if line != line.rstrip()]
            assert mutant.changed and "\n" not in mutant.changed and len(mutant.changed) < 120


DELETING = ("missing_guard", "missing_import", "dropped_reverse", "early_return", "dedented_line")


def test_no_two_mutants_are_equal_and_none_is_a_beginning_of_its_program_or_continues_it(
    spoilt: dict[str, tuple[Mutant, ...]],
) -> None:
    for code, found in spoilt.items():
        assert len({mutant.code for mutant in found}) == len(found)
        for mutant in found:
            assert not code.startswith(mutant.code) and not mutant.code.startswith(code)


def test_a_mutant_that_would_continue_the_program_is_left_out() -> None:
    assert texts("undefined_name", "def f(n1):\n    n = n1\n    return n") == [
        "def f(n1):\n    n = n11\n    return n"
    ]
    assert texts("syntax_slip", "x = f(a)") == []


def test_every_operator_finds_work_in_the_bundled_problems(
    spoilt: dict[str, tuple[Mutant, ...]],
) -> None:
    assert {mutant.operator for found in spoilt.values() for mutant in found} == set(OPERATORS)
    assert all(len({mutant.operator for mutant in found}) >= 5 for found in spoilt.values())


ALL_MUTANTS = """
import hashlib
from envs.coderepair.mutations import mutants
from envs.coderepair.problems import bundled_problems
found = [repr(mutants(problem.code)) for problem in bundled_problems()]
digest = hashlib.sha256("".join(found).encode()).hexdigest()
"""


def test_the_same_program_gives_the_same_mutants_in_every_process(
    spoilt: dict[str, tuple[Mutant, ...]],
) -> None:
    here = hashlib.sha256("".join(map(repr, spoilt.values())).encode()).hexdigest()
    assert len(spoilt) == len(BUNDLED)
    for hash_seed in (0, 1, 2):
        assert printed(f"{ALL_MUTANTS}\nprint(digest)", hash_seed) == here


@pytest.mark.parametrize("code", ["def f(:\n", "x = 1\r\n", "x = '\0'\n"])
def test_a_program_that_cannot_be_changed_is_refused(code: str) -> None:
    with pytest.raises(InputError):
        mutants(code)


def test_formatting_comments_and_wide_characters_survive() -> None:
    code = textwrap.dedent(
        """\
        def  größe( werte ):   # ä
            # Kommentar, ε
            return (  sum(werte)
                      // len( werte ))  # 😀
        """
    )
    (mutant,) = [each for each in mutants(code) if each.operator == "arithmetic_flip"]
    assert mutant.code == code.replace("//", "/") and mutant.line == 4
