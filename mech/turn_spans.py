"""Where the text of one turn stands in a prompt, as absolute positions: what `hide-failed` hides."""

from __future__ import annotations

from collections.abc import Sequence

from mech.chat import Message, Speaker, encode, render, shared_prefix
from mech.errors import InputError
from mech.standing import Span


def turn_span(model: Speaker, messages: Sequence[Message], index: int, prompt: Sequence[int]) -> Span:
    """The tokens of the text of `messages[index]`, without the turn's own opening and end.

    Args:
        model: whose template and tokenizer wrote the prompt.
        messages: what the prompt renders.
        index: which message.
        prompt: the ids of all messages and the opening of the assistant's turn.

    Raises:
        InputError: the transcript does not grow by ids, or the turn does not hold its text token for token, once.
    """
    text = messages[index]["content"]
    before, after = (
        render(model, messages[:count], generation_prompt=False).ids for count in (index, index + 1)
    )
    ids = encode(model, text)
    turn = range(len(before), len(after))
    grown = shared_prefix(before, prompt) == len(before) and shared_prefix(after, prompt) == len(after)
    starts = [at for at in turn if at + len(ids) <= turn.stop and tuple(prompt[at : at + len(ids)]) == ids]
    if not ids or not grown or len(starts) != 1:
        raise InputError(
            f"With this chat template the turn {text!r} is no span of its own: its tokens cannot be hidden."
        )
    return starts[0], starts[0] + len(ids)
