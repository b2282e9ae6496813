"""Metrics: a margin is a difference, diverging tokens carry all of it, and each is linear in the tokens."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mech.engine.engine import Engine
from mech.engine.queries import Score
from probes.items.toolshed import build_toolshed_items
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS, Contrast, contrast_of
from probes.scoring.score import build_queries
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def _score(*logprobs: float) -> Score:
    return Score(np.array(logprobs, dtype=float), np.zeros(len(logprobs), dtype=bool))


def test_values_of_a_contrast_by_hand() -> None:
    scores = {"failed": _score(-1, -2, -3), "gold": _score(-1, -5)}
    assert Contrast(("gold",), 1).values(scores) == {
        "logprob": -6,
        "margin": 0,
        "diverging": -5,
        "logprob_per_token": -2,
        "margin_per_token": 1,
        "diverging_per_token": -2.5,
    }


def test_distractors_stand_in_by_their_mean_and_nothing_leaves_logprob_alone() -> None:
    scores = {"failed": _score(-1, -2), "distractor0": _score(-4), "distractor1": _score(-6)}
    both = Contrast(("distractor0", "distractor1"), 0)
    assert (both.values(scores)["margin"], both.references_are) == (2, "distractors")
    none = Contrast((), 0)
    assert none.values(scores) == {"logprob": -3, "logprob_per_token": -1.5}
    assert (none.metrics, none.references_are) == (("logprob", "logprob_per_token"), "none")


@pytest.fixture
def engine(tiny_folder: FolderFactory) -> Engine:
    return Engine(tiny_model(tiny_folder, "llama"))


def test_the_shared_tokens_cancel_in_a_margin(engine: Engine) -> None:
    wording = load_wording()
    for item in build_toolshed_items(0)[:2]:
        contrast = contrast_of(engine.model, item, wording)
        found = build_queries(engine.model, item, ["neut"], wording, contrast.candidates)
        scores = engine.score([scoring.query for scoring in found], 1)
        of = dict(zip(contrast.candidates, scores, strict=True))
        values, at = contrast.values(of), contrast.diverging_from
        assert found[0].query.action[:at] == found[1].query.action[:at]
        assert found[0].query.action[at] != found[1].query.action[at]
        tails = of["failed"].logprobs[at:].sum() - of["gold"].logprobs[at:].sum()
        assert values["margin"] == pytest.approx(tails, abs=1e-4)
        assert tuple(sorted(values)) == tuple(sorted(FORMS))


def test_an_item_without_a_reference_is_contrasted_with_its_distractors(engine: Engine) -> None:
    item = dataclasses.replace(build_toolshed_items(0)[0], gold_action=None)
    assert contrast_of(engine.model, item, load_wording()).references == ("distractor0", "distractor1")
    alone = dataclasses.replace(item, distractors=())
    assert contrast_of(engine.model, alone, load_wording()).metrics == ("logprob", "logprob_per_token")
