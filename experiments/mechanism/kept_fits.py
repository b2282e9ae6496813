"""Fitted constants that a run folder keeps: fitting takes minutes, and a resumed run or another pair needs the same.

joint_fits.jsonl has one row a head set and settings (replacement, model, wording, engine): losses, steps and each
head's constant, written as soon as it is fitted. Float32 values come back from JSON as they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from experiments.heads.ablation import Replacement
from experiments.run.durable import naming, parse_rows
from experiments.run.run_folder import RunFolder
from experiments.run.run_json import config_hash
from experiments.run.session import Session
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.patching.optimal_constants import Fit


def with_kept_fits(put: Replacement, folder: RunFolder, session: Session) -> Replacement:
    """The replacement with the fits that the folder has, which keeps there those that it makes.

    Args:
        put: `how` is optimal.
        folder: claimed by the study that ablates.
        session: its model, wording and engine.

    Raises:
        InputError: a row of joint_fits.jsonl is damaged.
    """
    identity = session.model.identity
    settings = config_hash(
        {
            **{"replacement": put.sha256, "wording": session.wording.sha256, "slow": session.engine.slow},
            **{"sha256": identity.sha256, "tensors_sha256": identity.tensors_sha256},
            **{"dtype": str(session.model.dtype), "device": str(session.model.device)},
        }
    )
    path = folder.path / "joint_fits.jsonl"
    fits = dict(put.fits)
    with naming(path):
        for row in parse_rows(path)[0]:
            if row["settings_sha256"] == settings:
                fits[HeadSet.parse(row["heads"]).sha256] = _fit(put, row)

    def keep(heads: HeadSet, fit: Fit) -> None:
        constants = {str(head): fit.z[head.layer, head.head].double().tolist() for head in heads}
        row = {"id": f"{heads.sha256}|{settings}", "heads": str(heads), "settings_sha256": settings}
        losses = {"before": fit.before, "after": fit.after, "steps": fit.steps}
        folder.append("joint_fits", {**row, **losses, "constants": constants})

    return replace(put, fits=fits, keep=keep)


def _fit(put: Replacement, row: Mapping[str, Any]) -> Fit:
    assert put.z is not None  # optimal constants start from the mean
    z = put.z.clone()
    heads = HeadSet.parse(row["heads"]).check(z.shape[0], z.shape[1])
    if set(row["constants"]) != {str(head) for head in heads}:
        raise InputError(
            f"The row '{row['id']}' has constants of other heads than it names: delete that line."
        )
    for name, values in row["constants"].items():
        if len(values) != z.shape[2]:
            raise InputError(f"The row '{row['id']}' has {len(values)} numbers for {name}: delete that line.")
        head = Head.parse(name)
        z[head.layer, head.head] = torch.tensor(values, dtype=torch.float64).to(z)
    return Fit(z, row["before"], row["after"], row["steps"])
