"""Prompt lookup decoding (A. Saxena, 2023): the next tokens guessed from an earlier occurrence of the last ones.

    … a b c d e f …   … a b c     the last tokens, a b c, occurred before: d e f is the guess

An agent's turn copies much of its transcript, so several tokens can be verified in one forward. A wrong guess costs a
little time and never changes a token: every token is chosen from the model's own logits.
"""

from __future__ import annotations

from collections.abc import Sequence

NGRAMS = (3, 2)
"""Lengths of the ending to look up, the longest first."""


def lookup(tokens: Sequence[int], count: int) -> list[int]:
    """At most `count` tokens that followed the latest earlier occurrence of the sequence's ending; or none."""
    listed = list(tokens)
    for n in NGRAMS:
        ending = listed[-n:]
        if len(ending) < n:
            continue
        for start in range(len(listed) - n - 1, -1, -1):
            if listed[start] == ending[0] and listed[start : start + n] == ending:
                return listed[start + n : start + n + count]
    return []
