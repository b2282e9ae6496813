"""Probes: decision points, the conditions they are written in, and what is measured of them."""

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
