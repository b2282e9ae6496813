"""Results for a notebook: they print, convert to a data frame, and draw themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mech.heads import Head

if TYPE_CHECKING:
    import pandas as pd

SHOWN = 10
"""Number of rows that are printed."""


class Result(ABC):
    """A table with a headline and one drawing."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The measurement, in one line."""

    @abstractmethod
    def to_dataframe(self) -> pd.DataFrame:
        """All rows."""

    @abstractmethod
    def plot(self, ax: Any = None) -> Any:
        """Draw onto a matplotlib Axes (a new one if None), and return it."""

    def __repr__(self) -> str:
        shown = self._leading()
        return f"{self.headline}\n{shown.to_string(index=False)}{self._rest(len(shown))}"

    def _repr_html_(self) -> str:
        shown = self._leading()
        return f"<p>{self.headline}</p>{shown.to_html(index=False)}<p>{self._rest(len(shown))}</p>"

    def _leading(self) -> pd.DataFrame:
        """The rows to print: the largest effects where there is that column, else the first."""
        rows = self.to_dataframe()
        if "effect" in rows.columns:
            rows = rows.sort_values("effect", key=abs, ascending=False, kind="stable")
        return rows.head(SHOWN)

    def _rest(self, n_shown: int) -> str:
        more = len(self.to_dataframe()) - n_shown
        return f"\n… and {more} more: to_dataframe()" if more > 0 else ""


def axes(ax: Any = None, **figure: Any) -> Any:
    """The Axes to draw on: the given one, or that of a new figure."""
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(**figure)[1]


def head_map(values: Mapping[Head, float], label: str, ax: Any = None) -> Any:
    """Draw values by layer and head, zero white and both signs on one scale; heads without a value are left blank."""
    import numpy as np

    ax = axes(ax)
    size = [1 + max(place) for place in zip(*((head.layer, head.head) for head in values), strict=True)]
    grid = np.full(size, np.nan)
    for head, value in values.items():
        grid[head.layer, head.head] = value
    largest = float(np.nanmax(np.abs(grid)))
    image = ax.imshow(grid, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", origin="lower")
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    ax.figure.colorbar(image, ax=ax, label=label)
    return ax
