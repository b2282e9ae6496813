"""From messages to ids through the model's chat template, and from an action to its ids after a prompt.

    messages --template--> text --tokenizer, nothing added--> ids      prompt = text + generation prompt
    ids(prompt + action)[len(ids(prompt)):]                            the action's ids, never of it alone

Rendering and tokenising are two visible steps, so that the beginning-of-sequence token is counted and
never doubled. Where a template cannot take the messages, a documented fallback is used and named in
`Rendering.notes`:

- no template at all: a plain transcript, each turn being `System:`, `User:` or `Assistant:`, a line break,
  its text and a blank line; the prompt ends in `Assistant:` and a line break, as a recorded action begins;
- the template refuses a system turn (Gemma): its text and a blank line are put before the first user turn;
- the template refuses two turns of one role in a row: their texts are joined by a blank line into one turn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable
from unicodedata import is_normalized

from jinja2 import TemplateError

from mech.errors import InputError
from mech.pre_tokenizers import COMPOSED_ONLY

Message = dict[str, str]
"""`{"role": "system" | "user" | "assistant", "content": text}`."""

TEMPLATE_SETTINGS: dict[str, Any] = {"enable_thinking": False, "date_string": "26 Jul 2024"}
"""Chat-template variables this project fixes, passed to every template whose text names them: Qwen3 otherwise
opens a thinking block, and Llama 3.2 otherwise writes today's date, by which scores drift from day to day."""

PLAIN = "plain transcript (the model has no chat template)"
SYSTEM_FOLDED = "system text put before the first user turn (the template refuses a system turn)"
TURNS_MERGED = "consecutive turns of one role merged (the template refuses them)"
BOS_ADDED = "beginning-of-sequence token added (the tokenizer adds one, the template does not)"
CONTENT_CHANGED = "the template leaves out or changes part of a message"

_ROLES = ("system", "user", "assistant")
_PLAIN_FORMAT = "Role:\\ncontent\\n\\n"


@runtime_checkable
class Speaker(Protocol):
    """What this file needs of a model."""

    @property
    def tokenizer(self) -> Any:
        """A transformers tokenizer."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """What is passed to the chat template besides the messages."""


@dataclass(frozen=True)
class Rendering:
    """A transcript as text and as ids; `notes` names the fallbacks used, normally none."""

    text: str
    ids: tuple[int, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Action:
    """The ids of an action after its prompt.

    `boundary_merged`: the tokenizer joins the prompt's last characters with the action's first, so that the
    prompt's ids are not a prefix of the whole; `ids` are then those of the action tokenised alone.
    """

    ids: tuple[int, ...]
    boundary_merged: bool = False


def template_text(tokenizer: Any) -> str | None:
    """The default chat template of a tokenizer, None where it has none."""
    return str(tokenizer.get_chat_template()) if tokenizer.chat_template else None


def settings_for(tokenizer: Any) -> dict[str, Any]:
    """The entries of TEMPLATE_SETTINGS that the tokenizer's template names."""
    template = template_text(tokenizer) or ""
    return {name: value for name, value in TEMPLATE_SETTINGS.items() if name in template}


def render(model: Speaker, messages: Sequence[Message], *, generation_prompt: bool = True) -> Rendering:
    """Messages as the model reads them, with the opening of the assistant's turn unless told otherwise.

    Raises:
        InputError: no messages, an unknown role, a template that takes none of the fallbacks, or a
            beginning-of-sequence token that is doubled or miscounted.
    """
    _check_messages(messages)
    if model.tokenizer.chat_template:
        text, notes = _through_template(model, messages, generation_prompt)
    else:
        text, notes = _plain(messages, generation_prompt), (PLAIN,)
    bos = model.tokenizer.bos_token
    if _adds_bos(model.tokenizer) and not text.startswith(bos):
        text = bos + text
        notes += (BOS_ADDED,) if PLAIN not in notes else ()
    ids = encode(model, text)
    _check_bos(model.tokenizer, text, ids)
    return Rendering(text, ids, notes)


def prompt_ids(model: Speaker, messages: Sequence[Message]) -> tuple[int, ...]:
    """The ids of the messages and the opening of the assistant's turn; raises InputError as `render`."""
    return render(model, messages).ids


def action_ids(model: Speaker, prompt: Rendering, action: str) -> Action:
    """The ids of an action after a prompt, found in the ids of prompt and action together.

    Raises:
        InputError: the action is empty.
    """
    if not action:
        raise InputError("An action to be scored is empty: give its text.")
    joint = encode(model, prompt.text + action)
    if shared_prefix(prompt.ids, joint) == len(prompt.ids) < len(joint):
        return Action(joint[len(prompt.ids) :])
    return Action(encode(model, action), boundary_merged=True)


def end_of_turn_id(model: Speaker) -> int:
    """The id of the first token that stands behind an assistant's text: with it the model says "exactly this".

    Found by rendering a finished turn and the next one, as a transcript holds it. A template that writes nothing there
    ends with the tokenizer's end of text.

    Raises:
        InputError: neither the template nor the tokenizer has an end.
    """
    said = "Zq"  # a text that no template contains
    spoken = [{"role": "user", "content": "0"}, {"role": "assistant", "content": said}]
    followed = [*spoken, {"role": "user", "content": "0"}]
    alone, within = (
        render(model, turns, generation_prompt=False).text.rpartition(said)[2] for turns in (spoken, followed)
    )
    if alone:
        return encode(model, within)[0]
    if model.tokenizer.eos_token_id is None:
        raise InputError("This model has no end of turn: neither its template nor its tokenizer writes one.")
    return int(model.tokenizer.eos_token_id)


