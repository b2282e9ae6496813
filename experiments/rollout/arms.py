"""What is changed in a running agent: heads ablated or kept from failed calls, and random controls of both.

none            the unablated model
ablate          z of the chosen heads replaced or scaled (--how, --alpha), at all positions or, with --where candidate,
                at the last token of each prompt and at every generated one
knockout        the failed calls stay in the transcript; the chosen heads do not see their tokens from later positions
knockout-all    as knockout, in all heads
ablate-random   as many random heads of the same layers, --controls draws; knockout-random likewise
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from experiments.heads.ablation import AblationOptions, HowOptions, Replacement, replacement
from experiments.heads.reference_sets import ReferenceItemsOptions
from experiments.heads.spec import RankedOptions, choose_heads
from experiments.run.session import Session
from experiments.run.study import Flag, narrowed, positive
from mech.decoding.turn_spans import turn_span
from mech.errors import InputError
from mech.head_scores.controls import distinct_controls
from mech.heads import HeadSet
from mech.interventions.persistent import NOTHING_PERSISTENT, PersistentIntervention
from mech.patching.patch import all_heads

CHANGES = ("none", "ablate", "knockout", "knockout-all", "ablate-random", "knockout-random")


@dataclass(frozen=True, kw_only=True)
class ChangeOptions(HowOptions, ReferenceItemsOptions, RankedOptions):
    """What is changed in the agent."""

    change: Annotated[str, Flag(f"all, or a list out of {', '.join(CHANGES)}")] = "none"
    heads: Annotated[str, Flag("top:K by score, heads by name, a head list, not:… or random:…")] = "top:16"
    controls: Annotated[
        int, Flag("random layer-matched sets for ablate-random and knockout-random", positive)
    ] = 1


_RECORD = (
    {"role": "user", "content": "Look up Ada."},
    {"role": "assistant", "content": "lookup(name='Ada')"},
    {"role": "user", "content": "Result: no Ada"},
)


@dataclass(frozen=True, eq=False)
class Change:
    """A persistent intervention under its name, and the heads it acts on."""

    name: str
    persistent: PersistentIntervention
    heads: HeadSet | None = None


@dataclass(frozen=True, eq=False)
class Changes:
    """All changes of a study; `about` is recorded, `derived` decides rows (see `session.open_run`)."""

    changes: tuple[Change, ...]
    about: Mapping[str, Any] = field(default_factory=dict)
    derived: Mapping[str, Any] = field(default_factory=dict)


def parse_changes(text: str) -> tuple[str, ...]:
    """Read `none,ablate,knockout`, or `all`; each name once. Raises InputError for an unknown name."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    names = [name for part in names for name in (CHANGES if part == "all" else (part,))]
    unknown = [name for name in names if name not in CHANGES]
    if unknown or not names:
        what = f"There is no change '{unknown[0]}'" if unknown else "The list of changes is empty"
        raise InputError(f"{what}: choose from all, {', '.join(CHANGES)}.")
    return tuple(dict.fromkeys(names))


def with_pool(config: Any, **more: Any) -> AblationOptions:
    """A rollout study's settings as `replacement` takes them: reference items are of the tasks that agents act in."""
    return replace(narrowed(config, AblationOptions), templates="paper", **more)


def changes(session: Session, config: ChangeOptions, tasks: Collection[str] = ()) -> Changes:
    """What --change, --heads, --how, --where, --alpha and --controls ask for.

    Args:
        session: the model, and no items.
        config: the options, and those that reference items are read with (env, problems, items).
        tasks: those that are rolled out; no item of theirs is a reference.

    Raises:
        InputError: the word names no heads, or they do not exist, or the template does not write a turn as it is.
    """
    names = parse_changes(config.change)
    model = session.model
    if any(name.startswith("knockout") for name in names):
        turn_span(model, _RECORD, 1)  # a template that hides nothing is found out before hours of rollouts
    sets: dict[str, HeadSet] = {}
    if set(names) - {"none", "knockout-all"}:
        sets["selected"] = choose_heads(config.heads, model, config, session.rng_for)
    if {"ablate-random", "knockout-random"} & set(names):
        drawn = distinct_controls(
            sets["selected"], model.n_layers, model.n_heads, config.controls, session.rng_for
        )
        sets |= {f"random{draw}": one.heads for draw, one in enumerate(drawn)}
    ablates = bool({"ablate", "ablate-random"} & set(names))
    instead = replacement(session, with_pool(config), tasks) if ablates else Replacement("zero")
    found: list[Change] = []
    for name in names:
        how, _, which = name.partition("-")
        if name == "none":
            found.append(Change("none", NOTHING_PERSISTENT))
        elif name == "knockout-all":
            found.append(Change(name, PersistentIntervention(knockout_heads=all_heads(model))))
        else:
            labels = [each for each in sets if each.startswith("random")] if which else ["selected"]
            for label in labels:
                heads = sets[label]
                edits = (
                    PersistentIntervention(instead.fixed(heads, config.where))
                    if how == "ablate"
                    else PersistentIntervention(knockout_heads=heads)
                )
                found.append(Change(f"{how}-{label}" if which else how, edits, heads))
    about = {
        "sets": {label: str(heads) for label, heads in sets.items()},
        "reference": dict(instead.about),
    }
    derived = {
        "set_sha256": {label: heads.sha256 for label, heads in sets.items()},
        "replacement_sha256": instead.sha256,
    }
    return Changes(tuple(found), about, derived)
