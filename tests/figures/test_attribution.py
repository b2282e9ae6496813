"""The figure of attribution against the exact sweep: who is in which top k, its numbers, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from scipy.stats import spearmanr

from figures import FigureError, style, write_all
from figures.attribute import attribution_numbers, draw_attribute
from figures.labels import overlap
from figures.load import MissingTable
from tests.figure_tables import READS, read_table

N_LAYERS, N_HEADS, ITEMS = 10, 9, ("a", "b", "c")


def write(run: Path, directions: tuple[str, ...] = ("denoise", "noise"), mlps: bool = True) -> pd.DataFrame:
    """attribute.csv of made-up items: the estimates follow the effects, but for two saturated heads."""
    rng = np.random.default_rng(0)
    layer, head = np.divmod(np.arange(N_LAYERS * N_HEADS), N_HEADS)
    parts = []
    for direction in directions:
        exact = 2 * rng.standard_t(3, len(layer))
        estimate = exact + 0.2 * rng.normal(size=len(layer))
        exact[[12, 40]], estimate[[12, 40]] = [30.0, -25.0], [0.1, 0.2]
        for index, item in enumerate(ITEMS):
            about = {"item_id": item, "task_id": item, "direction": direction}
            noise = rng.normal(size=(2, len(layer))) if index < 2 else np.zeros((2, len(layer)))
            effects = {"effect_nats": exact + noise[0], "estimate_nats": estimate + noise[1] / 5}
            parts.append(pd.DataFrame({**about, "site": "z", "layer": layer, "head": head, **effects}))
            if mlps:
                few = {name: values[:N_LAYERS] for name, values in effects.items()}
                parts.append(
                    pd.DataFrame(
                        {**about, "site": "mlp_out", "layer": range(N_LAYERS), "head": np.nan, **few}
                    )
                )
    run.mkdir(parents=True, exist_ok=True)
    table = pd.concat(parts).assign(metric="logprob")
    table.to_csv(run / "attribute.csv", index=False)
    return table


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that are drawn, laid out, instead of files."""
    found: list[Figure] = []

    def keep(figure: Figure, numbers: pd.DataFrame, run: Path, name: str) -> list[Path]:
        figure.draw_without_rendering()
        found.append(figure)
        return [run / name]

    monkeypatch.setattr(style, "save", keep)
    yield found


def test_the_numbers_are_means_over_items_and_say_who_is_in_which_top_k(tmp_path: Path) -> None:
    table = write(tmp_path)
    found = attribution_numbers(read_table(tmp_path, "attribute.csv"), "z", "noise")
    assert len(found) == N_LAYERS * N_HEADS and (found["n"] == 3).all() and (found["k"] == 16).all()
    own = table[(table["site"] == "z") & (table["direction"] == "noise")]
    means = own.groupby(["layer", "head"])[["effect_nats", "estimate_nats"]].mean()
    np.testing.assert_allclose(found[["effect_nats", "estimate_nats"]], means)
    counts = found["kind"].value_counts()
    assert counts["both"] + counts["missed"] == counts["both"] + counts["false"] == 16
    missed = found[found["kind"] == "missed"]
    assert {(1, 3), (4, 4)} <= set(zip(missed["layer"], missed["head"], strict=True))
    exact = set(means["effect_nats"].abs().nlargest(16).index)
    screen = set(means["estimate_nats"].abs().nlargest(16).index)
    assert set(zip(missed["layer"], missed["head"], strict=True)) == exact - screen
    few = attribution_numbers(read_table(tmp_path, "attribute.csv"), "mlp_out", "noise")
    assert len(few) == N_LAYERS and few["head"].isna().all() and (few["k"] == 2).all()


def test_ties_go_to_the_lower_layer_and_a_single_unit_is_its_own_top() -> None:
    table = pd.DataFrame({"layer": range(8), "head": 0, "effect_nats": [1.0, -1.0, 1.0, *[0.0] * 5]})
    table = table.assign(item_id="a", direction="noise", site="z", estimate_nats=1.0)
    assert attribution_numbers(table, "z", "noise")["kind"].tolist() == ["both"] * 2 + ["neither"] * 6
    assert attribution_numbers(table[:1], "z", "noise")["kind"].tolist() == ["both"]


