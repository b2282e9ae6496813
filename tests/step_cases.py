"""Steps of rollouts written in a few letters, for tests of what is counted in them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.run.schema import ROWS
from probes.rollouts.repeats import FAILED

ERRORS = {
    "failed": "not_found",
    "prose": "parse",
    "truncated": "parse",
    "unparsable": "parse",
    "empty": "parse",
}


def rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def rollout(
    actions: str,
    kinds: dict[str, str] | None = None,
    given: int = 0,
    end: str = "step_limit",
    arm: str = "verbatim",
    task: str = "t1",
    sample: int = 0,
    **columns: object,
) -> pd.DataFrame:
    """Steps whose actions are single letters (a dot: nothing), small ones failing, capital ones right.

    `kinds` gives letters another kind; `columns` overwrites columns, each with one value a step.
    """
    named = {**{letter: "failed" if letter.islower() else "ok" for letter in actions}, **(kinds or {})}
    harness, _, change = arm.partition("/")
    last = len(actions) - 1
    rows = []
    for index, letter in enumerate(actions):
        kind = named[letter]
        error = ERRORS[kind] if kind in FAILED else None
        text = letter.strip(".")
        row = {
            **{
                "id": f"{arm}|{task}|{sample}|{index}",
                "model": "m",
                "env": "e",
                "arm": arm,
                "harness": harness,
            },
            **{"change": change or "none", "task_id": task, "template": "one", "n_gold": 1, "sample": sample},
            **{"index": index, "given": index < given, "raw": text, "action": text, "canonical": text},
            **{
                "kind": kind,
                "error_type": error,
                "observation": f"{error} {text}" if error else f"ok {index}",
            },
            **{"stop": "end_of_turn", "solved": index == last and end == "solved", "last": index == last},
            **{"end": end if index == last else None, "n_prompt_tokens": 100 + index, "n_new_tokens": 10},
            **{"n_bans": 0, "n_ban_events": 0, "prompt_sha256": "", "prompt_ids": [], "token_ids": []},
            **{"token_logprobs": [], "first_top": [], "ban_events": [], "extraction": [], "dropped": ""},
        }
        rows.append(row)
    frame = pd.DataFrame(rows, columns=list(ROWS["rollout"]))
    return frame.assign(**columns)


def together(*rollouts: pd.DataFrame) -> pd.DataFrame:
    """The steps of several rollouts in one frame."""
    return pd.concat(rollouts, ignore_index=True)
