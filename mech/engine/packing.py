"""Where a query's edits and knockouts land in a packed row, and which nodes it may share with other queries.

    position    0 1 2 3 | 4 5 6 7 8        prefix cache | row: the prefix cache ends before the first position that is
                edited
    tag                   - - e e ef       e acts from position 6 on, f from 8 on: a node carries all that has begun

Two queries share a node when they share its parent, its token and its tag: everything that was edited before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

import numpy as np
import torch

from mech.engine.layout import slides, sliding_window
from mech.engine.queries import Query
from mech.engine.trie import Trie
from mech.interventions.edits import Edit, Knockout
from mech.interventions.hooks import EditLocation
from mech.interventions.intervention import Intervention
from mech.interventions.sites import require_fit
from mech.models.model import Model


def tagged(query: Query, prefix_length: int) -> list[tuple[int, str]]:
    """The query's tokens after the prefix, each with a tag of all local edits that have begun at its position."""
    starts: dict[int, list[Edit | Knockout]] = {}
    for edit in query.intervention.local.edits:
        starts.setdefault(query.positions(edit)[0], []).append(edit)
    begun: list[Edit | Knockout] = []
    tag, out = "", []
    for position in range(prefix_length, len(query.tokens)):
        if position in starts:
            begun += starts[position]
            tag = Intervention(tuple(begun)).fingerprint
        out.append((query.tokens[position], tag))
    return out


def insert(trie: Trie, query: Query) -> tuple[int, ...]:
    """Add a query's sequence after the prefix; copies under other edits part at the first position edited otherwise."""
    below = tagged(query, trie.prefix_length)
    return trie.insert([token for token, _ in below], [tag for _, tag in below])


def place(
    model: Model,
    query: Query,
    path: Sequence[int],
    prefix_length: int,
    placed: AbstractSet[int] = frozenset(),
) -> list[EditLocation]:
    """Where a query's local edits act in a row: the nodes of their positions, less those `placed` by another query.

    Two actions under one intervention share the nodes of their common beginning; scaling those twice would be wrong.

    Args:
        model: for the device.
        query: its local edits are placed; those at all positions need no place.
        path: the query's nodes below the prefix cache.
        prefix_length: no longer than `query.untouched`.
        placed: all nodes of the paths that were placed before.
    """
    locations = []
    for edit in query.intervention.local.edits:
        if isinstance(edit, Knockout) and not _cuts(model, query, edit):
            require_fit(model, edit)
            continue
        nodes = [path[position - prefix_length] for position in query.positions(edit)]
        own = [at for at, node in enumerate(nodes) if node not in placed]
        if not own:
            continue
        rows = torch.tensor([nodes[at] for at in own], dtype=torch.long, device=model.device)
        columns = None
        if isinstance(edit, Knockout):
            # The row's columns come after the prefix cache's; a source is in one or the other.
            seen = [
                at if at < prefix_length else prefix_length + path[at - prefix_length] for at in edit.sources
            ]
            columns = torch.tensor(seen, dtype=torch.long, device=model.device)
        elif edit.value is not None and edit.value.ndim == 2:
            where = tuple(edit.where[at] for at in own) if isinstance(edit.where, tuple) else edit.where
            edit = replace(edit, where=where, value=edit.value[own])
        locations.append(EditLocation(edit, rows, columns))
    return locations


def _cuts(model: Model, query: Query, edit: Knockout) -> bool:
    """Whether one of the edges exists: those to later positions or out of a sliding window are masked anyway."""
    distances = np.subtract.outer(np.asarray(query.positions(edit)), np.asarray(edit.sources))
    window = sliding_window(model) if 0 <= edit.layer < model.n_layers and slides(model, edit.layer) else None
    return bool(((distances >= 0) & (distances < (window or np.inf))).any())


def within(
    locations: Sequence[EditLocation], start: int, stop: int, prefix_length: int
) -> list[EditLocation]:
    """What of these locations acts on the nodes from `start` to `stop`, when only those are run, after those before."""
    here = []
    for location in locations:
        edit, rows, columns = location.edit, location.rows, location.columns
        if rows is not None:
            own = ((rows >= start) & (rows < stop)).nonzero()[:, 0]
            if not len(own):
                continue
            rows = rows[own] - start
            if isinstance(edit, Edit) and edit.value is not None and edit.value.ndim == 2:
                where = (
                    tuple(edit.where[at] for at in own.tolist())
                    if isinstance(edit.where, tuple)
                    else edit.where
                )
                edit = replace(edit, where=where, value=edit.value[own])
            if columns is not None:
                columns = columns[columns < prefix_length + stop]
        here.append(EditLocation(edit, rows, columns))
    return here


def batches(queries: Sequence[Query], prefix_length: int, max_nodes: int) -> list[list[int]]:
    """Indices of consecutive queries whose trie stays within `max_nodes`; one query alone may exceed it."""
    groups: list[list[int]] = []
    trie = Trie(prefix_length)
    for index, query in enumerate(queries):
        insert(trie, query)
        if not groups or len(trie) > max_nodes:
            trie = Trie(prefix_length)
            insert(trie, query)
            groups.append([])
        groups[-1].append(index)
    return groups
