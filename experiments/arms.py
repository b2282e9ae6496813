"""Ablation arms: several ablations, and the whole model, as conditions of one study in one run folder.

    --ablate top:16 --ablate random:16 --ablate top:16@how=resample

An arm is HEADS[@how=…][@where=…][@alpha=…][@draws=…]: heads as `head_choice` names them, then what differs from --how,
--where and --alpha. The whole model is always the first arm, under the label "none". A label is made of what the arm
is, never of its place in the command: top16, random16, random3-16, not-top16, top16@resample, top16@zero@candidate;
it names the arm in the column `ablation`, and in the ids of its rows.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.ablating import ALPHA, HOW, METHODS, WHERE, Replacement, replacement
from experiments.head_choice import choose_heads
from experiments.session import Session
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions import NOTHING, Intervention
from probes.layout import UNABLATED
from probes.scoring import Ask

PLACES = WHERE.choices or ()
_OPTION = re.compile(r"@([A-Za-z_-]+)=([^@]*)")
_KEYS = ("how", "where", "alpha", "draws")
FORM = "HEADS[@how=…][@where=…][@alpha=…][@draws=…], such as top:16@how=resample"
_SHOWN_HEADS = 3  # a label spells out so many heads


@dataclass(frozen=True)
class ArmSpec:
    """What one --ablate says: the word for the heads, and how they are ablated; `draws` None: as many as usual."""

    text: str
    heads: str
    how: str
    where: str
    alpha: float
    draws: int | None = None

    @property
    def label(self) -> str:
        """What the arm is, in short: heads, then what is not the package's usual (the mean, at all positions)."""
        parts = [_heads_label(self.heads)]
        if self.how != HOW.default:
            parts.append(f"{self.how}{self.alpha:g}" if self.how == "scale" else self.how)
        if self.where != WHERE.default:
            parts.append(self.where)
        if self.draws is not None:
            parts.append(f"draws{self.draws}")
        return "@".join(parts)


@dataclass(frozen=True, eq=False)
class Arm:
    """One arm: its label, and the interventions (one, or one a draw) that a question is asked under."""

    label: str
    interventions: Callable[[Ask], Sequence[Intervention]]

    def asks(self, questions: Sequence[Ask]) -> list[Ask]:
        """The questions of the whole model, under this arm."""
        if self.label == UNABLATED:
            return list(questions)
        return [ask.under(self.label, self.interventions(ask)) for ask in questions]


WHOLE = Arm(UNABLATED, lambda _: [NOTHING])


@dataclass(frozen=True, eq=False)
class Arms:
    """The arms of a study, the whole model first; `about` and `derived` as `session.open_run` takes them."""

    arms: tuple[Arm, ...] = (WHOLE,)
    about: Mapping[str, Any] = field(default_factory=dict)
    derived: Mapping[str, Any] = field(default_factory=dict)

    @property
    def labels(self) -> list[str]:
        """The labels, in the order given."""
        return [arm.label for arm in self.arms]


def parse_arms(args: argparse.Namespace) -> list[ArmSpec]:
    """What --ablate asks for, less "none", with --how, --where and --alpha where an arm says nothing else.

    Raises:
        InputError: an arm has an unknown or malformed option, or is named twice.
    """
    given = args.ablate if isinstance(args.ablate, tuple) else (args.ablate,)
    specs = [_parse(text, args) for text in given if text != UNABLATED]
    labels: dict[str, str] = {}
    for spec in specs:
        if spec.label in labels:
            other = labels[spec.label]
            what = "is given twice" if other == spec.text else f"and '{other}' are one arm, {spec.label}"
            raise InputError(f"--ablate '{spec.text}' {what}: name each arm once.")
        labels[spec.label] = spec.text
    return specs


