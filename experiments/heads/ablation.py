"""What takes the place of z of ablated heads: seven ways, each the same for every study.

    mean        its mean over all positions of the `pre` contexts of the reference items
    mean-role   its mean over the reference items' positions of the same role under the same condition, the action
                included (`probes.scoring.roles`): what z is in such a place, without what it says of this one
    resample    what it was in another decision point under the same condition: action positions from the
                action positions of a reference item's own action, in order; at all positions, each other one from
                a drawn position of the same role. A fresh donor for every item and draw, one for all heads, the same
                under every condition, so that differences of conditions are paired
    zero        0
    scale       alpha · z
    optimal     one constant a head, fitted on the reference items for the set as a whole
                (`mech.patching.optimal_constants`; Li & Janson 2024, "Optimal ablation for interpretability",
                arXiv:2409.09951)

At all positions the shared prefix is recomputed under the ablation; at the action positions alone it is not. What
resample and mean-role put there depends on the question, so every question has an intervention of its own:
`Replacement.interventions`. The reference items are of other tasks than every measured one (`reference_sets`).
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from experiments.heads.reference_sets import (
    ReferenceItemsOptions,
    ReferenceOptions,
    ReferenceSet,
    reference_set,
)
from experiments.heads.spec import ByOptions, RankedOptions
from experiments.run.session import Session
from experiments.run.study import Flag, keyed, positive
from mech.engine.capture import everything_names
from mech.engine.engine import Run
from mech.engine.sweep import score_interventions
from mech.engine.trie import common_prefix
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import NOTHING, Intervention, Where, replace_heads, scale_heads
from mech.patching.donors import RoleMeans, by_role, in_order
from mech.patching.optimal_constants import Fit, clean_runs, fit_constants
from probes.items.item import Item
from probes.prompts.conditions import lacking
from probes.scoring.record import system_length
from probes.scoring.roles import position_roles
from probes.scoring.score import ScoringQuery, build_queries, score_row

METHODS = ("mean", "mean-role", "resample", "zero", "scale", "optimal")
BY_QUESTION = ("mean-role", "resample")
"""Ways whose values depend on the question."""


@dataclass(frozen=True, kw_only=True)
class DrawsOptions:
    """How many donors an item has."""

    draws: Annotated[int, Flag("with --how resample: donors of every item", positive)] = 20


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where z is replaced, and by what factor it is scaled."""

    where: Annotated[Literal["all", "candidate"], Flag("at all positions, or at those that predict a×")] = (
        "all"
    )
    alpha: Annotated[float, Flag("with --how scale: the factor on z")] = 0.5


@dataclass(frozen=True, kw_only=True)
class HowOptions(PlaceOptions):
    """What takes the place of z, and where."""

    how: Annotated[str, Flag("what takes the place of their z", choices=METHODS)] = "mean"


@dataclass(frozen=True, kw_only=True)
class ArmOptions(HowOptions, DrawsOptions, ByOptions, ReferenceItemsOptions):
    """Ablation arms beside the unablated model, without the pool that reference items come from."""

    ablate: Annotated[
        str | tuple[str, ...],
        Flag(
            "an ablation beside the unablated model, repeatable: top:16, names, a head list, not:…, random:16; "
            "then @how=…",
            repeatable=True,
        ),
    ] = "none"


@dataclass(frozen=True, kw_only=True)
class AblationOptions(ArmOptions, RankedOptions, ReferenceOptions):
    """Ablation arms beside the unablated model."""


CACHED_BYTES = 400_000_000
"""Activations of donors that are kept in memory; the oldest go first."""
FITTED_ITEMS = 8
"""Reference items that optimal constants are fitted on: four questions each; about a minute for 16 heads of 135M."""

_Z = Float[Tensor, "layer pos head d_head"]


