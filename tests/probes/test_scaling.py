"""The line through models of several sizes: known answers, what is refused, and what is said instead."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.run.schema import TABLES
from mech.errors import InputError
from probes.measures.scaling import family, fit_line, fit_scaling, leave_one_out, scaling_table

# G = -40 + 10 log10(n / 10^6): it is zero at 10^10 parameters.
EXACT = {"fig-1m": (1e6, -40.0), "fig-10m": (1e7, -30.0), "oak-100m": (1e8, -20.0), "oak-1b": (1e9, -10.0)}


def _summary(means: dict[str, tuple[float, float]], env: str = "e", measure: str = "G") -> pd.DataFrame:
    lines = [(model, env, measure, mean, mean - 1, mean + 1, 30, 15) for model, (_, mean) in means.items()]
    return pd.DataFrame(
        lines, columns=["model", "env", "measure", "mean", "ci_lo", "ci_hi", "n", "n_clusters"]
    )


def _fit(means: dict[str, tuple[float, float]]) -> pd.DataFrame:
    table = scaling_table([_summary(means)], {name: size for name, (size, _) in means.items()})
    return fit_scaling(table).set_index("group")


def test_the_table_holds_every_measure_of_every_model_by_size() -> None:
    reversed_order = dict(reversed(EXACT.items()))
    parts = [
        _summary(reversed_order),
        _summary(EXACT, measure="copy"),
        _summary({"fig-1m": EXACT["fig-1m"]}, env="d"),
    ]
    table = scaling_table(parts, {name: size for name, (size, _) in EXACT.items()})
    assert set(table.columns) == set(TABLES["scaling"])
    assert table["env"].tolist() == ["d", *["e"] * 8]
    assert table[(table["env"] == "e") & (table["measure"] == "G")]["model"].tolist() == list(EXACT)
    assert table["n_parameters"].tolist()[1:5] == [1e6, 1e7, 1e8, 1e9]
    assert scaling_table([], {}).empty


def test_points_on_a_line_give_the_line_and_no_range() -> None:
    fit = _fit(EXACT)
    assert ("env", *fit.reset_index().columns[:1]) == ("env", "group") and set(fit.reset_index()) == set(
        TABLES["scaling_fit"]
    )
    whole = fit.loc["all"]
    assert whole["n_models"] == 4 and whole["note"] == ""
    assert whole["slope"] == pytest.approx(10) and whole["intercept"] == pytest.approx(-100)
    assert whole["r2"] == pytest.approx(1)
    assert whole[["crossing_parameters", "loo_lo", "loo_hi"]].tolist() == pytest.approx([1e10] * 3)


def test_a_family_of_two_has_a_slope_and_no_crossing() -> None:
    fit = _fit({**EXACT, "elm-2m": (2e6, -5.0)})
    assert list(fit.index) == ["all", "fig", "oak"]  # one elm is no line
    for name in ("fig", "oak"):
        assert fit.loc[name, "slope"] == pytest.approx(10) and fit.loc[name, "n_models"] == 2
        assert fit.loc[name, ["r2", "crossing_parameters", "loo_lo", "loo_hi"]].isna().all()
        assert fit.loc[name, "note"] == "2 models: no crossing is extrapolated from fewer than 3"


def test_leaving_one_out_bounds_the_crossing_by_hand() -> None:
    # Three models; the pairs give slopes 10, 5 and 7.5 per decade.
    sizes, means = [1e6, 1e7, 1e8], [-40.0, -30.0, -25.0]
    by_pair = [10.0 ** (8 + 25 / 5), 10.0 ** (8 + 25 / 7.5), 10.0 ** (7 + 30 / 10)]
    assert leave_one_out(sizes, means) == pytest.approx(by_pair)
    fit = _fit(dict(zip(("a-1m", "b-10m", "c-100m"), zip(sizes, means, strict=True), strict=True)))
    line = fit.loc["all"]
    assert line["slope"] == pytest.approx(7.5) and line["intercept"] == pytest.approx(-95 / 3 - 7.5 * 7)
    assert line["crossing_parameters"] == pytest.approx(10.0 ** (7 + 95 / 3 / 7.5))
    assert line["r2"] == pytest.approx(112.5 / (112.5 + 25 / 6))
    assert [line["loo_lo"], line["loo_hi"]] == pytest.approx([min(by_pair), max(by_pair)])
    assert line["note"] == "each leave-one-out line has 2 models"


def test_where_the_effect_does_not_shrink_there_is_no_crossing_and_it_is_said() -> None:
    falling = _fit({"a-1m": (1e6, -10.0), "b-10m": (1e7, -12.0), "c-100m": (1e8, -30.0)}).loc["all"]
    assert falling["slope"] == pytest.approx(-10)
    assert falling[["crossing_parameters", "loo_lo", "loo_hi"]].isna().all()
    assert falling["note"] == "the slope is not above 0: no crossing; none without a-1m, b-10m, c-100m"
    flat = _fit({"a-1m": (1e6, -10.0), "b-10m": (1e7, -10.0), "c-100m": (1e8, -10.0)}).loc["all"]
    assert flat["slope"] == 0 and math.isnan(flat["r2"]) and math.isnan(flat["crossing_parameters"])
    slow = _fit({"a-1m": (1e6, -10.0), "b-10m": (1e7, -9.999), "c-100m": (1e8, -9.998)}).loc["all"]
    assert math.isnan(slow["crossing_parameters"]) and "too near 0" in slow["note"]


def test_a_range_without_an_upper_end_names_the_model_it_rests_on() -> None:
    line = _fit(
        {"a-1m": (1e6, -40.0), "b-10m": (1e7, -20.0), "c-100m": (1e8, -20.0), "d-1b": (1e9, -21.0)}
    ).loc["all"]
    assert math.isfinite(line["crossing_parameters"]) and math.isfinite(line["loo_lo"])
    assert math.isnan(line["loo_hi"]) and line["note"] == "none without a-1m"


def test_fewer_than_three_models_are_not_extrapolated() -> None:
    for count in (0, 1, 2):
        with pytest.raises(InputError, match=f"3 models or more, not {count}"):
            leave_one_out([1e6, 1e7][:count], [-4.0, -3.0][:count])


def test_models_of_one_size_have_no_line() -> None:
    with pytest.raises(InputError, match="two sizes"):
        fit_line([1e6, 1e6], [-1.0, -2.0])
    fit = _fit({"a-1m": (1e6, -10.0), "a-1m-q4": (1e6, -12.0)})
    assert fit["note"].tolist() == ["2 models of one size: no line"] * 2 and fit["slope"].isna().all()
    assert _fit({"a-1m": (1e6, -10.0)}).loc["all", "note"] == "1 model: no line"
    # A checkpoint and its 4-bit twin beside one other model: without that one there is no line.
    twin = _fit({"a-1m": (1e6, -10.0), "a-1m-q4": (1e6, -12.0), "b-10m": (1e7, -5.0)}).loc["all"]
    assert twin["note"] == "none without b-10m" and math.isfinite(twin["loo_lo"])


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("smollm2-135m", "smollm2"),
        ("smollm2-135m-q4", "smollm2"),
        ("qwen2.5-0.5b", "qwen2.5"),
        ("llama3.2-1b", "llama3.2"),
        ("HuggingFaceTB/SmolLM2-1.7B-Instruct", "smollm2"),
        ("gemma-3-270m-it", "gemma-3"),
        ("gpt2", "gpt2"),
    ],
)
def test_a_family_is_the_name_before_the_size(model: str, expected: str) -> None:
    assert family(model) == expected


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(-90, 90)), min_size=3, max_size=8, unique_by=lambda p: p[0]
    ),
    st.randoms(use_true_random=False),
    st.sampled_from([0.125, 8.0]),
)
def test_a_line_forgets_the_order_and_follows_a_change_of_unit(
    pairs: list[tuple[int, int]], mix: random.Random, factor: float
) -> None:
    sizes, means = [10 ** (6 + p / 10) for p, _ in pairs], [float(m) for _, m in pairs]
    order = mix.sample(range(len(pairs)), len(pairs))
    line = fit_line(sizes, means)
    again = fit_line([sizes[i] for i in order], [means[i] for i in order])
    scaled = fit_line(sizes, [factor * mean for mean in means])
    larger = fit_line([1000 * size for size in sizes], means)
    assert again.slope == pytest.approx(line.slope, abs=1e-9)
    assert again.intercept == pytest.approx(line.intercept, abs=1e-8)
    assert scaled.slope == pytest.approx(factor * line.slope, abs=1e-9)
    assert larger.slope == pytest.approx(line.slope, abs=1e-9)
    if line.slope > 1e-3 and math.isfinite(line.crossing) and line.crossing < 1e200:
        assert math.log10(scaled.crossing) == pytest.approx(math.log10(line.crossing), abs=1e-6)
        assert math.log10(larger.crossing) == pytest.approx(math.log10(line.crossing) + 3, abs=1e-6)


@pytest.mark.parametrize(
    ("summaries", "parameters", "sentence"),
    [
        ([_summary(EXACT), _summary(EXACT)], {}, "has a line twice: fig-1m, e, G"),
        ([_summary(EXACT)], {"fig-1m": 1e6}, "parameters of fig-10m is not known"),
        ([_summary(EXACT)], dict.fromkeys(EXACT, 0.0), "parameters of fig-1m is not known"),
        ([_summary(EXACT).drop(columns="n")], {}, "lacks the columns n"),
        ([_summary(EXACT).assign(mean=np.nan)], {}, "has no mean on line 1"),
    ],
)
def test_a_table_that_could_only_give_a_wrong_line_is_refused(
    summaries: list[pd.DataFrame], parameters: dict[str, float], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        scaling_table(summaries, parameters)


def test_a_table_without_its_columns_is_refused_and_one_without_the_measure_is_empty() -> None:
    with pytest.raises(InputError, match="lacks the columns n_parameters"):
        fit_scaling(_summary(EXACT))
    table = scaling_table(
        [_summary(EXACT, measure="copy")], {name: size for name, (size, _) in EXACT.items()}
    )
    assert fit_scaling(table).empty
    assert fit_scaling(table, measure="copy")["n_models"].tolist() == [4, 2, 2]


def test_the_published_means_give_the_published_lines(reference_dir: Path) -> None:
    sizes = {
        **{"smollm2-135m": 0.135e9, "smollm2-360m": 0.362e9, "qwen2.5-0.5b": 0.494e9},
        **{"qwen3-0.6b": 0.596e9, "llama3.2-1b": 1.236e9},
    }
    paper = pd.read_csv(reference_dir / "paper_summary.csv")
    table = scaling_table([paper[paper["model"].isin(sizes)]], sizes)
    fit = fit_scaling(table).set_index(["env", "group"])
    toolshed, coderepair = fit.loc[("toolshed", "all")], fit.loc[("coderepair", "all")]
    assert (toolshed["n_models"], coderepair["n_models"]) == (5, 3)
    assert toolshed["slope"] == pytest.approx(10.88, abs=0.005) and toolshed["r2"] == pytest.approx(
        0.61, abs=0.005
    )
    assert toolshed["crossing_parameters"] == pytest.approx(20.5e9, abs=0.05e9)
    assert coderepair["slope"] == pytest.approx(27.01, abs=0.005)
    assert coderepair["r2"] == pytest.approx(0.996, abs=0.0005)
    assert coderepair["crossing_parameters"] == pytest.approx(152.7e9, abs=0.05e9)
    pairs = fit.loc[[("toolshed", "smollm2"), ("coderepair", "smollm2")]]
    assert pairs["slope"].tolist() == pytest.approx([12.37, 28.62], abs=0.005)
    assert pairs["crossing_parameters"].isna().all()  # the paper gives 11.6 and 103.9 billion from two models
