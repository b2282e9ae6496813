"""The conditions: one decision point in several wordings, byte-identical but for the record of the failure.

C is the system prompt, the goal and the successful steps so far. A condition is a function (item, wording) →
messages that end where the assistant is to speak. Observations come back in the role that the wording names
(a user turn by default, since several small models' templates know no tool role).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mech.errors import InputError
from probes.items import Item
from probes.wording import Wording

Messages = list[dict[str, str]]
Condition = Callable[[Item, Wording], Messages]


def render(item: Item, condition: str, wording: Wording) -> Messages:
    """The item's messages under a condition; InputError, listing the known ones, for an unknown one."""
    if condition not in CONDITIONS:
        raise InputError(f"There is no condition '{condition}': choose from {', '.join(CONDITIONS)}.")
    return CONDITIONS[condition](item, wording)


def parse_conditions(text: str) -> tuple[str, ...]:
    """Read `core` or `a,b,c` (`core` may stand among the names); each name once, in the order first given.

    Raises InputError for an unknown name, listing the known ones, and for an empty list.
    """
    names: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        names += CORE if part == "core" else [part] if part else []
    unknown = [name for name in names if name not in CONDITIONS]
    if unknown:
        raise InputError(f"There is no condition '{unknown[0]}': choose from core, {', '.join(CONDITIONS)}.")
    if not names:
        raise InputError(f"The list of conditions is empty: choose from core, {', '.join(CONDITIONS)}.")
    return tuple(dict.fromkeys(names))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _step(action: str, observation: str, wording: Wording) -> Messages:
    """An action and what came back of it."""
    return [
        _turn("assistant", action),
        _turn(wording.observation_role, f"{wording.observation_prefix}{observation}"),
    ]


def _request(item: Item, system_prompt: str) -> Messages:
    return [_turn("system", system_prompt), _turn("user", item.goal)]


def _prefix(item: Item, wording: Wording) -> Messages:
    steps = zip(item.prefix_actions, item.prefix_observations, strict=True)
    return [turn for action, observation in steps for turn in _step(action, observation, wording)]


def _context(item: Item, wording: Wording) -> Messages:
    """C, before any attempt."""
    return _request(item, item.system_prompt) + _prefix(item, wording)


def _answered(observation: Callable[[Item], str], times: int = 1) -> Condition:
    """C, then a× and the given observation, recorded `times` times."""

    def messages(item: Item, wording: Wording) -> Messages:
        return _context(item, wording) + times * _step(item.failed_action, observation(item), wording)

    return messages


def _abstract(item: Item, wording: Wording) -> Messages:
    """C and the runtime's description of the failure in the observation's role; a× itself is absent."""
    note = wording.abstract(item.error_type, item.tool)
    return [*_context(item, wording), _turn(wording.observation_role, note)]


def _abstract_min(item: Item, wording: Wording) -> Messages:
    """C and a bare mark of failure."""
    return [*_context(item, wording), _turn(wording.observation_role, wording.abstract_min)]


def _fail_instr(item: Item, wording: Wording) -> Messages:
    """As fail, with the wording's instruction at the end of the system prompt."""
    system = f"{item.system_prompt}{wording.negative_instruction_join}{wording.negative_instruction}"
    failed = _step(item.failed_action, item.obs_fail, wording)
    return _request(item, system) + _prefix(item, wording) + failed


def _fail_early(item: Item, wording: Wording) -> Messages:
    """The failure before the successful steps; equal to fail where there are none."""
    failed = _step(item.failed_action, item.obs_fail, wording)
    return _request(item, item.system_prompt) + failed + _prefix(item, wording)


def _fail_other(item: Item, wording: Wording) -> Messages:
    """Placebo: the first distractor failed, a× was never written; InputError for an item without one."""
    if not item.distractors:
        raise InputError(f"The item '{item.item_id}' has no distractor: leave out the condition fail_other.")
    return _context(item, wording) + _step(item.distractors[0], item.obs_fail_other, wording)


CORE = ("pre", "fail", "succ", "neut", "abstract")

CONDITIONS: Mapping[str, Condition] = {
    "pre": _context,
    "fail": _answered(lambda item: item.obs_fail),
    "succ": _answered(lambda item: item.obs_success),
    "neut": _answered(lambda item: item.obs_neutral),
    "abstract": _abstract,
    "fail_terse": _answered(lambda item: item.obs_fail_terse),
    "fail_verbose": _answered(lambda item: item.obs_fail_verbose),
    "fail_echo": _answered(lambda item: item.obs_fail_echo),
    "fail_instr": _fail_instr,
    "fail_k2": _answered(lambda item: item.obs_fail, times=2),
    "fail_k3": _answered(lambda item: item.obs_fail, times=3),
    "fail_early": _fail_early,
    "fail_other": _fail_other,
    "abstract_min": _abstract_min,
}
