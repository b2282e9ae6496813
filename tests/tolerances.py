"""Every tolerance of the test suite, with its reason; no test writes its own."""

from __future__ import annotations

# float64 on tiny models: rounding is near 1e-15, so anything above this is a bug and not noise.
FP64 = 1e-10
# float32 logits of one model by two routes (eager against cached): the noise floor of the stack.
FP32 = 5e-5
# float32 sums of log-probabilities over the tokens of one action, in nats.
NATS = 2e-4
# The identity -G = copy + sem on stored rows, in nats.
IDENTITY = 1e-5
# One row scored here against the same row scored by an independent program, in nats.
ROW_NATS = 1e-3
# Means over the hundred reference items against the table, in nats (probabilities: the same number).
TABLE = 1e-2
