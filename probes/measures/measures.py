"""From score rows to measures per item: every definition of what this package measures, each written once.

Notation: L(c) is the log-probability (nats, summed over tokens) of the failed action a× under condition c,
and Lref(c) that of the reference action ("gold").

    G = L(pre) − L(fail)              corrective gain; negative = the failure makes a× more likely; G_negative = [G < 0]
    copy = L(neut) − L(pre),  sem = L(fail) − L(neut),  so that −G = copy + sem
    copy_pad, sem_pad                 the same with neut_pad, whose observation is as long as the error
    copy_matched = L(neut) − L(neut_matched)            the call, against as many tokens of filler in its place
    copy_other = L(neut) − L(neut_other)                the call, against another valid call of as many tokens
    other_damage = L(neut_other) − L(pre)               what the record of any valid call does: copy − copy_other
    sem_first = L(mark) − L(pre),  copy_after = L(fail) − L(mark), so that −G = sem_first + copy_after: the other order,
                                      the mark of failure (o× without the call) first, then the string
    interaction = L(fail) − L(neut) − L(mark) + L(pre) = sem − sem_first = copy_after − copy
    sem_first_min, copy_after_min, interaction_min    the same with the bare marker `abstract_min` for o×: an error
                                      names what was refused, and so lends probability to a part of a×; this does not
    sem_ack = L(mark) − L(ack),  copy_ack = L(neut) − L(ack),  interaction_ack = sem − sem_ack
                                      o× or o∅, crossed with the call; without pre, which has neither
    copy_succ = L(succ) − L(pre),  sem_succ = polarity = L(fail) − L(succ)
    …_per_token                       the same, divided by the number of tokens of a×
    …_exact                           the same of "exactly a×", the end of the turn included
    p_repeat_c                        a× in the softmax over the item's candidates; c = pre, fail; p_repeat_shift
    p_repeat2_c, p_repeat4_c          over {a×, reference}, and over exactly four candidates: sets of a fixed size
    greedy_repeat_c                   1 if every token of a× is the argmax at its position, else 0
    G_X = L(pre) − L(X),  delta_X = L(X) − L(fail)      for every other way X to write the failure
    delta_fail_early_moved            delta_fail_early of the items that have a step to move it before
    second_copy = L(fail_echo) − L(quote_matched)       a second copy, less the longer message it makes
    repair = Lref(fail) − Lref(pre)
    margin_shift = [Lref − L](fail) − [Lref − L](pre) = repair + G
    margin_copy = M(neut) − M(pre),  margin_sem = M(fail) − M(neut), …   with the margin M = L − Lref for L
                                      (`probes.scoring.contrast`), so that margin_copy + margin_sem = −margin_shift;
                                      where an item has no reference, Lref is its distractors' mean, where those are
                                      scored

A measure whose scores are not all there is left out for that item. Nothing missing counts as zero.

Under an ablation that is drawn anew (resample) an item has scores of several draws: every measure is taken of each
draw, and its value is the mean over them, `draw_sd` their standard deviation. The mean of a repeat probability over
draws is not the repeat probability of the mean log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from mech.errors import InputError
from probes.prompts.conditions import MANIPULATIONS
from probes.stats.layout import CANDIDATES, KEYS, Scores, check_rows, lay_out

COLUMNS = (*KEYS, "measure", "value")
IDENTITY_TOLERANCE = 1e-5  # nats
Definition = Callable[[Scores], pd.Series]


Level = Callable[[Scores, str], pd.Series]
"""A quantity of each item under a condition: L or the margin M."""


def change(before: str, after: str, exact: bool = False) -> Definition:
    """L(after) − L(before) of a×."""
    return lambda scores: scores.logp(after, exact=exact) - scores.logp(before, exact=exact)


def per_token(definition: Definition) -> Definition:
    """A difference divided by the number of tokens of a×."""
    return lambda scores: definition(scores) / scores.n_tokens


def repair(scores: Scores) -> pd.Series:
    """Recovery = Lref(fail) − Lref(pre)."""
    return scores.logp("fail", "gold") - scores.logp("pre", "gold")


def margin_shift(scores: Scores) -> pd.Series:
    """Change from pre to fail of Lref − L."""
    fail = scores.logp("fail", "gold") - scores.logp("fail")
    return fail - (scores.logp("pre", "gold") - scores.logp("pre"))


def _margin(scores: Scores, condition: str) -> pd.Series:
    """L(a×) − L(reference) under a condition; for an item without a reference, less the mean over its distractors."""
    if condition not in scores.margins:
        total, number = (pd.Series(0.0, index=scores.logprob.index) for _ in range(2))
        for candidate in CANDIDATES[2:]:
            known = scores.known[candidate]
            total = total + scores.logp(condition, candidate).where(known, 0.0)
            number = number + known
        others = total / number.where(number > 0)
        reference = scores.logp(condition, "gold").where(scores.known["gold"], others)
        scores.margins[condition] = scores.logp(condition) - reference
    return scores.margins[condition]


def margin_change(before: str, after: str) -> Definition:
    """M(after) − M(before), the margin of a× over the reference."""
    return lambda scores: _margin(scores, after) - _margin(scores, before)


def _interaction(mark: str, none: str = "pre", of: Level = Scores.logp) -> Definition:
    """The level under fail − neut − mark + none."""
    return lambda scores: of(scores, "fail") - of(scores, "neut") - of(scores, mark) + of(scores, none)


def inverted(scores: Scores) -> pd.Series:
    """1 where G < 0, else 0; NaN where there is no G: a missing score is not "not negative"."""
    gain = corrective_gain(scores)
    return (gain < 0).astype(float).where(gain.notna())


def moved_early(scores: Scores) -> pd.Series:
    """delta_fail_early where a step precedes the decision; elsewhere fail_early is fail, and says nothing."""
    return change("fail", "fail_early")(scores).where(scores.step_index > 0)


def repeat_probability(
    scores: Scores, condition: str, size: int | None = None, exact: bool = False
) -> pd.Series:
    """Share of a× in the softmax of the summed log-probabilities over a candidate set.

    Args:
        scores: laid out by item.
        condition: where they are read.
        size: 2 for {a×, reference}; 4 for a×, reference and two distractors, items that lack one left out; None for
            what was scored for the item under pre or fail, the same for both, a× and the reference at least.
        exact: of "exactly this", the end of the turn included.

    An item one of whose candidates has no score under `condition` has no value.
    """
    here = scores.candidates(condition, exact)
    members = ~(np.isnan(scores.candidates("pre", exact)) & np.isnan(scores.candidates("fail", exact)))
    if size == 2:
        members &= np.isin(CANDIDATES, ["failed", "gold"])
    complete = (~np.isnan(here) | ~members).all(axis=1) & members[:, 0] & members[:, 1]
    if size is not None:
        complete &= members.sum(axis=1) == size
    logits = np.where(members & complete[:, None], here, np.nan)
    peak = np.fmax.reduce(logits, axis=1)  # skips what is not in the set, as does the sum below
    total = np.nansum(np.exp(logits - peak[:, None]), axis=1)
    return pd.Series(np.exp(logits[:, 0] - peak) / total, index=scores.logprob.index)


def _repeats(condition: str, size: int | None = None, exact: bool = False) -> Definition:
    """`repeat_probability` of one kind."""
    return lambda scores: repeat_probability(scores, condition, size, exact)


corrective_gain = change("fail", "pre")
copy_part = change("pre", "neut")
semantic_part = change("neut", "fail")

DEFINITIONS: dict[str, Definition] = {
    "G": corrective_gain,
    "copy": copy_part,
    "sem": semantic_part,
    "G_negative": inverted,
    "G_per_token": per_token(corrective_gain),
    "copy_per_token": per_token(copy_part),
    "sem_per_token": per_token(semantic_part),
    "G_exact": change("fail", "pre", exact=True),
    "copy_exact": change("pre", "neut", exact=True),
    "sem_exact": change("neut", "fail", exact=True),
    "p_repeat_pre": _repeats("pre"),
    "p_repeat_fail": _repeats("fail"),
    "p_repeat2_pre": _repeats("pre", 2),
    "p_repeat2_fail": _repeats("fail", 2),
    "p_repeat4_pre": _repeats("pre", 4),
    "p_repeat4_fail": _repeats("fail", 4),
    "p_repeat_exact_pre": _repeats("pre", exact=True),
    "p_repeat_exact_fail": _repeats("fail", exact=True),
    "p_repeat_shift": lambda scores: repeat_probability(scores, "fail") - repeat_probability(scores, "pre"),
    "greedy_repeat_pre": lambda scores: scores.is_greedy("pre"),
    "greedy_repeat_fail": lambda scores: scores.is_greedy("fail"),
    "greedy_repeat_abstract": lambda scores: scores.is_greedy("abstract"),
    "greedy_exact_fail": lambda scores: scores.is_greedy("fail", exact=True),
    "copy_succ": change("pre", "succ"),
    "sem_succ": change("succ", "fail"),
    "polarity": change("succ", "fail"),
    "copy_pad": change("pre", "neut_pad"),
    "sem_pad": change("neut_pad", "fail"),
    "copy_matched": change("neut_matched", "neut"),
    "copy_other": change("neut_other", "neut"),
    "other_damage": change("pre", "neut_other"),
    "sem_first": change("pre", "mark"),
    "copy_after": change("mark", "fail"),
    "interaction": _interaction("mark"),
    "sem_first_min": change("pre", "abstract_min"),
    "copy_after_min": change("abstract_min", "fail"),
    "interaction_min": _interaction("abstract_min"),
    "sem_ack": change("ack", "mark"),
    "copy_ack": change("ack", "neut"),
    "interaction_ack": _interaction("mark", "ack"),
    **{f"G_{name}": change(name, "pre") for name in MANIPULATIONS},
    **{f"delta_{name}": change("fail", name) for name in MANIPULATIONS},
    "delta_fail_early_moved": moved_early,
    "second_copy": change("quote_matched", "fail_echo"),
    "margin_shift": margin_shift,
    "repair": repair,
    "margin_copy": margin_change("pre", "neut"),
    "margin_sem": margin_change("neut", "fail"),
    "margin_copy_matched": margin_change("neut_matched", "neut"),
    "margin_copy_other": margin_change("neut_other", "neut"),
    "margin_other_damage": margin_change("pre", "neut_other"),
    "margin_sem_first": margin_change("pre", "mark"),
    "margin_copy_after": margin_change("mark", "fail"),
    "margin_interaction": _interaction("mark", of=_margin),
    "margin_sem_first_min": margin_change("pre", "abstract_min"),
    "margin_copy_after_min": margin_change("abstract_min", "fail"),
    "margin_interaction_min": _interaction("abstract_min", of=_margin),
}


def _identities() -> Iterator[tuple[str, dict[str, float]]]:
    yield "-G = copy + sem", {"G": 1, "copy": 1, "sem": 1}
    yield "copy = other_damage + copy_other", {"copy": 1, "other_damage": -1, "copy_other": -1}
    for of, gain in (("", "G"), ("margin_", "margin_shift")):
        if of:
            yield f"-{gain} = {of}copy + {of}sem", {gain: 1, f"{of}copy": 1, f"{of}sem": 1}
        for mark in ("", "_min"):
            first, after, both = (f"{of}{name}{mark}" for name in ("sem_first", "copy_after", "interaction"))
            yield f"-{gain} = {first} + {after}", {gain: 1, first: 1, after: 1}
            yield f"{both} = {of}sem - {first}", {both: 1, f"{of}sem": -1, first: 1}
            yield f"{both} = {after} - {of}copy", {both: 1, after: -1, f"{of}copy": 1}


IDENTITIES = tuple(_identities())
"""Sums of measures that are zero by definition, checked on every item that has them all."""


def measure(rows: pd.DataFrame) -> pd.DataFrame:
    """All measures of all items, in long form.

    Args:
        rows: one line per score with the columns model, env, item_id, task_id, condition, candidate,
            logprob (nats), n_tokens, is_greedy; optional are end_logprob, end_is_argmax, step_index and
            `ablation` (a label).

    Returns:
        Columns model, env, item_id, task_id, measure, value (and ablation, if given), sorted by item
        and then in the order of `DEFINITIONS`, whatever the order of the rows. Where rows hold draws (`draws`: score
        by draw), also n_draws and draw_sd, empty for what was not drawn.

    Raises:
        InputError: a column or a key is missing, a score occurs twice, a log-probability is positive
            or not finite, or an item's failed action has two lengths.
        RuntimeError: one of IDENTITIES fails on an item.
    """
    keys = [*KEYS, *(["ablation"] if "ablation" in rows.columns else [])]
    if "draws" in rows.columns and rows["draws"].notna().any():
        return _over_draws(rows, keys)
    check_rows(rows, keys)
    return _measured(rows, keys)


def _measured(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """`measure` of checked rows of one score each; `keys` may hold the draw."""
    scores = lay_out(rows, keys)
    wide = pd.DataFrame({name: define(scores) for name, define in DEFINITIONS.items()})
    wide.columns.name = "measure"
    long = (
        wide.reset_index().melt(id_vars=keys, var_name="measure", value_name="value").dropna(subset=["value"])
    )
    long = _in_order(long, keys)
    check_identity(long)
    return long[[*COLUMNS, *keys[len(KEYS) :]]]


def _in_order(long: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Sorted by the keys and then in the order of `DEFINITIONS`."""
    ordered = long.assign(measure=pd.Categorical(long["measure"], list(DEFINITIONS)))
    return ordered.sort_values([*keys, "measure"], ignore_index=True).astype({"measure": str})


