"""Text of a given number of tokens that means nothing and repeats nothing: for length-matched controls.

Made of pseudo-words of two or three syllables, no word twice, drawn from a stream named by a text (an item's id), so
that the same item has the same filler wherever it is rendered. The last word is cut where the count asks for it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

Count = Callable[[str], int]
"""How many tokens of a model a text has."""

_ONSETS = "b d f g k l m n p r s t v z br dr gr kl pl tr".split()
_VOWELS = "a e i o u".split()
_CODAS = ["", "", "", "l", "m", "n", "r", "s"]
MAX_WORDS = 2000


def filler(name: str, target: int, count: Count) -> str:
    """The words for which `count(words)` comes nearest to `target`; of equals the shortest, possibly none.

    Args:
        name: whose filler it is; equal names give equal words.
        target: tokens wanted.
        count: tokens of the full text in which the words will be.

    Raises:
        ValueError: the count does not grow with the words.
    """
    if count("") >= target:
        return ""
    words = _words(name)
    text = next(words)
    while count(text) < target:
        if text.count(" ") > MAX_WORDS:
            raise ValueError(f"{MAX_WORDS} words of filler do not reach {target} tokens")
        text = f"{text} {next(words)}"
    # The right length lies inside the last two words: a tokenizer may merge across a space that was cut.
    shortest = text.rpartition(" ")[0].rpartition(" ")[0]
    cuts = (text[:end].rstrip() for end in range(len(shortest), len(text) + 1))
    return min(cuts, key=lambda cut: (abs(count(cut) - target), len(cut)))


def _words(name: str) -> Iterator[str]:
    """Pseudo-words without end, none twice."""
    rng = random.Random(f"filler:{name}")
    seen: set[str] = set()
    while True:
        syllables = (
            rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((2, 3)))
        )
        word = "".join(syllables)
        if word not in seen:
            seen.add(word)
            yield word
