"""The exact effects of head sets on items, kept as they are computed: what every part of the study `circuit` asks.

circuit_items.jsonl has one row an item: both log-probabilities, and for training items the attribution estimates of
both directions. circuit_effects.jsonl has one row a question: the effects (nats) of some sets of one item in one kind,
by the beginning of the set's SHA-256. A question lists only what no earlier one answered, so a run that was stopped
asks the very same questions again, and ends with the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session
from mech.attribution import attribute
from mech.circuits import KINDS, Kind, circuit_effects
from mech.engine import Run
from mech.heads import Head, HeadSet
from probes.circuit import pooled
from probes.circuit_search import Value
from probes.items import Item
from probes.scoring import decision_run

RUNS_HELD = 24
"""Items whose two runs stay in memory: a few dozen MB each for a small model."""


@dataclass(frozen=True)
class ItemSet:
    """Items under a label; ids of two files may be equal, so rows are kept by label and id."""

    label: str
    items: list[Item]

    @property
    def tasks(self) -> list[str]:
        """The cluster of each item; tasks of two environments are two."""
        return [f"{item.env}/{item.task_id}" for item in self.items]


@dataclass
class Evaluations:
    """Effects by item, kind and set: read from the folder, else computed and written there.

    Attributes:
        session: engine and wording.
        folder: where rows are kept.
        source: condition without what is explained.
        target: condition with it.
        quiet: no progress bars.
    """

    session: Session
    folder: RunFolder
    source: str
    target: str
    quiet: bool
    _rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    _effects: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    _runs: dict[str, tuple[Run, Run]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._rows = {row["id"]: row for row in self.folder.rows("circuit_items").to_dict("records")}
        for row in self.folder.rows("circuit_effects").to_dict("records"):
            self._effects.setdefault((row["item"], row["kind"]), {}).update(row["effects"])

    def deltas(self, among: ItemSet) -> Float[np.ndarray, " item"]:
        """logp(target) − logp(source) of each item, nats."""
        return np.array([self._row(among.label, item)["delta"] for item in among.items], dtype=float)

    def estimates(self, training: ItemSet) -> dict[str, dict[Head, float]]:
        """Item id → head → attribution estimate: the mean of the noising and the denoising one, nats.

        One gradient at either end and none between: the trapezoid rule over the line of `mech.attribution`. Each end
        alone misses what is saturated there.
        """
        found = {}
        for item in progress(training.items, len(training.items), "attribute", self.quiet):
            row_id = f"{training.label}/{item.item_id}|estimates"
            if row_id not in self._rows:
                low, high = self._pair(training.label, item)
                engine = self.session.engine
                up, down = (
                    attribute(engine, *pair, sites=("z",)).heads for pair in ((low, high), (high, low))
                )
                heads = {str(head): (up[head] - down[head]) / 2 for head in up}
                self._keep({"id": row_id, "item_id": item.item_id, "heads": heads})
            found[item.item_id] = {
                Head.parse(name): value for name, value in self._rows[row_id]["heads"].items()
            }
        return found

    def ensure(self, among: ItemSet, wanted: Mapping[Kind, Sequence[HeadSet]], desc: str = "") -> None:
        """Compute what is not kept yet, item by item."""
        todo = [
            item for item in among.items if any(self._new(among.label, item, k, wanted[k]) for k in wanted)
        ]
        shown = progress(todo, len(todo), desc, self.quiet or not desc)
        for item in shown:
            for kind in (kind for kind in KINDS if kind in wanted):
                new = self._new(among.label, item, kind, wanted[kind])
                if new:
                    self._compute(f"{among.label}/{item.item_id}", among.label, item, kind, new)

    def effects(self, among: ItemSet, kind: Kind, sets: Sequence[HeadSet]) -> Float[np.ndarray, "item set"]:
        """Effects in nats of each set on each item."""
        self.ensure(among, {kind: sets})
        keys = [_key(heads) for heads in sets]
        rows = [self._effects.get((f"{among.label}/{item.item_id}", kind), {}) for item in among.items]
        return np.array([[row[key] for key in keys] for row in rows], dtype=float).reshape(-1, len(keys))

    def value(self, among: ItemSet, kind: Kind) -> Value:
        """The shares of sets over these items as a function: what the searches take."""
        deltas = self.deltas(among)
        return lambda sets: pooled(self.effects(among, kind, sets), deltas)

    def _row(self, label: str, item: Item) -> dict[str, Any]:
        row_id = f"{label}/{item.item_id}"
        if row_id not in self._rows:
            low, high = (run.score.total for run in self._pair(label, item))
            about = {
                "item_id": item.item_id,
                "env": item.env,
                "task_id": item.task_id,
                "template": item.template,
            }
            scores = {"logprob_from": low, "logprob_to": high, "delta": high - low}
            self._keep({"id": row_id, "set": label, **about, **scores})
        return self._rows[row_id]

    def _keep(self, row: dict[str, Any]) -> None:
        self.folder.append("circuit_items", row)
        self._rows[row["id"]] = row

    def _new(self, label: str, item: Item, kind: Kind, sets: Sequence[HeadSet]) -> list[HeadSet]:
        known = self._effects.get((f"{label}/{item.item_id}", kind), {})
        return [heads for heads in dict.fromkeys(sets) if _key(heads) not in known]

    def _compute(self, name: str, label: str, item: Item, kind: Kind, sets: list[HeadSet]) -> None:
        low, high = self._pair(label, item)
        found = circuit_effects(self.session.engine, low, high, sets, kind)
        effects = {_key(heads): effect for heads, effect in zip(sets, found, strict=True)}
        question = hashlib.sha256("".join(effects).encode()).hexdigest()[:16]
        row = {"id": f"{name}|{kind}|{question}", "item": name, "kind": kind, "effects": effects}
        self.folder.append("circuit_effects", row)
        self._effects.setdefault((name, kind), {}).update(effects)

    def _pair(self, label: str, item: Item) -> tuple[Run, Run]:
        """The item's runs without and with what is explained; the last few stay in memory."""
        name = f"{label}/{item.item_id}"
        if name not in self._runs:
            session = self.session
            low, high = (
                decision_run(session.engine, item, condition, session.wording)
                for condition in (self.source, self.target)
            )
            while len(self._runs) >= RUNS_HELD:
                self._runs.pop(next(iter(self._runs)))
            self._runs[name] = (low, high)
        return self._runs[name]


def _key(heads: HeadSet) -> str:
    return heads.sha256[:16]
