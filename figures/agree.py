"""How well each head score ranks heads by their causal effect on Δcopy: a dot with its interval, both directions.

Reads agree.csv. Left: Spearman's rank correlation over all heads. Right: the overlap (Jaccard) of the top k by
score with the top k by effect; the dashed line is what a random ranking gives. Scores in italics were taken on the
very transcripts: no head set that is to be tested on them may be chosen by one. Below: how much of the difference the
single heads' effects sum up to, and how well the effects of one half of the tasks rank heads as the other half's do.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from figures import style
from figures.layout import LINE, arms, fold, handles_of, rows_of
from figures.load import DIFFERENCES, DIRECTIONS, MissingTable, is_true, of_metric, read_table, refuse_doubles

READS = {
    "agree.csv": (
        *("metric", "direction", "score", "statistic", "k", "estimate", "ci_lo", "ci_hi", "chance"),
        *("n", "n_heads", "uses_task_data", "effects_nats", "delta_nats"),
    ),
}
"""Table → the columns that are read of it."""
_LOOKS = {
    "denoise": ("denoising (sufficiency)", style.COPY, "o", -0.16),
    "noise": ("noising (necessity)", style.SEM, "s", 0.16),
}
_TOP = 16


def draw_agree(run: Path, metric: str = "logprob") -> list[Path]:
    """Write the figure `agree` from agree.csv; returns its three files."""
    whole = of_metric(read_table(run, "agree.csv", READS), "agree.csv", metric)
    table = whole.dropna(subset=["score"])
    sizes = sorted(set(table.loc[table["statistic"] == "jaccard", "k"].dropna()))
    k = min(sizes, key=lambda size: (abs(size - _TOP), size)) if sizes else None
    rank = table[table["statistic"] == "spearman"]
    if rank.empty:
        raise MissingTable("agree.csv has no rank correlations.")
    parts = [rank] + ([table[(table["statistic"] == "jaccard") & (table["k"] == k)]] if k else [])
    for part in parts:
        refuse_doubles(part, "agree.csv", ["direction", "score"])
    order = list(
        rank.groupby("score")["estimate"].max().sort_values(ascending=False, na_position="last").index
    )
    titles = ["Spearman's ρ with the causal effect", f"overlap of the top {k or 0:.0f} (Jaccard)"]
    with style.styled():
        figure, panels = style.new_figure(height=1.5 + 0.3 * len(order), n_columns=len(parts))
        for place, (axes, part) in enumerate(zip(panels, parts, strict=True)):
            rows_of(axes, [fold(name.replace("_", " "), 24) for name in order], named=place == 0)
            _draw_panel(axes, part, order)
            axes.set_title(titles[place])
        task = set(rank.loc[is_true(rank["uses_task_data"]), "score"])
        for label, name in zip(panels[0].get_yticklabels(), order, strict=True):
            label.set_fontstyle("italic" if name in task else "normal")
        found = handles_of(panels)
        figure.legend(
            list(found.values()), list(found), loc="outside lower center", ncols=len(found),
            title=f"{int(rank['n_heads'].max())} heads, {int(rank['n'].max())} items; in italics: scores taken on "
            f"the items themselves\n{_effects(whole, metric)}", title_fontsize=8,
        )  # fmt: skip
        return style.save(figure, pd.concat(parts), run, "agree")


def _effects(table: pd.DataFrame, metric: str) -> str:
    """What is agreed with, a line a direction."""
    lines = []
    for direction in DIRECTIONS:
        rows = table[table["direction"] == direction]
        if rows.empty:
            continue
        first = rows.iloc[0]
        text = (
            f"{_LOOKS[direction][0].split(' ')[0]}: single effects sum to {first['effects_nats']:.1f} of "
            f"{first['delta_nats']:.1f} nats of {DIFFERENCES[metric]}"
        )
        halves = rows.loc[rows["statistic"] == "reliability", "estimate"].dropna()
        lines.append(text + (f"; half against half: ρ = {halves.iloc[0]:.2f}" if len(halves) else ""))
    return "\n".join(lines)


def _draw_panel(axes: Axes, table: pd.DataFrame, order: list[str]) -> None:
    style.zero_line(axes, vertical=True)
    chance = table["chance"].max()
    if chance > 0:
        axes.axvline(chance, color=style.MUTED, linestyle=(0, (4, 3)), linewidth=0.9, label="by chance")
    for direction in DIRECTIONS:
        name, colour, marker, shift = _LOOKS[direction]
        rows = table[table["direction"] == direction]
        places = np.array([order.index(score) for score in rows["score"]]) + shift
        if len(rows):
            axes.errorbar(
                rows["estimate"], places, xerr=arms(rows, "estimate"), color=colour, marker=marker,
                markersize=4.5, linestyle="none", label=name,
                **{key: value for key, value in LINE.items() if key != "linewidth"},
            )  # fmt: skip
