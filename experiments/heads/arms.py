"""Ablation arms: several ablations, and the unablated model, as conditions of one study in one run folder.

    --ablate top:16 --ablate random:16 --ablate top:16@how=resample

An arm is HEADS[@how=…][@where=…][@alpha=…][@draws=…]: heads as `head_choice` names them, then what differs from --how,
--where, --alpha and --draws. The unablated model is always the first arm, under the label "none". A label is made of
what the arm is, never of its place in the command: top16, random16, random3-16, not-top16, top16@resample,
top16@zero@candidate; it names the arm in the column `ablation`, and in the ids of its rows.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from experiments.heads.ablation import METHODS, AblationOptions, ArmOptions, Replacement, replacement
from experiments.heads.reference_sets import ReferenceSet
from experiments.heads.spec import choose_heads
from experiments.run.session import Session
from mech.errors import InputError
from mech.heads import HeadSet
from probes.scoring.score import ScoringQuery, row_id
from probes.stats.layout import UNABLATED

PLACES = ("all", "candidate")
_OPTION = re.compile(r"@([A-Za-z_-]+)=([^@]*)")
_KEYS = ("how", "where", "alpha", "draws")
FORM = "HEADS[@how=…][@where=…][@alpha=…][@draws=…], such as top:16@how=resample"
_SHOWN_HEADS = 3  # a label spells out so many heads


@dataclass(frozen=True)
class ArmSpec:
    """What one --ablate says: the word for the heads, and how they are ablated."""

    text: str
    heads: str
    how: str
    where: str
    alpha: float
    draws: int

    @property
    def label(self) -> str:
        """What the arm is, in short: heads, then what is not the package's usual (the mean, at all positions)."""
        parts = [_heads_label(self.heads)]
        if self.how != AblationOptions.how:
            parts.append(f"{self.how}{self.alpha:g}" if self.how == "scale" else self.how)
        if self.where != AblationOptions.where:
            parts.append(self.where)
        if self.how == "resample" and self.draws != AblationOptions.draws:
            parts.append(f"draws{self.draws}")
        return "@".join(parts)


Shares = Literal["prompts", "arm", "nothing"]
"""What the questions of an item share: the unablated prompts, their arm's, or nothing (each has its own values)."""


@dataclass(frozen=True, eq=False)
class Arm:
    """One arm: its label, the heads and what takes the place of their z (None: the unablated model), and where."""

    label: str
    heads: HeadSet | None = None
    instead: Replacement | None = None
    where: str = "all"

    @property
    def shares(self) -> Shares:
        """What its questions share with others of the item."""
        if self.instead is None or (self.where == "all" and not self.instead.by_question):
            return "arm"
        return "prompts" if self.where == "candidate" else "nothing"

    def build_queries(self, questions: Sequence[ScoringQuery]) -> list[ScoringQuery]:
        """The questions of the unablated model, under this arm: one intervention each, or one a draw.

        Raises:
            InputError: as `Replacement.interventions`.
        """
        if self.instead is None:
            return list(questions)
        return [
            scoring.under(self.label, self.instead.interventions(self.heads, self.where, scoring))
            for scoring in questions
        ]


WHOLE = Arm(UNABLATED)


