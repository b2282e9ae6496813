"""What a tokenizer must be: the rules that a checkpoint states, and the ids of its own `tokenizer.json`.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) and gives no pattern: RULES holds one for each name whose
rules are established, REFUSED says why for the other names that llama.cpp knows. A folder has a `tokenizer.json`, and
that file is right: transformers rebuilds the tokenizers of many classes from vocabulary and merges alone and gives them
the class's own pre-tokenizer, so the ids of a loaded tokenizer are compared with the file's (`settle`).

Sources: llama.cpp's `src/llama-vocab.cpp` (its table from names to patterns, with the patterns of the published
tokenizer.json that it quotes), and the published tokenizer.json of the model that is named. A published pattern goes
before llama.cpp's rewriting of it for an engine without Unicode classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from transformers import PreTrainedTokenizerFast

from mech.errors import InputError

TOKENIZER_FILE = "tokenizer.json"

NONE, NFC, UNSTATED = "none", "NFC", "unstated"
"""What a tokenizer does to a text first. UNSTATED: neither GGUF nor llama.cpp says; a text that NFC would change is
refused (`mech.chat.encode`), and all others are read the same either way."""


COMPOSED_ONLY = "composed_only"
"""Key in a tokenizer's `init_kwargs`, and so in its saved configuration: its normalizer is UNSTATED."""


@dataclass(frozen=True)
class Rules:
    """How a byte-level BPE tokenizer cuts a text before merging.

    Attributes:
        cuts: applied one after another, each to the pieces that the one before left.
        normalizer: NONE, NFC or UNSTATED.
        source: who says so.
        ignore_merges: a piece that is a token as a whole is that token, whatever the merges give.
        adds_bos: a BOS token is put before a text where the header says nothing of it.
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
        """What is done to a text first, None for nothing."""
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
    alike = {  # llama.cpp gives these the patterns of another name; what they do to a text first is not stated
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
    """The rules of a pre-tokenizer's name.

    Args:
        pre: what the header of a GGUF file says, None where it says nothing, or what the user says.
        name: of the file, for the sentence.
        by_hand: the user said it.

    Raises:
        InputError: no name, an unknown one, or one whose rules are not established.
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


def require_supported(header: Mapping[str, Any], name: str, pre: str | None = None) -> Rules:
    """The rules of the tokenizer that a GGUF header names; arguments and errors as `from_gguf`."""
    kind = header.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            f"The tokenizer of '{name}' (tokenizer.ggml.model = {kind!r}) is not supported, only byte-level BPE "
            "('gpt2') is: give a folder with the model's own tokenizer.json."
        )
    return rules_for(pre or header.get("tokenizer.ggml.pre"), name, by_hand=pre is not None)


CONTROL, USER_DEFINED, UNKNOWN = 3, 4, 2
"""Values of `tokenizer.ggml.token_type` that are found in a text before it is cut; all but USER_DEFINED are special."""


