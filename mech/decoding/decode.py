"""Write one turn: token by token from the model's own logits, under a persistent intervention, with bans and a cache.

    sequence = KVSequence(model, engine.prefix_cache(system_ids, edits), PersistentIntervention(edits))
    turn = decode(sequence, prompt_ids, Decoding(max_new_tokens=32))
    turn.text, turn.stop, turn.tokens

`decode` runs only new tokens; `decode_uncached`, the slow path, asks the stock model for a full forward of the whole
sequence at every token. Tests hold the two together under every kind of intervention.

A turn ends for one of these reasons:

    end_of_turn      the token that ends the assistant's turn, or the end of text
    special_token    another special token: no text follows that the template would not read as a turn's border
    stop_text        the decoded text ends the turn (`Decoding.stops`)
    token_limit      `max_new_tokens` were written
    ban_exhausted    every token is refused by a ban
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mech.decoding.bans import BanLeak, DecodingBan, Proposal
from mech.decoding.kv_sequence import KVSequence
from mech.decoding.prompt_lookup import lookup
from mech.decoding.sampling import best, choose
from mech.engine import reference
from mech.engine.queries import Query
from mech.errors import InputError
from mech.interventions.persistent import NOTHING_PERSISTENT, PersistentIntervention, Span
from mech.models.chat import Speaker, end_of_turn_id
from mech.models.model import Model

Stop = Literal["end_of_turn", "special_token", "stop_text", "token_limit", "ban_exhausted"]
DRAFT = 8
"""Guessed tokens verified in one forward, see `mech.decoding.prompt_lookup`."""


@dataclass(frozen=True)
class Decoding:
    """How a turn is written.

    Attributes:
        max_new_tokens: at most so many.
        temperature: 0 for greedy.
        stops: whether the text so far ends the turn.
        draft: tokens guessed ahead (0: one forward a token); it changes the time and no token.
        top: how many of the first token's likeliest candidates are kept.
    """

    max_new_tokens: int
    temperature: float = 0.0
    stops: Callable[[str], bool] = lambda text: False
    draft: int = DRAFT
    top: int = 5

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1 or self.draft < 0 or self.top < 1:
            raise InputError(
                "A turn has at least one token, a draft none or more, and the first token a best one."
            )


@dataclass(frozen=True)
class Turn:
    """What was written.

    Attributes:
        tokens: generated ids, without the one that ended the turn.
        text: decoded from them.
        stop: why it ended; `end` is the token that ended it, if one did.
        logprobs: of each token (and the end) in the model's own distribution, nats, at temperature 1, nothing refused.
        first: the first token's likeliest candidates with their log-probabilities.
        events: refusals in order: how many tokens stood before, the token that was wanted, and the ban's label.
        leaks: labels of bans whose text is in what was written although they let it through.
    """

    tokens: tuple[int, ...]
    text: str
    stop: Stop
    end: int | None
    logprobs: tuple[float, ...]
    first: tuple[tuple[int, float], ...]
    events: tuple[tuple[int, int, str], ...]
    leaks: tuple[str, ...]


Source = Callable[[Sequence[int]], Tensor]
"""The turn's tokens so far → logits [d_vocab] of the next: the cached sequence, or full forwards."""


@dataclass(frozen=True)
class Ends:
    """The tokens that end a turn, and the other special ones, which end it too."""

    speaker: Speaker

    @cached_property
    def turn(self) -> frozenset[int]:
        """The template's end of turn and the tokenizer's end of text."""
        eos = self.speaker.tokenizer.eos_token_id
        end = end_of_turn_id(self.speaker)
        known = (
            {eos} if end not in self.special and self.speaker.tokenizer.chat_template is None else {eos, end}
        )
        return frozenset(int(token) for token in known if token is not None)

    @cached_property
    def special(self) -> frozenset[int]:
        """Every token that the tokenizer marks as special."""
        added = self.speaker.tokenizer.added_tokens_decoder
        marked = {int(token) for token, about in added.items() if about.special}
        return frozenset(marked | set(self.speaker.tokenizer.all_special_ids))

    def stop(self, token: int) -> Stop | None:
        """Why a token ends the turn, None where it does not."""
        if token in self.turn:
            return "end_of_turn"
        return "special_token" if token in self.special else None


def decode(
    kv_sequence: KVSequence,
    prompt: Sequence[int],
    how: Decoding,
    bans: Sequence[DecodingBan] = (),
    spans: Sequence[Span] = (),
    rng: np.random.Generator | None = None,
) -> Turn:
    """Write one turn after a prompt; the sequence keeps what the next prompt may share.

    Args:
        kv_sequence: of the model, under the intervention.
        prompt: token ids, the assistant's opening included.
        how: limits, temperature, stops.
        bans: what must not be written.
        spans: what of the prompt is knocked out in the heads of the persistent intervention.
        rng: the stream of the draws, for a temperature above 0.

    Raises:
        InputError: an empty prompt, spans outside it, sampling without a stream, or no room for the tokens.
        HookMissed: a hook of the intervention did not fire once a forward.
        FloatingPointError: a logit is not finite.
        BanLeak: the turn breaks a ban that was in force.
    """
    with kv_sequence.hooks():
        kv_sequence.rewind(prompt, spans)
        source = _Cached(kv_sequence, tuple(prompt), how)
        return _write(kv_sequence.model, source, how, bans, rng)


