"""Cases for edits of every site at every kind of place, and for knockouts."""

from __future__ import annotations

from mech.heads import HeadSet
from mech.interventions.edits import HEAD_SITES, SITES, Site, Where
from mech.interventions.intervention import Edit, Intervention, knock_out_edges, replace_heads, scale_heads
from mech.models.model import Model
from mech.patching.patch import all_heads
from tests.mech_cases import ACTION, HEADS, LEFT, STEM, noise

# In the shared beginning, behind it, at the last prompt token and inside the action.
PLACES = (9, 14, len(STEM) + 2, len(LEFT) - 1, len(LEFT) + 1)
RECORD = tuple(range(4, 9))
WHERES: dict[str, Where] = {"all": "all", "candidate": "candidate", "given": PLACES}


def site_edits(model: Model, where: Where, by_position: bool = True) -> dict[Site, Intervention]:
    """One intervention a site: two heads, or the middle layer's whole activation, replaced by noise."""
    n = len(ACTION) if where == "candidate" else len(where)
    rows = () if where == "all" or not by_position else (n,)
    found: dict[Site, Intervention] = {}
    for seed, site in enumerate(SITES):
        if site in HEAD_SITES:
            targets = [(0, 1), (1, 0)]
        else:
            targets = [(1, None)]
        width = model.d_head if site in HEAD_SITES else model.d_model
        value = noise(model, *rows, width, seed=seed)
        found[site] = Intervention(tuple(Edit(site, layer, head, where, value) for layer, head in targets))
    return found


def knockouts(model: Model) -> dict[str, Intervention]:
    """Cuts of every kind, alone and with edits."""
    everything, late = all_heads(model), tuple(range(25, 33))
    z = noise(model, model.n_layers, len(ACTION), model.n_heads, model.d_head)
    return {
        "all heads": knock_out_edges(everything, RECORD),
        "some heads": knock_out_edges(HEADS, RECORD),
        "near sources, behind the shared beginning": knock_out_edges(HEADS, range(30, 34)),
        "given destinations": knock_out_edges(everything, RECORD, late),
        "destinations from the sources on": knock_out_edges(HEADS, RECORD, tuple(range(6, len(LEFT)))),
        "under an ablation": scale_heads(HEADS, 0.3, "all") + knock_out_edges(everything, RECORD),
        "with patched heads": replace_heads(HEADS, z, "candidate") + knock_out_edges(everything, RECORD),
        "two knockouts that overlap": knock_out_edges(everything, RECORD)
        + knock_out_edges(HEADS, range(6, 20), late),
        "with an edit at the record": scale_heads(HeadSet(list(HEADS)[:1]), 0.0, RECORD)
        + knock_out_edges(HEADS, RECORD),
    }


KNOCKOUTS = (
    "all heads",
    "some heads",
    "near sources, behind the shared beginning",
    "given destinations",
    "destinations from the sources on",
    "under an ablation",
    "with patched heads",
    "two knockouts that overlap",
    "with an edit at the record",
)
"""The names that `knockouts` gives."""
