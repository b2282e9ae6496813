"""Interventions on one action, each scored alone, with results to read and draw: patch, ablate, knockout, sweep.

    effect = log p(action | intervention) − log p(action)         nats; exact, everything downstream recomputed
    share  = effect / (log p of the donor's run − log p(action))  of `patch` alone: 1 for the full difference

`heads` is the same everywhere: a HeadSet or None (all heads) for each head alone, a mapping of names to head sets for
all heads of each set together. A run must have kept `sweep_names(model)`; a `Query` given for it is run here.

Terms: Heimersheim & Nanda 2024 (arXiv:2404.15255). Patching a run that lacks something from one that has it is
denoising, the reverse is noising.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.engine.sweep import require_clean, score_interventions
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import Where
from mech.interventions.intervention import Intervention, knock_out_edges, replace_heads, scale_heads
from mech.patching.patch import all_heads, as_run, donor_z, sweep_names
from mech.results import Result, axes, head_map

Heads = HeadSet | Mapping[str, HeadSet] | None
"""Each head of a set alone (None: of the model), or all heads of each named set together."""


@dataclass(frozen=True, repr=False)
class Effects(Result):
    """Effects of interventions on the log-probability of one action, each intervention alone.

    Attributes:
        what: name of the method.
        base: the score of the action without intervention.
        scores: a head, or the name of a set or intervention → the score under it, token by token.
        donor: of patching, the score of the same action in the donor's run.
    """

    what: str
    base: Score
    scores: Mapping[Head | str, Score]
    donor: Score | None = None

    @property
    def headline(self) -> str:
        """The method and the log-probabilities without it."""
        donor = "" if self.donor is None else f", of the donor's run {self.donor.total:.3f}"
        return f"{self.what}: log p of the action is {self.base.total:.3f} nats without it{donor}"

    def to_dataframe(self) -> pd.DataFrame:
        """Columns intervention, layer, head (empty for sets), logprob, effect (nats), and share where patched."""
        rows = []
        for label, score in self.scores.items():
            layer, head = (label.layer, label.head) if isinstance(label, Head) else (None, None)
            rows.append((str(label), layer, head, score.total, score.total - self.base.total))
        frame = pd.DataFrame(rows, columns=["intervention", "layer", "head", "logprob", "effect"])
        frame = frame.astype({"layer": "Int64", "head": "Int64"})
        if self.donor is not None:
            frame["share"] = frame["effect"] / (self.donor.total - self.base.total)
        return frame

    def plot(self, ax: Any = None) -> Any:
        """A map of layers and heads where every row is a head, else a bar for each row; effects in nats."""
        effects = {label: score.total - self.base.total for label, score in self.scores.items()}
        by_head = {label: effect for label, effect in effects.items() if isinstance(label, Head)}
        if by_head and len(by_head) == len(effects):
            return head_map(by_head, "effect on log p (nats)", ax)
        ax = axes(ax)
        ax.barh([str(label) for label in effects], list(effects.values()))
        ax.set_xlabel("effect on log p (nats)")
        return ax


def sweep(engine: Engine, run: Run | Query, interventions: Mapping[str, Intervention]) -> Effects:
    """Score the action under each of these interventions at its action positions, in one or a few packed rows.

    Raises:
        InputError: the run is not clean, an intervention has another `where` than "candidate", or its layer, head or
            site does not exist.
    """
    named: dict[Head | str, Intervention] = {name: one for name, one in interventions.items()}
    return _swept(engine, "Interventions", as_run(engine, run, sweep_names(engine.model)), named)


def patch(engine: Engine, recipient: Run | Query, donor: Run | Query, heads: Heads = None) -> Effects:
    """Activation patching: z of heads at the action positions of the recipient, taken from the donor.

    Raises:
        InputError: the actions differ, the recipient is not clean, or a head does not exist.
    """
    model = engine.model
    run, other = (as_run(engine, one, sweep_names(model)) for one in (recipient, donor))
    z = donor_z(model, run, other)
    changes = {label: replace_heads(one, z, "candidate") for label, one in _sets(engine, heads).items()}
    return _swept(engine, "Patching z", run, changes, other.score)


def ablate(
    engine: Engine,
    run: Run | Query,
    heads: Heads = None,
    z: Float[Tensor, "layer head d_head"] | None = None,
    where: Where = "candidate",
) -> Effects:
    """Ablation: z of heads set to zero, or to given values such as means.

    Args:
        engine: runs the model.
        run: a clean run, or its query.
        heads: each of these heads alone, or the heads of each set together.
        z: the values, such as `mean_z(engine, sequences).z`; None sets z to zero.
        where: the action positions ("candidate": cheapest), all positions ("all") or positions by number, ascending.

    Raises:
        InputError: the run is not clean, or a head or position does not exist.
    """
    clean = as_run(engine, run, sweep_names(engine.model))
    changes = {
        label: scale_heads(one, 0.0, where) if z is None else replace_heads(one, z, where)
        for label, one in _sets(engine, heads).items()
    }
    what = "Zero ablation" if z is None else "Ablation by given values"
    if where == "candidate":
        return _swept(engine, what, clean, changes)
    require_clean(clean)
    query = clean.query
    scores = engine.score([Query(query.prompt, query.action, change) for change in changes.values()])
    return Effects(what, clean.score, dict(zip(changes, scores, strict=True)))


def knockout(engine: Engine, run: Run | Query, sources: Sequence[int], heads: Heads = None) -> Effects:
    """Attention knockout: these heads do not attend from the action positions to the sources; other heads do.

    `sources` are absolute positions in the prompt, ascending.

    Raises:
        InputError: the run is not clean, no source is given, a head or position does not exist, or a head would see
            nothing.
    """
    if not len(sources):
        raise InputError("A knockout needs at least one source position.")
    changes = {label: knock_out_edges(one, sources) for label, one in _sets(engine, heads).items()}
    return _swept(engine, "Attention knockout", as_run(engine, run, sweep_names(engine.model)), changes)


def _sets(engine: Engine, heads: Heads) -> dict[Head | str, HeadSet]:
    """The head sets to change together, by label; InputError for a head that does not exist."""
    model = engine.model
    chosen = all_heads(model) if heads is None else heads
    if isinstance(chosen, HeadSet):
        return {head: HeadSet([head]) for head in chosen.check(model.n_layers, model.n_heads)}
    return {name: one.check(model.n_layers, model.n_heads) for name, one in chosen.items()}


@torch.no_grad()
def _swept(
    engine: Engine,
    what: str,
    run: Run,
    changes: Mapping[Head | str, Intervention],
    donor: Score | None = None,
) -> Effects:
    scores = score_interventions(engine, run, list(changes.values()))
    return Effects(what, run.score, dict(zip(changes, scores, strict=True)), donor)
