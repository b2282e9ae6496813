"""Messages as text: what a chat template writes, where the text holds each message, and what became of it.

Where a template cannot take the messages, a documented fallback is used and named in `Written.notes`:

- no template at all: a plain transcript, each turn being `System:`, `User:`, `Assistant:` or `Tool:`, a line break,
  its text and a blank line; the prompt ends in `Assistant:` and a line break, as a recorded action begins;
- the template refuses a system turn (Gemma): its text and a blank line are put before the first user turn;
- the template refuses two turns of one role in a row: their texts are joined by a blank line into one turn.

Where a message stands is found in the text itself: the transcript is written once more with a mark in the message's
place. What stands there is compared with the message to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import TemplateError

from mech.errors import InputError

Message = dict[str, str]
"""`{"role": one of ROLES, "content": text}`."""

ROLES = ("user", "tool", "system", "assistant")
"""Every role that a message may have; whether a template knows it is found by rendering (`require_role`)."""

CharSpan = tuple[int, int]
"""First character and the one after the last."""

Areas = tuple[tuple[CharSpan, ...] | None, ...]
"""For each message the places where the text holds it; None where these cannot be told."""

Writer = Callable[[Sequence[Message]], str]
Form = Callable[[list[Message]], list[Message]]

REFUSALS = (TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What a template raises for messages that it does not take, on purpose or by a mistake of its own."""

PLAIN = "plain transcript (the model has no chat template)"
SYSTEM_FOLDED = "system text put before the first user turn (the template refuses a system turn)"
TURNS_MERGED = "consecutive turns of one role merged (the template refuses them)"
BOS_ADDED = "beginning-of-sequence token added (the tokenizer adds one, the template does not)"

_PLAIN_NOTES: tuple[str, ...] = (PLAIN,)
PLAIN_FORMAT = "Role:\\ncontent\\n\\n"


@dataclass(frozen=True)
class Written:
    """The text of a transcript, where it holds each message, and the fallbacks that were used."""

    text: str
    areas: Areas
    notes: tuple[str, ...]

    @property
    def content(self) -> tuple[CharSpan, ...] | None:
        """All places of messages in order; None where one cannot be told or two overlap."""
        if any(area is None for area in self.areas):
            return None
        places = sorted(place for area in self.areas if area for place in area)
        if any(one[1] > other[0] for one, other in zip(places, places[1:], strict=False)):
            return None
        return tuple(places)


def write_transcript(
    tokenizer: Any, settings: Mapping[str, Any], messages: Sequence[Message], generation_prompt: bool
) -> Written:
    """Messages through the tokenizer's template, in the first form that it takes, or as a plain transcript.

    Args:
        tokenizer: a transformers tokenizer; its beginning-of-sequence token opens the text where it adds one itself.
        settings: what is passed to the template besides the messages.
        messages: the transcript.
        generation_prompt: whether the opening of the assistant's turn stands at the end.

    Raises:
        InputError: no messages, an unknown role, or a template that takes none of the forms.
    """
    _check_messages(messages)
    if tokenizer.chat_template:
        text, write, notes = _through_template(tokenizer, settings, messages, generation_prompt)
    else:
        write, notes = _plain_writer(generation_prompt), _PLAIN_NOTES
        text = write(messages)
    areas = _find(write, messages, text)
    bos = tokenizer.bos_token
    if _adds_bos(tokenizer) and not _opens_with(text, bos, areas):
        text, shift = bos + text, len(bos)
        notes += (BOS_ADDED,) if PLAIN not in notes else ()
        areas = tuple(area and tuple((start + shift, stop + shift) for start, stop in area) for area in areas)
    return Written(text, areas, notes)


def changes(messages: Sequence[Message], written: Written) -> tuple[str, ...]:
    """What the template made of messages that it did not write as they are, by kind: one note a kind."""
    text, areas = written.text, written.areas
    kinds: dict[str, list[str]] = {}
    starts = [area[0][0] if area else None for area in areas]
    for number, (message, area) in enumerate(zip(messages, areas, strict=True), 1):
        here, later = starts[number - 1], starts[number:]
        moved = here is not None and any(start is not None and start < here for start in later)
        for kind in (_change(message["content"], text, area), "puts behind later ones" if moved else None):
            if kind:
                kinds.setdefault(kind, []).append(f"{number} ({message['role']})")
    return tuple(f"the template {kind} message {', '.join(which)}" for kind, which in kinds.items())


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InputError("A transcript without messages cannot be rendered.")
    for message in messages:
        if message["role"] not in ROLES:
            raise InputError(f"'{message['role']}' is not a role: use {', '.join(ROLES)}.")


