"""Matched control sets that another run of `joint` in the folder has drawn: matching them takes minutes.

Norm- and damage-matched sets follow from the model, the seed, the selected set, how many are asked for and the
reference items. Where an entry of run.json agrees in all of these, its sets are taken; else they are drawn. It is the
entry of another pair of conditions, or of the same one before it was killed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.heads.control_sets import MatchedOptions, NamedSet
from experiments.heads.reference_sets import ReferenceSet
from experiments.run.run_json import read_run, recorded
from mech.heads import HeadSet
from mech.models.model import Model

MATCHED = ("norm", "damage")
DECIDES = ("seed", "by", "controls", "control_kinds")  # of a selected set's controls


def kept_controls(
    config: MatchedOptions, model: Model, reference: ReferenceSet, label: str, heads: HeadSet
) -> dict[str, list[NamedSet]]:
    """Kind (of MATCHED) → the sets of that kind, where the folder `config.out` has them.

    Args:
        config: of the study, whose `out` is the folder.
        model: the model.
        reference: what norms and damage are measured on.
        label: the selected set's name.
        heads: the selected set.

    Raises:
        InputError: run.json is damaged.
    """
    found: dict[str, list[NamedSet]] = {}
    if config.out is None or not (config.out / "run.json").is_file():
        return found
    for name, entry in read_run(config.out)["studies"].items():
        if name.split(" ")[0] != "joint" or not _alike(config, model, reference, entry):
            continue
        sets, displaced, ratios = (
            recorded(config.out, entry, f"provenance.{name}", dict)
            for name in ("sets", "displaced", "ratios")
        )
        missed = recorded(config.out, entry, "provenance.not_reached", list)
        if sets.get(label) != str(heads):
            continue
        for kind in MATCHED:
            labels = [one for one in sets if one.startswith(f"{label}/{kind}")]
            if labels:
                found[kind] = [
                    NamedSet(
                        one,
                        kind,
                        HeadSet.parse(sets[one]),
                        displaced.get(one, 0),
                        ratios.get(one),
                        one not in missed,
                    )
                    for one in labels
                ]
    return found


def _alike(config: MatchedOptions, model: Model, reference: ReferenceSet, entry: Mapping[str, Any]) -> bool:
    there, about = entry["config"], entry["provenance"]
    identity, of = model.identity, about.get("model", {})
    used = {put.get("items_sha256") for put in about.get("replacements", {}).values()}
    return (
        all(there.get(name) == vars(config)[name] for name in DECIDES)
        and (of.get("sha256"), of.get("tensors_sha256")) == (identity.sha256, identity.tensors_sha256)
        and of.get("dtype") == str(model.dtype)
        and reference.about["items_sha256"] in used
    )
