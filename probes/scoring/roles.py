"""The role of every token position of a prompt, by which positions of two contexts correspond.

    system               the system prompt's text
    goal                 the user's request
    earlier_action       a successful call before the decision point        earlier_observation   its answer
    recorded_call        the call in the record (of a×, or of another one)  observation           its answer
    template             the chat template's own words and marks
    last_prompt          the last token of the prompt, whose logits predict the action's first token
    action               the action's own tokens, whose logits predict the next one

Every position of a question has exactly one role. A token with the end of one part and the start of another belongs to
the part whose text comes first; one with a part's text and the template's, to the part. A message that the template
leaves out, or that cannot be distinguished from the template's own words, has no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mech.engine.queries import Query
from mech.models.chat import Message, tokens_at
from mech.models.model import Model
from probes.items.item import Item
from probes.prompts import conditions
from probes.prompts.wording import Wording
from probes.scoring.record import rendered

Role = Literal[
    "system",
    "goal",
    "earlier_action",
    "earlier_observation",
    "recorded_call",
    "observation",
    "template",
    "last_prompt",
    "action",
]
ROLES: tuple[Role, ...] = (
    *("system", "goal", "earlier_action", "earlier_observation", "recorded_call", "observation"),
    *("template", "last_prompt", "action"),
)


def position_roles(
    model: Model, item: Item, condition: str, wording: Wording, query: Query
) -> tuple[Role, ...]:
    """The role of each position of a question about an item, in order.

    Args:
        model: whose template and tokenizer wrote the question.
        item: the decision point.
        condition: the one that the query's prompt renders.
        wording: how a failure is written.
        query: its prompt is that condition's, its action any.

    Raises:
        ValueError: the query's prompt is not the condition's.
        InputError: the tokenizer does not give the positions of its tokens.
    """
    messages, rendering = rendered(model, item, condition, wording)
    if rendering.ids != query.prompt:
        raise ValueError(f"This is not the prompt of {item.item_id} under {condition}.")
    found: list[Role] = ["template"] * len(query.prompt)
    for place, role in zip(rendering.places, _message_roles(item, messages, wording), strict=True):
        for at in tokens_at(model, rendering, place) if place is not None else ():
            if found[at] == "template":
                found[at] = role
    found[-1] = "last_prompt"
    found += ["action"] * (len(query.action) - 1)
    return tuple(found)


def _message_roles(item: Item, messages: Sequence[Message], wording: Wording) -> list[Role]:
    """What each message is: the context's are those of `pre`, all further ones are the record."""
    before = conditions.condition_messages(item, "pre", wording)
    ahead = 1  # the system prompt may have an instruction at its end
    while ahead < min(len(before), len(messages)) and messages[ahead] == before[ahead]:
        ahead += 1
    record = range(ahead, ahead + len(messages) - len(before))
    found: list[Role] = []
    for at, message in enumerate(messages):
        called = message["role"] == "assistant"
        if at < 2:
            found.append("system" if at == 0 else "goal")
        elif at in record:
            found.append("recorded_call" if called else "observation")
        else:
            found.append("earlier_action" if called else "earlier_observation")
    return found