@dataclass(frozen=True, eq=False)
class Donors:
    """The reference items as sources of z, run once each under a condition while there is room to keep them."""

    session: Session
    reference: ReferenceSet
    _kept: OrderedDict[tuple[str, str, str, bool], _Z] = field(default_factory=OrderedDict)
    _asks: dict[tuple[str, str, str], ScoringQuery] = field(default_factory=dict)
    _means: dict[tuple[str, str, bool], RoleMeans] = field(default_factory=dict)

    def of(self, item: Item, condition: str, n: int) -> list[Item]:
        """The donors of an item's draws, all different while there are as many; the same under every condition.

        Items with earlier steps have donors with earlier steps first, and others such without; further draws take the
        rest of the reference set, and only then a donor again.

        Raises:
            InputError: no reference item can be put under the condition.
        """
        items = self.reference.donors
        order = self.session.rng_for(f"donors/{item.item_id}").permutation(len(items))
        fit = sorted(
            [items[at] for at in order], key=lambda one: bool(one.step_index) != bool(item.step_index)
        )
        able = [one for one in fit if lacking(one, condition) is None]
        if not able:
            raise InputError(f"No reference item can be put under {condition}: resample needs one.")
        chosen = [fit[draw % len(fit)] for draw in range(n)]
        return [
            one if lacking(one, condition) is None else able[draw % len(able)]
            for draw, one in enumerate(chosen)
        ]

    def scoring(self, donor: Item, condition: str, candidate: str) -> ScoringQuery:
        """The donor's own question: its action of the same name (its failed one where it has none), turn ended."""
        name = candidate if candidate in donor.candidates() else "failed"
        key = (donor.item_id, condition, name)
        if key not in self._asks:
            [self._asks[key]] = build_queries(
                self.session.model, donor, [condition], self.session.wording, [name], NOTHING, None, True
            )
        return self._asks[key]

    def z(self, scoring: ScoringQuery, everywhere: bool) -> _Z:
        """Z of all heads in a question: at its action positions, or at all of them."""
        key = (scoring.item.item_id, scoring.condition, scoring.candidate, everywhere)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        z = kept_z(self.session, scoring, everywhere)
        self._kept[key] = z
        while sum(one.nbytes for one in self._kept.values()) > CACHED_BYTES and len(self._kept) > 1:
            self._kept.popitem(last=False)
        return z

    def roles(self, scoring: ScoringQuery, everywhere: bool) -> tuple[str, ...]:
        """The role of every position of a question, or of its action positions."""
        if not everywhere:
            return ("last_prompt", *["action" for _ in scoring.query.action[1:]])
        return position_roles(
            self.session.model, scoring.item, scoring.condition, self.session.wording, scoring.query
        )

    def role_means(self, condition: str, candidate: str, everywhere: bool) -> RoleMeans:
        """Means by role over the reference items under this condition, each with its own action.

        Raises:
            InputError: no reference item can be put under the condition.
        """
        key = (condition, candidate, everywhere)
        if key not in self._means:
            means = RoleMeans()
            for item in self.reference.donors:
                if lacking(item, condition) is None:
                    scoring = self.scoring(item, condition, candidate)
                    means.add(self.z(scoring, everywhere), self.roles(scoring, everywhere))
            if not means.counts:
                raise InputError(f"No reference item can be put under {condition}: mean-role needs one.")
            self._means[key] = means
        return self._means[key]


def kept_z(session: Session, scoring: ScoringQuery, everywhere: bool) -> _Z:
    """Z of every head at a question's action positions, or at all of its positions, by one clean run."""
    model, query = session.model, scoring.query
    names = everything_names(model, "attn.hook_z")
    if everywhere:
        run = session.engine.run(query, names, 0, {"every": range(len(query.tokens))})
        return torch.stack([run.at["every"][name] for name in names])
    shared = min(system_length(model, scoring.item), len(query.prompt) - 1)
    run = session.engine.run(query, names, shared)
    return torch.stack([run.cache[name] for name in names])