@dataclass(frozen=True, eq=False)
class Arms:
    """The arms of a study, the unablated model first; `about` and `derived` as `session.open_run` takes them."""

    arms: tuple[Arm, ...] = (WHOLE,)
    about: Mapping[str, Any] = field(default_factory=dict)
    derived: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The labels, in the order given."""
        return [arm.label for arm in self.arms]

    @property
    def notes(self) -> list[str]:
        """What a report says of the reference sets."""
        return list(dict.fromkeys(note for arm in self.arms if arm.instead for note in arm.instead.notes))

    @property
    def fitted(self) -> dict[str, Any]:
        """For the end of a run: the constants that were fitted (how=optimal), by arm; nothing where none were."""
        found = {
            arm.label: arm.instead.fitted()[arm.heads.sha256]
            for arm in self.arms
            if arm.instead and arm.heads and arm.heads.sha256 in arm.instead.fitted()
        }
        return {"optimal_constants": found} if found else {}


def parse_arms(args: ArmOptions) -> list[ArmSpec]:
    """What --ablate asks for, less "none", with --how, --where and --alpha where an arm says nothing else.

    Raises:
        InputError: an arm has an unknown or malformed option, or is named twice.
    """
    given = args.ablate if isinstance(args.ablate, tuple) else (args.ablate,)
    specs = [_parse(text, args) for text in given if text != UNABLATED]
    labels: dict[str, str] = {}
    for spec in specs:
        if spec.label == UNABLATED:
            raise InputError(
                f"--ablate '{spec.text}' would be called '{UNABLATED}', as the unablated model is: rename the file."
            )
        if spec.label in labels:
            other = labels[spec.label]
            what = "is given twice" if other == spec.text else f"and '{other}' are one arm, {spec.label}"
            raise InputError(f"--ablate '{spec.text}' {what}: name each arm once.")
        labels[spec.label] = spec.text
    return specs


def ablation_arms(session: Session, args: AblationOptions, tasks: Collection[str] = ()) -> Arms:
    """The arms that the options ask for, the unablated model first; what takes the place of z is computed once a way.

    Args:
        session: the model, and the measured items, whose tasks are no reference.
        args: the arms, and what the reference pool is read with.
        tasks: further tasks that the model is run on.

    Raises:
        InputError: as `parse_arms`; an arm names no heads, or heads that do not exist; two arms ablate the same heads
            in the same way; there are too few reference items.
    """
    specs = parse_arms(args)
    if not specs:
        return Arms()
    instead: dict[tuple[Any, ...], Replacement] = {}
    reference: ReferenceSet | None = None
    arms, about, derived = [WHOLE], {}, {}
    seen: dict[tuple[Any, ...], str] = {}
    for spec in specs:
        heads = choose_heads(spec.heads, session.model, args, session.rng_for)
        same = (heads.sha256, replace(spec, text="", heads=""))
        if same in seen:
            raise InputError(
                f"--ablate '{spec.text}' and '{seen[same]}' ablate the same heads in the same way: leave out one."
            )
        seen[same] = spec.text
        way = (spec.how, spec.draws, spec.alpha if spec.how == "scale" else None)
        if way not in instead:
            settings = replace(args, alpha=spec.alpha, draws=spec.draws)
            instead[way] = replacement(session, settings, tasks, how=spec.how, reference=reference)
            reference = reference or instead[way].reference
        put = instead[way]
        put.require(spec.where)
        arms.append(Arm(spec.label, heads, put, spec.where))
        about[spec.label] = {
            **{"asked": spec.text, "heads": str(heads), "sha256": heads.sha256},
            **{"how": spec.how, "where": spec.where, "draws": put.draws},
            **({"alpha": spec.alpha} if spec.how == "scale" else {}),
            "reference": dict(put.about),
        }
        derived[spec.label] = {"heads_sha256": heads.sha256, "replacement_sha256": put.sha256}
    return Arms(tuple(arms), {"ablations": about}, {"ablations": derived})


Key = tuple[str, str]
"""Condition and candidate: what a question asks about."""


@dataclass(frozen=True)
class Group:
    """Questions of one item that are scored together: these of it, under each of these arms."""

    arms: tuple[Arm, ...]
    keys: tuple[Key, ...]

    def row_ids(self, item_id: str) -> tuple[str, ...]:
        """The ids of its rows."""
        return tuple(row_id(item_id, *key, arm.label) for arm in self.arms for key in self.keys)

    def build_queries(self, questions: Sequence[ScoringQuery]) -> list[ScoringQuery]:
        """The questions, given as those of the unablated model, under the arms; condition by condition.

        Raises:
            InputError: as `Arm.build_queries`.
        """
        under = [arm.build_queries(questions) for arm in self.arms]
        names = dict.fromkeys(condition for condition, _ in self.keys)
        return [
            scoring for name in names for asked in under for scoring in asked if scoring.condition == name
        ]


def grouped(arms: Sequence[Arm], keys: Sequence[Key]) -> list[Group]:
    """The questions of an item under every arm, in the groups in which they are scored.

    Those of the unablated model are by themselves, and so are those of an arm that acts on the prompt, which is run
    under it: their packed rows are the ones of a run of that arm alone, bit for bit. An arm that puts other values at
    every position of every question has a group a question: nothing is shared, and all of them would fill the memory.
    Arms that act at the action positions only leave the prompts as they are, and share them: condition by condition,
    so that neighbours have one prompt.
    """
    groups = []
    for arm in arms:
        if arm.shares == "arm":
            groups.append(Group((arm,), tuple(keys)))
        elif arm.shares == "nothing":
            groups += [Group((arm,), (key,)) for key in keys]
    sharing = tuple(arm for arm in arms if arm.shares == "prompts")
    return [*groups, Group(sharing, tuple(keys))] if sharing else groups


def _parse(text: str, args: ArmOptions) -> ArmSpec:
    """One --ablate.

    Raises:
        InputError: see `parse_arms`.
    """
    found = [(match[1], match[2]) for match in _OPTION.finditer(text)]
    heads = _OPTION.split(text)[0]
    if text != heads + "".join(f"@{key}={value}" for key, value in found):
        raise InputError(f"--ablate '{text}' has something after an option: write {FORM}.")
    said = dict(found)
    unknown = [key for key in said if key not in _KEYS]
    if unknown or len(said) < len(found) or not heads:
        what = (
            f"has no option '{unknown[0]}'"
            if unknown
            else "says an option twice"
            if heads
            else "names no heads"
        )
        raise InputError(f"--ablate '{text}' {what}: write {FORM}.")
    how, where = said.get("how", args.how), said.get("where", args.where)
    for key, value, known in (("how", how, METHODS), ("where", where, PLACES)):
        if value not in known:
            raise InputError(f"--ablate '{text}': '{value}' is no '{key}': choose from {', '.join(known)}.")
    if "alpha" in said and how != "scale":
        raise InputError(f"--ablate '{text}': alpha is the factor of how=scale, not of how={how}.")
    return ArmSpec(
        text,
        heads,
        how,
        where,
        _alpha(text, said.get("alpha"), args.alpha),
        _draws(text, said, how, args.draws),
    )


def _alpha(text: str, value: str | None, default: float) -> float:
    try:
        alpha = default if value is None else float(value)
    except ValueError:
        alpha = math.nan
    if not math.isfinite(alpha):
        raise InputError(f"--ablate '{text}': alpha is a number, not '{value}'.")
    return alpha


def _draws(text: str, said: Mapping[str, str], how: str, default: int) -> int:
    value = said.get("draws")
    if value is None:
        return default
    if how != "resample":
        raise InputError(f"--ablate '{text}': draws are of how=resample, not of how={how}.")
    if not value.isdecimal() or int(value) < 1:
        raise InputError(f"--ablate '{text}': draws is a whole number from 1, not '{value}'.")
    return int(value)


def _heads_label(word: str) -> str:
    """The word for heads as part of a label: top16, random3-16, not-top16, or heads by name; a file by its stem."""
    drawn = re.fullmatch(r"random(\d*):(.+)", word)
    if drawn:
        inner = re.sub(r"^top:(?=\d+$)", "", drawn[2])
        mark = "" if inner.isdecimal() and not drawn[1] else "-"
        return f"random{drawn[1]}{mark}{_heads_label(inner)}"
    if word.startswith("not:"):
        return f"not-{_heads_label(word.removeprefix('not:'))}"
    top = re.fullmatch(r"top:(\d+)(?:@(.+))?", word)
    if top:
        return f"top{top[1]}" + (f"-of-{Path(top[2]).stem}" if top[2] else "")
    if word.endswith(".json") or "/" in word:
        return Path(word).stem
    names = word.split(",")
    if len(names) <= _SHOWN_HEADS:
        return "+".join(names)
    return f"{names[0]}+{len(names) - 1}-{hashlib.sha256(word.encode()).hexdigest()[:6]}"
