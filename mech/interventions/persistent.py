"""An intervention that holds while the sequence grows: in the prompt, and at every token that is decoded after it.

    edits       z of heads replaced or scaled: at all positions, or at the action positions, which in decoding are
                the last token of the prompt and every generated one
    knockout    from every position after a span of the prompt, these heads do not see the span (`knockout`: the
                spans are the failed calls; the tokens stay, and other heads read them)

A position is a place in the whole sequence, never a place in one forward: in decoding a hook fires once on the prompt
and then on one token at a time, so a number in the forward would hit nothing, or the wrong token (traps, 12).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.edits import Knockout, hook_name
from mech.interventions.hooks import EditLocation
from mech.interventions.intervention import NOTHING, Intervention, knock_out_edges, merge
from mech.interventions.sites import require_fit
from mech.models.model import Model

Span = tuple[int, int]
"""First position and the one after the last, absolute."""
_NO_HEADS = HeadSet(())


@dataclass(frozen=True, eq=False)
class PersistentIntervention:
    """What is changed in every forward of a conversation; `NOTHING_PERSISTENT` is the clean model.

    Attributes:
        edits: edits at "all" or "candidate" positions, each with one value for every position, or a factor.
        knockout_heads: the query heads that do not see the spans named with each prompt.
    """

    edits: Intervention = NOTHING
    knockout_heads: HeadSet = _NO_HEADS

    def __post_init__(self) -> None:
        if len(self.edits.without_knockouts) < len(self.edits.edits) or self.edits.at_positions.edits:
            raise InputError(
                "What holds while decoding is an edit at all or at the action positions, or heads in which "
                "spans are knocked out: a number of a position means another token in each prompt."
            )
        if any(edit.value is not None and edit.value.ndim == 2 for edit in self.edits.without_knockouts):
            raise InputError("What holds while decoding has one value for all positions, not one a position.")

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the edits and the heads; "clean" where there are none."""
        if not self.edits.edits and not len(self.knockout_heads):
            return "clean"
        return hashlib.sha256(f"{self.edits.fingerprint}|{self.knockout_heads}".encode()).hexdigest()

    def hook_names(self, model: Model) -> tuple[str, ...]:
        """The hooks that act; raises InputError for heads that the model does not have."""
        self.knockout_heads.check(model.n_layers, model.n_heads)
        for edit in self.edits.edits:
            require_fit(model, edit)
        names = [edit.hook_name for edit in self.edits.without_knockouts]
        names += [hook_name("scores", layer) for layer in self.knockout_heads.per_layer()]
        return tuple(dict.fromkeys(names))

    def whole(self, spans: Sequence[Span], length: int) -> Intervention:
        """The same for a full forward over `length` tokens: what the slow path asks of the stock model."""
        cuts = [
            knock_out_edges(self.knockout_heads, range(start, stop), tuple(range(stop, length)))
            for start, stop in spans
            if stop < length
        ]
        return self.edits + merge(cuts)

    def locations(
        self, model: Model, spans: Sequence[Span], first: int, count: int, candidate: bool
    ) -> list[EditLocation]:
        """What acts in one forward of `count` tokens from position `first` on.

        Args:
            model: for the device.
            spans: what is knocked out.
            first: absolute position of the forward's first token.
            count: its tokens.
            candidate: all of them are action positions; otherwise none is.
        """
        acting = self.edits.everywhere + (self.edits.at_candidate if candidate else NOTHING)
        placed = [EditLocation(edit, None) for edit in acting.edits]
        for start, stop in spans:
            begin = max(stop, first)
            if begin >= first + count or not len(self.knockout_heads):
                continue
            rows = torch.arange(begin - first, count, device=model.device)
            columns = torch.arange(start, stop, device=model.device)
            where, sources = tuple(range(begin, first + count)), tuple(range(start, stop))
            placed += [
                EditLocation(Knockout(layer, tuple(heads), sources, where), rows, columns)
                for layer, heads in self.knockout_heads.per_layer().items()
            ]
        return placed


NOTHING_PERSISTENT = PersistentIntervention()


def require_spans(spans: Sequence[Span], length: int) -> None:
    """Raise InputError unless the spans lie in order inside a prompt of this length, none empty or overlapping."""
    end = 0
    for start, stop in spans:
        if not end <= start < stop <= length:
            raise InputError(
                f"The span {start}-{stop - 1} does not lie in order in a prompt of {length} tokens."
            )
        end = stop
