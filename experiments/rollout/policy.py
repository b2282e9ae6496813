"""An agent's policy out of a model: messages → ids → a turn decoded under an intervention, and what a row keeps of it.

Bans come as texts. How strictly one is kept is `--ban`:

    token       the paper's: the token that completes the text's own tokenisation is refused (bare, or after a space)
    string      no reply contains the text, however tokenised; a text that may be part of a good action is refused as
                the whole reply only (`AgentEnvironment.ban_everywhere`)
    canonical   and no reply is the same action in another spelling
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from envs import harness
from envs.agent import AgentEnvironment
from envs.base import Task
from envs.harness import Request
from envs.rollout import Reply
from mech.decoding import bans
from mech.decoding.decode import Decoding, Turn, decode
from mech.decoding.kv_sequence import KVSequence
from mech.decoding.turn_spans import turn_span
from mech.engine.engine import Engine
from mech.interventions.persistent import PersistentIntervention, Span
from mech.models.chat import Message, render, shared_length
from mech.models.model import Model
from mech.models.special_tokens import special_tokens

BAN_LEVELS = ("token", "string", "canonical")


class ModelPolicy:
    """The policy of one rollout; keeps its keys and values from turn to turn. Call it with a request."""

    def __init__(
        self,
        engine: Engine,
        environment: AgentEnvironment[Any],
        persistent: PersistentIntervention,
        how: Decoding,
        level: str,
        rng: np.random.Generator,
        task: Task[Any] | None = None,
    ) -> None:
        """Begin a rollout.

        Args:
            engine: the model; its prefix cache of the system prompt is shared by rollouts.
            environment: how an action is extracted from a reply and spelt canonically.
            persistent: what is changed in every forward.
            how: limits and temperature.
            level: one of BAN_LEVELS.
            rng: the draws of this rollout.
            task: what the replies are to; it may decide which part of one is the action.
        """
        self._engine, self._persistent, self._how, self._rng = engine, persistent, how, rng
        self._environment, self._level, self._task = environment, level, task
        self._kv_sequence: KVSequence | None = None
        self.canonical = lru_cache(maxsize=4096)(self._canonical)

    def __call__(self, request: Request) -> Reply:
        """Answer a request; see `mech.decoding.decode.decode` for what it raises."""
        model = self._engine.model
        messages = list(request.messages)
        rendering = render(model, messages)
        spans = self._hidden(request)
        kept = [one for ban in request.bans for one in self.bans(ban)]
        about: dict[str, Any] = {
            "n_prompt_tokens": len(rendering.ids),
            "prompt_sha256": hashlib.sha256(rendering.text.encode()).hexdigest(),
            "prompt_ids": list(rendering.ids),
            "notes": list(rendering.notes),
        }
        if (
            model.n_positions is not None
            and len(rendering.ids) + self._how.max_new_tokens > model.n_positions
        ):
            return Reply("", "no_room", {**NOT_WRITTEN, **about})
        kv_sequence = self._chain_for(messages[: request.opening], rendering.ids)
        turn = decode(kv_sequence, rendering.ids, self._how, kept, spans, self._rng)
        written = recorded(model, turn)
        about["notes"] += model.length_notes(len(rendering.ids) + len(turn.tokens))
        spelt = {turn.text[a:b] for a, b in special_tokens(model.tokenizer).found(turn.text)}
        if spelt:  # a later prompt reads it as it reads any message (`mech.models.chat`)
            about["notes"] = [*about["notes"], f"the reply spells {' '.join(sorted(spelt))}"]
        return Reply(turn.text, turn.stop, {**about, **written})

    def bans(self, ban: harness.Ban) -> list[bans.DecodingBan]:
        """What a banned text means to the decoder at this level."""
        if self._level == "token":
            return list(bans.token_bans(self._engine.model, ban.text))
        made: list[bans.DecodingBan] = [bans.equals(ban.text, self._action)]
        if ban.everywhere:
            made.append(bans.contains(ban.text))
        if self._level == "canonical":
            form = self.canonical(ban.text)
            made.append(
                bans.TextBan(
                    ban.text,
                    lambda text: self.canonical(text) == form,
                    "always" if ban.everywhere else "end",
                )
            )
        return made

    def _canonical(self, text: str) -> str:
        return self._environment.canonical(self._action(text))

    def _action(self, text: str) -> str:
        return self._environment.clean(text, self._task).text

    def _hidden(self, request: Request) -> tuple[Span, ...]:
        if not len(self._persistent.knockout_heads):
            return ()
        return tuple(turn_span(self._engine.model, request.messages, at) for at in request.failed_turns)

    def _chain_for(self, opening: Sequence[Message], prompt: Sequence[int]) -> KVSequence:
        """The rollout's chain; it begins with the prefix cache that all rollouts with this opening share."""
        if self._kv_sequence is None:
            model = self._engine.model
            shared = min(shared_length(model, opening), len(prompt) - 1)
            prefix_cache = self._engine.prefix_cache(prompt[:shared], self._persistent.edits)
            self._kv_sequence = KVSequence(model, prefix_cache, self._persistent)
        return self._kv_sequence


NOT_WRITTEN: Mapping[str, Any] = {
    "n_prompt_tokens": 0, "n_new_tokens": 0, "n_ban_events": 0, "n_refused": 0, "prompt_sha256": None, "prompt_ids": [],
    "token_ids": [], "token_logprobs": [], "first_top": [], "ban_events": [], "ban_leaks": [], "notes": [],
}  # fmt: skip
"""What a row records of a step that the model did not write."""
EVENTS = 64
"""Refusals kept in a row; where bans leave no token there are as many as the vocabulary has entries."""


def recorded(model: Model, turn: Turn) -> dict[str, Any]:
    """What a row keeps of a turn: its ids and their log-probabilities, the first token's candidates, the refusals."""
    tokenizer = model.tokenizer
    return {
        "n_new_tokens": len(turn.tokens) + (turn.end is not None),
        "token_ids": [*turn.tokens, *([] if turn.end is None else [turn.end])],
        "token_logprobs": list(turn.logprobs),
        "first_top": [[token, tokenizer.decode([token]), logprob] for token, logprob in turn.first],
        "n_ban_events": len({at for at, _, _ in turn.events}),
        "n_refused": len(turn.events),
        "ban_events": [
            [at, token, tokenizer.decode([token]), label] for at, token, label in turn.events[:EVENTS]
        ],
        "ban_leaks": list(turn.leaks),
    }
