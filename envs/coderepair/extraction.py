"""The program in a reply: which part of the text it is, and what was done to get it.

A reply is cut at its code fences into segments, those inside fences and those between them; a fence inside a text
literal or a comment is no border. A segment that is no program is cut further at its lines of prose. A part is a
program if it parses, as it is or after a repair of its layout, and does more than name values. Chosen is

    1. the largest program that defines what the task asks for; of equally large ones the last
    2. else the largest segment that begins to define it and does not parse: the syntax error is the reply's own
    3. else the largest program
    4. else what is between the first fence and the next, or the whole text

What the chosen program uses or the task asks for, and only another program of the reply defines, is put before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from envs.agent import EDITS, QUOTED, Edit, Extraction
from envs.base import Action
from envs.coderepair.programs import Program, program_in
from envs.coderepair.prose import without_prose

_FENCE = r"(?P<fence>`{3,}|^[ \t]*~{3,})"
_ANY_FENCE = re.compile(_FENCE, re.MULTILINE)
_FENCE_IN_CODE = re.compile(rf"{QUOTED} | \#[^\n]* | {_FENCE}", re.MULTILINE | re.DOTALL | re.VERBOSE)
_FENCES = 40  # so many are tried where they may be hidden
_FIRST_FENCE = re.compile(r"```[\w+-]*[ \t]*\n")
_LANGUAGE = re.compile(r"\A[\w+-]*[ \t]*")
_DEFINITION = re.compile(r"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class _Segment:
    """A part of a reply between two fences.

    opened, closed: a fence is before it, after it. inside: the fence before it opens a block of code.
    """

    text: str
    opened: bool
    closed: bool
    inside: bool


@dataclass(frozen=True)
class _Part:
    """A program and where it is: the segment, and the text of it that is the program."""

    segment: _Segment
    source: str
    program: Program


def extract(raw: str, wanted: frozenset[str] = frozenset()) -> Extraction:
    """The program in a reply; `wanted` are the names that the tests call (none: nothing is known of them)."""
    text = raw.replace("\r\n", "\n").replace("\r", "\n")
    edits: set[Edit] = {"line ends changed"} if text != raw else set()
    text = text.rstrip()
    whole = program_in(text)
    if whole is not None:
        return _extraction(whole.text, edits | whole.edits)
    lines = f"{text}\n"
    splits = [list(_segments(lines)), list(_overlapping(lines))]
    found = [[part for segment in split for part in _parts(segment)] for split in splits]
    for split, parts in zip(splits, found, strict=True):
        asked = [part for part in parts if wanted <= part.program.defined]
        if not asked and wanted <= _defined(part for part in parts if part.program.only_defines):
            asked = [part for part in parts if wanted & part.program.defined]
        if asked:
            return _chosen(split, parts, asked, wanted, edits)
    begun = [each.text for split in splits for each in split if _begins(each.text, wanted)]
    if not begun:
        for split, parts in zip(splits, found, strict=True):
            if parts:
                return _chosen(split, parts, parts, wanted, edits)
    plain = _bare(max(begun, key=len)) if begun else _first_block(lines)
    if plain == text:
        return _extraction(plain, edits)
    if plain != text.strip():
        edits.add("fence removed")
    again = extract(plain, wanted)
    others = list(dict.fromkeys(part.program.text for part in found[0])) if begun else []
    if others:
        edits.add("other program dropped")
    dropped = "\n\n".join([*others, *filter(None, [again.dropped])])
    return _extraction(again.action.text, edits | set(again.edits), dropped)


def ended(text: str, wanted: frozenset[str] = frozenset()) -> bool:
    """Whether a fence closes a program: one that defines what is wanted, or a block with a definition that is broken.

    A closed block that is no program (a plan, a command line) or lacks what is wanted (a helper) ends nothing. What
    follows changes nothing, since segments are found from left to right. Without a fence a call costs nothing, with
    one a search of the text, about 0.3 ms for 4,000 characters (1,000 tokens); a closed segment is parsed once.
    """
    if "```" not in text and "~~~" not in text:
        return False
    for segment in _segments(text):
        if not segment.closed:
            continue
        programs = [part.program for part in _parts(segment)] if segment.inside or wanted else []
        if any(wanted <= program.defined for program in programs):
            return True
        if segment.inside and not programs and _DEFINITION.search(segment.text):
            return True
    return False


def _segments(text: str) -> Iterator[_Segment]:
    """The parts before, between and after fences; the line that opens a block is not part of it."""
    start, inside, opened = 0, False, False
    for mark in _FENCE_IN_CODE.finditer(text):
        if not mark["fence"]:
            continue
        yield _Segment(_body(text[start : mark.start()], opened), opened, True, inside)
        start, opened = mark.end(), True
        # A fence with a word after it opens a block, also where another one is open.
        inside = not inside or text[start : start + 1].isalpha()
    yield _Segment(_body(text[start:], opened), opened, False, inside)


def _overlapping(text: str) -> Iterator[_Segment]:
    """From every fence to the next that is outside of texts and comments: quotes in prose can hide no fence so."""
    marks = list(islice(_ANY_FENCE.finditer(text), _FENCES))
    if marks:
        yield _Segment(text[: marks[0].start()], False, True, False)
    for mark in marks:
        first = next(_segments(text[mark.end() :]))
        yield _Segment(_body(first.text, True), True, first.closed, True)


def _body(text: str, opened: bool) -> str:
    """A segment without the rest of the line on which its fence is, or of a single line without its language."""
    if not opened:
        return text
    line, _, below = text.partition("\n")
    return below if below.strip() else _LANGUAGE.sub("", line)


def _parts(segment: _Segment) -> list[_Part]:
    """The programs of a segment: the whole, or its runs of lines without prose."""
    whole = program_in(segment.text)
    if whole is not None:
        return [_Part(segment, segment.text, whole)]
    read = ((run, program_in(run)) for run in without_prose(segment.text))
    return [_Part(segment, run, program) for run, program in read if program is not None]


def _chosen(
    split: Sequence[_Segment],
    parts: Sequence[_Part],
    fit: Sequence[_Part],
    wanted: frozenset[str],
    edits: set[Edit],
) -> Extraction:
    """The largest of the parts that fit, helped by others; what else there was is named."""
    best = max(reversed(fit), key=lambda part: len(part.program.text))
    have = wanted & best.program.defined
    helpers = _helpers(best, [part for part in parts if not have & part.program.defined], wanted)
    used = [*helpers, best]
    text = "\n\n".join(part.program.text for part in used)
    others = list(dict.fromkeys(part.program.text for part in parts if part.program.text not in text))
    sources = {part.source.strip() for part in parts}
    done = edits.union(*(part.program.edits for part in used))
    if best.segment.opened:
        done.add("fence removed")
    elif best.segment.closed:
        done.add("stray fence removed")
    if any(each.text.strip() and each.text.strip() not in sources for each in split):
        done.add("text removed")
    if helpers:
        done.add("helper added")
    if others:
        done.add("other program dropped")
    return _extraction(text, done, "\n\n".join(others))


def _helpers(best: _Part, others: Sequence[_Part], wanted: frozenset[str]) -> list[_Part]:
    """Those of the others that only define things, some of which are wanted, or lacking in the best or a helper."""
    definers = [part for part in others if part.program.only_defines and part is not best]
    chosen: list[_Part] = []
    while True:
        used = [best, *chosen]
        lacking = wanted.union(*(part.program.lacking for part in used)) - _defined(used)
        more = [part for part in definers if part.program.defined & lacking]
        if not more:
            return [part for part in definers if part in chosen]
        chosen.append(more[-1])  # of several that define it, the last


def _defined(parts: Iterable[_Part]) -> frozenset[str]:
    return frozenset().union(*(part.program.defined for part in parts))


def _begins(text: str, wanted: frozenset[str]) -> bool:
    return bool(wanted & {match[1] for match in _DEFINITION.finditer(text)}) and program_in(text) is None


def _first_block(text: str) -> str:
    """What is between the first fence that ends its line and the next (or the end), where there is one."""
    opening = _FIRST_FENCE.search(text)
    return text.strip() if opening is None else _bare(text[opening.end() :].partition("```")[0])


def _bare(text: str) -> str:
    """Without the one or two marks that the token limit left of a closing fence."""
    return text.strip().rstrip("`").rstrip()


def _extraction(text: str, edits: set[Edit] | frozenset[Edit], dropped: str = "") -> Extraction:
    return Extraction(Action(text), tuple(edit for edit in EDITS if edit in edits), dropped)
