"""A small byte-level vocabulary whose merges run across words, digits and lines: wrong cuts give other ids."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from mech.models.tokenizers import PROBE

SPECIAL = ("<bos>", "<eos>", "<pad>", "<turn>", "<end>")


@lru_cache(maxsize=1)
def loose_bpe() -> tuple[dict[str, int], tuple[tuple[str, str], ...]]:
    """Vocabulary and merges, learned on the probe texts without cutting them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    tokenizer.train_from_iterator([text for text in PROBE for _ in range(3)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], tuple((left, right) for left, right in model["merges"])


def loose_tokenizer(
    pre_tokenizer: Any, normalizer: Any = None, special: tuple[str, ...] = SPECIAL
) -> Tokenizer:
    """That vocabulary behind a pre-tokenizer."""
    vocabulary, merges = loose_bpe()
    tokenizer = Tokenizer(models.BPE(vocab=dict(vocabulary), merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def write_folder(
    folder: Path, tokenizer: Tokenizer, tokenizer_class: str, model_type: str, **config: Any
) -> Path:
    """The tokenizer's files of a checkpoint folder, of a given transformers class and kind of model."""
    folder.mkdir(exist_ok=True, parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    described = {"tokenizer_class": tokenizer_class, "chat_template": "{{ messages }}", **named, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder
