"""Whether the agent sent a failed call again in its next turn: exactly, canonically, nearly, or not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal

from probes.items.logs.transcript import Call

Repeated = Literal["exact", "canonical", "near", "no", "unknown"]

NEAR = 0.9
"""Edit similarity from which on a call of the same tool counts as nearly the same."""

_COMPARED = 4_000_000
"""Products of lengths up to which texts are compared; beyond, what differs counts as wholly different."""


def repeated(call: Call, following: Sequence[Call] | None) -> tuple[Repeated, float | None]:
    """How the calls of the next turn repeat this one (the closest of them counts), and the similarity of that one.

    exact: the same tool and the same text of the arguments. canonical: the same tool and equal parsed arguments (of
    a text: equal but for white space). near: the same tool, and a similarity of at least `NEAR`. no: anything else,
    also a turn without calls. unknown: there is no next turn (`following` is None).
    The similarity is that of the arguments' values; None where no call is of the same tool.
    """
    if following is None:
        return "unknown", None
    same_tool = [other for other in following if other.name == call.name]
    if not same_tool:
        return "no", None
    if any(_written(other) == _written(call) for other in same_tool):
        return "exact", 1.0
    own = canonical(call)
    if any(canonical(other) == own for other in same_tool):
        return "canonical", 1.0
    best = max(similarity(_values(call), _values(other)) for other in same_tool)
    return ("near" if best >= NEAR else "no"), round(best, 4)


def canonical(call: Call) -> str:
    """The arguments with sorted keys and without optional white space."""
    if isinstance(call.arguments, str):
        return " ".join(call.arguments.split())
    return json.dumps(call.arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _values(call: Call) -> str:
    """The values of the arguments by the order of their names, one a line: what two calls of a tool may share."""
    if not isinstance(call.arguments, dict):
        return canonical(call)
    values = (call.arguments[name] for name in sorted(call.arguments))
    return "\n".join(one if isinstance(one, str) else json.dumps(one, sort_keys=True) for one in values)


def similarity(left: str, right: str) -> float:
    """Twice the matching characters over all characters (Ratcliff and Obershelp), between 0 and 1.

    Common ends are matched first; what is left of two long texts counts as different, a lower bound.
    """
    if left == right:
        return 1.0  # two texts without a character, too
    shortest = min(len(left), len(right))
    start = next((at for at in range(shortest) if left[at] != right[at]), shortest)
    rest = shortest - start
    end = next((at for at in range(rest) if left[-1 - at] != right[-1 - at]), rest)
    middle = left[start : len(left) - end], right[start : len(right) - end]
    matched = start + end
    if len(middle[0]) * len(middle[1]) <= _COMPARED:
        blocks = SequenceMatcher(None, *middle, autojunk=False).get_matching_blocks()
        matched += sum(block.size for block in blocks)
    return 2 * matched / (len(left) + len(right))


def _written(call: Call) -> str:
    if call.written is not None:
        return call.written
    return call.text if call.text is not None else json.dumps(call.arguments, ensure_ascii=False)
