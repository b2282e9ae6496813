"""How text is split before tokens are merged: the rules of the names in `tokenizer.ggml.pre` of a GGUF file.

The file names its pre-tokenizer without a pattern: RULES has the rules of each name for which they are known, REFUSED
the reason for the other names of llama.cpp.

Sources: llama.cpp's `src/llama-vocab.cpp` (its table from names to patterns, with the published patterns that it
quotes), and the published tokenizer.json of the named model, which takes precedence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unicodedata import is_normalized

from tokenizers import Regex, normalizers, pre_tokenizers

from mech.errors import InputError

NONE, NFC, UNSTATED = "none", "NFC", "unstated"
"""Normalisation of a text. UNSTATED: neither GGUF nor llama.cpp states it; a text that NFC would change is refused
(`require_composed`), and all others have the same ids either way."""

COMPOSED_ONLY = "composed_only"
"""Key in a tokenizer's `init_kwargs`, and so in its saved configuration: its normalizer is UNSTATED."""


@dataclass(frozen=True)
class Rules:
    """How a byte-level BPE tokenizer splits a text before merging.

    Attributes:
        cuts: patterns or pre-tokenizers, each applied to the pieces of the one before.
        normalizer: NONE, NFC or UNSTATED.
        source: of these rules.
        ignore_merges: a piece that is in the vocabulary is one token, whatever the merges give.
        adds_bos: a BOS token begins a text where the header does not say.
    """

    cuts: tuple[Any, ...]
    normalizer: str
    source: str
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> Any:
        """The pre-tokenizer, from a text to pieces in the byte alphabet."""
        steps = [
            pre_tokenizers.Split(Regex(cut), "isolated") if isinstance(cut, str) else cut for cut in self.cuts
        ]
        if not any(isinstance(step, pre_tokenizers.ByteLevel) for step in steps):
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)

    def make_normalizer(self) -> Any:
        """The normalizer, None for none."""
        return normalizers.NFC() if self.normalizer == NFC else None


_GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_DIGITS = pre_tokenizers.Digits(individual_digits=True)
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LINES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_LLAMA3 = rf"{_ENDING}|{_WORDS}|\p{{N}}{{1,3}}{_SIGNS}{_LINES}"
_QWEN2 = rf"{_ENDING}|{_WORDS}|\p{{N}}{_SIGNS}{_LINES}"
_QWEN35 = (
    rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_LINES}"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+",
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*",
)
_TEKKEN = rf"{'|'.join(_CASED)}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LINES}"
_GPT4O = rf"{'|'.join(f'{word}{_ENDING}?' for word in _CASED)}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_LINES}"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_ENDING}|{_WORDS}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_LINES}"
_EXAONE_MOE = (
    rf"{_ENDING}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
_JAIS2 = (
    rf"{_ENDING}|{_WORDS}|\p{{N}}{{1,3}}{_SIGNS}|\s*[\r\n]+"
    + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*" + _LINES,
)
_DEEPSEEK_CODER = (
    "[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
    _DIGITS,
)
_FALCON = (  # digits are cut in the byte alphabet, where some bytes are written as superscripts
    pre_tokenizers.Punctuation("contiguous"),
    _GPT2,
    pre_tokenizers.Digits(individual_digits=False),
    "[0-9][0-9][0-9]",
)
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

_LLAMA_CPP = "llama.cpp"


def _rules() -> dict[str, Rules]:
    quoted = f"{_LLAMA_CPP}, which quotes the published tokenizer.json"
    plain, apart = (_GPT2,), (_DIGITS, _GPT2)
    table: dict[str, Rules] = {
        "gpt-2": Rules(plain, NONE, "tokenizer.json of openai-community/gpt2"),
        "phi-2": Rules(plain, NONE, "tokenizer.json of microsoft/phi-2"),
        "mpt": Rules(plain, NFC, "tokenizer.json of EleutherAI/gpt-neox-20b, which mosaicml/mpt-7b has"),
        "olmo": Rules(plain, NFC, "tokenizer.json of allenai/OLMo-1.7-7B-hf"),
        "smollm": Rules(apart, NONE, "tokenizer.json of HuggingFaceTB/SmolLM2-135M-Instruct"),
        "starcoder": Rules(apart, NONE, "tokenizer.json of bigcode/starcoder2-3b"),
        "command-r": Rules(apart, NFC, "tokenizer.json of CohereForAI/c4ai-command-r-v01"),
        "falcon": Rules(_FALCON, NONE, "tokenizer.json of tiiuae/falcon-7b"),
        "llama-bpe": Rules((_LLAMA3,), NONE, "tokenizer.json of meta-llama/Meta-Llama-3-8B", True, True),
        "qwen2": Rules((_QWEN2,), NFC, "tokenizer.json of Qwen/Qwen2.5-0.5B; transformers' Qwen2Tokenizer"),
        "qwen35": Rules((_QWEN35,), NFC, "transformers' Qwen3_5Tokenizer"),
        "tekken": Rules((_TEKKEN,), NONE, "tokenizer.json of mistralai/Mistral-Nemo-Base-2407", True, True),
        "gpt-4o": Rules((_GPT4O,), NONE, quoted),
        "deepseek-v3": Rules(_DEEPSEEK3, NONE, "tokenizer.json of deepseek-ai/DeepSeek-V3"),
        "deepseek-coder": Rules(
            _DEEPSEEK_CODER, NONE, "tokenizer.json of deepseek-ai/deepseek-coder-6.7b-base"
        ),
        "bloom": Rules((_BLOOM,), NONE, "tokenizer.json of bigscience/bloom"),
        "bailingmoe": Rules((_BAILING,), UNSTATED, quoted),
        "seed-coder": Rules((_SEED,), UNSTATED, quoted),
        "exaone-moe": Rules((_EXAONE_MOE,), UNSTATED, quoted),
        "jais-2": Rules((_JAIS2,), UNSTATED, quoted),
        "minicpm5": Rules((r"\p{N}{1,3}", _LLAMA3.replace("{1,3}", "+")), UNSTATED, quoted, True),
        "viking": Rules((_BLOOM, _DIGITS), UNSTATED, _LLAMA_CPP),
        "laguna": Rules(("[^\n]+|[\n]+", _QWEN2), UNSTATED, _LLAMA_CPP),
        "ufakzeka": Rules((_QWEN2.removeprefix(f"{_ENDING}|"),), UNSTATED, _LLAMA_CPP),
    }
    for name in ("llama3", "llama-v3"):
        table[name] = table["llama-bpe"]
    alike = {  # llama.cpp gives these the patterns of another name; their normalisation is not stated
        "gpt-2": ("gigachat", "a.x-4.0", "mellum", "jais", "exaone4", "trillion", "granite-docling"),
        "smollm": ("refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
        "qwen2": ("deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
        "gpt-4o": ("llama4", "kanana2", "talkie", "minimax-m2"),
        "deepseek-v3": ("hunyuan-dense", "joyai-llm", "hy_v4"),
        "bloom": ("poro-chat", "gpt3-finnish"),
        "bailingmoe": ("bailingmoe2", "llada-moe"),
    }
    for model, names in alike.items():
        for name in names:
            table[name] = Rules(table[model].cuts, UNSTATED, f"{_LLAMA_CPP}, as {model}")
    for name in ("falcon3", "falcon-h1", "midm-2.0", "lfm2"):
        table[name] = Rules((_LLAMA3,), UNSTATED, f"{_LLAMA_CPP}, as llama-bpe", True, True)
    for name in ("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"):
        table[name] = Rules((_LLAMA3,), UNSTATED, f"{_LLAMA_CPP}, the pattern of llama-bpe")
    return table


RULES: dict[str, Rules] = _rules()
"""Name in `tokenizer.ggml.pre` → its rules."""

_ENCODER = "it belongs to models that only encode"
_RAW = "it merges raw UTF-8, not bytes"
REFUSED: dict[str, str] = {
    "default": "it stands for a tokenizer that the converter did not know, for which llama.cpp guesses",
    "deepseek-llm": "its class of letters is known only in copies whose characters were changed",
    "kimi-k2": "llama.cpp reads it by code of its own for Han characters",
    "afmoe": "llama.cpp groups its digits by code of its own",
    "superbpe": "it cuts at places and not at text, which the two libraries need not do alike",
    "tiny_aya": "it groups digits by what follows them, which was not compared with the published tokenizer",
    "cohere2moe": "it groups digits by what follows them, which was not compared with the published tokenizer",
    "chameleon": "its image tokens are cut by rules that were not compared with the published tokenizer",
    "pixtral": "llama.cpp gives it the pattern of llama-bpe, and the published tokenizer is another",
    "youtu": "its patterns were not compared with the published tokenizer",
    "spark2_5": "its patterns were not compared with the published tokenizer",
    **dict.fromkeys(("gemma4", "granite-embed-multi-311m", "sarvam-moe", "whitespace"), _RAW),
    **dict.fromkeys(
        (
            *("jina-v1-en", "jina-v2-code", "jina-v2-es", "jina-v2-de", "jina-es", "jina-de", "jina-v5-nano"),
            *("roberta-bpe", "modern-bert", "f2llmv2", "granite-embed-multi-97m"),
        ),
        _ENCODER,
    ),
}
"""Names that llama.cpp knows and this project refuses → why."""


def rules_for(pre: str | None, name: str, by_hand: bool = False) -> Rules:
    """The rules of a pre-tokenizer's name, from the header of the file `name` or (`by_hand`) from the user.

    Raises:
        InputError: no name, an unknown one, or one of REFUSED.
    """
    if pre in RULES:
        return RULES[pre]
    said = "--pre" if by_hand else f"tokenizer.ggml.pre of '{name}'"
    if pre is None:
        reason = f"'{name}' names no pre-tokenizer (tokenizer.ggml.pre is missing)"
    elif pre in REFUSED:
        reason = f"The pre-tokenizer '{pre}' ({said}) is not supported, as {REFUSED[pre]}"
    else:
        reason = f"The pre-tokenizer '{pre}' ({said}) is unknown"
    remedy = f"one of {', '.join(sorted(RULES))}" if by_hand else "the name of the right one, if you know it"
    raise InputError(f"{reason}: give --pre NAME, {remedy}, or a folder with the model's own tokenizer.json.")


def require_composed(tokenizer: Any, text: str) -> None:
    """Raise InputError for characters that NFC would compose, where the tokenizer's normalisation is unknown."""
    if tokenizer.init_kwargs.get(COMPOSED_ONLY) and not is_normalized("NFC", text):
        raise InputError(
            "A text has characters that are not composed (NFC), and this GGUF file does not say how its tokenizer "
            "reads them: compose them, or use a folder with the model's own tokenizer.json."
        )
