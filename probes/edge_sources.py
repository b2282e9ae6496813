"""Which tokens of a transcript an edge knockout cuts: the failed call's own, and as many elsewhere for control.

    record         the tokens of a× in the record
    observation    the first tokens of the observation's turn
    goal           the last tokens before the first step (the end of the goal's turn)
    earlier        the tokens of the last successful call before (items with a step)

A control has as many tokens as a×, or all there are. A cut that does as much there is not about the string.

padding        under neut_pad alone: the tokens of the words that carry nothing, in the observation (`padding_sources`)
"""

from __future__ import annotations

from mech.chat import render
from mech.engine import Engine
from mech.transcript_induction import copy_in_record
from mech.trie import common_prefix
from probes import conditions
from probes.items import Item
from probes.scoring import asks, spans
from probes.wording import Wording

SOURCES = ("record", "observation", "goal", "earlier")


def edge_sources(engine: Engine, item: Item, condition: str, wording: Wording) -> dict[str, tuple[int, ...]]:
    """Absolute positions in the condition's prompt by kind of source; `earlier` only where a step precedes.

    Raises:
        InputError: the condition writes no record, or the record does not hold a× token for token.
    """
    model = engine.model
    [ask] = asks(model, item, [condition], wording, ["failed"])
    where = spans(model, item, condition, wording)
    copy = copy_in_record(ask.query, where["record"])
    n = len(copy)
    messages = conditions.render(item, condition, wording)
    # The request alone, then each successful step: turns that end where the next begins.
    ends = [len(render(model, messages[:count], generation_prompt=False).ids) for count in (2, *_calls(item))]
    found = {
        "record": tuple(copy),
        "observation": tuple(where["observation"][:n]),
        "goal": tuple(range(max(ends[0] - n, 0), ends[0])),
    }
    if item.step_index:
        found["earlier"] = tuple(range(max(ends[-1] - n, ends[-2]), ends[-1]))
    return found


def padding_sources(engine: Engine, item: Item, wording: Wording) -> dict[str, tuple[int, ...]]:
    """Positions in the prompt of neut_pad: `record`, and as many of `padding`, or all there are (none: no such key).

    The padding is what the observation of neut_pad has and that of neut has not.

    Raises:
        InputError: as `edge_sources`.
    """
    model = engine.model
    [padded], [plain] = (asks(model, item, [name], wording, ["failed"]) for name in ("neut_pad", "neut"))
    where = spans(model, item, "neut_pad", wording)
    copy = copy_in_record(padded.query, where["record"])
    span = where["observation"]
    long = padded.query.prompt[span.start : span.stop]
    short = [plain.query.prompt[place] for place in spans(model, item, "neut", wording)["observation"]]
    ahead = common_prefix([long, short])
    behind = common_prefix([long[ahead:][::-1], short[ahead:][::-1]])
    words = range(span.start + ahead, span.stop - behind)[: len(copy)]
    return {"record": tuple(copy), **({"padding": tuple(words)} if len(words) else {})}


def _calls(item: Item) -> tuple[int, ...]:
    """Numbers of messages before and after the last successful call's turn; none where there is no step."""
    steps = len(item.prefix_actions)
    return (2 + 2 * (steps - 1), 2 + 2 * (steps - 1) + 1) if steps else ()
