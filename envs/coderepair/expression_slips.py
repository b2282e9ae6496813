"""Slips inside an expression: a wrong operator, bound, index, name, method, or a call left out.

An operator is a function Source → changes, in any order; whether a change parses as intended is checked later.
The changes it offers are the slips that small models make, not every edit that is possible.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any

from envs.coderepair.shapes import instead, integer, is_sequence, name_of, number, setter
from envs.coderepair.source import Change, Source

_ORDER: dict[type[ast.cmpop], tuple[str, str, type[ast.cmpop]]] = {
    ast.Lt: ("<", "<=", ast.LtE),
    ast.LtE: ("<=", "<", ast.Lt),
    ast.Gt: (">", ">=", ast.GtE),
    ast.GtE: (">=", ">", ast.Gt),
}
_EQUALITY: dict[type[ast.cmpop], tuple[str, str, type[ast.cmpop]]] = {
    ast.Eq: ("==", "!=", ast.NotEq),
    ast.NotEq: ("!=", "==", ast.Eq),
}
_ARITHMETIC: dict[type[ast.operator], tuple[str, str, type[ast.operator]]] = {
    ast.Add: ("+", "-", ast.Sub),
    ast.Sub: ("-", "+", ast.Add),
    ast.Mult: ("*", "+", ast.Add),
    ast.FloorDiv: ("//", "/", ast.Div),
    ast.Div: ("/", "//", ast.FloorDiv),
    ast.Mod: ("%", "//", ast.FloorDiv),
    ast.Pow: ("**", "*", ast.Mult),
}
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.NotIn: ast.In, ast.IsNot: ast.Is}
_SIDED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)  # a - b is not b - a


def comparison_flip(source: Source) -> Iterator[Change]:
    """< and <=, > and >= for each other; == and != only in a program that orders nothing."""
    compares = [node for node in source.nodes if isinstance(node, ast.Compare)]
    ordering = any(type(op) in _ORDER for node in compares for op in node.ops)
    table = _ORDER if ordering else _EQUALITY
    for node in compares:
        for at, op in enumerate(node.ops):
            if type(op) in table:
                old, new, kind = table[type(op)]
                token = source.token(old, *_gap(source, node, at))
                if token is not None:
                    set_op = setter(lambda copy, at=at, kind=kind: copy.ops.__setitem__(at, kind()))
                    yield Change(token.start, token.end, new, f"{old} -> {new}", node, set_op)


def off_by_one(source: Source) -> Iterator[Change]:
    """One too many or too few: the ends of ranges and slices, a constant that is compared, a + 1 or - 1."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and _steps_by_one(node):
            yield _drop_step(source, node)
        elif isinstance(node, ast.Call) and name_of(node.func) == "range" and 1 <= len(node.args) <= 3:
            stop = node.args[min(1, len(node.args) - 1)]
            yield from _shifted(source, stop, (-1, 1))
            if len(node.args) > 1:
                yield from _shifted(source, node.args[0], (1,))
        elif isinstance(node, ast.Slice):
            if node.lower is not None:
                yield from _shifted(source, node.lower, (1,))
            if node.upper is not None:
                yield from _shifted(source, node.upper, (-1, 1))
        elif isinstance(node, ast.Compare) and integer(node.comparators[-1]) is not None:
            yield from _shifted(source, node.comparators[-1], (1, -1))


def index_shift(source: Source) -> Iterator[Change]:
    """The neighbour of an element: [0] and [1], [-1] and [0], [i] and [i + 1] for a name that counts."""
    counters = _counters(source)
    for node in source.nodes:
        if not isinstance(node, ast.Subscript):
            continue
        index = node.slice
        if isinstance(index, ast.BinOp) and _steps_by_one(index):
            yield _drop_step(source, index)
        elif integer(index) is not None or name_of(index) in counters:
            yield from _shifted(source, index, (1, -1) if integer(index) else (1,))


