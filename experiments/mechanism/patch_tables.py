"""The tables of `backfire patch`, from all rows of a folder: every site, place and pair of conditions by itself.

patch_effects.csv and patch_sets.csv (parts and sets by item); patch.csv and patch_redundancy.csv (over items). Each
line says its metric, site, at, from and to. `head` counts query heads and is empty for keys and values, whose
`kv_head` is given, and for layers.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pandas as pd

from experiments.run.durable import naming, parse_rows
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session
from mech.errors import InputError
from mech.heads import HeadSet
from mech.patching.patch import Part, parts_of_heads
from probes.effects.shares import head_shares, item_shares, redundancy
from probes.scoring.metric_sums import by_metric, metrics_by_part, metrics_of
from probes.stats.bootstrap import RngFactory

GROUP = ("site", "at", "from", "to")
Group = tuple[str, str, str, str]
_PART = re.compile(r"L(\d+)(?:(H|KV)(\d+))?")
DEFAULT = ("z", "candidate", "pre", "neut")


def parse_part(text: str) -> Part:
    """Read L18H6, L18KV2 or L18 as `Part` prints them; InputError for anything else."""
    found = _PART.fullmatch(text)
    if found is None:
        raise InputError(f"'{text}' is no part of a model: L18H6, L18KV2 or L18 is.")
    number = None if found[3] is None else int(found[3])
    return Part(int(found[1]), number if found[2] == "H" else None, number if found[2] == "KV" else None)


def long_effects(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a metric and patch: layer and head (or key/value head) of a part, or a joint `set`."""
    lines = []
    for row in rows.to_dict("records"):
        deltas = metrics_of(row["n_tokens"], row["delta"])
        heads, sets = (metrics_by_part(row["n_tokens"], row[kind]) for kind in ("heads", "sets"))
        for metric, delta in deltas.items():
            known = [row["item_id"], row["task_id"], row["direction"], metric, delta]
            for name, effect in heads[metric].items():
                part = parse_part(name)
                lines.append([*known, part.layer, _number(part), None, effect])
            lines += [[*known, None, None, name, effect] for name, effect in sets[metric].items()]
    columns = ["item_id", "task_id", "direction", "metric", "delta", "layer", "head", "set", "effect_nats"]
    return pd.DataFrame(lines, columns=columns)


def z_effects(path: Path, source: str, target: str) -> pd.DataFrame:
    """Effects of single heads on TARGET less SOURCE, z patched at the action positions, from a folder's rows.

    One line a metric, item, direction and head, with `delta`, the difference itself.

    Raises:
        InputError: nothing was patched there, or not this.
    """
    file = path / "patch.jsonl"
    rows = pd.DataFrame(parse_rows(file)[0]) if file.is_file() else pd.DataFrame()
    if rows.empty:
        raise InputError(f"There are no patches in {path}: run `backfire patch --out {path}` first.")
    for column, value in zip(GROUP, ("z", "candidate", source, target), strict=True):
        rows = rows[rows[column] == value]
    if rows.empty:
        raise InputError(
            f"The patches in {path} are not from {source} to {target}: run `backfire patch` so first."
        )
    with naming(file):
        long = long_effects(rows)
    return long[long["set"].isna()].drop(columns="set").astype({"layer": int, "head": int})


def effects_tables(folder: RunFolder, session: Session) -> dict[str, pd.DataFrame]:
    """The four tables, of all patches that the folder holds.

    Raises:
        InputError: a row of patch.jsonl is damaged.
    """
    with naming(folder.path / "patch.jsonl"):
        return _effects_tables(folder, session)


def _effects_tables(folder: RunFolder, session: Session) -> dict[str, pd.DataFrame]:
    rows = session.clustered(folder.rows("patch"))
    found: dict[str, list[pd.DataFrame]] = {
        "patch_effects": [],
        "patch_sets": [],
        "patch": [],
        "patch_redundancy": [],
    }
    for group, part in rows.groupby(list(GROUP), sort=False):
        named = dict(zip(GROUP, group, strict=True))
        rng_for = _streams(session, tuple(map(str, group)))
        long = long_effects(part)
        each = by_metric(long, item_shares)
        single = each["set"].isna()
        screen = ",".join(sorted(set(part["screen"])))
        effects = each[single].drop(columns="set").assign(**named)
        found["patch_effects"].append(_by_kind(effects, named["site"], screen))
        found["patch_sets"].append(each[~single].drop(columns=["layer", "head"]).assign(**named))
        shares = by_metric(long, partial(head_shares, rng_for=rng_for)).assign(**named)
        found["patch"].append(_by_kind(shares, named["site"], screen))
        complete, members = complete_sets(session, part, long)
        gaps = by_metric(complete, partial(redundancy, members=members, rng_for=rng_for))
        found["patch_redundancy"].append(gaps.assign(**named))
    # An empty part (a group without complete sets) has no types, and would take those of the others.
    filled = {name: [part for part in parts if len(part)] or parts[:1] for name, parts in found.items()}
    return {name: pd.concat([_plain(part) for part in parts]) for name, parts in filled.items()}


def complete_sets(
    session: Session, rows: pd.DataFrame, long: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, list[tuple[int, int]]]]:
    """The patches of single parts and of those sets all of whose parts were patched alone, and what the sets hold.

    Under a screen a set may hold heads that were not: its joint effect is in patch_sets.csv all the same.
    """
    site = str(rows["site"].iloc[0])
    members: dict[str, list[tuple[int, int]]] = {}
    for names in rows["members"]:
        for name, text in names.items():
            parts = parts_of_heads(session.model, site, HeadSet.parse(text))
            members[name] = [(part.layer, _number(part)) for part in parts]
    alone = {
        direction: set(zip(group["layer"], group["head"], strict=True))
        for direction, group in long[long["set"].isna()].groupby("direction")
    }
    keep = [
        pd.isna(label) or set(members[label]) <= alone[direction]
        for label, direction in zip(long["set"], long["direction"], strict=True)
    ]
    return long[keep], members


def _streams(session: Session, group: tuple[str, ...]) -> RngFactory:
    """Δcopy by z keeps the streams it always had."""
    if group == DEFAULT:
        return session.rng_for
    return session.streams(f"patch/{'/'.join(group)}")


def _number(part: Part) -> int:
    """What a table counts in `head` while it is made: query heads, key/value heads, or 0 for a layer."""
    if part.head is not None:
        return part.head
    return 0 if part.kv_head is None else part.kv_head


def _by_kind(table: pd.DataFrame, site: str, screen: str) -> pd.DataFrame:
    """The table with `head` for query heads only, and the columns `kv_head` and `screen`."""
    number = table["head"].astype("Int64")
    nothing = pd.Series(pd.NA, index=table.index, dtype="Int64")
    if site in ("k", "v"):
        return table.assign(head=nothing, kv_head=number, screen=screen)
    head = nothing if site in ("mlp_out", "resid_pre") else number
    return table.assign(head=head, kv_head=nothing, screen=screen)


def _plain(table: pd.DataFrame) -> pd.DataFrame:
    """Whole numbers as such, also where all or none are there, so that tables of several sites join."""
    whole = {name: "Int64" for name in ("layer", "head", "kv_head") if name in table.columns}
    return table.astype(whole)
