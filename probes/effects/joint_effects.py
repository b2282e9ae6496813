"""Rows of `backfire joint` as the effects that `probes.effects.joint` reads: every metric of every set, pair by pair.

A row has the sums (`probes.scoring.metric_sums`) of one item under one method: clean (`whole`), and under every set
(`under`; the mean over draws where `draws` has them). An effect is linear in them, and so is every metric: the effect
on a metric is the metric of the effects on the sums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from mech.errors import InputError
from probes.effects.joint import ABLATIONS, OFF_ROW, ROW
from probes.scoring.metric_sums import FAILED, metrics_of

_LABEL = re.compile(r"top(\d+)(?:/([a-z_]+?)\d*)?")


def kind_and_size(label: str) -> tuple[str, int]:
    """Kind (selected, or one of control) and k of a set by its label `top16/random3`; a control has the k of its set.

    Raises:
        InputError: the label is no such word.
    """
    found = _LABEL.fullmatch(label)
    if not found:
        raise InputError(f"'{label}' is not the label of a head set.")
    return found[2] or "selected", int(found[1])


def effect(
    method: str, pair: tuple[str, str], whole: Mapping[str, float], under: Mapping[str, float]
) -> float:
    """The effect (nats) of one set by one method, as `probes.effects.joint` defines it.

    Args:
        method: which.
        pair: FROM and TO.
        whole: condition → nats of the clean run.
        under: condition → nats under the set; those that the method acts in.
    """
    low, high = pair
    if method == "denoise":
        return under[low] - whole[low]
    lost = whole[high] - under[high]
    return lost - (whole[low] - under[low]) if method in ABLATIONS else lost


def long_joint(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Effects of every set in every metric (`ROW` and two more columns), and off target of selected sets (`OFF_ROW`).

    `draws` are the effects of a selected set's single draws. `paired_nats` is what controls are compared with: where
    they take fewer draws than the selected set, its effect under the same first draws; elsewhere the effect itself.
    """
    effects: list[list[Any]] = []
    off: list[list[Any]] = []
    for row in rows.to_dict("records"):
        effects += _effects(row)
        off += _off_target(row)
    long = pd.DataFrame(effects, columns=[*ROW, "draws", "paired_nats"])
    return long, pd.DataFrame(off, columns=list(OFF_ROW))


def _effects(row: Mapping[str, Any]) -> list[list[Any]]:
    low, high = pair = (row["from"], row["to"])
    terms, method, whole = list(row["n_tokens"]), row["method"], row["whole"]
    acts = {"denoise": [low]}.get(method, [low, high] if method in ABLATIONS else [high])
    delta = metrics_of(
        row["n_tokens"], {term: whole[f"{term}|{high}"] - whole[f"{term}|{low}"] for term in terms}
    )
    clean = {term: {name: whole[f"{term}|{name}"] for name in pair} for term in terms}

    def of(values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        found = {term: effect(method, pair, clean[term], values[term]) for term in terms}
        return metrics_of(row["n_tokens"], found)

    lines = []
    labels = row["under"][f"{FAILED}|{acts[0]}"]
    controls = [label for label in labels if kind_and_size(label)[0] != "selected"]
    n_paired = min((max(1, len(_draws(row["draws"], one, terms, acts))) for one in controls), default=0)
    for label in labels:
        kind, k = kind_and_size(label)
        under = {term: {name: row["under"][f"{term}|{name}"][label] for name in acts} for term in terms}
        singles = _draws(row["draws"], label, terms, acts)
        drawn = [of(one) for one in singles] if kind == "selected" else []
        for metric, value in of(under).items():
            draws = [one[metric] for one in drawn] or None
            first = draws[:n_paired] if draws else []
            paired = sum(first) / len(first) if first else value
            keys = [row["env"], low, high, metric, row["item_id"], row["task_id"], method, label, kind, k]
            lines.append([*keys, value, delta[metric], draws, paired])
    return lines


def _draws(
    draws: Mapping[str, Mapping[str, Sequence[float]]], label: str, terms: Sequence[str], acts: Sequence[str]
) -> list[dict[str, dict[str, float]]]:
    """Draw by draw: term → condition → nats; none where the method does not draw."""
    count = len(draws.get(f"{FAILED}|{acts[0]}", {}).get(label, ()))
    return [
        {term: {name: draws[f"{term}|{name}"][label][at] for name in acts} for term in terms}
        for at in range(count)
    ]


def _off_target(row: Mapping[str, Any]) -> list[list[Any]]:
    """The reference action in the condition that the method acts in (FROM where in both); Δsem where it was asked."""
    whole, under, method = row["whole"], row["under"], row["method"]
    own = f"gold|{row['to'] if method in ('noise', 'knockout') else row['from']}"
    lines = []
    keys = [row[name] for name in ("env", "from", "to", "item_id", "task_id", "method")]
    selected = [label for label in under[f"{FAILED}|{own.partition('|')[2]}"] if "/" not in label]
    for label in selected:
        k = kind_and_size(label)[1]
        if own in under:
            lines.append([*keys, label, k, "reference", whole[own], under[own][label]])
        if {"failed|fail", "failed|neut"} <= set(under) and row["to"] == "neut":
            sem = whole["failed|fail"] - whole["failed|neut"]
            change = under["failed|fail"][label] - under["failed|neut"][label]
            lines.append([*keys, label, k, "sem", sem, change])
    return lines
