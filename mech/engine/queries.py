"""The questions put to a model, and the answers: which logit scores which token, and what is kept of a run.

    tokens      p0  p1  p2 | a0  a1  a2        prompt | action
    position     0   1   2 |  3   4   5
    scored by            2    3   4            action positions: the last prompt token, then all but the last of a

`logp(a | prompt)` is the sum over the action's tokens of the log-probability (nats) of each, given all before it:
teacher forcing, no sampling. The same action ends every condition, so its action positions correspond one to one
between conditions although the contexts differ in length.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mech.engine.prefix_cache import PrefixCache
from mech.errors import InputError
from mech.interventions.edits import Edit, Knockout
from mech.interventions.intervention import NOTHING, Intervention
from mech.models.model import Model


@dataclass(frozen=True)
class Query:
    """How likely is `action` after `prompt` (both token ids) under an intervention?"""

    prompt: tuple[int, ...]
    action: tuple[int, ...]
    intervention: Intervention = NOTHING

    def __post_init__(self) -> None:
        if not self.prompt or not self.action:
            raise InputError("A query needs at least one prompt token and one action token.")
        for edit in self.intervention.edits:
            self._require_positions(edit)

    @classmethod
    def from_text(cls, model: Model, prompt: str, action: str, intervention: Intervention = NOTHING) -> Query:
        """The query of two texts, one after the other, as the tokenizer reads them (with the BOS that it adds).

        Raises:
            InputError: the tokenizer joins the end of the prompt with the beginning of the action in one token.
        """
        before, both = (tuple(model.tokenizer(text)["input_ids"]) for text in (prompt, prompt + action))
        if both[: len(before)] != before:
            raise InputError(
                f"The tokenizer joins the prompt's end with the action's beginning ({action[:20]!r}): move the space "
                "between them."
            )
        return cls(before, both[len(before) :], intervention)

    def _require_positions(self, edit: Edit | Knockout) -> None:
        """Raise InputError where a change names a position that this sequence does not have."""
        if isinstance(edit.where, tuple) and edit.where[-1] >= len(self.tokens):
            raise InputError(
                f"An edit acts at position {edit.where[-1]}, the sequence has 0-{len(self.tokens) - 1}."
            )
        if isinstance(edit, Knockout):
            if edit.sources[-1] >= len(self.prompt):
                raise InputError(
                    f"Edges to position {edit.sources[-1]} are to be knocked out, the prompt has "
                    f"0-{len(self.prompt) - 1}."
                )
        elif edit.value is not None and edit.value.ndim == 2 and edit.where == "candidate":
            if len(edit.value) != len(self.action):
                raise InputError(
                    f"An edit has values for {len(edit.value)} action positions, the action has {len(self.action)}."
                )

    @property
    def tokens(self) -> tuple[int, ...]:
        """What is run: the prompt and all but the last action token, which nothing has to follow."""
        return self.prompt + self.action[:-1]

    @property
    def candidate(self) -> range:
        """The positions whose logits predict the action's tokens, in order."""
        return range(len(self.prompt) - 1, len(self.tokens))

    def positions(self, edit: Edit | Knockout) -> Sequence[int]:
        """Positions at which a change acts in this sequence, ascending (of a knockout, its destinations)."""
        if isinstance(edit.where, tuple):
            return edit.where
        return self.candidate if edit.where == "candidate" else range(len(self.tokens))

    @property
    def untouched(self) -> int:
        """How many tokens a shared prefix may have: it ends before the first position that a local edit touches.

        Without such edits it ends before the last prompt token, the first of the action positions.
        """
        starts = [self.positions(edit)[0] for edit in self.intervention.local.edits]
        return min([self.candidate.start, *starts])

    @property
    def key(self) -> str:
        """SHA-256 over tokens and intervention."""
        text = f"{self.prompt}|{self.action}|{self.intervention.fingerprint}"
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Score:
    """Log-probabilities (nats) of the action's tokens, and whether each was the argmax at its position."""

    logprobs: Float[np.ndarray, " pos"]
    argmax: Bool[np.ndarray, " pos"]

    @property
    def total(self) -> float:
        """The summed log-probability, accumulated exactly."""
        return math.fsum(self.logprobs.tolist())

    @property
    def n_tokens(self) -> int:
        """How many tokens the action has."""
        return len(self.logprobs)

    @property
    def n_argmax_match(self) -> int:
        """How many of them greedy decoding would have chosen."""
        return int(self.argmax.sum())

    @property
    def is_greedy(self) -> bool:
        """Greedy decoding would begin with exactly this action."""
        return bool(self.argmax.all())


@dataclass(frozen=True)
class Run:
    """One query's answer with what was kept of it.

    Attributes:
        query: the question.
        score: log-probabilities of the action's tokens.
        cache: hook name → activation at the action positions (shapes: `mech.engine.capture`).
        at: position set name → such a cache, for further sets ("record", "observation", …) that were asked for.
        prefix_cache: keys and values of the prompt without its last token, under the query's all-position edits; it
            ends before the first position that another edit touches (`Query.untouched`).
    """

    query: Query
    score: Score
    cache: Mapping[str, Tensor]
    at: Mapping[str, Mapping[str, Tensor]]
    prefix_cache: PrefixCache

    def activation(self, name: str, at: str = "candidate") -> Tensor:
        """What was kept under a hook name at a position set; InputError where it was not."""
        kept = self.cache if at == "candidate" else self.at.get(at, {})
        if name not in kept:
            where = "action" if at == "candidate" else at
            raise InputError(
                f"The run did not keep '{name}' at its {where} positions: run it with the keep=…_names(model) of the "
                "method (sweep_names, layer_names, attribution_names, …)."
            )
        return kept[name]


@dataclass
class ForwardCounter:
    """Forwards (passes of the model over a row or a sequence) that were run, and that a cache made unnecessary."""

    ran: int = 0
    saved: int = 0


def token_logprobs(
    logits: Float[Tensor, "row d_vocab"],
    targets: Int[Tensor, " target"],
    rows: Int[Tensor, " target"] | None = None,
) -> tuple[Float[Tensor, " target"], Bool[Tensor, " target"]]:
    """Log-softmax at the targets, at least in fp32, and whether each target is the argmax of its row.

    Args:
        logits: one row a position.
        targets: token ids.
        rows: the row each target is read from; None takes row i for target i.

    Raises:
        FloatingPointError: a logit is not finite; such a run must not be recorded.
    """
    wide = logits if logits.dtype == torch.float64 else logits.float()
    where = torch.arange(len(targets), device=targets.device) if rows is None else rows
    logprobs = torch.log_softmax(wide, dim=-1)[where, targets]
    if not bool(torch.isfinite(logprobs).all()):
        raise FloatingPointError("The model's logits are not finite: nothing of this run may be recorded.")
    return logprobs, wide.argmax(dim=-1)[where] == targets
