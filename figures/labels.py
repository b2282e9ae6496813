"""Names beside points of a scatter, placed so that none covers another and each is nearest its own point."""

from __future__ import annotations

from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from figures import style

_SIZE = 7.5  # points of type
_DISTANCES = (6, 12, 20, 30, 42)  # from point to name, in points of type, nearest first
_AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))

Box = tuple[float, float, float, float]  # left, bottom, right, top, in pixels


def overlap(one: Box, other: Box) -> bool:
    """Whether two boxes share any area."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def name_points(figure: Figure, axes: Axes, points: np.ndarray, names: dict[int, str]) -> list[Box]:
    """Write `names[i]` beside `points[i]` with a thin line between; call it last, when the layout is settled.

    Args:
        figure: the figure of the axes.
        axes: the panel.
        points: [point, 2], all points of the panel in data units.
        names: index of a point → its name; earlier ones choose their place first.

    Returns:
        The boxes of the names in pixels, in order.
    """
    figure.draw_without_rendering()  # fixes the layout, which fixes where points are on the page
    pixels = axes.transData.transform(points)
    to_data = axes.transData.inverted().transform
    taken: list[Box] = []
    for index, name in names.items():
        box = _best_box(axes, pixels, index, len(name), figure.dpi / 72, taken)
        taken.append(box)
        centre = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        line = {"arrowstyle": "-", "color": style.MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3}
        label = axes.annotate(
            name, xy=tuple(points[index]), xytext=tuple(to_data(centre)), textcoords="data", fontsize=_SIZE,
            ha="center", va="center", color=style.TOTAL, arrowprops=line, zorder=5,
        )  # fmt: skip
        label.set_in_layout(False)  # a name must not move the panel it was placed in
    return taken


def _best_box(
    axes: Axes, pixels: np.ndarray, index: int, letters: int, scale: float, taken: list[Box]
) -> Box:
    """The best place: off other names, then inside the panel, then nearest to its own point, then near."""
    size = np.array([0.68 * _SIZE * letters, 1.15 * _SIZE]) * scale
    places: list[tuple[tuple[bool, bool, int, int, int], Box]] = []
    for distance, around in product(_DISTANCES, _AROUND):
        centre = pixels[index] + np.array(around) * (distance * scale + size / 2)
        low, high = centre - size / 2, centre + size / 2
        box = (float(low[0]), float(low[1]), float(high[0]), float(high[1]))
        outside = bool((low < axes.bbox.min).any() or (high > axes.bbox.max).any())
        # A point nearer to the name than its own point (or under it) would be taken for the named one.
        gaps = np.linalg.norm(np.maximum(np.maximum(low - pixels, pixels - high), 0), axis=1)
        rivals = int((gaps <= gaps[index]).sum()) - 1
        hidden = any(overlap(box, other) for other in taken)
        places.append(((hidden, outside, rivals, distance, len(places)), box))
    return min(places)[1]
