"""Mechanism: load a model through TransformerLens, score token sequences exactly, patch and ablate its heads.

from mech import Engine, Query, load_model
engine = Engine(load_model("smollm2-135m-q4"))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mech.lazy import lazily

if TYPE_CHECKING:
    from mech.decoding.decode import Decoding, Turn, decode
    from mech.decoding.kv_sequence import KVSequence
    from mech.engine.engine import Engine, Run
    from mech.engine.queries import Query, Score
    from mech.errors import InputError
    from mech.heads import Head, HeadSet
    from mech.interventions.intervention import (
        NOTHING,
        Edit,
        Intervention,
        Knockout,
        knock_out_edges,
        replace_heads,
        scale_heads,
    )
    from mech.interventions.persistent import PersistentIntervention
    from mech.interventions.sites import kv_head_of
    from mech.load import load_model
    from mech.models.model import Model
    from mech.patching.attribution import Attribution, attribute
    from mech.patching.patch import patch_heads, patch_sets

__all__ = [
    "NOTHING",
    "Attribution",
    "KVSequence",
    "Knockout",
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
    "PersistentIntervention",
    "Turn",
    "attribute",
    "knock_out_edges",
    "decode",
    "kv_head_of",
    "load_model",
    "patch_heads",
    "patch_sets",
    "replace_heads",
    "scale_heads",
]

_HOMES = {
    "Attribution": "mech.patching.attribution",
    "KVSequence": "mech.decoding.kv_sequence",
    "Knockout": "mech.interventions.intervention",
    "Decoding": "mech.decoding.decode",
    "Edit": "mech.interventions.intervention",
    "Engine": "mech.engine.engine",
    "Head": "mech.heads",
    "HeadSet": "mech.heads",
    "InputError": "mech.errors",
    "Intervention": "mech.interventions.intervention",
    "Model": "mech.models.model",
    "NOTHING": "mech.interventions.intervention",
    "Query": "mech.engine.queries",
    "Run": "mech.engine.engine",
    "Score": "mech.engine.queries",
    "PersistentIntervention": "mech.interventions.persistent",
    "Turn": "mech.decoding.decode",
    "attribute": "mech.patching.attribution",
    "knock_out_edges": "mech.interventions.intervention",
    "decode": "mech.decoding.decode",
    "kv_head_of": "mech.interventions.sites",
    "load_model": "mech.load",
    "patch_heads": "mech.patching.patch",
    "patch_sets": "mech.patching.patch",
    "replace_heads": "mech.interventions.intervention",
    "scale_heads": "mech.interventions.intervention",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
