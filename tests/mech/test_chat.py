"""Messages become ids through the template: no BOS doubled, the context a prefix, the action found."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from mech.errors import InputError
from mech.models import chat, templates
from mech.models.chat import Message, action_ids, encode, prompt_ids, render, shared_prefix, tokens_at
from mech.models.checkpoints import resolve
from tests.chat_templates import FORMS, tokenizer_of
from tests.tiny_gguf import write_gguf

TURNS: list[Message] = [
    {"role": "system", "content": "Answer with one call."},
    {"role": "user", "content": "Name the notes of May."},
    {"role": "assistant", "content": "notes(month=5)"},
    {"role": "user", "content": "Done: 3 notes."},
]
ALTERNATING = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "<turn>{{ m['role'] }}\n{{ m['content'] | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)


@dataclass(frozen=True)
class Speaker:
    """A tokenizer and its settings, which is all that chat needs of a model."""

    tokenizer: Any
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    special_in_content: bool = False


def with_template(tokenizer: Any, template: str | None) -> Speaker:
    other = copy.deepcopy(tokenizer)
    other.chat_template = template
    return Speaker(other, chat.settings_for(other))


def test_prompt_is_the_template_and_the_opening_of_the_answer(tiny_tokenizer: Any) -> None:
    rendering = render(Speaker(tiny_tokenizer), TURNS[:2])
    assert rendering.text == (
        "<bos><turn>system\nAnswer with one call.<end>\n"
        "<turn>user\nName the notes of May.<end>\n<turn>assistant\n"
    )
    assert rendering.notes == ()
    assert tiny_tokenizer.decode(list(rendering.ids)) == rendering.text
    assert prompt_ids(Speaker(tiny_tokenizer), TURNS[:2]) == rendering.ids


def test_context_is_a_prefix_of_context_and_record(tiny_tokenizer: Any) -> None:
    speaker = Speaker(tiny_tokenizer)
    context = render(speaker, TURNS[:2], generation_prompt=False).ids
    longer = render(speaker, TURNS, generation_prompt=False).ids
    assert shared_prefix(context, longer) == len(context) < len(longer)


def test_shared_prefix_stops_at_the_first_difference() -> None:
    assert shared_prefix((1, 2, 3), (1, 2, 4, 5)) == 2
    assert shared_prefix((1, 2), (1, 2, 3)) == 2
    assert shared_prefix((1,), ()) == 0


def test_plain_format_is_used_and_named_without_a_template(tiny_plain_tokenizer: Any) -> None:
    speaker = Speaker(tiny_plain_tokenizer)
    rendering = render(speaker, TURNS[:3])
    assert rendering.text == (
        "System:\nAnswer with one call.\n\nUser:\nName the notes of May.\n\n"
        "Assistant:\nnotes(month=5)\n\nAssistant:\n"
    )
    assert rendering.notes == (templates.PLAIN,)
    record = render(speaker, TURNS[:3], generation_prompt=False)
    assert record.text.startswith(render(speaker, TURNS[:2]).text + "notes(month=5)")


def test_system_refusal_folds_the_system_text_into_the_first_user_turn(tiny_tokenizer: Any) -> None:
    rendering = render(with_template(tiny_tokenizer, ALTERNATING), TURNS)
    assert rendering.notes == (templates.SYSTEM_FOLDED,)
    assert "<turn>user\nAnswer with one call.\n\nName the notes of May.<end>" in rendering.text


def test_two_user_turns_are_merged_where_refused(tiny_tokenizer: Any) -> None:
    speaker = with_template(tiny_tokenizer, ALTERNATING)
    again: Message = {"role": "user", "content": "Go on."}
    assert render(speaker, [*TURNS[1:], again]).notes == (templates.TURNS_MERGED,)
    both = render(speaker, [*TURNS, again])
    assert both.notes == (templates.SYSTEM_FOLDED, templates.TURNS_MERGED)
    assert "Done: 3 notes.\n\nGo on.<end>" in both.text


def test_fallbacks_do_not_touch_the_messages(tiny_tokenizer: Any) -> None:
    messages = copy.deepcopy(TURNS)
    render(with_template(tiny_tokenizer, ALTERNATING), messages)
    assert messages == TURNS


def test_template_that_takes_nothing_is_refused(tiny_tokenizer: Any) -> None:
    speaker = with_template(tiny_tokenizer, "{{ raise_exception('never') }}")
    with pytest.raises(InputError, match=r"refuses the turns system, user, assistant, user: never"):
        render(speaker, TURNS)


@pytest.mark.parametrize("wrong", ["{{ tools | length }}", "{{ messages[0].role + 1 }}", "{{ 1 // 0 }}"])
def test_a_template_that_is_wrong_is_refused_in_a_sentence(wrong: str, tiny_tokenizer: Any) -> None:
    with pytest.raises(InputError, match="chat template refuses the turns"):
        render(with_template(tiny_tokenizer, wrong), TURNS)


def test_template_that_drops_text_is_named(tiny_tokenizer: Any) -> None:
    speaker = with_template(tiny_tokenizer, "{% for m in messages %}{{ m['content'][:9] }}{% endfor %}")
    [note] = render(speaker, TURNS).notes
    assert note == "the template leaves out part of message 1 (system), 2 (user), 3 (assistant), 4 (user)"


@pytest.mark.parametrize(
    ("template", "settings"),
    [
        ("{% if enable_thinking %}<think>{% endif %}{{ messages[0].content }}", {"enable_thinking": False}),
        ("{{ date_string }} {{ messages[0]['content'] }}", {"date_string": "26 Jul 2024"}),
        ("{{ messages[0]['content'] }}", {}),
    ],
)
def test_settings_are_those_the_template_names(
    tiny_tokenizer: Any, template: str, settings: dict[str, Any]
) -> None:
    speaker = with_template(tiny_tokenizer, template)
    assert speaker.chat_template_kwargs == settings
    text = render(speaker, TURNS[:1]).text
    assert "<think>" not in text
    assert all(value in text for value in settings.values() if isinstance(value, str))


def test_doubled_bos_is_refused(tiny_tokenizer: Any) -> None:
    speaker = with_template(tiny_tokenizer, "{{ bos_token }}{{ bos_token }}{{ messages[0]['content'] }}")
    with pytest.raises(InputError, match="begins with two '<bos>'"):
        render(speaker, TURNS)


def test_miscounted_bos_is_refused(tiny_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "encode", lambda model, text: (0, 70, 0, *encode(model, text)[1:]))
    with pytest.raises(InputError, match="writes '<bos>' 1 times and its ids hold 2"):
        render(Speaker(tiny_tokenizer), TURNS)


class AddsBos:
    """A tokenizer that puts BOS before every text by itself, as Llama's do."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids: list[int] = self.inner(text, add_special_tokens=False)["input_ids"]
        return {"input_ids": [self.inner.bos_token_id, *ids] if add_special_tokens else ids}