def test_the_panels_show_the_line_the_correlation_and_the_names_of_what_was_missed(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    table = write(tmp_path)
    draw_attribute(tmp_path)
    [figure] = drawn
    panels = figure.axes
    assert len(panels) == 4
    for axes, (site, direction) in zip(
        panels,
        [(site, direction) for site in ("z", "mlp_out") for direction in ("denoise", "noise")],
        strict=True,
    ):
        numbers = attribution_numbers(table, site, direction)
        rho = spearmanr(numbers["estimate_nats"], numbers["effect_nats"]).statistic
        missed = numbers[numbers["kind"] == "missed"]
        hits = int((numbers["kind"] == "both").sum())
        k = int(numbers["k"].iloc[0])
        title = axes.get_title(loc="left")
        assert f"ρ = {rho:.2f}, recall@{k} = {hits / k:.2f}" in title
        assert {"denoise": "denoising", "noise": "noising (necessity)"}[direction] in title
        line = next(one for one in axes.lines if one.get_label() == "equal")
        assert line.get_slope() == 1 and line.get_xy1() == (0, 0)
        names = {text.get_text() for text in axes.texts}
        expected = {
            f"MLP{row.layer}" if site == "mlp_out" else f"L{row.layer}H{int(row.head)}"
            for row in missed.itertuples()
        }
        assert names == expected and (site == "mlp_out" or {"L1H3", "L4H4"} <= names)
        points = sum(len(one.get_offsets()) for one in axes.collections)
        assert points == len(numbers)
        low, high = axes.get_xlim(), axes.get_ylim()
        assert low[0] < numbers["estimate_nats"].min() and numbers["effect_nats"].max() < high[1]
    legend = figure.legends[0].get_window_extent()
    assert figure.bbox.x0 <= legend.x0 and legend.x1 <= figure.bbox.x1
    boxes = [tuple(float(edge) for edge in axes.bbox.extents) for axes in panels]
    assert not any(overlap(one, other) for i, one in enumerate(boxes) for other in boxes[:i])


def test_one_direction_and_heads_alone_are_one_panel(tmp_path: Path, drawn: list[Figure]) -> None:
    write(tmp_path, ("noise",), mlps=False)
    draw_attribute(tmp_path)
    assert len(drawn[0].axes) == 1
    table = read_table(tmp_path, "attribute.csv")
    mixed = pd.concat([table, table.assign(direction="denoise", site="mlp_out", head=np.nan)[:10]])
    mixed.drop_duplicates(["item_id", "site", "direction", "layer", "head"]).to_csv(
        tmp_path / "attribute.csv", index=False
    )
    draw_attribute(tmp_path)
    assert [axes.axison for axes in drawn[1].axes] == [False, True, True, False]


def test_a_run_with_this_table_alone_has_the_figure_with_its_three_files(tmp_path: Path) -> None:
    write(tmp_path)
    said: list[str] = []
    written = write_all(tmp_path, say=said.append)
    assert [path.name for path in written] == [f"attribute.{end}" for end in ("png", "pdf", "csv")]
    assert not any("figure attribute:" in line for line in said)
    pixels = imread(written[0])
    assert pixels.shape[1] == round(style.WIDTH * 220) and pixels[..., :3].min() < 0.2
    numbers = pd.read_csv(written[2])
    assert len(numbers) == 2 * (N_LAYERS * N_HEADS + N_LAYERS) and set(numbers["site"]) == {"z", "mlp_out"}
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in write_all(tmp_path, say=said.append)] == before


def test_what_cannot_be_drawn_is_skipped_or_refused_by_name(tmp_path: Path) -> None:
    table = write(tmp_path)
    path = tmp_path / "attribute.csv"
    for column in READS["attribute", "attribute.csv"]:
        table.drop(columns=column).to_csv(path, index=False)
        with pytest.raises(FigureError, match=f"attribute.csv lacks the column {column}"):
            draw_attribute(tmp_path)
    for change, message in (
        (
            pd.concat([table, table[:1]]),
            "attribute.csv has two rows of item_id a, direction denoise, site z",
        ),
        (table[1:], "denoise effects at the site z for some items only"),
        (
            table.assign(estimate_nats=table["estimate_nats"].where(table["item_id"] != "b")),
            "lacks a number in the rows of denoise at the site z",
        ),
    ):
        change.to_csv(path, index=False)
        with pytest.raises(FigureError, match=message):
            draw_attribute(tmp_path)
    for change in (table.assign(direction="sideways"), table.assign(site="attn_out")):
        change.to_csv(path, index=False)
        with pytest.raises(MissingTable, match="no rows of the directions denoise or noise"):
            draw_attribute(tmp_path)
    with pytest.raises(MissingTable, match="no rows of noise at the site q"):
        attribution_numbers(table, "q", "noise")
    path.unlink()
    with pytest.raises(MissingTable, match=r"attribute\.csv is not in"):
        draw_attribute(tmp_path)
