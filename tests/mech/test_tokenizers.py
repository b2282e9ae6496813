"""Each named pre-tokenizer cuts as its pattern says, and a folder's own tokenizer.json goes before transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, Qwen2Tokenizer

from mech.errors import InputError
from mech.load import examine_model, load_model
from mech.models.chat import encode, text_ids, tokenizer_sha256
from mech.models.checkpoints import _bundled_file
from mech.models.gguf import _VOCABULARY, read_metadata
from mech.models.pre_tokenizers import REFUSED, RULES, UNSTATED, rules_for
from mech.models.tokenizers import PROBE, cuts_of, from_gguf, ids_of, read_raw, settle
from tests.loose_tokenizer import loose_bpe, loose_tokenizer, write_folder

LLAMA_CPP_NAMES = """
    default minicpm5 llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano deepseek-llm
    deepseek-coder deepseek-v3 spark2_5 youtu falcon mpt starcoder gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es
    jina-v2-de a.x-4.0 mellum modern-bert jais-2 gemma4 granite-embed-multi-311m sarvam-moe jina-v1-en jina-v2-code
    roberta-bpe whitespace refact command-r qwen2 deepseek-r1-qwen kormo f2llmv2 qwen35 stablelm2 olmo dbrx smaug-bpe
    poro-chat glm4 chatglm-bpe viking jais tekken smollm codeshell bloom gpt3-finnish exaone exaone4 exaone-moe
    chameleon minerva-7b megrez gpt-4o llama4 kanana2 talkie granite-embed-multi-97m tiny_aya cohere2moe superbpe
    trillion granite-docling bailingmoe bailingmoe2 llada-moe seed-coder hunyuan hunyuan-dense hy_v4 joyai-llm kimi-k2
    ufakzeka grok-2 afmoe laguna minimax-m2 solar-open mellum2
""".split()
"""Every name that llama.cpp's vocabulary code compares `tokenizer.ggml.pre` with."""


def cut(name: str, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in RULES[name].pre_tokenizer().pre_tokenize_str(text)]


def test_every_name_of_llama_cpp_is_supported_or_refused() -> None:
    assert set(LLAMA_CPP_NAMES) == {*RULES, *REFUSED}
    assert not set(RULES) & set(REFUSED)
    assert len(LLAMA_CPP_NAMES) == len(set(LLAMA_CPP_NAMES))


@pytest.mark.parametrize("name", sorted(RULES))
def test_every_cut_loses_nothing_and_is_in_the_byte_alphabet(name: str) -> None:
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    for text in PROBE:
        pieces = RULES[name].pre_tokenizer().pre_tokenize_str(text)
        assert all(set(piece) <= alphabet for piece, _ in pieces)
        assert decoders.ByteLevel().decode([piece for piece, _ in pieces]) == text


