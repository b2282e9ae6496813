"""Where the text of one turn stands in a prompt, as absolute positions: what `hide-failed` hides.

The turn is found by its place and not by its words, which may stand in the template or in another turn too: the
transcript is written once more with a mark in the text's place, and where the mark stands, there the text does.
"""

from __future__ import annotations

from collections.abc import Sequence

from mech.chat import Message, Speaker, render
from mech.errors import InputError
from mech.standing import Span

_MARK = "Zq\u2402Zq"  # no template and no reply contains it


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
    text = messages[index]["content"]
    whole = render(model, messages)
    marked = render(model, [*messages[:index], {**messages[index], "content": _MARK}, *messages[index + 1 :]])
    start = marked.text.find(_MARK)
    if not text or start < 0 or whole.text[start : start + len(text)] != text:
        raise InputError(
            f"The chat template does not write the turn {text!r} as it is: its tokens cannot be hidden."
        )
    encoded = model.tokenizer(whole.text, add_special_tokens=False, return_offsets_mapping=True)
    inside = [
        place
        for place, (begin, end) in enumerate(encoded["offset_mapping"])
        if begin < start + len(text) and end > start
    ]
    return inside[0], inside[-1] + 1