def resampled(
    donor: _Z,
    recipient_roles: Sequence[str],
    donor_roles: Sequence[str],
    n_candidate: tuple[int, int],
    rng: Any,
) -> Float[Tensor, "layer place head d_head"]:
    """A donor's z laid out for a recipient: prompt positions by role, action positions in order.

    Args:
        donor: its z at all positions, or (without roles) at its action positions.
        recipient_roles: of all positions of the recipient; empty for its action positions alone.
        donor_roles: of all positions of the donor; empty likewise.
        n_candidate: how many action positions recipient and donor have.
        rng: draws the prompt positions.
    """
    n, n_donor = n_candidate
    start = len(donor_roles) - n_donor if donor_roles else 0
    own = (
        by_role(recipient_roles[: len(recipient_roles) - n], donor_roles[:start], rng) if donor_roles else []
    )
    own += [start + at for at in in_order(n, n_donor)]
    return donor[:, own]


@dataclass(frozen=True, eq=False)
class Replacement:
    """What z of an ablated head becomes.

    Attributes:
        how: one of METHODS.
        draws: interventions for every question: 1, unless donors are drawn.
        about: what a run records of it; `fits`, and `clean` (the runs of the questions they are fitted on), are filled
            as constants are fitted.
        sha256: identity of the values: of the reference set and of how they come from it.
        notes: what a report says of it.
        z: the one value of each head, [layer, head, d_head], where there is one (mean).
        alpha: the factor on z, with scale.
        reference: the reference set; None where none is needed.
        keep: is given every new fit (`experiments.mechanism.joint` writes it down).
    """

    how: str
    draws: int = 1
    about: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""
    notes: tuple[str, ...] = ()
    z: Float[Tensor, "layer head d_head"] | None = None
    alpha: float = 0.0
    reference: ReferenceSet | None = None
    donors: Donors | None = None
    fits: dict[str, Fit] = field(default_factory=dict)
    clean: list[list[Run]] = field(default_factory=list)
    keep: Callable[[HeadSet, Fit], None] | None = None

    @property
    def by_question(self) -> bool:
        """Whether the values depend on the question that is asked."""
        return self.how in BY_QUESTION

    def interventions(self, heads: HeadSet | None, where: str, scoring: ScoringQuery) -> list[Intervention]:
        """What is done to these heads in this very question: one intervention a draw.

        Args:
            heads: which; None is the unablated model.
            where: "all" or "candidate".
            scoring: the question: its item, condition, candidate and positions.

        Raises:
            InputError: no donor can be put under the question's condition.
        """
        if heads is None:
            return [NOTHING] * self.draws
        if not self.by_question:
            return [self.fixed(heads, where)]
        donors, everywhere = self._donors(), where == "all"
        at: Where = tuple(range(len(scoring.query.tokens))) if everywhere else "candidate"
        roles = donors.roles(scoring, everywhere)
        if self.how == "mean-role":
            means = donors.role_means(scoring.condition, scoring.candidate, everywhere)
            values = means.at(roles)
            return [replace_heads(heads, values.to(donors.session.model.dtype), at)]
        found = []
        for draw, donor in enumerate(donors.of(scoring.item, scoring.condition, self.draws)):
            asked = donors.scoring(donor, scoring.condition, scoring.candidate)
            rng = donors.session.rng_for(f"donor positions/{scoring.item.item_id}/{draw}")
            z = resampled(
                donors.z(asked, everywhere),
                roles if everywhere else (),
                donors.roles(asked, True) if everywhere else (),
                (len(scoring.query.action), len(asked.query.action)),
                rng,
            )
            found.append(replace_heads(heads, z, at))
        return found

    def fixed(self, heads: HeadSet | None, where: str) -> Intervention:
        """The intervention that serves every question alike.

        Raises:
            InputError: the values depend on the question.
        """
        if heads is None:
            return NOTHING
        self.require(where, for_all=True)
        place: Where = "all" if where == "all" else "candidate"
        if self.how == "optimal":
            return replace_heads(heads, self.fit(heads).z, place)
        if self.z is not None:
            return replace_heads(heads, self.z, place)
        return scale_heads(heads, self.alpha, place)

    def require(self, where: str, for_all: bool = False) -> None:
        """Raise InputError where this cannot replace z there, or (`for_all`) not by one value for all questions."""
        if for_all and self.by_question:
            raise InputError(
                f"--how {self.how} takes other values for every question of an item: it serves ablate, joint and "
                "probe. Choose mean, zero, scale or optimal here."
            )
        if self.how == "optimal" and where == "all":
            raise InputError(
                "Optimal constants are fitted at the positions that predict the action, and are not optimal "
                "elsewhere: set --where candidate (or @where=candidate)."
            )

    def fit(self, heads: HeadSet) -> Fit:
        """The optimal constants of a set, fitted once.

        Raises:
            InputError: `how` is not optimal.
        """
        if self.how != "optimal" or self.z is None:
            raise InputError("Constants are fitted with --how optimal.")
        if heads.sha256 not in self.fits:
            engine, questions = self._donors().session.engine, self.fitted_questions()
            if not self.clean:
                self.clean.extend(clean_runs(engine, questions))
            fit = fit_constants(engine, questions, heads, self.z, runs=self.clean)
            self.fits[heads.sha256] = fit
            if self.keep is not None:
                self.keep(heads, fit)
        return self.fits[heads.sha256]

    def fitted_questions(self) -> list[list[Any]]:
        """The reference questions that constants are fitted on, as queries; those of one list share their prompt."""
        donors, found = self._donors(), []
        session = donors.session
        for item in donors.reference.items[:FITTED_ITEMS]:
            names = [name for name in ("failed", "gold") if name in item.candidates()]
            for condition in ("pre", "neut"):
                asked = build_queries(session.model, item, [condition], session.wording, names)
                found.append([scoring.query for scoring in asked])
        return found

    def with_draws(self, draws: int) -> Replacement:
        """The same with fewer draws: the first ones. Fitted constants and kept donors are shared."""
        return self if draws == self.draws else replace(self, draws=draws)

    def _donors(self) -> Donors:
        if self.donors is None:
            raise InputError(f"--how {self.how} needs a reference set: make it with `replacement`.")
        return self.donors

    def fitted(self) -> dict[str, dict[str, float]]:
        """What was fitted so far, by hash of the head set: nats a token on the reference items before and after."""
        return {
            key: {"loss_at_mean": fit.before, "loss_fitted": fit.after, "steps": fit.steps}
            for key, fit in self.fits.items()
        }