# Derived by hand from each pattern: alternatives in order, the first that matches wins, as much as it can take.
CUTS: dict[str, dict[str, list[str]]] = {
    "x\n\n1. one": {
        "gpt-2": [
            "x",
            "\n",
            "\n",
            "1",
            ".",
            " one",
        ],  # white space before something leaves its last character
        "smollm": ["x", "\n\n", "1", ".", " one"],  # the digit is cut off first
        "starcoder": ["x", "\n\n", "1", ".", " one"],
        "qwen2": ["x", "\n\n", "1", ".", " one"],
        "llama-bpe": ["x", "\n\n", "1", ".", " one"],
    },
    "1 12 123 1234 1234567": {
        "gpt-2": ["1", " 12", " 123", " 1234", " 1234567"],
        "smollm": [*"1 12 123 1234 1234567"],
        "qwen2": [*"1 12 123 1234 1234567"],
        "tekken": [*"1 12 123 1234 1234567"],
        "deepseek-coder": [*"1 12 123 1234 1234567"],
        "llama-bpe": ["1", " ", "12", " ", "123", " ", "123", "4", " ", "123", "456", "7"],
        "gpt-4o": ["1", " ", "12", " ", "123", " ", "123", "4", " ", "123", "456", "7"],
        "deepseek-v3": ["1", " ", "12", " ", "123", " ", "123", "4", " ", "123", "456", "7"],
        "falcon": ["1", " ", "12", " ", "123", " ", "123", "4", " ", "123", "456", "7"],
        "minicpm5": ["1", " ", "12", " ", "123", " ", "123", "4", " ", "123", "456", "7"],
        "viking": [*"1 12 123 1234 1234567"],
    },
    "a\n\n\n\nb \n c\r\n\r\n2\r\n\r\nd": {
        "gpt-2": ["a", "\n\n\n", "\n", "b", " \n", " c", "\r\n\r", "\n", "2", "\r\n\r", "\n", "d"],
        "smollm": ["a", "\n\n\n", "\n", "b", " \n", " c", "\r\n\r\n", "2", "\r\n\r", "\n", "d"],
        "qwen2": ["a", "\n\n\n\n", "b", " \n", " c", "\r\n\r\n", "2", "\r\n\r\n", "d"],
        "llama-bpe": ["a", "\n\n\n\n", "b", " \n", " c", "\r\n\r\n", "2", "\r\n\r\n", "d"],
        "deepseek-coder": [
            *("a", "\n", "\n", "\n", "\n", "b", " ", "\n", " c"),
            *("\r", "\n", "\r", "\n", "2", "\r", "\n", "\r", "\n", "d"),
        ],
    },
    "a   b   ": {
        "gpt-2": ["a", "  ", " b", "   "],
        "smollm": ["a", "  ", " b", "   "],
        "qwen2": ["a", "  ", " b", "   "],
        "jais-2": [
            "a",
            "  ",
            " b",
            "  ",
            " ",
        ],  # runs are cut to 1 or 2, 4, 8 … before the end of white space
    },
    "\tif x_1:\n\t\ty": {
        "gpt-2": ["\t", "if", " x", "_", "1", ":", "\n\t", "\t", "y"],
        "smollm": ["\t", "if", " x", "_", "1", ":", "\n\t", "\t", "y"],
        "qwen2": ["\tif", " x", "_", "1", ":\n", "\t", "\ty"],
        "seed-coder": ["\tif", " x", "_", "1", ":", "\n", "\t", "\ty"],
    },
    "I'm I'M he'll HE'LL": {
        "gpt-2": ["I", "'m", " I", "'", "M", " he", "'ll", " HE", "'", "LL"],
        "qwen2": ["I", "'m", " I", "'M", " he", "'ll", " HE", "'LL"],
        "llama-bpe": ["I", "'m", " I", "'M", " he", "'ll", " HE", "'LL"],
        "gpt-4o": ["I'm", " I'M", " he'll", " HE'LL"],
        "tekken": ["I", "'m", " I", "'M", " he", "'ll", " HE", "'LL"],
        "ufakzeka": ["I", "'m", " I", "'M", " he", "'ll", " HE", "'LL"],
    },
    "o'clock don'tx": {  # the ending is taken before a longer word, except where no ending is known
        "gpt-2": ["o", "'", "clock", " don", "'t", "x"],
        "qwen2": ["o", "'clock", " don", "'t", "x"],
        "ufakzeka": ["o", "'clock", " don", "'tx"],
    },
    "CamelCaseHTTPServer snake_case": {
        "gpt-2": ["CamelCaseHTTPServer", " snake", "_", "case"],
        "qwen2": ["CamelCaseHTTPServer", " snake", "_case"],
        "tekken": ["Camel", "Case", "HTTPServer", " snake", "_case"],
        "gpt-4o": ["Camel", "Case", "HTTPServer", " snake", "_case"],
    },
    "你好，世界3": {
        "gpt-2": ["你好", "，", "世界", "3"],
        "qwen2": ["你好", "，世界", "3"],
        "deepseek-v3": ["你好", "，", "世界", "3"],
        "bloom": ["你好", "，", "世界3"],
        "viking": ["你好", "，", "世界", "3"],
    },
    "สวัสดี": {  # two of its six characters are marks, not letters
        "gpt-2": ["สว", "ั", "สด", "ี"],
        "smollm": ["สว", "ั", "สด", "ี"],
        "qwen2": ["สว", "ัสด", "ี"],
        "qwen35": ["สวัสดี"],
        "tekken": ["สวัสดี"],
        "deepseek-v3": ["สวัสดี"],
    },
    "e\u0301a": {
        "gpt-2": ["e", "\u0301", "a"],
        "qwen2": ["e", "\u0301a"],
        "qwen35": ["e\u0301a"],
    },
    "👩\u200d👧! x": {
        "gpt-2": ["👩\u200d👧!", " x"],
        "qwen2": ["👩\u200d👧!", " x"],
        "deepseek-v3": ["👩", "\u200d", "👧!", " x"],  # the joiner is neither sign nor letter
    },
    "x==1//2\n  y": {
        "gpt-2": ["x", "==", "1", "//", "2", "\n ", " y"],
        "qwen2": ["x", "==", "1", "//", "2", "\n", " ", " y"],
        "command-r": ["x", "==", "1", "//", "2", "\n ", " y"],
        "deepseek-coder": ["x", "==", "1", "//", "2", "\n", " ", " y"],
    },
    "Hi, 12 b|c": {
        "bloom": ["Hi", ",", " 12", " b", "|", "c"],
        "viking": ["Hi", ",", " ", "1", "2", " b", "|", "c"],
        "falcon": ["Hi", ",", " ", "12", " b", "|", "c"],
    },
    "a//\n\nb": {
        "tekken": ["a", "//\n\n", "b"],
        "qwen2": ["a", "//\n\n", "b"],
        "laguna": ["a", "//", "\n\n", "b"],
        "bailingmoe": ["a", "//\n\n", "b"],
        "exaone-moe": ["a", "//\n", "\n", "b"],
    },
}


