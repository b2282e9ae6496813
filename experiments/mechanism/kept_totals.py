"""Total effects of single heads and MLPs that `direct` has kept: they are the exact effects `attribute` asks for.

Both studies sweep the same units in the same runs. Rows are taken where direct.jsonl of the same folder holds the same
pair, measured with the same weights, tokenizer, wording and settings, and where the difference and token counts of the
item are those of the runs at hand; else the sweep is run. A test holds the two ways together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.run.durable import naming, parse_rows
from experiments.run.run_json import read_run
from mech.errors import InputError

SIMILAR = 1e-3
"""Nats within which a difference of two runs is the same one: float32 sums of other packings differ by less."""

_WHICH = ("ids", "limit")  # settings that say which items, not what is done with them
_SAME_MODEL = ("sha256", "tensors_sha256", "dtype", "tokenizer_sha256", "chat_template_sha256")

Exact = dict[str, dict[str, float]]
"""Sum → unit (L18H6, MLP3) → effect (nats)."""


class KeptTotals:
    """The rows of direct.jsonl that another study of the folder may use; `used` has the ids of those it did use."""

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
