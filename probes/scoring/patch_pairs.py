"""Which positions of two conditions correspond, so that one may be patched from the other.

    candidate      the same a× ends every condition: its positions correspond in any pair
    record         the tokens of a× in the recorded call, where both conditions have a record in the same place
    observation    the observation's turn, likewise

    pattern        attention from the action positions goes over the whole sequence, so that all of it must
                   correspond; from `pre`, which has no record, it is carried to the context and to what stands
                   behind the observation, and the record and the observation get none

Conditions that are as long as each other by construction: neut_matched as neut, neut_pad as fail, quote_matched as
fail_echo (`probes.prompts.conditions.AS_LONG_AS`). Where an item's are not (a tokenizer merges otherwise), the item
cannot be patched there. neut_other is nearly as long as neut: it can be patched at the action positions always, and
elsewhere where the two lengths happen to be equal.
"""

from __future__ import annotations

from mech.decoding.turn_spans import turn_end
from mech.engine.queries import Query
from mech.errors import InputError
from mech.models.model import Model
from probes.items.item import Item
from probes.prompts import conditions
from probes.prompts.wording import Wording
from probes.scoring.record import counter, recorded_call, rendered, spans

AT = ("candidate", "record", "observation")
EMPTY = "pre"
"""The condition that is the context alone."""


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
        LengthMismatch: they do not stand in the same place in both.
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
        if conditions.render(item, name, wording, counter(model))[-2]["content"] == item.failed_action:
            return tuple(recorded_call(model, item, name, wording))
    raise InputError(f"Neither {pair[0]} nor {pair[1]} records the failed call.")


def pattern_columns(
    model: Model, item: Item, donor: tuple[str, Query], recipient: tuple[str, Query], wording: Wording
) -> list[tuple[int, int]]:
    """(donor position, recipient position) for every position of the donor, as `mech.patching.patterns.carried` takes.

    Args:
        model: whose tokens.
        item: the decision point.
        donor: the condition whose attention is taken, and its query.
        recipient: the condition that it is carried to, and its query.
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
