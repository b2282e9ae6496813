"""Two conditions of an item as the two runs of a patch: where they correspond, and every part of a site patched.

    noise     recipient TO, donor FROM          denoise    recipient FROM, donor TO

    candidate      the same a× ends every condition: its positions correspond in any pair
    record         the tokens of a× in the recorded call, where both conditions have a record in the same place
    observation    the observation's turn, likewise

    pattern        attention from the action positions covers all of the sequence, so that all of it must
                   correspond; from `pre`, which has no record, it is transferred to the context and to what follows
                   the observation, and the record and the observation get none

Conditions that are as long as each other by construction: neut_matched as neut, neut_pad as fail, quote_matched as
fail_echo (`probes.prompts.conditions.AS_LONG_AS`). Where an item's are not (a tokenizer merges otherwise), the item
cannot be patched there. neut_other is nearly as long as neut: it can be patched at the action positions always, and
elsewhere where the two lengths happen to be equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mech.decoding.turn_spans import turn_end
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.edits import HEAD_SITES
from mech.models.model import Model
from mech.patching.patch import PATCH_SITES, Part, patch_part_sets, patch_parts, sides, site_names
from mech.patching.patterns import patch_pattern_sets, patch_patterns, pattern_names
from probes.items.item import Item
from probes.prompts import conditions
from probes.prompts.conditions import AS_LONG_AS, NEARLY_AS_LONG
from probes.prompts.wording import Wording
from probes.scoring.record import counter, recorded_call, rendered, spans
from probes.scoring.score import ScoringQuery, build_queries, run_alone

AT = ("candidate", "record", "observation")
EMPTY = "pre"
"""The condition that is the context alone."""
SITES = (*PATCH_SITES, "pattern")
_NO_SETS: Mapping[str, HeadSet] = {}


class LengthMismatch(InputError):
    """An item whose two conditions are not equally long where they must correspond."""


def shared_positions(
    model: Model, item: Item, pair: tuple[str, str], wording: Wording, at: str
) -> tuple[int, ...]:
    """Absolute positions, the same in both conditions, of the recorded a× or of the observation's turn.

    Args:
        model: whose tokens.
        item: the decision point.
        pair: the two conditions.
        wording: how a failure is written.
        at: record or observation.

    Raises:
        LengthMismatch: they are not in the same place in both.
        InputError: a condition has no record, or a× is in neither.
    """
    where = [spans(model, item, name, wording)[at] for name in pair]
    if where[0] != where[1]:
        raise LengthMismatch(
            f"The {at} of item {item.item_id} has {len(where[0])} tokens from position {where[0].start} on under "
            f"{pair[0]}, and {len(where[1])} from {where[1].start} on under {pair[1]}."
        )
    if at == "observation":
        return tuple(where[0])
    for name in reversed(pair):
        if (
            conditions.condition_messages(item, name, wording, counter(model))[-2]["content"]
            == item.failed_action
        ):
            return tuple(recorded_call(model, item, name, wording))
    raise InputError(f"Neither {pair[0]} nor {pair[1]} records the failed call.")


def pattern_columns(
    model: Model, item: Item, donor: tuple[str, Query], recipient: tuple[str, Query], wording: Wording
) -> list[tuple[int, int]]:
    """(donor position, recipient position) for every position of the donor: `columns` of `mech.patching.patterns`.

    Args:
        model: whose tokens.
        item: the decision point.
        donor: the condition whose attention is taken, and its query.
        recipient: the condition that it is put into, and its query.
        wording: how a failure is written.

    Raises:
        LengthMismatch: the two conditions have a record and are not equally long in every part.
        InputError: the recipient has no record and the donor has one, or the template does not keep the parts apart.
    """
    (theirs, their_query), (ours, our_query) = donor, recipient
    n_theirs, n_ours = len(their_query.tokens), len(our_query.tokens)
    if theirs == ours:
        return [(place, place) for place in range(n_theirs)]
    require_pattern_pair(theirs, ours)
    if theirs != EMPTY:
        where = [spans(model, item, name, wording) for name in (theirs, ours)]
        if where[0] != where[1] or n_theirs != n_ours:
            raise LengthMismatch(
                f"Item {item.item_id} has {n_theirs} tokens under {theirs} and {n_ours} under {ours}, or a record and "
                "observation of other lengths: attention cannot be carried over."
            )
        return [(place, place) for place in range(n_theirs)]
    before, rendering = rendered(model, item, EMPTY, wording)
    start = turn_end(model, before, rendering, len(before))
    end = spans(model, item, ours, wording)["observation"].stop
    same = their_query.tokens[:start] == our_query.tokens[:start]
    if not same or their_query.tokens[start:] != our_query.tokens[end:]:
        raise InputError(
            f"With this chat template {theirs} and {ours} of item {item.item_id} have not the same tokens around "
            "the record: attention cannot be carried over."
        )
    return [(place, place) for place in range(start)] + [
        (start + step, end + step) for step in range(n_theirs - start)
    ]


def require_pattern_pair(donor: str, recipient: str) -> None:
    """Raise InputError where the recipient lacks the record that the donor attends to."""
    if recipient == EMPTY and donor != EMPTY:
        raise InputError(
            f"Attention under {donor} cannot be put into {EMPTY}, which has no record to attend to: take the other "
            "direction alone, or compare with a condition of equal length such as neut_matched."
        )


@dataclass(frozen=True)
class PatchTask:
    """Two clean runs of one item with the activations that patching a site needs, and where they correspond.

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
        positions, (low, high) = corresponding(model, item, group, wording, candidate)
        keep = pattern_names(model) if site == "pattern" else site_names(model, site)
        where = {at: positions} if positions else {}
        runs = (run_alone(engine, scoring, keep, where) for scoring in (low, high))
        return cls(item, group, next(runs), next(runs), positions, wording)


def corresponding(
    model: Model,
    item: Item,
    group: tuple[str, str, str, str],
    wording: Wording,
    candidate: str = "failed",
) -> tuple[tuple[int, ...], tuple[ScoringQuery, ScoringQuery]]:
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
        queries.append(scoring)
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
                ends = ((source, low.query), (target, high.query))
                donor, recipient = ends if direction == "noise" else ends[::-1]
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
    site, at, *names = task.group
    recipient, donor, sign = sides(task.low, task.high, direction)
    if site == "pattern":
        theirs, ours = names if sign < 0 else reversed(names)
        columns = pattern_columns(
            engine.model, task.item, (theirs, donor.query), (ours, recipient.query), task.wording
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
