"""A set's three effects equal hooked full forwards, hold their identities, and cost less where sets agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from mech.engine import sweep as changes
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query, Score
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.models.model import Model
from mech.patching.circuits import CRITERIA, Criterion, complement, token_effects
from mech.patching.patch import all_heads, patch_sets, sweep_names
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    SOME,
    SOME_MODELS,
    TOLERANCE,
    FolderFactory,
    assert_bits,
    assert_scores,
    tiny_model,
    two_runs,
)
from tests.mech_cases import one_thread as one_thread
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

NONE = HeadSet([])
# Sets that agree up to a layer, sets that do not, one twice, the empty one.
SETS = (
    HEADS,
    HeadSet([Head(0, 1), Head(1, 0)]),
    HeadSet([Head(0, 1), Head(1, 0), Head(2, 0)]),
    HeadSet([Head(2, 3)]),
    NONE,
    HeadSet([Head(0, 1), Head(0, 2), Head(2, 3)]),
    HEADS,
)


def joint_scores(engine: Engine, recipient: Run, donor: Run, sets: Sequence[HeadSet]) -> list[Score]:
    return list(patch_sets(engine, recipient, donor, dict(enumerate(sets))).values())


def circuit_effects(
    engine: Engine, without: Run, with_it: Run, sets: Sequence[HeadSet], criterion: Criterion
) -> list[float]:
    return [float(effect.sum()) for effect in token_effects(engine, without, with_it, sets, criterion)]


def pair(engine: Engine) -> tuple[Run, Run]:
    return two_runs(engine, sweep_names(engine.model))


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_joint_scores_equal_hooked_full_forwards(family: str, dtype: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine = Engine(model)
    recipient, donor = pair(engine)
    fast = joint_scores(engine, recipient, donor, SETS)
    slow = joint_scores(Engine(model, slow=True), recipient, donor, SETS)
    assert_scores(fast, slow, TOLERANCE[dtype])
    rows = patch_sets(engine, recipient, donor, {str(at): heads for at, heads in enumerate(SETS)})
    assert_scores(fast, list(rows.values()), TOLERANCE[dtype])
    assert_bits([fast[4], fast[6]], [recipient.score, fast[0]])
    assert len({round(score.total, 3) for score in fast}) == len(set(SETS)), "sets must differ in effect"


def test_one_set_a_row_and_all_in_one_row_give_the_same(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model(tiny_folder, "gemma3"))
    recipient, donor = pair(engine)
    before = engine.forwards.ran
    whole = joint_scores(engine, recipient, donor, SETS)
    assert engine.forwards.ran == before + 1
    for nodes in (1, 3 * len(ACTION)):
        monkeypatch.setattr(changes, "SWEEP_NODES", nodes)
        assert_scores(joint_scores(engine, recipient, donor, SETS), whole, FP64)


def test_sets_that_agree_share_their_copies(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    recipient, donor = pair(engine)
    stock = changes.run_block
    seen: dict[int, int] = {}

    def counted(model: Model, layer: int, row: Tensor, arguments: dict[str, Any]) -> Tensor:
        seen[layer] = row.shape[1] // len(ACTION)
        return stock(model, layer, row, arguments)

    monkeypatch.setattr(changes, "run_block", counted)
    joint_scores(engine, recipient, donor, SETS)
    # Layer 0: {1} and {1, 2}; layer 1: {1}{0} beside {1, 2}; layer 2: 4 histories behind them and L2H3 alone.
    assert seen == {0: 2, 1: 2, 2: 5}
    seen.clear()
    joint_scores(engine, recipient, donor, [HeadSet([Head(2, 3)]), NONE])
    assert seen == {2: 1}
    seen.clear()
    joint_scores(engine, recipient, donor, [NONE])
    assert not seen


@pytest.mark.parametrize("family", SOME)
def test_all_heads_carry_everything_and_none_nothing(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    engine = Engine(model)
    low, high = pair(engine)
    delta = high.score.total - low.score.total
    learned = family == "gpt2"  # there the embedding differs too, and no head writes it
    for kind in CRITERIA:
        every, none, some = circuit_effects(engine, low, high, [all_heads(model), NONE, HEADS], kind)
        exact = {
            "necessity": (not learned, True),
            "sufficiency": (not learned, True),
            "faithfulness": (True, not learned),
        }
        for found, expected, holds in ((every, delta, exact[kind][0]), (none, 0.0, exact[kind][1])):
            assert (abs(found - expected) <= FP64) == holds, (kind, found, expected)
        assert 1e-3 < abs(some) and abs(some - delta) > 1e-3
    [alone] = circuit_effects(engine, low, high, [HEADS], "faithfulness")
    [others] = circuit_effects(engine, low, high, [complement(model, HEADS)], "necessity")
    assert alone + others == pytest.approx(delta, abs=FP64)


def test_the_three_effects_are_what_their_names_say(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "qwen2")
    engine = Engine(model, slow=True)
    low, high = pair(Engine(model))
    others = complement(model, HEADS)
    assert len(others) + len(HEADS) == len(all_heads(model)) and not set(others) & set(HEADS)
    noised = patch_sets(engine, high, low, {"some": HEADS, "others": others})
    denoised = patch_sets(engine, low, high, {"some": HEADS})
    expected = (
        high.score.total - noised["some"].total,
        denoised["some"].total - low.score.total,
        noised["others"].total - low.score.total,
    )
    found = [circuit_effects(Engine(model), low, high, [HEADS], kind)[0] for kind in CRITERIA]
    np.testing.assert_allclose(found, expected, rtol=0, atol=FP64)


def test_effects_of_tokens_sum_to_those_of_the_action_and_of_all_heads_are_the_tokens_difference(
    tiny_folder: FolderFactory,
) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    low, high = pair(engine)
    for kind in CRITERIA:
        each = token_effects(engine, low, high, [HEADS, all_heads(model), NONE], kind)
        assert all(one.shape == (len(ACTION),) for one in each)
        whole = circuit_effects(engine, low, high, [HEADS, all_heads(model), NONE], kind)
        np.testing.assert_allclose([one.sum() for one in each], whole, rtol=0, atol=FP64)
        np.testing.assert_allclose(each[1], high.score.logprobs - low.score.logprobs, rtol=0, atol=FP64)
        assert np.ptp(each[0]) > 1e-4 and np.abs(each[2]).max() <= FP64


def test_what_cannot_be_asked_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    low, high = pair(engine)
    with pytest.raises(InputError, match="L3H0 does not exist"):
        joint_scores(engine, high, low, [HEADS, HeadSet([Head(3, 0)])])
    with pytest.raises(InputError, match="L0H9 does not exist"):
        circuit_effects(engine, low, high, [HeadSet([Head(0, 9)])], "faithfulness")
    bare = engine.run(Query(LEFT, ACTION))
    with pytest.raises(InputError, match="did not keep"):
        joint_scores(engine, bare, low, [HEADS])
