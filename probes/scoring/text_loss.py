"""The loss under an intervention where no failed call is repeated: on texts and tokens of no task.

    prose           plain English passages, written for this project: nothing in them repeats
    code            plain Python passages, written for this project: no call occurs twice
    random_first    a sequence of random tokens, met for the first time
    random_repeat   the same tokens met again: the copying that induction heads are for, and no task

loss = −(mean log-probability of the tokens after the first), nats a token. The last one is on target for a copy head;
that the first three stay is what makes an ablation specific.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.head_scores.causal_copying import Occurrence, occurrence_query
from mech.head_scores.induction import RepeatedTokens
from mech.interventions.intervention import NOTHING, Intervention
from mech.models.chat import text_ids

LOSSES = ("prose_loss", "code_loss", "random_first_loss", "random_repeat_loss")
_OCCURRENCES: dict[str, Occurrence] = {"random_first_loss": "first", "random_repeat_loss": "second"}


def passages() -> list[str]:
    """The bundled passages of plain English prose."""
    text = files("probes.scoring").joinpath("prose/prose.txt").read_text(encoding="utf-8")
    return [part.strip() for part in text.split("\n\n")]


def code_passages() -> list[str]:
    """The bundled passages of plain Python; separated by two blank lines."""
    text = files("probes.scoring").joinpath("prose/code.txt").read_text(encoding="utf-8")
    return [part.strip() for part in text.split("\n\n\n")]


def prose_losses(engine: Engine, intervention: Intervention = NOTHING) -> list[float]:
    """Loss of each prose passage (nats a token) under an intervention at all positions."""
    return text_losses(engine, passages(), intervention)


def text_losses(engine: Engine, texts: Sequence[str], intervention: Intervention = NOTHING) -> list[float]:
    """Loss of each text by itself (nats a token) under an intervention at all positions."""
    queries = []
    for text in texts:
        ids = text_ids(engine.model, text)
        queries.append(Query(ids[:1], ids[1:], intervention))
    return _losses(engine, queries)


def off_target_losses(
    engine: Engine, sequences: RepeatedTokens, intervention: Intervention = NOTHING
) -> dict[str, list[float]]:
    """Each of LOSSES → the loss of each of its passages or sequences (nats a token) under an intervention.

    Args:
        engine: its model answers.
        sequences: repeated random tokens other than those that heads were chosen on.
        intervention: at all positions, or at those that predict the tokens, which are all but the last.
    """
    losses = {
        "prose_loss": prose_losses(engine, intervention),
        "code_loss": text_losses(engine, code_passages(), intervention),
    }
    for name, occurrence in _OCCURRENCES.items():
        clean = [occurrence_query(sequences, index, occurrence) for index in range(len(sequences.tokens))]
        queries = [Query(query.prompt, query.action, intervention) for query in clean]
        losses[name] = _losses(engine, queries)
    return losses


def _losses(engine: Engine, queries: Sequence[Query]) -> list[float]:
    return [-score.total / score.n_tokens for score in engine.score(queries, shared=0)]
