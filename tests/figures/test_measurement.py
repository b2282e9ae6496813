"""Figures of the whole measurement: what they plot is what the tables say, in order, and legible at page width."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.text import Text

from figures import FigureError, style
from figures.breakdown import draw_breakdown, family_numbers
from figures.labels import overlap
from figures.layout import arms, fold, limits, page_name, pages, span
from figures.load import MissingTable
from figures.manipulations import draw_manipulations, manipulation_numbers, margin_text
from figures.profiles import draw_profiles, profile_numbers
from figures.scaling import draw_scaling, drawn_fits, scaling_numbers, size_text
from figures.summary import draw_summary
from figures.summary_repeats import draw_summary_repeats, repeat_numbers
from tests.figure_tables import read_table
from tests.synthetic_run import MODELS, write_measurement

BOTH = ("toolshed", "coderepair")
LONG = ("HuggingFaceTB/SmolLM2-1.7B-Instruct-q4", "an-organisation/A-Rather-Long-Model-Name-0.5B-Instruct")
DRAWINGS: dict[str, Callable[[Path], list[Path]]] = {
    "scaling": draw_scaling,
    "summary": draw_summary,
    "summary_repeats": draw_summary_repeats,
    "manipulations": draw_manipulations,
    "breakdown": draw_breakdown,
    "profiles": draw_profiles,
}
RUNS = {"one": (list(MODELS)[:1], BOTH[:1]), "three": (list(MODELS)[:3], BOTH), "long": (LONG, BOTH)}

Pages = dict[str, tuple[Figure, pd.DataFrame]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: write_measurement(folder / name, *names) for name, names in RUNS.items()}


@pytest.fixture(scope="module")
def drawn(runs: dict[str, Path]) -> Iterator[Callable[[str, Path], Pages]]:
    """Draw a figure and get its pages, laid out, instead of files; of `runs`, which do not change, once only."""
    found: Pages = {}
    cache: dict[tuple[str, Path], Pages] = {}

    def keep(figure: Figure, numbers: pd.DataFrame, run: Path, name: str) -> list[Path]:
        figure.draw_without_rendering()
        found[name] = (figure, numbers)
        return [run / name]

    def draw(name: str, run: Path) -> Pages:
        if (name, run) not in cache:
            found.clear()
            DRAWINGS[name](run)
            if run not in runs.values():
                return dict(found)
            cache[name, run] = dict(found)
        return cache[name, run]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "save", keep)
        yield draw


def edit(run: Path, name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> pd.DataFrame:
    """Change a table on the disk and return what was there."""
    table = read_table(run, name)
    change(table.copy()).to_csv(run / name, index=False)
    return table


def bars(axes: Axes) -> list[ErrorbarContainer]:
    return [each for each in axes.containers if isinstance(each, ErrorbarContainer)]


def whiskers(axes: Axes) -> list[tuple[float, float, float]]:
    """(x, lowest, highest) of every horizontal whisker that is visible, and y for vertical ones."""
    found = []
    for container in bars(axes):
        for segment in (segment for part in container.lines[2] for segment in part.get_segments()):
            if len(segment) and np.isfinite(segment).all():
                flat = segment[0][1] == segment[1][1]
                along, across = (0, 1) if flat else (1, 0)
                found.append((segment[0][across], segment[0][along], segment[1][along]))
    return found


def points(axes: Axes) -> list[tuple[float, float]]:
    """Where the markers of all error bars are."""
    return [tuple(place) for container in bars(axes) for place in container.lines[0].get_xydata()]


# --- what every figure keeps to


def texts(figure: Figure) -> list[tuple[str, tuple[float, float, float, float]]]:
    """Every text that is shown, and its box in pixels."""
    hidden = set()
    for axes in figure.axes:
        for axis, view in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, axes.get_ylim())):
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not axes.axison or not min(view) <= tick.get_loc() <= max(view):
                    hidden |= {tick.label1, tick.label2}
    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text() not in ("", " ")]
    return [(text.get_text(), text.get_window_extent().extents) for text in shown if text not in hidden]


@pytest.mark.parametrize("case", RUNS)
@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_covers_another_or_leaves_the_page(
    name: str, case: str, runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    for page, (figure, _) in drawn(name, runs[case]).items():
        assert figure.get_figwidth() == style.WIDTH and figure.get_figheight() < 10.5, page
        boxes = [
            (text, (box[0] + 1, box[1] + 1, box[2] - 1, box[3] - 1)) for text, box in texts(figure)
        ]  # a pixel is no overlap
        assert len(boxes) > 8
        covered = [
            (one, other)
            for i, (one, here) in enumerate(boxes)
            for other, there in boxes[:i]
            if overlap(tuple(map(float, here)), tuple(map(float, there)))
        ]
        assert not covered, (page, covered)
        width, height = figure.bbox.size
        outside = [text for text, box in boxes if min(box) < -2 or box[2] > width + 2 or box[3] > height + 2]
        assert not outside, (page, outside)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("scaling", "scaling.csv"),
        ("summary_repeats", "summary.csv"),
        ("manipulations", "manipulations.csv"),
        ("breakdown", "breakdown.csv"),
        ("profiles", "profiles.csv"),
    ],
)
def test_a_row_that_stands_twice_is_named_and_refused(name: str, table: str, tmp_path: Path) -> None:
    run = write_measurement(tmp_path)
    edit(run, table, lambda rows: pd.concat([rows, rows]))
    with pytest.raises(FigureError, match=rf"{table} has two rows of model smollm2-135m-q4"):
        DRAWINGS[name](run)


@pytest.mark.parametrize("name", ["summary_repeats", "manipulations", "breakdown", "scaling", "profiles"])
def test_a_missing_interval_has_a_point_and_no_whisker(
    name: str, tmp_path: Path, runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    before = drawn(name, runs["one"])
    run = write_measurement(tmp_path, *RUNS["one"])
    for table in ("summary.csv", "manipulations.csv", "breakdown.csv", "scaling.csv", "profiles.csv"):
        edit(run, table, lambda rows: rows.assign(ci_lo=np.nan))
    after = drawn(name, run)
    for page, (figure, numbers) in after.items():
        assert numbers["ci_lo"].isna().all()
        axes_before = before[page][0].axes
        assert sum(len(whiskers(axes)) for axes in axes_before) > 0
        for axes, old in zip(figure.axes, axes_before, strict=True):
            assert whiskers(axes) == []
            assert points(axes) == points(old)
            assert len(axes.patches) == len(old.patches)


# --- scaling


def test_scaling_plots_each_model_at_its_size_with_its_interval(
    runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    figure, numbers = drawn("scaling", runs["three"])["scaling"]
    table = read_table(runs["three"], "scaling.csv").query("measure == 'G'")
    for axes, env in zip(figure.axes, BOTH, strict=True):
        rows = table[table["env"] == env].sort_values("n_parameters")
        assert axes.get_xscale() == "log" and axes.get_title(loc="left").startswith(
            f"{env}, n\u00a0=\u00a060"
        )
        assert points(axes) == list(zip(rows["n_parameters"], rows["mean"], strict=True))
        expected = rows[["n_parameters", "ci_lo", "ci_hi"]].to_numpy()
        np.testing.assert_allclose(whiskers(axes), expected)
    assert numbers["model"].dropna().tolist() == 2 * ["smollm2-135m-q4", "qwen2.5-0.5b", "llama3.2-1b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == numbers["model"].head(3).tolist()


def lines_of(axes: Axes) -> list[Any]:
    """The fitted lines and what hangs on them: solid or dashed lines of two points that are not on zero."""
    return [line for line in axes.lines if len(line.get_xdata()) == 2 and np.ptp(line.get_ydata()) > 0]


def test_the_fitted_line_is_solid_over_the_models_and_dashed_to_its_crossing(
    runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    figure, _ = drawn("scaling", runs["three"])["scaling"]
    fits = read_table(runs["three"], "scaling_fit.csv")
    for axes, fit in zip(figure.axes, fits.itertuples(), strict=True):
        solid, dashed = lines_of(axes)
        assert solid.get_linestyle() == "-" and dashed.get_linestyle() == "--"
        assert solid.get_xdata() == pytest.approx([0.135e9, 1.236e9])
        assert dashed.get_xdata() == pytest.approx([1.236e9, fit.crossing_parameters])
        assert dashed.get_ydata()[1] == pytest.approx(0, abs=1e-9)
        np.testing.assert_allclose(solid.get_ydata(), fit.intercept + fit.slope * np.log10(solid.get_xdata()))
        (reach,) = [line for line in axes.lines if line.get_linewidth() == 4]
        assert reach.get_xdata() == pytest.approx([fit.loo_lo, min(fit.loo_hi, axes.get_xlim()[1])])


@pytest.mark.parametrize("n_models", [1, 2])
def test_fewer_than_three_models_have_no_line_and_a_note(
    n_models: int, tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    run = write_measurement(tmp_path, list(MODELS)[:n_models])
    # A fit of two models is never drawn, whatever the table offers.
    edit(
        run, "scaling_fit.csv", lambda fits: fits.assign(slope=5.0, intercept=-60.0, crossing_parameters=1e12)
    )
    figure, numbers = drawn("scaling", run)["scaling"]
    (axes,) = figure.axes
    assert lines_of(axes) == [] and len(numbers) == n_models
    assert axes.get_legend().get_texts()[0].get_text().startswith(f"{n_models} model")
    (run / "scaling_fit.csv").unlink()
    assert lines_of(drawn("scaling", run)["scaling"][0].axes[0]) == []


def test_a_crossing_without_an_upper_end_and_a_slope_that_falls_are_said(
    tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    run = write_measurement(tmp_path, list(MODELS)[:3])
    edit(run, "scaling_fit.csv", lambda fits: fits.assign(loo_hi=np.nan, note="none without llama3.2-1b"))
    (axes,) = drawn("scaling", run)["scaling"][0].axes
    (sentence,) = (text.get_text().replace("\n", " ") for text in axes.get_legend().get_texts())
    assert "to never)" in sentence and "none without" in sentence
    (reach,) = [line for line in axes.lines if line.get_linewidth() == 4]
    assert reach.get_xdata()[1] == axes.get_xlim()[1]
    flat = {"crossing_parameters": np.nan, "loo_lo": np.nan, "slope": -2.0}
    edit(
        run, "scaling_fit.csv", lambda fits: fits.assign(**flat, note="the slope is not above 0: no crossing")
    )
    (axes,) = drawn("scaling", run)["scaling"][0].axes
    (line,) = lines_of(axes)
    assert line.get_linestyle() == "-" and not [line for line in axes.lines if line.get_linewidth() == 4]


def test_the_line_of_a_family_spans_its_own_models_only(
    tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    run = write_measurement(tmp_path, list(MODELS))

    def with_family(fits: pd.DataFrame) -> pd.DataFrame:
        family = fits.assign(
            group="smollm2", n_models=3, slope=9.0, crossing_parameters=np.nan, loo_lo=np.nan
        )
        return pd.concat([family, fits])

    edit(run, "scaling_fit.csv", with_family)
    (axes,) = drawn("scaling", run)["scaling"][0].axes
    everything, _, family = lines_of(axes)
    assert everything.get_xdata() == pytest.approx([0.135e9, 1.711e9])
    assert family.get_xdata() == pytest.approx([0.135e9, 1.711e9])
    edit(run, "scaling.csv", lambda rows: rows[rows["model"] != "smollm2-1.7b"])
    assert lines_of(drawn("scaling", run)["scaling"][0].axes[0])[2].get_xdata()[1] == pytest.approx(0.362e9)


def test_only_fits_of_three_models_or_more_are_drawn_and_all_models_come_first() -> None:
    fits = pd.DataFrame({"group": ["smollm2", "all", "qwen", "llama"], "n_models": [3, 6, 2, 4]})
    fits = fits.assign(env="e", slope=[1.0, 1.0, 1.0, np.nan], intercept=0.0, note=None)
    fits = fits.assign(crossing_parameters=1.0, loo_lo=1.0, loo_hi=1.0)
    assert drawn_fits(fits)["group"].tolist() == ["all", "smollm2"]


def test_sizes_are_written_as_people_write_them() -> None:
    sizes = (135e6, 1.711e9, 20.3e9, 9.995e8, 1e13, 3e19, 5e3, 12)
    assert [size_text(size) for size in sizes] == [
        "135 M", "1.71 B", "20.3 B", "1e+03 M", "10 T", "3e+19", "5 K", "12",
    ]  # fmt: skip


def test_a_scaling_table_without_g_is_a_missing_table() -> None:
    rows = pd.DataFrame({"model": ["m"], "env": ["e"], "measure": ["copy"], "n_parameters": [1e9]})
    with pytest.raises(MissingTable, match="no rows of the measure G"):
        scaling_numbers(rows)


# --- repeat probability


def test_repeat_probability_pairs_before_and_after_and_leaves_values_as_they_are(
    runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    figure, numbers = drawn("summary_repeats", runs["three"])["summary_repeats"]
    summary = read_table(runs["three"], "summary.csv").set_index(["model", "env", "measure"])
    assert len(numbers) == 3 * 2 * 5
    for row in numbers.itertuples():
        there = summary.loc[(row.model, row.env, f"{row.quantity}_{row.condition}")]
        assert (row.mean, row.ci_lo, row.ci_hi, row.n) == tuple(there[["mean", "ci_lo", "ci_hi", "n"]])
    left, right = figure.axes[:2]
    assert [x for x, _ in points(left)] == [
        summary.loc[(model, "toolshed", f"p_repeat_{name}"), "mean"]
        for name in ("pre", "fail")
        for model in RUNS["three"][0]
    ]
    assert len(points(right)) == 9
    assert left.get_xlim() == right.get_xlim() == (-0.03, 1.03)
    # Before, after and abstract of a model stand one under the other, and apart from the next model's.
    places = [y for _, y in points(right)]
    assert places == pytest.approx([-0.2, 0.8, 1.8, 0, 1, 2, 0.2, 1.2, 2.2])
    assert [label.get_text() for label in left.get_yticklabels()] == list(RUNS["three"][0])
    for place, model in enumerate(RUNS["three"][0]):  # each pair is joined by a line
        ends = [summary.loc[(model, "toolshed", f"p_repeat_{name}"), "mean"] for name in ("pre", "fail")]
        joins = [line for line in left.lines if list(line.get_xdata()) == ends]
        assert len(joins) == 1 and int(np.round(joins[0].get_ydata()[1])) == place


def test_a_model_without_both_repeat_probabilities_is_left_out() -> None:
    rows = [("a", "p_repeat_pre"), ("a", "p_repeat_fail"), ("b", "p_repeat_pre"), ("b", "greedy_repeat_fail")]
    table = pd.DataFrame(rows, columns=["model", "measure"])
    table = table.assign(env="e", mean=0.5, ci_lo=0.4, ci_hi=0.6, n=9)
    assert set(repeat_numbers(table)["model"]) == {"a"}
    with pytest.raises(MissingTable, match="p_repeat_pre and p_repeat_fail"):
        repeat_numbers(table[table["model"] == "b"])


# --- manipulations


def manipulated(**columns: list[Any]) -> pd.DataFrame:
    table = pd.DataFrame(columns)
    defaults = {"model": "m", "env": "e", "ci_lo": -1.0, "ci_hi": 1.0, "n": 9, "p_holm": 0.5, "G": -2.0}
    rest = {name: value for name, value in {**defaults, "equivalent": "False"}.items() if name not in columns}
    return table.assign(**rest)


def test_conditions_are_sorted_by_their_delta_and_all_models_share_the_order() -> None:
    table = manipulated(
        model=["m", "m", "m", "k", "k", "k"],
        condition=["up", "none", "down", "up", "none", "down"],
        delta=[3.0, 0.5, -2.0, 1.0, 1.5, -6.0],
    )
    numbers = manipulation_numbers(table)
    # Means over models: up 2, none 1, down −4.
    assert numbers["condition"].tolist() == 2 * ["down", "none", "up"]
    assert numbers["place"].tolist() == 2 * [0, 1, 2]
    assert numbers["model"].tolist() == ["m", "m", "m", "k", "k", "k"]


def test_filled_is_significant_after_holm_and_a_square_is_equivalent(
    tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    table = manipulated(
        condition=["a", "b", "c", "d", "e"],
        delta=[-4.0, -3.0, 0.1, 0.2, np.nan],
        p_holm=[0.049, 0.05, np.nan, 0.001, np.nan],
        equivalent=["False", "False", "True", "true", ""],
        G=[-1.25, -2.0, -3.0, -4.0, np.nan],
    )
    table.to_csv(tmp_path / "manipulations.csv", index=False)
    figure, numbers = drawn("manipulations", tmp_path)["manipulations"]
    assert numbers.set_index("condition")["significant"].to_dict() == {
        "a": True, "b": False, "c": False, "d": True, "e": False,
    }  # fmt: skip
    (axes,) = figure.axes
    looks = {}
    for container in bars(axes):
        line = container.lines[0]
        filled = line.get_markerfacecolor() != "white"
        looks |= {place[0]: (line.get_marker(), filled) for place in line.get_xydata()}
    assert {x: look for x, look in looks.items() if np.isfinite(x)} == {
        -4.0: ("o", True), -3.0: ("o", False), 0.1: ("s", False), 0.2: ("s", True),
    }  # fmt: skip
    assert [text.get_text() for text in axes.texts] == ["−1.2", "−2.0", "−3.0", "−4.0", "–", "G"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "3 tests" in legend[0] and "±δ" in legend[2]


def test_rows_of_the_panel_are_the_conditions_from_the_lowest_delta_down(
    runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    figure, numbers = drawn("manipulations", runs["one"])["manipulations"]
    table = read_table(runs["one"], "manipulations.csv").sort_values("delta")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == table["condition"].tolist()
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first is on top
    assert sorted(points(axes)) == [(delta, float(place)) for place, delta in enumerate(table["delta"])]
    intervals = {place: (low, high) for place, low, high in whiskers(axes)}
    np.testing.assert_allclose([intervals[place] for place in range(len(table))], table[["ci_lo", "ci_hi"]])
    assert numbers["delta"].tolist() == table["delta"].tolist()


def test_the_margin_of_equivalence_is_stated_if_there_is_one_only(tmp_path: Path) -> None:
    assert margin_text(tmp_path) == "±δ"
    table = pd.DataFrame({"model": "m", "env": "e", "measure": ["sem", "copy"], "delta": [0.5, 0.5]})
    table.to_csv(tmp_path / "equivalence.csv", index=False)
    assert margin_text(tmp_path) == "±0.5 nats"
    table.assign(delta=[0.5, 1.0]).to_csv(tmp_path / "equivalence.csv", index=False)
    assert margin_text(tmp_path) == "±δ"


def test_a_model_that_was_not_measured_in_an_environment_has_an_empty_panel(
    tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    run = write_measurement(tmp_path, list(MODELS)[:2], BOTH)
    absent = "model == 'smollm2-135m-q4' and env == 'coderepair'"
    for name in ("manipulations.csv", "summary.csv"):
        edit(run, name, lambda rows: rows.drop(rows.query(absent).index))
    panels = drawn("manipulations", run)["manipulations"][0].axes
    assert [len(points(axes)) for axes in panels] == [16, 16, 0, 16]
    assert "not measured" in panels[2].get_title(loc="left").replace("\n", " ")
    bars_page = drawn("summary", run)["summary"][0]
    assert [label.get_text() for label in bars_page.axes[1].get_yticklabels()] == ["not measured", "n = 100"]


# --- by family


def test_levels_are_sorted_by_copy_and_steps_by_number() -> None:
    rows = [
        ("operator", "small", 1.0), ("operator", "large", 9.0), ("operator", "alone", 4.0),
        ("step", "10", 9.0), ("step", "2", 1.0), ("template", "only", 3.0), ("colour", "red", 1.0),
        ("colour", "blue", 2.0),
    ]  # fmt: skip
    table = pd.DataFrame(rows, columns=["by", "level", "mean"]).assign(
        model="m", env="e", measure="copy", n=5
    )
    table = table.assign(ci_lo=table["mean"] - 1, ci_hi=table["mean"] + 1)
    sem = table.assign(measure="sem", mean=-table["mean"])
    numbers = family_numbers(pd.concat([table, sem, table.assign(env="other")]), "e")
    copy = numbers[numbers["measure"] == "copy"]
    # A grouping of one level, and one that is not known, are left out.
    assert list(zip(copy["by"], copy["level"], strict=True)) == [
        ("operator", "large"), ("operator", "alone"), ("operator", "small"), ("step", "2"), ("step", "10"),
    ]  # fmt: skip
    assert numbers.loc[numbers["measure"] == "sem", "mean"].tolist() == (-copy["mean"]).tolist()


def test_by_family_draws_one_figure_per_environment_with_the_numbers_of_the_table(
    runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    found = drawn("breakdown", runs["three"])
    assert list(found) == ["breakdown_toolshed", "breakdown_coderepair"]
    table = read_table(runs["three"], "breakdown.csv")
    for env, (figure, numbers) in zip(BOTH, found.values(), strict=True):
        rows = table[(table["env"] == env) & (table["measure"] != "G")]
        single = rows.groupby("by")["level"].transform("nunique") == 1
        keys = ["model", "by", "level", "measure"]
        values = ["mean", "ci_lo", "ci_hi", "n"]
        expected = rows[~single].set_index(keys)[values].sort_index()
        pd.testing.assert_frame_equal(numbers.set_index(keys)[values].sort_index(), expected)
        assert sum(len(points(axes)) for axes in figure.axes) == len(numbers)
    codes, numbers = found["breakdown_coderepair"]
    assert (
        numbers.loc[numbers["level"] == "timeout", "n"].eq(1).all()
    )  # a single item is shown, without whisker
    assert len(whiskers(codes.axes[0])) == len(points(codes.axes[0])) - 2
    assert {label.get_text() for label in codes.axes[-3].get_yticklabels()} == {"yes", "no"}


def test_nothing_to_compare_is_a_missing_table(tmp_path: Path) -> None:
    run = write_measurement(tmp_path)
    edit(run, "breakdown.csv", lambda rows: rows[rows["by"] == "quotes_source"])
    with pytest.raises(MissingTable, match="no grouping of copy or sem with two levels"):
        draw_breakdown(run)
    assert not (run / "figures").exists()


# --- profiles


def test_profiles_plot_tenths_as_lines_and_parts_as_bars(
    runs: dict[str, Path], drawn: Callable[[str, Path], Pages]
) -> None:
    figure, numbers = drawn("profiles", runs["one"])["profiles"]
    table = read_table(runs["one"], "profiles.csv")
    left, right = figure.axes
    for measure, line in zip(("copy", "sem"), left.lines[1:], strict=True):  # after the line at zero
        rows = table[(table["measure"] == measure) & (table["axis"] == "position")]
        assert list(line.get_xdata()) == [5, 15, 25, 35, 45, 55, 65, 75, 85, 95]
        np.testing.assert_array_equal(line.get_ydata(), rows["mean"])
    parts = table[(table["axis"] == "part") & (table["measure"] != "G")]
    assert [patch.get_height() for patch in right.patches] == parts["mean"].tolist()
    edges = sorted((patch.get_x(), patch.get_x() + patch.get_width()) for patch in right.patches)
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(edges))
    middles = np.array(edges).mean(axis=1).reshape(3, 2).mean(axis=1)
    np.testing.assert_allclose(middles, [0, 1, 2], atol=1e-9)  # a pair is centred on its name
    assert len(numbers) == 2 * (10 + 3)


def test_tenths_that_are_missing_leave_a_gap_and_an_axis_that_is_missing_says_so(
    tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    run = write_measurement(tmp_path)
    edit(run, "profiles.csv", lambda rows: rows[(rows["axis"] == "position") & (rows["level"] != "4")])
    left, right = drawn("profiles", run)["profiles"][0].axes
    assert np.isnan(left.lines[1].get_ydata()).tolist() == [place == 4 for place in range(10)]
    assert not right.axison and right.texts[0].get_text() == "not measured"


def test_an_unknown_level_and_a_table_without_copy_are_refused(runs: dict[str, Path]) -> None:
    table = read_table(runs["one"], "profiles.csv")
    with pytest.raises(FigureError, match="unknown level 10 of position"):
        profile_numbers(table.replace({"level": {"9": "10"}}))
    with pytest.raises(MissingTable, match="copy or sem"):
        profile_numbers(table[table["measure"] == "G"])


# --- what they share


def test_more_models_than_fit_side_by_side_go_on_more_pages(
    tmp_path: Path, drawn: Callable[[str, Path], Pages]
) -> None:
    run = write_measurement(tmp_path, list(MODELS)[:4])
    found = drawn("manipulations", run)
    assert list(found) == ["manipulations", "manipulations_2"]
    shown = [list(dict.fromkeys(numbers["model"])) for _, numbers in found.values()]
    assert shown == [list(MODELS)[:2], list(MODELS)[2:4]]
    assert pages(list("abcdefg"), 3) == [["a", "b"], ["c", "d"], ["e", "f", "g"]]
    assert pages([], 3) == [] and pages(["a"], 3) == [["a"]]
    assert [page_name("x", index) for index in range(3)] == ["x", "x_2", "x_3"]


def test_arms_are_never_negative_and_missing_where_a_bound_is() -> None:
    table = pd.DataFrame({"mean": [1.0, 1.0, 1.0], "ci_lo": [0.5, 1.1, np.nan], "ci_hi": [3.0, 1.2, 2.0]})
    np.testing.assert_allclose(arms(table), [[0.5, 0.0, np.nan], [2.0, 0.2, np.nan]])
    low, high = limits(table, margin=0.1)
    assert (low, high) == pytest.approx((-0.3, 3.3))
    assert limits(table.assign(mean=np.nan, ci_lo=np.nan, ci_hi=np.nan), margin=0.1) == pytest.approx(
        (-0.1, 0.1)
    )


def test_names_are_folded_at_their_joints_and_lose_no_letter() -> None:
    assert fold("short", 10) == "short"
    assert fold("one-two_three/four", 8) == "one-two_\nthree/\nfour"
    assert fold("indivisiblename", 4) == "indivisiblename"
    for name in LONG:
        assert fold(name, 12).replace("\n", "") == name
    assert span(pd.Series([3, 3])) == "3" and span(pd.Series([5, 3])) == "3–5"


def test_a_level_called_none_is_a_level_and_not_a_gap(tmp_path: Path) -> None:
    (tmp_path / "breakdown.csv").write_text(
        "model,env,by,level,measure,mean,ci_lo,ci_hi,n\nm,e,step,01,copy,1,,,1\nm,e,operator,None,copy,2,,,1\n",
        encoding="utf-8",
    )
    table = read_table(tmp_path, "breakdown.csv")
    assert table["level"].tolist() == ["01", "None"] and table["ci_lo"].isna().all()
