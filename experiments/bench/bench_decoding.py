"""The decoding part of `backfire bench`: an agent's turns, written by the chain and by transformers' own generation.

Both write greedily until the turn ends or 32 tokens are written, with a key/value cache, from the same prompts, nothing
of which is kept from before; the third line keeps the system prompt's keys and values, as rollouts do. Equal tokens are
a condition, not a result: two methods that write different turns cannot be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from experiments.bench.bench_timing import Method
from mech.decoding.decode import DRAFT, Decoding, Ends, decode
from mech.decoding.kv_sequence import KVSequence
from mech.engine.engine import Engine
from mech.engine.queries import token_logprobs
from mech.models.chat import render
from probes.items.item import Item
from probes.prompts import conditions
from probes.prompts.wording import Wording
from probes.scoring.score import system_length

CONDITIONS = ("pre", "fail")
N_NEW = 32
PART = "decoding"


def decoding_methods(engine: Engine, stock: Any, item: Item, wording: Wording) -> list[Method]:
    """The ways to write the turns that follow an item's context, before and after the failure."""
    model = engine.model
    prompts = [render(model, conditions.condition_messages(item, name, wording)).ids for name in CONDITIONS]
    system = prompts[0][: system_length(model, item)]
    ends = sorted(Ends(model).turn)
    written: list[tuple[int, ...]] = []

    def kv_sequence(draft: int, shared: int = 0) -> Mapping[str, float]:
        turns = [
            decode(
                KVSequence(model, engine.prefix_cache(prompt[:shared])), prompt, Decoding(N_NEW, draft=draft)
            )
            for prompt in prompts
        ]
        tokens = [(*turn.tokens, *(() if turn.end is None else (turn.end,))) for turn in turns]
        return _same(written, tokens, [sum(turn.logprobs) for turn in turns])

    def generate() -> Mapping[str, float]:
        tokens, sums = zip(*(_generated(stock, prompt, ends) for prompt in prompts), strict=True)
        return _same(written, tokens, sums)

    def ready() -> object:
        return engine.prefix_cache(system)

    ways: list[tuple[str, Callable[[], Mapping[str, float]]]] = [
        ("chain, guesses verified", lambda: kv_sequence(DRAFT)),
        ("chain, one token a forward", lambda: kv_sequence(0)),
        ("chain over a kept system prompt", lambda: kv_sequence(DRAFT, len(system))),
        ("transformers greedy, cache, SDPA", generate),
    ]
    return [Method(PART, name, work, ready) for name, work in ways]


def _generated(stock: Any, prompt: Sequence[int], ends: Sequence[int]) -> tuple[tuple[int, ...], float]:
    """What transformers writes, and its log-probability (nats)."""
    ids = torch.tensor([list(prompt)], device=stock.device)
    out = stock.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=N_NEW,
        do_sample=False,
        eos_token_id=list(ends),
        pad_token_id=ends[0],
        return_dict_in_generate=True,
        output_logits=True,
    )
    tokens = out.sequences[0, len(prompt) :]
    values, _ = token_logprobs(torch.cat(out.logits), tokens)
    return tuple(tokens.tolist()), float(values.double().sum())


def _same(
    written: list[tuple[int, ...]], tokens: Sequence[tuple[int, ...]], sums: Sequence[float]
) -> dict[str, float]:
    """The turns' log-probabilities by condition; RuntimeError where another method wrote other tokens."""
    if not written:
        written += tokens
    if list(tokens) != written:
        raise RuntimeError("Two ways of decoding wrote different turns: their times cannot be compared.")
    return dict(zip(CONDITIONS, sums, strict=True))
