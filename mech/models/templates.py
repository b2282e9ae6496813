"""Messages as text: the output of the chat template, the place of each message in it, and changes to messages.

Where a template does not take the messages, a fallback is used and named in `Written.notes`:

- no template: a plain transcript, each turn being `System:`, `User:`, `Assistant:` or `Tool:`, a line break, its text
  and a blank line; the prompt ends in `Assistant:` and a line break, as a recorded action begins;
- the template refuses a system turn (Gemma): its text and a blank line are put before the first user turn;
- the template refuses two turns of one role in a row: their texts are joined by a blank line into one turn.

The place of a message is found by rendering the transcript again with a mark instead of the message. The text there is
compared with the message character by character.
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
"""Every role that a message may have; `mech.models.chat.require_role` tests whether a template takes it."""

CharSpan = tuple[int, int]
"""Start and end of a part of a text, the end excluded."""

Areas = tuple[tuple[CharSpan, ...] | None, ...]
"""The places of each message in the text; None where they cannot be determined."""

Writer = Callable[[Sequence[Message]], str]
Form = Callable[[list[Message]], list[Message]]

REFUSALS = (TemplateError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What a template raises for messages that it does not take, on purpose or by a bug of its own."""

PLAIN = "plain transcript (the model has no chat template)"
SYSTEM_FOLDED = "system text put before the first user turn (the template refuses a system turn)"
TURNS_MERGED = "consecutive turns of one role merged (the template refuses them)"
BOS_ADDED = "beginning-of-sequence token added (the tokenizer adds one, the template does not)"

PLAIN_FORMAT = "Role:\\ncontent\\n\\n"


def template_text(tokenizer: Any) -> str | None:
    """The default chat template of a tokenizer, None where it has none."""
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else None


def outside(text: str, content: Sequence[CharSpan]) -> list[CharSpan]:
    """The parts of a text before, between and after these places, which are in order and do not overlap."""
    borders = [0, *(border for place in content for border in place), len(text)]
    return list(zip(borders[::2], borders[1::2], strict=True))


@dataclass(frozen=True)
class Written:
    """The text of a transcript, the places of its messages, and the fallbacks that were used."""

    text: str
    areas: Areas
    notes: tuple[str, ...]

    @property
    def content(self) -> tuple[CharSpan, ...] | None:
        """All places of messages in order; None where one is unknown or two overlap."""
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

    `settings` are further variables of the template; with `generation_prompt`, the text ends with the opening of the
    assistant's turn. Where the tokenizer adds a beginning-of-sequence token to plain text, the text begins with one.

    Raises:
        InputError: no messages, an unknown role, or a template that takes none of the forms.
    """
    if not messages:
        raise InputError("A transcript without messages cannot be rendered.")
    for message in messages:
        if message["role"] not in ROLES:
            raise InputError(f"'{message['role']}' is not a role: use {', '.join(ROLES)}.")
    notes: tuple[str, ...] = (PLAIN,)
    if tokenizer.chat_template:
        text, write, notes = _through_template(tokenizer, settings, messages, generation_prompt)
    else:
        write = _plain_writer(generation_prompt)
        text = write(messages)
    areas = _find(write, messages, text)
    bos = tokenizer.bos_token
    if _adds_bos(tokenizer) and not _opens_with(text, bos, areas):
        text, shift = bos + text, len(bos)
        notes += (BOS_ADDED,) if PLAIN not in notes else ()
        areas = tuple(area and tuple((start + shift, stop + shift) for start, stop in area) for area in areas)
    return Written(text, areas, notes)


def changes(messages: Sequence[Message], written: Written) -> tuple[str, ...]:
    """The template's changes to messages: one note for each kind of change."""
    text, areas = written.text, written.areas
    kinds: dict[str, list[str]] = {}
    starts = [area[0][0] if area else None for area in areas]
    for number, (message, area) in enumerate(zip(messages, areas, strict=True), 1):
        here, later = starts[number - 1], starts[number:]
        moved = here is not None and any(start is not None and start < here for start in later)
        for kind in (_change(message["content"], text, area), "puts after later ones" if moved else None):
            if kind:
                kinds.setdefault(kind, []).append(f"{number} ({message['role']})")
    return tuple(f"the template {kind} message {', '.join(which)}" for kind, which in kinds.items())


def _through_template(
    tokenizer: Any, settings: Mapping[str, Any], messages: Sequence[Message], generation_prompt: bool
) -> tuple[str, Writer, tuple[str, ...]]:
    """The first form of the messages that the template takes: its text, its writer, and notes of what was changed."""
    arguments = {"tokenize": False, "add_generation_prompt": generation_prompt, **settings}

    def writer(form: Form) -> Writer:
        return lambda turns: str(tokenizer.apply_chat_template(form(list(turns)), **arguments))

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
    """The places of each message in a rendered transcript, found by rendering it again with marks.

    First with all marks at once; if the text with the messages put back is another one, since the template changes a
    message or depends on its content, each message is marked alone.
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
    """The places of one message, found by rendering the transcript with a mark instead of it alone."""
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
    """`count` consecutive characters of private use, none of them in `used`."""
    first = next(
        start
        for start in range(0x100000, 0x10FF00, count)
        if not used & set(map(chr, range(start, start + count)))
    )
    return list(map(chr, range(first, first + count)))


def _change(content: str, text: str, area: tuple[CharSpan, ...] | None) -> str | None:
    """The template's change to a message; None where the text has it once and unchanged."""
    if area is None:
        return "depends on the content of"
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
    """Forms of the messages to try: unchanged, then with the least change that a stricter template may need."""
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
    """The leading system text joined to the first user turn; unchanged where there is no such pair."""
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
