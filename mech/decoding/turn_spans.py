"""Where turns and their texts stand in a prompt, as absolute positions in the ids that are scored.

A text is found by its place and not by its words, which may stand in the template or in another turn too
(`Rendering.places`). A turn begins where the one before ends: behind its text, and behind as much of the template as
stands there when the transcript ends with it. So no shorter transcript need be a prefix of a longer one: a template
may treat the last turn as it likes (Qwen3 opens it with an empty `<think>`, Phi-4-mini closes it with an end of text).
"""

from __future__ import annotations

from collections.abc import Sequence

from mech.errors import InputError
from mech.interventions.persistent import Span
from mech.models.chat import Message, Rendering, Speaker, render, shared_prefix, tokens_at


def turn_span(model: Speaker, messages: Sequence[Message], index: int) -> Span:
    """The tokens that hold the text of `messages[index]`, without the turn's own opening and end.

    A token that holds a part of the text and a part of what is beside it belongs to the span.

    Args:
        model: whose template and (fast) tokenizer write the prompt, which ends in the assistant's opening.
        messages: what the prompt renders.
        index: which message; its text is not empty.

    Raises:
        InputError: the template leaves the text out or changes it.
    """
    rendering = render(model, messages)
    text, place = messages[index]["content"], rendering.places[index]
    if not text or place is None or rendering.text[slice(*place)] != text:
        raise InputError(
            f"The chat template does not write the turn {text!r} as it is: its tokens cannot be found or hidden."
        )
    held = tokens_at(model, rendering, place)
    return held.start, held.stop


def text_range(model: Speaker, rendering: Rendering, index: int) -> range:
    """The tokens that hold what the template made of message `index` of a rendering.

    Raises:
        InputError: it is no span of its own: left out, written twice, or not to be told from the template's words.
    """
    place = rendering.places[index]
    held = range(0) if place is None else tokens_at(model, rendering, place)
    if not held:
        raise InputError(f"With this chat template the text of message {index + 1} is no span of its own.")
    return held


def turn_end(model: Speaker, messages: Sequence[Message], rendering: Rendering, count: int) -> int:
    """The position behind the turn of `messages[count - 1]` in a rendering of all messages.

    Raises:
        InputError: as `text_range`, and where the template does not write the first `count` messages alone.
    """
    behind = text_range(model, rendering, count - 1).stop
    part = render(model, messages[:count], generation_prompt=False)
    alone = text_range(model, part, count - 1).stop
    return behind + shared_prefix(part.ids[alone:], rendering.ids[behind:])


def turn_range(model: Speaker, messages: Sequence[Message], rendering: Rendering, index: int) -> range:
    """The tokens of the turn of `messages[index]`, its opening and end included, in a rendering of all messages.

    Another message's text that the template moved into the turn (Mistral's system text) is not part of it.

    Raises:
        InputError: as `turn_end`.
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
