"""Mechanism: load a model through TransformerLens, score token sequences exactly, patch and ablate its heads.

from mech import Engine, Query, load_model
engine = Engine(load_model("smollm2-135m-q4"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mech.lazy import lazily

if TYPE_CHECKING:
    from mech.attribution import Attribution, attribute
    from mech.chain import Chain
    from mech.decoding import Decoding, Turn, decode
    from mech.engine import Engine, Run
    from mech.errors import InputError
    from mech.heads import Head, HeadSet
    from mech.interventions import NOTHING, Cut, Edit, Intervention, cut_edges, replace_heads, scale_heads
    from mech.load import load_model
    from mech.model import Model
    from mech.patching import patch_heads, patch_sets
    from mech.queries import Query, Score
    from mech.sites import kv_head_of
    from mech.standing import Standing

__all__ = [
    "NOTHING",
    "Attribution",
    "Chain",
    "Cut",
    "Decoding",
    "Edit",
    "Engine",
    "Head",
    "HeadSet",
    "InputError",
    "Intervention",
    "Model",
    "Query",
    "Run",
    "Score",
    "Standing",
    "Turn",
    "attribute",
    "cut_edges",
    "decode",
    "kv_head_of",
    "load_model",
    "patch_heads",
    "patch_sets",
    "replace_heads",
    "scale_heads",
]

_HOMES = {
    "Attribution": "mech.attribution",
    "Chain": "mech.chain",
    "Cut": "mech.interventions",
    "Decoding": "mech.decoding",
    "Edit": "mech.interventions",
    "Engine": "mech.engine",
    "Head": "mech.heads",
    "HeadSet": "mech.heads",
    "InputError": "mech.errors",
    "Intervention": "mech.interventions",
    "Model": "mech.model",
    "NOTHING": "mech.interventions",
    "Query": "mech.queries",
    "Run": "mech.engine",
    "Score": "mech.queries",
    "Standing": "mech.standing",
    "Turn": "mech.decoding",
    "attribute": "mech.attribution",
    "cut_edges": "mech.interventions",
    "decode": "mech.decoding",
    "kv_head_of": "mech.sites",
    "load_model": "mech.load",
    "patch_heads": "mech.patching",
    "patch_sets": "mech.patching",
    "replace_heads": "mech.interventions",
    "scale_heads": "mech.interventions",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
