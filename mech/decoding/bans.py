"""Decoding bans: conditions under which the next token is refused and another one chosen.

    token     of generated tokens alone, the one that completes the banned sequence is refused; the first ones stay
              allowed, since a corrected call shares a long beginning with the failed one. Another tokenisation of the
              text passes: such leaks are found in the decoded text and reported.
    text      on the decoded text, whatever its tokens: "always" refuses a token with which the text breaks the ban,
              "end" only one with which the turn would end so, so that an action which is part of a longer one is
              allowed.

transformers' bad-words processor bans tokens too, but it matches the prompt's last tokens as a beginning, drops a ban
of the end of text and an empty one silently, and does not know texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from mech.errors import InputError
from mech.models.chat import Speaker, text_ids

When = Literal["always", "end"]


class BanLeak(RuntimeError):
    """A turn breaks a ban that was in force: a bug."""


@dataclass(frozen=True)
class Proposal:
    """A token that may be chosen next.

    Attributes:
        generated: the turn's tokens so far.
        token: the next one.
        text: the turn's text with it (a token that ends the turn adds none).
        ends: whether it ends the turn.
    """

    generated: Sequence[int]
    token: int
    text: str
    ends: bool


@runtime_checkable
class DecodingBan(Protocol):
    """A condition under which a token is refused."""

    @property
    def label(self) -> str:
        """Its name in events and leaks."""

    def forbids(self, proposal: Proposal) -> bool:
        """Whether this token must not be chosen now."""

    def broken(self, generated: Sequence[int], text: str) -> bool:
        """Whether a finished turn breaks the ban."""


@dataclass(frozen=True)
class TokenBan:
    """A sequence of token ids that must not be generated; its last or only token may be an end-of-text token."""

    label: str
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.ids:
            raise InputError("A ban of no token at all would ban every text: give at least one token.")

    def forbids(self, proposal: Proposal) -> bool:
        """The token is the last of the sequence and the others were generated right before it."""
        before = self.ids[:-1]
        return proposal.token == self.ids[-1] and _ends_with(proposal.generated, before)

    def broken(self, generated: Sequence[int], text: str) -> bool:
        """The sequence occurs in the generated tokens."""
        return any(_ends_with(generated[: end + 1], self.ids) for end in range(len(generated)))


@dataclass(frozen=True)
class TextBan:
    """A condition on the decoded text.

    Attributes:
        label: its name in events.
        breaks: whether a text breaks the ban.
        when: "always", while the turn is written; "end", only as the whole turn.
    """

    label: str
    breaks: Callable[[str], bool]
    when: When = "always"

    def forbids(self, proposal: Proposal) -> bool:
        """The text with the token breaks the ban (at the end of the turn, for "end")."""
        return (proposal.ends or self.when == "always") and self.breaks(proposal.text)

    def broken(self, generated: Sequence[int], text: str) -> bool:
        """The finished text breaks the ban."""
        return self.breaks(text)


def token_bans(model: Speaker, text: str) -> tuple[TokenBan, ...]:
    """The paper's bans: the text tokenised bare and with a leading space; InputError for an empty text."""
    _require_text(text)
    return tuple(
        TokenBan(text, ids) for ids in dict.fromkeys((text_ids(model, text), text_ids(model, f" {text}")))
    )


def contains(text: str) -> TextBan:
    """No output may contain the text; InputError for an empty one."""
    _require_text(text)
    return TextBan(text, lambda written: text in written)


def equals(text: str, clean: Callable[[str], str] = str.strip) -> TextBan:
    """No cleaned output may equal the cleaned text; InputError for an empty one."""
    _require_text(text)
    wanted = clean(text)
    return TextBan(text, lambda written: clean(written) == wanted, "end")


def _require_text(text: str) -> None:
    if not text.strip():
        raise InputError(
            "A ban of an empty text would ban every output: give the text that must not be written."
        )


def _ends_with(sequence: Sequence[int], end: Sequence[int]) -> bool:
    return len(sequence) >= len(end) and list(sequence[len(sequence) - len(end) :]) == list(end)