def _over_draws(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """`measure` of rows some of which hold draws: taken draw by draw, then the mean and SD over an item's draws.

    Raises:
        InputError: as `measure`, or two rows of an item and arm have unequal numbers of draws.
    """
    several = rows["draws"].notna()
    means = [measure(rows[~several].drop(columns="draws"))] if (~several).any() else []
    single = [_one_draw(row) for row in rows[several].to_dict("records")]
    drawn = pd.DataFrame([line for lines in single for line in lines])
    counts = drawn.groupby([*keys, "condition", "candidate"])["draw"].nunique()
    of_item = counts.groupby(level=keys).agg(["min", "max"])
    uneven = of_item.index[of_item["min"] != of_item["max"]]
    if len(uneven):
        raise InputError(f"The rows of {uneven[0][2]} under one arm have unequal numbers of draws.")
    check_rows(drawn, [*keys, "draw"])
    long = _measured(drawn, [*keys, "draw"])
    values = long.groupby([*keys, "measure"], sort=False)["value"]
    means.append(
        values.mean().to_frame().assign(n_draws=values.size(), draw_sd=values.std(ddof=1)).reset_index()
    )
    both = _in_order(pd.concat(means, ignore_index=True), keys)
    return both[[*COLUMNS, *keys[len(KEYS) :], "n_draws", "draw_sd"]]


def _one_draw(row: Mapping[Hashable, Any]) -> list[dict[Hashable, Any]]:
    """A row of several draws as one row a draw."""
    names = list(row["draws"])
    return [
        {**row, **dict(zip(names, values, strict=True)), "draws": None, "draw": draw}
        for draw, values in enumerate(zip(*row["draws"].values(), strict=True))
    ]


def check_identity(long: pd.DataFrame) -> None:
    """Raise RuntimeError, naming the item, unless every one of IDENTITIES holds wherever an item has all its terms."""
    keys = [column for column in long.columns if column not in ("measure", "value")]
    terms = {name for _, signs in IDENTITIES for name in signs}
    parts = long[long["measure"].isin(terms)].pivot(index=keys, columns="measure", values="value")
    for identity, signs in IDENTITIES:
        if not set(signs) <= set(parts.columns):
            continue
        wide = parts[list(signs)].dropna()
        gap = (wide * pd.Series(signs)).sum(axis=1).abs()
        if (gap > IDENTITY_TOLERANCE).any():
            worst = dict(zip(keys, gap.idxmax(), strict=True))
            raise RuntimeError(
                f"{identity} is off by {gap.max():.3g} nats on item {worst['item_id']} ({worst})."
            )
