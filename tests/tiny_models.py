"""Tiny random models of six families and a byte-level tokenizer, built from configurations: no network.

Families differ where code for them goes wrong: grouped-query attention (llama, qwen2, qwen3, gemma3),
biases (qwen2), normalised queries and keys (qwen3, gemma3), sliding windows (gemma3), partial rotary
positions and a parallel block (gpt_neox), learned positions (gpt2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    MptConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.utils.logging import disable_progress_bar

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3", "gpt_neox", "gpt2")
SPECIAL = ("<bos>", "<eos>", "<pad>", "<turn>", "<end>")
N_POSITIONS = 2048
SLIDING_WINDOW = 8
SWITCH = 64
"""Where the rotations of the length-dependent variants change, and the training length of the others."""
# Variants of families for what depends on the length of a sequence.
ROTATIONS = {
    "llama_dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama_linear": {"rope_type": "linear", "factor": 4.0},
    "llama_yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": SWITCH},
    "llama_llama3": {
        **{"rope_type": "llama3", "factor": 4.0, "original_max_position_embeddings": SWITCH},
        **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "phi3_longrope": {
        **{"rope_type": "longrope", "original_max_position_embeddings": SWITCH},
        **{"short_factor": [1.0] * 4, "long_factor": [3.0, 4.0, 6.0, 8.0]},
    },
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}

# One turn per message, closed by <end>; nothing is added that the messages do not say.
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


def byte_tokenizer(chat: bool = True) -> PreTrainedTokenizerFast:
    """Byte-level BPE without merges: every text tokenises, one token per byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<end>" if chat else "<eos>",
        pad_token="<pad>",
        clean_up_tokenization_spaces=False,
        model_max_length=N_POSITIONS,
    )
    if chat:
        fast.chat_template = CHAT_TEMPLATE
    return fast


def tiny_config(family: str) -> Any:
    """The configuration of a 3- or 4-layer model with 4 heads (2 key/value heads where grouped)."""
    vocabulary = 272  # the tokenizer uses 261; the Qwen2 tokenizer class adds one
    special = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    shared = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": N_POSITIONS,
        "initializer_range": 0.2,  # large enough that heads and positions matter to the logits
        **special,
    }
    grouped = {**shared, "num_key_value_heads": 2, "tie_word_embeddings": False}
    if family == "llama":
        return LlamaConfig(**grouped)
    if family == "qwen2":
        return Qwen2Config(**grouped, use_sliding_window=False)
    if family == "qwen3":
        return Qwen3Config(**grouped, head_dim=12, use_sliding_window=False)
    if family == "gemma3":
        layers = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
        sizes = {**grouped, "num_hidden_layers": 4, "tie_word_embeddings": True}
        return Gemma3TextConfig(
            **sizes, head_dim=12, query_pre_attn_scalar=12, sliding_window=SLIDING_WINDOW, layer_types=layers
        )
    if family == "gpt_neox":
        return GPTNeoXConfig(**shared, rotary_pct=0.25, use_parallel_residual=True, tie_word_embeddings=False)
    if family in ROTATIONS:
        rotation = {**ROTATIONS[family], "rope_theta": 10000.0}
        if family == "phi3_longrope":
            lengths = {"original_max_position_embeddings": SWITCH, "max_position_embeddings": 4 * SWITCH}
            return Phi3Config(**{**grouped, **lengths}, rope_parameters=rotation)
        return LlamaConfig(**{**grouped, "max_position_embeddings": SWITCH}, rope_parameters=rotation)
    if family == "gemma3_dynamic":  # in its full layers alone
        full = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
        config = tiny_config("gemma3")
        config.max_position_embeddings = SWITCH
        config.rope_parameters = {
            "full_attention": full,
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
        return config
    if family == "mistral":
        return MistralConfig(**grouped, sliding_window=SLIDING_WINDOW)
    if family == "mpt":  # which this package cannot score
        return MptConfig(vocab_size=vocabulary, d_model=32, n_heads=4, n_layers=3, expansion_ratio=2)
    if family == "gpt2":
        return GPT2Config(
            vocab_size=vocabulary,
            n_positions=N_POSITIONS,
            n_embd=32,
            n_layer=3,
            n_head=4,
            initializer_range=0.2,
            **special,
        )
    raise ValueError(f"no tiny model of family '{family}': choose one of {', '.join(FAMILIES)}")


def tiny_hf_model(family: str, dtype: str = "float32", seed: int = 0) -> Any:
    """A seeded random transformers model in evaluation mode; the caller's random state is left as it was.

    The float32 model is the float64 one rounded, so that the two may be compared.
    """
    config = tiny_config(family)
    with torch.random.fork_rng(devices=[]):
        torch.random.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float64)
        with torch.no_grad():
            for parameter in model.parameters():
                # Norm weights and biases start at one and zero, where forgetting one would go unnoticed.
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    return model.to(DTYPES[dtype]).eval()


def save_checkpoint(
    folder: Path, family: str, dtype: str = "float32", chat: bool = True, seed: int = 0
) -> Path:
    """Write model and tokenizer as a local checkpoint folder, which is how users bring their own model."""
    disable_progress_bar()  # transformers' own bars would be written into the test report
    tiny_hf_model(family, dtype, seed).save_pretrained(folder)
    byte_tokenizer(chat).save_pretrained(folder)
    return folder
