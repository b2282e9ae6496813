"""Named random streams: one base seed and a name give one stream, by SHA-256 of `seed:name`.

A stream depends on nothing but its own name, so a draw added in one place moves no other. Rooms below this
one never seed anything: they take a generator as an argument.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np


def _digest(seed: int, name: str) -> int:
    """SHA-256 of `seed:name` as an integer; an integer has no colon, so no two pairs share a text."""
    return int.from_bytes(hashlib.sha256(f"{int(seed)}:{name}".encode()).digest(), "big")


def derive(seed: int, name: str) -> int:
    """A 63-bit seed for a generator of another library, such as `torch.Generator().manual_seed`."""
    return _digest(seed, name) >> (256 - 63)


def stream(seed: int, name: str) -> np.random.Generator:
    """The numpy generator called `name` under the base seed."""
    return np.random.default_rng(_digest(seed, name))


def py_stream(seed: int, name: str) -> random.Random:
    """The `random.Random` called `name` under the base seed."""
    return random.Random(_digest(seed, name))
