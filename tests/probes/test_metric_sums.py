"""Effects on metrics from effects on sums: linear, equal to `Contrast.values`, exact and estimated, in odd cases."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from experiments.mechanism.attribute import exact_scores
from experiments.mechanism.pairs import PairRuns
from mech.engine.engine import Engine
from mech.engine.queries import Query, Score
from mech.interventions.intervention import Intervention
from mech.patching.attribution import attribution_names
from mech.patching.direct_effect import direct_names, head_parts
from mech.patching.patch import all_heads
from probes.effects.attribution import attribute_sums, units_of
from probes.items.item import Item
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS, Contrast, contrast_of
from probes.scoring.metric_sums import (
    by_metric,
    changes_of,
    effects_of,
    metrics_by_part,
    metrics_of,
    reference_notes,
    sums_of,
    token_counts,
    weights,
)
from probes.scoring.score import run_decision_point
from tests.mech_cases import FolderFactory, everything_from, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS
from tests.tolerances import FP64, NATS

WORDING = load_wording()
# a× against references that share nothing, go on, stop short, or are only known by distractors.
PAIRS = {
    "nothing in common": dataclasses.replace(ITEMS[0], failed_action="zzz", gold_action="grow(plant='fig')"),
    "a longer reference": dataclasses.replace(
        ITEMS[1], gold_action="prune(plant='fig', cups=12, twice=True)"
    ),
    "a× begins the reference": dataclasses.replace(ITEMS[1], gold_action=ITEMS[1].failed_action + " # done"),
    "the reference begins a×": dataclasses.replace(ITEMS[1], gold_action=ITEMS[1].failed_action[:-4]),
    "distractors": dataclasses.replace(ITEMS[2], gold_action=None),
    "no reference": dataclasses.replace(ITEMS[2], gold_action=None, distractors=()),
}


def _score(*logprobs: float) -> Score:
    return Score(np.array(logprobs, dtype=float), np.zeros(len(logprobs), dtype=bool))


@pytest.mark.parametrize(
    "contrast", [Contrast(("gold",), 1), Contrast(("distractor0", "distractor1"), 0), Contrast((), 0)]
)
def test_metrics_of_sums_are_the_values_of_the_contrast(contrast: Contrast) -> None:
    rng = np.random.default_rng(0)
    scores = {
        name: _score(*-rng.uniform(0, 9, size))
        for name, size in zip(contrast.candidates, (4, 7, 2), strict=False)
    }
    sums: dict[str, float] = {}
    for name, score in scores.items():
        sums.update(sums_of(contrast, name, score))
    counts = token_counts(contrast, {name: score.n_tokens for name, score in scores.items()})
    assert set(sums) == set(counts)
    found = metrics_of(counts, sums)
    assert found == pytest.approx(contrast.values(scores)) and tuple(found) == contrast.metrics
    by_part = metrics_by_part(counts, {name: {"x": value} for name, value in sums.items()})
    assert {metric: parts["x"] for metric, parts in by_part.items()} == found
    assert list(weights(counts)) == [metric for metric in FORMS if metric in contrast.metrics]


@pytest.fixture
def engine(tiny_folder: FolderFactory) -> Engine:
    return Engine(tiny_model(tiny_folder, "llama"))


def runs_of(engine: Engine, item: Item, keep: list[str]) -> PairRuns:
    contrast = contrast_of(engine.model, item, WORDING)
    runs = {
        candidate: tuple(
            run_decision_point(engine, item, name, WORDING, keep, candidate=candidate)
            for name in ("pre", "neut")
        )
        for candidate in contrast.candidates
    }
    return PairRuns(contrast, {name: (low, high) for name, (low, high) in runs.items()})


@pytest.mark.usefixtures("exact_softmax", "one_thread")
@pytest.mark.parametrize("name", list(PAIRS))
def test_everything_from_the_other_run_gives_the_whole_difference_in_every_metric(
    name: str, engine: Engine
) -> None:
    model, item = engine.model, PAIRS[name]
    runs = runs_of(engine, item, attribution_names(model))
    about = runs.about()
    deltas = metrics_of(about["n_tokens"], about["delta"])
    for direction in ("noise", "denoise"):
        effects: dict[str, float] = {}
        nothing: dict[str, float] = {}
        for candidate in runs.runs:
            recipient, donor, sign = runs.sides(candidate, direction)
            query = recipient.query
            assert query.action == donor.query.action
            [under] = engine.score([Query(query.prompt, query.action, everything_from(model, donor))])
            effects.update(effects_of(runs.contrast, candidate, sign, under, recipient.score))
            [same] = engine.score([Query(query.prompt, query.action, Intervention())])
            nothing.update(effects_of(runs.contrast, candidate, sign, recipient.score, recipient.score))
            assert same.total == pytest.approx(recipient.score.total, abs=FP64)
        found = metrics_of(about["n_tokens"], effects)
        assert found == pytest.approx(deltas, abs=FP64)
        assert set(metrics_of(about["n_tokens"], nothing).values()) == {0.0}
    expected = FORMS if item.candidates().keys() - {"failed"} else ("logprob", "logprob_per_token")
    assert tuple(deltas) == expected and min(map(abs, deltas.values())) > NATS / 100
    if name == "distractors":
        assert about["references"] == "distractors" and "distractor1" in about["delta"]


@pytest.mark.usefixtures("exact_softmax", "one_thread")
@pytest.mark.parametrize("name", ["nothing in common", "a longer reference"])
def test_estimates_of_every_metric_are_near_the_exact_effects_along_a_fine_line(
    name: str, engine: Engine
) -> None:
    """Along a fine line an MLP that moves alone gets its exact effect: in the margin and the tail as well."""
    runs = runs_of(engine, PAIRS[name], attribution_names(engine.model))
    counts = runs.about()["n_tokens"]
    exact: dict[str, dict[str, float]] = {}
    estimates: dict[str, dict[str, float]] = {}
    once: dict[str, dict[str, float]] = {}
    for candidate in runs.runs:
        recipient, donor, sign = runs.sides(candidate, "noise")
        for unit, score in exact_scores(engine, recipient, donor).items():
            for sum_name, value in effects_of(runs.contrast, candidate, sign, score, recipient.score).items():
                exact.setdefault(sum_name, {})[unit] = value
        for steps, into in ((24, estimates), (1, once)):
            found = attribute_sums(
                engine, runs.contrast, candidate, recipient, donor, "noise", steps, sites=("mlp_out",)
            )
            into.update({one: units_of(attribution) for one, attribution in found.items()})
    for metric in ("logprob", "margin", "diverging", "margin_per_token"):
        units = [unit for unit in exact["failed"] if unit.startswith("MLP")]
        ours, fine, rough = (
            np.array([metrics_by_part(counts, _only(one, units))[metric][unit] for unit in units])
            for one in (exact, estimates, once)
        )
        np.testing.assert_allclose(fine, ours, rtol=0.02, atol=2e-3)
        assert np.abs(ours).max() > 1e-3 and np.abs(fine - ours).sum() < np.abs(rough - ours).sum()


def _only(sums: dict[str, dict[str, float]], units: list[str]) -> dict[str, dict[str, float]]:
    return {name: {unit: parts[unit] for unit in units} for name, parts in sums.items()}


@pytest.mark.usefixtures("exact_softmax", "one_thread")
def test_direct_effects_of_the_tail_are_those_of_its_tokens(engine: Engine) -> None:
    runs = runs_of(engine, PAIRS["a longer reference"], direct_names(engine.model))
    recipient, donor, _ = runs.sides("failed", "denoise")
    first = runs.contrast.diverging_from
    assert 0 < first < len(recipient.query.action)
    for part in head_parts(engine, recipient, donor).values():
        for changes, total in ((part.total_by_token, part.total), (part.direct_by_token, part.direct)):
            found = changes_of(runs.contrast, "failed", changes)
            assert found["failed"] == total
            assert found["diverging"] == pytest.approx(total - changes[:first].sum(), abs=FP64)
    assert len(head_parts(engine, recipient, donor)) == len(all_heads(engine.model))


def test_a_table_by_metric_derives_each_from_its_own_rows_with_the_same_draws() -> None:
    rows = pd.DataFrame({"metric": ["margin", "logprob", "logprob"], "value": [5.0, 1.0, 3.0]})

    def derive(own: pd.DataFrame) -> pd.DataFrame:
        assert list(own.columns) == ["value"]
        return pd.DataFrame({"mean": [own["value"].mean()], "draw": [np.random.default_rng(1).normal()]})

    found = by_metric(rows, derive)
    assert found["metric"].tolist() == ["logprob", "margin"] and found["mean"].tolist() == [2.0, 5.0]
    assert found["draw"].nunique() == 1
    assert by_metric(rows, derive, ("margin",))["metric"].tolist() == ["margin"]
    assert by_metric(rows.head(0), derive).empty


def test_notes_count_items_and_not_rows() -> None:
    rows = [
        {"item_id": f"i{i // 2}", "references": kind}
        for i, kind in enumerate(["gold"] * 4 + ["distractors"] * 2)
    ]
    [note] = reference_notes(rows)
    assert note.startswith("1 of 3 items have no reference action")
    assert reference_notes(rows[:4]) == []
    [none] = reference_notes([{"item_id": "a", "references": "none"}])
    assert "1 of 1 items have neither" in none
