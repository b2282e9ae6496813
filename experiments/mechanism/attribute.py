"""`backfire attribute`: first-order estimates for every head and MLP, always shown against the exact sweep.

Per item, direction and candidate (a×, the reference action): one (or, with --steps, a few) backward passes, one more
for the diverging tokens of a×, and the exact patch of every unit (from `direct`, where the folder has its rows of the
same pair and settings). attribute.jsonl → attribute.csv, attribute_screening.csv
(Spearman, recall, reliability), attribute_screen_misses.csv (what a screen of k can miss),
attribute_false_negatives.csv (by name): each by every metric.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from experiments.mechanism.pairs import (
    DIRECTIONS,
    PairSweepOptions,
    entry_of,
    of_metric,
    open_pair,
    pair_of,
    pair_runs,
    references_said,
    row_id,
)
from experiments.run.durable import naming, parse_rows
from experiments.run.run_folder import RunFolder
from experiments.run.run_json import read_run
from experiments.run.run_study import ItemContext, ItemStudy, ItemUnit, Row, Tables
from experiments.run.study import Flag, Report, positive
from experiments.run.tables import frame_text
from mech.engine.engine import Engine, Run
from mech.engine.queries import Score
from mech.errors import InputError
from mech.patching.attribution import attribution_names
from mech.patching.patch import patch_heads, patch_layers
from probes.effects.attribution import (
    ATTRIBUTION,
    attribute_sums,
    compared,
    false_negatives,
    misses,
    screen_agreement,
    units_of,
)
from probes.items.item import Item
from probes.scoring.contrast import METRICS
from probes.scoring.metric_sums import by_metric, metrics_by_part, metrics_of


@dataclass(frozen=True, kw_only=True)
class AttributeConfig(PairSweepOptions):
    """What `backfire attribute` is given."""

    steps: Annotated[
        int, Flag("points of the line between the runs that gradients are averaged over", positive)
    ] = 1
    screen: Annotated[int, Flag("heads that a screen would keep; what it misses is reported", positive)] = 40


SIMILAR = 1e-3
"""Nats within which a difference of two runs is the same one: float32 sums of other packings differ by less."""

_WHICH = ("ids", "limit")  # settings that say which items, not what is done with them
_SAME_MODEL = ("sha256", "tensors_sha256", "dtype", "tokenizer_sha256", "chat_template_sha256")

Exact = dict[str, dict[str, float]]
"""Sum → unit (L18H6, MLP3) → effect (nats)."""


class KeptTotals:
    """The rows of direct.jsonl with exact effects of single heads and MLPs; `used` has the ids of those taken.

    Both studies sweep the same units in the same runs. A row is taken where it is of the same pair, weights, tokenizer,
    wording and settings, and where the difference and token counts of the item are those of the runs at hand.
    """

    def __init__(self, path: Path, study: str, direct: str) -> None:
        """Read the rows; none where `direct` (its entry of run.json) ran under other settings than `study` does.

        Raises:
            InputError: run.json or direct.jsonl is damaged.
        """
        studies = read_run(path)["studies"]
        entries = studies[study], studies.get(direct)
        alike = entries[1] is not None and _settings(*entries) == _settings(*reversed(entries))
        rows = parse_rows(path / "direct.jsonl")[0] if alike else []
        self._path = path / "direct.jsonl"
        self._rows = {row["id"]: row for row in rows}
        self.used: dict[str, bool] = {}

    def exact(self, row_id: str, about: Mapping[str, Any]) -> Exact | None:
        """The effects of a row, None where there is none of this very difference.

        Raises:
            InputError: the row lacks a unit or sum that its others have.
        """
        row = self._rows.get(row_id)
        if row is None or row["n_tokens"] != about["n_tokens"] or set(row["delta"]) != set(about["delta"]):
            return None
        if not all(
            math.isclose(row["delta"][name], about["delta"][name], abs_tol=SIMILAR) for name in row["delta"]
        ):
            return None
        with naming(self._path):
            try:
                found = {
                    name: {
                        **{head: float(effect[0]) for head, effect in row["heads"][name].items()},
                        **{f"MLP{layer}": float(effect[0]) for layer, effect in row["mlps"][name].items()},
                    }
                    for name in row["delta"]
                }
            except (KeyError, TypeError, IndexError, AttributeError) as error:
                raise InputError(
                    f"The row '{row_id}' is damaged ({error}): restore or delete that line."
                ) from error
        self.used[row_id] = True
        return found


def _settings(entry: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """What of an entry decides the runs of an item: the settings that the other one has too, model and wording."""
    config, about = entry["config"], entry["provenance"]
    names = set(config) & set(other["config"])
    model = about.get("model", {})
    return {
        "config": {name: config[name] for name in sorted(names) if name not in _WHICH},
        "model": {name: model.get(name) for name in _SAME_MODEL},
        "wording": about.get("wording_sha256"),
    }


@dataclass(frozen=True, kw_only=True)
class AttributeContext(ItemContext):
    """`kept`: the exact effects that `direct` has measured, once the folder is claimed."""

    config: AttributeConfig
    kept: KeptTotals | None = None

    @property
    def learned(self) -> Mapping[str, MutableMapping[str, Any]]:
        """The rows of `direct` that were used."""
        return {"from_direct": self.kept.used} if self.kept else {}


def open_attribute(config: AttributeConfig) -> AttributeContext:
    """The session with the items that can be put under both conditions; raises as `open_pair`."""
    return AttributeContext(open_pair("attribute", config).session, config=config)


def prepare(context: AttributeContext, folder: RunFolder) -> AttributeContext:
    """With what `direct` has kept of the same pair in the folder."""
    direct = entry_of("direct", pair_of(context.config))
    return replace(context, kept=KeptTotals(folder.path, folder.study, direct))


def own_row(item: Item, direction: str) -> str:
    """The id of a row; a folder has one pair."""
    return f"{item.item_id}|{direction}"


def units(context: AttributeContext) -> list[ItemUnit]:
    """A unit an item, of a row a direction: the clean runs are shared."""
    return [
        ItemUnit(tuple(own_row(item, direction) for direction in DIRECTIONS), item)
        for item in context.session.items
    ]


def measure(context: AttributeContext, unit: ItemUnit) -> list[Row]:
    """One row a direction: by sum, exact effect and estimate (nats) of every head and MLP."""
    engine, item, config = context.session.engine, unit.item, context.config
    pair = pair_of(config)
    runs = pair_runs(context.session, item, pair, attribution_names(engine.model))
    contrast = runs.contrast
    rows = []
    for direction in DIRECTIONS:
        known = context.kept.exact(row_id(item, pair, direction), runs.about()) if context.kept else None
        exact = known or runs.effects(direction, runs.patched(direction, partial(exact_scores, engine)))
        estimates: dict[str, dict[str, float]] = {}
        for candidate in runs.runs:
            recipient, donor, _ = runs.sides(candidate, direction)
            found = attribute_sums(engine, contrast, candidate, recipient, donor, direction, config.steps)
            estimates.update({name: units_of(one) for name, one in found.items()})
        about = {"item_id": item.item_id, "task_id": item.task_id, "direction": direction, **runs.about()}
        rows.append({"id": own_row(item, direction), **about, "exact": exact, "estimates": estimates})
    return rows


def exact_scores(engine: Engine, recipient: Run, donor: Run) -> dict[str, Score]:
    """Unit (L18H6, MLP3) → the recipient's score with that one unit taken from the donor."""
    heads = patch_heads(engine, recipient, donor)
    mlps = patch_layers(engine, recipient, donor, "mlp_out")
    return {
        **{str(head): score for head, score in heads.items()},
        **{f"MLP{layer}": score for layer, score in mlps.items()},
    }