def ablation_arms(session: Session, args: argparse.Namespace) -> Arms:
    """The arms that the options ask for, the whole model first; what takes the place of z is computed once for each way.

    Raises:
        InputError: as `parse_arms`; the heads of an arm cannot be told or do not exist; two arms ablate the same heads
            in the same way; there are too few reference items.
    """
    specs = parse_arms(args)
    if not specs:
        return Arms()
    instead: dict[tuple[str, int | None], Replacement] = {}
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
        settings = argparse.Namespace(**{**vars(args), **_settings(spec)})
        way = (spec.how, spec.draws)
        if way not in instead:
            instead[way] = replacement(session, settings)
        arms.append(_arm(spec.label, heads, instead[way], settings))
        reference = instead[way].about
        about[spec.label] = {
            **{"asked": spec.text, "heads": str(heads), "sha256": heads.sha256},
            **_settings(spec),
            "reference": dict(reference),
        }
        derived[spec.label] = {"heads_sha256": heads.sha256, "replacement_sha256": instead[way].sha256}
    return Arms(tuple(arms), {"ablations": about}, {"ablations": derived})


def _settings(spec: ArmSpec) -> dict[str, Any]:
    """What of an arm is set: how and where, alpha where it is used, draws where they are given."""
    found: dict[str, Any] = {"how": spec.how, "where": spec.where, "alpha": spec.alpha}
    return found if spec.draws is None else {**found, "draws": spec.draws}


def _arm(label: str, heads: HeadSet, instead: Replacement, settings: argparse.Namespace) -> Arm:
    change = instead.intervention(heads, settings)
    return Arm(label, lambda _: [change])


def grouped(arms: Sequence[Arm], questions: Sequence[Ask]) -> Iterator[list[Ask]]:
    """The questions of an item under every arm, in the groups in which they are scored.

    The whole model's are by themselves, and so are those of an arm that acts on the prompt, which is run under it:
    their packed rows are the ones of a run of that arm alone, bit for bit. Arms that act at the action positions only
    leave the prompts as they are, and share them: condition by condition, so that neighbours have one prompt.
    """
    sharing: list[list[Ask]] = []
    for arm in arms:
        asked = arm.asks(questions)
        if arm.label != UNABLATED and all(map(_at_action, asked)):
            sharing.append(asked)
        else:
            yield asked
    if sharing:
        names = dict.fromkeys(ask.condition for ask in questions)
        yield [ask for name in names for asked in sharing for ask in asked if ask.condition == name]


def _at_action(ask: Ask) -> bool:
    """Whether a question is asked under changes at the action positions only."""
    return all(edit.where == "candidate" for query in ask.queries for edit in query.intervention.edits)


def _parse(text: str, args: argparse.Namespace) -> ArmSpec:
    """One --ablate.

    Raises:
        InputError: see `parse_arms`.
    """
    found = [(match[1], match[2]) for match in _OPTION.finditer(text)]
    heads = _OPTION.split(text)[0]
    if text != heads + "".join(f"@{key}={value}" for key, value in found):
        raise InputError(f"--ablate '{text}' has something behind an option: write {FORM}.")
    said = dict(found)
    unknown = [key for key in said if key not in _KEYS]
    if unknown or len(said) < len(found) or not heads:
        what = f"has no option '{unknown[0]}'" if unknown else "says an option twice" if heads else "names no heads"
        raise InputError(f"--ablate '{text}' {what}: write {FORM}.")
    how, where = said.get("how", args.how), said.get("where", args.where)
    for key, value, known in (("how", how, METHODS), ("where", where, PLACES)):
        if value not in known:
            raise InputError(f"--ablate '{text}': '{value}' is no '{key}': choose from {', '.join(known)}.")
    if "alpha" in said and how != "scale":
        raise InputError(f"--ablate '{text}': alpha is the factor of how=scale, not of how={how}.")
    return ArmSpec(text, heads, how, where, _alpha(text, said.get("alpha"), args.alpha), _draws(text, said, how))


def _alpha(text: str, value: str | None, default: float) -> float:
    try:
        alpha = default if value is None else float(value)
    except ValueError:
        alpha = math.nan
    if not math.isfinite(alpha):
        raise InputError(f"--ablate '{text}': alpha is a number, not '{value}'.")
    return alpha


def _draws(text: str, said: Mapping[str, str], how: str) -> int | None:
    value = said.get("draws")
    if value is None:
        return None
    if how != "resample":
        raise InputError(f"--ablate '{text}': draws are of how=resample, not of how={how}.")
    if not value.isdecimal() or int(value) < 1:
        raise InputError(f"--ablate '{text}': draws is a whole number from 1, not '{value}'.")
    return int(value)


def _heads_label(word: str) -> str:
    """The word for heads as part of a label: top16, random16, random3-16, not-top16, or heads by name; a file by its stem."""
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
