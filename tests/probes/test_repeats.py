"""Repeats, cycles and loop detectors on rollouts short enough to be read."""

from __future__ import annotations

import difflib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mech.errors import InputError
from probes.rollouts import repeats
from tests.step_cases import rollout


def marked(marks: np.ndarray) -> list[int]:
    return np.flatnonzero(marks).tolist()


def test_an_exact_repeat_is_of_a_text_that_failed_before_and_blanks_around_it_do_not_count() -> None:
    steps = rollout("abABa", action=["f(1)", "g()", "f(1) ", "h()", "\tf(1)\n"])
    assert marked(repeats.exact(steps)) == [2, 4]  # step 2 succeeds and repeats nevertheless
    assert marked(repeats.canonical(steps)) == [4]


def test_what_succeeded_before_may_be_done_again() -> None:
    assert marked(repeats.exact(rollout("AAaA", action=["x"] * 4))) == [3]


def test_a_canonical_repeat_has_another_spelling_and_a_near_one_another_call() -> None:
    call = 'send_email(to="kim@acme.com", subject="Agenda", body="See you")'
    spelled = 'send_email(subject="Agenda", to="kim@acme.com", body="See you")'
    variant = call.replace("kim@", "kym@")
    steps = rollout(
        "abcd", action=[call, spelled, variant, "f()"], canonical=[call, call, variant, "f()"]
    )  # fmt: skip
    assert marked(repeats.exact(steps)) == []
    assert marked(repeats.canonical(steps)) == [1]
    assert marked(repeats.near(steps)) == [2]
    assert marked(repeats.near(steps, similarity=0.999)) == []


def test_a_near_repeat_fails_again_with_the_error_of_the_one_it_resembles() -> None:
    texts = ["lookup(name='Kim Lee')", "lookup(name='Kim Lea')"]
    near = rollout("ab", canonical=texts)
    assert marked(repeats.near(near)) == [1]
    assert marked(repeats.near(rollout("aB", canonical=texts))) == []
    assert marked(repeats.near(near.assign(error_type=["not_found", "bad_type"]))) == []
    # Without an error type the kind stands for it: prose and an empty turn are no equal errors.
    untyped = near.assign(error_type=[None, None])
    assert marked(repeats.near(untyped)) == [1]
    assert marked(repeats.near(untyped.assign(kind=["prose", "unparsable"]))) == []
    # The one it resembles need not be the last one, and must itself have failed.
    assert marked(repeats.near(rollout("abc", canonical=[texts[0], "f(" + "x" * 40, texts[1]]))) == [2]
    assert marked(repeats.near(rollout("Ab", canonical=texts))) == []


