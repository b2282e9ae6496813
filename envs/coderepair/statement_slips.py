"""Slips of whole statements: a return lost, printed or indented, a wrong start, a lost guard or reversal, bad syntax.

Operators as in `expression_slips`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from envs.coderepair.shapes import integer, name_of, setter
from envs.coderepair.source import Block, Change, Source

_HEADED = (ast.FunctionDef, ast.For, ast.While, ast.If, ast.With)
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign)


def dropped_return(source: Source) -> Iterator[Change]:
    """`return x` as the bare x, or as `pass` where x alone would be an odd line."""
    for node in source.nodes:
        if not isinstance(node, ast.Return) or node.value is None:
            continue
        if isinstance(node.value, (ast.Name, ast.Constant)):
            yield source.replace(node, "pass", lambda _: ast.Pass(), "return -> pass")
        else:
            rest = source.tokens(source.start(node), source.end(node))[1]
            yield Change(source.start(node), rest.start, "", "return left out", node, _bare)


def _bare(statement: Any) -> ast.AST:
    return ast.Expr(statement.value)


def printed_return(source: Source) -> Iterator[Change]:
    """`return x` as `print(x)`."""
    for node in source.nodes:
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Tuple):
            text = f"print({source.text(node.value)})"
            yield source.replace(node, text, lambda copy: _printed(copy.value), "return -> print")


def _printed(value: ast.expr) -> ast.AST:
    return ast.Expr(ast.Call(ast.Name("print", ast.Load()), [value], []))


def early_return(source: Source) -> Iterator[Change]:
    """A return after a loop, indented into the loop."""
    for block, at, loop in _loops(source):
        following = block.statements[at + 1 : at + 2]
        if not following or not isinstance(following[0], ast.Return):
            continue
        outer, inner = source.indent(following[0]), source.indent(loop.body[-1])
        if outer is not None and inner is not None and inner.startswith(outer):
            start = source.start(following[0])
            move = setter(lambda copy, name=block.field, at=at: _into_loop(getattr(copy, name), at))
            yield Change(start, start, inner[len(outer) :], "return into the loop", block.owner, move)


def dedented_line(source: Source) -> Iterator[Change]:
    """The last line of a loop's body, indented out of the loop."""
    for block, at, loop in _loops(source):
        last = loop.body[-1]
        outer, inner = source.indent(loop), source.indent(last)
        if len(loop.body) < 2 or not isinstance(last, _SIMPLE) or outer is None or inner is None:
            continue
        if inner.startswith(outer):
            start = source.start(last)
            move = setter(lambda copy, name=block.field, at=at: _out_of_loop(getattr(copy, name), at))
            span = start - len(inner) + len(outer), start
            yield Change(*span, "", "line out of the loop", block.owner, move)


def _loops(source: Source) -> Iterator[tuple[Block, int, ast.For | ast.While]]:
    """Every loop without an `else`, and where it is."""
    for block in source.blocks():
        for at, statement in enumerate(block.statements):
            if isinstance(statement, (ast.For, ast.While)) and not statement.orelse:
                yield block, at, statement


def _into_loop(statements: Any, at: int) -> None:
    statements[at].body.append(statements.pop(at + 1))


def _out_of_loop(statements: Any, at: int) -> None:
    statements.insert(at + 1, statements[at].body.pop())


def missing_guard(source: Source) -> Iterator[Change]:
    """The `if …: return …` that a function begins with, left out: a recursion without its base case."""
    for node in source.nodes:
        if not isinstance(node, ast.FunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
        guard = body[0] if len(body) > 1 else None
        if (
            isinstance(guard, ast.If)
            and not guard.orelse
            and isinstance(guard.body[-1], (ast.Return, ast.Raise))
        ):
            lines = source.whole_lines(guard)
            if lines is not None:
                condition = source.text(guard.test)
                yield Change(*lines, "", f"if {condition} left out", guard, lambda _: None)


def wrong_initial(source: Source) -> Iterator[Change]:
    """A variable that begins with another value of the kind one begins with."""
    stores = [
        node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    for node in source.nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not name_of(node.targets[0]):
            continue
        value = node.value
        new = _OTHER_BEGINNINGS.get(ast.dump(value))
        first = isinstance(value, ast.Subscript) and integer(value.slice) == 0
        if first and stores.count(name_of(node.targets[0])) > 1:
            new = "0"  # the largest so far, say, begins with 0 and not with the first
        if new is not None:
            tree = ast.parse(new, mode="eval").body
            begin = setter(lambda copy, tree=tree: setattr(copy, "value", tree))
            changed = f"{source.text(value)} -> {new}"
            yield Change(source.start(value), source.end(value), new, changed, node, begin)


_OTHER_BEGINNINGS = {
    ast.dump(ast.parse(old, mode="eval").body): new
    for old, new in (
        ("0", "1"), ("1", "0"), ("-1", "0"), ("[]", "{}"), ("{}", "[]"), ("set()", "{}"), ("''", "[]"),
        ("None", "0"), ("float('inf')", "0"), ("float('-inf')", "0"), ("0.0", "1.0"), ("1.0", "0.0"),
    )
}  # fmt: skip


def dropped_reverse(source: Source) -> Iterator[Change]:
    """A reversal left out: [::-1] as [:], reverse=True, reversed(x) as x, the line x.reverse()."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Slice)
            and node.lower is None
            and node.upper is None
            and node.step is not None
        ):
            if integer(node.step) == -1:
                yield source.replace(node, ":", lambda _: ast.Slice(), "[::-1] -> [:]")
        elif isinstance(node, ast.Call) and name_of(node.func) == "reversed" and len(node.args) == 1:
            text = source.text(node.args[0])
            yield source.replace(node, text, lambda copy: copy.args[0], "reversed() left out")
        elif isinstance(node, ast.Call):
            for at, each in enumerate(node.keywords):
                if (
                    each.arg == "reverse"
                    and isinstance(each.value, ast.Constant)
                    and each.value.value is True
                ):
                    drop = setter(lambda copy, at=at: copy.keywords.pop(at))
                    yield Change(*_with_comma(source, each), "", "reverse=True left out", node, drop)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            function, lines = node.value.func, source.whole_lines(node)
            if isinstance(function, ast.Attribute) and function.attr == "reverse" and lines is not None:
                yield Change(*lines, "", "reverse() left out", node, lambda _: None)


def _with_comma(source: Source, argument: ast.keyword) -> tuple[int, int]:
    """The span of an argument and of the comma that parts it from its neighbour."""
    start, end = source.start(argument), source.end(argument)
    before, after = source.tokens(0, start)[-1], source.tokens(end, len(source.data))[:2]
    if before.text == ",":
        return before.start, end
    return (start, after[1].start) if after[0].text == "," and after[1].text != ")" else (start, end)


def syntax_slip(source: Source) -> Iterator[Change]:
    """Text that does not parse: a header without its colon, a call without its last bracket, = in a condition."""
    for node in source.nodes:
        if isinstance(node, _HEADED):
            before = source.tokens(0, source.start(node.body[0]))
            if before[-1].text == ":":
                yield Change(before[-1].start, before[-1].end, "", "a colon left out", node, None)
        if isinstance(node, (ast.If, ast.While)) and isinstance(node.test, ast.Compare):
            token = source.token("==", source.end(node.test.left), source.start(node.test.comparators[0]))
            if token is not None:
                yield Change(token.start, token.end, "=", "== -> =", node, None)
        if isinstance(node, ast.Call) and source.data[source.end(node) - 1 :][:1] == b")":
            end = source.end(node)
            yield Change(end - 1, end, "", "a bracket left open", node, None)
