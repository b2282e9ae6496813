"""Searches for the smallest set of heads with a given share of a difference, over any function of sets.

    by_ranking    the smallest prefix of a ranking that reaches the target, every prefix checked in order
    greedy        the head that raises the share most is added, until the target is reached; then heads are removed
    eliminate     from a prefix that reaches the target, the heads that matter least are removed
    prune         the removal alone

`value` gives the exact share of each of some sets (for a study: a ratio of means over training items). It need be
neither monotone nor additive. An OR (either of two heads is enough) hides from `greedy` when it is measured by
necessity, where neither of the two moves the share alone, and not from `eliminate`, which begins with both; an AND
hides in the same way from `greedy` under sufficiency. No search proves that a smaller set does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mech.errors import InputError
from mech.heads import Head, HeadSet

Value = Callable[[Sequence[HeadSet]], Sequence[float]]
"""Sets → their exact shares, in their order."""

BLOCK = 8  # prefixes asked for at once: enough for one packed row, few that are asked in vain


@dataclass(frozen=True)
class Found:
    """What a search ended with.

    Attributes:
        heads: in the order in which they were chosen.
        share: their exact share.
        reached: whether it is the target or more. If not, this is the set of highest share that was met.
        curve: (size, share) of every set on the way there, by size.
        falls: how often one more head lowered the share on that way: 0 for a monotone one.
    """

    heads: tuple[Head, ...]
    share: float
    reached: bool
    curve: tuple[tuple[int, float], ...]
    falls: int

    @property
    def set(self) -> HeadSet:
        """The heads as a set."""
        return HeadSet(self.heads)


def by_ranking(ranking: Sequence[Head], value: Value, target: float, max_size: int) -> Found:
    """The smallest prefix of the ranking whose share reaches the target; prefixes are not skipped.

    Args:
        ranking: heads, best first.
        value: exact shares.
        target: the share to reach.
        max_size: no longer prefix is looked at.

    Raises:
        InputError: the ranking is empty, or max_size < 1.
    """
    longest = min(len(ranking), _require_size(max_size))
    if not longest:
        raise InputError("A ranking without heads cannot be searched.")
    shares: list[float] = []
    while len(shares) < longest:
        sizes = range(len(shares) + 1, min(len(shares) + BLOCK, longest) + 1)
        for share in value([HeadSet(ranking[:size]) for size in sizes]):
            shares.append(float(share))
            if shares[-1] >= target:
                return _found(ranking, shares, reached=True)
    return _found(ranking, shares, reached=False)


def greedy(
    candidates: Iterable[Head], value: Value, target: float, max_size: int, width: int | None = None
) -> Found:
    """Forward selection by exact shares until the target is reached, then `prune`.

    Args:
        candidates: heads to choose from; of equal gains the lower layer, then head, is taken.
        value: exact shares.
        target: the share to reach.
        max_size: no larger set is looked at.
        width: how many candidates a step checks: those whose gain was largest when last checked (all in the first
            step, and all where None). Gains that grew since are then missed for a while.

    Raises:
        InputError: no candidate, or max_size or width < 1.
    """
    gains = dict.fromkeys(HeadSet(candidates), float("inf"))
    if not gains:
        raise InputError("There are no candidates to choose heads from.")
    at_most = len(gains) if width is None else _require_size(width)
    chosen: list[Head] = []
    shares: list[float] = []
    while gains and len(chosen) < _require_size(max_size):
        step = sorted(gains, key=lambda head: (-gains[head], head))
        step = step if not chosen else step[:at_most]
        found = dict(zip(step, value([HeadSet([*chosen, head]) for head in step]), strict=True))
        before = shares[-1] if shares else 0.0
        gains.update({head: float(share) - before for head, share in found.items()})
        best = min(step, key=lambda head: (-found[head], head))
        chosen.append(best)
        shares.append(float(found[best]))
        del gains[best]
        if shares[-1] >= target:
            grown = _found(chosen, shares, reached=True)
            left, share = prune(chosen, shares[-1], value, target)
            return Found(left, share, True, grown.curve, grown.falls)
    return _found(chosen, shares, reached=False)


def eliminate(ranking: Sequence[Head], value: Value, target: float, max_size: int) -> Found:
    """`by_ranking`, then `prune`: the order is the ranking's; the curve is that of the prefixes."""
    start = by_ranking(ranking, value, target, max_size)
    if not start.reached:
        return start
    left, share = prune(start.heads, start.share, value, target)
    return Found(left, share, True, start.curve, start.falls)


def prune(heads: Sequence[Head], share: float, value: Value, target: float) -> tuple[tuple[Head, ...], float]:
    """Remove heads while the share is at the target or above.

    Each round checks every head's removal and removes as many of the cheapest as the target allows
    together (half of the set, or half of that, …), at last one at a time: no head of the result can be removed
    alone.

    Args:
        heads: a set that reaches the target, in any order; the result has the same order.
        share: its share.
        value: exact shares.
        target: the share to keep.

    Returns:
        The heads that are left, and their share.
    """
    kept = list(heads)
    while len(kept) > 1:
        without = value([HeadSet(other for other in kept if other != head) for head in kept])
        order = sorted(zip(kept, without, strict=True), key=lambda pair: (-pair[1], pair[0]))
        spare = [head for head, left in order if left >= target]
        if not spare:
            break
        count = min(len(spare), len(kept) // 2)
        while True:
            out = set(spare[:count])
            rest = [head for head in kept if head not in out]
            left = float(order[0][1]) if count == 1 else float(value([HeadSet(rest)])[0])
            if left >= target:
                break
            count //= 2
        kept, share = rest, left
    return tuple(kept), share


def _found(heads: Sequence[Head], shares: Sequence[float], reached: bool) -> Found:
    """The last set if it reached the target, else the best; both with the way there."""
    curve = tuple((size, share) for size, share in enumerate(shares, start=1))
    size, share = curve[-1] if reached else max(curve, key=lambda point: (point[1], -point[0]))
    falls = sum(after < before for before, after in zip(shares, shares[1:], strict=False))
    return Found(tuple(heads[:size]), share, reached, curve, falls)


def _require_size(size: int) -> int:
    if size < 1:
        raise InputError(f"A set has at least one head, not {size}.")
    return size