def replacement(
    session: Session,
    args: ReferenceOptions,
    tasks: Collection[str] = (),
    how: str | None = None,
    reference: ReferenceSet | None = None,
    donors: Donors | None = None,
) -> Replacement:
    """What `how` puts in the place of z.

    Args:
        session: the model, the wording, and the measured items, whose tasks are no reference.
        args: `reference_items` and what the pool is read with; `how`, `alpha` and `draws` where these are needed.
        tasks: as in `reference_set`.
        how: one of METHODS; None takes `args.how`.
        reference: the reference set, where it is at hand; None draws it.
        donors: of that reference set, where several ways share the runs.

    Raises:
        InputError: as `reference_set`.
    """
    values = keyed(args)
    how = str(values["how"]) if how is None else how
    if how not in METHODS:
        raise InputError(f"'{how}' is not a way to replace z: choose from {', '.join(METHODS)}.")
    if how in ("zero", "scale"):
        return Replacement(how, alpha=values["alpha"] if how == "scale" else 0.0)
    found = reference_set(session, args, tasks) if reference is None else reference
    draws = values.get("draws", DrawsOptions.draws) if how == "resample" else 1
    about: dict[str, Any] = {**found.about, "how": how}
    mean = found.mean_z(session.engine) if how in ("mean", "optimal") else None
    if mean is not None:
        about |= {"positions": mean.n_positions, "sha256": mean.sha256}
    if how == "resample":
        about["draws"] = draws
    if how == "optimal":
        about["fitted_items"] = [item.item_id for item in found.items[:FITTED_ITEMS]]
    identity = mean.sha256 if how == "mean" and mean is not None else _identity(how, draws, found)
    return Replacement(
        how,
        draws,
        about,
        identity,
        found.notes,
        None if mean is None else mean.z,
        reference=found,
        donors=None if how == "mean" else donors or Donors(session, found),
    )


