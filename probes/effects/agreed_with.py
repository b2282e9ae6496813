"""What an agreement is an agreement with, in words and numbers, so that a high one is not taken for more than it is.

Heads may be ranked perfectly by effects that hardly add up to anything: in noising each head alone does little, as
others stand in for it. Beside every statistic stand the mean sum of the single effects and the mean difference of which
they are effects.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

AGREED_WITH = ("with", "effects_nats", "delta_nats")
UNITS = {"z": "head", "mlp_out": "MLP"}
NAMES = {"noise": "noising", "denoise": "denoising"}


@dataclass(frozen=True)
class Target:
    """Exact effects of single units in one direction: their mean sum over items, and the mean difference (nats)."""

    direction: str
    unit: str
    effects_nats: float
    delta_nats: float

    @classmethod
    def of(cls, direction: str, effects: pd.DataFrame, deltas: pd.Series, unit: str = "head") -> Target:
        """From effects [item, unit] and each item's difference."""
        return cls(direction, unit, float(effects.sum(axis=1).mean()), float(deltas.mean()))

    def __str__(self) -> str:
        return (
            f"exact single-{self.unit} {NAMES[self.direction]}, sum of effects {self.effects_nats:.1f} of "
            f"{self.delta_nats:.1f} nats"
        )

    def cells(self, half: bool = False) -> tuple[str, float, float]:
        """The cells of AGREED_WITH; `half`: the agreement is of one half of the clusters with the other."""
        return (f"the other half: {self}" if half else str(self), self.effects_nats, self.delta_nats)
