"""Which difference of two conditions a study explains: the options, and the study's entry in a shared run folder.

With --from pre --to neut it is Δcopy, with --from neut --to fail Δsem. One folder may hold both: a pair other than the
default has an entry of its own in run.json, and rows and tables name their pair.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from experiments.left_out import restricted
from experiments.options import Option, Study
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session
from mech.engine import Run
from probes.items import Item
from probes.scoring import asks

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


def row_of(
    item: Item, pair: tuple[str, str], direction: str, runs: tuple[Run, Run]
) -> tuple[Run, Run, float, dict[str, Any]]:
    """Recipient and donor of a direction, the sign of its effects, and what a row says before them.

    `runs` are those of the pair, in its order; noising runs TO with activations of FROM, denoising the other way round.
    """
    low, high = runs
    recipient, donor, sign = (high, low, -1.0) if direction == "noise" else (low, high, 1.0)
    about = {
        "id": row_id(item, pair, direction),
        "item_id": item.item_id,
        "task_id": item.task_id,
        "direction": direction,
        "from": pair[0],
        "to": pair[1],
        "delta": high.score.total - low.score.total,
    }
    return recipient, donor, sign, about


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
        asks(session.model, session.items[0], [name], session.wording)
    return session