def _through_template(
    tokenizer: Any, settings: Mapping[str, Any], messages: Sequence[Message], generation_prompt: bool
) -> tuple[str, Writer, tuple[str, ...]]:
    """The first form of the messages that the template takes: its text, how it is written, what was changed."""

    def writer(form: Form) -> Writer:
        return lambda turns: str(
            tokenizer.apply_chat_template(
                form(list(turns)),
                tokenize=False,
                add_generation_prompt=generation_prompt,
                **settings,
            )
        )

    refusal: Exception | None = None
    for form, notes in _forms(messages):
        write = writer(form)
        try:
            return write(messages), write, notes
        except REFUSALS as error:
            refusal = refusal or error
    roles = ", ".join(message["role"] for message in messages)
    raise InputError(f"The model's chat template refuses the turns {roles}: {refusal}") from refusal


def _find(write: Writer, messages: Sequence[Message], text: str) -> Areas:
    """Where a written transcript holds each message: the transcript written again, with marks, tells it.

    First with all marks at once; if the text is not that with the messages put in, since the template changes one or
    words something by what it says, each is marked alone.
    """
    marks = _marks({*text, *(letter for message in messages for letter in message["content"])}, len(messages))
    marked = [{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)]
    try:
        whole = write(marked)
    except REFUSALS:
        whole = ""
    found: list[list[CharSpan]] = [[] for _ in messages]
    made = ""
    for part in re.split(f"([{marks[0]}-{marks[-1]}])", whole):
        if part and part in marks:
            said = messages[marks.index(part)]["content"]
            found[marks.index(part)].append((len(made), len(made) + len(said)))
            part = said
        made += part
    if made == text:
        return tuple(map(tuple, found))
    return tuple(_find_one(write, messages, at, marks[at], text) for at in range(len(messages)))


def _find_one(
    write: Writer, messages: Sequence[Message], at: int, mark: str, text: str
) -> tuple[CharSpan, ...] | None:
    """Where the text holds one message: what stands there where the same transcript has the mark."""
    marked = [*messages[:at], {**messages[at], "content": mark}, *messages[at + 1 :]]
    try:
        parts = write(marked).split(mark)
    except REFUSALS:
        return None
    times, rest = len(parts) - 1, len(text) - sum(map(len, parts))
    if not times:
        return () if parts == [text] else None
    if rest < 0 or rest % times:
        return None
    length = rest // times
    said = text[len(parts[0]) : len(parts[0]) + length]
    if said.join(parts) != text:
        return None
    starts = [len(said.join(parts[: number + 1])) for number in range(times)]
    return tuple((start, start + length) for start in starts)


def _marks(used: set[str], count: int) -> list[str]:
    """As many characters of private use, in a row, none of which is used."""
    first = next(
        start
        for start in range(0x100000, 0x10FF00, count)
        if not used & set(map(chr, range(start, start + count)))
    )
    return list(map(chr, range(first, first + count)))


def _change(content: str, text: str, area: tuple[CharSpan, ...] | None) -> str | None:
    """What the template did to a message, None where it stands in the text once and to the letter."""
    if area is None:
        return "words something by what stands in"
    if not area:
        return "leaves out" if content else None
    if len(area) > 1 and content:
        return "writes more than once"
    found = text[slice(*area[0])]
    if found == content:
        return None
    if found.strip() == content.strip():
        return "trims"
    if found.split() == content.split() or "".join(found.split()) == "".join(content.split()):
        return "changes white space in"
    if found.casefold() == content.casefold():
        return "changes the case of"
    return "leaves out part of" if found in content else "rewrites"


def _forms(messages: Sequence[Message]) -> Iterator[tuple[Form, tuple[str, ...]]]:
    """How the messages are given: as they are, then with the least change that a stricter template may want."""
    plain = list(messages)
    folded = _fold_system(plain)
    yield list, ()
    if folded != plain:
        yield _fold_system, (SYSTEM_FOLDED,)
    if _merge_turns(plain) != plain:
        yield _merge_turns, (TURNS_MERGED,)
    if folded != plain and _merge_turns(folded) != folded:
        yield lambda turns: _merge_turns(_fold_system(turns)), (SYSTEM_FOLDED, TURNS_MERGED)


def _fold_system(messages: list[Message]) -> list[Message]:
    """The leading system text at the head of the first user turn; unchanged where there is no such pair."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return messages
    first = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def _merge_turns(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            joined = f"{merged[-1]['content']}\n\n{message['content']}"
            merged[-1] = {"role": message["role"], "content": joined}
        else:
            merged.append(message)
    return merged


def _plain_writer(generation_prompt: bool) -> Writer:
    end = "Assistant:\n" if generation_prompt else ""
    return lambda messages: "".join(
        [*(f"{message['role'].capitalize()}:\n{message['content']}\n\n" for message in messages), end]
    )


def _adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer itself puts a beginning-of-sequence token before a plain text."""
    return tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id


def _opens_with(text: str, bos: str, areas: Areas) -> bool:
    """Whether the text begins with this token, written by the template and not by a message."""
    within = any(start < len(bos) and stop > start for area in areas if area for start, stop in area)
    return text.startswith(bos) and not within