def test_bos_is_written_once_where_it_is_added(tiny_tokenizer: Any, tiny_plain_tokenizer: Any) -> None:
    bos = tiny_tokenizer.bos_token_id
    for tokenizer in (tiny_tokenizer, tiny_plain_tokenizer):
        ids = render(Speaker(AddsBos(tokenizer)), TURNS).ids
        assert ids[0] == bos and ids.count(bos) == 1
    bare = with_template(tiny_tokenizer, "{{ messages[0]['content'] }}")
    rendering = render(Speaker(AddsBos(bare.tokenizer)), TURNS)
    left_out = "the template leaves out message 2 (user), 3 (assistant), 4 (user)"
    assert rendering.notes == (templates.BOS_ADDED, left_out)
    place = rendering.places[0]
    assert place is not None and rendering.text[slice(*place)] == TURNS[0]["content"]
    # A message that spells the token opens no transcript with it.
    spelt: list[Message] = [{"role": "user", "content": "<bos>go"}]
    opened = render(Speaker(AddsBos(bare.tokenizer)), spelt)
    assert opened.text == "<bos><bos>go" and opened.ids.count(bos) == 1


def test_action_ids_continue_the_prompt(tiny_tokenizer: Any) -> None:
    speaker = Speaker(tiny_tokenizer)
    prompt = render(speaker, TURNS[:2])
    action = action_ids(speaker, prompt, "notes(month='May')")
    assert prompt.ids + action.ids == encode(speaker, prompt.text + "notes(month='May')")
    assert not action.boundary_merged


def test_merge_across_the_boundary_is_flagged(tmp_path: Path) -> None:
    folder = resolve(str(write_gguf(tmp_path / "tiny.gguf")), tmp_path).folder
    speaker = with_template(AutoTokenizer.from_pretrained(folder), "{{ messages[0]['content'] }}h")
    prompt = render(speaker, TURNS[:1])
    merged = action_ids(speaker, prompt, "elp()")
    assert merged.boundary_merged
    assert merged.ids == encode(speaker, "elp()")
    assert not action_ids(speaker, prompt, "notes()").boundary_merged


def test_empty_action_and_bad_messages_are_refused(tiny_tokenizer: Any) -> None:
    speaker = Speaker(tiny_tokenizer)
    with pytest.raises(InputError, match="empty"):
        action_ids(speaker, render(speaker, TURNS), "")
    with pytest.raises(InputError, match="without messages"):
        render(speaker, [])
    with pytest.raises(InputError, match="'human' is not a role: use user, tool, system, assistant"):
        render(speaker, [{"role": "human", "content": "x"}])


