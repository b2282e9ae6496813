"""The call in a reply: what is cut off, and when the turn ends.

The rules are those of the paper's harness (E. Gumaan, 2026): the first line that holds something is the call, and its
end is the end of the turn; but for two of its faults (a line break before any text ended the turn, and a line that only
opens a code fence was taken for the call), and where Python reads more than a line or less of it:

    a call goes on over lines until its bracket is closed, as long as it can still become one
    of several calls side by side on a line (`a(); b()`, `a() b()`, `a(), b()`) the first is the action
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator

from envs.agent import EDITS, QUOTED, Edit, Extraction
from envs.base import Action
from envs.toolshed.calls import MAX_CHARACTERS
from envs.toolshed.replies import NAMES, readable

MAX_LINES = 20  # of a call; what is longer has lost its closing bracket

_FENCE = re.compile(r"`{3,}[\w+-]*")  # a line that opens or closes a block of code
_MARKS, _LABEL = r"`+(?:(?:python|py)\s+)?", r"(?:action|tool|call)\s*:"
_AROUND = re.compile(rf"(?P<marks>{_MARKS})|\s+|(?P<label>{_LABEL})", re.IGNORECASE)
_NAME_AND_BRACKET = re.compile(r"([^\W\d]\w*)[ \t]*\(")
_ANOTHER = re.compile(rf"[;,]?\s*{_NAME_AND_BRACKET.pattern}")
_PIECE = re.compile(
    rf"(?i:[rbuf]{{0,2}})(?:{QUOTED}) | \#[^\n]* | \d[\w.]* |"
    r"(?P<no_argument>(?!set\b)[^\W\d]\w*(?=[ \t]+[^\W\d]|[ \t]*\()) | [^\W\d]\w* | (?P<sign>.)",
    re.DOTALL | re.VERBOSE,
)
_NEVER = (
    "\"'`;?!$"  # signs that Python has in no argument; a quote alone begins a text that a line break ends
)
_PAIRS = {")": "(", "]": "[", "}": "{"}


def extract(raw: str) -> Extraction:
    """The first call of a reply, or else the first line with something on it; never more than one action."""
    text = raw.replace("\r\n", "\n")
    edits: set[Edit] = set()
    for start, line in _lines(text):
        if _FENCE.fullmatch(line.strip()):
            edits.add("fence removed")
            continue
        first, last, named = _bare(line)
        edits |= named
        if first < last:
            action, end = _call(text, start + first, start + last)
            return _extraction(action, edits, text[end:])
    return _extraction("", edits, "")


def ended(text: str) -> bool:
    """Whether the line on which the first call, or whatever else was said first, ends is complete.

    A call whose bracket is open goes on while it can still become one, for MAX_LINES lines at most. What follows
    changes nothing: everything is read from left to right. A call costs one search of the text.
    """
    whole = text[: text.rfind("\n") + 1].replace("\r\n", "\n")
    for start, line in _lines(whole):
        first, last, _ = _bare(line)
        if first < last and not _FENCE.fullmatch(line.strip()):
            return _end(whole, start + first) != "open"
    return False


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Where each line starts, and the line."""
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1


def _bare(line: str) -> tuple[int, int, set[Edit]]:
    """Where a line begins and ends without labels, code marks and blanks around it, and what of these it had."""
    start, end = 0, len(line)
    edits: set[Edit] = set()
    while around := _AROUND.match(line, start):
        start = around.end()
        if around["marks"]:
            edits.add("code marks removed")
        if around["label"]:
            edits.add("label removed")
    while end > start and (line[end - 1] == "`" or line[end - 1].isspace()):
        end -= 1
        if line[end] == "`":
            edits.add("code marks removed")
    return start, end, edits


def _call(text: str, start: int, end_of_line: int) -> tuple[str, int]:
    """The action that begins here and where it ends: a call, or the rest of the line as it is."""
    line = text[start:end_of_line]
    if readable(line) is not None:
        return line, end_of_line
    end = _end(text, start)
    if isinstance(end, str):
        return line, end_of_line
    call = text[start:end]
    _, last, _ = _bare(text[end:].partition("\n")[0])
    rest = text[end : end + last].strip("` \t")
    if readable(call) is not None and ("\n" in call and rest[:1] in ("", "#") or _is_another(rest)):
        return call, end
    if "\n" not in call or call.partition("(")[0].strip() not in NAMES:
        return line, end_of_line
    whole = text[start : end + last]
    return whole, start + len(whole)


def _is_another(rest: str) -> bool:
    found = _ANOTHER.match(rest)
    return found is not None and not keyword.iskeyword(found[1])


def _end(text: str, start: int) -> int | str:
    """Where the call that begins here closes its bracket; "open" where it may yet, "none" where it is none.

    Two words side by side make it none, and so do a call in its arguments and signs that Python has nowhere there.
    """
    begin = _NAME_AND_BRACKET.match(text, start)
    if begin is None:
        return "none"
    brackets, lines = ["("], 1
    for piece in _PIECE.finditer(text, begin.end()):
        sign = piece["sign"]
        lines += piece[0].count("\n")
        if lines > MAX_LINES or piece.end() - start > MAX_CHARACTERS:
            return "none"
        if piece["open"]:
            return "open"
        if piece["no_argument"]:
            return "none"
        if not sign:
            continue
        if sign in _NEVER:
            return "none"
        if sign in "([{":
            brackets.append(sign)
        elif sign in _PAIRS:
            if brackets.pop() != _PAIRS[sign]:
                return "none"
            if not brackets:
                return piece.end()
    return "open"


def _extraction(action: str, edits: set[Edit], rest: str) -> Extraction:
    """The action; of what follows it, fences and code marks are removed, and other words and calls are named."""
    lines = [line.strip() for line in rest.split("\n")]
    if any(_FENCE.fullmatch(line) for line in lines):
        edits.add("fence removed")
    left = "\n".join(line for line in lines if not _FENCE.fullmatch(line)).strip("`;, \n")
    left = left[_bare(left.partition("\n")[0])[0] :]
    another = _NAME_AND_BRACKET.match(left)
    dropped = ""
    if another is not None and (another[1] in NAMES or readable(left.partition("\n")[0]) is not None):
        edits.add("second call dropped")
        dropped = left
    elif left and not left.startswith("#"):
        edits.add("text removed")
    return Extraction(Action(action), tuple(edit for edit in EDITS if edit in edits), dropped)
