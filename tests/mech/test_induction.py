"""Head scores find the induction head of a model that was built by hand, and nothing in a random one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from mech.errors import InputError
from mech.head_scores.induction import (
    ATTENTION_SCORES,
    SCORES,
    RepeatedTokens,
    head_scores,
    repeated_tokens,
    top_heads,
)
from mech.heads import Head, HeadSet
from mech.models.model import Model
from tests.induction_model import D_HEAD, LENGTH, VOCABULARY, built_by_hand, hand_built, saved  # noqa: F401 - a fixture
from tests.mech_cases import SOME, FolderFactory, n_torch_hooks, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.tiny_models import FAMILIES
from tests.tolerances import FP32, FP64

pytestmark = pytest.mark.usefixtures("one_thread")


def scored(model: Model, seed: int = 0, n_sequences: int = 4, length: int = LENGTH) -> pd.DataFrame:
    return head_scores(model, repeated_tokens(model, np.random.default_rng(seed), n_sequences, length))


def by_head(scores: pd.DataFrame) -> dict[str, Any]:
    return {str(Head(row.layer, row.head)): row for row in scores.itertuples()}


def test_the_hand_built_induction_head_is_found(hand_built: Model) -> None:
    heads = by_head(scored(hand_built))
    assert set(heads) == {"L0H0", "L0H1", "L1H0", "L1H1"}
    assert heads["L1H0"].prefix_matching == pytest.approx(1, abs=1e-3)
    assert heads["L0H0"].previous_token == pytest.approx(1, abs=1e-3)
    assert heads["L0H1"].duplicate_token == pytest.approx(0.5, abs=1e-3)  # the other half goes to itself
    # The uniform head gives each of t + 1 positions the same: positions 1 + L to 2 L − 1 + L, BOS first.
    even = np.mean([1 / (t + 1) for t in range(1 + LENGTH, 2 * LENGTH)])
    for name in ATTENTION_SCORES:
        assert getattr(heads["L1H1"], name) == pytest.approx(even, abs=1e-4)
    for head, name in (("L1H0", "previous_token"), ("L0H0", "prefix_matching"), ("L0H1", "prefix_matching")):
        assert getattr(heads[head], name) < 1e-3
    assert str(top_heads(scored(hand_built), 1)) == "L1H0"


def test_the_hand_built_induction_head_copies_and_is_heard(hand_built: Model) -> None:
    heads = by_head(scored(hand_built))
    assert heads["L1H0"].copying > 1
    for head in ("L0H0", "L0H1", "L1H1"):
        assert abs(heads[head].copying) < FP32
    sequences = repeated_tokens(hand_built, np.random.default_rng(0), 4, LENGTH)
    with torch.no_grad():
        said = hand_built.bridge(sequences.tokens)
    second = range(sequences.lead + LENGTH, sequences.lead + 2 * LENGTH - 1)
    for t in second:  # its output wins the argmax, so the model repeats what it read
        token = said[:, t].index_fill(-1, torch.tensor([0, 1, 2, 3, 4]), -1.0)
        own = sequences.tokens[:, t]
        token[torch.arange(4), own] = -1.0  # the token itself, from its embedding
        assert token.argmax(-1).tolist() == sequences.tokens[:, t + 1].tolist()


def test_a_head_turned_around_suppresses_what_it_copied(hand_built: Model, tmp_path: Path) -> None:
    """The sign of the OV circuit is the sign of the score, and where it looks is another matter."""
    heads = by_head(scored(hand_built))
    assert heads["L1H0"].copy_suppression < -1 < 1 < heads["L1H0"].ov_copying
    # All its attention lies on the token to copy, so what it does is what it would do.
    assert heads["L1H0"].copy_suppression == pytest.approx(-heads["L1H0"].copying, rel=1e-2)
    for other in ("L0H0", "L0H1", "L1H1"):
        assert abs(heads[other].copy_suppression) < FP32 and abs(heads[other].ov_copying) < FP32
    model = built_by_hand()
    with torch.no_grad():
        model.transformer.h[1].attn.c_proj.weight[:D_HEAD] *= -1
    turned = by_head(scored(saved(model, tmp_path)))["L1H0"]
    assert turned.copy_suppression > 1 and turned.copying < -1 and turned.ov_copying < -1
    assert turned.prefix_matching == pytest.approx(1, abs=1e-3)


def test_the_whole_copying_score_of_the_hand_built_head_by_hand(hand_built: Model) -> None:
    """Its output is g · one-hot of the next token, g = 0.1 · (LayerNorm of a one), seen through the final norm."""
    sequences = repeated_tokens(hand_built, np.random.default_rng(0), 1, LENGTH)
    with torch.no_grad():
        _, cache = hand_built.bridge.run_with_cache(sequences.tokens)
    gains = []
    for t in range(1 + LENGTH, 2 * LENGTH):
        read, final = cache["blocks.1.hook_resid_pre"][0, t - LENGTH + 1], cache["ln_final.hook_in"][0, t]
        token = int(sequences.tokens[0, t - LENGTH + 1])
        one = (read[token] - read.mean()) / read.var(correction=0).add(1e-5).sqrt()
        low = (read[VOCABULARY - 1] - read.mean()) / read.var(correction=0).add(1e-5).sqrt()
        gains.append(0.1 * (one - low) / final.var(correction=0).add(1e-5).sqrt() * (1 - 1 / LENGTH))
    found = by_head(scored(hand_built, n_sequences=1))["L1H0"].copying
    assert found == pytest.approx(float(torch.stack(gains).mean()), rel=1e-2)


@pytest.mark.parametrize("family", SOME)
def test_a_random_model_has_no_induction_head(family: str, tiny_folder: FolderFactory) -> None:
    scores = scored(tiny_model(tiny_folder, family, "float32"), n_sequences=8, length=48)
    assert scores["prefix_matching"].max() < 0.2
    sums = scores["previous_token"] + scores["duplicate_token"] + scores["prefix_matching"]
    assert (sums <= 1 + FP32).all() and (scores[list(ATTENTION_SCORES)] >= 0).all().all()
    if family != "gemma3":  # whose windows of 8 do not reach that far back
        even = np.mean([1 / (t + 1) for t in range(49, 96)])
        assert scores["prefix_matching"].median() == pytest.approx(even, rel=0.5)


@torch.no_grad()
def independent_scores(model: Model, sequences: RepeatedTokens) -> dict[str, list[float]]:
    """The scores by loops over TransformerLens's own cache, direct effects through the whole vocabulary."""
    _, cache = model.bridge.run_with_cache(sequences.tokens)
    start, stop = sequences.lead + sequences.length, sequences.lead + 2 * sequences.length - 1
    values: dict[str, list[float]] = {name: [] for name in SCORES}
    for layer in range(model.n_layers):
        pattern, z = cache[f"blocks.{layer}.attn.hook_pattern"], cache[f"blocks.{layer}.attn.hook_z"]
        z = z.reshape(*sequences.tokens.shape, model.n_heads, model.d_head)
        v = cache[f"blocks.{layer}.attn.hook_v"].reshape(*sequences.tokens.shape, -1, model.d_head)
        for head in range(model.n_heads):
            shared = head * v.shape[2] // model.n_heads
            found: dict[str, list[float]] = {name: [] for name in SCORES}
            for sequence in range(len(sequences.tokens)):
                tokens = sequences.tokens[sequence]
                drawn = tokens[sequences.lead : sequences.lead + sequences.length]
                for t in range(start, stop):
                    first = (tokens[:t] == tokens[t]).nonzero().max().item()
                    at = pattern[sequence, head, t]
                    found["duplicate_token"].append(float(at[first]))
                    found["prefix_matching"].append(float(at[first + 1]))
                    found["previous_token"].append(float(at[t - 1]))
                    found["attention_sink"].append(float(at[0]))
                    logits = heard(
                        model, cache, layer, z[sequence, t, head] @ model.w_o(layer)[head], sequence, t
                    )
                    found["copying"].append(float(logits[tokens[first + 1]] - logits[drawn].mean()))
                    lowered = 0.0
                    for s in range(sequences.lead, t + 1):
                        out = v[sequence, s, shared] @ model.w_o(layer)[head]
                        logits = heard(model, cache, layer, out, sequence, t)
                        own = float(logits[tokens[s]] - logits[drawn].mean())
                        lowered -= float(at[s]) * own
                        if s < start:
                            found["ov_copying"].append(own)
                    found["copy_suppression"].append(lowered)
            for name in SCORES:
                values[name].append(float(np.mean(found[name])))
    return values


