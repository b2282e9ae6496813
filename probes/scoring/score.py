"""Decision points through the engine: items × conditions × candidates → token ids → score rows.

    item ─ condition → messages → ids (the chat template) ┐
                                  candidate → ids          ┴→ Query → log-probabilities → one row

One row a (item, condition, candidate). The token that ends the turn follows the action: the action's own tokens say
how likely the model is to begin with it, `end_logprob` how likely it is then to stop. The system prompt is the
prefix cache that all items share, so the arithmetic of an item does not depend on which items came before it: rows
are bit for bit the same in any order.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.engine.trie import common_prefix
from mech.errors import InputError
from mech.interventions.intervention import NOTHING, Intervention
from mech.models.chat import Action, Message, Rendering, action_ids, end_of_turn_id, text_ids
from mech.models.model import Model
from mech.patching.patch import sweep_names
from probes.items.item import QUOTES, Item
from probes.prompts import conditions
from probes.prompts.wording import Wording, load_wording
from probes.scoring.record import rendered, spans, system_length
from probes.stats.layout import UNABLATED

POSITIONS = ("candidate", "record", "observation")
DISTRACTORS_IN = ("pre", "fail")
"""Conditions under which a measure reads the distractors: the normalised repeat probability before and after."""

RECORD_DIFFERS = "the template records this action otherwise than it is scored"
RECORD_SPACE = (
    "the template puts other white space before the record of this action than before the scored one"
)
RECORD_TOKENS = "the record of this action has other tokens than those that are scored"


@dataclass(frozen=True)
class ScoringQuery:
    """One question about an item, as token ids, with what of its rendering a row records.

    `ended`: the query's last token is the end of the turn. `length_mismatch`: by how many tokens the prompt is longer
    than the one it was to be as long as; None for a condition that is as long as it is. `shared_tokens`: the share of
    the failed action's tokens that the call recorded in its place has too; None where none is. `notes`: the
    rendering's, what the action spells, and how a record of the action differs from it. `ablation`: the label of the
    ablation arm that the query belongs to, "none" for the unablated model. `draws`: the interventions of an arm that is
    drawn anew (resample ablation), one a draw; empty where there is one, the query's.
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
    ablation: str = UNABLATED
    draws: tuple[Intervention, ...] = ()

    @property
    def id(self) -> str:
        """The id of the row that answers it."""
        return row_id(self.item.item_id, self.condition, self.candidate, self.ablation)

    @property
    def queries(self) -> list[Query]:
        """All that is asked for one row: the query, or one a draw."""
        if not self.draws:
            return [self.query]
        return [Query(self.query.prompt, self.query.action, one) for one in self.draws]

    @property
    def fingerprint(self) -> str:
        """The intervention's, or a hash over those of its draws, in their order."""
        if not self.draws:
            return self.query.intervention.fingerprint
        return hashlib.sha256("".join(one.fingerprint for one in self.draws).encode()).hexdigest()

    def under(self, ablation: str, interventions: Sequence[Intervention]) -> ScoringQuery:
        """The same question under an ablation arm, which has one intervention or several draws of one.

        Raises:
            InputError: an intervention names a position that the sequence does not have.
        """
        query = Query(self.query.prompt, self.query.action, interventions[0])
        draws = tuple(interventions) if len(interventions) > 1 else ()
        return replace(self, query=query, ablation=ablation, draws=draws)

    @property
    def prompt_sha256(self) -> str:
        """Hash of the rendered prompt."""
        return hashlib.sha256(self.rendering.text.encode()).hexdigest()


