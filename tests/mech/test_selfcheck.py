"""The load-time checks pass on every family and refuse what would silently fabricate a result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import normalizers
from transformer_lens.model_bridge.generalized_components.attention import AttentionBridge

from mech.checks import run_checks as selfcheck
from mech.checks.checks import CheckResult
from mech.checks.run_checks import probe_ids, require, run_checks
from mech.errors import InputError
from mech.interventions import edits
from mech.load import examine_model, load_model
from mech.models.chat import encode
from mech.models.model import Model
from mech.models.tokenizers import Statement, settle
from tests.mech_cases import n_torch_hooks
from tests.tiny_models import FAMILIES

FolderFactory = Callable[..., Path]


def failed(results: list[CheckResult]) -> set[str]:
    return {result.name for result in results if not result.passed}


def by_name(results: list[CheckResult]) -> dict[str, CheckResult]:
    assert len({result.name for result in results}) == len(results)
    return {result.name: result for result in results}


@pytest.mark.parametrize(
    ("family", "dtype"), [*((family, "float32") for family in FAMILIES), ("gemma3", "float64")]
)
def test_every_family_passes_every_check(family: str, dtype: str, tiny_folder: FolderFactory) -> None:
    model, results = examine_model(str(tiny_folder(family)), dtype=dtype)
    assert not failed(results)
    # transformers reads the byte tokenizer by Qwen2's own class, which composes characters first: the file's rules win.
    assert {result.name for result in results if result.flagged} == (
        {"pre_tokenizer"} if family == "qwen2" else set()
    )
    assert {"stock_forward", "cache_length", "suffix_on_cache", "greedy_cached"} <= set(by_name(results))
    # That none is silently left out; a sliding window has checks of its own.
    assert len(results) == 20 + (5 if family == "gemma3" else 0)
    assert model.dtype == getattr(torch, dtype)
    assert by_name(results)["cache_length"].value == 8


def test_head_sum_is_rounding_in_float64(tiny_folder: FolderFactory) -> None:
    results = by_name(examine_model(str(tiny_folder("gpt2")), dtype="float64")[1])
    assert (results["head_sum"].value or 0) < 1e-14 < (results["head_sum"].limit or 0)


def test_dead_cache_is_refused_by_behaviour(
    tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What transformers 5.24 does: the attention never sees the cache, and nothing warns."""

    def ignore_cache(self: Any, k: torch.Tensor, v: torch.Tensor, **kwargs: Any) -> tuple[Any, Any]:
        return k, v

    monkeypatch.setattr(AttentionBridge, "_update_kv_cache", ignore_cache)
    _, results = examine_model(str(tiny_folder("llama")))
    assert {"cache_length", "suffix_on_cache", "greedy_cached", "packed_row"} == failed(results)
    said = r"cache_length, suffix_on_cache, greedy_cached, packed_row: .*install transformers>=5\.9,<5\.24"
    with pytest.raises(InputError, match=said):
        load_model(str(tiny_folder("llama")))


@pytest.mark.parametrize(
    ("found", "passes"),
    [("5.8.9", False), ("5.9.0", True), ("5.23.0", True), ("5.24.0.dev0", False), ("6.0", False)],
)
def test_version_range_is_checked(found: str, passes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "version", lambda package: found)
    assert selfcheck.check_versions().passed is passes


@pytest.fixture
def fresh(tiny_folder: FolderFactory) -> Model:
    """A tiny model that a test may spoil."""
    return load_model(str(tiny_folder("llama")), check=False)


def test_training_mode_is_refused(fresh: Model) -> None:
    fresh.bridge.original_model.train()
    results = run_checks(fresh)
    assert failed(results) == {"eval_mode"}
    with pytest.raises(InputError, match="eval_mode: .*training mode"):
        require(results)


def test_non_finite_weights_are_refused(fresh: Model) -> None:
    with torch.no_grad():
        next(fresh.bridge.original_model.parameters()).fill_(math.nan)
    assert failed(run_checks(fresh)) == {"finite_logits"}


def test_bridge_that_differs_from_stock_is_refused(fresh: Model) -> None:
    stock = fresh.bridge(probe_ids(fresh.tokenizer), return_type="logits")[0].detach()
    assert not failed(run_checks(fresh, stock))
    assert failed(run_checks(fresh, stock + 0.01)) == {"stock_forward"}


def test_hook_without_effect_is_refused(fresh: Model) -> None:
    """A block that goes on with the value from before the hook: the hook fires and changes nothing."""
    mlp = fresh.bridge.blocks[1].mlp
    before: list[torch.Tensor] = []
    mlp.hook_out.register_forward_pre_hook(lambda point, arguments: before.append(arguments[0]))
    mlp.register_forward_hook(lambda module, arguments, output: before.pop())
    results = by_name(run_checks(fresh))
    assert failed(list(results.values())) == {"causal_hook_mlp_out"}
    assert "hook_mlp_out of layer 1 moves no logit" in results["causal_hook_mlp_out"].sentence


