"""What depends on the length of a sequence: exact on both sides of every switch, or refused on every path."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Llama4TextConfig

from mech.checks.run_checks import run_checks
from mech.decoding.decode import Decoding, decode, decode_uncached
from mech.decoding.kv_sequence import KVSequence
from mech.engine import blocks, packed, reference
from mech.engine.engine import Engine
from mech.engine.prefix_cache import PrefixCache
from mech.engine.queries import Query
from mech.errors import InputError
from mech.head_scores.induction import head_scores, repeated_tokens
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, scale_heads
from mech.load import examine_model, load_model
from mech.models.lengths import LONGEST, limits, same_rotation
from mech.patching.gradients import Shifted, full_gradients
from mech.patching.patch import patch_heads, sweep_names
from tests.mech_cases import assert_scores, tiny_model
from tests.tiny_models import FAMILIES, N_POSITIONS, SWITCH
from tests.tolerances import FP64

FolderFactory = Callable[..., Path]

SWITCHING = ("phi3_longrope", "llama_dynamic", "gemma3_dynamic")
ALIKE = ("llama_linear", "llama_yarn", "llama_llama3", "mistral", "gemma3", "llama")
EMPTY = PrefixCache((), NOTHING.fingerprint)


def ids(n: int) -> tuple[int, ...]:
    """Text without a short period."""
    return tuple(20 + (7 * i + i * i // 5) % 200 for i in range(n))


def query(n: int) -> Query:
    """A question whose whole sequence has n tokens."""
    return Query(ids(n - 3), (*ids(n)[-3:], 30))


def together(n: int) -> list[Query]:
    """The longest of n tokens, with shorter ones and one under an edit that share its row."""
    edit = scale_heads(HeadSet([Head(1, 2)]), 0.0, "candidate")
    return [
        query(n),
        Query(ids(n - 3), query(n).action, edit),
        query(n - 8),
        Query(ids(n)[: n // 2], (5, 6, 7)),
    ]


@pytest.mark.parametrize("family", [*SWITCHING, *ALIKE, *FAMILIES])
def test_the_limit_of_each_family(family: str, tiny_folder: FolderFactory) -> None:
    wanted = SWITCH if family in SWITCHING else N_POSITIONS if family == "gpt2" else None
    assert tiny_model(tiny_folder, family).n_positions == wanted


@pytest.mark.parametrize("family", [*SWITCHING, *ALIKE])
def test_the_limit_is_where_the_stock_model_begins_to_treat_early_positions_otherwise(
    family: str, tiny_folder: FolderFactory
) -> None:
    network = load_model(
        str(tiny_folder(family, "float64")), dtype="float64", check=False
    ).bridge.original_model
    with torch.no_grad():
        logits = {n: network(torch.tensor([ids(n)])).logits[0, :40] for n in (41, SWITCH, SWITCH + 1, 140)}
    gaps = {n: float((found - logits[41]).abs().max()) for n, found in logits.items()}
    assert gaps[SWITCH] < 1e-6
    for n in (SWITCH + 1, 140):
        assert gaps[n] > 1e-3 if family in SWITCHING else gaps[n] < 1e-6


@pytest.mark.parametrize("n", [SWITCH - 1, SWITCH, SWITCH + 1, 140])
@pytest.mark.parametrize("family", [*SWITCHING, *ALIKE])
def test_packed_rows_equal_full_forwards_or_are_refused(
    family: str, n: int, tiny_folder: FolderFactory, exact_softmax: None
) -> None:
    model = tiny_model(tiny_folder, family)
    fast, slow = Engine(model), Engine(model, slow=True)
    if family in SWITCHING and n > SWITCH:
        for engine in (fast, slow):
            with pytest.raises(InputError, match=rf"has {n} tokens, and .* of more than {SWITCH} tokens"):
                engine.score(together(n))
        return
    found, expected = fast.score(together(n)), slow.score(together(n))
    assert_scores(found, expected, FP64)
    assert abs(found[0].total - found[1].total) > 1e-3  # the edit acts


@pytest.mark.parametrize("family", SWITCHING)
def test_no_path_runs_a_sequence_past_the_switch(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    engine, over = Engine(model), query(SWITCH + 1)
    decoding = Decoding(max_new_tokens=8)
    prefix_cache = engine.prefix_cache(ids(SWITCH - 4))
    paths: dict[str, Callable[[], object]] = {
        "score": lambda: engine.score([over]),
        "run": lambda: engine.run(over, sweep_names(model)),
        "prefix cache": lambda: engine.prefix_cache(ids(SWITCH + 1)),
        "reference": lambda: reference.score(model, [over]),
        "packed row": lambda: packed.score_row(model, [over], EMPTY),
        "packed row on a prefix cache": lambda: packed.score_row(model, [over], prefix_cache),
        "growing": lambda: packed.grow(model, prefix_cache, ids(SWITCH + 1)[SWITCH - 4 :], NOTHING),
        "decoding": lambda: decode(KVSequence(model, prefix_cache), ids(SWITCH - 2), decoding),
        "decoding behind a long prompt": lambda: decode(KVSequence(model, EMPTY), ids(SWITCH + 9), decoding),
        "uncached": lambda: decode_uncached(model, ids(SWITCH - 2), decoding),
        "gradients": lambda: full_gradients(model, over, [Shifted("mlp_out", 0, torch.zeros(4, 32))]),
        "induction": lambda: head_scores(model, repeated_tokens(model, np.random.default_rng(0), 1, SWITCH // 2)),
    }  # fmt: skip
    for name, path in paths.items():
        with pytest.raises(InputError, match=f"of more than {SWITCH} tokens"):
            path()
            pytest.fail(f"{name} ran")


@pytest.mark.parametrize("family", SWITCHING)
def test_a_donor_of_another_length_below_the_switch_is_patched_exactly(
    family: str, tiny_folder: FolderFactory, exact_softmax: None
) -> None:
    model = tiny_model(tiny_folder, family)
    found = {}
    for slow in (False, True):
        engine = Engine(model, slow=slow)
        action = query(SWITCH).action
        low, high = (engine.run(Query(ids(n - 3), action), sweep_names(model)) for n in (30, SWITCH))
        found[slow] = patch_heads(engine, low, high) | {Head(99, 0): low.score}
    assert_scores(list(found[False].values()), list(found[True].values()), FP64)


@pytest.mark.parametrize("family", [*SWITCHING, "llama_yarn", "mistral"])
def test_decoding_with_a_cache_writes_what_decoding_without_one_does(
    family: str, tiny_folder: FolderFactory, exact_softmax: None
) -> None:
    model = tiny_model(tiny_folder, family)
    # Up to the switch where there is one, across it where there is none.
    start = SWITCH - (12 if family in SWITCHING else 4)
    how = Decoding(max_new_tokens=12)
    lengths = []
    for first in (40, 41, 42):
        prompt = (first, *ids(start - 1))
        cached = decode(KVSequence(model, EMPTY), prompt, how)
        uncached = decode_uncached(model, prompt, how)
        assert (cached.tokens, cached.stop) == (uncached.tokens, uncached.stop)
        np.testing.assert_allclose(cached.logprobs, uncached.logprobs, rtol=0, atol=FP64)
        lengths.append(len(cached.tokens))
    assert max(lengths) > 4


@pytest.mark.parametrize("family", SWITCHING)
def test_looking_for_the_switch_changes_nothing_in_the_model(family: str, tiny_folder: FolderFactory) -> None:
    network = load_model(str(tiny_folder(family)), check=False).bridge.original_model
    before = {name: value.clone() for name, value in network.named_buffers()}
    cached = [vars(module).get("max_seq_len_cached") for module in network.modules()]
    assert same_rotation(network) == SWITCH == same_rotation(network)
    after = dict(network.named_buffers())
    assert before and all(torch.equal(value, after[name]) for name, value in before.items())
    assert [vars(module).get("max_seq_len_cached") for module in network.modules()] == cached


class _DoublingRotaryEmbedding(torch.nn.Module):
    """A rotation that nobody has named: half as fast in sequences of `switch` tokens and more."""

    def __init__(self, switch: int) -> None:
        super().__init__()
        self.switch = switch

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angles = position_ids.float() / (2 if int(position_ids.max()) + 1 >= self.switch else 1)
        return angles.cos(), angles.sin()


@pytest.mark.parametrize("switch", [4, 5, 63, 64, 65, 1000, 131073])
def test_a_rotation_of_no_known_type_is_found_by_what_it_does(switch: int) -> None:
    assert same_rotation(torch.nn.Sequential(_DoublingRotaryEmbedding(switch))) == switch - 1
    assert same_rotation(torch.nn.Sequential(_DoublingRotaryEmbedding(4 * LONGEST))) is None


def test_layers_that_see_chunks_limit_the_length() -> None:
    config = Llama4TextConfig(attention_chunk_size=96)
    assert [limit.n_tokens for limit in limits(torch.nn.Module(), config, learned=False)] == [96]
    model_limits = limits(torch.nn.Sequential(_DoublingRotaryEmbedding(50)), config, learned=False)
    assert [limit.n_tokens for limit in model_limits] == [49, 96]


@pytest.mark.parametrize("family", SWITCHING)
def test_such_a_model_is_loaded_and_the_check_says_up_to_which_length(
    family: str, tiny_folder: FolderFactory
) -> None:
    _, results = examine_model(str(tiny_folder(family)))
    assert all(result.passed for result in results)
    [found] = [result for result in results if result.name == "lengths"]
    assert found.flagged and found.value == SWITCH and "longer sequences are refused" in found.sentence


# --- sliding windows


@pytest.mark.parametrize("window", [3, 4096])
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_mask_without_the_window_is_refused_however_long_the_window(
    family: str, window: int, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(tiny_folder(family)), check=False)
    model.hf_config.sliding_window = window
    names = {result.name for result in run_checks(model) if not result.passed}
    assert names == set() and model.hf_config.sliding_window == window
    monkeypatch.setattr(blocks, "slides", lambda model, layer: False)
    monkeypatch.setattr("mech.checks.checks.sliding_window", lambda model: window)
    names = {result.name for result in run_checks(model) if not result.passed}
    assert "window_packed_row" in names and ("packed_row" in names) == (window < 12)
    assert model.hf_config.sliding_window == window


def test_a_window_that_the_stock_forward_ignores_is_refused(tiny_folder: FolderFactory) -> None:
    model = load_model(str(tiny_folder("llama")), check=False)
    model.hf_config.sliding_window = 4096  # a Llama has none, whatever its configuration says
    failed = {result.name: result.sentence for result in run_checks(model) if not result.passed}
    assert "cannot be checked" in failed["window"] and set(failed) <= {
        *("window", "window_packed_row", "window_suffix_on_cache", "window_greedy_cached")
    }


def test_a_model_that_cannot_be_run_is_a_failed_check_and_no_traceback(tiny_folder: FolderFactory) -> None:
    _, results = examine_model(str(tiny_folder("mpt")))
    [found] = [result for result in results if result.name == "packed_row"]
    assert not found.passed and "position_bias" in found.sentence


# --- longer than in training


def test_a_sequence_longer_than_in_training_is_noted_and_logged_once(
    tiny_folder: FolderFactory, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_model(str(tiny_folder("llama_linear")), check=False)
    with caplog.at_level(logging.WARNING):
        assert model.length_notes(SWITCH) == [] and not caplog.records
        notes = [model.length_notes(n) for n in (SWITCH + 1, SWITCH + 50)]
    assert notes == [[f"longer than the {SWITCH} positions that the model was trained for"]] * 2
    [said] = caplog.records
    assert f"a sequence of {SWITCH + 1} tokens is longer than the {SWITCH}" in said.getMessage()