def decode_uncached(
    model: Model,
    prompt: Sequence[int],
    how: Decoding,
    persistent: PersistentIntervention = NOTHING_PERSISTENT,
    bans: Sequence[DecodingBan] = (),
    spans: Sequence[Span] = (),
    rng: np.random.Generator | None = None,
) -> Turn:
    """As `decode`, by one stock hooked forward of the whole sequence a token: slow, and the truth."""

    def source(generated: Sequence[int]) -> Tensor:
        tokens = (*generated, 0)  # the last of an action is never run: any token will do
        change = persistent.whole(spans, len(prompt) + len(generated))
        return reference.full_forward(model, Query(tuple(prompt), tokens, change))[-1]

    return _write(model, source, how, bans, rng)


class _Cached:
    """Logits from a sequence that was rewound to the prompt; guesses ahead are verified in one forward."""

    def __init__(self, kv_sequence: KVSequence, prompt: tuple[int, ...], how: Decoding) -> None:
        self._kv_sequence, self._prompt, self._how = kv_sequence, prompt, how
        self._ahead: list[int] = []  # what the rows below assume was generated …
        self._rows: Tensor | None = (
            None  # … and the logits after each beginning of it that is `_base` or longer
        )
        self._base = 0

    def __call__(self, generated: Sequence[int]) -> Tensor:
        n = len(generated)
        if self._rows is not None and n - self._base < len(self._rows) and self._ahead[:n] == list(generated):
            return self._rows[n - self._base]
        whole = [*self._prompt, *generated]
        # No further than the turn may go: a guess must not need room that the turn itself does not.
        count = min(self._how.draft, self._how.max_new_tokens - n - 1)
        guess = lookup(whole, count) if count > 0 else []
        self._ahead, self._base = [*generated, *guess], n
        self._rows = self._kv_sequence.push([whole[-1], *guess], keep=len(whole) - 1)
        return self._rows[0]


class _Writing:
    """A turn so far: what one more token would make of it, and whether a ban is in its way."""

    def __init__(self, model: Model, how: Decoding, bans: Sequence[DecodingBan]) -> None:
        self._tokenizer, self._ends, self._how, self._bans = model.tokenizer, Ends(model), how, bans
        self.generated: list[int] = []
        self.text = ""
        self.end: int | None = None

    def after(self, token: int) -> tuple[str, Stop | None]:
        """The text with one more token, and why the turn is over then, if it is."""
        reason = self._ends.stop(token)
        if reason is not None:
            return self.text, reason
        text = text_of(self._tokenizer, [*self.generated, token])
        if self._how.stops(text):
            return text, "stop_text"
        full = len(self.generated) + 1 >= self._how.max_new_tokens
        return text, "token_limit" if full else None

    def refusal(self, token: int) -> str | None:
        """The label of the first ban that forbids the token now."""
        text, reason = self.after(token)
        proposal = Proposal(self.generated, token, text, reason is not None)
        return next((ban.label for ban in self._bans if ban.forbids(proposal)), None)

    def take(self, token: int) -> Stop | None:
        """Write the token; why the turn is over, if it is."""
        self.text, reason = self.after(token)
        if self._ends.stop(token):
            self.end = token
        else:
            self.generated.append(token)
        return reason

    def leaks(self, finished: bool) -> tuple[str, ...]:
        """The labels of bans whose text was written all the same; BanLeak where one was broken as it is stated.

        A turn that stopped since every token was refused is not finished: what must not be its end may be there.
        """
        tokens = [*self.generated, *([] if self.end is None else [self.end])]
        broken = [ban.label for ban in self._bans if ban.broken(tokens, self.text)] if finished else []
        if broken:
            raise BanLeak(f"The turn {self.text!r} breaks the ban of {broken[0]!r}.")
        return tuple(dict.fromkeys(ban.label for ban in self._bans if ban.label in self.text))


@torch.no_grad()
def _write(
    model: Model, source: Source, how: Decoding, bans: Sequence[DecodingBan], rng: np.random.Generator | None
) -> Turn:
    writing = _Writing(model, how, bans)
    logprobs: list[float] = []
    events: list[tuple[int, int, str]] = []
    first: list[tuple[int, float]] = []
    stop: Stop | None = None
    while stop is None:
        logits = source(writing.generated)
        first = first or best(logits, how.top)
        chosen = choose(logits, writing.refusal, how.temperature, rng)
        events += [(len(writing.generated), token, label) for token, label in chosen.refused]
        if chosen.token is None:
            stop = "ban_exhausted"
        else:
            logprobs.append(chosen.logprob)
            stop = writing.take(chosen.token)
    leaks = writing.leaks(finished=stop != "ban_exhausted")
    tokens, found = tuple(writing.generated), tuple(events)
    return Turn(tokens, writing.text, stop, writing.end, tuple(logprobs), tuple(first), found, leaks)


def text_of(tokenizer: Any, tokens: Sequence[int]) -> str:
    """Tokens as text, nothing cleaned up; a character whose bytes are not all there yet is U+FFFD."""
    return str(tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))
