"""The record of the failed call in a condition's transcript: its positions in the scored prompt, and attention to it.

    record         the tokens of a× in the record               (`recorded_call`; `spans` has the full turns)
    observation    the first tokens of the observation's turn
    goal           the last tokens before the first step (the end of the goal's turn)
    earlier        the tokens of the last successful call before (items with a step)
    padding        under neut_pad alone: the filler in the observation (`padding_sources`)

All of them are positions in the prompt that is scored, found in that very prompt (`mech.decoding.turn_spans`): the
template may write its last turn, or a transcript that ends earlier, as it likes.

An edge knockout removes attention to the record, and for control to as many tokens elsewhere, or all there are. One
that does as much there is not about the string.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from mech.decoding.turn_spans import text_range, turn_end, turn_range
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.engine.trie import common_prefix
from mech.errors import InputError
from mech.head_scores.transcript_induction import (
    TRANSCRIPT_SCORES,
    candidate_patterns,
    copy_in_record,
    transcript_scores,
)
from mech.models.chat import Message, Rendering, action_ids, render, shared_length, text_ids
from mech.models.model import Model
from probes.items.item import Item
from probes.prompts import conditions
from probes.prompts.filler import Count
from probes.prompts.wording import Wording

SOURCES = ("record", "observation", "goal", "earlier")
RECORD_ATTENTION = ("item_id", "task_id", "condition", "layer", "head", *TRANSCRIPT_SCORES, "n_positions")
GOAL = 1
"""Which message of a transcript states the goal; the successful steps follow, a call and an observation each."""


def counter(model: Model) -> Count:
    """How many tokens of the model a text has."""
    return lambda text: len(text_ids(model, text))


def rendered(model: Model, item: Item, condition: str, wording: Wording) -> tuple[list[Message], Rendering]:
    """An item's messages under a condition, and the prompt that they are.

    Raises:
        InputError: as `probes.prompts.conditions.condition_messages` and `mech.models.chat.render`.
    """
    messages = conditions.condition_messages(item, condition, wording, counter(model))
    return messages, render(model, messages)


def system_length(model: Model, item: Item) -> int:
    """How many leading tokens of the item's prompts are its system prompt's, whatever follows."""
    return shared_length(model, [{"role": "system", "content": item.system_prompt}])


def spans(model: Model, item: Item, condition: str, wording: Wording) -> Mapping[str, range]:
    """The turns of the failed call (`record`) and of its observation in a condition's prompt, as absolute positions.

    Raises:
        InputError: the condition writes no such record after the context, or the template keeps no turns apart.
    """
    messages, rendering, call = _with_record(model, item, condition, wording)
    return {
        name: turn_range(model, messages, rendering, at)
        for name, at in (("record", call), ("observation", call + 1))
    }


def recorded_call(model: Model, item: Item, condition: str, wording: Wording) -> range:
    """The tokens of a× in a condition's record; a token of which only a part is of a× belongs to them.

    Raises:
        InputError: as `spans`, or the record is not a× to the letter.
    """
    messages, rendering, call = _with_record(model, item, condition, wording)
    if messages[call]["content"] != item.failed_action:
        raise InputError(f"Condition '{condition}' does not record the failed call of item {item.item_id}.")
    where = text_range(model, rendering, call)
    place = rendering.places[call]
    found = None if place is None else rendering.text[slice(*place)]
    if found != item.failed_action:
        raise InputError(
            f"The chat template records {found!r} where item {item.item_id} has {item.failed_action!r}: the record is "
            "not the call that is scored."
        )
    return where


def edge_sources(engine: Engine, item: Item, condition: str, wording: Wording) -> dict[str, tuple[int, ...]]:
    """Absolute positions in the condition's prompt by kind of source; `earlier` only where a step precedes.

    Raises:
        InputError: as `recorded_call`.
    """
    model = engine.model
    copy = recorded_call(model, item, condition, wording)
    n = len(copy)
    messages, rendering, call = _with_record(model, item, condition, wording)
    goal = turn_end(model, messages, rendering, GOAL + 1)
    found = {
        "record": tuple(copy),
        "observation": tuple(turn_range(model, messages, rendering, call + 1)[:n]),
        "goal": tuple(range(max(goal - n, 0), goal)),
    }
    if item.step_index:
        found["earlier"] = tuple(turn_range(model, messages, rendering, call - 2)[-n:])
    return found


def padding_sources(engine: Engine, item: Item, wording: Wording) -> dict[str, tuple[int, ...]]:
    """Positions in the prompt of neut_pad: `record`, and as many of `padding`, or all there are (none: no such key).

    The padding is what the observation of neut_pad has and that of neut has not.

    Raises:
        InputError: as `recorded_call`.
    """
    model = engine.model
    copy = recorded_call(model, item, "neut_pad", wording)
    said: dict[str, tuple[int, ...]] = {}
    for name in ("neut_pad", "neut"):
        span = spans(model, item, name, wording)["observation"]
        said[name] = rendered(model, item, name, wording)[1].ids[span.start : span.stop]
    long, short = said["neut_pad"], said["neut"]
    start = spans(model, item, "neut_pad", wording)["observation"].start
    ahead = common_prefix([long, short])
    after = common_prefix([long[ahead:][::-1], short[ahead:][::-1]])
    words = range(start + ahead, start + len(long) - after)[: len(copy)]
    return {"record": tuple(copy), **({"padding": tuple(words)} if len(words) else {})}


def record_attention(engine: Engine, item: Item, condition: str, wording: Wording) -> pd.DataFrame:
    """Attention from a×'s candidate tokens to its record: scores of every head on one item, columns RECORD_ATTENTION.

    Raises:
        InputError: as `recorded_call`, or the record has the call in other tokens than those that are scored.
    """
    model = engine.model
    record = recorded_call(model, item, condition, wording)
    _, rendering = rendered(model, item, condition, wording)
    query = Query(rendering.ids, action_ids(model, rendering, item.failed_action).ids)
    copy = copy_in_record(query, record)
    shared = min(system_length(model, item), len(query.prompt) - 1)
    scores = transcript_scores(candidate_patterns(engine, query, shared), query, copy)
    named = scores.assign(item_id=item.item_id, task_id=item.task_id, condition=condition)
    return named[list(RECORD_ATTENTION)]


def mean_by_head(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean over items, each weighing the same: layer, head, TRANSCRIPT_SCORES, a table of head scores like others."""
    return rows.groupby(["layer", "head"], sort=True)[list(TRANSCRIPT_SCORES)].mean().reset_index()


def _with_record(
    model: Model, item: Item, condition: str, wording: Wording
) -> tuple[list[Message], Rendering, int]:
    """Messages and prompt of a condition whose last two messages are a call and its observation, and the call's index.

    Raises:
        InputError: the condition has no such record after the context.
    """
    before = conditions.condition_messages(item, "pre", wording)
    messages, rendering = rendered(model, item, condition, wording)
    if len(messages) != len(before) + 2 or messages[: len(before)] != before:
        raise InputError(
            f"Condition '{condition}' writes no call and observation after the context: it has no record."
        )
    return messages, rendering, len(before)