def heard(model: Model, cache: Any, layer: int, out: Tensor, sequence: int, t: int) -> Tensor:
    """What a head's output at t adds to every logit, with every norm on its way frozen."""
    post = model.bridge.blocks[layer].submodules.get("ln1_post")
    if post is not None:
        out = frozen_norm(post, out, cache[f"blocks.{layer}.ln1_post.hook_in"][sequence, t])
    whole = cache["ln_final.hook_in"][sequence, t]
    unembed: Tensor = model.bridge.original_model.get_output_embeddings().weight
    return unembed @ frozen_norm(model.bridge.ln_final, out, whole)


def frozen_norm(norm: Any, part: Tensor, whole: Tensor) -> Tensor:
    """What a part of the stream becomes in the final norm when its scale is that of the whole stream."""
    inner = norm.original_component
    if isinstance(inner, torch.nn.LayerNorm):
        return (part - part.mean()) / (whole.var(correction=0) + inner.eps).sqrt() * inner.weight
    epsilon = inner.variance_epsilon if "variance_epsilon" in vars(inner) else inner.eps
    weight = inner.weight + 1 if type(inner).__name__.startswith("Gemma") else inner.weight
    return part / (whole.pow(2).mean() + epsilon).sqrt() * weight


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("exact_softmax")
def test_scores_are_those_of_plain_loops(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    sequences = repeated_tokens(model, np.random.default_rng(3), 2, 7)
    scores = head_scores(model, sequences)
    assert scores[["layer", "head"]].values.tolist() == [
        [layer, head] for layer in range(model.n_layers) for head in range(model.n_heads)
    ]
    for name, expected in independent_scores(model, sequences).items():
        np.testing.assert_allclose(scores[name], expected, rtol=0, atol=FP64)


@pytest.mark.usefixtures("exact_softmax")
def test_what_heads_say_behind_gemmas_norm_is_what_the_stream_receives(tiny_folder: FolderFactory) -> None:
    """Gemma 3 normalises the attention's output before the stream: a direct effect has to pass there too."""
    model = tiny_model(tiny_folder, "gemma3")
    sequences = repeated_tokens(model, np.random.default_rng(0), 1, 5)
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(sequences.tokens)
        for layer in range(model.n_layers):
            z = cache[f"blocks.{layer}.attn.hook_z"].reshape(-1, model.n_heads, model.d_head)
            post = model.bridge.blocks[layer].ln1_post
            for t in range(1, 11):
                whole = cache[f"blocks.{layer}.ln1_post.hook_in"][0, t]
                heads = [
                    frozen_norm(post, z[t, h] @ model.w_o(layer)[h], whole) for h in range(model.n_heads)
                ]
                received = (
                    cache[f"blocks.{layer}.hook_resid_mid"][0, t]
                    - cache[f"blocks.{layer}.hook_resid_pre"][0, t]
                )
                torch.testing.assert_close(sum(heads), received, rtol=0, atol=FP64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.usefixtures("exact_softmax")
def test_z_is_the_attended_values(family: str, tiny_folder: FolderFactory) -> None:
    """What the OV scores rest on: z = pattern · v, the values of a group shared by its query heads."""
    model = tiny_model(tiny_folder, family)
    sequences = repeated_tokens(model, np.random.default_rng(0), 1, 6)
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(sequences.tokens)
    for layer in range(model.n_layers):
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][0]
        v = cache[f"blocks.{layer}.attn.hook_v"].reshape(-1, model.n_kv_heads, model.d_head)
        z = cache[f"blocks.{layer}.attn.hook_z"].reshape(-1, model.n_heads, model.d_head)
        for head in range(model.n_heads):
            own = pattern[head] @ v[:, head * model.n_kv_heads // model.n_heads]
            torch.testing.assert_close(own, z[:, head], rtol=0, atol=FP64)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_neox"])
@pytest.mark.usefixtures("exact_softmax")
def test_a_heads_output_is_its_z_through_its_own_slice(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    sequences = repeated_tokens(model, np.random.default_rng(0), 1, 5)
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(sequences.tokens)
        for layer in range(model.n_layers):
            z = cache[f"blocks.{layer}.attn.hook_z"].reshape(-1, model.n_heads, model.d_head)
            summed = torch.einsum("phd,hdm->pm", z, model.w_o(layer))
            bias = getattr(model.bridge.blocks[layer].attn.o.original_component, "bias", None)
            whole = cache[f"blocks.{layer}.hook_attn_out"][0] - (0 if bias is None else bias)
            torch.testing.assert_close(summed, whole, rtol=0, atol=FP64)


def test_sequences_are_the_same_tokens_twice_and_no_special_ones(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    sequences = repeated_tokens(model, np.random.default_rng(1), 40, 48)
    assert sequences.tokens.shape == (40, 1 + 2 * 48) and sequences.lead == 1
    assert (sequences.tokens[:, 0] == model.tokenizer.bos_token_id).all()
    half = sequences.tokens[:, 1:49]
    assert torch.equal(half, sequences.tokens[:, 49:])
    assert all(len(set(row)) == 48 for row in half.tolist())
    special = {
        model.tokenizer.convert_tokens_to_ids(t) for t in ("<bos>", "<eos>", "<pad>", "<turn>", "<end>")
    }
    drawn = set(half.flatten().tolist())
    assert not drawn & special and max(drawn) < len(model.tokenizer)
    assert len(drawn) == 256  # every other token may be drawn
    assert not torch.equal(half[0], half[1])


def test_chat_markers_are_left_out_though_no_attribute_names_them(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    marker = model.tokenizer.convert_tokens_to_ids("<turn>")
    assert marker not in model.tokenizer.all_special_ids  # known as an added token only
    sequences = repeated_tokens(model, np.random.default_rng(0), 4, 256)
    assert marker not in sequences.tokens


def test_sequences_depend_on_the_stream_alone(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    one, same, other = (repeated_tokens(model, np.random.default_rng(s), 2, 9).tokens for s in (4, 4, 5))
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_more_tokens_than_the_vocabulary_has_are_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    repeated_tokens(model, np.random.default_rng(0), 1, 256)
    with pytest.raises(InputError, match="has 256 plain tokens, too few for sequences of 257"):
        repeated_tokens(model, np.random.default_rng(0), 1, 257)
    with pytest.raises(InputError, match="needs two tokens at least"):
        repeated_tokens(model, np.random.default_rng(0), 1, 1)


def test_scoring_leaves_no_hook_behind(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    model.bridge(torch.tensor([[1, 2, 3]]))  # the bridge's own first forward registers what it keeps
    before = n_torch_hooks(model)
    scored(model, length=5)
    assert n_torch_hooks(model) == before


def test_ties_go_to_the_lower_layer_then_head() -> None:
    rows = [(1, 0, 0.5), (0, 1, 0.5), (0, 0, 0.5), (1, 1, 0.9), (2, 0, 0.1)]
    scores = pd.DataFrame(rows, columns=["layer", "head", "prefix_matching"])
    assert [str(top_heads(scores, k)) for k in (1, 2, 3, 4)] == [
        "L1H1",
        "L0H0,L1H1",
        "L0H0,L0H1,L1H1",
        "L0H0,L0H1,L1H0,L1H1",
    ]
    assert top_heads(scores.sample(frac=1, random_state=3), 3) == top_heads(scores, 3)


@pytest.mark.parametrize(
    ("k", "by", "said"),
    [
        (0, "copying", "top 0 cannot be taken"),
        (5, "copying", "has 4 heads: the top 5"),
        (1, "layer", "'layer' is not a head score"),
        (1, "beauty", "'beauty' is not a head score: choose one of prefix_matching"),
    ],
)
def test_sets_that_cannot_be_taken_are_refused(k: int, by: str, said: str, hand_built: Model) -> None:
    with pytest.raises(InputError, match=said):
        top_heads(scored(hand_built, n_sequences=1, length=5), k, by)


def test_the_real_models_induction_heads_are_found_under_any_seed(smollm2: Model) -> None:
    first, second = (scored(smollm2, seed, 4, 48) for seed in (0, 1))
    best = by_head(first)["L18H6"]
    assert str(top_heads(first, 1)) == "L18H6" == str(top_heads(second, 1))
    assert best.prefix_matching > 0.8 and best.copying > first["copying"].quantile(0.9)
    one, other = (set(top_heads(scores, 16)) for scores in (first, second))
    assert len(one & other) >= 13
    assert HeadSet(one).per_layer().keys() & set(range(15, 25))
