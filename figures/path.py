"""How much of Δcopy goes from previous-token heads into the keys of induction heads, against random senders.

Reads path.csv (pre → neut): share of Δcopy lost when the senders' writing at the recorded call is replaced and only the
receivers' keys see it. Bars: previous-token heads, and all heads as senders (the most that goes through these keys);
band: the range over random, layer-matched senders.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from figures import style
from figures.layout import LINE, arms, count
from figures.load import DIFFERENCES, MissingTable, of_metric, read_table, refuse_doubles

READS = {
    "path.csv": (
        *("metric", "set", "kind", "k", "share", "ci_lo", "ci_hi", "n", "random_lo", "random_hi"),
        *("n_controls", "p", "how", "from", "to"),
    ),
}
"""Table → the columns that are read of it."""
NAMES = {"previous-token": "previous-token heads", "all": "all heads as senders"}


def path_numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of pre → neut with a share.

    Raises:
        MissingTable: no selected senders with a share.
        FigureError: a set is there twice.
    """
    rows = table[(table["from"] == "pre") & (table["to"] == "neut")].dropna(subset=["share"])
    if rows[rows["kind"] == "selected"].empty:
        raise MissingTable("path.csv has no selected senders with a share of pre to neut.")
    refuse_doubles(rows, "path.csv", ["set"])
    columns = [
        "set",
        "kind",
        "k",
        "share",
        "ci_lo",
        "ci_hi",
        "n",
        "random_lo",
        "random_hi",
        "n_controls",
        "p",
        "how",
    ]
    return rows[columns].reset_index(drop=True)


def draw_path(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `path`; returns its three files."""
    numbers = path_numbers(of_metric(read_table(run, "path.csv", READS), "path.csv", metric))
    chosen = numbers[numbers["kind"] == "selected"].iloc[::-1].reset_index(drop=True)
    random = numbers[numbers["kind"] == "random"]
    with style.styled():
        figure, (axes,) = style.new_figure(1.15 + 0.4 * (len(chosen) + bool(len(random))))
        style.zero_line(axes, vertical=True)
        colours = [style.COPY if name == "previous-token" else style.OTHER for name in chosen["set"]]
        shown = chosen.assign(**{name: 100 * chosen[name] for name in ("share", "ci_lo", "ci_hi")})
        axes.barh(shown.index + 1, shown["share"], height=0.56, color=colours, zorder=2)
        axes.errorbar(
            shown["share"], shown.index + 1, xerr=arms(shown, "share"), linestyle="none", color=style.TOTAL,
            zorder=3, **LINE,
        )  # fmt: skip
        labels = [f"{NAMES.get(row.set, row.set)} ({row.k})" for row in shown.itertuples()]
        if len(random):
            low, high = 100 * random["share"].min(), 100 * random["share"].max()
            axes.axvspan(low, high, color=style.RANDOM, alpha=0.25, linewidth=0, zorder=0)
            axes.scatter(
                100 * random["share"],
                [0] * len(random),
                s=16,
                color=style.RANDOM,
                alpha=0.8,
                linewidths=0,
                zorder=3,
            )
            k = int(random["k"].iloc[0])
            labels = [f"random, same layers ({k}), {len(random)} sets", *labels]
        axes.set_yticks(range(1 - bool(len(random)), len(shown) + 1), labels)
        axes.set_ylim(0.4 - bool(len(random)), len(shown) + 0.55)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"share of {DIFFERENCES[metric]} lost, %")
        axes.set_title(_title(numbers))
        return style.save(figure, numbers, run, "path")


def _title(numbers: pd.DataFrame) -> str:
    first = numbers[numbers["set"] == "previous-token"]
    what = {"mean": "their mean", "zero": "zero"}.get(str(numbers["how"].iloc[0]), "another value")
    text = f"Path from senders into the receivers' keys at the recorded call\nsenders at {what}, {count(numbers['n'])}"
    if len(first) and pd.notna(first["p"].iloc[0]):
        text += f", p = {first['p'].iloc[0]:.3f} against the random sets"
    return text
