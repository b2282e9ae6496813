"""What an intervention costs where nothing is repeated: the loss on plain prose, written for this project.

loss = −(mean log-probability of a passage's tokens after its first), nats a token.
"""

from __future__ import annotations

from importlib.resources import files

from mech.chat import encode
from mech.engine import Engine
from mech.interventions import NOTHING, Intervention
from mech.queries import Query


def passages() -> list[str]:
    """The bundled passages of plain English prose."""
    text = files("probes").joinpath("prose/prose.txt").read_text(encoding="utf-8")
    return [part.strip() for part in text.split("\n\n")]


def prose_losses(engine: Engine, intervention: Intervention = NOTHING) -> list[float]:
    """Loss of each passage (nats a token) under an intervention at all positions."""
    queries = []
    for passage in passages():
        ids = encode(engine.model, passage)
        queries.append(Query(ids[:1], ids[1:], intervention))
    return [-score.total / score.n_tokens for score in engine.score(queries, shared=0)]