def test_long_texts_that_differ_in_a_letter_are_similar() -> None:
    line = "x = x + 1\n"
    one, other = 30 * line, 15 * line + "x = x + 2\n" + 14 * line
    assert difflib.SequenceMatcher(None, one, other).ratio() < 0.6  # what autojunk makes of it
    assert repeats.similar(one, other)
    assert not repeats.similar(one, one[: len(one) // 2])


def test_similarity_is_the_ratio_and_the_bound_belongs_to_it() -> None:
    one, other = "abcdefghij", "abcdefghiX"
    assert difflib.SequenceMatcher(None, one, other).ratio() == 0.9
    assert repeats.similar(one, other, 0.9) and not repeats.similar(one, other, 0.91)
    with pytest.raises(InputError, match="between 0 and 1"):
        repeats.near(rollout("a"), similarity=1.5)


def test_banned_out_steps_repeat_nothing_and_break_a_row() -> None:
    kinds = {"e": "empty", "x": "banned_out"}
    steps = rollout("eex", kinds, action=["", "", ""], canonical=["", "", ""])
    assert marked(repeats.exact(steps)) == marked(repeats.canonical(steps)) == [1]
    row = rollout("aaxaa", kinds, canonical=["a", "a", "a", "a", "a"])
    assert marked(repeats.same_action_and_error(row, 2)) == [1, 4]
    assert marked(repeats.cycle(rollout("abxab", kinds), 2)) == []
    assert marked(repeats.alternating(rollout("abxab", kinds, canonical=list("ababa")), 3)) == []


def test_given_steps_are_history() -> None:
    assert marked(repeats.exact(rollout("aba", given=1))) == [2]
    assert marked(repeats.same_action_and_error(rollout("aaa", given=1))) == [2]
    assert marked(repeats.after_failure(rollout("aA", given=1))) == [1]


def test_a_step_comes_after_a_failure_only_if_an_earlier_one_failed() -> None:
    assert marked(repeats.after_failure(rollout("AaBb"))) == [2, 3]
    for kind in ("prose", "truncated", "unparsable", "empty"):
        assert marked(repeats.after_failure(rollout("pA", {"p": kind}))) == [1]
    assert marked(repeats.after_failure(rollout("dAx", {"d": "done", "x": "banned_out"}))) == []


def test_cycles_have_their_own_period_and_no_shorter_one() -> None:
    assert marked(repeats.cycle(rollout("abab"), 2)) == [3]
    assert marked(repeats.cycle(rollout("aaaa"), 2)) == []
    assert marked(repeats.cycle(rollout("ababab"), 2)) == [3, 4, 5]
    assert marked(repeats.cycle(rollout("ABAB"), 2)) == [3]  # no failure is needed
    assert marked(repeats.cycle(rollout("abcabc"), 3)) == [5]
    assert marked(repeats.cycle(rollout("aabaab"), 3)) == [5]
    assert marked(repeats.cycle(rollout("aaaaaa"), 3)) == []
    assert marked(repeats.cycle(rollout("abcabc"), 2)) == []
    assert marked(repeats.cycle(rollout("abababab"), 4)) == []
    assert marked(repeats.cycle(rollout("abba"), 2)) == []
    with pytest.raises(InputError, match="at least 2"):
        repeats.cycle(rollout("aa"), 1)


def test_the_same_action_with_the_same_error_in_a_row() -> None:
    steps = rollout("aaaab")
    assert marked(repeats.same_action_and_error(steps)) == [2, 3]
    assert marked(repeats.same_action_and_error(steps, 4)) == [3]
    other = steps.assign(error_type=["x", "y", "x", "x", "x"])
    assert marked(repeats.same_action_and_error(other)) == []
    assert marked(repeats.same_action_and_error(rollout("AAA"))) == []
    assert marked(repeats.same_action_and_error(rollout("aabaa"))) == []


def test_the_same_observation_in_a_row_whatever_was_done() -> None:
    steps = rollout("abcdX", observation=["no", "no", "no", "no", "no"])
    assert marked(repeats.same_observation(steps)) == [3, 4]
    assert marked(repeats.same_observation(steps, 5)) == [4]
    assert (
        marked(repeats.same_observation(steps.assign(observation=["no", "no", "yes", "no", "no"]), 3)) == []
    )
    assert marked(repeats.same_observation(steps.assign(observation=[""] * 5))) == []


def test_two_actions_in_turn() -> None:
    assert marked(repeats.alternating(rollout("abababa"))) == [5, 6]
    assert marked(repeats.alternating(rollout("ababa"))) == []
    assert marked(repeats.alternating(rollout("aaaaaa"))) == []
    assert marked(repeats.alternating(rollout("bababb"), 5)) == [4]
    assert marked(repeats.alternating(rollout("aababab"))) == [6]
    assert marked(repeats.alternating(rollout("abcbcb"), 5)) == [5]


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="abAB", min_size=1, max_size=9), st.integers(2, 4))
def test_the_marks_are_what_the_definitions_say_read_naively(actions: str, period: int) -> None:
    steps = rollout(actions)
    n = len(actions)
    again = [actions[i].islower() and actions[i] in actions[:i] for i in range(n)]
    assert repeats.canonical(steps).tolist() == repeats.exact(steps).tolist() == again
    cycles = []
    for i in range(n):
        tail = actions[: i + 1]
        double = [tail[-2 * p :] == 2 * tail[-p:] and len(tail) >= 2 * p for p in range(1, period + 1)]
        whole = tail[-2 * period :]
        shorter = [p for p in range(1, period) if period % p == 0 and whole == whole[:p] * (len(whole) // p)]
        cycles.append(double[-1] and not shorter)
    assert repeats.cycle(steps, period).tolist() == cycles
    turns = []
    for i in range(n):
        tail = actions[max(0, i - 3) : i + 1]
        turns.append(len(tail) == 4 and len(set(tail)) == 2 and tail[0] == tail[2] and tail[1] == tail[3])
    assert repeats.alternating(steps, 4).tolist() == turns
