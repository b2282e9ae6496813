"""Which difference of two conditions a study explains: the options, and the study's entry in a shared run folder.

With --from pre --to neut it is Δcopy, with --from neut --to fail Δsem. One folder may hold both: a pair other than the
default has an entry of its own in run.json, and rows and tables name their pair.

Every study of a pair runs all candidates of an item's contrast (a× and the reference action), each with a donor run of
the same action, and keeps effects on the sums that the metrics are made of (`probes.scoring.metric_sums`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np
import pandas as pd

from experiments.run.left_out import restricted
from experiments.run.run_study import ItemContext, ItemUnit
from experiments.run.session import Session, open_session
from experiments.run.study import Flag, MetricOptions, SessionOptions
from mech.engine.engine import Run
from mech.engine.queries import Score
from mech.errors import InputError
from mech.patching.patch import Sides, sides
from probes.items.item import Item
from probes.scoring.contrast import Contrast, contrast_of
from probes.scoring.metric_sums import Sums, effects_of, reference_notes, sums_of, token_counts
from probes.scoring.score import build_queries, run_decision_point
from probes.stats.bootstrap import RngFactory
from probes.stats.families import corrected

T = TypeVar("T")
DIRECTIONS = ("noise", "denoise")
DEFAULT = ("pre", "neut")


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """The difference of two conditions that a study explains."""

    from_: Annotated[str, Flag("condition without what is to be attributed")] = "pre"
    to: Annotated[str, Flag("condition with it")] = "neut"


@dataclass(frozen=True, kw_only=True)
class PairSweepOptions(PairOptions, MetricOptions, SessionOptions):
    """What a study is given that measures every item of a difference in both directions."""


def require_metric(items: Sequence[Item], metric: str) -> None:
    """Raise InputError where the metric is defined for none of the items, before anything is run."""
    if metric != "logprob" and all(len(item.candidates()) == 1 for item in items):
        raise InputError(_undefined(metric))


def of_metric(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The rows of one metric, without the column that says so.

    Raises:
        InputError: the metric is defined for none of the items.
    """
    rows = table[table["metric"] == metric]
    if rows.empty and len(table):
        raise InputError(_undefined(metric))
    return rows.drop(columns="metric")


def _undefined(metric: str) -> str:
    return (
        f"There is no {metric} of these items: none has a reference action or a distractor to compare with."
    )


def pair_of(config: PairOptions) -> tuple[str, str]:
    """The two conditions, without and with."""
    return config.from_, config.to


def entry_of(name: str, pair: tuple[str, str]) -> str:
    """The name that a study of this pair has in run.json."""
    return name if pair == DEFAULT else f"{name} {pair[0]}>{pair[1]}"


def row_id(item: Item, pair: tuple[str, str], direction: str) -> str:
    """The id of a row."""
    return f"{item.item_id}|{pair[0]}>{pair[1]}|{direction}"


@dataclass(frozen=True)
class PairRuns:
    """An item's clean runs: candidate → its run under FROM and under TO."""

    contrast: Contrast
    runs: Mapping[str, tuple[Run, Run]]

    def sides(self, candidate: str, direction: str) -> Sides:
        """Recipient and donor of a direction, and the sign of its effects, as `mech.patching.patch.sides`."""
        return sides(*self.runs[candidate], direction)

    def patched(self, direction: str, patch: Callable[[Run, Run], T]) -> dict[str, T]:
        """Candidate → what `patch` makes of recipient and donor."""
        return {name: patch(*self.sides(name, direction)[:2]) for name in self.runs}

    def effects(
        self, direction: str, scores: Mapping[str, Mapping[Any, Score]]
    ) -> dict[str, dict[str, float]]:
        """Sum → part → its effect (nats), from candidate → part → the recipient's score with it from the donor."""
        found: dict[str, dict[str, float]] = {}
        for candidate, parts in scores.items():
            recipient, _, sign = self.sides(candidate, direction)
            for name in sums_of(self.contrast, candidate, recipient.score):
                found[name] = {}
            for part, score in parts.items():
                for name, value in effects_of(self.contrast, candidate, sign, score, recipient.score).items():
                    found[name][str(part)] = value
        return found

    def about(self) -> dict[str, Any]:
        """`references` (gold, distractors or none), `n_tokens` and `delta`, L(TO) − L(FROM) in nats, by sum."""
        low, high = self.ends
        lengths = {candidate: len(run.query.action) for candidate, (run, _) in self.runs.items()}
        return {
            "references": self.contrast.references_are,
            "n_tokens": token_counts(self.contrast, lengths),
            "delta": {name: high[name] - low[name] for name in high},
        }

    @property
    def ends(self) -> tuple[Sums, Sums]:
        """The sums (nats) under FROM and under TO."""
        low: Sums = {}
        high: Sums = {}
        for candidate, ends in self.runs.items():
            for found, run in zip((low, high), ends, strict=True):
                found.update(sums_of(self.contrast, candidate, run.score))
        return low, high


