"""Special tokens are read where the template writes them and nowhere else; in a message they are text.

    "<|im_start|>assistant" + "echo '<|im_end|>'" + "<|im_end|>"
     the template's            a message's            the template's

A control token is one that the tokenizer marks as special, or an added token that the chat template itself writes
(Qwen3's `<think>` and `<tool_call>` are marked as ordinary ones). Every other added token, such as a run of spaces, is
read in messages too.

Where no message spells a control token, the tokenizer reads the text directly. Where one does, a copy of the tokenizer
reads it in which the control tokens alone are respelt with characters of private use that do not occur in the text. The
template's tokens are replaced by these spellings, of the same length; the old spellings left in messages are text.
Nothing else is read differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

from tokenizers import Tokenizer

from mech.errors import InputError
from mech.models.templates import CharSpan, Message, outside, template_text

_FIRST, _FILLER = 0xF0000, chr(0x10FFFD)  # planes of private use


@dataclass(frozen=True)
class Reading:
    """Ids of a text, and the characters of each (nothing trimmed)."""

    ids: tuple[int, ...]
    places: tuple[CharSpan, ...]


class SpecialTokens:
    """The control tokens of a tokenizer, found in texts and kept out of messages; `of` makes one."""

    def __init__(self, tokenizer: Any, template: str) -> None:
        """Of a transformers tokenizer and the text of its chat template ("" for none)."""
        added = {str(about): (int(token), about) for token, about in tokenizer.added_tokens_decoder.items()}
        self.ids: Mapping[str, int] = {
            text: token
            for text, (token, about) in added.items()
            if text and (about.special or (_is_mark(text) and text in template))
        }
        """Text → id of every control token."""
        # As in the tokenizers library: leftmost, then longest; ordinary added tokens are matched too.
        plain = [text for text, (_, about) in added.items() if text and not about.normalized]
        later = [text for text, (_, about) in added.items() if text and about.normalized]
        self._passes = [_alternatives(texts) for texts in (plain, later) if texts]
        self._backend = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        self._respelled: _Respelled | None = None
        self._reading = lru_cache(maxsize=16)(self._read)  # callers ask for many places of one transcript

    def found(self, text: str) -> list[CharSpan]:
        """Places that the tokenizer would read as control tokens, in order."""
        return sorted(place for place in self._matches(text, 0) if text[slice(*place)] in self.ids)

    def written(self, text: str, content: Sequence[CharSpan]) -> list[CharSpan]:
        """Places of the template's control tokens: those outside `content` (places in order, without overlap)."""
        return [
            (start + begin, start + end)
            for start, stop in outside(text, content)
            for begin, end in self.found(text[start:stop])
        ]

    def in_content(self, text: str, content: Sequence[CharSpan]) -> list[CharSpan]:
        """Places of control tokens that the template does not write."""
        written = set(self.written(text, content))
        return [place for place in self.found(text) if place not in written]

    def refuse(self, messages: Sequence[Message]) -> None:
        """Raise InputError where a message spells a control token, in upper or lower case.

        For a transcript in which the places of messages are unknown, so that the two cannot be told apart.
        """
        control = {text.casefold(): text for text in self.ids}
        for number, message in enumerate(messages, 1):
            said = message["content"].casefold()
            spelt = next((text for low, text in control.items() if low in said), None)
            if spelt is not None:
                raise InputError(
                    f"The chat template depends on the content of message {number} ({message['role']}), which spells "
                    f"{spelt}: it cannot be distinguished from the template's own."
                )

    def read(self, text: str, written: Sequence[CharSpan]) -> Reading:
        """The ids of a text whose only control tokens are those at `written`, with the characters of each id.

        Raises:
            InputError: the tokenizer is not of the tokenizers library, or cannot read control tokens as text.
        """
        return self._reading(text, tuple(written))

    def _read(self, text: str, written: tuple[CharSpan, ...]) -> Reading:
        if self._backend is None:
            raise InputError(
                "This tokenizer does not give the places of its tokens, nor read a special token's spelling as text: "
                "use a checkpoint with a tokenizer.json."
            )
        if self._respelled is None:
            self._respelled = _Respelled(self._backend, list(self.ids))
        return self._respelled.read(text, written)

    def _matches(self, text: str, level: int) -> Iterator[CharSpan]:
        if level == len(self._passes):
            return
        at = 0
        for match in self._passes[level].finditer(text):
            yield from ((at + a, at + b) for a, b in self._matches(text[at : match.start()], level + 1))
            yield match.span()
            at = match.end()
        yield from ((at + a, at + b) for a, b in self._matches(text[at:], level + 1))


class _Respelled:
    """A copy of a tokenizer in which the control tokens, and nothing else, are spelt with characters of private use."""

    def __init__(self, backend: Any, control: Sequence[str]) -> None:
        self._spelling = {
            text: chr(_FIRST + number) + _FILLER * (len(text) - 1) for number, text in enumerate(control)
        }
        described = json.loads(backend.to_str())
        # Without its post-processor, which would trim spaces off the places.
        described.update(padding=None, truncation=None, post_processor=None)
        own: dict[str, int] = {}
        for about in described["added_tokens"]:
            about["content"] = self._spelling.get(about["content"], about["content"])
            own[about["content"]] = about["id"]
        self._tokenizer = Tokenizer.from_str(json.dumps(described))
        # A token that is not in the vocabulary under its new spelling has another id in the copy.
        self._own_id = {self._tokenizer.token_to_id(text): token for text, token in own.items()}
        unknown = getattr(self._tokenizer.model, "unk_token", None)
        self._control = {text: own[spelt] for text, spelt in self._spelling.items() if text != unknown}

    def read(self, text: str, written: Sequence[CharSpan]) -> Reading:
        last = chr(_FIRST + len(self._spelling))
        if any(chr(_FIRST) <= letter < last for letter in text):
            raise InputError("A transcript holds characters of private use (U+F0000 and on): leave them out.")
        parts, at = [], 0
        for start, stop in written:
            parts += [text[at:start], self._spelling[text[start:stop]]]
            at = stop
        encoding = self._tokenizer.encode("".join([*parts, text[at:]]), add_special_tokens=False)
        ids = tuple(self._own_id.get(token, token) for token in encoding.ids)
        control = set(self._control.values())
        spelt = [text[start:stop] for start, stop in written]
        if [token for token in ids if token in control] != [
            self._control[one] for one in spelt if one in self._control
        ]:
            raise InputError(
                "This tokenizer adds or drops special tokens of a text: what a message spells cannot be "
                "distinguished from what the template writes."
            )
        return Reading(ids, tuple(encoding.offsets))


_KNOWN: WeakKeyDictionary[Any, tuple[tuple[Any, ...], SpecialTokens]] = WeakKeyDictionary()


def special_tokens(tokenizer: Any) -> SpecialTokens:
    """The control tokens of a tokenizer, cached until its template or vocabulary changes."""
    template = template_text(tokenizer) or ""
    size = tokenizer.backend_tokenizer.get_vocab_size() if tokenizer.is_fast else None
    key = (template, size)
    known = _KNOWN.get(tokenizer)
    if known is None or known[0] != key:
        known = (key, SpecialTokens(tokenizer, template))
        _KNOWN[tokenizer] = known
    return known[1]


def _is_mark(text: str) -> bool:
    """Whether a token is in brackets or the like, as `<think>` and `[INST]` are."""
    return not (text[0].isalnum() or text[-1].isalnum() or text.isspace()) and any(map(str.isalnum, text))


def _alternatives(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
