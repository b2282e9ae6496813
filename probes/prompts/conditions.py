"""The conditions: one decision point in several wordings, byte-identical but for the record of the failure.

C is the system prompt, the goal and the successful steps so far. A condition is a function (item, wording) →
messages that end where the assistant is to speak. Observations come back in the role that the wording names
(a user turn by default, since several small models' templates know no tool role).

The marks of failure without the string: `mark` is fail less the recorded call, the very observation o× in its frame
and role. As the runtime's errors do, it may name the tool, the argument or the value that was refused, a part of a×;
`abstract_min` is a bare marker that quotes nothing. `ack` is neut less the recorded call: mark, ack, fail and neut
cross the call with what is said.

Four conditions are as long as another one, in tokens of the model that reads them: `neut_pad` as `fail`,
`quote_matched` as `fail_echo`, `neut_matched` and (nearly) `neut_other` as `neut`. They alone need to know how the
model counts (`Count`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence

from mech.errors import InputError
from probes.items.item import AS_JSON, AS_TEXT, FRAME, Item
from probes.prompts.filler import Count, filler
from probes.prompts.wording import Wording

Messages = list[dict[str, str]]
Condition = Callable[[Item, Wording, Count], Messages]


def condition_messages(item: Item, condition: str, wording: Wording, count: Count | None = None) -> Messages:
    """The item's messages under a condition.

    Args:
        item: the decision point.
        condition: a key of CONDITIONS.
        wording: how a failure is written.
        count: how many tokens of the model a text has; needed by the conditions in AS_LONG_AS alone.

    Raises:
        InputError: an unknown condition (the known ones are listed), or one the item cannot be put under.
        ValueError: a condition in AS_LONG_AS without `count`.
    """
    if condition not in CONDITIONS:
        raise InputError(f"There is no condition '{condition}': choose from {', '.join(CONDITIONS)}.")
    reason = lacking(item, condition)
    if reason is not None:
        raise InputError(
            f"The item '{item.item_id}' cannot be put under '{condition}' ({reason}): leave one of them out."
        )
    return CONDITIONS[condition](item, wording, count or _no_count)


def lacking(item: Item, condition: str) -> str | None:
    """What the item would need for a condition and does not have ("no obs_success"); None where it has all."""
    for has, what in _NEEDS.get(condition, ()):
        if not has(item):
            return f"no {what}"
    return None


def parse_conditions(text: str) -> tuple[str, ...]:
    """Read `core`, `all` or `a,b,c` (either may be among the names); each name once, in the order first given.

    Raises InputError for an unknown name, listing the known ones, and for an empty list.
    """
    names: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        names += _GROUPS.get(part, [part] if part else [])
    unknown = [name for name in names if name not in CONDITIONS]
    if unknown:
        raise InputError(
            f"There is no condition '{unknown[0]}': choose from core, all, {', '.join(CONDITIONS)}."
        )
    if not names:
        raise InputError(f"The list of conditions is empty: choose from core, all, {', '.join(CONDITIONS)}.")
    return tuple(dict.fromkeys(names))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def framed(item: Item, observation: str, wording: Wording) -> str:
    """An observation as its turn has it: in the item's own frame (FRAME), or else after the wording's prefix."""
    frame = item.meta.get(FRAME)
    if frame is None:
        return f"{wording.observation_prefix}{observation}"
    if AS_JSON in frame:
        return frame.replace(AS_JSON, json.dumps(observation, ensure_ascii=False))
    return frame.replace(AS_TEXT, observation)


def _observed(item: Item, observation: str, wording: Wording) -> Messages:
    """An observation's turn."""
    return [_turn(wording.observation_role, framed(item, observation, wording))]


def _step(item: Item, action: str, observation: str, wording: Wording) -> Messages:
    """An action and what came back of it."""
    return [_turn("assistant", action), *_observed(item, observation, wording)]


def _request(item: Item, system_prompt: str) -> Messages:
    return [_turn("system", system_prompt), _turn("user", item.goal)]


def _prefix(item: Item, wording: Wording) -> Messages:
    steps = zip(item.prefix_actions, item.prefix_observations, strict=True)
    return [turn for action, observation in steps for turn in _step(item, action, observation, wording)]


def _context(item: Item, wording: Wording, count: Count) -> Messages:
    """C, before any attempt."""
    return _request(item, item.system_prompt) + _prefix(item, wording)


def _known(text: str | None) -> str:
    """A text that `lacking` has found to be there."""
    if text is None:
        raise AssertionError("the item lacks a text that its condition needs")
    return text