def pair_runs(
    session: Session, item: Item, pair: tuple[str, str], keep: Sequence[str] | None = None
) -> PairRuns:
    """Run every candidate of the item's contrast under both conditions; `keep` as in `run_decision_point`."""
    contrast = contrast_of(session.model, item, session.wording)
    runs = {}
    for candidate in contrast.candidates:
        low, high = (
            run_decision_point(session.engine, item, name, session.wording, keep, candidate=candidate)
            for name in pair
        )
        runs[candidate] = (low, high)
    return PairRuns(contrast, runs)


def scores_under(rows: Sequence[Mapping[str, Any]], condition: str) -> dict[str, Score]:
    """Candidate → its score under a condition, from an item's rows (without which tokens were greedy)."""
    return {
        row["candidate"]: Score(
            np.array(row["token_logprobs"], dtype=float), np.zeros(len(row["token_logprobs"]), dtype=bool)
        )
        for row in rows
        if row["condition"] == condition
    }


def row_about(item: Item, pair: tuple[str, str], direction: str, runs: PairRuns) -> dict[str, Any]:
    """What a row says before its effects."""
    return {
        "id": row_id(item, pair, direction),
        "item_id": item.item_id,
        "task_id": item.task_id,
        "direction": direction,
        "from": pair[0],
        "to": pair[1],
        **runs.about(),
    }


@dataclass(frozen=True, kw_only=True)
class PairContext(ItemContext):
    """The context of a study that measures every item of a difference in both directions."""

    study: str
    config: PairSweepOptions

    @property
    def pair(self) -> tuple[str, str]:
        """The two conditions, without and with."""
        return pair_of(self.config)

    @property
    def metric(self) -> str:
        """The metric that is shown."""
        return self.config.metric

    @property
    def entry(self) -> str:
        """With the pair, where it is not the default."""
        return entry_of(self.study, self.pair)

    def of_pair(self, table: pd.DataFrame) -> pd.DataFrame:
        """The lines of a table that are of this context's pair."""
        return table[(table["from"] == self.pair[0]) & (table["to"] == self.pair[1])]


def pair_session(config: PairSweepOptions) -> Session:
    """The session with the items that can be put under both conditions.

    Raises:
        InputError: as `require_conditions` and `require_metric`.
    """
    session = require_conditions(open_session(config, one_env=True), pair_of(config))
    require_metric(session.items, config.metric)
    return session


def open_pair(study: str, config: PairSweepOptions) -> PairContext:
    """The context of a study with nothing of its own; raises as `pair_session`."""
    return PairContext(pair_session(config), study=study, config=config)


def pair_units(context: PairContext, parts: Sequence[str] = DIRECTIONS) -> list[ItemUnit]:
    """A unit an item, of a row a part (a direction, a method, a set of heads): its clean runs are shared."""
    return [
        ItemUnit(tuple(row_id(item, context.pair, part) for part in parts), item)
        for item in context.session.items
    ]


def by_pair(
    context: PairContext, rows: pd.DataFrame, derive: Callable[[pd.DataFrame, RngFactory], pd.DataFrame]
) -> pd.DataFrame:
    """What `derive` makes of each pair's rows and streams, one below the other with `from` and `to`; p corrected."""
    tables = []
    for (source, target), part in rows.groupby(["from", "to"], sort=False):
        table = derive(part, context.session.streams(f"{context.study}/{source}>{target}"))
        tables.append(table.assign(**{"from": source, "to": target}))
    return corrected(pd.concat(tables, ignore_index=True), context.study)


def references_said(_: ItemContext, rows: pd.DataFrame) -> list[str]:
    """Notes on items whose reference is not the item's own."""
    return reference_notes(rows.to_dict("records"))


def require_conditions(session: Session, pair: Sequence[str]) -> Session:
    """The session with the items that can be put under both conditions, the others noted as left out.

    Raises:
        InputError: an unknown condition, before anything is written; or no item can be put under both.
    """
    session = restricted(session, pair)
    for name in pair:
        build_queries(session.model, session.items[0], [name], session.wording)
    return session
