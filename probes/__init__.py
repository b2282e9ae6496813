"""Probes: decision points, the conditions they are written in, and what is measured of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mech.lazy import lazily

if TYPE_CHECKING:
    from probes.items.coderepair import build_coderepair_items
    from probes.items.item import Item, balanced_subset, dump_items, load_items, select_items
    from probes.items.toolshed import build_toolshed_items
    from probes.prompts.conditions import CONDITIONS, CORE, parse_conditions, render
    from probes.prompts.wording import Wording, load_wording

__all__ = [
    "CONDITIONS",
    "CORE",
    "Item",
    "Wording",
    "balanced_subset",
    "build_coderepair_items",
    "build_toolshed_items",
    "dump_items",
    "load_items",
    "load_wording",
    "parse_conditions",
    "render",
    "select_items",
]

_HOMES = {
    "CONDITIONS": "probes.prompts.conditions",
    "CORE": "probes.prompts.conditions",
    "Item": "probes.items.item",
    "Wording": "probes.prompts.wording",
    "balanced_subset": "probes.items.item",
    "build_coderepair_items": "probes.items.coderepair",
    "build_toolshed_items": "probes.items.toolshed",
    "dump_items": "probes.items.item",
    "load_items": "probes.items.item",
    "load_wording": "probes.prompts.wording",
    "parse_conditions": "probes.prompts.conditions",
    "render": "probes.prompts.conditions",
    "select_items": "probes.items.item",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
