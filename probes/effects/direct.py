"""Total, direct and indirect effects of heads and MLPs as shares of a difference (Δcopy), with intervals and signs.

    total      one part's activation from the other run, everything behind it recomputed
    direct     only what it writes itself reaches the logits changed, the final norm's scale held
               (`mech.patching.direct_effect`)
    indirect   total − direct: what later parts make of the change

    role       of the direct effect: `carries` where it is above 0 with p_holm < 0.05, `holds back` where it is below (a
               copy suppressor: McDougall et al. 2023, arXiv:2310.04625), else empty. The Holm family is all heads (or
               all MLPs) of a direction. C tasks allow no p below 2^(1−C): with 270 heads a role takes 14 tasks.

Later heads may undo what an earlier one lacks (self-repair: McGrath et al. 2023, arXiv:2307.15771): in noising the
direct effect then exceeds the total one. Shares are ratios of means over items; clusters are tasks.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.effects.shares import head_shares
from probes.stats.bootstrap import N_DRAWS, RngFactory, cluster_ratios, holm
from probes.stats.frame_checks import MIN_DELTA, item_columns, rectangle

ALPHA = 0.05
QUANTITIES = ("total", "direct", "indirect")
DIRECT = (
    "direction", "kind", "layer", "head",
    *(f"{name}_{cell}" for name in QUANTITIES for cell in ("share", "lo", "hi", "nats")),
    "role", "n", "n_clusters", "flagged", "p", "p_holm",
)  # fmt: skip

_NEEDED = ("item_id", "task_id", "direction", "kind", "layer", "head", "delta", "total_nats", "direct_nats")


def direct_shares(
    rows: pd.DataFrame, rng_for: RngFactory, n_draws: int = N_DRAWS, min_delta: float = MIN_DELTA
) -> pd.DataFrame:
    """The shares of every head and MLP in each direction.

    Args:
        rows: item_id, task_id, direction, kind (head | mlp), layer, head (empty for an MLP), delta, total_nats,
            direct_nats: effects with the sign of the direction, in nats.
        rng_for: gives the streams `KIND/QUANTITY/share/DIRECTION` and `KIND/direct/p/DIRECTION`.
        n_draws: bootstrap draws.
        min_delta: a mean |delta| below this is too small to divide by.

    Returns:
        The columns of `DIRECT`, by kind, direction, layer and head.

    Raises:
        InputError: a column is missing or a kind unknown; as `probes.effects.shares.head_shares`.
    """
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise InputError(f"The rows lack the columns {', '.join(missing)}.")
    tables = []
    for kind, group in rows.groupby("kind", sort=True):
        if kind not in ("head", "mlp"):
            raise InputError(f"'{kind}' is not a kind of part: write head or mlp.")
        plain = group if kind == "head" else group.assign(head=0)
        plain = plain.assign(indirect_nats=plain["total_nats"] - plain["direct_nats"])
        table = pd.DataFrame()
        for quantity in QUANTITIES:
            effects = plain.assign(effect_nats=plain[f"{quantity}_nats"])
            found = head_shares(effects, _named(rng_for, f"{kind}/{quantity}"), n_draws, min_delta)
            if table.empty:
                table = found[["direction", "layer", "head", "n", "n_clusters", "flagged"]].copy()
            for cell, column in (
                ("share", "share"),
                ("lo", "ci_lo"),
                ("hi", "ci_hi"),
                ("nats", "effect_nats"),
            ):
                table[f"{quantity}_{cell}"] = found[column]
            table["flagged"] |= found["flagged"]
        keys = list(zip(table["direction"], table["layer"], table["head"], strict=True))
        for name, values in zip(("p", "p_holm"), _p_values(plain, rng_for, str(kind), n_draws), strict=True):
            table[name] = [float(values[key]) for key in keys]
        number = table["head"].astype("Int64")
        tables.append(table.assign(kind=kind, head=number if kind == "head" else number.mask(number.notna())))
    whole = pd.concat(tables, ignore_index=True)
    sure = (whole["p_holm"] < ALPHA) & whole["direct_share"].notna()
    role = pd.Series("", index=whole.index).mask(sure & (whole["direct_nats"] > 0), "carries")
    return whole.assign(role=role.mask(sure & (whole["direct_nats"] < 0), "holds back"))[list(DIRECT)]


def _p_values(
    effects: pd.DataFrame, rng_for: RngFactory, kind: str, n_draws: int
) -> tuple[pd.Series, pd.Series]:
    """(direction, layer, head) → p of the mean direct effect, and the same corrected over its direction."""
    plain: dict[tuple[object, ...], float] = {}
    corrected: dict[tuple[object, ...], float] = {}
    for direction, group in effects.groupby("direction", sort=True):
        table = rectangle(group, ["layer", "head"], "direct_nats")
        numbers = table.to_numpy(float)
        tasks = item_columns(group, table.index)["task_id"]
        rng = rng_for(f"{kind}/direct/p/{direction}")
        p = [one.p for one in cluster_ratios(numbers, np.ones_like(numbers), tasks, rng, n_draws)]
        keys = [(direction, layer, head) for layer, head in table.columns]
        plain.update(zip(keys, p, strict=True))
        corrected.update(zip(keys, holm(p).tolist(), strict=True))
    return pd.Series(plain), pd.Series(corrected)


def _named(rng_for: RngFactory, prefix: str) -> RngFactory:
    return lambda name: rng_for(f"{prefix}/{name}")