def _identity(how: str, draws: int, reference: ReferenceSet) -> str:
    return hashlib.sha256(repr((how, draws, reference.about["items_sha256"])).encode()).hexdigest()


def score_under(
    session: Session,
    item: Item,
    names: Sequence[str],
    candidates: Sequence[str] | None,
    put: Replacement,
    heads: HeadSet | None,
    where: str,
    distractors_in: Sequence[str] | None = None,
    clean: CleanRuns | None = None,
) -> list[list[dict[str, Any]]]:
    """Rows of one item under these conditions with the heads replaced: for each draw, what `score_item` gives.

    Args:
        session: whose engine, wording and streams.
        item: the decision point.
        names: conditions.
        candidates: names out of `item.candidates()`; None as in `probes.scoring.score.build_queries`.
        put: what takes the place of z.
        heads: of which heads; None is the unablated model.
        where: "all" or "candidate".
        distractors_in: as in `probes.scoring.score.build_queries`.
        clean: clean runs that several sets of heads share, for ablations at the action positions: much cheaper
            than a run a set, and equal to it within rounding.

    Raises:
        InputError: as `probes.scoring.score.build_queries` and `Replacement.interventions`.
        FloatingPointError: a logit is not finite.
    """
    questions = build_queries(
        session.model, item, names, session.wording, candidates, NOTHING, distractors_in, True
    )
    changes = [put.interventions(heads, where, scoring) for scoring in questions]
    prompts = [scoring.query.prompt[:-1] for scoring in questions]
    shared = min(system_length(session.model, item), common_prefix(prompts))
    if put.by_question and where == "all" and heads is not None:
        shared = 0  # every position has a value of its own: nothing is shared
    by_draw: list[list[dict[str, Any]]] = []
    if where == "candidate" and (put.by_question or clean is not None):
        return _side_by_side(clean or CleanRuns(session), questions, changes, shared)
    changed = [
        [replace(scoring, query=replace(scoring.query, intervention=change)) for change in own]
        for scoring, own in zip(questions, changes, strict=True)
    ]
    for draw in range(len(changes[0])):
        asked = [own[draw] for own in changed]
        scores = session.engine.score([scoring.query for scoring in asked], shared)
        by_draw.append(
            [score_row(session.model, scoring, score) for scoring, score in zip(asked, scores, strict=True)]
        )
    return by_draw


@dataclass(frozen=True, eq=False)
class CleanRuns:
    """The last few questions' clean runs, from which any ablation at their action positions starts."""

    session: Session
    room: int = 8
    _kept: OrderedDict[tuple[str, int], Run] = field(default_factory=OrderedDict)

    def of(self, scoring: ScoringQuery, shared: int) -> Run:
        """The run of a question that kept the residual stream before every block."""
        key = (scoring.query.key, shared)
        if key not in self._kept:
            names = everything_names(self.session.model, "hook_resid_pre")
            self._kept[key] = self.session.engine.run(scoring.query, names, shared)
        self._kept.move_to_end(key)
        while len(self._kept) > self.room:
            self._kept.popitem(last=False)
        return self._kept[key]


def _side_by_side(
    clean: CleanRuns,
    questions: Sequence[ScoringQuery],
    changes: Sequence[Sequence[Intervention]],
    shared: int,
) -> list[list[dict[str, Any]]]:
    """Rows by draw: every question is run once, and its draws as copies of its action positions."""
    engine = clean.session.engine
    by_draw: list[list[dict[str, Any]]] = [[] for _ in changes[0]]
    for scoring, own in zip(questions, changes, strict=True):
        scores = score_interventions(engine, clean.of(scoring, shared), own)
        for draw, score in enumerate(scores):
            changed = replace(scoring, query=replace(scoring.query, intervention=own[draw]))
            by_draw[draw].append(score_row(engine.model, changed, score))
    return by_draw
