"""The right tokenizer: by the header of a GGUF file, or by a folder's own `tokenizer.json`.

transformers rebuilds the tokenizers of many classes from vocabulary and merges alone, with the class's own rules; so
the ids of a loaded tokenizer are compared with the file's, and where they differ the file is used (`settle`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast

from mech.errors import InputError
from mech.models.pre_tokenizers import COMPOSED_ONLY, UNSTATED, Rules, rules_for

TOKENIZER_FILE = "tokenizer.json"


def require_supported(header: Mapping[str, Any], name: str, pre: str | None = None) -> Rules:
    """The rules that a GGUF header names; arguments and errors as `from_gguf`."""
    kind = header.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise InputError(
            f"The tokenizer of '{name}' (tokenizer.ggml.model = {kind!r}) is not supported, only byte-level BPE "
            "('gpt2') is: give a folder with the model's own tokenizer.json."
        )
    return rules_for(pre or header.get("tokenizer.ggml.pre"), name, by_hand=pre is not None)


CONTROL, USER_DEFINED, UNKNOWN = 3, 4, 2
"""Values of `tokenizer.ggml.token_type` matched in a text before it is split; all but USER_DEFINED are special."""


def from_gguf(header: Mapping[str, Any], name: str, pre: str | None = None) -> PreTrainedTokenizerFast:
    """The tokenizer that the header of a GGUF file describes.

    Args:
        header: its entries, the arrays `tokenizer.ggml.tokens`, `merges` and `token_type` included.
        name: of the file, for errors.
        pre: the pre-tokenizer's name; None takes the header's.

    Raises:
        InputError: not a byte-level BPE tokenizer, an unsupported pre-tokenizer, or an inconsistent vocabulary.
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
    except Exception as error:  # tokenizers raises it for a merge whose parts or result are no tokens
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
    adds_bos = rules.adds_bos if adds_bos is None else adds_bos
    first = [named["bos_token"]] if adds_bos and "bos_token" in named else []
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
    """The two sides of a merge, around a space that is not the first character."""
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
"""Texts that reveal wrong rules: digits, blank lines, tabs, CRLF, contractions, scripts, emoji, composition, code."""


@dataclass(frozen=True)
class Statement:
    """What a checkpoint states about its tokenizer, for comparison with the loaded one.

    Attributes:
        class_name: the transformers class that was loaded.
        texts: probe texts, also with the file's added tokens.
        ids: of each text by the checkpoint's own tokenizer.json, None for a text on which it fails; None without one.
        replaced: number of texts with other ids from the transformers class; its rules were replaced by the file's.
        pre: name of a GGUF file's pre-tokenizer.
        by_hand: the user gave that name.
    """

    class_name: str
    texts: tuple[str, ...]
    ids: tuple[tuple[int, ...] | None, ...] | None
    replaced: int = 0
    pre: str | None = None
    by_hand: bool = False


def read_raw(folder: Path) -> Tokenizer | None:
    """The folder's tokenizer.json, without padding and truncation; None without one, InputError if unreadable."""
    path = folder / TOKENIZER_FILE
    if not path.is_file():
        return None
    try:
        raw = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception for any fault of the file
        raise InputError(f"The tokenizer file '{path}' cannot be read: {str(error).strip()}.") from error
    raw.no_padding()
    raw.no_truncation()
    return raw


def probe_texts(*backends: Tokenizer) -> tuple[str, ...]:
    """PROBE, and texts with the added tokens of these tokenizers (at most 64 of each)."""
    added = [
        token.content
        for backend in backends
        for token in list(backend.get_added_tokens_decoder().values())[:64]
    ]
    return (*PROBE, *(f"a {token}b\n{token} 1" for token in dict.fromkeys(added)))


def ids_of(tokenizer: Any, texts: Sequence[str]) -> tuple[tuple[int, ...] | None, ...]:
    """The ids of each text by a transformers tokenizer, none added; None for a text on which it fails."""
    return tuple(
        _attempt(lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], text) for text in texts
    )


def _attempt(encode: Callable[[str], Sequence[int]], text: str) -> tuple[int, ...] | None:
    try:
        return tuple(encode(text))
    except Exception:  # tokenizers raises bare Exception, for a missing unknown token among others
        return None


def settle(tokenizer: Any, folder: Path) -> tuple[Any, Statement]:
    """The tokenizer to use for a folder, given the one that transformers loaded, and what the folder states.

    It is the given one, unless its ids differ from those of the folder's tokenizer.json: then one of the file's rules
    and vocabulary, with the given one's chat template and roles of special tokens (except tokens that the file lacks,
    since some classes add their own). A tokenizer that is not of the tokenizers library is never replaced.

    Raises:
        InputError: the tokenizer.json cannot be read.
    """
    raw, name = read_raw(folder), type(tokenizer).__name__
    if raw is None:
        return tokenizer, Statement(name, PROBE, None)
    texts = probe_texts(raw, *([tokenizer.backend_tokenizer] if tokenizer.is_fast else []))
    wanted = tuple(
        _attempt(lambda text: raw.encode(text, add_special_tokens=False).ids, text) for text in texts
    )
    differing = sum(one != other for one, other in zip(ids_of(tokenizer, texts), wanted, strict=True))
    if differing and tokenizer.is_fast:
        return _with_rules_of(raw, tokenizer), Statement(name, texts, wanted, differing)
    return tokenizer, Statement(name, texts, wanted)


def cuts_of(of: Any) -> tuple[Any, ...]:
    """Normalizer, pre-tokenizer and ignore_merges of a transformers tokenizer or of Rules, as comparable values."""
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
    if post_processor is not None:  # adds BOS or EOS where the configuration says so
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
