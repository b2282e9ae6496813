"""Chat templates that behave as those of known models do, written anew, and byte-level tokenizers that carry them.

What matters is what they do with turns: Qwen3 opens a final assistant turn with an empty thought, Phi-4-mini closes
a transcript with an end of text, Mistral v3 moves the system text into the last user turn, Llama 3 and Gemma trim,
Mistral v1 and Gemma know no system turn of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.utils.logging import disable_progress_bar

from tests.tiny_models import N_POSITIONS, tiny_hf_model


@dataclass(frozen=True)
class Form:
    """A template, the special tokens it needs (beginning and end of a text first, "" for none), and unmarked ones."""

    template: str
    special: tuple[str, ...]
    unmarked: tuple[str, ...] = ()
    bos: str | None = None
    eos: str = "<eos>"


_CHATML_TURN = "{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
_CHATML_ASK = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

SMOLLM2 = Form(
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    + _CHATML_TURN
    + "{% endfor %}"
    + _CHATML_ASK,
    _CHATML,
    bos="<|im_start|>",
    eos="<|im_end|>",
)

# Consecutive tool turns stand in one user turn.
_TOOL_TURN = (
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{ '<|im_start|>user' }}{% endif %}"
    "{{ '\n<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{ '<|im_end|>\n' }}{% endif %}"
)

QWEN2_5 = Form(
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are kind.<|im_end|>\n' }}{% endif %}"
    "{% if m.role == 'tool' %}"
    + _TOOL_TURN
    + "{% else %}"
    + _CHATML_TURN
    + "{% endif %}{% endfor %}"
    + _CHATML_ASK,
    _CHATML,
    ("<tool_call>", "</tool_call>"),
    eos="<|im_end|>",
)

QWEN3 = Form(
    "{% set ns = namespace(asked=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' and not (m.content.startswith('<tool_response>') and "
    "m.content.endswith('</tool_response>')) %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{% set ns.thought = '' %}{% set ns.said = m.content %}"
    "{% if '</think>' in m.content %}"
    "{% set ns.thought = m.content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set ns.said = m.content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if loop.index0 > ns.asked and (loop.last or ns.thought) %}"
    "{{ '<|im_start|>assistant\n<think>\n' + ns.thought.strip('\n') + '\n</think>\n\n' + ns.said.lstrip('\n') }}"
    "{% else %}{{ '<|im_start|>assistant\n' + ns.said }}{% endif %}{{ '<|im_end|>\n' }}"
    "{% elif m.role == 'tool' %}" + _TOOL_TURN + "{% else %}" + _CHATML_TURN + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}",
    _CHATML,
    ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    eos="<|im_end|>",
)

_HEADER = "'<|start_header_id|>' + {} + '<|end_header_id|>\n\n'"
LLAMA3_2 = Form(
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}"
    "{% set turns = messages[1:] %}{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ " + _HEADER.format("'system'") + " + 'Today Date: ' + date_string + '\n\n' + system + '<|eot_id|>' }}"
    "{% for m in turns %}{% if m.role in ('tool', 'ipython') %}"
    "{{ " + _HEADER.format("'ipython'") + " }}{{ m.content | tojson }}{{ '<|eot_id|>' }}"
    "{% else %}{{ "
    + _HEADER.format("m.role")
    + " + m.content | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ " + _HEADER.format("'assistant'") + " }}{% endif %}",
    ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    bos="<|begin_of_text|>",
    eos="<|eot_id|>",
)

PHI4_MINI = Form(
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    ("<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>", "<|system|>"),
    ("<|tool|>",),
    bos="<|endoftext|>",
    eos="<|endoftext|>",
)

_ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
)
MISTRAL_V1 = Form(
    "{{ bos_token }}{% for m in messages %}" + _ALTERNATE + "{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content + ' [/INST]' }}{% else %}{{ ' ' + m.content + eos_token }}{% endif %}{% endfor %}",
    ("<s>", "</s>", "<unk>"),
    bos="<s>",
    eos="</s>",
)

_SYSTEM_APART = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set turns = messages[1:] %}"
    "{% else %}{% set turns = messages %}{% endif %}"
)
_TOOL_RESULTS = (
    "{% elif m.role == 'tool' %}{% if not m.tool_call_id is defined or m.tool_call_id | length != 9 %}"
    "{{ raise_exception('a tool result needs a call id of nine letters') }}{% endif %}"
    "{{ '[TOOL_RESULTS]' + m.content + '[/TOOL_RESULTS]' }}"
)
MISTRAL_V3 = Form(
    "{{ bos_token }}" + _SYSTEM_APART + "{% for m in turns %}"
    "{% if m.role == 'user' %}{% if loop.last and system is defined %}"
    "{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}{% else %}{{ '[INST] ' + m.content + '[/INST]' }}"
    "{% endif %}"
    + _TOOL_RESULTS
    + "{% else %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}",
    ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
    bos="<s>",
    eos="</s>",
)
MISTRAL_V7 = Form(
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' %}{{ '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' }}"
    "{% elif m.role == 'user' %}{{ '[INST]' + m.content + '[/INST]' }}"
    "{% elif m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% else %}{{ raise_exception('only system, user and assistant turns') }}{% endif %}{% endfor %}",
    ("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    bos="<s>",
    eos="</s>",
)
GEMMA3 = Form(
    "{{ bos_token }}" + _SYSTEM_APART + "{% for m in turns %}" + _ALTERNATE + "{{ '<start_of_turn>' }}"
    "{{ 'model' if m.role == 'assistant' else m.role }}{{ '\n' }}"
    "{% if loop.first and system is defined %}{{ system + '\n\n' }}{% endif %}"
    "{{ m.content | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
    ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
    bos="<bos>",
    eos="<end_of_turn>",
)

PAPER = {
    "smollm2-135m": SMOLLM2,
    "smollm2-360m": SMOLLM2,
    "smollm2-1.7b": SMOLLM2,
    "qwen2.5-0.5b": QWEN2_5,
    "qwen3-0.6b": QWEN3,
    "llama3.2-1b": LLAMA3_2,
}
"""The templates of the paper's six models, by this project's short names."""

FORMS = {
    **{name: form for name, form in PAPER.items() if name not in ("smollm2-360m", "smollm2-1.7b")},
    "phi-4-mini": PHI4_MINI,
    "mistral-v1": MISTRAL_V1,
    "mistral-v3": MISTRAL_V3,
    "mistral-v7": MISTRAL_V7,
    "gemma-3": GEMMA3,
}


def tokenizer_of(form: Form) -> PreTrainedTokenizerFast:
    """Byte-level, without merges: one token a byte, and the form's special tokens before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*form.special, *form.unmarked, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(one, special=True, normalized=False) for one in form.special])
    tokenizer.add_tokens([AddedToken(one, special=False, normalized=False) for one in form.unmarked])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=form.bos,
        eos_token=form.eos,
        pad_token=form.special[0],
        clean_up_tokenization_spaces=False,
        model_max_length=N_POSITIONS,
    )
    fast.chat_template = form.template
    return fast


def save_form(folder: Path, form: Form, family: str = "llama") -> Path:
    """A checkpoint folder of a tiny random model with this template."""
    disable_progress_bar()
    tiny_hf_model(family).save_pretrained(folder)
    tokenizer_of(form).save_pretrained(folder)
    return folder
