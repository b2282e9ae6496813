"""G, Δcopy and Δsem of one call are those of the scores, item by item."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot

from mech.engine.engine import Engine
from mech.errors import InputError
from probes.decomposition import decompose
from probes.scoring.score import run_decision_point
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS
from tests.tolerances import NATS

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_parts_of_each_item_are_differences_of_its_runs(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    items = [ITEMS[2], ITEMS[0]]
    found = decompose(engine, items)
    rows = found.to_dataframe()
    assert rows["item_id"].tolist() == [item.item_id for item in items], "in the order they were given"
    for item, row in zip(items, rows.itertuples(), strict=True):
        pre, neut, fail = (
            run_decision_point(engine, item, name).score.total for name in ("pre", "neut", "fail")
        )
        expected = (pre - fail, neut - pre, fail - neut)
        np.testing.assert_allclose((row.G, row.copy, row.sem), expected, rtol=0, atol=10 * NATS)
        assert row.task_id == item.task_id
    summary = found.summary(np.random.default_rng(0)).set_index("measure")
    assert summary.loc["G", "mean"] == pytest.approx(rows["G"].mean()) and summary.loc["sem", "n"] == 2
    assert found.headline in repr(found)
    axes = found.plot()
    assert [bar.get_height() for bar in axes.patches[:2]] == rows.sort_values("G")["copy"].tolist()
    pyplot.close("all")


def test_no_items_are_refused(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    with pytest.raises(InputError, match="no items"):
        decompose(engine, [])
