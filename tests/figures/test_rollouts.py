"""What the figures of rollouts show, in which order, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from experiments.run.schema import TABLES
from figures.load import FigureError, MissingTable
from figures.predict import calibration_numbers, draw_predict
from figures.rollout import PANELS, draw_rollout, kind_of, rollout_numbers
from figures.rollout_survival import coloured, draw_rollout_survival, survival_numbers
from probes.rollouts.prediction import calibration_table, predict_table
from probes.rollouts.rates import rates
from probes.rollouts.steps import per_rollout, per_step
from probes.rollouts.survival import survival
from tests.figure_tables import read_table
from tests.step_cases import rng, rollout, together
from tests.synthetic_rollouts import ARMS, HARNESSES, PREDICTORS, write_rollouts


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_rollouts(tmp_path)
    return tmp_path


def test_the_csv_behind_the_rollouts_holds_the_rates_of_every_arm_in_its_order(run: Path) -> None:
    written = draw_rollout(run)
    found = pd.read_csv(written[2])
    assert list(dict.fromkeys(found["arm"])) == list(ARMS)
    source = read_table(run, "rollout_rates.csv").set_index(["arm", "metric"])
    assert len(found) == len(ARMS) * 6 and "n_steps" not in set(found["metric"])
    for row in found.itertuples():
        one = source.loc[(row.arm, row.metric)]
        assert (row.mean, row.ci_lo, row.ci_hi, row.n) == (one["mean"], one["ci_lo"], one["ci_hi"], one["n"])


def test_the_share_of_readable_calls_is_the_first_panel() -> None:
    assert next(iter(PANELS.values())) == ("parseable_share",)


def test_a_rate_that_is_undefined_is_said_to_be_and_a_metric_that_is_absent_has_no_panel(run: Path) -> None:
    rates = pd.read_csv(run / "rollout_rates.csv")
    one = (rates["arm"] == "drop") & (rates["metric"] == "repeat_per_chance")
    rates.loc[one, ["mean", "ci_lo", "ci_hi"]] = None
    rates[rates["metric"] != "stuck"].to_csv(run / "rollout_rates.csv", index=False)
    found = pd.read_csv(draw_rollout(run)[2])
    assert found["mean"].isna().sum() == 1 and "stuck" not in set(found["metric"])


def test_every_model_and_environment_has_its_page(tmp_path: Path) -> None:
    write_rollouts(tmp_path, ARMS[:3], models=("one", "other"))
    for draw, name in (
        (draw_rollout, "rollout"),
        (draw_rollout_survival, "rollout_survival"),
        (draw_predict, "predict"),
    ):
        written = draw(tmp_path)
        assert [path.name for path in written[::3]] == [f"{name}.png", f"{name}_2.png"]
        assert set(pd.read_csv(written[2])["model"]) == {"one"} and set(pd.read_csv(written[5])["model"]) == {
            "other"
        }


def test_rows_that_stand_twice_or_are_not_there_are_refused(run: Path) -> None:
    rates = read_table(run, "rollout_rates.csv")
    with pytest.raises(
        FigureError, match="two rows of model smollm2-135m-q4, env toolshed, arm verbatim, metric"
    ):
        rollout_numbers(pd.concat([rates, rates.head(1)]))
    with pytest.raises(MissingTable, match="none of the metrics"):
        rollout_numbers(rates[rates["metric"] == "n_steps"])
    curves = read_table(run, "rollout_survival.csv")
    with pytest.raises(FigureError, match="two rows of .* t 0"):
        survival_numbers(pd.concat([curves, curves.head(1)]))
    with pytest.raises(FigureError, match="rises: arm verbatim"):
        survival_numbers(curves.assign(survival=curves["t"] / 10))
    bins, areas = read_table(run, "predict_calibration.csv"), read_table(run, "predict.csv")
    with pytest.raises(FigureError, match="predict_calibration.csv has two rows"):
        calibration_numbers(pd.concat([bins, bins.head(1)]), areas)
    with pytest.raises(FigureError, match="predict.csv has two rows"):
        calibration_numbers(bins, pd.concat([areas, areas.head(1)]))
    areas.assign(arm="drop").to_csv(run / "predict.csv", index=False)
    with pytest.raises(MissingTable, match="No arm has its rows both"):
        draw_predict(run)


def test_an_arm_is_a_control_if_its_change_was_drawn_at_random() -> None:
    kinds = {
        "verbatim": "none",
        "verbatim+ban": "none",
        "drop/knockout": "changed",
        "verbatim+ban/ablate-random0": "random",
    }
    assert {arm: kind_of(arm) for arm in kinds} == kinds


def test_of_many_curves_those_of_different_harnesses_are_told_apart_first() -> None:
    assert coloured(list(ARMS)) == [*HARNESSES, "verbatim/ablate", "verbatim/knockout"]
    assert coloured(list(reversed(ARMS)))[-6:] == list(reversed(HARNESSES))
    few = ["verbatim/ablate", "verbatim", "drop/knockout"]
    assert coloured(few) == few
    ten = [f"verbatim/knockout-random{draw}" for draw in range(9)]
    assert coloured([*ten, "drop/knockout", "verbatim"]) == [*ten[:6], "drop/knockout", "verbatim"]


def test_the_csv_behind_the_curves_holds_all_arms_whatever_the_order_of_the_rows(run: Path) -> None:
    found = pd.read_csv(draw_rollout_survival(run)[2])
    source = read_table(run, "rollout_survival.csv")
    assert list(dict.fromkeys(found["arm"])) == list(ARMS) and len(found) == len(source)
    pd.testing.assert_series_equal(found["survival"], source["survival"])
    turned = source.iloc[::-1]
    pd.testing.assert_frame_equal(
        survival_numbers(turned).sort_values(["arm", "t"], ignore_index=True),
        survival_numbers(source).sort_values(["arm", "t"], ignore_index=True),
    )


def test_the_csv_behind_the_calibration_holds_bins_and_areas(run: Path) -> None:
    found = pd.read_csv(draw_predict(run)[2])
    areas = found[found["panel"] == "auc"]
    assert areas["predictor"].tolist() == list(PREDICTORS) and areas["x"].isna().all()
    assert areas["mean"].tolist() == pd.read_csv(run / "predict.csv")["auc"].tolist()
    bins, source = found[found["panel"] == "calibration"], pd.read_csv(run / "predict_calibration.csv")
    assert bins["x"].tolist() == source["predicted"].tolist()
    assert bins["mean"].tolist() == source["observed"].tolist()


def test_the_tables_that_probes_make_of_steps_are_drawn(tmp_path: Path) -> None:
    rollouts = ("aab", "abC", "A", "abab", "aaa", "abcD", "ab", "aaB")
    steps = together(
        *(
            rollout(actions, arm=arm, task=f"t{place}", end="solved" if actions[-1].isupper() else "step_limit")
            for arm in ("verbatim", "verbatim+ban/knockout", "drop")
            for place, actions in enumerate(rollouts)
        )
    )  # fmt: skip
    points = per_step(steps).query("at_risk").rename(columns={"canonical_repeat": "repeats"})
    points = points.assign(p=(points["index"] / 4).clip(upper=1.0), G=-points["index"])
    tables = {
        "rollout_rates": rates(per_rollout(steps), rng, n_draws=50),
        "rollout_survival": survival(steps, rng, n_draws=50),
        "predict": predict_table(points, ["G", "p"], ["p"], rng, n_draws=50),
        "predict_calibration": calibration_table(points, ["p"], rng, bins=2, n_draws=50),
    }
    for name, table in tables.items():
        assert set(table.columns) == set(TABLES[name])
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    for draw, pages in ((draw_rollout, 1), (draw_rollout_survival, 1), (draw_predict, 3)):
        assert len(draw(tmp_path)) == 3 * pages
