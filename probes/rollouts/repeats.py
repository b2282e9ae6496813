"""What counts as a repeat, a cycle and a loop in the ordered steps of one rollout.

    failed       the turn brought an error: kind failed, prose, truncated, unparsable or empty
    exact        the action's text, stripped, already failed earlier in this rollout
    canonical    its canonical text did (the same for one call in two spellings)
    again        its canonical text was sent earlier, whether it failed or not: a call that worked is repeated too
    near         no canonical repeat, and it fails again with the error type of an earlier failure whose canonical
                 text is at least 0.9 similar: a variant of a wrong call that changed nothing
    cycle        of period p: the last p actions are the p before them, and no shorter period does it; A B A B for p = 2

and the patterns of agents' loop detectors: the same action with the same error 3 times in a row, the same observation 4
times in a row, two actions in turn over 6 steps. A step is marked where it completes the pattern.

Given steps count as history, and have marks too. A repeat need not
fail itself: the world may have changed, and the call be right by now. A banned_out or no_room step took no action: it
is no repeat, has no part in a pattern and breaks a row. Where a step has no error type, its kind is taken instead.

Similarity is difflib's ratio 2 M / T (M letters in matching blocks, T letters of both), earlier text first, without
autojunk: from 200 letters on that heuristic starts no match at a letter that makes up more than 1 % of the text, which
is most of them, and programs that differ in one place can come out unlike each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np
import pandas as pd
from jaxtyping import Bool

from mech.errors import InputError

FAILED = ("failed", "prose", "truncated", "unparsable", "empty")
READABLE = ("ok", "done", "failed")
NOT_TAKEN = ("banned_out", "no_room")
STEP_KINDS = ("ok", "done", *FAILED, *NOT_TAKEN)
SIMILARITY = 0.9
ACTION_ERROR, OBSERVATION, ALTERNATION = 3, 4, 6  # the thresholds one meets in agents' own loop detectors

Marks = Bool[np.ndarray, " step"]
"""One truth value a step, in the order of the steps."""


def failed(steps: pd.DataFrame) -> Marks:
    """Steps that brought an error."""
    return steps["kind"].isin(FAILED).to_numpy(bool)


def after_failure(steps: pd.DataFrame) -> Marks:
    """Steps with at least one failure before them: those that have something to repeat."""
    return np.cumsum(failed(steps)) - failed(steps) > 0


def exact(steps: pd.DataFrame) -> Marks:
    """Steps whose action text, stripped, already failed."""
    return _already_failed(steps, [str(text).strip() for text in steps["action"]])


def canonical(steps: pd.DataFrame) -> Marks:
    """Steps whose canonical text already failed."""
    return _already_failed(steps, [str(text) for text in steps["canonical"]])


def again(steps: pd.DataFrame) -> Marks:
    """Steps whose canonical action was taken before in this rollout, with whatever outcome."""
    actions = _actions(steps)
    return np.array(
        [action is not None and action in actions[:place] for place, action in enumerate(actions)], bool
    )


def near(steps: pd.DataFrame, similarity: float = SIMILARITY) -> Marks:
    """Failures that are no canonical repeat and nearly one: same error, canonical text at least so similar."""
    if not 0 < similarity <= 1:
        raise InputError(f"The similarity of a near repeat lies between 0 and 1, not at {similarity}.")
    marks = np.zeros(len(steps), dtype=bool)
    earlier: dict[str, list[str]] = {}
    lines = zip(steps["canonical"], _errors(steps), failed(steps), canonical(steps), strict=True)
    for place, (text, error, fails, repeats) in enumerate(lines):
        if not fails:
            continue
        before = earlier.setdefault(error, [])
        marks[place] = not repeats and any(similar(one, str(text), similarity) for one in before)
        before.append(str(text))
    return marks


def similar(one: str, other: str, least: float = SIMILARITY) -> bool:
    """Whether difflib's ratio of two texts is at least `least`; its two upper bounds are asked first."""
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.real_quick_ratio() >= least and matcher.quick_ratio() >= least and matcher.ratio() >= least


def cycle(steps: pd.DataFrame, period: int) -> Marks:
    """Steps that complete a cycle of exactly this period, by canonical action.

    Raises:
        InputError: a period below 2 (one action over and over is a repeat).
    """
    if period < 2:
        raise InputError(f"A cycle has a period of at least 2, not {period}.")
    actions = _actions(steps)
    marks = np.zeros(len(actions), dtype=bool)
    for end in range(2 * period, len(actions) + 1):
        block = actions[end - period : end]
        turns = any(block == block[by:] + block[:by] for by in range(1, period))  # a shorter period does it
        again = block == actions[end - 2 * period : end - period]
        marks[end - 1] = again and not turns and None not in block
    return marks


def same_action_and_error(steps: pd.DataFrame, times: int = ACTION_ERROR) -> Marks:
    """Failures that are at least the `times`-th in a row of one canonical action with one error."""
    pairs = zip(_actions(steps), _errors(steps), failed(steps), strict=True)
    return _run_lengths([(action, error) if fails else None for action, error, fails in pairs]) >= times


def same_observation(steps: pd.DataFrame, times: int = OBSERVATION) -> Marks:
    """Steps whose observation is at least the `times`-th equal one in a row; an empty one is none."""
    return _run_lengths([text or None for text in steps["observation"]]) >= times


def alternating(steps: pd.DataFrame, length: int = ALTERNATION) -> Marks:
    """Steps at which two different canonical actions have taken turns over at least `length` steps."""
    actions = _actions(steps)
    runs = np.zeros(len(actions), dtype=int)
    for place, action in enumerate(actions):
        before = actions[place - 1] if place else None
        if action is None:
            continue
        if before is None or before == action:
            runs[place] = 1
            continue
        goes_on = place > 1 and actions[place - 2] == action
        runs[place] = runs[place - 1] + 1 if goes_on else 2
    return runs >= length


def _already_failed(steps: pd.DataFrame, texts: list[str]) -> Marks:
    marks = np.zeros(len(steps), dtype=bool)
    seen: set[str] = set()
    acted = (~steps["kind"].isin(NOT_TAKEN)).to_numpy(bool)
    for place, (text, fails) in enumerate(zip(texts, failed(steps), strict=True)):
        marks[place] = acted[place] and text in seen
        if fails:
            seen.add(text)
    return marks


def _actions(steps: pd.DataFrame) -> list[str | None]:
    """Canonical texts; None where no action was taken."""
    pairs = zip(steps["canonical"], steps["kind"], strict=True)
    return [None if kind in NOT_TAKEN else str(text) for text, kind in pairs]


def _errors(steps: pd.DataFrame) -> list[str]:
    """What kind of error each step brought (of steps without one, their kind)."""
    return [str(error) for error in steps["error_type"].where(steps["error_type"].notna(), steps["kind"])]


def _run_lengths(values: Sequence[object]) -> np.ndarray:
    """How many equal values end at each place; 0 where there is None."""
    lengths = np.zeros(len(values), dtype=int)
    for place, value in enumerate(values):
        if value is not None:
            lengths[place] = 1 + (lengths[place - 1] if place and values[place - 1] == value else 0)
    return lengths