def build_queries(
    model: Model,
    item: Item,
    names: Sequence[str],
    wording: Wording,
    candidates: Sequence[str] | None = None,
    intervention: Intervention = NOTHING,
    distractors_in: Sequence[str] | None = None,
    end_of_turn: bool = False,
) -> list[ScoringQuery]:
    """Every (condition, candidate) of an item as a query, conditions outermost.

    Args:
        model: whose chat template and tokenizer write the ids.
        item: the decision point.
        names: conditions, keys of `probes.CONDITIONS`.
        wording: how a failure is written.
        candidates: names out of `item.candidates()`; None takes all that `scored` names.
        intervention: that of every query.
        distractors_in: conditions under which the distractors are asked too; None means all.
        end_of_turn: put the token that ends the turn after every action.

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
            record = _record_notes(messages, rendering, texts[candidate], action)
            notes = (*rendering.notes, *action.notes, *record)
            cells = (action.boundary_merged, end_of_turn, mismatch, shared, notes)
            out.append(ScoringQuery(item, name, candidate, query, rendering, *cells))
    return out


def _shared_tokens(model: Model, item: Item, name: str, messages: Sequence[Message]) -> float | None:
    """Share of a×'s tokens that occur in the call which a condition of AS_LONG_AS records in its place; else None."""
    if name not in conditions.AS_LONG_AS or messages[-2]["content"] == item.failed_action:
        return None
    other, own = set(text_ids(model, messages[-2]["content"])), text_ids(model, item.failed_action)
    return sum(token in other for token in own) / len(own)


NOTED = ("pre", "neut", "fail")


def item_notes(model: Model, item: Item, wording: Wording) -> tuple[str, ...]:
    """The notes of an item's failed action and transcripts under NOTED, as in its score rows.

    Raises:
        InputError: as `build_queries`.
    """
    found: dict[str, None] = {}
    for scoring in build_queries(model, item, NOTED, wording, ["failed"]):
        found.update(dict.fromkeys((*scoring.notes, *model.length_notes(len(scoring.query.tokens)))))
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