def test_hook_that_is_missing_is_refused(fresh: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(edits.HOOKS, "z", "attn.hook_zz")
    results = by_name(run_checks(fresh))
    assert not results["causal_hooks"].passed
    assert "no hook named 'blocks.0.attn.hook_zz'" in results["causal_hooks"].sentence


def test_checks_leave_no_hook_behind(fresh: Model) -> None:
    fresh.bridge(probe_ids(fresh.tokenizer))  # the bridge wires hooks of its own at its first forward
    before = n_torch_hooks(fresh)
    seen: list[int] = []
    fresh.bridge.blocks[0].attn.hook_z.register_forward_hook(lambda *_: seen.append(n_torch_hooks(fresh)))
    run_checks(fresh)
    assert max(seen) > before + 1 == n_torch_hooks(fresh)  # there were some, and the test's own is left


def test_acausal_attention_is_refused(fresh: Model) -> None:
    def uncut(scores: torch.Tensor, hook: Any) -> torch.Tensor:
        return torch.zeros_like(scores)

    for block in fresh.bridge.blocks:
        block.attn.hook_attn_scores.add_hook(uncut)
    assert "attention_rows" in failed(run_checks(fresh))


def test_output_projection_that_is_not_the_heads_sum_is_refused(fresh: Model) -> None:
    fresh.bridge.blocks[0].attn.hook_out.add_hook(lambda value, hook: value * 1.01)
    assert failed(run_checks(fresh)) == {"head_sum"}


def test_wrong_head_count_is_refused(fresh: Model) -> None:
    fresh.bridge.cfg.n_key_value_heads = 4
    assert failed(run_checks(fresh)) == {"head_counts"}


def test_special_tokens_other_than_the_header_says_are_refused(fresh: Model) -> None:
    stated = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 3}
    results = by_name(run_checks(fresh, gguf_metadata=stated))
    assert "EOS id is 3 in the GGUF header, 4 in the tokenizer" in results["gguf_special_tokens"].sentence
    assert not results["gguf_special_tokens"].passed
    stated.update({"tokenizer.ggml.eos_token_id": 4, "tokenizer.ggml.add_bos_token": True})
    flagged = by_name(run_checks(fresh, gguf_metadata=stated))["gguf_special_tokens"]
    assert flagged.passed and flagged.flagged


def test_tokenizer_that_cuts_otherwise_is_refused(fresh: Model, tiny_folder: FolderFactory) -> None:
    """The tokenizer itself, or only the copy that the bridge has."""
    _, statement = settle(fresh.tokenizer, tiny_folder("llama"))
    assert selfcheck.check_pre_tokenizer(fresh, statement).passed
    for tokenizer in (fresh.bridge.tokenizer, fresh.tokenizer):
        kept = tokenizer.backend_tokenizer.normalizer
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
        results = run_checks(fresh, statement=statement)
        assert failed(results) == {"pre_tokenizer"}
        assert "1 of " in by_name(results)["pre_tokenizer"].sentence
        tokenizer.backend_tokenizer.normalizer = kept


def test_gguf_tokenizer_must_cut_as_its_name_says(fresh: Model, tiny_folder: FolderFactory) -> None:
    """The file's own tokenizer.json may have been written by a converter that did not know the name."""
    _, statement = settle(fresh.tokenizer, tiny_folder("llama"))
    stated = dataclasses.replace(statement, pre="smollm")
    result = selfcheck.check_pre_tokenizer(fresh, stated)
    assert not result.passed and "does not cut as 'smollm' (tokenizer.ggml.pre) says" in result.sentence


def test_folder_without_tokenizer_json_is_flagged(fresh: Model) -> None:
    result = selfcheck.check_pre_tokenizer(fresh, Statement("GPT2Tokenizer", (), None))
    assert result.passed and result.flagged and "no tokenizer.json" in result.sentence


def test_template_that_rewrites_the_past_is_flagged(fresh: Model) -> None:
    fresh.tokenizer.chat_template = "{{ messages | length }}" + fresh.tokenizer.chat_template
    result = by_name(run_checks(fresh))["prefix_preserved"]
    assert result.passed and result.flagged and result.value == 0
    assert "scores go by ids" in result.sentence


def test_template_that_writes_the_date_is_flagged(fresh: Model) -> None:
    fresh.tokenizer.chat_template = "{# strftime_now #}" + fresh.tokenizer.chat_template
    result = by_name(run_checks(fresh))["chat_template"]
    assert result.passed and result.flagged and "date" in result.sentence


def test_model_without_template_is_flagged_and_passes(tiny_folder: FolderFactory) -> None:
    _, results = examine_model(str(tiny_folder("qwen2", chat=False)))
    assert not failed(results)
    assert "plain transcript" in by_name(results)["chat_template"].sentence


def test_require_names_every_failure_in_one_sentence() -> None:
    good = CheckResult("a", True, 0.0, 1.0, "fine")
    require([good])
    bad = [dataclasses.replace(good, name=name, passed=False, sentence="not so") for name in ("b", "c")]
    with pytest.raises(
        InputError, match=r"^The model 'm' is refused, as it fails the load-time checks b, c: not so\.$"
    ):
        require([good, *bad], "m")


@pytest.mark.real_model
def test_real_model_passes_every_check() -> None:
    model, results = examine_model("smollm2-135m-q4")
    assert not failed(results)
    assert by_name(results)["gguf_special_tokens"].passed
    assert "cuts as 'smollm' says" in by_name(results)["pre_tokenizer"].sentence
    assert encode(model, "x\n\n1. one") == (104, 1116, 33, 30, 582)
    assert (model.n_layers, model.n_heads, model.n_kv_heads) == (30, 9, 3)
