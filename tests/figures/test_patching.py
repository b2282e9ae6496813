"""What the figures of patching in depth show, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from figures.direct import direct_numbers
from figures.joint import draw_joint
from figures.layers import layer_numbers
from figures.load import FigureError, MissingTable, head_shares, of_metric
from figures.patch_sites import site_numbers
from figures.path import path_numbers
from tests.figure_tables import read_table
from tests.synthetic_patching import write_patching
from tests.synthetic_run import write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_patching(tmp_path)
    return tmp_path


def test_effects_of_other_sites_and_pairs_are_not_drawn_as_heads_of_delta_copy(tmp_path: Path) -> None:
    run = write_run(tmp_path, only_heads=True)
    table = pd.read_csv(run / "patch.csv")
    others = [
        table.assign(site="v"),
        table.assign(at="record"),
        table.assign(**{"from": "neut", "to": "fail"}),
    ]
    pd.concat([*others, table]).to_csv(run / "patch.csv", index=False)
    for metric in ("logprob", "margin"):
        assert sum(map(len, head_shares(run, metric).values())) == len(table) / 2
    others[0].to_csv(run / "patch.csv", index=False)
    with pytest.raises(MissingTable, match="no rows of site z, at candidate"):
        head_shares(run)


def test_head_effects_come_from_direct_where_no_head_was_patched_alone(run: Path) -> None:
    direct = pd.read_csv(run / "direct.csv").query("metric == 'margin' and direction == 'noise'")
    found = head_shares(run, "margin")["noise"]  # patch.csv here has keys and values only
    assert found["share"].tolist() == pytest.approx(direct["total_share"].tolist()) and len(found) == 270
    (run / "direct.csv").unlink()
    with pytest.raises(MissingTable, match="patch.csv has no rows of site z"):
        head_shares(run)


def test_sites_are_compared_where_there_are_two(run: Path) -> None:
    table = of_metric(read_table(run, "patch_redundancy.csv"), "patch_redundancy.csv", "logprob")
    found = site_numbers(table)
    assert len(found) == len(table)
    record = found[(found["at"] == "record") & (found["direction"] == "noise") & (found["set"] == "top32")]
    assert record["site"].tolist() == ["q", "k", "v", "z"]
    alone = table[table["site"] == "z"]
    with pytest.raises(MissingTable, match="no two sites"):
        site_numbers(alone)
    with pytest.raises(FigureError, match="two rows"):
        site_numbers(pd.concat([table, table.head(1)]))


def test_only_pre_to_neut_is_called_delta_copy(run: Path) -> None:
    for name, numbers in (
        ("layers.csv", layer_numbers),
        ("direct.csv", direct_numbers),
        ("path.csv", path_numbers),
    ):
        table = of_metric(read_table(run, name), name, "margin")
        other = table.assign(**{"from": "neut", "to": "fail"})
        pd.testing.assert_frame_equal(numbers(pd.concat([other, table])), numbers(table))
        with pytest.raises(MissingTable):
            numbers(other)
        with pytest.raises(FigureError, match="two rows"):
            numbers(pd.concat([table, table.head(1)]))


@pytest.mark.parametrize("kinds", [("random", "norm", "damage", "direction", "sink"), ("random",)])
def test_one_size_stands_beside_its_controls(
    kinds: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path, only_heads=True)
    table = pd.read_csv(run / "joint.csv")
    table[(table["k"] == 16) & table["controls"].isin(kinds)].to_csv(run / "joint.csv", index=False)
    drawn: list[Figure] = []

    def save(figure: Figure, *_: object) -> list[Path]:
        drawn.append(figure)
        return []

    monkeypatch.setattr("figures.style.save", save)
    draw_joint(run)
    panels = [axes for axes in drawn[0].axes if axes.get_visible()]
    assert len(panels) == 8
    for axes in panels:
        names = [label.get_text() for label in axes.get_xticklabels()]
        assert names[:3] == ["log p", "margin", "random"] and len(names) == 2 + len(kinds)
        low, high = axes.get_xlim()
        shown = [container.lines[0].get_xydata() for container in axes.containers]
        assert len(shown) == len(names)
        ends = [container.lines[2][0].get_segments()[0][:, 1] for container in axes.containers]
        assert all(low < y < high for (low, high), [[_, y]] in zip(ends[:2], shown[:2], strict=True))
        lows, highs = zip(*(ends[2:]), strict=True)
        drawn_range = table[
            (table["k"] == 16) & (table["metric"] == "logprob") & table["controls"].isin(kinds)
        ]
        assert {*lows} <= {*drawn_range["control_lo"]} and {*highs} <= {*drawn_range["control_hi"]}
        for place, [[x, y]] in enumerate(shown):
            assert x == place and low < x < high and axes.get_ylim()[0] < y < axes.get_ylim()[1]