def row_id(item_id: str, condition: str, candidate: str, ablation: str = UNABLATED) -> str:
    """The id of a score row; the arm ends it, except that of the unablated model."""
    return "|".join((item_id, condition, candidate, *([] if ablation == UNABLATED else [ablation])))


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
        InputError: as `build_queries`.
        FloatingPointError: a logit is not finite.
    """
    questions = build_queries(
        engine.model, item, names, wording, candidates, intervention, distractors_in, True
    )
    return score_queries(engine, item, questions)


def score_queries(engine: Engine, item: Item, questions: Sequence[ScoringQuery]) -> list[dict[str, Any]]:
    """Rows of questions about one item, of one arm or of several, scored in packed rows over its system prompt.

    Questions whose interventions agree at all positions share packed rows, so the arms that act at the action
    positions alone share the prompts; give such arms condition by condition, for neighbours are packed together.

    Raises:
        FloatingPointError: a logit is not finite.
    """
    queries = [query for scoring in questions for query in scoring.queries]
    shared = min(
        system_length(engine.model, item),
        common_prefix([query.prompt[:-1] for query in queries]),
        *(query.untouched for query in queries),
    )
    scores = iter(engine.score(queries, shared))
    return [
        score_row(engine.model, scoring, *(next(scores) for _ in scoring.queries)) for scoring in questions
    ]


def score_row(model: Model, scoring: ScoringQuery, *scores: Score) -> dict[str, Any]:
    """One answer as a plain row: identities, sums, counts, and the log-probability (nats) of every token.

    Under an arm of several draws (`scores` has one answer a draw) log-probabilities are means over the draws,
    `is_greedy` and `end_is_argmax` are the share of draws, `n_argmax_match` is a mean, `logprob_sd` the standard
    deviation of the sum between draws, and `draws` has the values of each draw: measures are taken draw by draw
    (`probes.measures.measures`), because a mean over draws of a repeat probability is not that of the mean
    log-probability.
    """
    length = len(scoring.query.action) - scoring.ended
    actions = [Score(score.logprobs[:length], score.argmax[:length]) for score in scores]
    action, several = actions[0], len(actions) > 1
    end: dict[str, Any] = {"end_logprob": None, "end_is_argmax": None}
    if scoring.ended:
        ends = [(float(score.logprobs[length]), bool(score.argmax[length])) for score in scores]
        end = dict(zip(("end_logprob", "end_is_argmax"), ends[0], strict=True))
    drawn: dict[str, Any] = {}
    if several:
        action = Score(np.mean([one.logprobs for one in actions], axis=0), action.argmax)
        drawn = {
            "n_argmax_match": float(np.mean([one.n_argmax_match for one in actions])),
            "is_greedy": float(np.mean([one.is_greedy for one in actions])),
            "n_draws": len(actions),
            "logprob_sd": float(np.std([one.total for one in actions], ddof=1)),
            "draws": {
                "logprob": [one.total for one in actions],
                "is_greedy": [one.is_greedy for one in actions],
            },
        }
        if scoring.ended:
            logprobs, best = ([one[at] for one in ends] for at in (0, 1))
            drawn |= {"end_logprob": math.fsum(logprobs) / len(ends), "end_is_argmax": sum(best) / len(ends)}
            drawn["draws"] |= {"end_logprob": logprobs, "end_is_argmax": best}
    return {
        "id": scoring.id,
        "model": model.identity.name,
        "env": scoring.item.env,
        "item_id": scoring.item.item_id,
        "task_id": scoring.item.task_id,
        "condition": scoring.condition,
        "candidate": scoring.candidate,
        "logprob": action.total,
        "n_tokens": action.n_tokens,
        "n_argmax_match": action.n_argmax_match,
        "is_greedy": action.is_greedy,
        **end,
        "ctx_tokens": len(scoring.query.prompt),
        "length_mismatch": scoring.length_mismatch,
        "shared_tokens": scoring.shared_tokens,
        **question(scoring),
        "token_logprobs": action.logprobs.tolist(),
        "boundary_merged": scoring.boundary_merged,
        "notes": [*scoring.notes, *model.length_notes(len(scoring.query.tokens))],
        **attributes(scoring.item),
        "ablation": scoring.ablation,
        **drawn,
    }


def question(scoring: ScoringQuery) -> dict[str, Any]:
    """What a row answers: the action's tokens, the prompt's hash, and the intervention's fingerprint ("clean")."""
    return {
        "token_ids": list(scoring.query.action[: len(scoring.query.action) - scoring.ended]),
        "prompt_sha256": scoring.prompt_sha256,
        "intervention": scoring.fingerprint,
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


def run_decision_point(
    engine: Engine,
    item: Item,
    condition: str,
    wording: Wording | None = None,
    keep: Sequence[str] | None = None,
    positions: Sequence[str] = ("candidate",),
    candidate: str = "failed",
) -> Run:
    """One action under one condition, run alone with activations kept: what patching starts from.

    Args:
        engine: with a cache folder, a kept run is read back.
        item: the decision point.
        condition: a key of `probes.CONDITIONS`.
        wording: how a failure is written; None takes the default wording.
        keep: TransformerLens hook names; None keeps what a head sweep needs (`mech.patching.patch.sweep_names`).
        positions: names out of POSITIONS; the record is the failed call's turn, the observation the turn after it.
        candidate: the action that is scored, a name out of `item.candidates()`.

    Raises:
        InputError: an unknown position set, or one that this condition does not have; an unknown candidate.
    """
    wording = wording or load_wording()
    [scoring] = build_queries(engine.model, item, [condition], wording, [candidate])
    unknown = [name for name in positions if name not in POSITIONS]
    if unknown:
        raise InputError(f"'{unknown[0]}' is not a position set: choose from {', '.join(POSITIONS)}.")
    further = [name for name in positions if name != "candidate"]
    where = spans(engine.model, item, condition, wording) if further else {}
    wanted = {name: where[name] for name in further}
    return run_alone(engine, scoring, sweep_names(engine.model) if keep is None else keep, wanted)


def run_alone(
    engine: Engine, scoring: ScoringQuery, keep: Sequence[str], at: Mapping[str, Sequence[int]]
) -> Run:
    """Run one question about an item over its system prompt, with activations kept; arguments as `Engine.run`."""
    shared = min(system_length(engine.model, scoring.item), len(scoring.query.prompt) - 1)
    return engine.run(scoring.query, keep, shared, at)
