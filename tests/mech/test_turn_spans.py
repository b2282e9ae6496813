"""A turn's text is found by its place: whatever it says, its tokens are hidden and no others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mech.decoding.turn_spans import turn_span
from mech.errors import InputError
from mech.models.chat import render


def transcript(call: str, times: int = 1) -> list[dict[str, str]]:
    said = [{"role": "assistant", "content": call}, {"role": "user", "content": f"no {call}"}]
    return [{"role": "user", "content": f"go {call}"}, *times * said]


def speaker(tokenizer: Any, template: str | None = None) -> SimpleNamespace:
    if template is not None:
        tokenizer.chat_template = template
    return SimpleNamespace(tokenizer=tokenizer, chat_template_kwargs={}, special_in_content=False)


@pytest.mark.parametrize(
    "call", ["cut(a=1)", "assistant", "u", "<turn", "ü\ufffd", "a\nb", "user\nassistant"]
)
def test_the_span_is_the_turn_s_own_text(call: str, tiny_tokenizer: Any) -> None:
    model = speaker(tiny_tokenizer)
    messages = transcript(call, 2)
    ids = render(model, messages).ids
    spans = [turn_span(model, messages, index) for index in (1, 3)]
    assert [tiny_tokenizer.decode(ids[start:stop]) for start, stop in spans] == [call, call]
    assert spans[0][1] < spans[1][0]
    openings = [render(model, messages[:index]).ids for index in (1, 3)]
    assert [start for start, _ in spans] == [len(opening) for opening in openings]


def test_a_plain_transcript_has_spans_too(tiny_plain_tokenizer: Any) -> None:
    model = speaker(tiny_plain_tokenizer)
    messages = transcript("Assistant:")
    start, stop = turn_span(model, messages, 1)
    ids = render(model, messages).ids
    assert tiny_plain_tokenizer.decode(ids[start:stop]) == "Assistant:"
    assert tiny_plain_tokenizer.decode(ids[:start]).endswith("Assistant:\n")


def test_a_template_that_drops_or_changes_the_turn_is_refused(tiny_folder: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder("llama"))
    dropping = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
    with pytest.raises(InputError, match="does not write the turn"):
        turn_span(speaker(tokenizer, dropping), transcript("cut(a=1)"), 1)
    shouting = "{% for m in messages %}{{ m['content'] | upper }}{% endfor %}"
    with pytest.raises(InputError, match="does not write the turn"):
        turn_span(speaker(tokenizer, shouting), transcript("cut(a=1)"), 1)


def test_with_the_real_template_the_span_is_the_call_and_nothing_of_the_turn_s_border(smollm2: Any) -> None:
    call = "plan_reminder(note='Bee talk', day='2027-06-16')"
    messages = transcript(call)
    start, stop = turn_span(smollm2, messages, 1)
    ids = render(smollm2, messages).ids
    assert smollm2.tokenizer.decode(list(ids[start:stop])) == call
    assert smollm2.tokenizer.decode([ids[stop]]) == "<|im_end|>"
