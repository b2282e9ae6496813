"""`backfire bench`: how much faster the packed engine is than the usual ways, and how near the machine's limit.

    scoring    all core conditions x candidates of an item; the system prompt is in the cache of the first two already
               packed rows | sequential, prefix-cached SDPA (the paper's method) | full SDPA forwards
    sweep      noising of all heads one by one: neut, with z from pre; both runs it starts from are made already
               packed rows | one hooked full TransformerLens forward a head
    decoding   an agent's turns after an item's context (`experiments.bench.bench_decoding`)
    rate       one large matrix product

Operations are multiplications and additions that the work cannot do without:

    a token in a layer    2 · (entries of the layer's matrices)  +  4 · n_heads · d_head · (keys it sees)
    a position read       2 · d_model · d_vocab

Keys are the prefix cache, the ancestors and the token itself; the factor 4 is the scores and the weighted values. A
token's keys that a row computes and masks, norms, rotations, softmaxes and the prefix cache itself are not counted.
Sliding layers count as full ones.

All in one run, interleaved (`experiments.bench.bench_timing`). The slow methods are timed on a part of the work and
scaled, and marked so. Rendering and tokenising are done beforehand for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any

import torch

from experiments.bench.bench_decoding import decoding_methods
from experiments.bench.bench_methods import PrefixCached, full_forwards, load_stock
from experiments.bench.bench_timing import RATE, Method, compare, report_text, spread, turns
from experiments.run.item_pools import checkpoint_cache, read_pool
from experiments.run.progress import progress
from experiments.run.session import open_model, open_run, read_items, read_wording
from experiments.run.study import (
    Flag,
    ItemOptions,
    ModelOptions,
    OutOptions,
    Report,
    Study,
    positive,
)
from mech.engine import reference
from mech.engine.engine import Engine, Run
from mech.engine.packed import insert
from mech.engine.queries import Query, Score
from mech.engine.sweep import stacked
from mech.engine.trie import Trie, common_prefix
from mech.heads import Head, HeadSet
from mech.models.model import Model
from mech.patching.patch import all_heads, patch_heads, patched_query
from probes.items.item import Item, select_items
from probes.prompts.conditions import parse_conditions
from probes.prompts.wording import Wording
from probes.scoring.score import build_queries, run_decision_point, system_length

SIDE = 2048
"""Rows and columns of the matrices that tell the machine's rate."""


@dataclass(frozen=True, kw_only=True)
class BenchConfig(OutOptions, ItemOptions, ModelOptions):
    """What `backfire bench` is given."""

    limit: Annotated[int | None, Flag("take a balanced sample of this many items", positive)] = 2
    repeats: Annotated[int, Flag("rounds; the median of a method's times counts", positive)] = 2
    sample_full: Annotated[int, Flag("sequences an item timed without a cache, scaled to all", positive)] = 5
    sweep_id: Annotated[str | None, Flag("item of the head sweep; by default the first")] = None
    sample_heads: Annotated[int, Flag("heads timed by hooked full forwards, scaled to all", positive)] = 4


def run(config: BenchConfig) -> Report:
    """Take the methods in turns, compare them, and with --out write bench.csv."""
    items = read_items(config)
    swept = select_items(read_pool(config), [config.sweep_id])[0] if config.sweep_id else items[0]
    wording = read_wording(config)
    model = open_model(config, wording)
    engine = Engine(model)  # without a cache folder: what is read back was not computed
    stock = load_stock(model, checkpoint_cache())
    cached = PrefixCached(stock)
    units = [scoring_methods(engine, stock, cached, item, wording, config.sample_full) for item in items]
    recipient, donor = (run_decision_point(engine, swept, name, wording) for name in ("neut", "pre"))
    units += [decoding_methods(engine, stock, item, wording) for item in items]
    units += [sweep_methods(engine, recipient, donor, config.sample_heads), [rate_method(model)]]
    rounds = [unit for _ in range(config.repeats) for unit in enumerate(units)]
    table = compare(turns(progress(rounds, len(rounds), "bench", config.quiet), perf_counter))
    if config.out is not None:
        about = {"item_ids": [item.item_id for item in items], "swept": swept.item_id}
        with open_run(STUDY, config, model, {**about, "wording_sha256": wording.sha256}) as folder:
            folder.write_table("bench", table)
            folder.finish()
    n_tokens, n_action = len(recipient.query.tokens), len(recipient.query.action)
    titles = {
        "scoring": f"scoring an item: 5 conditions x 4 candidates, mean of {len(items)} items",
        "decoding": f"two turns of at most 32 tokens an item, mean of {len(items)} items",
        "sweep": f"sweep of {len(all_heads(model))} heads: {n_tokens} tokens, {n_action} of them patched",
    }
    how = (
        f"median of {config.repeats} rounds, {torch.get_num_threads()} threads, {model.dtype}, {model.device}"
    )
    return Report(f"{report_text(table, titles)}\n{how}")


