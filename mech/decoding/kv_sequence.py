"""A growing sequence with its keys and values, under a persistent intervention: only new tokens are run.

    prefix cache | prompt | generated   push: one forward of the new tokens through the stock blocks, hooks and all
                                        rewind: keep what another prompt shares with it, run the rest of that prompt

Keys and values belong to the tokens *and* to what was done while they were computed (traps, 10): the prefix cache is
checked, a token after a span that is knocked out now and was not then (or the other way round) is computed again,
and so is one that was edited as an action position and is now part of a prompt. They are written in place into memory
that this object alone holds; a prefix cache is read where it is, never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.blocks import ROOM, RowCache, block_arguments, embed, run_block, unembed
from mech.engine.layout import chain, layout
from mech.engine.prefix_cache import PrefixCache
from mech.engine.trie import common_prefix
from mech.errors import InputError
from mech.interventions.hooks import EditLocation, HookMissed, acting_hooks, hooked
from mech.interventions.persistent import NOTHING_PERSISTENT, PersistentIntervention, Span, require_spans
from mech.models.model import Model


class KVSequence:
    """One sequence of one model under one persistent intervention; use `push` inside `hooks()`."""

    def __init__(
        self, model: Model, prefix_cache: PrefixCache, persistent: PersistentIntervention = NOTHING_PERSISTENT
    ) -> None:
        """Begin with a prefix cache.

        Args:
            model: the model, in eval mode.
            prefix_cache: a prefix computed under the persistent intervention's all-position edits, before every
                span that is knocked out.
            persistent: what is changed.

        Raises:
            InputError: the intervention has heads that this model does not have.
            ValueError: the prefix cache was computed under another intervention.
        """
        prefix_cache.require(prefix_cache.tokens, persistent.edits.everywhere.fingerprint)
        self.model = model
        self.persistent = persistent
        self.tokens: list[int] = list(prefix_cache.tokens)
        self.forwards = 0
        self._names = persistent.hook_names(model)
        self._cache = RowCache(prefix_cache.keys, prefix_cache.values, room=ROOM)
        self._prefix_length = len(prefix_cache)
        self._spans: tuple[Span, ...] = ()
        # Tokens from here on were edited as action positions, if there are such edits.
        self._plain = len(prefix_cache)
        self._acting: dict[str, list[EditLocation]] = {}

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """The intervention's hooks, registered once for many forwards.

        Raises:
            InputError: the model is in training mode.
            HookMissed: on leaving, a hook did not fire once a forward.
        """
        self.model.require_eval_mode()
        before = self.forwards
        with hooked(self.model, acting_hooks(self.model, self._names, self._acting)) as count:
            yield
        wrong = [fired for fired in count.counts if fired != self.forwards - before]
        if wrong:
            raise HookMissed(
                f"A hook of the persistent intervention fired {wrong[0]} times in {self.forwards - before} forwards."
            )

    def rewind(self, prompt: Sequence[int], spans: Sequence[Span] = ()) -> int:
        """Make the sequence that of a prompt without its last token; returns how many of its tokens were kept.

        Args:
            prompt: token ids, at least one.
            spans: what of the prompt is knocked out in the persistent intervention's heads.

        Raises:
            InputError: no prompt, or spans outside it.
        """
        if not prompt:
            raise InputError("A prompt to be continued needs at least one token.")
        require_spans(spans, len(prompt))
        kept = min(common_prefix([self.tokens, prompt[:-1]]), self._reusable(tuple(spans)))
        self._spans = tuple(spans)
        self._truncate(kept)
        if kept < len(prompt) - 1:
            self._forward(prompt[kept:-1], candidate=False)
        self._plain = len(self.tokens)
        return kept

    @torch.no_grad()
    def push(self, tokens: Sequence[int], keep: int | None = None) -> Float[Tensor, "pos d_vocab"]:
        """Run these tokens as action positions after the first `keep` ones; the logits that each leads to.

        Args:
            tokens: at least one.
            keep: how many tokens stay before them; None keeps all.

        Raises:
            InputError: less is to be kept than the prompt, or the model has no room for more tokens.
            FloatingPointError: a logit is not finite.
        """
        if keep is not None:
            if not self._plain <= keep <= len(self.tokens):
                raise InputError(f"A sequence of {len(self.tokens)} tokens cannot go back to {keep}.")
            self._truncate(keep)
        logits = unembed(self.model, self._forward(tokens, candidate=True))
        if not bool(torch.isfinite(logits).all()):
            raise FloatingPointError(
                "The model's logits are not finite: nothing of this run may be recorded."
            )
        return logits

    def _reusable(self, spans: tuple[Span, ...]) -> int:
        """How many tokens have keys and values that are right under these spans, as part of a prompt."""
        most = self._plain if self.persistent.edits.at_candidate.edits else len(self.tokens)
        if not len(self.persistent.knockout_heads):
            return most
        return min([most, *(stop for _, stop in set(spans) ^ set(self._spans))])

    def _truncate(self, keep: int) -> None:
        del self.tokens[keep:]
        if keep < self._prefix_length:  # the rest of the prefix stays where it is
            prefix = (self._cache.prefix_keys, self._cache.prefix_values)
            keys, values = ([one[:, :, :keep] for one in layers] for layers in prefix)
            self._cache, self._prefix_length = RowCache(keys, values, room=ROOM), keep

    @torch.no_grad()
    def _forward(self, tokens: Sequence[int], candidate: bool) -> Float[Tensor, "1 node d_model"]:
        model, first, count = self.model, len(self.tokens), len(tokens)
        model.require_room(first + count)
        self._acting.clear()
        for location in self.persistent.locations(model, self._spans, first, count, candidate):
            self._acting.setdefault(location.edit.hook_name, []).append(location)
        prefix = self._prefix_length
        where = layout(model, *chain(prefix, first + count - prefix), prefix, first - prefix)
        self._cache.used = first - prefix
        self._cache.keys.clear()
        arguments = block_arguments(model, where, self._cache)
        resid = embed(model, torch.tensor(list(tokens), device=model.device), where.depths)
        for layer in range(model.n_layers):
            resid = run_block(model, layer, resid, arguments[layer])
        if len(self._cache.keys) != model.n_layers:
            raise HookMissed("The model's attention did not use the key/value cache it was given.")
        self.forwards += 1
        self.tokens += tokens
        return resid
