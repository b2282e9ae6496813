"""Total, direct and indirect effects of heads and MLPs as shares of a difference (Δcopy), with intervals and signs.

    total      one part's activation from the other run, everything after it recomputed
    direct     only the part's own output to the logits is changed, the final norm's scale frozen
               (`mech.patching.direct_effect`)
    indirect   total − direct: what later parts make of the change

    role       of the direct effect: `copying` where it is above 0 with p_holm < 0.05, `suppression` where it is below
               (copy suppression: McDougall et al. 2023, arXiv:2310.04625), else empty. The Holm family is all heads (or
               all MLPs) of a direction. C tasks allow no p below 2^(1−C): with 270 heads a role takes 14 tasks.

Later heads may compensate for a change of an earlier one (self-repair: McGrath et al. 2023, arXiv:2307.15771): in
noising the direct effect then exceeds the total one. Shares are ratios of means over items; clusters are tasks.
"""

from __future__ import annotations

import pandas as pd

from probes.effects.shares import head_shares
from probes.stats.bootstrap import N_DRAWS, RngFactory
from probes.stats.families import holm
from probes.stats.frame_checks import MIN_DELTA, column_means, require_columns, require_known

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
    require_columns(rows, _NEEDED)
    require_known(rows["kind"], ("head", "mlp"), "a kind of part", "write head or mlp")
    tables = []
    for kind, group in rows.groupby("kind", sort=True):
        plain = group if kind == "head" else group.assign(head=0)
        plain = plain.assign(indirect_nats=plain["total_nats"] - plain["direct_nats"])
        table = pd.DataFrame()
        for quantity in QUANTITIES:
            effects = plain.assign(effect_nats=plain[f"{quantity}_nats"])
            found = head_shares(effects, _named(rng_for, f"{kind}/{quantity}"), n_draws, min_delta)
            if table.empty:
                table = found[["direction", "layer", "head", "n", "n_clusters", "flagged"]].copy()
            cells = {"share": "share", "lo": "ci_lo", "hi": "ci_hi", "nats": "effect_nats"}
            table = table.assign(**{f"{quantity}_{cell}": found[column] for cell, column in cells.items()})
            table["flagged"] |= found["flagged"]
        p: list[float] = []
        p_holm: list[float] = []
        for direction, part in plain.groupby("direction", sort=True):  # as `head_shares` orders its rows
            rng = rng_for(f"{kind}/direct/p/{direction}")
            own = [one.p for one in column_means(part, ["layer", "head"], "direct_nats", rng, n_draws)[1]]
            p, p_holm = [*p, *own], [*p_holm, *holm(own).tolist()]
        number = table["head"].astype("Int64")
        heads = number if kind == "head" else number.mask(number.notna())
        tables.append(table.assign(p=p, p_holm=p_holm, kind=kind, head=heads))
    both = pd.concat(tables, ignore_index=True)
    sure = (both["p_holm"] < ALPHA) & both["direct_share"].notna()
    role = pd.Series("", index=both.index).mask(sure & (both["direct_nats"] > 0), "copying")
    return both.assign(role=role.mask(sure & (both["direct_nats"] < 0), "suppression"))[list(DIRECT)]


def _named(rng_for: RngFactory, prefix: str) -> RngFactory:
    return lambda name: rng_for(f"{prefix}/{name}")
