"""Attention heads as values: `L18H6`, ordered sets of them, and the hash of a set.

Layers and heads count from zero, as TransformerLens counts them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mech.errors import InputError

_NAME = re.compile(r"L(\d+)H(\d+)")


@dataclass(frozen=True, order=True)
class Head:
    """One attention head; prints as `L18H6`."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, text: str) -> Head:
        """Read `L18H6`; InputError for anything else."""
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise InputError(f"'{text}' is not a head: write it like L18H6 (layer 18, head 6, both from 0).")
        return cls(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class HeadSet:
    """A frozen set of heads in (layer, head) order, so that equal sets have equal hashes."""

    heads: tuple[Head, ...]

    def __init__(self, heads: Iterable[Head]) -> None:
        listed = list(heads)
        ordered = tuple(sorted(set(listed)))
        if len(ordered) != len(listed):
            raise InputError("A head set names a head twice.")
        object.__setattr__(self, "heads", ordered)

    def __iter__(self) -> Iterator[Head]:
        return iter(self.heads)

    def __len__(self) -> int:
        return len(self.heads)

    def __contains__(self, head: object) -> bool:
        return head in self.heads

    def __str__(self) -> str:
        return ",".join(map(str, self.heads))

    @classmethod
    def parse(cls, text: str) -> HeadSet:
        """Read `L18H6,L17H3`; InputError for a malformed or repeated name, or an empty list."""
        parts = [part for part in text.split(",") if part.strip()]
        if not parts:
            raise InputError("The list of heads is empty.")
        return cls(Head.parse(part) for part in parts)

    def check(self, n_layers: int, n_heads: int) -> HeadSet:
        """Return self if every head exists in a model of this size; else InputError."""
        for head in self.heads:
            if head.layer >= n_layers or head.head >= n_heads:
                raise InputError(
                    f"{head} does not exist: the model has layers 0-{n_layers - 1} and heads 0-{n_heads - 1}."
                )
        return self

    def per_layer(self) -> dict[int, list[int]]:
        """Layer → its heads in this set, both ascending."""
        layers: dict[int, list[int]] = {}
        for head in self.heads:
            layers.setdefault(head.layer, []).append(head.head)
        return layers

    @property
    def sha256(self) -> str:
        """Hash of the names in order, the identity of the set in recorded runs."""
        return hashlib.sha256(json.dumps([str(head) for head in self.heads]).encode()).hexdigest()
