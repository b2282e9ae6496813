"""One item of `backfire joint`: every head set by every method, both candidates scored wherever the effect is read.

A method changes z (or attention) of a set at the action positions of a run; rows keep the sums that all
metrics are made of (`probes.scoring.metric_sums`), clean and under each set. Ablations of a condition do not depend
on the pair of conditions that is explained: what an earlier pair of the same folder measured is taken from there
(`known`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from experiments.heads.ablation import Replacement
from experiments.heads.control_sets import Sets
from experiments.mechanism.joint_controls import DIRECTION
from experiments.mechanism.pairs import row_id
from experiments.run.session import Session
from mech.engine.engine import Run
from mech.engine.sweep import score_interventions, stacked
from mech.heads import Head
from mech.interventions.intervention import Edit, Intervention, knock_out_edges, replace_heads
from mech.patching.donors import random_direction
from mech.patching.patch import all_heads
from probes.effects.joint import ABLATIONS
from probes.items.item import Item
from probes.scoring.contrast import Contrast, contrast_of
from probes.scoring.metric_sums import sums_of, token_counts
from probes.scoring.record import recorded_call
from probes.scoring.score import ScoringQuery, build_queries, run_decision_point
from probes.stats.bootstrap import RngFactory

MARKED, ACKNOWLEDGED = "fail", "neut"
"""The conditions whose difference is Δsem, read off target where the explained pair ends in the second."""

Key = tuple[str, str]
"""(candidate, condition) of a run."""


@dataclass(frozen=True)
class Decision:
    """One item's clean runs and questions by (candidate, condition), and the tokens of a× in its record under TO.

    `record` is None where no method needs it.
    """

    session: Session
    item: Item
    pair: tuple[str, str]
    contrast: Contrast
    queries: Mapping[Key, ScoringQuery]
    clean: Mapping[Key, Run]
    record: tuple[int, ...] | None = None
    _z: dict[Key, torch.Tensor] = field(default_factory=dict, repr=False)

    def z(self, key: Key) -> torch.Tensor:
        """Z of a clean run at the action positions, [layer, pos, head, d_head]."""
        if key not in self._z:
            self._z[key] = stacked(self.clean[key], self.session.model, "attn.hook_z")
        return self._z[key]

    @cached_property
    def lengths(self) -> dict[str, int]:
        """Term → number of its tokens."""
        tokens = {
            name: len(self.queries[name, self.pair[0]].query.action) for name in self.contrast.candidates
        }
        return token_counts(self.contrast, tokens)


def decision(session: Session, item: Item, pair: tuple[str, str], methods: Sequence[str]) -> Decision:
    """The item's clean runs: all candidates under both conditions, a× under fail where Δsem is read off target.

    Raises:
        InputError: knockout is among the methods and TO does not record a×; or as `run_decision_point`.
    """
    contrast = contrast_of(session.model, item, session.wording)
    keys = [(candidate, condition) for condition in pair for candidate in contrast.candidates]
    if reads_sem(pair):
        keys.append(("failed", MARKED))
    clean, asked = {}, {}
    for candidate, condition in keys:
        [asked[candidate, condition]] = build_queries(
            session.model, item, [condition], session.wording, [candidate]
        )
        clean[candidate, condition] = run_decision_point(
            session.engine, item, condition, session.wording, candidate=candidate
        )
    record = None
    if "knockout" in methods:
        record = tuple(recorded_call(session.model, item, pair[1], session.wording))
    return Decision(session, item, pair, contrast, asked, clean, record)


def reads_sem(pair: tuple[str, str]) -> bool:
    """Whether Δsem is something else than what the pair explains, and starts where the pair ends."""
    return pair[1] == ACKNOWLEDGED


def acts_in(method: str, pair: tuple[str, str]) -> tuple[str, ...]:
    """The conditions whose log-probabilities a method's effect is made of."""
    low, high = pair
    return {"noise": (high,), "denoise": (low,), "knockout": (high,)}.get(method, pair)


Parts = Mapping[Head, Edit]
"""What a method makes of the z of every head; a set of heads takes its own."""


def parts_of(at: Decision, method: str, key: Key, puts: Mapping[str, Replacement]) -> list[Parts]:
    """A method's edits of all heads in a run, once for all sets: one mapping a draw.

    Constants of optimal ablation are fitted to a set, and knockout edits nothing: see `interventions`.
    """
    everyone = all_heads(at.session.model)
    if method in ("noise", "denoise"):
        low, high = at.pair
        donor = at.z((key[0], low if method == "noise" else high))
        changes = [replace_heads(everyone, donor, "candidate")]
    else:
        changes = puts[method].interventions(everyone, "candidate", at.queries[key])
    return [
        {Head(edit.layer, edit.head or 0): edit for edit in change.without_knockouts} for change in changes
    ]


