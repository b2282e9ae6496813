"""What the model may be about to write, guessed from the sequence itself: prompt lookup.

    … a b c d e f …   … a b c     the last tokens, a b c, stood before: d e f is the guess

An agent's turn copies much of its transcript (that is what this project is about), so several tokens can be verified in
one forward. A guess costs a little time where it is wrong and never changes a token: what is chosen is chosen from the
model's own logits. Source: prompt lookup decoding (A. Saxena, 2023).
"""

from __future__ import annotations

from collections.abc import Sequence

NGRAMS = (3, 2)
"""Lengths of the ending that is looked up, the longest first."""


def lookup(tokens: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens that followed the latest earlier place where the sequence's ending stands; or none."""
    listed = list(tokens)
    for n in NGRAMS:
        ending = listed[-n:]
        if len(ending) < n:
            continue
        for start in range(len(listed) - n - 1, -1, -1):
            if listed[start] == ending[0] and listed[start : start + n] == ending:
                return listed[start + n : start + n + count]
    return []
