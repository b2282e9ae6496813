"""Tables of items by columns: the cells of `DataFrame.pivot`, and the refusals."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from mech.errors import InputError
from probes.stats.frame_checks import by_item, rectangle

ROWS = pd.DataFrame(
    [
        (f"item-{item}", layer, head, float(100 * item + 10 * layer + head))
        for item in (10, 9, 2)
        for layer in (1, 0)
        for head in (2, 0)
    ],
    columns=["item_id", "layer", "head", "nats"],
)


def test_cells_are_those_of_pivot_sorted() -> None:
    rows = ROWS.drop(index=5)
    found = by_item(rows, ["layer", "head"], "nats")
    wanted = rows.pivot(index="item_id", columns=["layer", "head"], values="nats").sort_index(axis=1)
    pd.testing.assert_frame_equal(found, wanted)
    assert np.isnan(found.to_numpy()).sum() == 1
    # As after a pivot: the order in memory decides how sums round.
    assert found.to_numpy().flags["C_CONTIGUOUS"]


def test_a_doubled_row_and_an_empty_cell_are_refused_by_name() -> None:
    with pytest.raises(InputError, match="A row occurs twice: item_id item-9, layer 1, head 0"):
        by_item(pd.concat([ROWS, ROWS.iloc[5:6]]), ["layer", "head"], "nats")
    with pytest.raises(InputError, match="Item item-9 has no nats for layer 1, head 0, and others have"):
        rectangle(ROWS.drop(index=5), ["layer", "head"], "nats")
