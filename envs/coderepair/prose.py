"""Lines of prose around a program that is in no fence."""

from __future__ import annotations

import keyword
import re

from envs.agent import QUOTED

# A line at its margin that begins a program, or goes on with one after prose.
_CODE = re.compile(
    r"(?:async\s+)?def\s+\w+\s*\(|class\s+\w+\s*[:(]|import\s+\w[\w., ]*$|from\s+[\w.]+\s+import\s|@\w|\w+\s*=[^=]"
)
_HEADING = re.compile(r"[#*>\s]*(?!(?:True|False|None)\b)[^\W\d_a-z][^=()\[\]{}]*[:.!?：。！？][*\s]*")
_ITEM = re.compile(r"(?:[-*>•]|\d+[.)])[ \t]+\w")
_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
_AROUND = ".,:;!?\"'()*_`"
_OLD_STATEMENTS = ("print", "exec")  # two words side by side in the code of Python 2
_TOKEN = re.compile(rf"{QUOTED} | \#[^\n]*", re.DOTALL | re.VERBOSE)


def without_prose(text: str) -> list[str]:
    """The runs of lines between prose; a line inside a text literal is not prose, nor is an indented one.

    Prose goes on, whatever its lines look like, to the next line at the margin that begins a program.
    """
    quoted = [match.span() for match in _TOKEN.finditer(text) if "\n" in match[0] and not match["open"]]
    runs: list[list[str]] = [[]]
    prose, offset = False, 0
    for line in text.split("\n"):
        if not any(start < offset < end for start, end in quoted):
            if is_prose(line):
                if not prose:
                    runs.append([])
                prose = True
            elif _CODE.match(line):
                prose = False
        if not prose:
            runs[-1].append(line)
        offset += len(line) + 1
    return [run for run in map("\n".join, runs) if run.strip()] if len(runs) > 1 else []


def is_prose(line: str) -> bool:
    """Whether a line at the margin is no code: a sentence, a heading, an item of a list.

    A sentence has two words side by side that are no words of Python, which no line of code has outside of texts.
    """
    if not line.strip() or line[0].isspace() or "=" in line or _CODE.match(line):
        return False
    if _HEADING.fullmatch(line) or _ITEM.match(line):
        return True
    words = [word.strip(_AROUND) for word in line.split()]
    if keyword.iskeyword(words[0]) or words[0] in _OLD_STATEMENTS:
        return False
    plain = [bool(_WORD.fullmatch(word)) and not keyword.iskeyword(word) for word in words]
    return any(one and other for one, other in zip(plain, plain[1:], strict=False))
