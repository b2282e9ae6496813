"""Probes: decision points, the conditions they are written in, and what is measured of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mech.lazy import lazily

if TYPE_CHECKING:
    from probes.coderepair_items import build_coderepair_items
    from probes.conditions import CONDITIONS, CORE, parse_conditions, render
    from probes.items import Item, balanced_subset, dump_items, load_items, select_items
    from probes.toolshed_items import build_toolshed_items
    from probes.wording import Wording, load_wording

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
    "CONDITIONS": "probes.conditions",
    "CORE": "probes.conditions",
    "Item": "probes.items",
    "Wording": "probes.wording",
    "balanced_subset": "probes.items",
    "build_coderepair_items": "probes.coderepair_items",
    "build_toolshed_items": "probes.toolshed_items",
    "dump_items": "probes.items",
    "load_items": "probes.items",
    "load_wording": "probes.wording",
    "parse_conditions": "probes.conditions",
    "render": "probes.conditions",
    "select_items": "probes.items",
}

__getattr__, __dir__ = lazily(__name__, _HOMES)