def interventions(
    at: Decision,
    method: str,
    key: Key,
    sets: Sets,
    puts: Mapping[str, Replacement],
    draws: Callable[[str, str], int],
) -> dict[str, list[Intervention]]:
    """Label → what a method does to the set in a run: one intervention, or one a draw."""
    found: dict[str, list[Intervention]] = {}
    parts = parts_of(at, method, key, puts) if method not in ("knockout", "optimal") else []
    for label, one in sets.items():
        if method == "knockout":
            assert at.record is not None  # `decision` found it
            found[label] = [knock_out_edges(one.heads, at.record)]
            continue
        if method == "optimal":
            changes = puts[method].interventions(one.heads, "candidate", at.queries[key])
        else:
            changes = [
                Intervention(tuple(edits[head] for head in one.heads))
                for edits in parts[: draws(method, one.kind)]
            ]
        if one.kind == DIRECTION:  # the selected heads, moved elsewhere
            rng_for = at.session.streams(f"{at.item.item_id}/{label}")
            changes = [elsewhere(change, at.z(key), rng_for) for change in changes]
        found[label] = changes
    return found


def elsewhere(change: Intervention, z: torch.Tensor, rng_for: RngFactory) -> Intervention:
    """Every z moved as far as the intervention moves it, per head and position, in a random direction.

    Args:
        change: edits of z at the action positions.
        z: of the run that it changes, [layer, pos, head, d_head].
        rng_for: gives the stream of a head. It does not depend on the run: where two candidates or conditions share a
            position, they are moved in one direction.

    Raises:
        ValueError: the intervention does something else.
    """
    edits = []
    for edit in change.without_knockouts:
        if edit.site != "z" or edit.head is None or edit.where != "candidate":
            raise ValueError("Only edits of z at the action positions have another direction.")
        own = z[edit.layer, :, edit.head]
        value = edit.alpha * own if edit.value is None else edit.value.expand_as(own)
        moved = random_direction(own, value, rng_for(f"direction/L{edit.layer}H{edit.head}"))
        edits.append(Edit("z", edit.layer, edit.head, "candidate", moved))
    return Intervention(tuple(edits))


def item_rows(
    at: Decision,
    sets_of: Mapping[str, Sets],
    puts: Mapping[str, Replacement],
    draws: Callable[[str, str], int],
    settings: str,
    known: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """One row a method: the terms (nats) of both candidates, clean (`whole`) and under every set.

    Args:
        at: the item's runs.
        sets_of: method → its sets.
        puts: ablation → its replacement.
        draws: (method, kind) → how many draws are asked for.
        settings: hash of what, beside the pair, decides the numbers.
        known: method → `under` and `draws` of another pair under the same settings.
    """
    whole = {}
    for (candidate, condition), run in at.clean.items():
        for term, value in sums_of(at.contrast, candidate, run.score).items():
            whole[f"{term}|{condition}"] = value
    rows = []
    for method, sets in sets_of.items():
        found = known.get(method, {}) if method in ABLATIONS else {}
        under: dict[str, dict[str, float]] = {}
        drawn: dict[str, dict[str, list[float]]] = {}
        for key, asked in _asked(at, method, sets).items():
            name = f"{key[0]}|{key[1]}"
            if set(asked) <= set(found.get("under", {}).get(name, ())):
                terms = [f"{term}|{key[1]}" for term in sums_of(at.contrast, key[0], at.clean[key].score)]
                under.update({term: found["under"][term] for term in terms})
                drawn.update({term: found["draws"][term] for term in terms if term in found["draws"]})
                continue
            for term, of_sets in _scores(at, method, asked, key, puts, draws).items():
                means = {label: sum(values) / len(values) for label, values in of_sets.items()}
                under[f"{term}|{key[1]}"] = means
                several = {label: values for label, values in of_sets.items() if len(values) > 1}
                if several:
                    drawn[f"{term}|{key[1]}"] = several
        item = at.item
        keys = {"id": row_id(item, at.pair, method), "item_id": item.item_id, "task_id": item.task_id}
        rows.append(
            {
                **{**keys, "env": item.env, "from": at.pair[0], "to": at.pair[1], "method": method},
                **{"references": at.contrast.references_are, "n_tokens": at.lengths},
                **{"settings_sha256": settings, "whole": whole, "under": under, "draws": drawn},
            }
        )
    return rows


def _asked(at: Decision, method: str, sets: Sets) -> dict[Key, Sets]:
    """The runs that a method's sets are scored in: all where the effect is read, the selected ones off target."""
    asked: dict[Key, Sets] = {
        (candidate, condition): sets
        for condition in acts_in(method, at.pair)
        for candidate in at.contrast.candidates
    }
    if reads_sem(at.pair) and method != "denoise":
        selected = {label: one for label, one in sets.items() if one.kind == "selected"}
        asked.setdefault(("failed", MARKED), selected)
    return asked


def _scores(
    at: Decision,
    method: str,
    sets: Sets,
    key: Key,
    puts: Mapping[str, Replacement],
    draws: Callable[[str, str], int],
) -> dict[str, dict[str, list[float]]]:
    """Term → label → its value (nats) in every draw."""
    changes = interventions(at, method, key, sets, puts, draws)
    flat = [one for of_set in changes.values() for one in of_set]
    scores = iter(score_interventions(at.session.engine, at.clean[key], flat))
    found: dict[str, dict[str, list[float]]] = {}
    for label, of_set in changes.items():
        for _ in of_set:
            for term, value in sums_of(at.contrast, key[0], next(scores)).items():
                found.setdefault(term, {}).setdefault(label, []).append(value)
    return found
