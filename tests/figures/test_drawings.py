"""Each figure is a PNG, a PDF and the csv of what it shows; what cannot be drawn is skipped or refused."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from figures import FigureError, style, write_all
from figures.__main__ import main
from figures.ablate import draw_ablate
from figures.labels import name_points, overlap
from figures.load import head_shares
from tests.synthetic_run import ITEMS, N_HEADS, N_LAYERS, N_SELECTED, write_run

MEASURED = ("scaling", "summary", "summary_repeats", "manipulations", "breakdown_toolshed", "profiles")
PATCHED = ("patch_sites", "patch_kv_heads", "layers", "direct", "path")
NAMES = (
    *(*MEASURED, "heads", "patch", "patch_by_score", "joint", *PATCHED, "attribute"),
    *(
        "ablate",
        "ablate_off_target",
        "agree",
        "circuit",
        "rollout",
        "rollout_survival",
        "predict",
        "compare_items",
    ),
)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = write_run(tmp_path_factory.mktemp("run"))
    skipped: list[str] = []
    written = write_all(run, say=skipped.append)
    assert not skipped
    assert [path.name for path in written] == [
        f"{name}.{end}" for name in NAMES for end in ("png", "pdf", "csv")
    ]
    return run


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_is_a_picture_with_ink_and_a_pdf(name: str, drawn: Path) -> None:
    pixels = imread(drawn / "figures" / f"{name}.png")
    assert pixels.shape[1] == round(style.WIDTH * 220)
    assert pixels[..., :3].min() < 0.2 < 0.95 < pixels[..., :3].max()
    assert (drawn / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF-")


def numbers(run: Path, name: str) -> pd.DataFrame:
    return pd.read_csv(run / "figures" / f"{name}.csv")


def test_the_csv_behind_the_bars_holds_the_summary(drawn: Path) -> None:
    summary = pd.read_csv(drawn / "summary.csv").set_index(["model", "measure"])["mean"]
    found = numbers(drawn, "summary").set_index(["model", "quantity"])["mean"]
    assert len(found) == 3
    for (model, quantity), mean in found.items():
        measure, sign = {"Δcopy": ("copy", 1), "Δsem": ("sem", 1), "−G": ("G", -1)}[quantity]
        assert mean == sign * summary[model, measure]


def test_the_csv_behind_the_maps_holds_every_head_and_its_mark(drawn: Path) -> None:
    heads = pd.read_csv(drawn / "heads.csv")
    scores = numbers(drawn, "heads")
    pd.testing.assert_frame_equal(scores, heads[["layer", "head", "prefix_matching", "selected"]])
    effects = pd.read_csv(drawn / "patch_effects.csv").query("metric == 'logprob'")
    shown = numbers(drawn, "patch")
    assert set(shown["direction"]) == set(effects["direction"]) != set()
    for direction, found in shown.groupby("direction"):
        assert len(found) == N_LAYERS * N_HEADS
        assert found["selected"].sum() == N_SELECTED
        one = found.iloc[5]
        same_head = (effects["layer"] == one["layer"]) & (effects["head"] == one["head"])
        rows = effects[same_head & (effects["direction"] == direction)]
        assert one["share"] == pytest.approx(rows["effect_nats"].sum() / sum(ITEMS.values()))


def test_the_csv_behind_the_scatter_joins_score_and_share(drawn: Path) -> None:
    table = numbers(drawn, "patch_by_score")
    assert len(table) == 2 * N_LAYERS * N_HEADS
    shares = head_shares(drawn)["denoise"]["share"]
    np.testing.assert_allclose(table.query("direction == 'denoise'")["share"], shares)
    np.testing.assert_allclose(
        table.query("direction == 'denoise'")["prefix_matching"],
        pd.read_csv(drawn / "heads.csv")["prefix_matching"],
    )


def test_the_csv_behind_the_dose_curve_holds_line_band_and_baseline(drawn: Path) -> None:
    table = numbers(drawn, "ablate").query("measure == 'copy'").set_index(["kind", "k"])
    ablation = pd.read_csv(drawn / "ablate.csv").query("measure == 'copy'")
    draws = ablation.query("kind == 'random' and k == 16")["mean"]
    assert table.loc[("random", 16), ["lo", "hi"]].tolist() == pytest.approx([draws.min(), draws.max()])
    assert table.loc[("selected", 16), "mean"] == 3.2
    assert table.loc[("none", 0), "mean"] == 22.9


def test_the_csv_behind_the_off_target_figure_holds_intervals_and_ranges(drawn: Path) -> None:
    table = numbers(drawn, "ablate_off_target").set_index(["quantity", "kind", "k"])
    source = pd.read_csv(drawn / "ablate_off_target.csv")
    one = source.query("quantity == 'code_loss' and kind == 'selected' and k == 16").iloc[0]
    found = table.loc[("code_loss", "selected", 16)]
    assert (
        found[["change", "ci_lo", "ci_hi", "delta"]].tolist()
        == one[["change", "ci_lo", "ci_hi", "delta"]].tolist()
    )
    assert bool(found["equivalent"]) == one["equivalent"] and one["ci_hi"] > one["delta"]
    draws = source.query("quantity == 'code_loss' and kind == 'norm' and k == 16")["change"]
    found = table.loc[("code_loss", "norm", 16), ["change", "ci_lo", "ci_hi"]].tolist()
    assert found == pytest.approx([draws.median(), draws.min(), draws.max()])
    assert len(table) == 6 * 4 * 3


def test_the_csv_behind_the_agreement_holds_rank_correlation_and_overlap(drawn: Path) -> None:
    table = numbers(drawn, "agree")
    assert table["statistic"].value_counts().to_dict() == {"spearman": 8, "jaccard": 8}
    source = pd.read_csv(drawn / "agree.csv").query(
        "statistic in ('spearman', 'jaccard') and metric == 'logprob'"
    )
    assert sorted(table["estimate"]) == sorted(source["estimate"])


def test_a_dose_curve_of_an_older_folder_has_no_percentiles(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    older = pd.read_csv(run / "ablate_controls.csv").drop(columns=["control", "percentile"])
    older.to_csv(run / "ablate_controls.csv", index=False)
    with pytest.raises(FigureError, match="ablate_controls.csv lacks the columns control, percentile"):
        draw_ablate(run)
    (run / "ablate_off_target.csv").unlink()
    assert [path.stem for path in draw_ablate(run)] == 3 * ["ablate"]


def test_equal_tables_give_equal_bytes_and_the_plot_settings_of_the_caller_stay(
    drawn: Path, tmp_path: Path
) -> None:
    before = dict(matplotlib.rcParams)
    again = write_run(tmp_path)
    write_all(again)
    for name in NAMES:
        for end in ("png", "pdf", "csv"):
            file = f"figures/{name}.{end}"
            assert (again / file).read_bytes() == (drawn / file).read_bytes(), file
    assert dict(matplotlib.rcParams) == before


def test_a_run_with_one_study_gives_its_figures_and_says_why_the_others_are_not_there(tmp_path: Path) -> None:
    run = write_run(tmp_path, only_heads=True)
    absent = ("ablate", "agree", "attribute", "joint", "patch", "ablate_off_target")
    for name in (f"{one}.csv" for one in absent):
        (run / name).unlink()
    said: list[str] = []
    written = write_all(run, say=said.append)
    assert {path.stem for path in written} == {"heads"}
    names = [name.removesuffix("_toolshed") for name in NAMES if name != "heads"]
    assert [line.split(":")[0] for line in said] == [f"Skipped the figure {name}" for name in names]
    tables = dict(zip(names, said, strict=True))
    for name, table in (
        ("scaling", "scaling.csv"), ("summary_repeats", "summary.csv"), ("manipulations", "manipulations.csv"),
        ("breakdown", "breakdown.csv"), ("profiles", "profiles.csv"), ("patch", "patch.csv"),
    ):  # fmt: skip
        assert f"{table} is not in" in tables[name]


def test_one_direction_one_item_and_a_tall_model_are_drawn_too(tmp_path: Path) -> None:
    layer, head = np.divmod(np.arange(4 * 32), 32)
    pd.DataFrame({"layer": layer, "head": head, "prefix_matching": 0.5}).to_csv(
        tmp_path / "heads.csv", index=False
    )
    table = pd.DataFrame({"direction": "noise", "layer": layer, "head": head, "kv_head": np.nan, "n": 1})
    named = {"metric": "logprob", "site": "z", "at": "candidate", "from": "pre", "to": "neut"}
    share = (head - 9.0) / 40
    table.assign(effect_nats=head - 9.0, share=share, ci_lo=share, ci_hi=share, **named).to_csv(
        tmp_path / "patch.csv", index=False
    )
    written = write_all(tmp_path, say=lambda reason: None)
    assert {path.stem for path in written} == {"heads", "patch", "patch_by_score"}


def test_another_metric_draws_its_own_numbers_and_says_so(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    names = (
        "patch",
        "patch_by_score",
        "patch_sites",
        "layers",
        "direct",
        "path",
    )
    shown = {}
    for metric in ("logprob", "margin"):
        write_all(run, say=lambda reason: None, metric=metric)
        shown[metric] = {name: numbers(run, name) for name in (*names, "attribute", "agree")}
    for name in names:
        one, other = (shown[metric][name] for metric in ("logprob", "margin"))
        columns = [column for column in one.columns if column.endswith("share")]
        assert columns and len(one) == len(other)
        scale = {"patch": 1.0, "patch_by_score": 1.0}.get(name, 0.8)
        np.testing.assert_allclose(other[columns], scale * one[columns], rtol=1e-9)
    half = shown["margin"]["patch"]["effect_nats"] / shown["logprob"]["patch"]["effect_nats"]
    np.testing.assert_allclose(half, 0.5)
    reasons: list[str] = []
    write_all(run, say=reasons.append, metric="diverging")
    assert any("patch.csv has no rows of the metric diverging" in reason for reason in reasons)


def test_a_broken_table_is_an_error_and_not_a_skipped_figure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, only_heads=True)
    pd.read_csv(run / "patch.csv").drop(columns="share").to_csv(run / "patch.csv", index=False)
    with pytest.raises(FigureError, match="patch.csv lacks the column share"):
        write_all(run)
    assert main([str(run)]) == 2
    assert "patch.csv lacks the column share" in capsys.readouterr().err


def test_a_selected_head_outside_the_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path, only_heads=True)
    with pytest.raises(FigureError, match="L30H0 is not in the table"):
        write_all(run, [(30, 0)])
    assert main([str(run), "--heads", "18-6"]) == 2
    assert "write it like L18H6" in capsys.readouterr().err
    assert main([str(tmp_path / "nowhere")]) == 2


def test_names_in_a_cluster_do_not_cover_each_other() -> None:
    figure, (axes,) = style.new_figure(height=3)
    points = np.array([[0.5 + 0.01 * i, 0.5 + 0.005 * (i % 3)] for i in range(6)] + [[0.0, 0.0], [1.0, 1.0]])
    axes.scatter(points[:, 0], points[:, 1])
    boxes = name_points(figure, axes, points, {i: f"L1{i}H{i}" for i in range(6)})
    assert not any(overlap(one, other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert [text.get_text() for text in axes.texts] == [f"L1{i}H{i}" for i in range(6)]