def scoring_methods(
    engine: Engine, stock: Any, cached: PrefixCached, item: Item, wording: Wording, sample: int
) -> list[Method]:
    """The ways to score an item under the core conditions; `sample` sequences without a cache."""
    model = engine.model
    questions = build_queries(model, item, parse_conditions("core"), wording)
    queries = [scoring.query for scoring in questions]
    names = [f"{scoring.condition}|{scoring.candidate}" for scoring in questions]
    shared = min(system_length(model, item), common_prefix([query.prompt[:-1] for query in queries]))
    system = queries[0].prompt[:shared]
    some = spread(range(len(queries)), sample)

    def packed() -> Mapping[str, float]:
        return _totals(names, engine.score(queries, shared))

    def sequential() -> Mapping[str, float]:
        return _totals(names, cached.score(queries))

    def full() -> Mapping[str, float]:
        return _totals([names[i] for i in some], full_forwards(stock, [queries[i] for i in some]))

    flop = scoring_flop(model, queries, shared)
    return [
        Method("scoring", "packed rows", packed, lambda: engine.prefix_cache(system), flop=flop),
        Method("scoring", "sequential, prefix-cached SDPA", sequential, lambda: cached.warm(system)),
        Method("scoring", "full SDPA forwards", full, done=len(some), of=len(queries)),
    ]


def sweep_methods(engine: Engine, recipient: Run, donor: Run, sample: int) -> list[Method]:
    """The ways to patch every head of the recipient from the donor; `sample` heads by hooked full forwards."""
    model = engine.model
    heads = list(all_heads(model))
    some = spread(heads, sample)
    z = stacked(donor, model, "attn.hook_z")

    def packed() -> Mapping[str, float]:
        scores = patch_heads(engine, recipient, donor)
        return _totals([str(head) for head in scores], list(scores.values()))

    def hooked() -> Mapping[str, float]:
        queries = [patched_query(recipient, HeadSet([head]), z) for head in some]
        return _totals([str(head) for head in some], reference.score(model, queries))

    flop = sweep_flop(model, recipient.query, heads)
    return [
        Method("sweep", "packed rows", packed, flop=flop),
        Method("sweep", "hooked full forward a head", hooked, done=len(some), of=len(heads)),
    ]


def rate_method(model: Model) -> Method:
    """One matrix product in the model's precision, into memory that is there already."""
    left, right, out = (torch.ones(SIDE, SIDE, dtype=model.dtype, device=model.device) for _ in range(3))

    def product() -> Mapping[str, float]:
        torch.mm(left, right, out=out)
        return {"entry": float(out[0, 0])}  # read, so that a device that works on its own has finished

    return Method(RATE, f"{SIDE} x {SIDE} matrix product", product, product, flop=2 * SIDE**3)


def matrix_entries(model: Model, layer: int) -> int:
    """Entries of a block's weight matrices (biases and norms have one axis and are not counted)."""
    block = model.bridge.blocks[layer].original_component
    return sum(parameter.numel() for parameter in block.parameters() if parameter.ndim == 2)


def layer_flop(model: Model, layer: int, positions: Iterable[int]) -> int:
    """One layer for tokens at these positions (from 0) of their own sequences."""
    linear = 2 * matrix_entries(model, layer)
    return sum(linear + 4 * model.n_heads * model.d_head * (position + 1) for position in positions)


def read_flop(model: Model, n_positions: int) -> int:
    """The unembedding of so many positions."""
    return 2 * model.d_model * model.d_vocab * n_positions


def scoring_flop(model: Model, queries: Sequence[Query], shared: int) -> int:
    """Scoring these queries over the cache of their first `shared` tokens: each distinct token once, each read once."""
    trie = Trie(shared)
    read: set[int] = set()
    for query in queries:
        path = insert(trie, query)
        read.update(path[position - shared] for position in query.candidate)
    layers = sum(layer_flop(model, layer, trie.depths) for layer in range(model.n_layers))
    return layers + read_flop(model, len(read))


def sweep_flop(model: Model, query: Query, heads: Iterable[Head]) -> int:
    """Patching one head after another: the action positions from the head's own layer on, then read."""
    layers = [layer_flop(model, layer, query.candidate) for layer in range(model.n_layers)]
    read = read_flop(model, len(query.action))
    return sum(sum(layers[head.layer :]) + read for head in heads)


def _totals(names: Sequence[str], scores: Sequence[Score]) -> dict[str, float]:
    return {name: score.total for name, score in zip(names, scores, strict=True)}


STUDY = Study(
    "bench",
    "backfire bench --limit 2 --repeats 2",
    BenchConfig,
    run,
)
