"""Texts as programs: whether one parses, after which repair of its layout, what it defines and what it lacks."""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from textwrap import dedent
from unicodedata import category

from envs.agent import Edit

_MARGIN = re.compile(r"^[^\S\n]+", re.MULTILINE)
_PROMPT = re.compile(r"[ \t]*(?:>>>|\.\.\.)(?: |$)")
_CODE_MARKS = re.compile(
    r"`{0,2}([^`].*[^`])`{0,2}", re.DOTALL
)  # the token limit may leave two marks of a fence
_REPLACED = 100  # runs of odd blanks in one program: each costs a parse
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_HELPERS = (*_DEFINITIONS, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
_SIGNS = (ast.boolop, ast.unaryop)
_LATER = (
    ast.Lambda,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)  # whose first part may never be read
_ACTS = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


@dataclass(frozen=True)
class Program:
    """A text that parses, and what was done to it.

    defined: names that it binds at module level. lacking: names that it reads and binds nowhere, and Python does not
    have; empty where it imports everything from some module. only_defines: it has no statement but definitions,
    imports and assignments.
    """

    text: str
    edits: frozenset[Edit]
    defined: frozenset[str]
    lacking: frozenset[str]
    only_defines: bool


def tree_of(text: str) -> ast.Module | None:
    """The syntax tree, None where there is none."""
    return _parse(text)[0]


@lru_cache(maxsize=1024)
def program_in(text: str) -> Program | None:
    """The program that a text is, as it is or after a repair; None where it is none.

    Repairs: the margin of the whole removed, prompts removed, blanks that Python does not take replaced, code marks
    around it removed; and statements at either end that only name what is bound nowhere (`Sure`), which can but fail.
    """
    for edits, variant in _variants(text):
        repaired, tree = _with_plain_blanks(variant)
        if tree is None:
            continue
        kept, tree = _without_words(repaired, tree)
        if not any(_acts(statement) for statement in tree.body):
            continue
        done = set(edits)
        if repaired != variant:
            done.add("blanks replaced")
        if kept != repaired:
            done.add("text removed")
        defined, bound = _bound(tree, outermost=True), _bound(tree)
        read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - set(dir(builtins))
        lacking = frozenset() if "*" in bound else frozenset(read - bound)
        only = all(isinstance(each, _HELPERS) or _is_text(each) for each in tree.body)
        return Program(kept.strip(), frozenset(done), defined, lacking, only)
    return None


def _variants(text: str) -> Iterator[tuple[tuple[Edit, ...], str]]:
    """Ways to read a text, each with what is done to it; the text as it is first."""
    stripped = text.strip()
    if not stripped:
        return
    yield (), stripped
    body = text.strip("\n")
    yield ("indentation removed",), dedent(body).strip()
    plain = _MARGIN.sub(lambda found: "".join(" " if _odd(each) else each for each in found[0]), body)
    if plain != body:
        yield ("blanks replaced",), plain.strip()
        yield ("indentation removed", "blanks replaced"), dedent(plain).strip()
    marks = _CODE_MARKS.fullmatch(stripped)
    if marks is not None:
        yield ("code marks removed",), marks[1].strip()
    if stripped.startswith(">>>"):
        lines = [(line, _PROMPT.match(line)) for line in stripped.split("\n")]
        yield ("prompts removed",), "\n".join(line[found.end() :] for line, found in lines if found)


def _parse(text: str) -> tuple[ast.Module | None, SyntaxError | None]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes, which are the program's own affair
            return ast.parse(text), None
    except SyntaxError as error:
        return None, error
    except (ValueError, RecursionError, MemoryError):
        return None, None


def _with_plain_blanks(text: str) -> tuple[str, ast.Module | None]:
    """The text with the odd blanks at which Python stops replaced, run by run, and its tree."""
    for _ in range(_REPLACED):
        tree, error = _parse(text)
        if error is None or error.lineno is None or error.offset is None:
            return text, tree
        lines = text.split("\n")
        start = sum(len(line) + 1 for line in lines[: error.lineno - 1]) + error.offset - 1
        end = start
        while end < len(text) and _odd(text[end]):
            end += 1
        if end == start:
            return text, None
        run = "".join(" " if category(each) == "Zs" else "" for each in text[start:end])
        text = text[:start] + run + text[end:]
    return text, None


def _odd(character: str) -> bool:
    """A blank that is none to Python, or a character that is not seen (a byte order mark, a joiner)."""
    return character != " " and category(character) in ("Zs", "Cf")


def _without_words(text: str, tree: ast.Module) -> tuple[str, ast.Module]:
    """Without the statements at either end that only name what is bound nowhere."""
    bound = _bound(tree)
    if "*" in bound:
        return text, tree
    places = [at for at, each in enumerate(tree.body) if not _only_words(each, bound)]
    if not places or len(places) == len(tree.body):
        return text, tree
    first, last = tree.body[places[0]], tree.body[places[-1]]
    begin = min([first.lineno, *(each.lineno for each in getattr(first, "decorator_list", []))])
    before = [each.end_lineno or 0 for each in tree.body[: places[0]]]
    after = [each.lineno for each in tree.body[places[-1] + 1 :]]
    end = last.end_lineno or 0
    if not (before or after) or max(before, default=0) >= begin or min(after, default=end + 1) <= end:
        return text, tree
    lines = text.split("\n")
    kept = "\n".join(lines[begin - 1 if before else 0 : end if after else len(lines)]).strip()
    parsed, _ = _parse(kept)
    return (text, tree) if parsed is None else (kept, parsed)


def _only_words(statement: ast.stmt, bound: frozenset[str]) -> bool:
    """Whether a statement does nothing but read names, the first of which is bound nowhere: all it can do is fail."""
    value: ast.AST | None = None
    if isinstance(statement, ast.Expr) and not _acts(statement):
        value = statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is None:
        value = statement.annotation
    while value is not None and not isinstance(value, ast.Name):
        parts = (each for each in ast.iter_child_nodes(value) if not isinstance(each, _SIGNS))
        value = None if isinstance(value, _LATER) else next(parts, None)  # what is evaluated first
    return value is not None and value.id not in bound and not hasattr(builtins, value.id)


def _acts(statement: ast.stmt) -> bool:
    """Whether a statement is more than a value."""
    if isinstance(statement, ast.AnnAssign):
        return statement.value is not None
    return not isinstance(statement, ast.Expr) or any(isinstance(node, _ACTS) for node in ast.walk(statement))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bound(tree: ast.Module, outermost: bool = False) -> frozenset[str]:
    """Every name that a program binds, or only those at module level; "*" where a module is imported whole."""
    names: set[str] = set()
    nodes: list[ast.AST] = list(tree.body)
    while nodes:
        node = nodes.pop()
        inner = ast.iter_child_nodes(node)
        if isinstance(node, _DEFINITIONS):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif not outermost:
            # Arguments, caught exceptions and the captures of patterns have their names in fields of their own.
            names.update(
                name
                for field in ("arg", "name", "rest")
                if isinstance(name := getattr(node, field, None), str)
            )
        if not (outermost and isinstance(node, (*_DEFINITIONS, ast.Lambda))):
            nodes += inner
    return frozenset(names)
