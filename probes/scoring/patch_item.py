"""One item's patches: the runs of its two conditions, and every part and set of a site taken from the other run.

noise     recipient TO, donor FROM          denoise    recipient FROM, donor TO
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.edits import HEAD_SITES
from mech.models.model import Model
from mech.patching.patterns import patch_pattern_sets, patch_patterns, pattern_names
from mech.patching.sites import PATCH_SITES, Part, patch_part_sets, patch_parts, site_names
from probes.items.item import Item
from probes.prompts.conditions import AS_LONG_AS, NEARLY_AS_LONG
from probes.prompts.wording import Wording
from probes.scoring.patch_pairs import LengthMismatch, pattern_columns, shared_positions
from probes.scoring.score import build_queries, system_length

SITES = (*PATCH_SITES, "pattern")
_NO_SETS: Mapping[str, HeadSet] = {}


@dataclass(frozen=True)
class PatchTask:
    """Two clean runs of one item that kept what patching a site takes, and where they correspond.

    Attributes:
        item: the decision point.
        group: site, at, from, to.
        low: the run of `from`.
        high: the run of `to`.
        positions: absolute, the same in both runs; empty at the action positions.
        wording: how a failure is written.
    """

    item: Item
    group: tuple[str, str, str, str]
    low: Run
    high: Run
    positions: tuple[int, ...]
    wording: Wording

    @classmethod
    def of(
        cls,
        engine: Engine,
        item: Item,
        group: tuple[str, str, str, str],
        wording: Wording,
        candidate: str = "failed",
    ) -> PatchTask:
        """Run both conditions, each ended by this candidate of the item.

        Raises:
            LengthMismatch, InputError: as `corresponding`.
        """
        model, (site, at, _, _) = engine.model, group
        positions, queries = corresponding(model, item, group, wording, candidate)
        keep = pattern_names(model) if site == "pattern" else site_names(model, site)
        low, high = (
            engine.run(
                query,
                keep,
                min(system_length(model, item), len(query.prompt) - 1),
                {at: positions} if positions else None,
            )
            for query in queries
        )
        return cls(item, group, low, high, positions, wording)


def corresponding(
    model: Model,
    item: Item,
    group: tuple[str, str, str, str],
    wording: Wording,
    candidate: str = "failed",
) -> tuple[tuple[int, ...], tuple[Query, Query]]:
    """Where the two conditions of a group correspond (empty at the action positions), and their queries.

    Raises:
        LengthMismatch: the item's conditions do not correspond at these positions.
        InputError: an unknown site, condition or candidate, or no record where one is asked for.
    """
    site, at, source, target = group
    if site not in SITES:
        raise InputError(f"'{site}' is not a site to patch: choose one of {', '.join(SITES)}.")
    positions: tuple[int, ...] = ()
    if at != "candidate":
        positions = shared_positions(model, item, (source, target), wording, at)
    queries = []
    for condition in (source, target):
        [scoring] = build_queries(model, item, [condition], wording, [candidate])
        exact = condition not in NEARLY_AS_LONG  # the action positions correspond in any pair
        if exact and scoring.length_mismatch and AS_LONG_AS.get(condition) in (source, target):
            raise LengthMismatch(
                f"{condition} of item {item.item_id} is {scoring.length_mismatch:+d} tokens off the length of "
                f"{AS_LONG_AS[condition]}."
            )
        queries.append(scoring.query)
    return positions, (queries[0], queries[1])


def mismatch(
    model: Model,
    item: Item,
    group: tuple[str, str, str, str],
    wording: Wording,
    candidates: Sequence[str],
    directions: Sequence[str],
) -> str | None:
    """Why the item cannot be patched in these directions, its conditions being of other lengths; None where it can.

    Raises:
        InputError: as `corresponding` and `pattern_columns`.
    """
    site, _, source, target = group
    try:
        for candidate in candidates:
            _, (low, high) = corresponding(model, item, group, wording, candidate)
            for direction in directions if site == "pattern" else ():
                sides = ((source, low), (target, high))
                donor, recipient = sides if direction == "noise" else sides[::-1]
                pattern_columns(model, item, donor, recipient, wording)
    except LengthMismatch as reason:
        return str(reason)
    return None


def patched(
    engine: Engine,
    task: PatchTask,
    direction: str,
    sets: Mapping[str, HeadSet] = _NO_SETS,
    heads: HeadSet | None = None,
) -> tuple[dict[Part, Score], dict[str, Score]]:
    """Scores with every part of the site alone, and with every set of heads together, taken from the other run.

    Args:
        engine: its model runs.
        task: the two runs.
        direction: noise or denoise.
        sets: joint sets of query heads; sites by layer have none.
        heads: query heads to patch alone; None means every part. Of z and pattern only.

    Raises:
        InputError: an unknown direction, or as `patch_parts` and `patch_patterns`.
    """
    if direction not in ("noise", "denoise"):
        raise InputError(f"'{direction}' is not a direction: write noise or denoise.")
    site, at, source, target = task.group
    names = (source, target) if direction == "noise" else (target, source)
    donor, recipient = (task.low, task.high) if direction == "noise" else (task.high, task.low)
    if site == "pattern":
        columns = pattern_columns(
            engine.model, task.item, (names[0], donor.query), (names[1], recipient.query), task.wording
        )
        single = patch_patterns(engine, recipient, donor, columns, heads)
        joint = patch_pattern_sets(engine, recipient, donor, columns, sets)
        return {Part(head.layer, head.head): score for head, score in single.items()}, joint
    [known] = [one for one in PATCH_SITES if one == site]
    chosen = None if heads is None else [Part(head.layer, head.head) for head in heads]
    parts = patch_parts(engine, recipient, donor, known, at, task.positions, chosen)
    if known not in HEAD_SITES:
        return parts, {}
    return parts, patch_part_sets(engine, recipient, donor, known, sets, at, task.positions)
