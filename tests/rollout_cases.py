"""Small things that the tests of rollouts share: named streams, a wording, a policy that says what it is told."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from envs.harness import Phrases, Request
from envs.rollout import Policy, Reply, Stop

PHRASES = Phrases(
    observation_role="user",
    observation_prefix="Seen: ",
    abstract=lambda error_type, tool, index: f"(try {index}: {tool or 'something'} failed, {error_type})",
    instruction="Do not send a failed call again.",
    instruction_join="\n",
)


def streams(seed: int) -> Callable[[str], random.Random]:
    return lambda name: random.Random(f"{seed}/{name}")


def saying(texts: Iterable[str], stop: Stop = "end_of_turn", asked: list[Request] | None = None) -> Policy:
    """A policy that gives these replies in order and notes what it was asked."""
    left = list(texts)

    def policy(request: Request) -> Reply:
        if asked is not None:
            asked.append(request)
        return Reply(left.pop(0), stop, {"left": len(left)})

    return policy
