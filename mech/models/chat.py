"""From messages to ids through the model's chat template, and from an action to its ids after a prompt.

    messages --template--> text --tokenizer, nothing added--> ids      prompt = text + generation prompt
    ids(prompt + action)[len(ids(prompt)):]                            the action's ids, in its context

Rendering and tokenising are separate steps, so that the beginning-of-sequence token can be counted and is never
doubled. `mech.models.templates` renders the text, with places of messages, fallbacks and changes.

**Special tokens** come from the template alone. A special token that a message or an action spells
(`mech.models.special_tokens`) is read as text, with a note, unless the model has `special_in_content`; then it is read
as the tokenizer reads it, with a note.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from mech.errors import InputError
from mech.models.pre_tokenizers import require_composed
from mech.models.special_tokens import special_tokens
from mech.models.templates import (
    PLAIN_FORMAT,
    CharSpan,
    Message,
    changes,
    outside,
    template_text,
    write_transcript,
)

TEMPLATE_SETTINGS: dict[str, Any] = {"enable_thinking": False, "date_string": "26 Jul 2024"}
"""Fixed chat-template variables, passed to every template that names them: otherwise Qwen3 opens a thinking block,
and Llama 3.2 writes today's date, so that scores change from day to day."""


@runtime_checkable
class Speaker(Protocol):
    """The part of a model that chat rendering needs."""

    @property
    def tokenizer(self) -> Any:
        """A transformers tokenizer."""

    @property
    def chat_template_kwargs(self) -> dict[str, Any]:
        """Further variables of the chat template."""

    @property
    def special_in_content(self) -> bool:
        """Whether a special token that a message spells is read as that token."""


@dataclass(frozen=True)
class Rendering:
    """A transcript as text and as ids.

    Attributes:
        text: the output of the template.
        ids: its ids.
        notes: fallbacks, changes by the template, and special tokens that messages spell; normally none.
        places: the place of each message in `text`, as the template writes it. None: it is not there, or more than
            once, or the template's own text depends on its content.
        content: every such place, in order; None where one is unknown.
    """

    text: str
    ids: tuple[int, ...]
    notes: tuple[str, ...] = ()
    places: tuple[CharSpan | None, ...] = ()
    content: tuple[CharSpan, ...] | None = ()


@dataclass(frozen=True)
class Action:
    """The ids of an action after its prompt.

    `boundary_merged`: the tokenizer joins the prompt's last characters with the action's first, so the prompt's ids are
    not a prefix of the ids of both; `ids` are then those of the action tokenised alone. `notes`: special tokens that it
    spells.
    """

    ids: tuple[int, ...]
    boundary_merged: bool = False
    notes: tuple[str, ...] = ()


def settings_for(tokenizer: Any) -> dict[str, Any]:
    """The entries of TEMPLATE_SETTINGS that the tokenizer's template names."""
    template = template_text(tokenizer) or ""
    return {name: value for name, value in TEMPLATE_SETTINGS.items() if name in template}


def render(model: Speaker, messages: Sequence[Message], *, generation_prompt: bool = True) -> Rendering:
    """Messages as text and ids; by default with the opening of the assistant's turn.

    Raises:
        InputError: no messages, an unknown role, a template that takes none of the fallbacks, a beginning-of-sequence
            token that is doubled or miscounted, or a message that spells a special token which cannot be read as text.
    """
    written = write_transcript(model.tokenizer, model.chat_template_kwargs, messages, generation_prompt)
    text, content = written.text, written.content
    if content is None and not model.special_in_content:
        special_tokens(model.tokenizer).refuse(messages)
    ids, spelt = _read(model, text, content or ())
    _check_bos(model, text, ids, content or ())
    notes = (*written.notes, *changes(messages, written), *_spelt(model, "a message", spelt, text))
    places = tuple(area[0] if area is not None and len(area) == 1 else None for area in written.areas)
    return Rendering(text, ids, notes, places, content)


def prompt_ids(model: Speaker, messages: Sequence[Message]) -> tuple[int, ...]:
    """The ids of the messages and the opening of the assistant's turn; raises InputError as `render`."""
    return render(model, messages).ids


def shared_length(model: Speaker, opening: Sequence[Message]) -> int:
    """Number of leading tokens shared by all prompts that begin with these messages and go on with a user's turn.

    Found as the ids that two such prompts share, also where a template folds the system text into the first user turn.
    """
    one, other = ([*opening, {"role": "user", "content": text}] for text in ("0", "Z"))
    return shared_prefix(render(model, one).ids, render(model, other).ids)


def action_ids(model: Speaker, prompt: Rendering, action: str) -> Action:
    """The ids of an action after a prompt, found in the ids of prompt and action together.

    Raises:
        InputError: the action is empty, or spells a special token that cannot be read as text.
    """
    if not action:
        raise InputError("An action to be scored is empty: give its text.")
    start = len(prompt.text)
    area = (start, start + len(action))
    joint, spelt = _read(model, prompt.text + action, (*(prompt.content or ()), area))
    notes = _spelt(model, "the action", [place for place in spelt if place[1] > start], prompt.text + action)
    if shared_prefix(prompt.ids, joint) == len(prompt.ids) < len(joint):
        return Action(joint[len(prompt.ids) :], notes=notes)
    return Action(text_ids(model, action), boundary_merged=True, notes=notes)


