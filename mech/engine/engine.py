"""The engine: scores and activations of token sequences, shared prefixes computed once, kept runs not run again.

engine = Engine(load_model("smollm2-135m-q4"))
run = engine.run(Query(prompt, action), keep=["blocks.18.attn.hook_z"])
run.score.total                          # log p(action | prompt), nats
run.cache["blocks.18.attn.hook_z"]       # [n action tokens, n_heads, d_head] at the action positions
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.capture import shape_rows
from mech.engine.memory import MemoryBound
from mech.engine.packing import batches
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import ForwardCounter, Query, Run, Score
from mech.engine.store import Store
from mech.engine.trie import Trie, common_prefix
from mech.errors import InputError
from mech.interventions.edits import Site
from mech.interventions.intervention import NOTHING, Intervention
from mech.interventions.site_check import CHECKED_AT_LOAD, require_causal
from mech.models.model import Model

__all__ = ["MAX_NODES", "Engine", "ForwardCounter", "Run"]

MAX_NODES = 640
"""Nodes in one forward of a packed row: more share the matrix products no better, and take more memory."""
ROW_NODES = 16_384
"""Nodes in one packed row, whose keys and values stay in memory until it is read."""

KEPT_PREFIXES = 4
KEPT_BYTES = 500_000_000
"""Prefix caches that stay in memory: so many, and more while they fit. An ablation at all positions has its own.
Under a bound on memory the one in use stays, and others while they fit."""


@dataclass
class Engine:
    """Answers queries about one model; the only state is what may be kept: prefix caches in memory, runs in a store.

    Attributes:
        model: the model.
        cache_dir: folder for kept runs, or None to keep nothing on disk.
        slow: answer scores by the reference path (one hooked full forward each).
        forwards: forwards run and saved so far.
        memory: bytes that the process may take in all, weights included (`mech.engine.memory`); None for no bound.

    Raises:
        InputError: the bound on memory holds no forward, not even without a context.
    """

    model: Model
    cache_dir: Path | None = None
    slow: bool = False
    forwards: ForwardCounter = field(default_factory=ForwardCounter)
    memory: int | None = None
    _prefixes: dict[tuple[tuple[int, ...], str], PrefixCache] = field(default_factory=dict)
    _sites: set[Site] = field(default_factory=lambda: set(CHECKED_AT_LOAD))

    def __post_init__(self) -> None:
        """Refuse a bound on memory that no context can meet before anything is run."""
        self.forward_nodes(0, MAX_NODES)

    @property
    def store(self) -> Store | None:
        """The disk store of this model in this precision, if a folder was given."""
        if self.cache_dir is None:
            return None
        return Store(
            self.cache_dir,
            {
                "model_sha256": self.model.identity.sha256,
                "dtype": str(self.model.dtype),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "transformer_lens": version("transformer-lens"),
            },
        )

    def prefix_cache(self, tokens: Sequence[int], intervention: Intervention = NOTHING) -> PrefixCache:
        """Keys and values of a prefix under the intervention's all-position edits; those used last stay in memory."""
        everywhere = intervention.everywhere
        key = (tuple(tokens), everywhere.fingerprint)
        if key in self._prefixes:
            self._prefixes[key] = self._prefixes.pop(key)  # used last
            return self._prefixes[key]
        if not tokens:
            return PrefixCache(*key)
        about = {"tokens": _hash(key[0]), "intervention": key[1]}
        kept = self._get("prefix cache", about)
        if kept is not None:
            self.forwards.saved += 1
            prefix_cache = PrefixCache(*key, self._layers(kept, "keys"), self._layers(kept, "values"))
        else:
            self.forwards.ran += 1
            nodes = None if self.memory is None else self.forward_nodes(len(tokens), len(tokens))
            prefix_cache = packed.grow(self.model, PrefixCache((), key[1]), key[0], everywhere, nodes)
            self._put("prefix cache", about, _named(keys=prefix_cache.keys, values=prefix_cache.values))
        self._prefixes[key] = prefix_cache
        fewest, most = (
            (KEPT_PREFIXES, KEPT_BYTES) if self.memory is None else (1, min(KEPT_BYTES, self._bound.quarter))
        )
        while len(self._prefixes) > fewest and sum(map(_bytes, self._prefixes.values())) > most:
            self._prefixes.pop(next(iter(self._prefixes)))
        return prefix_cache

    @property
    def _bound(self) -> MemoryBound:
        return MemoryBound(self.model, self.memory)

    def forward_nodes(self, context: int, most: int) -> int:
        """How many nodes over a context of so many tokens one forward may have, at most `most`; InputError for none."""
        return self._bound.forward_nodes(context, most)

    def require_sites(self, sites: Iterable[Site]) -> None:
        """Make sure, once an engine, that a change at these sites moves the logits; `score` and `run` do it themselves.

        Raises:
            InputError: the model has no such site, or does not compute with it.
        """
        new = set(sites) - self._sites
        require_causal(self.model, sorted(new))
        self._sites |= new

    def score(self, queries: Sequence[Query], shared: int | None = None) -> list[Score]:
        """Score queries, packed over the prefix they share.

        Args:
            queries: any; those under one all-position intervention share a row.
            shared: length of the prefix kept as prefix cache; None takes the longest that all prompts share and that
                no edit at given positions touches. Giving it makes the arithmetic independent of which other queries
                came before (rows are then bit-identical).

        Raises:
            InputError: `shared` is longer than that, a query longer than the model's positions, or an edit's site
                does not feed the computation.
            FloatingPointError: a logit is not finite.
        """
        self.model.require_room(max((len(query.tokens) for query in queries), default=0))
        about = {
            "queries": _hash(query.key for query in queries),
            "shared": str(shared),
            "slow": str(self.slow),
        }
        kept = self._get("scores", about)
        if kept is not None:
            self.forwards.saved += int(kept["forwards"])
            return [
                Score(kept[f"logprobs.{i}"].numpy(), kept[f"argmax.{i}"].numpy()) for i in range(len(queries))
            ]
        self.require_sites(_sites(queries))
        before = self.forwards.ran
        scores = self._score_slowly(queries) if self.slow else self._score_packed(queries, shared)
        named = {f"logprobs.{i}": torch.from_numpy(score.logprobs) for i, score in enumerate(scores)}
        named.update({f"argmax.{i}": torch.from_numpy(score.argmax) for i, score in enumerate(scores)})
        named["forwards"] = torch.tensor(self.forwards.ran - before)
        self._put("scores", about, named)
        return scores

    def _score_slowly(self, queries: Sequence[Query]) -> list[Score]:
        self.forwards.ran += len(queries)
        return reference.score(self.model, queries)

    def _score_packed(self, queries: Sequence[Query], shared: int | None) -> list[Score]:
        groups: dict[str, list[int]] = {}
        for index, query in enumerate(queries):
            groups.setdefault(query.intervention.everywhere.fingerprint, []).append(index)
        nodes = self.forward_nodes(max((len(query.tokens) for query in queries), default=0), MAX_NODES)
        scores: dict[int, Score] = {}
        for members in groups.values():
            chosen = [queries[index] for index in members]
            prefix_cache = self.prefix_cache(
                chosen[0].tokens[: self._shared(chosen, shared)], chosen[0].intervention
            )
            # Where edges are knocked out, every node of a row has a score for every other: such a row is one forward.
            eager = any(
                len(query.intervention.without_knockouts) < len(query.intervention.edits) for query in chosen
            )
            for batch in batches(
                chosen, len(prefix_cache), nodes if eager else self._bound.row_nodes(ROW_NODES)
            ):
                row = [chosen[i] for i in batch]
                answers, forwards = packed.run_scores(self.model, row, prefix_cache, nodes)
                self.forwards.ran += forwards
                scores.update({members[i]: answer for i, answer in zip(batch, answers, strict=True)})
        return [scores[index] for index in range(len(queries))]

    def run(
        self,
        query: Query,
        keep: Sequence[str] = (),
        shared: int = 0,
        at: Mapping[str, Sequence[int]] | None = None,
    ) -> Run:
        """Run one query alone and keep named activations; a kept run is read back instead of run.

        Args:
            query: the question.
            keep: TransformerLens hook names, such as "blocks.18.attn.hook_z".
            shared: length of the prefix taken from a prefix cache (positions in it cannot be kept).
            at: further position sets by name, absolute positions in the sequence; "candidate" is always kept.

        Raises:
            InputError: an unknown hook name, a position inside the shared prefix or beyond the sequence, an edit
                inside the shared prefix, or of a site that does not feed the computation.
        """
        sets = {name: list(where) for name, where in (at or {}).items()}
        if "candidate" in sets or shared < 0:
            raise InputError(
                "The action positions follow from the query, and a shared length is not negative."
            )
        self.model.require_room(len(query.tokens))
        sets["candidate"] = list(query.candidate)
        for name, where in sets.items():
            if where and (min(where) < shared or max(where) >= len(query.tokens)):
                raise InputError(
                    f"The {name} positions lie outside the {shared}-{len(query.tokens) - 1} that this run has."
                )
        if shared > query.untouched:
            raise InputError(_touched(query.untouched, shared))
        about = {
            "query": query.key,
            "shared": str(shared),
            "at": _hash(sorted((n, *w) for n, w in sets.items())),
        }
        kept = self._get("run", about)
        lacking = [name for name in keep if kept is None or f"{name}|candidate" not in kept]
        if kept is None or lacking:
            kept = {**(kept or {}), **self._run_alone(query, lacking, shared, sets)}
            self._put("run", about, kept)
        else:
            self.forwards.saved += 1
        return self._as_run(query, kept, keep, shared, sets)

    def _run_alone(
        self, query: Query, keep: Sequence[str], shared: int, sets: Mapping[str, Sequence[int]]
    ) -> dict[str, Tensor]:
        """One sequence over the prefix cache; everything it leaves, by name, ready to be stored."""
        self.require_sites(_sites([query]))
        prefix_cache = self.prefix_cache(query.tokens[:shared], query.intervention)
        trie = Trie(len(prefix_cache))
        path = packed.insert(trie, query)
        locations = [packed.EditLocation(edit, None) for edit in query.intervention.everywhere.edits]
        locations += packed.place(self.model, query, path, shared)
        done = packed.run_row(self.model, trie, prefix_cache, locations, keep)
        self.forwards.ran += 1
        nodes = [path[position - shared] for position in query.candidate]
        [score] = packed.read_scores(self.model, done.resid, [nodes], [query.action])
        frozen = query.untouched - shared
        out = {"logprobs": torch.from_numpy(score.logprobs), "argmax": torch.from_numpy(score.argmax)}
        out |= _named(
            keys=[k[:, :, :frozen] for k in done.keys], values=[v[:, :, :frozen] for v in done.values]
        )
        for name, activation in done.kept.items():
            for label, where in sets.items():
                rows = [position - shared for position in where]
                seen = [range(position + 1) for position in where]
                out[f"{name}|{label}"] = shape_rows(
                    self.model, name, activation, rows, seen, len(query.tokens)
                )
        return out

    def _as_run(
        self,
        query: Query,
        kept: Mapping[str, Tensor],
        keep: Sequence[str],
        shared: int,
        sets: Mapping[str, Sequence[int]],
    ) -> Run:
        base = self.prefix_cache(query.tokens[:shared], query.intervention)
        tokens = query.prompt[shared : query.untouched]
        prefix_cache = base.extend(tokens, self._layers(kept, "keys"), self._layers(kept, "values"))
        caches = {
            label: {name: kept[f"{name}|{label}"].to(self.model.device) for name in keep} for label in sets
        }
        score = Score(kept["logprobs"].numpy(), kept["argmax"].numpy())
        return Run(query, score, caches["candidate"], caches, prefix_cache)

    def _get(self, kind: str, about: Mapping[str, str]) -> dict[str, Tensor] | None:
        return self.store.get(kind, about) if self.store is not None else None

    def _put(self, kind: str, about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> None:
        if self.store is not None:
            self.store.put(kind, about, tensors)

    def _layers(self, kept: Mapping[str, Tensor], name: str) -> tuple[Tensor, ...]:
        return tuple(kept[f"{name}.{layer}"].to(self.model.device) for layer in range(self.model.n_layers))

    @staticmethod
    def _shared(queries: Sequence[Query], shared: int | None) -> int:
        longest = common_prefix([query.prompt[:-1] for query in queries])
        untouched = min(query.untouched for query in queries)
        if shared is None:
            return min(longest, untouched)
        if not 0 <= shared <= longest:
            raise InputError(f"These queries share {longest} tokens, not {shared}.")
        if shared > untouched:
            raise InputError(_touched(untouched, shared))
        return shared


def _sites(queries: Sequence[Query]) -> set[Site]:
    return {edit.site for query in queries for edit in query.intervention.without_knockouts}


def _bytes(prefix_cache: PrefixCache) -> int:
    return sum(tensor.nbytes for tensor in (*prefix_cache.keys, *prefix_cache.values))


def _touched(untouched: int, shared: int) -> str:
    return f"An edit acts from position {untouched} on: {shared} tokens cannot be shared under it."


def _named(**stacks: Sequence[Tensor]) -> dict[str, Tensor]:
    return {f"{name}.{i}": tensor for name, stack in stacks.items() for i, tensor in enumerate(stack)}


def _hash(values: Iterable[object]) -> str:
    return hashlib.sha256(repr(tuple(values)).encode()).hexdigest()