def encode(model: Speaker, text: str) -> tuple[int, ...]:
    """The ids of a text, special tokens in it recognised and none added.

    Raises:
        InputError: the text has characters that Unicode composes (NFC), and what the tokenizer does to them is unknown.
    """
    if model.tokenizer.init_kwargs.get(COMPOSED_ONLY) and not is_normalized("NFC", text):
        raise InputError(
            "A text has characters that are not composed (NFC), and this GGUF file does not say how its tokenizer "
            "reads them: compose them, or use a folder with the model's own tokenizer.json."
        )
    return tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])


def shared_prefix(context: Sequence[int], longer: Sequence[int]) -> int:
    """How many leading ids two sequences share: all of `context` when it is a token prefix of `longer`."""
    count = 0
    for one, other in zip(context, longer, strict=False):
        if one != other:
            break
        count += 1
    return count


def template_sha256(model: Speaker) -> str:
    """Hash of the chat template (or of the plain format's description) and the settings passed to it."""
    described = [template_text(model.tokenizer) or _PLAIN_FORMAT, model.chat_template_kwargs]
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def tokenizer_sha256(model: Speaker) -> str:
    """Hash of the tokenizer: vocabulary, merges, normalisation, special tokens; not padding or truncation."""
    tokenizer = model.tokenizer
    if tokenizer.is_fast:
        described = json.loads(tokenizer.backend_tokenizer.to_str())
        described.update(padding=None, truncation=None)
    else:
        described = {"class": type(tokenizer).__name__, "vocabulary": tokenizer.get_vocab()}
    special = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    return hashlib.sha256(json.dumps([described, special], sort_keys=True).encode()).hexdigest()


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise InputError("A transcript without messages cannot be rendered.")
    for message in messages:
        if message["role"] not in _ROLES:
            raise InputError(f"'{message['role']}' is not a role: use {', '.join(_ROLES)}.")


def _through_template(
    model: Speaker, messages: Sequence[Message], generation_prompt: bool
) -> tuple[str, tuple[str, ...]]:
    """The first form of the messages that the template takes, with the names of what was changed."""
    refusal: TemplateError | None = None
    for form, notes in _forms(messages):
        try:
            text = model.tokenizer.apply_chat_template(
                form, tokenize=False, add_generation_prompt=generation_prompt, **model.chat_template_kwargs
            )
        except TemplateError as error:
            refusal = refusal or error
            continue
        if any(message["content"].strip() not in text for message in form):
            notes += (CONTENT_CHANGED,)
        return str(text), notes
    roles = ", ".join(message["role"] for message in messages)
    raise InputError(f"The model's chat template refuses the turns {roles}: {refusal}") from refusal


def _forms(messages: Sequence[Message]) -> Iterator[tuple[list[Message], tuple[str, ...]]]:
    """The messages as they are, then with the least change that a stricter template may want."""
    plain = list(messages)
    folded = _fold_system(plain)
    yield plain, ()
    if folded != plain:
        yield folded, (SYSTEM_FOLDED,)
    if (merged := _merge_turns(plain)) != plain:
        yield merged, (TURNS_MERGED,)
    if folded != plain and (merged := _merge_turns(folded)) != folded:
        yield merged, (SYSTEM_FOLDED, TURNS_MERGED)


def _fold_system(messages: list[Message]) -> list[Message]:
    """The leading system text at the head of the first user turn; unchanged where there is no such pair."""
    if len(messages) < 2 or messages[0]["role"] != "system" or messages[1]["role"] != "user":
        return messages
    first = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
    return [first, *messages[2:]]


def _merge_turns(messages: list[Message]) -> list[Message]:
    merged: list[Message] = []
    for message in messages:
        if merged and merged[-1]["role"] == message["role"]:
            joined = f"{merged[-1]['content']}\n\n{message['content']}"
            merged[-1] = {"role": message["role"], "content": joined}
        else:
            merged.append(message)
    return merged


def _plain(messages: Sequence[Message], generation_prompt: bool) -> str:
    parts = [f"{message['role'].capitalize()}:\n{message['content']}\n\n" for message in messages]
    return "".join(parts) + ("Assistant:\n" if generation_prompt else "")


def _adds_bos(tokenizer: Any) -> bool:
    """Whether the tokenizer itself puts a beginning-of-sequence token before a plain text."""
    return tokenizer.bos_token_id is not None and tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id


def _check_bos(tokenizer: Any, text: str, ids: Sequence[int]) -> None:
    """One beginning-of-sequence id for each time the rendered text writes it, and not two at the start."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return
    if list(ids[:2]) == [bos, bos]:
        raise InputError(
            f"The prompt begins with two '{tokenizer.bos_token}' tokens: its template doubles it."
        )
    written, found = text.count(tokenizer.bos_token), list(ids).count(bos)
    if written != found:
        raise InputError(
            f"The prompt writes '{tokenizer.bos_token}' {written} times and its ids hold {found}: "
            "the tokenizer adds or drops that token."
        )
