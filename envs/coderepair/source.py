"""A program's text with its syntax tree and its tokens, all placed by byte offsets, so that edits can be local.

The tree says where a node begins and ends in UTF-8 bytes, but not where its operator or its bracket is; the
tokens say that. A `Change` is one replaced span together with the tree that the edited text is meant to have:
`apply` keeps an edit only if the text really parses to that tree (or, where an error is meant, does not parse).
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from envs.errors import InputError

# Where nothing is changed: the parts of a formatted string have no reliable place before Python 3.12, and a
# changed annotation or decorator is no mistake in what the program computes.
_CLOSED = (ast.JoinedStr,)
_CLOSED_FIELDS = ("annotation", "returns", "decorator_list")
_SKIPPED_TOKENS = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


@dataclass(frozen=True)
class Token:
    """One token: its text and its span in bytes."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Change:
    """A span (bytes) and its new text; `intended` turns the node (a copy) into what replaces it.

    `intended` is None where the edited text is meant not to parse; it returns None where the node is to go.
    """

    start: int
    end: int
    text: str
    changed: str
    node: ast.AST
    intended: Callable[[Any], ast.AST | None] | None


@dataclass(frozen=True)
class Block:
    """A list of statements: the node that holds it, and under which name."""

    owner: ast.AST
    field: str

    @property
    def statements(self) -> list[ast.stmt]:
        """The statements, in order."""
        statements: list[ast.stmt] = getattr(self.owner, self.field)
        return statements


class Source:
    """A program to be changed. Raises InputError for text that does not parse or has carriage returns."""

    def __init__(self, code: str) -> None:
        if "\r" in code:
            raise InputError("A program to be changed must end its lines with newlines alone.")
        try:
            self.tree = parse(code)
        except (SyntaxError, ValueError) as error:
            raise InputError(
                f"A program to be changed must parse, and this one does not: {error}."
            ) from error
        self.code = code
        self.data = code.encode()
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._tokens = tuple(self._placed_tokens())
        self._rank = {id(node): rank for rank, node in enumerate(ast.walk(self.tree))}
        self.nodes = tuple(_open_nodes(self.tree))
        self.dump = ast.dump(self.tree)

    def _placed_tokens(self) -> Iterator[Token]:
        lines = self.code.split("\n")
        for token in tokenize.generate_tokens(io.StringIO(self.code).readline):
            if token.type in _SKIPPED_TOKENS or not token.string:
                continue
            start, end = (
                self._starts[row - 1] + len(lines[row - 1][:column].encode())
                for row, column in (token.start, token.end)
            )
            yield Token(token.string, start, end)

    def start(self, node: Any) -> int:
        """Where a node begins, in bytes; brackets around an expression are no part of it."""
        return int(self._starts[node.lineno - 1] + node.col_offset)

    def end(self, node: Any) -> int:
        """Where a node ends, in bytes."""
        return int(self._starts[node.end_lineno - 1] + node.end_col_offset)

    def text(self, node: ast.AST) -> str:
        """The node as it is written."""
        return self.between(self.start(node), self.end(node))

    def between(self, start: int, end: int) -> str:
        """The text of a span."""
        return self.data[start:end].decode()

    def line_start(self, offset: int) -> int:
        """Where the line of an offset begins."""
        return self.data.rfind(b"\n", 0, offset) + 1

    def line(self, offset: int) -> int:
        """The number, from 1, of the line of an offset."""
        return self.data.count(b"\n", 0, offset) + 1

    def tokens(self, start: int, end: int) -> list[Token]:
        """The tokens inside a span, in order."""
        return [token for token in self._tokens if start <= token.start and token.end <= end]

    def token(self, text: str, start: int, end: int) -> Token | None:
        """The first token of this text inside a span."""
        return next((token for token in self.tokens(start, end) if token.text == text), None)

    def blocks(self) -> Iterator[Block]:
        """Every list of statements, outer before inner."""
        for node in self.nodes:
            for name in ("body", "orelse", "finalbody"):
                statements = getattr(node, name, None)
                if isinstance(statements, list) and statements:
                    yield Block(node, name)

    def indent(self, statement: ast.stmt) -> str | None:
        """The blanks before a statement; None where it does not begin its line."""
        start = self.start(statement)
        before = self.between(self.line_start(start), start)
        return before if not before.strip() else None

    def whole_lines(self, statement: ast.stmt) -> tuple[int, int] | None:
        """The span of the lines that hold a statement and nothing else (but a comment), last newline included."""
        if self.indent(statement) is None:
            return None
        newline = self.data.find(b"\n", self.end(statement))
        end = len(self.data) if newline < 0 else newline + 1
        if self.tokens(self.end(statement), end):
            return None
        return self.line_start(self.start(statement)), end

    def replace(
        self, node: ast.AST, text: str, intended: Callable[[Any], ast.AST | None], changed: str
    ) -> Change:
        """The change that writes `text` in place of a whole node."""
        return Change(self.start(node), self.end(node), text, changed, node, intended)

    def edited(self, change: Change) -> str:
        """The text after the change; every byte outside its span is as it was."""
        return (self.data[: change.start] + change.text.encode() + self.data[change.end :]).decode()

    def apply(self, change: Change) -> str | None:
        """The text after the change, or None where it does not parse as intended or is the old program."""
        code = self.edited(change)
        try:
            found = ast.dump(parse(code))
        except (SyntaxError, ValueError):
            return code if change.intended is None else None
        if change.intended is None or found == self.dump or found != self._intended(change):
            return None
        return code

    def _intended(self, change: Change) -> str:
        tree = parse(self.code)  # a fresh copy, several times faster than copying the tree
        target = next(node for rank, node in enumerate(ast.walk(tree)) if rank == self._rank[id(change.node)])
        return ast.dump(_Replace(target, change.intended).visit(tree))


def parse(code: str) -> ast.Module:
    """The tree of a program; what the parser merely frowns at (an odd escape) is no error, whatever the filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, make: Callable[[Any], ast.AST | None] | None) -> None:
        self._target, self._make = target, make

    def visit(self, node: ast.AST) -> Any:
        if node is self._target and self._make is not None:
            return self._make(node)
        return self.generic_visit(node)


def _open_nodes(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name in _CLOSED_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _CLOSED):
                yield from _open_nodes(child)
