"""Replies as programs: how they are read and spelt; what is cut off them, `envs.coderepair.extraction` says.

Readings (see `envs.agent`) of a reply that is no program:

    prose        no line begins with what a program's first lines begin with: def, class, import, from, @
    truncated    the token limit cut it off, or some bracket is opened more often than closed
    unparsable   the rest
"""

from __future__ import annotations

import ast
import re

from envs.agent import Demonstration, Reading, canonical_form, collapsed, unclosed
from envs.coderepair.observation import success
from envs.coderepair.programs import tree_of

# Its function is none that a task asks for, so that a copy of it can be seen.
EXAMPLE = 'def shout(text):\n    return text.upper() + "!"'
DEMONSTRATIONS: tuple[Demonstration, ...] = (
    Demonstration(
        "Write a function shout(text) that gives the text in capitals with an exclamation mark behind it.\n\n"
        "The asserts:\nassert shout('hi') == 'HI!'\nassert shout('') == '!'",
        ((EXAMPLE, success(2)),),
    ),
)

_BEGINNING = re.compile(r"^[ \t]*(?:(?:async[ \t]+)?def|class|import|from)[ \t]|^[ \t]*@\w", re.MULTILINE)
_COMMENT = re.compile(r"(?<!\S)#[^\n]*")


def reading(text: str, cut_off: bool) -> Reading:
    """How a cleaned reply can be read. A word alone is a program too: that it fails is found out by running it."""
    if not text:
        return "empty"
    if tree_of(text) is not None:
        return "call"
    if not _BEGINNING.search(text):
        return "prose"
    return "truncated" if cut_off or unclosed(text) else "unparsable"


def canonical(text: str) -> str:
    """The program as Python itself writes its syntax tree: no comments, one layout.

    What does not parse: comments out (from a # that follows white space to the end of its line), white space collapsed.
    """
    return canonical_form(text, _unparsed, lambda program: collapsed(_COMMENT.sub("", program)))


def _unparsed(program: str) -> str | None:
    """The tree as text; None where there is no tree, or Python cannot write it so that it reads the same again."""
    tree = tree_of(program)
    try:
        written = None if tree is None else ast.unparse(tree)
        again = None if written is None else tree_of(written)
        return written if again is not None and ast.unparse(again) == written else None
    except (ValueError, RecursionError):  # a backslash inside an f-string, before 3.12; a very deep tree
        return None