@pytest.mark.parametrize(("text", "name"), [(text, name) for text, names in CUTS.items() for name in names])
def test_cuts_are_those_derived_by_hand(text: str, name: str) -> None:
    assert cut(name, text) == CUTS[text][name]


def test_names_of_one_pattern_cut_alike_and_say_what_is_not_known() -> None:
    assert cuts_of(RULES["llama3"]) == cuts_of(RULES["llama-v3"]) == cuts_of(RULES["llama-bpe"])
    assert RULES["smaug-bpe"].cuts == RULES["llama-bpe"].cuts
    assert RULES["deepseek-r1-qwen"].normalizer == UNSTATED and RULES["qwen2"].normalizer == "NFC"
    assert all(rules.source for rules in RULES.values())


@pytest.mark.parametrize(
    ("pre", "said"),
    [
        (None, r"'m\.gguf' names no pre-tokenizer .*--pre NAME"),
        (
            "brand-new",
            r"The pre-tokenizer 'brand-new' \(tokenizer\.ggml\.pre of 'm\.gguf'\) is unknown: give --pre NAME",
        ),
        ("kimi-k2", "'kimi-k2' .* is not supported, as llama.cpp reads it by code of its own"),
        (
            "default",
            "'default' .* is not supported, as it stands for a tokenizer that the converter did not know",
        ),
    ],
)
def test_unknown_and_unsupported_names_are_refused_by_name(pre: str | None, said: str) -> None:
    with pytest.raises(InputError, match=said):
        rules_for(pre, "m.gguf")


def test_wrong_name_said_by_hand_lists_the_right_ones() -> None:
    with pytest.raises(
        InputError, match=r"'qwen' \(--pre\) is unknown: give --pre NAME, one of .*qwen2, .*smollm"
    ):
        rules_for("qwen", "m.gguf", by_hand=True)


def header(pre: str | None = "smollm", **entries: Any) -> dict[str, Any]:
    """The tokenizer's part of a GGUF header over the loose vocabulary."""
    vocabulary, merges = loose_bpe()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    stated = {
        "model": "gpt2",
        "tokens": tokens,
        "merges": [f"{left} {right}" for left, right in merges],
        "token_type": [3] * 5 + [1] * (len(tokens) - 5),
        "bos_token_id": 0,
        "eos_token_id": 1,
        **({"pre": pre} if pre else {}),
        **entries,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in stated.items()}


def test_gguf_tokenizer_has_the_ids_of_its_pattern() -> None:
    digits = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    wanted, plain = loose_tokenizer(digits), loose_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=False))
    made = from_gguf(header(), "m.gguf")
    assert ids_of(made, PROBE) == tuple(tuple(wanted.encode(text).ids) for text in PROBE)
    assert ids_of(made, PROBE) != tuple(tuple(plain.encode(text).ids) for text in PROBE)
    assert made.decode(made.encode(PROBE[0])) == PROBE[0]


def test_qwen2_is_read_as_transformers_own_class_reads_it() -> None:
    vocabulary, merges = loose_bpe()
    own = Qwen2Tokenizer(
        vocab=dict(vocabulary), merges=list(merges), unk_token=None, eos_token="<eos>", pad_token="<pad>"
    )
    texts = [text for text in PROBE if "<|" not in text]
    made = from_gguf(header("qwen2"), "m.gguf")
    assert ids_of(made, texts) == ids_of(own, texts)
    assert ids_of(from_gguf(header("llama-bpe"), "m.gguf"), texts) != ids_of(own, texts)


def test_name_said_by_hand_goes_before_the_header() -> None:
    by_hand = from_gguf(header("gpt-2"), "m.gguf", "smollm")
    assert ids_of(by_hand, PROBE) == ids_of(from_gguf(header(), "m.gguf"), PROBE)
    assert ids_of(from_gguf(header(None), "m.gguf", "smollm"), PROBE) == ids_of(by_hand, PROBE)
    with pytest.raises(InputError, match="names no pre-tokenizer"):
        from_gguf(header(None), "m.gguf")


