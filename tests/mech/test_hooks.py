"""Hooks are counted, are gone afterwards whatever happened, and a hook that missed is an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from mech.engine import packed, reference
from mech.engine.capture import capture_hooks, shape_rows
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.engine.trie import Trie
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.hooks import EditLocation, HookMissed, edit_hooks, hooked
from mech.interventions.intervention import Edit, Intervention
from mech.models.model import Model
from mech.patching.patch import patch_heads, patch_sets, sweep_names
from tests.mech_cases import ACTION, HEADS, LEFT, RIGHT, FolderFactory, n_torch_hooks, tiny_model
from tests.mech_cases import one_thread as one_thread

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
Z0 = "blocks.0.attn.hook_z"
TOKENS = torch.tensor([LEFT])
QUERY = Query(LEFT, ACTION)


def unchanged(activation: Tensor, hook: Any) -> None:
    return None


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Iterator[Model]:
    """A tiny Llama whose hooks must be, after the test, as many as before it."""
    model = tiny_model(tiny_folder, "llama")
    logits(model)  # transformers registers hooks of its own at the first forward
    before = n_torch_hooks(model)
    yield model
    assert n_torch_hooks(model) == before


@torch.no_grad()
def logits(model: Model) -> Tensor:
    found: Tensor = model.bridge(TOKENS)
    return found


def test_hooks_fire_are_counted_and_are_gone_afterwards(model: Model) -> None:
    before = n_torch_hooks(model)
    names = [Z0, "blocks.2.hook_mlp_out", Z0]
    with hooked(model, [(name, unchanged) for name in names], fires=2) as count:
        assert n_torch_hooks(model) == before + 3
        assert torch.equal(logits(model), logits(model))
    assert count.counts == [2, 2, 2] and count.fired == {Z0: 4, "blocks.2.hook_mlp_out": 2}
    assert n_torch_hooks(model) == before
    logits(model)
    assert count.counts == [2, 2, 2]


def test_what_a_hook_returns_is_what_flows_and_hooks_of_one_name_act_in_order(model: Model) -> None:
    seen: list[Tensor] = []
    hooks: list[tuple[str, Callable[[Tensor, Any], Tensor | None]]] = [
        (Z0, lambda z, hook: torch.zeros_like(z)),
        (Z0, lambda z, hook: z + 1),
        (Z0, lambda z, hook: seen.append(z)),
    ]
    clean = logits(model)
    with hooked(model, hooks, fires=1):
        changed = logits(model)
    assert torch.equal(seen[0], torch.ones_like(seen[0])) and not torch.equal(changed, clean)
    assert torch.equal(logits(model), clean)


@pytest.mark.parametrize(
    ("name", "close"), [("blocks.0.attn.hook_zz", "blocks.0.attn.hook_z"), ("blocks.3.attn.hook_z", "hook_z")]
)
def test_an_unknown_name_is_refused_with_close_names_before_anything_is_registered(
    name: str, close: str, model: Model
) -> None:
    before = n_torch_hooks(model)
    with pytest.raises(InputError, match=f"no hook named '{name}'. Close names: .*{close}"):
        with hooked(model, [(Z0, unchanged), (name, unchanged)]):
            raise AssertionError("the body ran")
    assert n_torch_hooks(model) == before
    with pytest.raises(InputError, match=r"no hook named 'qqqq'\.$"):
        capture_hooks(model, [Z0, "qqqq"], lambda name, tensor: None)


def test_a_hook_that_never_fires_is_an_error(model: Model) -> None:
    with pytest.raises(HookMissed, match=f"'{Z0}' fired 0 times where it must fire at least once"):
        with hooked(model, [(Z0, unchanged)]):
            pass


@pytest.mark.parametrize("forwards", [0, 2])
def test_a_hook_that_fires_another_number_of_times_is_an_error(forwards: int, model: Model) -> None:
    with pytest.raises(HookMissed, match=f"fired {forwards} times where it must fire 1 times"):
        with hooked(model, [(Z0, unchanged)], fires=1):
            for _ in range(forwards):
                logits(model)


def test_hooks_are_gone_after_an_exception_which_stays_what_it_was(model: Model) -> None:
    before = n_torch_hooks(model)
    with pytest.raises(KeyError, match="mine"):
        with hooked(model, [(Z0, unchanged)], fires=1):
            raise KeyError("mine")
    assert n_torch_hooks(model) == before

    def failing(activation: Tensor, hook: Any) -> None:
        raise ZeroDivisionError("in a hook")

    with pytest.raises(ZeroDivisionError):
        with hooked(model, [("blocks.1.hook_resid_pre", unchanged), (Z0, failing)]):
            logits(model)
    assert n_torch_hooks(model) == before


def test_runs_that_fail_leave_no_hook(model: Model) -> None:
    def failing(*arguments: Any) -> Tensor:
        raise MemoryError

    engine = Engine(model)
    edited = Query(LEFT, ACTION, Intervention((Edit("z", 1, 0, "candidate"),)))
    runs = [engine.run(Query(prompt, ACTION), sweep_names(model)) for prompt in (LEFT, RIGHT)]
    ways: list[Callable[[], object]] = [
        lambda: engine.score([edited]),
        lambda: engine.run(edited, [Z0]),
        lambda: reference.score(model, [edited]),
        lambda: patch_heads(engine, *runs),
    ]
    handle = model.bridge.hook_dict["blocks.2.hook_mlp_out"].register_forward_hook(failing)
    try:
        before = n_torch_hooks(model)
        for way in ways:
            with pytest.raises(MemoryError):
                way()
            assert n_torch_hooks(model) == before
    finally:
        handle.remove()


def test_a_users_own_hooks_act_and_stay(model: Model) -> None:
    point = model.bridge.hook_dict[Z0]
    fired: list[int] = []
    handle = point.register_forward_hook(lambda module, args, output: fired.append(1))
    try:
        Engine(model).score([Query(LEFT, ACTION, Intervention((Edit("z", 0, 0, "candidate"),)))])
        reference.score(model, [QUERY])
        assert len(fired) == 3  # prefix cache, row, full forward
        with pytest.raises(KeyError):
            with hooked(model, [(Z0, unchanged)]):
                raise KeyError
        logits(model)
        assert len(fired) == 4
    finally:
        handle.remove()


def test_training_mode_is_refused_by_every_way_in(model: Model) -> None:
    engine = Engine(model)
    recipient, donor = (engine.run(Query(prompt, ACTION), sweep_names(model)) for prompt in (LEFT, RIGHT))
    name, module = next((n, m) for n, m in model.bridge.original_model.named_modules() if n.endswith("mlp"))
    ways: dict[str, Callable[[], object]] = {
        "score": lambda: Engine(model).score([QUERY]),
        "score slowly": lambda: Engine(model, slow=True).score([QUERY]),
        "run": lambda: Engine(model).run(QUERY, [Z0]),
        "prefix cache": lambda: Engine(model).prefix_cache(LEFT),
        "row": lambda: packed.run_row(model, Trie(0), donor.prefix_cache),
        "reference": lambda: reference.full_forward(model, QUERY),
        "sweep": lambda: patch_heads(engine, recipient, donor),
        "sweep slowly": lambda: patch_heads(Engine(model, slow=True), recipient, donor),
        "sets": lambda: patch_sets(engine, recipient, donor, {"all": HEADS}),
    }
    module.training = True
    try:
        for way in ways.values():
            with pytest.raises(InputError, match=rf"training mode \(module '{name}'\): call .*eval"):
                way()
    finally:
        module.training = False
    assert ways["score"]()


def test_edits_meet_one_sequence_of_flat_activations_only(model: Model) -> None:
    [(name, function)] = edit_hooks(model, [EditLocation(Edit("z", 0, 0, "all"), None)])
    width = model.n_heads * model.d_head
    for shape in ((2, 5, width), (1, 5, model.n_heads, model.d_head), (5, width)):
        with pytest.raises(HookMissed, match=r"where \[1, pos, width\] is expected"):
            function(torch.ones(shape), SimpleNamespace(name=name))
    with pytest.raises(HookMissed, match="carries"):
        with hooked(model, [(name, function)]):
            model.bridge(TOKENS.repeat(2, 1))


def test_an_edit_changes_its_rows_and_its_head_and_writes_into_no_activation(model: Model) -> None:
    value = torch.tensor([[1.0] * model.d_head, [2.0] * model.d_head])
    locations = [
        EditLocation(Edit("z", 0, 2, "candidate", value), torch.tensor([3, 1])),
        EditLocation(Edit("z", 0, 3, "all", None, 0.5), None),
    ]
    [(_, function)] = edit_hooks(model, locations)
    before = torch.arange(1.0, 1 + 4 * model.n_heads * model.d_head, dtype=torch.float64).reshape(1, 4, -1)
    kept = before.clone()
    after = function(before, SimpleNamespace(name=Z0))
    assert torch.equal(before, kept) and after is not None
    by_head = after.reshape(4, model.n_heads, model.d_head)
    original = before.reshape(4, model.n_heads, model.d_head)
    assert torch.equal(by_head[:, :2], original[:, :2])
    assert torch.equal(by_head[[0, 2], 2], original[[0, 2], 2])
    assert torch.equal(by_head[[3, 1], 2], value.double())
    assert torch.equal(by_head[:, 3], original[:, 3] / 2)


def test_edits_of_several_sites_are_one_hook_each(model: Model) -> None:
    edits = [
        Edit("z", 0, 0, "all"),
        Edit("z", 0, 1, "all"),
        Edit("z", 1, 0, "all"),
        Edit("mlp_out", 0, None, "all"),
    ]
    hooks = edit_hooks(model, [EditLocation(edit, None) for edit in edits])
    assert [name for name, _ in hooks] == [Z0, "blocks.1.attn.hook_z", "blocks.0.hook_mlp_out"]


def test_heads_that_do_not_exist_and_values_that_do_not_fit_are_refused(model: Model) -> None:
    wide = torch.zeros(model.d_model)
    for edit, words in (
        (Edit("z", 0, model.n_heads, "all"), "L0H4 does not exist"),
        (Edit("z", 0, 0, "all", wide), "must be 8 wide, this one is 32"),
        (Edit("mlp_out", 0, None, "all", wide[:1]), "must be 32 wide, this one is 1"),
    ):
        with pytest.raises(InputError, match=words):
            edit_hooks(model, [EditLocation(edit, None)])
    for head in HeadSet([Head(0, 0), Head(0, model.n_heads - 1)]):
        assert edit_hooks(model, [EditLocation(Edit("z", 0, head.head, "all"), None)])


def test_an_activation_of_unknown_axes_cannot_be_kept(model: Model) -> None:
    with pytest.raises(InputError, match="can be kept"):
        shape_rows(model, "blocks.0.hook_other", torch.zeros(1, 4, 5, 8), [0], [range(1)], 5)