def arithmetic_flip(source: Source) -> Iterator[Change]:
    """Another arithmetic operator, between operands that are not visibly texts or lists."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp):
            sides, start, end = (node.left, node.right), source.end(node.left), source.start(node.right)
        elif isinstance(node, ast.AugAssign):
            sides, start, end = (node.target, node.value), source.end(node.target), source.start(node.value)
        else:
            continue
        if type(node.op) not in _ARITHMETIC or any(is_sequence(side) for side in sides):
            continue
        old, new, kind = _ARITHMETIC[type(node.op)]
        if isinstance(node, ast.AugAssign):
            old, new = f"{old}=", f"{new}="
        token = source.token(old, start, end)
        if token is not None:
            set_op = setter(lambda copy, kind=kind: setattr(copy, "op", kind()))
            yield Change(token.start, token.end, new, f"{old} -> {new}", node, set_op)


def logic_flip(source: Source) -> Iterator[Change]:
    """`and` for `or` and the other way round, between two conditions."""
    for node in source.nodes:
        if isinstance(node, ast.BoolOp) and len(node.values) == 2:
            old, new, kind = ("and", "or", ast.Or) if isinstance(node.op, ast.And) else ("or", "and", ast.And)
            token = source.token(old, source.end(node.values[0]), source.start(node.values[1]))
            if token is not None:
                set_op = setter(lambda copy, kind=kind: setattr(copy, "op", kind()))
                yield Change(token.start, token.end, new, f"{old} -> {new}", node, set_op)


def boolean_flip(source: Source) -> Iterator[Change]:
    """True for False and the other way round; `reverse=True` is the business of `dropped_reverse`."""
    reverses = {
        id(node.value) for node in source.nodes if isinstance(node, ast.keyword) and node.arg == "reverse"
    }
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, bool) and id(node) not in reverses:
            new = not node.value
            set_value = setter(lambda copy, new=new: setattr(copy, "value", new))
            yield source.replace(node, str(new), set_value, f"{node.value} -> {new}")


def dropped_negation(source: Source) -> Iterator[Change]:
    """`not` or a minus sign left out."""
    for node in source.nodes:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
            if isinstance(node.operand, ast.Constant):
                continue  # -1 is a number of its own
            sign, rest = source.tokens(source.start(node), source.end(node))[:2]
            drop = f"{sign.text} left out"
            yield Change(sign.start, rest.start, "", drop, node, lambda copy: copy.operand)
        elif isinstance(node, ast.Compare):
            for at, op in enumerate(node.ops):
                if type(op) in _NEGATED:
                    start, end = _gap(source, node, at)
                    word = source.token("not", start, end)
                    if word is None:
                        continue
                    rest = next(iter(source.tokens(word.end, len(source.data))))
                    kind = _NEGATED[type(op)]
                    set_op = setter(lambda copy, at=at, kind=kind: copy.ops.__setitem__(at, kind()))
                    yield Change(word.start, rest.start, "", "not left out", node, set_op)


def swapped_operands(source: Source) -> Iterator[Change]:
    """The two sides of a sided operator, or the two arguments of a call, in the other order."""
    for node in source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, _SIDED) and not is_sequence(node.left):
            first, second = node.left, node.right
            swap = setter(lambda copy: copy.__dict__.update(left=copy.right, right=copy.left))
        elif isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
            if name_of(node.func) in ("range", "isinstance") or any(
                isinstance(a, ast.Starred) for a in node.args
            ):
                continue
            first, second = node.args
            swap = setter(lambda copy: copy.args.reverse())
        else:
            continue
        middle = source.between(source.end(first), source.start(second))
        text = source.text(second) + middle + source.text(first)
        yield Change(source.start(first), source.end(second), text, "sides swapped", node, swap)


def _gap(source: Source, node: ast.Compare, at: int) -> tuple[int, int]:
    """The span between the two sides of a comparison's operator."""
    left = node.left if at == 0 else node.comparators[at - 1]
    return source.end(left), source.start(node.comparators[at])


def _steps_by_one(node: ast.BinOp) -> bool:
    return isinstance(node.op, (ast.Add, ast.Sub)) and integer(node.right) == 1


def _drop_step(source: Source, node: ast.BinOp) -> Change:
    """The change of x + 1 to x; what is left ends with x or with the bracket that closes around it."""
    sign = "+" if isinstance(node.op, ast.Add) else "-"
    start = source.end(node.left)
    for token in source.tokens(start, source.end(node)):
        if token.text == sign:
            break
        start = token.end
    return Change(start, source.end(node), "", f"{sign} 1 left out", node, lambda copy: copy.left)


def _shifted(source: Source, node: ast.expr, steps: tuple[int, ...]) -> Iterator[Change]:
    """A bound moved by each step: a written integer by its neighbour, anything else with + 1 or - 1 after it."""
    value, end = integer(node), source.end(node)
    if isinstance(node, ast.BinOp) and _steps_by_one(node):
        return  # the step is left out instead
    for step in steps:
        if value is not None:
            new = value + step
            yield source.replace(node, str(new), instead(number(new)), f"{value} -> {new}")
        else:
            sign = "+" if step > 0 else "-"
            yield Change(end, end, f" {sign} 1", f"{sign} 1 added", node, _stepped(step))


def _stepped(step: int) -> Callable[[Any], ast.AST]:
    """The function that makes x + 1 or x - 1 of x."""
    kind = ast.Add if step > 0 else ast.Sub
    return lambda copy: ast.BinOp(copy, kind(), ast.Constant(1))


def _counters(source: Source) -> set[str]:
    """Names that count: targets of loops over a range, the first of an enumeration, and what is stepped by one."""
    found = set()
    for node in source.nodes:
        if isinstance(node, (ast.For, ast.comprehension)) and isinstance(node.iter, ast.Call):
            target = node.target
            if name_of(node.iter.func) == "enumerate" and isinstance(target, ast.Tuple):
                target = target.elts[0]
            if name_of(node.iter.func) in ("range", "enumerate"):
                found.add(name_of(target))
        elif isinstance(node, ast.AugAssign) and integer(node.value) == 1:
            found.add(name_of(node.target))
        elif isinstance(node, ast.BinOp) and _steps_by_one(node):
            found.add(name_of(node.left))
    return found - {""}
