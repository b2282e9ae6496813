"""What a study costs before it is run: questions asked, token nodes through the blocks, and from these time and memory.

    question   one log-probability of an action under one intervention: the reference path takes a hooked full forward
    node       one token through all blocks in a packed row (half of the blocks count half); a shared prefix once
    read       one position whose logits are taken: the unembedding is as large as a few blocks

Time is nodes and reads, each by its parameters, over the rate of one packed run that is timed here and now. Attention
grows with the context and is left out: it is small beside the matrix products for contexts of a thousand tokens.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.run.left_out import conditions_of
from experiments.run.session import Session
from mech.engine.engine import Engine
from mech.engine.packed import UNEMBED_ROWS
from mech.models.model import Model
from probes.items.item import Item
from probes.scoring.score import build_queries, run_decision_point, system_length


@dataclass(frozen=True)
class Work:
    """Questions, nodes and reads; works are added, and multiplied by a number of items."""

    questions: float = 0.0
    nodes: float = 0.0
    reads: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.questions + other.questions, self.nodes + other.nodes, self.reads + other.reads)

    def __mul__(self, times: float) -> Work:
        return Work(self.questions * times, self.nodes * times, self.reads * times)

    def seconds(self, model: Model, rate: float) -> float:
        """Time at a rate of parameters a second."""
        return (self.nodes * body_parameters(model) + self.reads * model.d_vocab * model.d_model) / rate


def leaves(tokens: float, copies: float, depth: float = 1.0) -> Work:
    """That many copies of an action of so many tokens, each through this share of the blocks."""
    return Work(copies, copies * tokens * depth, copies * tokens)


def context(tokens: float) -> Work:
    """Tokens of a prompt, whose logits nobody reads."""
    return Work(0.0, tokens, 0.0)


@dataclass(frozen=True)
class Sizes:
    """Mean token counts of a study's items, and the model's: contexts are counted after the shared system prompt.

    Attributes:
        n_items: items.
        system: the system prompt.
        failed: the failed call.
        gold: the reference action.
        contexts: condition → tokens.
        n_layers: blocks.
        n_heads: query heads of the model in all.
        n_kv_heads: key/value heads in all.
    """

    n_items: int
    system: float
    failed: float
    gold: float
    contexts: dict[str, float]
    n_layers: int
    n_heads: int
    n_kv_heads: int

    @property
    def half(self) -> float:
        """Mean share of the blocks that a copy entering at its own layer goes through."""
        return (self.n_layers + 1) / (2 * self.n_layers)


def sizes(session: Session, items: Sequence[Item], conditions: Sequence[str]) -> Sizes:
    """Token counts of these items under these conditions, of those that an item can be put under; nothing is run."""
    model = session.model
    system, failed, gold = 0.0, 0.0, 0.0
    lengths: dict[str, list[int]] = {name: [] for name in conditions}
    for item in items:
        head = system_length(model, item)
        system += head
        candidates = [one for one in ("failed", "gold") if one in item.candidates()]
        names = conditions_of(item, conditions)
        for scoring in build_queries(model, item, names, session.wording, candidates):
            n = len(scoring.query.action) / len(names)
            failed, gold = (failed + n, gold) if scoring.candidate == "failed" else (failed, gold + n)
            if scoring.candidate == "failed":
                lengths[scoring.condition].append(len(scoring.query.prompt) - head)
    count = len(items)
    return Sizes(
        count,
        system / count,
        failed / count,
        gold / count,
        {name: sum(found) / len(found) if found else 0.0 for name, found in lengths.items()},
        model.n_layers,
        model.n_layers * model.n_heads,
        model.n_layers * model.n_kv_heads,
    )


def body_parameters(model: Model) -> int:
    """Parameters that a node meets: all but the embedding and the unembedding."""
    embedding = model.d_vocab * model.d_model
    tied = bool(model.hf_config.tie_word_embeddings)
    return model.identity.n_parameters - embedding * (1 if tied else 2)


def rate_of(session: Session, item: Item) -> float:
    """Parameters a second of one run of an item over its system prompt; the faster of two after one for warmth."""
    model, engine = session.model, Engine(session.model)  # without a store: nothing may be read back
    found = []
    for _ in range(3):
        start = time.perf_counter()
        run = run_decision_point(engine, item, "neut", session.wording)
        took = time.perf_counter() - start
        own = len(run.query.tokens) - system_length(model, item)
        reads = len(run.query.action) * model.d_vocab * model.d_model
        found.append((own * body_parameters(model) + reads) / took)
    return max(found[1:])


def peak_bytes(model: Model, contexts: float, row: int) -> float:
    """Bytes of the weights, of a context's keys and values in a few prefix caches, and of one packed row at most."""
    size = model.dtype.itemsize
    weights = model.identity.n_parameters * size
    prefix_cache = 2 * model.n_layers * contexts * model.n_kv_heads * model.d_head * size
    scores = 3 * model.n_heads * row * (contexts + row) * size
    kept = model.n_layers * row * (2 * model.d_model + model.n_heads * model.d_head) * size
    logits = 3 * UNEMBED_ROWS * model.d_vocab * size
    return weights + 6 * prefix_cache + scores + kept + logits