def long_attributions(rows: pd.DataFrame) -> pd.DataFrame:
    """The kept rows, one line a metric, item, direction and unit."""
    lines = []
    for row in rows.to_dict("records"):
        counts = row["n_tokens"]
        deltas = metrics_of(counts, row["delta"])
        exact, estimates = (metrics_by_part(counts, row[name]) for name in ("exact", "estimates"))
        for metric, delta in deltas.items():
            known = (row["item_id"], row["task_id"], row["direction"], delta)
            lines += [(metric, *line) for line in compared(*known, exact[metric], estimates[metric])]
    table = pd.DataFrame(lines, columns=["metric", *ATTRIBUTION])
    return table.astype({"layer": "Int64", "head": "Int64"})


def attribute_tables(context: AttributeContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """attribute.csv, and how far estimates agree with exact effects."""
    rng_for, screen = context.session.rng_for, context.config.screen
    table = long_attributions(context.session.clustered(folder.rows("attribute")))
    return {
        "attribute": by_metric(table, lambda rows: rows),
        "attribute_screening": by_metric(table, lambda rows: screen_agreement(rows, rng_for), METRICS),
        "attribute_screen_misses": by_metric(table, lambda rows: misses(rows, screen, rng_for), METRICS),
        "attribute_false_negatives": by_metric(
            table, lambda rows: false_negatives(rows, 16, screen), METRICS
        ),
    }


def report(context: AttributeContext, tables: Tables) -> Report:
    """Agreement over all units, and what a screen misses."""
    metric = context.config.metric
    found, missed = (
        of_metric(tables[name], metric) for name in ("attribute_screening", "attribute_screen_misses")
    )
    lines = [f"{metric}:", frame_text(found[found["scope"] == "pooled"]), "", frame_text(missed)]
    if context.kept and context.kept.used:
        lines.append(
            f"exact effects of {len(context.kept.used)} rows are those that `direct` measured in this folder"
        )
    return Report("\n".join(lines))


def taken(context: AttributeContext, _: Tables) -> Mapping[str, Any]:
    """How many rows' exact effects were taken from `direct`."""
    return {"from_direct": len(context.kept.used) if context.kept else 0}


STUDY = ItemStudy(
    "attribute",
    "backfire attribute --limit 4 --steps 1 --out runs/first",
    AttributeConfig,
    rows="attribute",
    open=open_attribute,
    prepare=prepare,
    units=units,
    measure=measure,
    tables=attribute_tables,
    report=report,
    notes=references_said,
    extra=taken,
)