@pytest.mark.parametrize("kind", ["llama", "bert", "t5", "rwkv", "gemma4", None])
def test_other_kinds_of_tokenizer_are_refused_by_name(kind: str | None) -> None:
    with pytest.raises(InputError, match=rf"tokenizer\.ggml\.model = {kind!r}\) is not supported"):
        from_gguf(header(model=kind), "m.gguf")


def test_token_types_say_what_is_found_whole_and_what_is_special() -> None:
    kinds = [3, 4, 2, 5, 1] + [1] * (len(loose_bpe()[0]) - 5)
    made = from_gguf(header(token_type=kinds), "m.gguf")
    assert made.encode("<bos><eos><pad>") == [0, 1, 2]
    assert len(made.encode("<turn>")) > 1 and len(made.encode("<end>")) > 1  # unused and normal: text as any
    assert (
        made.decode([0, 1, 2], skip_special_tokens=True) == "<eos>"
    )  # user-defined is whole and not special


@pytest.mark.parametrize(
    ("pre", "stated", "first"),
    [("smollm", None, False), ("smollm", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_bos_is_added_where_header_or_rules_say(pre: str, stated: bool | None, first: bool) -> None:
    entries = {} if stated is None else {"add_bos_token": stated}
    made = from_gguf(header(pre, **entries), "m.gguf")
    assert (made("a")["input_ids"][0] == 0) is first
    assert made("a", add_special_tokens=False)["input_ids"][0] != 0


@pytest.mark.parametrize(
    "entries",
    [
        {"tokens": []},
        {"tokens": ["a", "a"], "token_type": [1, 1]},
        {"token_type": [1]},
        {"merges": []},
        {"merges": ["q zz"]},
        {"merges": ["nospace"]},
        {"bos_token_id": 10**6},
    ],
)
def test_vocabulary_that_contradicts_itself_is_one_sentence(entries: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"m\.gguf"):
        from_gguf(header(**entries), "m.gguf")


def test_whole_pieces_are_tokens_where_merges_are_ignored() -> None:
    entries = {"tokens": [*sorted(pre_tokenizers.ByteLevel.alphabet()), "abc", "ab"], "merges": ["a b"]}
    entries["token_type"] = [1] * len(entries["tokens"])
    assert (
        len(from_gguf(header("llama-bpe", **entries), "m.gguf")("abc", add_special_tokens=False)["input_ids"])
        == 1
    )
    assert (
        len(from_gguf(header("qwen2", **entries), "m.gguf")("abc", add_special_tokens=False)["input_ids"])
        == 2
    )


def test_text_that_is_not_composed_is_refused_where_its_reading_is_not_known(tmp_path: Path) -> None:
    from_gguf(header("deepseek-r1-qwen"), "m.gguf").save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    model = SimpleNamespace(tokenizer=tokenizer, chat_template_kwargs={}, special_in_content=False)
    assert encode(model, "café")
    with pytest.raises(InputError, match="not composed"):
        encode(model, "cafe\u0301")
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    with pytest.raises(InputError, match="not composed"):  # the way of texts that spell a special token
        text_ids(model, "cafe\u0301 <|end|>")
    model.tokenizer = from_gguf(header("qwen2"), "m.gguf")
    assert encode(model, "cafe\u0301") == encode(model, "café")


@pytest.mark.real_model
def test_bundled_model_reads_digits_one_by_one() -> None:
    """The ids of SmolLM2's own tokenizer: blank lines before a digit are one token."""
    file = _bundled_file("smollm2-135m-q4")
    made = from_gguf(read_metadata(file, _VOCABULARY), file.name)
    assert made.encode("x\n\n1. one") == [104, 1116, 33, 30, 582]
    assert made.encode("12 123") == [33, 34, 216, 33, 34, 35]
    assert made.encode("<|im_start|>user") == [1, 4093]


# What transformers makes of a folder with this tokenizer.json depends on the class it names, and for some kinds of
# model on config.json alone. The first group is rebuilt with the class's own rules; the second reads the file.
REBUILT = [
    "GPT2Tokenizer",
    "GPT2TokenizerFast",
    "GPTNeoXTokenizer",
    "Qwen2Tokenizer",
    "Qwen3_5Tokenizer",
    "CohereTokenizer",
    "GemmaTokenizer",
    "CodeLlamaTokenizer",
    "RobertaTokenizer",
    "WhisperTokenizer",
]
READ = ["PreTrainedTokenizerFast", "TokenizersBackend", "LlamaTokenizer", "LlamaTokenizerFast"]


@pytest.mark.parametrize("tokenizer_class", REBUILT + READ)
@pytest.mark.parametrize("model_type", ["llama", "qwen2"])
def test_file_goes_before_the_class(tokenizer_class: str, model_type: str, tmp_path: Path) -> None:
    raw = loose_tokenizer(RULES["smollm"].pre_tokenizer())
    folder = write_folder(tmp_path, raw, tokenizer_class, model_type)
    loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    used, statement = settle(loaded, folder)
    assert statement.ids == ids_of(used, statement.texts)
    assert statement.ids == tuple(tuple(raw.encode(text).ids) for text in statement.texts)
    rebuilt = tokenizer_class in REBUILT or model_type == "qwen2"
    assert (statement.replaced > 0) is rebuilt is (used is not loaded)
    assert (used.bos_token_id, used.eos_token_id, used.pad_token_id) == (0, 1, 2)
    assert used.chat_template == "{{ messages }}"


def test_sentencepiece_file_goes_before_the_llama_class(tmp_path: Path) -> None:
    """The class puts its own space before a text; this file asks for none."""
    alphabet = {chr(code): index for index, code in enumerate([*range(97, 123), 0x2581])}
    vocabulary = {**alphabet, "\u2581a": 27, "<unk>": 28, "<bos>": 29, "<eos>": 30, "<pad>": 31}
    raw = Tokenizer(models.BPE(vocab=vocabulary, merges=[("\u2581", "a")], unk_token="<unk>"))
    raw.normalizer = normalizers.Replace(" ", "\u2581")
    raw.add_special_tokens(["<bos>", "<eos>", "<pad>", "<unk>"])
    folder = write_folder(tmp_path, raw, "LlamaTokenizer", "llama", unk_token="<unk>")
    used, statement = settle(AutoTokenizer.from_pretrained(folder), folder)
    assert type(AutoTokenizer.from_pretrained(folder)).__name__ == "LlamaTokenizer"
    assert statement.replaced
    assert used("a b", add_special_tokens=False)["input_ids"] == [0, 26, 1]


def test_token_that_only_the_class_adds_is_text(tmp_path: Path) -> None:
    raw = loose_tokenizer(RULES["qwen2"].pre_tokenizer(), normalizers.NFC())
    folder = write_folder(tmp_path, raw, "Qwen2Tokenizer", "qwen2")
    loaded = AutoTokenizer.from_pretrained(folder)
    assert len(loaded("<|endoftext|>")["input_ids"]) == 1
    used, _ = settle(loaded, folder)
    assert len(used("<|endoftext|>")["input_ids"]) > 1 and used.unk_token is None


def test_folder_without_tokenizer_json_is_left_alone(tmp_path: Path) -> None:
    vocabulary, merges = loose_bpe()
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(f"{a} {b}" for a, b in merges))
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "GPT2Tokenizer", "eos_token": "<eos>"}'
    )
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    used, statement = settle(loaded, tmp_path)
    assert used is loaded and statement.ids is None and statement.class_name == "GPT2Tokenizer"


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"model": {"type": "BPE", "vocab": [], "merges": 3}}', "\ud800"]
)
def test_damaged_tokenizer_json_is_one_sentence(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(InputError, match=r"tokenizer\.json' cannot be read"):
        read_raw(tmp_path)


def checkpoint(folder: Path, tiny_folder: Callable[..., Path], **written: Any) -> Path:
    """A tiny Llama with the loose tokenizer, of the class whose rules transformers puts in place of the file's."""
    source = tiny_folder("llama")
    config = json.loads((source / "config.json").read_text())
    write_folder(
        folder, loose_tokenizer(RULES["smollm"].pre_tokenizer()), "GPT2Tokenizer", "llama", **written
    )
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 900}))
    from transformers import AutoConfig, AutoModelForCausalLM

    AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)
    return folder


def test_loaded_model_uses_and_shows_the_file(tmp_path: Path, tiny_folder: Callable[..., Path]) -> None:
    folder = checkpoint(tmp_path / "model", tiny_folder)
    model, results = examine_model(str(folder), cache_dir=tmp_path / "cache")
    result = next(one for one in results if one.name == "pre_tokenizer")
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert encode(model, PROBE[0]) == tuple(raw.encode(PROBE[0]).ids)
    assert ids_of(model.bridge.tokenizer, PROBE) == tuple(tuple(raw.encode(text).ids) for text in PROBE)
    assert result.passed and result.flagged
    assert (
        "transformers' GPT2Tokenizer gives" in result.sentence and "whose rules are used" in result.sentence
    )
    again = load_model(str(folder), cache_dir=tmp_path / "cache")
    assert tokenizer_sha256(again) == tokenizer_sha256(model)
