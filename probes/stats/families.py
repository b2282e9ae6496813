"""Which p-values are corrected together: every Holm family, its null, and the measures that have no test, in one place.

A family is what one sentence of a report may choose from: a reader who sees the smallest p of a table must know how
many were looked at. Families are declared here before any data; `corrected` adds `p_holm` and `family_size` to a table,
`family_lines` says the sizes in words. A p that is NaN (too few clusters to reach .05, or no test) is not a member: it
was not looked at. Tables under several metrics, ablations or pairs of conditions are read one at a time, so those
columns part families wherever a table has them (`READ_ALONE`).

Holm 1979 (Scand. J. Statist. 6, 65): valid under any dependence of the tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
from jaxtyping import Float

from mech.errors import InputError

READ_ALONE = ("metric", "ablation", "how", "from", "to", "pair")
"""Columns that part every family of a table that has them."""
HEADLINE = "G"
ADDED = ("p_holm", "family_size")
"""What `corrected` adds after a table's `p`."""

LEVELS = ("p_repeat", "greedy", "share_", "G_negative", "rate", "accuracy")
"""First letters of measures that are a probability, a share or a rate: none of them is zero under any null."""
SHIFTS = ("p_repeat_shift",)
"""Measures that begin like a level and are a difference of two."""


def null_is_zero(measure: str) -> bool:
    """Whether "the mean is zero" is a hypothesis: of differences it is, of probabilities and rates it is not."""
    return measure in SHIFTS or not measure.startswith(LEVELS)


@dataclass(frozen=True)
class Family:
    """Tests that are corrected together.

    name: how reports call it; table: the file in a run folder; null: what each test's null says; within: columns whose
    combinations are families of their own, beside `READ_ALONE`; rows: which rows are tests (all, if None); across:
    columns of `READ_ALONE` whose values are what the tests compare, and do not part the family.
    """

    name: str
    table: str
    null: str
    within: tuple[str, ...] = ()
    rows: Callable[[pd.DataFrame], pd.Series] | None = None
    across: tuple[str, ...] = ()


def _where(column: str, *values: object) -> Callable[[pd.DataFrame], pd.Series]:
    return lambda table: table[column].isin(values)


def _not_random(column: str) -> Callable[[pd.DataFrame], pd.Series]:
    """Arms of chosen heads: random draws are their controls, and no tests."""
    return lambda table: ~table[column].astype(str).str.contains("-random")


def _held_out(table: pd.DataFrame) -> pd.Series:
    return table["test_set"] != "training"


_BY_CHANCE = "the set is no better than its random control sets (exchangeable with them)"
_NO_CHANGE = "the mean paired difference is 0"

FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("headline", "summary", "the mean of G is 0", (), _where("measure", HEADLINE)),
        Family("manipulations", "manipulations", _NO_CHANGE, ("model", "env")),
        Family("arms", "arms", _NO_CHANGE, ("model", "env", "measure", "family"), None, ("ablation",)),
        Family("joint", "joint", "the mean share of the set is that of its control sets", ("env",)),
        Family("knockout", "knockout", _BY_CHANCE, ("sources",)),
        Family("ablate_controls", "ablate_controls", _BY_CHANCE),
        Family("ablate_dose", "ablate_dose", _BY_CHANCE, ("measure",)),
        Family(
            "circuit",
            "circuit_controls",
            "the mean share of the set is that of its control sets",
            (),
            _held_out,
        ),
        Family("path", "path", _BY_CHANCE),
        Family("direct", "direct", "the mean direct effect of the part is 0", ("direction", "kind")),
        Family("agree_suppressors", "agree_suppressors", "the mean effect of the head is 0", ("direction",)),
        Family("rollout contrasts", "rollout_contrasts", _NO_CHANGE, ("model", "env"), _not_random("arm")),
        Family("rollout controls", "rollout_controls", _BY_CHANCE, ("model", "env")),
        Family(
            *("rollout factorial", "rollout_factorial", "the mean interaction is 0", ("model", "env")),
            _not_random("change"),
        ),
    )
}
"""Name → family. `metric` of a rollout table is the measure, so each measure has a family of its own there too."""


def holm(p: npt.ArrayLike) -> Float[np.ndarray, " test"]:
    """Holm's step-down adjusted p-values: monotone, at most 1; NaN stays NaN and is not in the family."""
    raw = np.asarray(p, dtype=float)
    adjusted = np.full(raw.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(raw))
    order = tested[np.argsort(raw[tested], kind="stable")]
    steps = raw[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def family_size(p: npt.ArrayLike) -> int:
    """Size of a Holm family: those whose p is not NaN."""
    return int((~np.isnan(np.asarray(p, dtype=float))).sum())


def corrected(table: pd.DataFrame, family_name: str, p: str = "p") -> pd.DataFrame:
    """The table with `p_holm` and `family_size` right after its `p`, replaced where it has them already.

    Args:
        table: any table of the family, all its tests in it; one without rows is returned as it is.
        family_name: a key of `FAMILIES`.
        p: the column of raw p-values.

    Returns:
        p_holm is NaN and family_size 0 for rows that are no tests of the family; family_size counts the tests whose p
        is not NaN.

    Raises:
        InputError: there is no such family, or the table lacks `p` or a column of the family.
    """
    if family_name not in FAMILIES:
        raise InputError(f"'{family_name}' is no family of tests: {', '.join(FAMILIES)}.")
    if table.empty:
        return table
    family = FAMILIES[family_name]
    lacking = [name for name in (p, *family.within) if name not in table.columns]
    if lacking:
        raise InputError(f"The table of the family '{family_name}' lacks the columns {', '.join(lacking)}.")
    plain = table.drop(columns=[name for name in ADDED if name in table.columns])
    member = pd.Series(True, index=plain.index) if family.rows is None else family.rows(plain)
    raw = plain[p].astype(float).where(member)
    adjusted, sizes = np.full(len(plain), np.nan), np.zeros(len(plain), dtype=int)
    for places in _groups(plain, family).values():
        numbers = raw.to_numpy()[places]
        adjusted[places] = holm(numbers)
        sizes[places] = np.where(member.to_numpy()[places], family_size(numbers), 0)
    at = plain.columns.get_loc(p)
    assert isinstance(at, int)  # a column occurs once
    plain.insert(at + 1, "p_holm", adjusted)
    plain.insert(at + 2, "family_size", sizes)
    return plain


def family_lines(table: pd.DataFrame, family_name: str) -> list[str]:
    """The sizes of the families in a corrected table: "Holm family 'manipulations' (m, toolshed): 16 tests"."""
    family = FAMILIES[family_name]
    lines = []
    for key, places in _groups(table, family).items():
        size = int(table["family_size"].to_numpy()[places].max(initial=0))
        named = f" ({', '.join(key)})" if key else ""
        tests = f"{size} test{'' if size == 1 else 's'}" if size else "no test (p cannot reach .05)"
        lines.append(f"Holm family '{family_name}'{named}: {tests}")
    return list(dict.fromkeys(lines))


def _groups(table: pd.DataFrame, family: Family) -> dict[tuple[str, ...], np.ndarray]:
    """Key → the places of the rows that are corrected together; an empty cell is a key like any other."""
    alone = [name for name in READ_ALONE if name in table.columns and name not in family.across]
    columns = [*family.within, *alone]
    if not columns:
        return {(): np.arange(len(table))}
    keys = table[list(dict.fromkeys(columns))].astype(object).where(lambda part: part.notna(), "").astype(str)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, key in enumerate(keys.itertuples(index=False, name=None)):
        groups.setdefault(key, []).append(place)
    return {key: np.array(places) for key, places in groups.items()}
