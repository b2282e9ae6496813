"""Decision points through the engine: items × conditions × candidates → token ids → score rows.

    item ─ condition → messages → ids (the chat template) ┐
                                  candidate → ids          ┴→ Query → log-probabilities → one row

One row a (item, condition, candidate). Behind the action stands the token that ends the turn: the action's own tokens
say how likely the model is to begin with it, `end_logprob` how likely it is then to stop. The system prompt is the
trunk that all items share, so the arithmetic of an item does not depend on which items came before it: rows are bit
for bit the same in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mech.chat import Action, Message, Rendering, action_ids, end_of_turn_id, text_ids
from mech.engine import Engine, Run
from mech.errors import InputError
from mech.interventions import NOTHING, Intervention
from mech.model import Model
from mech.patching import sweep_names
from mech.queries import Query, Score
from mech.trie import common_prefix
from probes import conditions
from probes.items import QUOTES, Item
from probes.record import rendered, spans, system_length
from probes.wording import Wording

POSITIONS = ("candidate", "record", "observation")
DISTRACTORS_IN = ("pre", "fail")
"""Conditions under which a measure reads the distractors: the normalised repeat probability before and after."""

RECORD_DIFFERS = "the template records this action otherwise than it is scored"
RECORD_SPACE = (
    "the template puts other white space before the record of this action than before the scored one"
)
RECORD_TOKENS = "the record of this action has other tokens than those that are scored"


@dataclass(frozen=True)
class Ask:
    """One question about an item, as token ids, with what of its rendering a row records.

    `ended`: the query's last token is the end of the turn. `length_mismatch`: by how many tokens the prompt is longer
    than the one it was to be as long as; None for a condition that is as long as it is. `shared_tokens`: the share of
    the failed action's tokens that the call recorded in its place has too; None where none is. `notes`: the
    rendering's, what the action spells, and how a record of the action differs from it.
    """

    item: Item
    condition: str
    candidate: str
    query: Query
    rendering: Rendering
    boundary_merged: bool
    ended: bool = False
    length_mismatch: int | None = None
    shared_tokens: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """The id of the row that answers it."""
        return f"{self.item.item_id}|{self.condition}|{self.candidate}"

    @property
    def prompt_sha256(self) -> str:
        """Hash of the rendered prompt."""
        return hashlib.sha256(self.rendering.text.encode()).hexdigest()


def asks(
    model: Model,
    item: Item,
    names: Sequence[str],
    wording: Wording,
    candidates: Sequence[str] | None = None,
    intervention: Intervention = NOTHING,
    distractors_in: Sequence[str] | None = None,
    end_of_turn: bool = False,
) -> list[Ask]:
    """Every (condition, candidate) of an item as a query, conditions outermost.

    Args:
        model: whose chat template and tokenizer write the ids.
        item: the decision point.
        names: conditions, keys of `probes.CONDITIONS`.
        wording: how a failure is written.
        candidates: names out of `item.candidates()`; None takes all that `scored` names.
        intervention: carried by every query.
        distractors_in: conditions under which the distractors are asked too; None means all.
        end_of_turn: put the token that ends the turn behind every action.

    Raises:
        InputError: an unknown condition or candidate, or a template that refuses the transcript.
    """
    texts = item.candidates()
    unknown = [name for name in candidates or () if name not in texts]
    if unknown:
        raise InputError(f"Item {item.item_id} has no candidate '{unknown[0]}': it has {', '.join(texts)}.")
    end = (end_of_turn_id(model),) if end_of_turn else ()
    out = []
    for name in names:
        messages, rendering = rendered(model, item, name, wording)
        other = conditions.AS_LONG_AS.get(name)
        mismatch = len(rendering.ids) - len(rendered(model, item, other, wording)[1].ids) if other else None
        shared = _shared_tokens(model, item, name, messages)
        for candidate in scored(item, name, distractors_in) if candidates is None else candidates:
            action = action_ids(model, rendering, texts[candidate])
            query = Query(rendering.ids, action.ids + end, intervention)
            merged = action.boundary_merged
            notes = (
                *rendering.notes,
                *action.notes,
                *_record_notes(messages, rendering, texts[candidate], action),
            )
            out.append(
                Ask(item, name, candidate, query, rendering, merged, end_of_turn, mismatch, shared, notes)
            )
    return out


def _shared_tokens(model: Model, item: Item, name: str, messages: Sequence[Message]) -> float | None:
    """Share of a×'s tokens that stand in the call which a condition of AS_LONG_AS records in its place; else None."""
    if name not in conditions.AS_LONG_AS or messages[-2]["content"] == item.failed_action:
        return None
    other, own = set(text_ids(model, messages[-2]["content"])), text_ids(model, item.failed_action)
    return sum(token in other for token in own) / len(own)


NOTED = ("pre", "neut", "fail")


def item_notes(model: Model, item: Item, wording: Wording) -> tuple[str, ...]:
    """What is to be said of an item's failed action and transcripts under NOTED, as rows of scores say it; else none.

    Raises:
        InputError: as `asks`.
    """
    found: dict[str, None] = {}
    for ask in asks(model, item, NOTED, wording, ["failed"]):
        found.update(dict.fromkeys((*ask.notes, *model.length_notes(len(ask.query.tokens)))))
    return tuple(found)