def form(name: str) -> Speaker:
    tokenizer = tokenizer_of(FORMS[name])
    return Speaker(tokenizer, chat.settings_for(tokenizer))


EACH = "{{% for m in messages %}}<turn>{}<end>{{% endfor %}}"
LINES = "m.content.replace('\n\n\n', '\n\n')"


@pytest.mark.parametrize(
    ("template", "content", "kind"),
    [
        (EACH.format("{{ m.content | trim }}"), "x \n", "trims"),
        (EACH.format("{{ m.content | trim }}"), " x", "trims"),
        (EACH.format("{{ m.content | lower }}"), "Grow(x)", "changes the case of"),
        (EACH.format("{{ m.content | upper }}"), "ok", "changes the case of"),
        (EACH.format("{{ " + LINES + " }}"), "a\n\n\nb", "changes white space in"),
        (EACH.format("{{ m.content.replace(' ', '  ') }}"), "a b", "changes white space in"),
        (EACH.format("{{ m.content.splitlines() | join('\n') }}"), "a\r\nb", "changes white space in"),
        (EACH.format("{{ m.content | tojson }}"), 'say "a"\n', "rewrites"),
        (EACH.format("{{ m.content | truncate(9) }}"), "one two three four", "rewrites"),
        (EACH.format("{{ m.content[:2] }}"), "one", "leaves out part of"),
        (EACH.format("{{ m.content }}{{ m.content }}"), "one", "writes more than once"),
        (EACH.format(""), "one", "leaves out"),
    ],
)
def test_what_a_template_does_to_a_message_is_named_to_the_letter(
    template: str, content: str, kind: str, tiny_tokenizer: Any
) -> None:
    speaker = with_template(tiny_tokenizer, template)
    messages: list[Message] = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "2"},
    ]
    notes = render(speaker, messages).notes
    assert any(f"{kind} message" in note and "2 (assistant)" in note for note in notes), notes
    kept = render(Speaker(tiny_tokenizer), messages)
    assert kept.notes == ()
    assert [kept.text[slice(*place)] for place in kept.places if place] == ["1", content, "2"]


@pytest.mark.parametrize(
    ("name", "changed"),
    [("llama3.2-1b", "1 (system), 3 (assistant)"), ("gemma-3", "3 (assistant)"), ("smollm2-135m", "")],
)
def test_known_templates_that_trim_are_named(name: str, changed: str) -> None:
    messages: list[Message] = [
        {"role": "system", "content": "Answer. "},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "x \n"},
        {"role": "user", "content": "no"},
    ]
    rendering = render(form(name), messages)
    assert rendering.notes == ((f"the template trims message {changed}",) if changed else ())
    place = rendering.places[2]
    assert place is not None and rendering.text[slice(*place)] == ("x" if changed else "x \n")


def test_a_message_that_stands_in_others_too_is_found_in_its_own_place(tiny_tokenizer: Any) -> None:
    texts = ("assistant", "assistant", "no assistant", "<turn>assistant", "")
    messages: list[Message] = [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)
    ]
    rendering = render(Speaker(tiny_tokenizer), messages)
    expected = "<bos>"
    for message, place in zip(messages, rendering.places, strict=True):
        expected += f"<turn>{message['role']}\n"
        assert place == (len(expected), len(expected) + len(message["content"]))
        expected += f"{message['content']}<end>\n"
    assert rendering.content == rendering.places


ENDS = {"llama3.2-1b": "<|eot_id|>", "phi-4-mini": "<|end|>", "gemma-3": "<end_of_turn>"} | dict.fromkeys(
    ("mistral-v1", "mistral-v3", "mistral-v7"), "</s>"
)


@pytest.mark.parametrize("name", FORMS)
def test_the_end_of_a_turn_is_the_template_s(name: str) -> None:
    speaker = form(name)
    assert speaker.tokenizer.decode([chat.end_of_turn_id(speaker)]) == ENDS.get(name, "<|im_end|>")


def test_a_template_that_changes_what_is_said_still_ends_the_turn(tiny_tokenizer: Any) -> None:
    for made in ("upper", "tojson", "trim"):
        changed = str(tiny_tokenizer.chat_template).replace("m['content']", f"m['content'] | {made}")
        end = chat.end_of_turn_id(with_template(tiny_tokenizer, changed))
        assert tiny_tokenizer.decode([end]) == ('"' if made == "tojson" else "<end>")
    with pytest.raises(InputError, match="does not write what an assistant says"):
        chat.end_of_turn_id(with_template(tiny_tokenizer, "<turn>{{ messages[0].content }}<end>"))


