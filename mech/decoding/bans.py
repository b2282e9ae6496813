"""What must not be written, as conditions on the next token; where one holds, that token is refused and another chosen.

    token     the classical construction: only generated tokens count, and only the token that completes the banned
              sequence is refused: the first ones stay free, as a corrected call shares a long beginning with the
              failed one. Another tokenisation of the text passes: such leaks are found in the decoded text and told.
    text      on the decoded text, whatever its tokens: "always" refuses a token with which the text breaks the ban,
              "end" only one with which the turn would end so: an action that is a proper part of a good one stays
              possible.

transformers' bad-words processor is the first construction, but it counts the prompt's last tokens as a beginning,
drops a ban of the end of text and an empty one silently, and knows no text (traps, 15).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from mech.errors import InputError
from mech.models.chat import Speaker, text_ids

When = Literal["always", "end"]


class BanLeak(RuntimeError):
    """A turn breaks a ban that was in force: a bug, and its numbers cannot be trusted."""


@dataclass(frozen=True)
class Proposal:
    """A token about to be chosen.

    Attributes:
        generated: the turn's tokens so far.
        token: the next one.
        text: the turn's text with it; a token that ends the turn adds none.
        ends: the turn would be over with it.
    """

    generated: Sequence[int]
    token: int
    text: str
    ends: bool


@runtime_checkable
class DecodingBan(Protocol):
    """A condition under which a token is refused; `label` is what events name."""

    @property
    def label(self) -> str:
        """How events and leaks call it."""

    def forbids(self, proposal: Proposal) -> bool:
        """Whether this token must not be chosen now."""

    def broken(self, generated: Sequence[int], text: str) -> bool:
        """Whether a finished turn breaks the ban, in the terms in which it is stated."""


@dataclass(frozen=True)
class TokenBan:
    """A sequence of token ids that must not be generated; an end-of-text token may stand in it, last or alone."""

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
        """The sequence stands somewhere in what was generated."""
        return any(_ends_with(generated[: end + 1], self.ids) for end in range(len(generated)))


@dataclass(frozen=True)
class TextBan:
    """A condition on the decoded text.

    Attributes:
        label: how events call it.
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
    """The paper's construction: the text tokenised bare and with a leading space, where these differ.

    Raises:
        InputError: the text is empty.
    """
    _require_text(text)
    return tuple(
        TokenBan(text, ids) for ids in dict.fromkeys((text_ids(model, text), text_ids(model, f" {text}")))
    )


def contains(text: str) -> TextBan:
    """No output may contain the text; raises InputError for an empty one, which every output contains."""
    _require_text(text)
    return TextBan(text, lambda written: text in written)


def equals(text: str, clean: Callable[[str], str] = str.strip) -> TextBan:
    """No output may be the text and nothing else, cleaned in the same way; raises InputError for an empty text."""
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
