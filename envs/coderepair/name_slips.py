"""Slips of names and calls: a misspelt name, a similar method, a call or its parentheses left out, a lost import."""

from __future__ import annotations

import ast
import builtins
import keyword
from collections.abc import Iterator

from envs.coderepair.shapes import name_of, setter
from envs.coderepair.source import Change, Source

_METHODS = {
    "append": ("extend", "add"), "extend": ("append",), "add": ("append",), "insert": ("append",),
    "lower": ("upper",), "upper": ("lower",), "title": ("capitalize",), "capitalize": ("title",),
    "keys": ("values",), "values": ("keys",), "items": ("keys",), "find": ("rfind",), "index": ("find",),
    "strip": ("split",), "lstrip": ("rstrip",), "rstrip": ("lstrip",), "split": ("strip",),
    "startswith": ("endswith",), "endswith": ("startswith",), "isdigit": ("isalpha",), "isalpha": ("isdigit",),
    "isupper": ("islower",), "islower": ("isupper",), "isalnum": ("isalpha",), "pop": ("remove",),
    "popleft": ("pop",), "union": ("intersection",), "intersection": ("union",), "ceil": ("floor",),
    "floor": ("ceil",), "ljust": ("rjust",), "rjust": ("ljust",),
}  # fmt: skip
_BUILTINS = {
    "min": "max", "max": "min", "any": "all", "all": "any", "sum": "len", "len": "sum", "ord": "chr", "chr": "ord",
    "zip": "enumerate", "enumerate": "range",
}  # fmt: skip
_CONVERSIONS = ("str", "int", "float", "list", "tuple", "set", "dict", "sorted", "abs", "len", "round")
# What a name is often called elsewhere: the habit that lets a model write a name it never bound.
_ELSEWHERE = {
    "i": "j", "j": "i", "k": "i", "n": "num", "s": "string", "x": "y", "y": "x", "a": "b", "b": "a", "c": "ch",
    "ch": "char", "char": "c", "num": "n", "number": "num", "nums": "numbers", "numbers": "nums", "lst": "arr",
    "arr": "nums", "items": "lst", "values": "items", "value": "val", "val": "value", "result": "res",
    "res": "result", "count": "cnt", "counts": "count", "counter": "count", "total": "result", "text": "string",
    "string": "s", "word": "w", "words": "word_list", "index": "idx", "idx": "index", "key": "k", "keys": "key",
    "left": "start", "right": "end", "low": "left", "high": "right", "mid": "middle", "out": "output",
    "output": "out", "current": "curr", "previous": "prev", "matrix": "grid", "grid": "matrix", "row": "r",
}  # fmt: skip


def undefined_name(source: Source) -> Iterator[Change]:
    """One use of a local name misspelt, in one of the ways that leave it undefined; the ways take turns."""
    used = {node.id for node in source.nodes if isinstance(node, ast.Name)}
    bound = {
        node.id for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    bound |= {node.arg for node in source.nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in source.nodes if isinstance(node, ast.FunctionDef)}
    uses = [node for node in source.nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    for turn, node in enumerate(sorted(uses, key=source.start)):
        if node.id not in bound:
            continue
        ways = [way for way in _misspellings(node.id) if way not in used | bound]
        if ways:
            new = ways[turn % len(ways)]
            rename = setter(lambda copy, new=new: setattr(copy, "id", new))
            yield source.replace(node, new, rename, f"{node.id} -> {new}")


def _misspellings(name: str) -> list[str]:
    """Other ways to write a name, none of them a name of the language."""
    ways = [_ELSEWHERE.get(name, "")]
    if len(name) > 2:
        middle = len(name) // 2
        ways += [name[:-1] if name.endswith("s") else f"{name}s", name[:middle] + name[middle + 1 :]]
        ways += [name[:middle] + name[middle] + name[middle:]]
    else:
        ways += [f"{name}1"]
    if "_" in name.strip("_"):
        head, _, tail = name.strip("_").partition("_")
        ways += [head + tail, head + tail[:1].upper() + tail[1:], head]
    return [way for way in dict.fromkeys(ways) if way.isidentifier() and not _is_taken(way) and way != name]


def _is_taken(name: str) -> bool:
    return keyword.iskeyword(name) or hasattr(builtins, name)


def wrong_method(source: Source) -> Iterator[Change]:
    """A method or a builtin of a similar name or of the opposite sense."""
    for node in source.nodes:
        function = node.func if isinstance(node, ast.Call) else None
        if isinstance(function, ast.Attribute):
            start = source.end(function) - len(function.attr.encode())
            for new in _METHODS.get(function.attr, ()):
                rename = setter(lambda copy, new=new: setattr(copy, "attr", new))
                changed = f"{function.attr} -> {new}"
                yield Change(start, source.end(function), new, changed, function, rename)
        elif isinstance(function, ast.Name) and function.id in _BUILTINS:
            new = _BUILTINS[function.id]
            rename = setter(lambda copy, new=new: setattr(copy, "id", new))
            yield source.replace(function, new, rename, f"{function.id} -> {new}")


def missing_call(source: Source) -> Iterator[Change]:
    """A conversion or a method without arguments left out: str(x) as x, s.strip() as s."""
    modules = _imported(source)
    alone = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        if not isinstance(node, ast.Call) or node.keywords or id(node) in alone:
            continue
        function, name = node.func, name_of(node.func)
        if name in _CONVERSIONS and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            inner = source.text(node.args[0])
            yield source.replace(node, inner, lambda copy: copy.args[0], f"{name}() left out")
        elif isinstance(function, ast.Attribute) and not node.args and name_of(function.value) not in modules:
            dot = source.token(".", source.end(function.value), source.end(node))
            if dot is not None:
                changed = f"{function.attr}() left out"
                yield Change(dot.start, source.end(node), "", changed, node, lambda copy: copy.func.value)


def missing_parentheses(source: Source) -> Iterator[Change]:
    """A method named but not called: s.lower for s.lower()."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if not node.args and not node.keywords:
                start, changed = source.end(node.func), f"{node.func.attr}() without ()"
                yield Change(start, source.end(node), "", changed, node, lambda copy: copy.func)


def missing_import(source: Source) -> Iterator[Change]:
    """An import left out, with the blank lines after it where nothing is before it."""
    for node in source.nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            lines = source.whole_lines(node)
            if lines is None:
                continue
            start, end = lines
            while start == 0 and source.data[end : end + 1] == b"\n":
                end += 1
            yield Change(start, end, "", f"{source.text(node)} left out", node, lambda _: None)


def _imported(source: Source) -> set[str]:
    """The names that imports bind."""
    imports = [node for node in source.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {(alias.asname or alias.name).split(".")[0] for node in imports for alias in node.names}
