"""Total, direct and indirect shares by hand, and the roles that follow from the direct effect alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mech.errors import InputError
from probes.effects.direct import DIRECT, direct_shares


def streams(name: str) -> np.random.Generator:
    return np.random.default_rng(len(name))


def rows(n_tasks: int) -> pd.DataFrame:
    """Head 0 copies (direct 2 to 3 of 10 nats), head 1 suppresses, head 2 does both; one MLP works through others."""
    lines = []
    for task in range(n_tasks):
        known = {"item_id": f"i{task}", "task_id": f"t{task}", "direction": "noise", "delta": 10.0}
        wobble = (-1) ** task
        for head, direct in enumerate((2.5 + 0.5 * wobble, -1.5 + 0.5 * wobble, 1.0 * wobble)):
            part = {"kind": "head", "layer": 4, "head": head, "total_nats": 3.0, "direct_nats": direct}
            lines.append({**known, **part})
        mlp = {"kind": "mlp", "layer": 7, "head": None, "total_nats": 5.0, "direct_nats": 0.0}
        lines.append({**known, **mlp})
    return pd.DataFrame(lines)


def test_shares_and_roles_are_those_of_the_numbers() -> None:
    table = direct_shares(rows(8), streams, n_draws=500)
    assert tuple(table.columns) == DIRECT
    heads = table[table["kind"] == "head"].set_index("head")
    assert heads["role"].to_dict() == {0: "copying", 1: "suppression", 2: ""}
    assert heads["direct_share"].tolist() == pytest.approx([0.25, -0.15, 0.0])
    assert heads["indirect_share"].tolist() == pytest.approx([0.05, 0.45, 0.3])
    assert heads["total_nats"].tolist() == [3.0] * 3
    [mlp] = table[table["kind"] == "mlp"].to_dict("records")
    assert pd.isna(mlp["head"]) and (mlp["total_share"], mlp["direct_share"]) == (0.5, 0.0)


def test_few_tasks_give_no_roles_and_a_small_delta_no_shares() -> None:
    few = direct_shares(rows(4), streams, n_draws=500)
    assert (few["role"] == "").all() and few["direct_share"].notna().all()
    small = direct_shares(rows(8).assign(delta=1e-4), streams, n_draws=500)
    assert small["flagged"].all() and small["direct_share"].isna().all() and (small["role"] == "").all()


def test_heads_of_pure_noise_have_no_role() -> None:
    """An interval of 95 % leaves 0 out for a tenth of them; corrected over all heads, none is named."""
    rng = np.random.default_rng(3)
    grid = pd.MultiIndex.from_product([range(16), range(100)], names=["task", "head"]).to_frame(index=False)
    noise = pd.DataFrame(
        {
            "item_id": "i" + grid["task"].astype(str),
            "task_id": "t" + grid["task"].astype(str),
            "direction": "noise",
            "kind": "head",
            "layer": 0,
            "head": grid["head"],
            "delta": 10.0,
            "total_nats": 0.0,
            "direct_nats": rng.normal(size=len(grid)),
        }
    )
    table = direct_shares(noise, streams, n_draws=500)
    assert ((table["direct_lo"] > 0) | (table["direct_hi"] < 0)).sum() >= 3
    assert (table["role"] == "").all()


def test_what_could_only_be_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="lack the columns direct_nats"):
        direct_shares(rows(8).drop(columns="direct_nats"), streams)
    with pytest.raises(InputError, match="'embedding' is not a kind"):
        direct_shares(rows(8).assign(kind="embedding"), streams)
    with pytest.raises(InputError, match="occurs twice"):
        direct_shares(pd.concat([rows(8), rows(8).head(1)]), streams)
