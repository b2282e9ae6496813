"""The exact effects of head sets on items, kept as they are computed: what every part of the study `circuit` asks.

circuit_items.jsonl has one row an item with the sums of every candidate that a metric is made of, under both
conditions (`Scored`), and for training items a row of attribution estimates. circuit_effects.jsonl has one row a
question: what some sets recover of one item, in one kind, of one candidate's log-probability (nats), by the start of
the set's SHA-256; of the failed action also of its tokens from the first on at which it differs from the reference.
A search asks for the candidates that its metric needs, a test for all. A question lists only what no earlier one
answered, so a run that was stopped asks the very same questions again, and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, cluster_label
from mech.engine.engine import Run
from mech.engine.queries import Score
from mech.heads import Head, HeadSet
from mech.patching.attribution import attribute
from mech.patching.circuits import CRITERIA as KINDS
from mech.patching.circuits import Criterion as Kind
from mech.patching.circuits import token_effects
from probes.effects.circuit import pooled
from probes.effects.circuit_search import Value
from probes.items.item import Item, item_line
from probes.scoring.contrast import Contrast, Scored, contrast_of, metric_values, needed
from probes.scoring.score import run_decision_point

RUNS_HELD = 24
"""Items and candidates whose two runs stay in memory: a few dozen MB each for a small model."""


@dataclass(frozen=True)
class ItemSet:
    """Items under a label; ids of two files may be equal, so rows are kept by label and id."""

    label: str
    items: list[Item]

    @property
    def tasks(self) -> list[str]:
        """The task of each item; tasks of two environments are two."""
        return self.clusters("task")

    def clusters(self, level: str) -> list[str]:
        """The cluster of each item at a level (`experiments.run.session.cluster_label`)."""
        return [f"{item.env}/{cluster_label(item, level)}" for item in self.items]

    @property
    def templates(self) -> list[str]:
        """The templates of the items, each once."""
        return sorted({item.template for item in self.items})


@dataclass
class Evaluations:
    """Effects by item, kind, candidate and set: read from the folder, else computed and written there.

    Attributes:
        session: engine and wording.
        folder: where rows are kept.
        source: condition without what is explained.
        target: condition with it.
        metric: one of `probes.scoring.contrast.METRICS`, in which the searches count.
        quiet: no progress bars.
    """

    session: Session
    folder: RunFolder
    source: str
    target: str
    metric: str
    quiet: bool
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _effects: dict[tuple[str, str, str], dict[str, float]] = field(default_factory=dict)
    _runs: dict[tuple[str, str], tuple[Run, Run]] = field(default_factory=dict)
    _contrasts: dict[str, Contrast] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {row["id"]: row for row in self.folder.rows("circuit_items").to_dict("records")}
        for row in self.folder.rows("circuit_effects").to_dict("records"):
            self._remember(row)

    def defined(self, among: ItemSet, metric: str) -> ItemSet:
        """The items for which a metric is defined: all, or those with something to compare a× with."""
        items = [item for item in among.items if metric in self.contrast(item).metrics]
        return ItemSet(among.label, items)

    def deltas(self, among: ItemSet, metric: str | None = None) -> Float[np.ndarray, " item"]:
        """The metric under `target` less that under `source`, of each item (nats, or nats a token)."""
        name = self.metric if metric is None else metric
        found = []
        for item in among.items:
            low, high = (metric_values(one)[name] for one in self._scored(among.label, item))
            found.append(high - low)
        return np.array(found, dtype=float)

    def estimates(self, training: ItemSet) -> dict[str, dict[Head, float]]:
        """Item id → head → attribution estimate: the mean of the noising and the denoising one, nats.

        One gradient at either end and none between: the trapezoid rule over the line of `mech.patching.attribution`.
        Each end alone misses what is saturated there. With a margin, a×'s estimate less the mean of the references';
        the diverging tokens are ranked by the estimates of all of a×'s (`estimated`).
        """
        found = {}
        for item in progress(training.items, len(training.items), "attribute", self.quiet):
            row_id = f"{training.label}/{item.item_id}|estimates"
            if row_id not in self._rows:
                each = {
                    one: self._estimate(training.label, item, one)
                    for one in needed(self.contrast(item), self.metric)
                }
                heads = {
                    str(head): value
                    - _mean([other[head] for name, other in each.items() if name != "failed"])
                    for head, value in each["failed"].items()
                }
                self._keep({"id": row_id, "item_id": item.item_id, "heads": heads})
            found[item.item_id] = {
                Head.parse(name): value for name, value in self._rows[row_id]["heads"].items()
            }
        return found

    @property
    def estimated(self) -> str:
        """The metric that the estimates are of: the searches' own, or logprob for the diverging tokens."""
        return "margin" if self.metric == "margin" else "logprob"

    def _estimate(self, label: str, item: Item, candidate: str) -> dict[Head, float]:
        low, high = self._pair(label, item, candidate)
        engine = self.session.engine
        up, down = (attribute(engine, *pair, sites=("z",)).heads for pair in ((low, high), (high, low)))
        return {head: (up[head] - down[head]) / 2 for head in up}

    def ensure(
        self, among: ItemSet, wanted: Mapping[Kind, Sequence[HeadSet]], desc: str = "", every: bool = False
    ) -> None:
        """Compute what is not kept yet, item by item; `every`: of all candidates, not only what the metric needs."""
        todo = [item for item in among.items if self._lacking(among.label, item, wanted, every)]
        for item in progress(todo, len(todo), desc, self.quiet or not desc):
            for kind, candidate, new in self._lacking(among.label, item, wanted, every):
                self._compute(among.label, item, kind, candidate, new)

    def effects(
        self, among: ItemSet, kind: Kind, sets: Sequence[HeadSet], metric: str | None = None
    ) -> Float[np.ndarray, "item set"]:
        """Effects of each set on each item, in a metric (nats, or nats a token); None takes the searches' own."""
        name = self.metric if metric is None else metric
        self.ensure(among, {kind: sets}, every=name != self.metric)
        found = []
        for item in among.items:
            contrast = self.contrast(item)
            parts = {one: self._known(among.label, item, kind, one) for one in needed(contrast, name)}
            tail = self._known(among.label, item, kind, _TAIL)
            scored, _ = self._scored(among.label, item)
            each = [
                replace(scored, logprobs={one: kept[key] for one, kept in parts.items()}, diverging=tail[key])
                for key in map(_key, sets)
            ]
            found.append([_value(one, name) for one in each])
        return np.array(found, dtype=float).reshape(-1, len(sets))

    def value(self, among: ItemSet, kind: Kind) -> Value:
        """The shares of sets over these items as a function: what the searches take."""
        deltas = self.deltas(among)
        return lambda sets: pooled(self.effects(among, kind, sets), deltas)

    def contrast(self, item: Item) -> Contrast:
        """What the item's metrics are made of."""
        key = item_line(item)  # ids of two files may be equal
        if key not in self._contrasts:
            self._contrasts[key] = contrast_of(self.session.model, item, self.session.wording)
        return self._contrasts[key]

    def _scored(self, label: str, item: Item) -> tuple[Scored, Scored]:
        """The candidates' sums under `source` and `target`."""
        row_id = f"{label}/{item.item_id}"
        if row_id not in self._rows:
            contrast = self.contrast(item)
            runs = {name: self._pair(label, item, name) for name in contrast.candidates}
            sides = [_sums(contrast, {name: pair[at].score for name, pair in runs.items()}) for at in (0, 1)]
            about = {
                "item_id": item.item_id,
                "env": item.env,
                "task_id": item.task_id,
                "template": item.template,
                "references_are": contrast.references_are,
                "n_tokens": sides[0].n_tokens,
                "n_diverging": sides[0].n_diverging,
            }
            low, high = (one.logprobs["failed"] for one in sides)
            scores = {"logprob_from": low, "logprob_to": high, "delta": high - low}
            ends = {
                end: {"candidates": one.logprobs, "diverging": one.diverging}
                for end, one in zip(("from", "to"), sides, strict=True)
            }
            self._keep({"id": row_id, "set": label, **about, **scores, "scores": ends})
        row = self._rows[row_id]
        low_side, high_side = (
            Scored(
                row["scores"][end]["candidates"],
                row["n_tokens"],
                row["scores"][end]["diverging"],
                int(row["n_diverging"]),
            )
            for end in ("from", "to")
        )
        return low_side, high_side

    def _keep(self, row: dict[str, Any]) -> None:
        self.folder.append("circuit_items", row)
        self._rows[row["id"]] = row

    def _lacking(
        self, label: str, item: Item, wanted: Mapping[Kind, Sequence[HeadSet]], every: bool
    ) -> list[tuple[Kind, str, list[HeadSet]]]:
        """What is to be computed of an item: (kind, candidate, the sets that are new)."""
        contrast = self.contrast(item)
        candidates = contrast.candidates if every else needed(contrast, self.metric)
        found: list[tuple[Kind, str, list[HeadSet]]] = []
        for kind in (kind for kind in KINDS if kind in wanted):
            for candidate in candidates:
                known = self._known(label, item, kind, candidate)
                new = [heads for heads in dict.fromkeys(wanted[kind]) if _key(heads) not in known]
                if new:
                    found.append((kind, candidate, new))
        return found

    def _known(self, label: str, item: Item, kind: Kind, candidate: str) -> dict[str, float]:
        return self._effects.get((f"{label}/{item.item_id}", kind, candidate), {})

    def _compute(self, label: str, item: Item, kind: Kind, candidate: str, sets: list[HeadSet]) -> None:
        low, high = self._pair(label, item, candidate)
        found = dict(
            zip(map(_key, sets), token_effects(self.session.engine, low, high, sets, kind), strict=True)
        )
        name = f"{label}/{item.item_id}"
        question = hashlib.sha256("".join(found).encode()).hexdigest()[:16]
        row: dict[str, Any] = {
            "id": f"{name}|{kind}|{candidate}|{question}",
            **{"item": name, "kind": kind, "candidate": candidate},
            "effects": {key: math.fsum(effect.tolist()) for key, effect in found.items()},
        }
        if candidate == "failed":
            start = self.contrast(item).diverging_from
            row["diverging"] = {key: math.fsum(effect[start:].tolist()) for key, effect in found.items()}
        self.folder.append("circuit_effects", row)
        self._remember(row)

    def _remember(self, row: Mapping[str, Any]) -> None:
        key = (row["item"], row["kind"])
        self._effects.setdefault((*key, row["candidate"]), {}).update(row["effects"])
        if row["candidate"] == "failed":
            self._effects.setdefault((*key, _TAIL), {}).update(row["diverging"])

    def _pair(self, label: str, item: Item, candidate: str) -> tuple[Run, Run]:
        """The runs of one candidate without and with what is explained; the last few stay in memory."""
        name = (f"{label}/{item.item_id}", candidate)
        if name not in self._runs:
            session = self.session
            low, high = (
                run_decision_point(session.engine, item, condition, session.wording, candidate=candidate)
                for condition in (self.source, self.target)
            )
            while len(self._runs) >= RUNS_HELD:
                self._runs.pop(next(iter(self._runs)))
            self._runs[name] = (low, high)
        return self._runs[name]


_TAIL = (
    "failed, diverging"  # beside candidates' names: the failed action from the first token on that differs
)


def _value(effects: Scored, metric: str) -> float:
    """A metric of effects; of the failed action alone its diverging tokens are known too."""
    if metric == "diverging":
        return effects.diverging
    if metric == "diverging_per_token":
        return effects.diverging / effects.n_diverging
    return metric_values(effects)[metric]


def _sums(contrast: Contrast, scores: Mapping[str, Score]) -> Scored:
    tail = scores["failed"].logprobs[contrast.diverging_from :]
    return Scored(
        {name: score.total for name, score in scores.items()},
        {name: score.n_tokens for name, score in scores.items()},
        math.fsum(tail.tolist()),
        len(tail),
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _key(heads: HeadSet) -> str:
    return heads.sha256[:16]