def _record_notes(
    messages: Sequence[Message], rendering: Rendering, text: str, action: Action
) -> tuple[str, ...]:
    """What tells the action that is scored from its record, where the transcript has one: by letters, or by tokens."""
    calls = [
        place
        for message, place in zip(messages, rendering.places, strict=True)
        if message["role"] == "assistant" and message["content"] == text
    ]
    if not calls:
        return ()
    found = [place for place in calls if place is not None and rendering.text[slice(*place)] == text]
    if len(found) < len(calls) or rendering.content is None:
        return (RECORD_DIFFERS,)
    notes = []
    ends = [0, *(stop for _, stop in rendering.content)]
    opening = rendering.text[max(ends) :]
    for place in found:
        recorded = rendering.text[max(end for end in ends if end <= place[0]) : place[0]]
        if recorded != opening and recorded.strip() == opening.strip():
            notes.append(RECORD_SPACE)
    n = len(action.ids)
    copies = sum(rendering.ids[at : at + n] == action.ids for at in range(len(rendering.ids) - n + 1))
    if copies < len(calls):
        notes.append(RECORD_TOKENS)
    return tuple(dict.fromkeys(notes))


def scored(item: Item, name: str, distractors_in: Sequence[str] | None = None) -> list[str]:
    """The candidates scored under a condition: all, less the distractors where `distractors_in` leaves it out."""
    spared = distractors_in is not None and name not in distractors_in
    return [one for one in item.candidates() if not (spared and one.startswith("distractor"))]


def score_item(
    engine: Engine,
    item: Item,
    names: Sequence[str],
    wording: Wording,
    candidates: Sequence[str] | None = None,
    intervention: Intervention = NOTHING,
    distractors_in: Sequence[str] | None = None,
) -> list[dict[str, Any]]:
    """Rows of one item under these conditions, scored in packed rows over the item's system prompt, turns ended.

    Raises:
        InputError: as `asks`.
        FloatingPointError: a logit is not finite.
    """
    questions = asks(engine.model, item, names, wording, candidates, intervention, distractors_in, True)
    prompts = [ask.query.prompt[:-1] for ask in questions]
    shared = min(system_length(engine.model, item), common_prefix(prompts))
    scores = engine.score([ask.query for ask in questions], shared)
    return [score_row(engine.model, ask, score) for ask, score in zip(questions, scores, strict=True)]


def score_row(model: Model, ask: Ask, score: Score) -> dict[str, Any]:
    """One answer as a plain row: identities, sums, counts, and the log-probability (nats) of every token."""
    length = len(ask.query.action) - ask.ended
    action = Score(score.logprobs[:length], score.argmax[:length])
    end: dict[str, Any] = {"end_logprob": None, "end_is_argmax": None}
    if ask.ended:
        end = {"end_logprob": float(score.logprobs[length]), "end_is_argmax": bool(score.argmax[length])}
    return {
        "id": ask.id,
        "model": model.identity.name,
        "env": ask.item.env,
        "item_id": ask.item.item_id,
        "task_id": ask.item.task_id,
        "condition": ask.condition,
        "candidate": ask.candidate,
        "logprob": action.total,
        "n_tokens": action.n_tokens,
        "n_argmax_match": action.n_argmax_match,
        "is_greedy": action.is_greedy,
        **end,
        "ctx_tokens": len(ask.query.prompt),
        "length_mismatch": ask.length_mismatch,
        "shared_tokens": ask.shared_tokens,
        **question(ask),
        "token_logprobs": action.logprobs.tolist(),
        "boundary_merged": ask.boundary_merged,
        "notes": [*ask.notes, *model.length_notes(len(ask.query.tokens))],
        **attributes(ask.item),
    }


def question(ask: Ask) -> dict[str, Any]:
    """What a row answers: the action's tokens, the prompt's hash, and the intervention's fingerprint ("clean")."""
    return {
        "token_ids": list(ask.query.action[: len(ask.query.action) - ask.ended]),
        "prompt_sha256": ask.prompt_sha256,
        "intervention": ask.query.intervention.fingerprint,
    }


def attributes(item: Item) -> dict[str, Any]:
    """What an item is broken down by; `quotes_source` (None where unknown): the error quotes a line of a×."""
    return {
        "operator": item.operator,
        "error_type": item.error_type,
        "template": item.template,
        "step_index": item.step_index,
        "quotes_source": item.meta.get(QUOTES),
    }


def decision_run(
    engine: Engine,
    item: Item,
    condition: str,
    wording: Wording,
    keep: Sequence[str] | None = None,
    positions: Sequence[str] = ("candidate",),
    candidate: str = "failed",
) -> Run:
    """One action under one condition, run alone with activations kept: what patching starts from.

    Args:
        engine: with a cache folder, a kept run is read back.
        item: the decision point.
        condition: a key of `probes.CONDITIONS`.
        wording: how a failure is written.
        keep: TransformerLens hook names; None keeps what a head sweep needs (`mech.patching.sweep_names`).
        positions: names out of POSITIONS; the record is the failed call's turn, the observation the turn after it.
        candidate: the action that is scored, a name out of `item.candidates()`.

    Raises:
        InputError: an unknown position set, or one that this condition does not have; an unknown candidate.
    """
    [ask] = asks(engine.model, item, [condition], wording, [candidate])
    further = _known(positions)
    where = spans(engine.model, item, condition, wording) if further else {}
    wanted = {name: where[name] for name in further}
    shared = min(system_length(engine.model, item), len(ask.query.prompt) - 1)
    return engine.run(ask.query, sweep_names(engine.model) if keep is None else keep, shared, wanted)


def _known(positions: Sequence[str]) -> list[str]:
    unknown = [name for name in positions if name not in POSITIONS]
    if unknown:
        raise InputError(f"'{unknown[0]}' is not a position set: choose from {', '.join(POSITIONS)}.")
    return [name for name in positions if name != "candidate"]