def _answered(observation: Callable[[Item], str | None], times: int = 1) -> Condition:
    """C, then a× and the given observation, recorded `times` times."""

    def messages(item: Item, wording: Wording, count: Count) -> Messages:
        record = _step(item, item.failed_action, _known(observation(item)), wording)
        return _context(item, wording, count) + times * record

    return messages


def _noted(note: Callable[[Item, Wording], str]) -> Condition:
    """C and a note in the observation's role; a× itself is absent."""

    def messages(item: Item, wording: Wording, count: Count) -> Messages:
        return [*_context(item, wording, count), _turn(wording.observation_role, note(item, wording))]

    return messages


def _unasked(observation: Callable[[Item], str]) -> Condition:
    """C and an observation as it is in its turn, without the call that it answers."""

    def messages(item: Item, wording: Wording, count: Count) -> Messages:
        return [*_context(item, wording, count), *_observed(item, observation(item), wording)]

    return messages


def _fail_instr(item: Item, wording: Wording, count: Count) -> Messages:
    """As fail, with the wording's instruction at the end of the system prompt."""
    system = f"{item.system_prompt}{wording.negative_instruction_join}{wording.negative_instruction}"
    failed = _step(item, item.failed_action, item.obs_fail, wording)
    return _request(item, system) + _prefix(item, wording) + failed


def _fail_early(item: Item, wording: Wording, count: Count) -> Messages:
    """The failure before the successful steps; equal to fail where there are none."""
    failed = _step(item, item.failed_action, item.obs_fail, wording)
    return _request(item, item.system_prompt) + failed + _prefix(item, wording)


def _fail_other(item: Item, wording: Wording, count: Count) -> Messages:
    """Near placebo: the first distractor failed, a× was never written; it shares most of its text with a×."""
    record = _step(item, item.distractors[0], _known(item.obs_fail_other), wording)
    return _context(item, wording, count) + record


def _fail_unrelated(item: Item, wording: Wording, count: Count) -> Messages:
    """Far placebo: a failed call of another tool and task (`probes.prompts.unrelated`), with the error it met there."""
    action, observation = (item.meta[name] for name in UNRELATED)
    return _context(item, wording, count) + _step(item, action, observation, wording)


def _neut_pad(item: Item, wording: Wording, count: Count) -> Messages:
    """As neut, the observation filled up to the token count of the failure's with words that mean nothing."""

    def written(words: str) -> str:
        return (
            wording.pad_template.format(neutral=item.obs_neutral, filler=words) if words else item.obs_neutral
        )

    return _as_long(item, item.obs_fail, written, wording, count)


def _neut_matched(item: Item, wording: Wording, count: Count) -> Messages:
    """As neut, the call replaced by words of as many tokens: every position of neut has its counterpart here.

    Corruption by tokens of equal length (Zhang & Nanda 2023, arXiv:2309.16042): L(neut) − L(neut_matched) is what the
    call's own tokens do, and not the presence of a turn of its length.
    """
    target = count(item.failed_action)
    drawn = [filler(f"{item.item_id}|call|0", target, count)]
    while count(drawn[-1]) != target and len(drawn) < FILLERS:  # a cut may fall where no word can end
        drawn.append(filler(f"{item.item_id}|call|{len(drawn)}", target, count))
    words = min(drawn, key=lambda text: abs(count(text) - target))
    return _context(item, wording, count) + _step(item, words, item.obs_neutral, wording)


def _neut_other(item: Item, wording: Wording, count: Count) -> Messages:
    """As neut, the call replaced by another valid one of (nearly) as many tokens: both records are in distribution."""
    return _context(item, wording, count) + _step(item, other_call(item, count), item.obs_neutral, wording)


def other_call(item: Item, count: Count) -> str:
    """The valid call that `neut_other` records, out of the item's candidates (`probes.prompts.unrelated`).

    Of those whose token count is within one of that of a× (or nearest to it, where none is): the one that shares the
    least text with a× (share of its character 4-grams, in tenths); of equals the nearest in length; of equals the
    first in an order drawn by the item's id.
    """
    calls: Sequence[str] = item.meta[OTHER_CALLS]
    target, own = count(item.failed_action), grams(item.failed_action)
    off = {call: abs(count(call) - target) for call in calls}
    bound = max(1, min(off.values()))

    def rank(call: str) -> tuple[float, int, str]:
        shared = round(len(grams(call) & own) / max(len(own), 1), 1)
        return shared, off[call], hashlib.sha256(f"{item.item_id}|{call}".encode()).hexdigest()

    return min((call for call in calls if off[call] <= bound), key=rank)


def grams(text: str, n: int = 4) -> set[str]:
    """The runs of n characters of a text: two texts without one in common share no word of that length."""
    return {text[at : at + n] for at in range(len(text) - n + 1)}


