"""In-context induction on real transcripts: does a head look, from a candidate token, at the token after its match?

    … <turn> a0 a1 a2 a3 <end> …  observation  … <turn> a0 a1 a2
             s  s+1 s+2 s+3         the record      q0  q1 q2 q3       action positions; q_i predicts a_i

    transcript_induction   attention from q_i to s + i, the record's a_i: the token after the match of the token at q_i
    transcript_duplicate   attention from q_i to s + i − 1, the match itself: the record's copy of the token at q_i
    record_attention       attention from q_i to all of the record's a0 … an together

The first two are means over the action positions whose own token is the one before the record's a_i (from q1 on
always; q0, the end of the prompt, where the same token precedes both calls), the third is over all of them. Each is a
probability in [0, 1]; `transcript_induction` is `prefix_matching` of `mech.head_scores.induction` on real transcripts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mech.engine import reference
from mech.engine.capture import capture_hooks, everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.interventions.hooks import hooked

TRANSCRIPT_SCORES = ("transcript_induction", "transcript_duplicate", "record_attention")


def copy_in_record(query: Query, record: range) -> range:
    """The only place in the record (consecutive positions of the prompt) with the query's action, token for token.

    Raises:
        InputError: the record is outside the prompt, or has the action's tokens nowhere or more than once.
    """
    n = len(query.action)
    if not len(record) or record.step != 1 or record.start < 0 or record.stop > len(query.prompt):
        raise InputError(f"The record {record.start}-{record.stop - 1} is not inside the prompt.")
    places = [
        start
        for start in range(record.start, record.stop - n + 1)
        if query.prompt[start : start + n] == query.action
    ]
    if len(places) != 1:
        raise InputError(f"The record has the action's tokens {len(places)} times: expected once.")
    return range(places[0], places[0] + n)


def candidate_patterns(engine: Engine, query: Query, shared: int = 0) -> list[Float[Tensor, "head pos seq"]]:
    """Attention from the action positions, layer by layer; `shared` is the length of the prefix cache."""
    model = engine.model
    names = everything_names(model, "attn.hook_pattern")
    if not engine.slow:
        run = engine.run(query, names, shared)
        return [run.cache[name] for name in names]
    kept: dict[str, Tensor] = {}
    with hooked(model, capture_hooks(model, names, kept.__setitem__), fires=1):
        reference.full_forward(model, query)
    engine.forwards.ran += 1
    return [kept[name][0][:, list(query.candidate)] for name in names]


def transcript_scores(
    patterns: Sequence[Float[Tensor, "head pos seq"]], query: Query, copy: range
) -> pd.DataFrame:
    """Score every head on one transcript: layer, head, TRANSCRIPT_SCORES and n_positions (of the first two).

    `patterns` are those of `candidate_patterns`, `copy` is the place that `copy_in_record` gives.

    Raises:
        InputError: the copy has another length than the action or is not in the prompt; no action token has a match.
    """
    if len(copy) != len(query.action) or copy.stop > len(query.prompt):
        raise InputError("The record's copy of an action must have its length, and lie in the prompt.")
    tokens = query.tokens
    matched = [
        place
        for place, (position, key) in enumerate(zip(query.candidate, copy, strict=True))
        if key > 0 and tokens[position] == tokens[key - 1]
    ]
    if not matched:
        raise InputError(
            "No action token has a match in the record: it is one token, and another one precedes it."
        )
    after = [copy[place] for place in matched]
    before = [key - 1 for key in after]
    rows = []
    for layer, pattern in enumerate(patterns):
        wide = pattern.double()
        values = torch.stack(
            [
                wide[:, matched, after].mean(dim=-1),
                wide[:, matched, before].mean(dim=-1),
                wide[:, :, copy.start : copy.stop].sum(dim=-1).mean(dim=-1),
            ],
            dim=-1,
        )
        for head, found in enumerate(values.tolist()):
            scores = dict(zip(TRANSCRIPT_SCORES, found, strict=True))
            rows.append({"layer": layer, "head": head, **scores, "n_positions": len(matched)})
    return pd.DataFrame(rows)
