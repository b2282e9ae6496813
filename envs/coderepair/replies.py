"""Replies as programs: what is cut off them, when they end, how they are read and spelt.

Readings (see `envs.agent`) of a reply that is no program:

    prose        no line begins with what a program's first lines begin with: def, class, import, from, @
    truncated    the token limit cut it off, or some bracket is opened more often than closed
    unparsable   the rest
"""

from __future__ import annotations

import ast
import re
import warnings

from envs.agent import Demonstration, Reading, canonical_form, collapsed, unclosed
from envs.coderepair.observation import success

# Its function is none that a task asks for, so that a copy of it can be seen.
EXAMPLE = 'def shout(text):\n    return text.upper() + "!"'
DEMONSTRATIONS: tuple[Demonstration, ...] = (
    Demonstration(
        "Write a function shout(text) that gives the text in capitals with an exclamation mark behind it.\n\n"
        "The asserts:\nassert shout('hi') == 'HI!'\nassert shout('') == '!'",
        ((EXAMPLE, success(2)),),
    ),
)

_OPENING = re.compile(r"```[\w+-]*[ \t]*\n")
_BEGINNING = re.compile(r"^[ \t]*(?:(?:async[ \t]+)?def|class|import|from)[ \t]|^[ \t]*@\w", re.MULTILINE)
_COMMENT = re.compile(r"(?<!\S)#[^\n]*")


def clean(raw: str) -> str:
    """The program between the first code fence and the next (or the end), where there is one; else the text."""
    opening = _OPENING.search(raw)
    if opening is None:
        return raw.strip()
    # A closing fence of which the token limit left one or two marks is no part of the program either.
    return raw[opening.end() :].partition("```")[0].strip().rstrip("`").rstrip()


def stops(text: str) -> bool:
    """Whether a fence that was opened is closed."""
    opening = _OPENING.search(text)
    return opening is not None and "```" in text[opening.end() :]


def reading(text: str, cut_off: bool) -> Reading:
    """How a cleaned reply can be read. A word alone is a program too: that it fails is found out by running it."""
    if not text:
        return "empty"
    if _tree(text) is not None:
        return "call"
    if not _BEGINNING.search(text):
        return "prose"
    return "truncated" if cut_off or unclosed(text) else "unparsable"


def canonical(text: str) -> str:
    """The program as Python itself writes its syntax tree: no comments, one layout.

    What does not parse: comments out (from a # that follows white space to the end of its line), white space collapsed.
    """
    return canonical_form(text, _unparsed, lambda program: collapsed(_COMMENT.sub("", program)))


def _tree(program: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes, which are the program's own affair
            return ast.parse(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _unparsed(program: str) -> str | None:
    """The tree as text; None where there is no tree, or Python cannot write it so that it reads the same again."""
    tree = _tree(program)
    try:
        written = None if tree is None else ast.unparse(tree)
        again = None if written is None else _tree(written)
        return written if again is not None and ast.unparse(again) == written else None
    except (ValueError, RecursionError):  # a backslash inside an f-string, before 3.12; a very deep tree
        return None
