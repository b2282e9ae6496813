"""A layer sweep gives what one hooked full forward per layer gives; its two ends are known beforehand."""

from __future__ import annotations

import pytest

from mech.engine import sweep as changes
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.engine.sweep import by_layer, score_edits
from mech.errors import InputError
from mech.interventions.intervention import Edit, scale_heads
from mech.patching.patch import LAYER_SITES, final_name, layer_names, patch_layers, sweep_names
from tests.mech_cases import (
    ACTION,
    HEADS,
    LEFT,
    RIGHT,
    SOME,
    SOME_MODELS,
    STEM,
    TOLERANCE,
    FolderFactory,
    assert_bits,
    assert_scores,
    n_torch_hooks,
    spread,
    tiny_model,
    two_runs,
)
from tests.mech_cases import one_thread as one_thread
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def pair(engine: Engine, shared: int = 0) -> tuple[Run, Run]:
    """A recipient and a donor: one action in contexts of unequal length."""
    names = layer_names(engine.model)
    return two_runs(engine, names, shared)


@pytest.mark.parametrize(
    ("family", "site", "dtype"),
    [*((*pair, "float64") for pair in spread(tuple(LAYER_SITES))), ("llama", "resid_pre", "float32")],
)
def test_a_layer_sweep_equals_a_hooked_forward_per_layer(
    family: str, site: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine = Engine(model)
    recipient, donor = pair(engine, shared=len(STEM) if family == "llama" else 0)
    before, hooks = engine.forwards.ran, n_torch_hooks(model)
    fast = patch_layers(engine, recipient, donor, site)
    assert engine.forwards.ran == before + 1, "all layers share one row"
    slow = patch_layers(Engine(model, slow=True), recipient, donor, site)
    assert list(fast) == list(slow) == list(range(model.n_layers + (site == "resid_pre")))
    assert_scores(list(fast.values()), list(slow.values()), TOLERANCE[dtype])
    moved = [abs(score.total - recipient.score.total) for score in slow.values()]
    assert min(moved[1:]) > 10 * TOLERANCE[dtype], "a layer without effect cannot show that it was patched"
    assert n_torch_hooks(model) == hooks


@pytest.mark.parametrize(("family", "dtype"), SOME_MODELS)
def test_the_two_ends_of_the_residual_stream_are_identities(
    family: str, dtype: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family, dtype)
    engine = Engine(model)
    recipient, donor = pair(engine)
    for one in (engine, Engine(model, slow=True)):
        ends = patch_layers(one, recipient, donor, "resid_pre", [model.n_layers, 0])
        assert_scores([ends[model.n_layers]], [donor.score], TOLERANCE[dtype])
        if family == "gpt2":  # learned positions stand in the residual stream
            assert abs(ends[0].total - recipient.score.total) > 1e-3
        else:
            assert_bits([ends[0]], [recipient.score])
    assert abs(donor.score.total - recipient.score.total) > 1e-2


@pytest.mark.parametrize("family", SOME)
def test_a_patch_that_changes_nothing_is_exactly_zero_and_needs_no_run(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    recipient, _ = pair(Engine(model))
    for engine in (Engine(model), Engine(model, slow=True)):
        for site in LAYER_SITES:
            scores = patch_layers(engine, recipient, recipient, site)
            assert_bits(list(scores.values()), [recipient.score] * len(scores))
        assert engine.forwards.ran == 0
    for site in LAYER_SITES:  # without that short cut
        own = by_layer(recipient, model, f"hook_{site}")
        edits = [Edit(site, layer, None, "candidate", value) for layer, value in enumerate(own)]
        assert_scores(score_edits(Engine(model), recipient, edits), [recipient.score] * len(edits), FP64)


def test_a_sweep_takes_edits_of_any_site_in_any_order(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "qwen3")
    engine = Engine(model)
    recipient, donor = pair(engine)
    theirs = {site: by_layer(donor, model, f"hook_{site}") for site in LAYER_SITES}
    edits = [
        Edit("mlp_out", 2, None, "candidate", theirs["mlp_out"][2]),
        Edit("resid_pre", 1, None, "candidate", theirs["resid_pre"][1]),
        Edit("z", 1, 3, "candidate", None, 0.0),
        Edit("mlp_out", 0, None, "candidate", theirs["mlp_out"][0]),
    ]
    slow = score_edits(Engine(model, slow=True), recipient, edits)
    for nodes in (1, 2 * len(ACTION), 256):
        monkeypatch.setattr(changes, "SWEEP_NODES", nodes)
        assert_scores(score_edits(engine, recipient, edits), slow, FP64)
    assert score_edits(engine, recipient, []) == []
    with pytest.raises(InputError, match="action positions only"):
        score_edits(engine, recipient, [Edit("z", 1, 3, "all", None, 0.0)])
    with pytest.raises(InputError, match="There is no layer 3"):
        score_edits(engine, recipient, [Edit("z", 3, 3, "candidate", None, 0.0)])


def test_what_cannot_be_patched_is_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine, names = Engine(model), layer_names(model)
    recipient, donor = pair(engine)
    assert names[-1] == final_name(model) == "blocks.2.hook_resid_post"
    other = engine.run(Query(RIGHT, (*ACTION[:-1], 5)), names)
    dirty = engine.run(Query(LEFT, ACTION, scale_heads(HEADS, 0.0)), names)
    bare = engine.run(Query(LEFT, ACTION), sweep_names(model))
    for site in LAYER_SITES:
        for to, source, words in ((recipient, other, "same action"), (dirty, donor, "clean recipient")):
            with pytest.raises(InputError, match=words):
                patch_layers(engine, to, source, site)
        end = model.n_layers + (site == "resid_pre")
        for layer in (-1, end):
            with pytest.raises(
                InputError, match=f"no L{layer} to patch at {site} of .*: choose from L0 to L{end - 1}"
            ):
                patch_layers(engine, recipient, donor, site, [layer])
    with pytest.raises(InputError, match="did not keep 'blocks.0.hook_mlp_out'"):
        patch_layers(engine, recipient, bare, "mlp_out")
    with pytest.raises(InputError, match="did not keep 'blocks.2.hook_resid_post'.*layer_names"):
        patch_layers(engine, recipient, bare, "resid_pre")
