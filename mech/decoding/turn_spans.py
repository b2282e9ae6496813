"""Turns and their texts in a prompt, as absolute positions in the ids that are scored.

A text is found by its place (`Rendering.places`), since its words may occur elsewhere too. A turn begins where the one
before ends: after its text and the part of the template that also follows when the transcript ends with it. So a
shorter transcript need not be a prefix of a longer one: templates may treat the last turn differently (Qwen3 opens it
with an empty `<think>`, Phi-4-mini closes it with an end of text).
"""

from __future__ import annotations

from collections.abc import Sequence

from mech.errors import InputError
from mech.interventions.persistent import Span
from mech.models.chat import Message, Rendering, Speaker, render, shared_prefix, tokens_at


def turn_span(model: Speaker, messages: Sequence[Message], index: int) -> Span:
    """The tokens of the text of `messages[index]`, without the turn's opening and end.

    A token that is partly of the text belongs to the span.

    Args:
        model: its template and (fast) tokenizer write the prompt, which ends in the assistant's opening.
        messages: of the prompt.
        index: which message; its text is not empty.

    Raises:
        InputError: the template leaves the text out or changes it.
    """
    rendering = render(model, messages)
    text, place = messages[index]["content"], rendering.places[index]
    if not text or place is None or rendering.text[slice(*place)] != text:
        raise InputError(
            f"The chat template does not write the turn {text!r} as it is: its tokens cannot be found or knocked out."
        )
    held = tokens_at(model, rendering, place)
    return held.start, held.stop


def text_range(model: Speaker, rendering: Rendering, index: int) -> range:
    """The tokens of message `index` of a rendering, as the template writes it.

    Raises:
        InputError: it is not a span of its own: left out, written twice, or not separable from the template's text.
    """
    place = rendering.places[index]
    held = range(0) if place is None else tokens_at(model, rendering, place)
    if not held:
        raise InputError(f"With this chat template the text of message {index + 1} is no span of its own.")
    return held


def turn_end(model: Speaker, messages: Sequence[Message], rendering: Rendering, count: int) -> int:
    """The position after the turn of `messages[count - 1]` in a rendering of all messages.

    Raises:
        InputError: as `text_range`, or the template does not render the first `count` messages alone.
    """
    end = text_range(model, rendering, count - 1).stop
    part = render(model, messages[:count], generation_prompt=False)
    alone = text_range(model, part, count - 1).stop
    return end + shared_prefix(part.ids[alone:], rendering.ids[end:])


def turn_range(model: Speaker, messages: Sequence[Message], rendering: Rendering, index: int) -> range:
    """The tokens of the turn of `messages[index]`, its opening and end included, in a rendering of all messages.

    Another message's text that the template moved into the turn (Mistral's system text) is not part of it. InputError
    as `turn_end`.
    """
    own = text_range(model, rendering, index)
    start = turn_end(model, messages, rendering, index) if index else 0
    stop = turn_end(model, messages, rendering, index + 1)
    for other, place in enumerate(rendering.places):
        if other != index and place is not None:
            held = tokens_at(model, rendering, place)
            if held and held.stop <= own.start:
                start = max(start, held.stop)
            elif held and held.start >= own.stop:
                stop = min(stop, held.start)
    if not start <= own.start < own.stop <= stop:
        raise InputError(f"With this chat template message {index + 1} is no span of its own.")
    return range(start, stop)
