"""Calls as text and as values: `tool(a='x', b=2)`, read with `ast` and never evaluated.

Grammar: one call of a plain name whose arguments are literals (text, numbers, truth values, None, lists,
tuples and dictionaries of these). Positional arguments are kept apart: only the tool's schema can name them.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass
from typing import Any

from envs.toolshed import faults

MAX_CHARACTERS = 4000  # a model in a loop can write any amount; nothing a task needs comes near


@dataclass(frozen=True)
class Call:
    """A tool's name and its arguments; `keywords` keeps the order in which they were written."""

    tool: str
    keywords: tuple[tuple[str, Any], ...] = ()
    positional: tuple[Any, ...] = ()

    def __str__(self) -> str:
        written = [repr(value) for value in self.positional]
        written += [f"{name}={value!r}" for name, value in self.keywords]
        return f"{self.tool}({', '.join(written)})"

    def value(self, name: str) -> Any:
        """The value of a keyword argument."""
        return dict(self.keywords)[name]

    def put(self, name: str, value: Any) -> Call:
        """The call with another value under a keyword it already has."""
        return Call(self.tool, tuple((key, value if key == name else old) for key, old in self.keywords))


def parse_call(text: str) -> Call:
    """Read one call; raises ToolFault (family `unparsable`) for anything else."""
    if len(text) > MAX_CHARACTERS:
        raise faults.unparsable("it is too long")
    try:
        with warnings.catch_warnings():
            # Python warns of odd escapes; what a text means must not depend on how warnings are filtered.
            warnings.simplefilter("ignore")
            node = ast.parse(_unfenced(text), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise faults.unparsable("it is not one expression") from None
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise faults.unparsable("it is not a call of a tool")
    keywords = []
    for keyword in node.keywords:
        if keyword.arg is None:
            raise faults.unparsable("arguments cannot be unpacked")
        keywords.append((keyword.arg, _literal(keyword.value)))
    return Call(node.func.id, tuple(keywords), tuple(_literal(each) for each in node.args))


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError):
        raise faults.unparsable("its arguments are not plain values") from None


def _unfenced(text: str) -> str:
    """The text without white space around it and without the code marks that chat models like to add."""
    stripped = text.strip()
    if stripped.startswith("```"):
        lines = stripped.split("\n")
        body = lines[1:-1] if lines[-1].strip() == "```" else lines[1:]
        return "\n".join(body).strip()
    return stripped.strip("`").strip()