def from_gguf(header: Mapping[str, Any], name: str, pre: str | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer that the header of a GGUF file describes.

    Args:
        header: its entries, the arrays `tokenizer.ggml.tokens`, `merges` and `token_type` included.
        name: of the file, for errors.
        pre: the pre-tokenizer's name, said by hand; None takes the header's.

    Raises:
        InputError: another kind of tokenizer than byte-level BPE, a pre-tokenizer that is not supported, or a
            vocabulary that contradicts itself.
    """

    def entry(key: str) -> Any:
        return header.get(f"tokenizer.ggml.{key}")

    rules = require_supported(header, name, pre)
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(entry("tokens") or ())]
    ids = {token: index for index, token in enumerate(tokens)}
    kinds = entry("token_type") or [1] * len(tokens)
    merges = [_pair(merge) for merge in entry("merges") or ()]
    if not tokens or not merges or len(ids) != len(tokens) or len(kinds) != len(tokens):
        raise InputError(f"The vocabulary of '{name}' is incomplete or has a token twice: convert it again.")
    try:
        backend = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=rules.ignore_merges))
    except (
        Exception
    ) as error:  # tokenizers raises bare Exception: a merge whose parts or result are no tokens
        raise InputError(f"The merges of '{name}' do not fit its vocabulary ({error}).") from error
    backend.normalizer = rules.make_normalizer()
    backend.pre_tokenizer = rules.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens(
        [
            AddedToken(token, special=kind != USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (CONTROL, USER_DEFINED, UNKNOWN)
        ]
    )
    named = {
        f"{short}_token": _token(tokens, entry(f"{long}_token_id"), name)
        for short, long in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items()
        if entry(f"{long}_token_id") is not None
    }
    adds_bos, adds_eos = entry("add_bos_token"), entry("add_eos_token")
    first = (
        [named["bos_token"]]
        if (rules.adds_bos if adds_bos is None else adds_bos) and "bos_token" in named
        else []
    )
    last = [named["eos_token"]] if adds_eos and "eos_token" in named else []
    if first or last:
        backend.post_processor = processors.TemplateProcessing(
            single=[*first, "$A", *last],
            special_tokens=[(token, ids[token]) for token in dict.fromkeys([*first, *last])],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        **named,
        chat_template=header.get("tokenizer.chat_template"),
        **({COMPOSED_ONLY: True} if rules.normalizer == UNSTATED else {}),
    )


def _pair(merge: str) -> tuple[str, str]:
    """The two sides of a merge; the space between them is not the first character."""
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")


def _token(tokens: Sequence[str], index: int, name: str) -> str:
    if not 0 <= index < len(tokens):
        raise InputError(
            f"'{name}' names a special token {index}, and its vocabulary ends at {len(tokens) - 1}."
        )
    return tokens[index]


PROBE: tuple[str, ...] = (
    "x\n\n1. one\n\n\n2. two\n\n10. ten",
    "7 42 365 2026 31415 1234567 3.14 1,000 v2.0 0x1F 10e-5 ²½ ٣٤٥",
    "a\n\nb\n\n\nc\n\n\n\n   d\r\n\r\n1\r\n\r\n\r\ne",
    "  two spaces   three    four\t\ttabs \t mixed   \n  \n\t\nend   ",
    "trailing spaces   ",
    "\n leading newline",
    "I'm you're he's they'll we'd I've don't O'Neill 'tis 1990's",
    "I'M YOU'RE HE'S THEY'LL WE'D I'VE DON'T",
    "你好，世界。東京は日本の首都ですカタカナ 한국어 말",
    "สวัสดี नमस्ते مرحبا שלום Привет",
    "👩\u200d👩\u200d👧 👍🏽 🇩🇪 ❤\ufe0f!",
    "naïve café e\u0301 a\u0308o\u0308 \u1e9b\u0323 \u212b \ufb01 \u00a0nbsp\u2003em \u200bzero",
    "def total(items):\n    return sum(item.price for item in items)  # …\n\n\nclass A:\n\tx_1 = {'k': [1, 2]}\n",
    "snake_case __init__ CamelCaseHTTPServer2 a==b!=c <= >= -> ** // && || ::= <!-- --> /path/to/file.py",
    'for i in range(10):\n    print(f"{i:>3}")\n\n1\n\n22\n\n333\n\n4444',
    "(((([[[{{{ }}}]]]))));;;...???!!!\n\n##### *** ``` ```python\n",
    "send(to='Ana', amount=3.50)\nError: day must be written YYYY-MM-DD.\n",
    "<s> </s> <|endoftext|> <|im_start|>user\n<unk> [INST] <tool_call>",
    "\u2581under \u2581\u2581two _ __ ___",
    "",
    " ",
    "\n",
    "1",
)
"""Texts on which wrong rules show: digits, blank lines, tabs, CRLF, contractions, scripts, emoji, composition, code."""


@dataclass(frozen=True)
class Statement:
    """What a checkpoint says of its tokenizer, to be compared with the one that is used.

    Attributes:
        class_name: the transformers class that was loaded.
        texts: probe texts, special tokens of the file among them.
        ids: of each text by the checkpoint's own tokenizer.json; None where it has none.
        replaced: how many texts the transformers class read otherwise; its rules were replaced by the file's.
        pre: name of a GGUF file's pre-tokenizer.
        by_hand: the user said that name.
    """

    class_name: str
    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...], ...] | None
    replaced: int = 0
    pre: str | None = None
    by_hand: bool = False


def read_raw(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer.json as the tokenizers library reads it, without padding and truncation; None without one.

    Raises:
        InputError: the file cannot be read.
    """
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        return None
    try:
        raw = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for whatever is wrong with the file
        raise InputError(f"The tokenizer file '{path}' cannot be read: {str(error).strip()}.") from error
    raw.no_padding()
    raw.no_truncation()
    return raw


def probe_texts(*backends: Tokenizer) -> tuple[str, ...]:
    """PROBE, and texts with the added tokens of these tokenizers in them (64 of each at most)."""
    added = [
        token.content
        for backend in backends
        for token in list(backend.get_added_tokens_decoder().values())[:64]
    ]
    return (*PROBE, *(f"a {token}b\n{token} 1" for token in dict.fromkeys(added)))


def ids_of(tokenizer: Any, texts: Sequence[str]) -> tuple[tuple[int, ...] | None, ...]:
    """The ids of each text by a transformers tokenizer, none added; None for a text that it fails on."""

    def ids(text: str) -> tuple[int, ...] | None:
        try:
            return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
        except Exception:  # tokenizers raises bare Exception, for a missing unknown token among others
            return None

    return tuple(ids(text) for text in texts)


def settle(tokenizer: Any, folder: Path) -> tuple[Any, Statement]:
    """The tokenizer to be used in place of the one transformers made of a folder, and what the folder states.

    It is the same one, unless its ids differ from those of the folder's tokenizer.json: then the file's rules and
    vocabulary, with the chat template of the one that was given and the roles of its special tokens, those apart that
    the file does not have (some classes add tokens of their own). A tokenizer that is not of the tokenizers library is
    never replaced.

    Raises:
        InputError: the tokenizer.json cannot be read.
    """
    raw, name = read_raw(folder), type(tokenizer).__name__
    if raw is None:
        return tokenizer, Statement(name, PROBE, None)
    texts = probe_texts(raw, *([tokenizer.backend_tokenizer] if tokenizer.is_fast else []))
    wanted = tuple(tuple(raw.encode(text, add_special_tokens=False).ids) for text in texts)
    differing = sum(one != other for one, other in zip(ids_of(tokenizer, texts), wanted, strict=True))
    if differing and tokenizer.is_fast:
        return _with_rules_of(raw, tokenizer), Statement(name, texts, wanted, differing)
    return tokenizer, Statement(name, texts, wanted)


def cuts_of(of: Any) -> tuple[Any, ...]:
    """What decides how a text is cut, of a transformers tokenizer or of Rules, as values: equal ones cut alike."""
    if isinstance(of, Rules):
        normalizer, cut, ignores = of.make_normalizer(), of.pre_tokenizer(), of.ignore_merges
    else:
        backend = of.backend_tokenizer
        normalizer, cut, ignores = backend.normalizer, backend.pre_tokenizer, backend.model.ignore_merges
    return (*(part and part.__getstate__() for part in (normalizer, cut)), ignores)


def _with_rules_of(raw: Tokenizer, tokenizer: Any) -> PreTrainedTokenizerFast:
    named = tokenizer.special_tokens_map.items()
    roles = {role: str(token) for role, token in named if not isinstance(token, list)}
    post_processor = tokenizer.backend_tokenizer.post_processor
    if post_processor is not None:  # where the configuration says to add BOS or EOS, this is what does it
        raw.post_processor = post_processor
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        name_or_path=tokenizer.name_or_path,
        **{role: token for role, token in roles.items() if raw.token_to_id(token) is not None},
        chat_template=tokenizer.chat_template,
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=tokenizer.clean_up_tokenization_spaces,
        padding_side=tokenizer.padding_side,
        **{key: tokenizer.init_kwargs[key] for key in (COMPOSED_ONLY,) if key in tokenizer.init_kwargs},
    )
