"""Mechanism: load a model through TransformerLens, score token sequences exactly, patch and ablate its heads.

from mech import Engine, Query, load_model
engine = Engine(load_model("smollm2-135m-q4"))
"""

from mech.engine import Engine, Run
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions import NOTHING, Edit, Intervention, replace_heads, scale_heads
from mech.load import load_model
from mech.model import Model
from mech.patching import patch_heads, patch_sets
from mech.queries import Query, Score

__all__ = [
    "NOTHING",
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
    "load_model",
    "patch_heads",
    "patch_sets",
    "replace_heads",
    "scale_heads",
]
