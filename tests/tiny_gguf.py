"""A tiny random Llama as a GGUF file, with a byte-level tokenizer that knows one merge, "he"."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from tokenizers import pre_tokenizers

N_LAYERS, D_MODEL, D_FF, N_HEADS, N_KV_HEADS = 2, 32, 48, 4, 2


def write_gguf(path: Path, *, bos: int = 0, eos: int = 1, pre: str | None = "smollm") -> Path:
    """Write the file in float32; `bos`, `eos` and `pre` are what its header states; `<bos>` is 0, `<end>` 1."""
    tokens = ["<bos>", "<end>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "he"]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(D_MODEL)
    writer.add_feed_forward_length(D_FF)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(N_KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(D_MODEL // N_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    if pre is not None:
        writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["h e"])
    writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    _add_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_weights(writer: gguf.GGUFWriter, n_tokens: int) -> None:
    rng = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        writer.add_tensor(name, (0.3 * rng.standard_normal(shape)).astype(np.float32))

    kv = D_MODEL * N_KV_HEADS // N_HEADS
    add("token_embd.weight", n_tokens, D_MODEL)
    add("output_norm.weight", D_MODEL)
    for layer in range(N_LAYERS):
        add(f"blk.{layer}.attn_norm.weight", D_MODEL)
        add(f"blk.{layer}.attn_q.weight", D_MODEL, D_MODEL)
        add(f"blk.{layer}.attn_k.weight", kv, D_MODEL)
        add(f"blk.{layer}.attn_v.weight", kv, D_MODEL)
        add(f"blk.{layer}.attn_output.weight", D_MODEL, D_MODEL)
        add(f"blk.{layer}.ffn_norm.weight", D_MODEL)
        add(f"blk.{layer}.ffn_gate.weight", D_FF, D_MODEL)
        add(f"blk.{layer}.ffn_up.weight", D_FF, D_MODEL)
        add(f"blk.{layer}.ffn_down.weight", D_MODEL, D_FF)
