"""Which difference of two conditions a study explains: the options, and the study's entry in a shared run folder.

With --from pre --to neut it is Δcopy, with --from neut --to fail Δsem. One folder may hold both: a pair other than the
default has an entry of its own in run.json, and rows and tables name their pair.

Every study of a pair runs all candidates of an item's contrast (a× and the reference action), each with a donor run of
the same action, and keeps effects on the sums that the metrics are made of (`probes.scoring.metric_sums`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.run.left_out import restricted
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session
from experiments.run.study import Option, Study
from mech.engine.engine import Run
from probes.items.item import Item
from probes.scoring.contrast import Contrast, contrast_of
from probes.scoring.metric_sums import Sums, sums_of, token_counts
from probes.scoring.score import build_queries, run_decision_point

FROM = Option("from", str, "pre", "condition without what is to be attributed")
TO = Option("to", str, "neut", "condition with it")
DIRECTIONS = ("noise", "denoise")
DEFAULT = ("pre", "neut")


def pair_of(args: argparse.Namespace) -> tuple[str, str]:
    """The two conditions, without and with."""
    return vars(args)["from"], args.to


def for_pair(study: Study, pair: tuple[str, str]) -> Study:
    """The study under the name that its entry in run.json has."""
    return study if pair == DEFAULT else replace(study, name=f"{study.name} {pair[0]}>{pair[1]}")


def row_id(item: Item, pair: tuple[str, str], direction: str) -> str:
    """The id of a row."""
    return f"{item.item_id}|{pair[0]}>{pair[1]}|{direction}"


@dataclass(frozen=True)
class PairRuns:
    """An item's clean runs: candidate → its run under FROM and under TO."""

    contrast: Contrast
    runs: Mapping[str, tuple[Run, Run]]

    def sides(self, candidate: str, direction: str) -> tuple[Run, Run, float]:
        """Recipient and donor of a direction, and the sign of its effects.

        Noising runs TO with activations of FROM, denoising the other way round.
        """
        low, high = self.runs[candidate]
        return (high, low, -1.0) if direction == "noise" else (low, high, 1.0)

    def about(self) -> dict[str, Any]:
        """What rows say of the difference itself: its sums, their token counts, and what the reference is."""
        return about_difference(self.contrast, self.runs)


def about_difference(contrast: Contrast, runs: Mapping[str, tuple[Run, Run]]) -> dict[str, Any]:
    """`references` (gold, distractors or none), `n_tokens` and `delta`, L(TO) − L(FROM) in nats, by sum."""
    delta: Sums = {}
    for candidate, (low, high) in runs.items():
        before, after = (sums_of(contrast, candidate, run.score) for run in (low, high))
        delta.update({name: after[name] - before[name] for name in after})
    lengths = {candidate: len(low.query.action) for candidate, (low, _) in runs.items()}
    counts = token_counts(contrast, lengths)
    return {"references": contrast.references_are, "n_tokens": counts, "delta": delta}


def pair_runs(session: Session, item: Item, pair: tuple[str, str], keep: Sequence[str]) -> PairRuns:
    """Run every candidate of the item's contrast under both conditions, with these activations kept."""
    contrast = contrast_of(session.model, item, session.wording)
    runs = {}
    for candidate in contrast.candidates:
        low, high = (
            run_decision_point(session.engine, item, name, session.wording, keep, candidate=candidate)
            for name in pair
        )
        runs[candidate] = (low, high)
    return PairRuns(contrast, runs)


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


def measure_all(
    folder: RunFolder,
    session: Session,
    pair: tuple[str, str],
    measure: Callable[[Session, Item, tuple[str, str], list[str]], list[dict[str, Any]]],
    name: str,
    quiet: bool,
) -> None:
    """Append to NAME.jsonl what `measure` gives of every item, in the directions that are not there yet."""
    for item in progress(session.items, len(session.items), name, quiet):
        done = folder.done_ids(name)
        todo = [direction for direction in DIRECTIONS if row_id(item, pair, direction) not in done]
        if todo:
            folder.append_all(name, measure(session, item, pair, todo))


def require_conditions(session: Session, pair: Sequence[str]) -> Session:
    """The session with the items that can be put under both conditions, the others noted as left out.

    Raises:
        InputError: an unknown condition, before anything is written; or no item can be put under both.
    """
    session = restricted(session, pair)
    for name in pair:
        build_queries(session.model, session.items[0], [name], session.wording)
    return session