def test_text_that_a_template_moves_is_found_and_named() -> None:
    rendering = render(form("mistral-v3"), TURNS)
    assert rendering.notes == ("the template puts after later ones message 1 (system)",)
    places = [place for place in rendering.places if place is not None]
    assert [rendering.text[slice(*place)] for place in places] == [one["content"] for one in TURNS]
    assert rendering.text.endswith(f"[INST] {TURNS[0]['content']}\n\n{TURNS[3]['content']}[/INST]")


@pytest.mark.parametrize("name", FORMS)
def test_in_every_form_a_message_s_characters_are_its_tokens(name: str) -> None:
    speaker = form(name)
    rendering = render(speaker, TURNS)
    for message, place in zip(TURNS, rendering.places, strict=True):
        assert place is not None and rendering.text[slice(*place)] == message["content"]
        held = tokens_at(speaker, rendering, place)
        assert speaker.tokenizer.decode(rendering.ids[held.start : held.stop]) == message["content"]


ROLES_TAKEN = {
    "smollm2-135m": "<|im_start|>tool\nDone: 3 notes.<|im_end|>\n",
    "qwen2.5-0.5b": "<|im_start|>user\n<tool_response>\nDone: 3 notes.\n</tool_response><|im_end|>\n",
    "qwen3-0.6b": "<|im_start|>user\n<tool_response>\nDone: 3 notes.\n</tool_response><|im_end|>\n",
    "llama3.2-1b": '<|start_header_id|>ipython<|end_header_id|>\n\n"Done: 3 notes."<|eot_id|>',
    "phi-4-mini": "<|tool|>Done: 3 notes.<|end|>",
}


@pytest.mark.parametrize("name", FORMS)
def test_the_tool_role_works_where_the_template_knows_it(name: str) -> None:
    speaker = form(name)
    if name not in ROLES_TAKEN:
        with pytest.raises(
            InputError, match=r"does not take observations in the role 'tool' \(.*choose another"
        ):
            chat.require_role(speaker, "tool")
        return
    chat.require_role(speaker, "tool")
    rendering = render(speaker, [*TURNS[:3], {"role": "tool", "content": "Done: 3 notes."}])
    assert ROLES_TAKEN[name] in rendering.text and rendering.notes == ()


def test_a_template_that_leaves_a_role_out_does_not_know_it(tiny_tokenizer: Any) -> None:
    silent = "{% for m in messages if m.role != 'tool' %}<turn>{{ m.content }}<end>{% endfor %}"
    with pytest.raises(InputError, match="'tool' \\(its template leaves them out, "):
        chat.require_role(with_template(tiny_tokenizer, silent), "tool")
    chat.require_role(with_template(tiny_tokenizer, silent), "user")


def test_a_plain_transcript_takes_every_role(tiny_plain_tokenizer: Any) -> None:
    chat.require_role(Speaker(tiny_plain_tokenizer), "tool")
    text = render(Speaker(tiny_plain_tokenizer), [{"role": "tool", "content": "x"}]).text
    assert text == "Tool:\nx\n\nAssistant:\n"


def test_template_hash_follows_template_and_settings(tiny_tokenizer: Any, tiny_plain_tokenizer: Any) -> None:
    hashes = {
        chat.template_sha256(Speaker(tiny_tokenizer)),
        chat.template_sha256(Speaker(tiny_tokenizer, {"enable_thinking": False})),
        chat.template_sha256(with_template(tiny_tokenizer, ALTERNATING)),
        chat.template_sha256(Speaker(tiny_plain_tokenizer)),
    }
    assert len(hashes) == 4


def test_tokenizer_hash_follows_special_tokens_and_not_padding(tiny_tokenizer: Any) -> None:
    before = chat.tokenizer_sha256(Speaker(tiny_tokenizer))
    other = copy.deepcopy(tiny_tokenizer)
    other(["a", "bcd"], padding=True)
    assert chat.tokenizer_sha256(Speaker(other)) == before
    other.bos_token = "<turn>"
    assert chat.tokenizer_sha256(Speaker(other)) != before


def test_bridge_does_not_change_our_tokenizer(tiny_folder: Callable[..., Path]) -> None:
    from mech.load import load_model

    model = load_model(str(tiny_folder("llama")), check=False)
    fresh = AutoTokenizer.from_pretrained(tiny_folder("llama"))
    assert model.bridge.tokenizer is not model.tokenizer
    assert chat.tokenizer_sha256(model) == chat.tokenizer_sha256(Speaker(fresh))
    assert not model.bridge.cfg.tokenizer_prepends_bos


def test_real_model_writes_bos_once_a_turn(smollm2: Any) -> None:
    rendering = render(smollm2, TURNS)
    assert smollm2.tokenizer.bos_token == "<|im_start|>"
    assert rendering.ids.count(smollm2.tokenizer.bos_token_id) == len(TURNS) + 1
    assert rendering.notes == ()