def text_ids(model: Speaker, text: str) -> tuple[int, ...]:
    """The ids of a text of a message or an action, special tokens read as text; InputError where that cannot be."""
    return _read(model, text, ((0, len(text)),))[0]


def tokens_at(model: Speaker, rendering: Rendering, place: CharSpan) -> range:
    """The tokens of a rendering with some of these characters; empty where there are none.

    Raises:
        InputError: the tokenizer does not give the places of its tokens.
    """
    known, text = special_tokens(model.tokenizer), rendering.text
    content = () if model.special_in_content else rendering.content or ()
    reading = known.read(text, known.written(text, content))
    if reading.ids != rendering.ids:
        raise InputError("This tokenizer does not give the places of its tokens in a text.")
    start, stop = place
    held = [at for at, (begin, end) in enumerate(reading.places) if begin < stop and end > start]
    return range(held[0], held[-1] + 1) if held else range(0)


def require_role(model: Speaker, role: str) -> None:
    """Raise InputError where the chat template does not render turns of this role after an assistant's turn."""
    turns: list[Message] = [
        {"role": "system", "content": "Answer with one call."},
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": "go()"},
        {"role": role, "content": "gone"},
    ]
    why = "its template leaves them out, writes them twice, or depends on their content"
    try:
        if render(model, turns).places[-1] is not None:
            return
    except InputError as error:
        why = str(error).rstrip(".")
    raise InputError(
        f"The model does not take observations in the role '{role}' ({why}): choose another 'observation_role' in the "
        "wording."
    )


def end_of_turn_id(model: Speaker) -> int:
    """The id of the first token after an assistant's text, with which the model ends its turn.

    Found by rendering a finished turn and the next one. Where the template writes nothing after a last turn, it is the
    tokenizer's end of text.

    Raises:
        InputError: neither the template nor the tokenizer has an end, or the template omits the assistant's text.
    """
    spoken = [{"role": "user", "content": "0"}, {"role": "assistant", "content": "said"}]
    followed = [*spoken, {"role": "user", "content": "0"}]
    after = []
    for turns in (spoken, followed):
        rendering = render(model, turns, generation_prompt=False)
        place = rendering.places[1]
        if place is None:
            raise InputError(
                "This model's chat template does not write what an assistant says, once: it has no end."
            )
        after.append(rendering.text[place[1] :])
    alone, within = after
    if alone:
        return encode(model, within)[0]
    if model.tokenizer.eos_token_id is None:
        raise InputError("This model has no end of turn: neither its template nor its tokenizer writes one.")
    return int(model.tokenizer.eos_token_id)


def encode(model: Speaker, text: str) -> tuple[int, ...]:
    """The ids of a text, special tokens in it recognised and none added; InputError as `require_composed`."""
    require_composed(model.tokenizer, text)
    return tuple(model.tokenizer(text, add_special_tokens=False)["input_ids"])


def shared_prefix(context: Sequence[int], longer: Sequence[int]) -> int:
    """Number of leading ids that two sequences share."""
    pairs = enumerate(zip(context, longer, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(context), len(longer)))


def template_sha256(model: Speaker) -> str:
    """Hash of the chat template (or of the plain format's description) and the settings passed to it."""
    described = [template_text(model.tokenizer) or PLAIN_FORMAT, model.chat_template_kwargs]
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


def _read(model: Speaker, text: str, content: Sequence[CharSpan]) -> tuple[tuple[int, ...], list[CharSpan]]:
    """The ids of a text, and the places in `content` that spell special tokens (read as text unless allowed)."""
    known = special_tokens(model.tokenizer)
    spelt = known.in_content(text, content)
    if not spelt or model.special_in_content:
        return encode(model, text), spelt
    require_composed(model.tokenizer, text)
    return known.read(text, known.written(text, content)).ids, spelt


def _spelt(model: Speaker, what: str, places: Sequence[CharSpan], text: str) -> tuple[str, ...]:
    """A note that names the special tokens spelt at these places, if any."""
    if not places:
        return ()
    names = " ".join(sorted({text[start:stop] for start, stop in places}))
    how = "special tokens, which is allowed" if model.special_in_content else "text"
    return (f"{what} spells {names}: read as {how}",)


def _check_bos(model: Speaker, text: str, ids: Sequence[int], content: Sequence[CharSpan]) -> None:
    """One beginning-of-sequence id for each time the rendered text writes it, and not two at the start."""
    bos, name = model.tokenizer.bos_token_id, model.tokenizer.bos_token
    if bos is None:
        return
    if list(ids[:2]) == [bos, bos]:
        raise InputError(f"The prompt begins with two '{name}' tokens: its template doubles it.")
    parts = outside(text, () if model.special_in_content else content)
    written, found = sum(text[start:stop].count(name) for start, stop in parts), list(ids).count(bos)
    if written != found:
        raise InputError(
            f"The prompt writes '{name}' {written} times and its ids hold {found}: "
            "the tokenizer adds or drops that token."
        )
