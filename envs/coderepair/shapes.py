"""Small questions about nodes that every slip asks, and the function that changes a copy of a node in place."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any


def setter(change: Callable[..., object]) -> Callable[[Any], ast.AST]:
    """The function that makes a change to a node in place and returns the node."""

    def intended(copy: Any) -> ast.AST:
        change(copy)
        node: ast.AST = copy
        return node

    return intended


def instead(tree: ast.AST) -> Callable[[Any], ast.AST]:
    """The function that puts a tree in a node's place."""
    return lambda _: tree


def name_of(node: ast.AST) -> str:
    """The name that a node is; empty where it is none."""
    return node.id if isinstance(node, ast.Name) else ""


def integer(node: ast.AST) -> int | None:
    """The value of a written integer, negative ones included; None for anything else."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = integer(node.operand)
        return None if inner is None else -inner
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def number(value: int) -> ast.expr:
    """The tree of a written integer."""
    return ast.Constant(value) if value >= 0 else ast.UnaryOp(ast.USub(), ast.Constant(-value))


def is_sequence(node: ast.AST) -> bool:
    """Whether an operand is visibly a text or a list: nobody subtracts those."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, (str, bytes))
    return isinstance(node, (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple))