def _quote_matched(item: Item, wording: Wording, count: Count) -> Messages:
    """As fail_echo, a× in the error replaced by words of as many tokens: a longer message without a second copy."""
    echo = _known(item.obs_fail_echo)
    before, _, after = echo.rpartition(item.failed_action)
    return _as_long(item, echo, lambda words: f"{before}{words}{after}", wording, count)


def _as_long(
    item: Item, model_text: str, written: Callable[[str], str], wording: Wording, count: Count
) -> Messages:
    """C, a×, and the observation `written(filler)` of as many tokens as `model_text`, the turn's frame counted."""
    target = count(framed(item, model_text, wording))
    words = filler(item.item_id, target, lambda text: count(framed(item, written(text), wording)))
    return _context(item, wording, count) + _step(item, item.failed_action, written(words), wording)


def _no_count(text: str) -> int:
    raise ValueError(
        "this condition is as long as another one in tokens: give condition_messages() the count of the model"
    )


UNRELATED = ("unrelated_action", "unrelated_observation")
"""The keys of an item's meta with its far placebo."""

OTHER_CALLS = "other_calls"
"""The key of an item's meta with valid calls of other tasks, out of which `neut_other` takes one."""

FILLERS = 8
"""Draws of filler in the place of a call, until one has its length: the first of the nearest is taken."""

CORE = ("pre", "fail", "succ", "neut", "abstract")

CONDITIONS: Mapping[str, Condition] = {
    "pre": _context,
    "fail": _answered(lambda item: item.obs_fail),
    "succ": _answered(lambda item: item.obs_success),
    "neut": _answered(lambda item: item.obs_neutral),
    "abstract": _noted(lambda item, wording: wording.abstract(item.error_type, item.tool)),
    "neut_pad": _neut_pad,
    "neut_matched": _neut_matched,
    "neut_other": _neut_other,
    "mark": _unasked(lambda item: item.obs_fail),
    "ack": _unasked(lambda item: item.obs_neutral),
    "fail_terse": _answered(lambda item: item.obs_fail_terse),
    "fail_verbose": _answered(lambda item: item.obs_fail_verbose),
    "fail_echo": _answered(lambda item: item.obs_fail_echo),
    "fail_instr": _fail_instr,
    "fail_k2": _answered(lambda item: item.obs_fail, times=2),
    "fail_k3": _answered(lambda item: item.obs_fail, times=3),
    "fail_early": _fail_early,
    "fail_other": _fail_other,
    "fail_unrelated": _fail_unrelated,
    "quote_matched": _quote_matched,
    "abstract_min": _noted(lambda item, wording: wording.abstract_min),
    "abstract_forbids": _noted(lambda item, wording: wording.abstract_forbids(item.error_type, item.tool)),
}

MANIPULATIONS = tuple(
    name for name in CONDITIONS if name not in ("pre", "fail", "succ", "neut", "neut_other", "ack")
)
"""The ways to write the failure otherwise, each measured against `fail`."""

AS_LONG_AS: Mapping[str, str] = {
    "neut_pad": "fail",
    "neut_matched": "neut",
    "neut_other": "neut",
    "quote_matched": "fail_echo",
}
"""Condition → the condition whose prompt it matches in tokens."""

NEARLY_AS_LONG = frozenset({"neut_other"})
"""Those of AS_LONG_AS that are matched as well as there are texts: a call cannot be cut to a length."""

_Need = tuple[Callable[[Item], bool], str]


def _is_calls(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(one, str) for one in value)


def _field(name: str) -> _Need:
    return lambda item: getattr(item, name) is not None, name


_NEEDS: Mapping[str, Sequence[_Need]] = {
    "succ": (_field("obs_success"),),
    "fail_terse": (_field("obs_fail_terse"),),
    "fail_verbose": (_field("obs_fail_verbose"),),
    "fail_echo": (_field("obs_fail_echo"),),
    "fail_other": ((lambda item: bool(item.distractors), "distractor"), _field("obs_fail_other")),
    "fail_unrelated": (
        (
            lambda item: all(isinstance(item.meta.get(name), str) for name in UNRELATED),
            "unrelated call in the pool",
        ),
    ),
    "mark": ((lambda item: item.failed_action not in item.obs_fail, "failure observation without the call"),),
    "neut_other": ((lambda item: _is_calls(item.meta.get(OTHER_CALLS)), "other valid call in the pool"),),
    "quote_matched": (
        (
            lambda item: item.obs_fail_echo is not None and item.failed_action in item.obs_fail_echo,
            "failed action in obs_fail_echo",
        ),
    ),
}
"""Condition → what an item must have for it, and how that is called."""

_GROUPS: Mapping[str, Sequence[str]] = {"core": CORE, "all": tuple(CONDITIONS)}
