"""`backfire placebo`: what must find nothing, beside what the instrument finds on the same items.

The same architecture with weights drawn anew, in which the trained model's heads and its own best are ablated and
noised; head scores permuted over heads; random heads of the same layers; an unrelated failed call; every head patched
with its own value; attention to padding knocked out. `probes.effects.placebo_checks` says what each must give, that a
dead instrument passes nothing, and what each would have found. Every effect is measured in every metric.
placebo.jsonl → placebo.csv; exit code 1 if one does not behave or cannot show anything, in --metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated

import numpy as np
import pandas as pd

from experiments.heads.ablation import METHODS, PlaceOptions, Replacement, replacement
from experiments.heads.control_sets import MatchedOptions, random_sets
from experiments.heads.ranking import ranking, score_heads
from experiments.mechanism.pairs import pair_runs, scores_under
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemContext, ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import Session, open_redrawn, open_session, require_out
from experiments.run.study import Flag, MetricOptions, Report, SessionOptions, not_negative, positive
from experiments.run.tables import frame_text
from mech.engine.engine import Engine
from mech.engine.queries import Query, Score
from mech.engine.sweep import score_edits, stacked
from mech.errors import InputError
from mech.head_scores.induction import SCORES, top_heads
from mech.heads import HeadSet
from mech.interventions.intervention import NOTHING, Edit, Intervention, knock_out_edges
from mech.patching.patch import all_heads, patch_heads, patch_in_full, patch_sets
from probes.effects.placebo_checks import RANDOM, SHUFFLED, placebo_table, value_name
from probes.items.item import Item
from probes.scoring.contrast import Contrast, contrast_of
from probes.scoring.record import padding_sources
from probes.scoring.score import build_queries, run_decision_point, score_item
from probes.stats.bootstrap import MIN_CLUSTERS

Values = dict[str, float]
OWN = "redrawn_own"
"""The part in which the redrawn model's own best heads are ablated."""


@dataclass(frozen=True, kw_only=True)
class PlaceboConfig(MetricOptions, SessionOptions, PlaceOptions, MatchedOptions):
    """What `backfire placebo` is given."""

    top: Annotated[int, Flag("how many heads, best first by --by, are ablated", positive)] = 16
    how: Annotated[str, Flag("what takes the place of their z", choices=METHODS)] = "mean"
    shuffles: Annotated[
        int, Flag("sets of as many heads by permuted scores; 19 at least for a p of 0.05", positive)
    ] = 20
    controls: Annotated[
        int, Flag("random sets with as many heads in each layer; 0 leaves that placebo out", not_negative)
    ] = 20


@dataclass(frozen=True)
class PlaceboUnit(ItemUnit):
    """A part of the study, and an item."""

    part: str


@dataclass(frozen=True, kw_only=True)
class PlaceboContext(ItemContext):
    """What the parts share; the placebo model is made when it is first needed.

    Attributes:
        sets: name → heads: the selected ones, those by permuted scores, random ones.
        with_what: what takes the place of z.
        kept_own: the placebo model's own best heads, as rows of an earlier run have them.
    """

    config: PlaceboConfig
    sets: Mapping[str, HeadSet]
    with_what: Replacement
    kept_own: str | None = None

    @cached_property
    def own(self) -> HeadSet:
        """The placebo model's own best heads, by its own scores on repeated random tokens."""
        by = self.config.by if self.config.by in SCORES else "prefix_matching"
        return top_heads(score_heads(self.redrawn[0].model, self.config.seed), self.config.top, by)

    @cached_property
    def redrawn(self) -> tuple[Session, Replacement]:
        """The same items on the model with weights drawn anew, and what replaces z there."""
        model = open_redrawn(self.config, self.config.seed, "placebo weights")
        here = self.session.engine
        engine = Engine(model, here.cache_dir, here.slow, here.forwards, here.memory)
        session = replace(self.session, engine=engine)
        return session, replacement(session, self.config)

    @cached_property
    def parts(self) -> Mapping[str, Callable[[Item], Values]]:
        """Name → what measures it on an item."""
        selected = self.sets["selected"]
        return {
            "whole": self.whole,
            **{
                name: partial(self.ablated, self.session, self.with_what, heads)
                for name, heads in self.sets.items()
            },
            "noised": lambda item: noised(self.session, item, {"selected": selected}),
            "self": partial(self_patches, self.session),
            "padding": partial(padding_cuts, self.session),
            "redrawn": lambda item: under(self.redrawn[0], item, ("pre", "neut")),
            "redrawn_selected": lambda item: self.ablated(*self.redrawn, selected, item),
            OWN: lambda item: self.ablated(*self.redrawn, self.own, item),
            "redrawn_noised": lambda item: noised(
                self.redrawn[0], item, {"selected": selected, "own": self.own}
            ),
        }

    def whole(self, item: Item) -> Values:
        """The unablated model, and the length of a×."""
        values = under(self.session, item, ("pre", "neut", "fail", "fail_unrelated"))
        [scoring] = build_queries(self.session.model, item, ["pre"], self.session.wording, ["failed"])
        return {**values, "n_tokens": float(len(scoring.query.action))}

    def ablated(self, session: Session, with_what: Replacement, heads: HeadSet, item: Item) -> Values:
        """A set of heads, ablated."""
        return under(session, item, ("pre", "neut"), with_what.fixed(heads, self.config.where))


def open_placebo(config: PlaceboConfig) -> PlaceboContext:
    """The session, the sets of heads, and what takes the place of their z.

    Raises:
        InputError: items of one task; or heads or references that cannot be had.
    """
    session = open_session(config, one_env=True)
    if len({item.task_id for item in session.items}) < 2:
        raise InputError("Placebos need items of two tasks at least: one task gives no interval.")
    scores, source = ranking(session.model, require_out(config), config.seed, config.by)
    sets = {"selected": top_heads(scores, config.top, config.by)}
    for index in range(config.shuffles):
        rng = session.rng_for(f"{SHUFFLED}/{index}")
        sets[f"{SHUFFLED}{index}"] = shuffled_heads(scores, config.by, sets["selected"], rng)
    drawn = random_sets(session.model, sets["selected"], config.controls, session.rng_for)
    for index, control in enumerate(drawn):
        sets[f"{RANDOM}{index}"] = control.heads
    put = replacement(session, config)
    put.require(config.where, for_all=True)
    recorded = {
        "head_scores": source,
        "sets": {name: str(heads) for name, heads in sets.items()},
        "mean_reference": dict(put.about),
    }
    hashes = {name: heads.sha256 for name, heads in sets.items()}
    return PlaceboContext(
        session,
        recorded=recorded,
        decided={"set_sha256": hashes, "mean_sha256": put.sha256},
        config=config,
        sets=sets,
        with_what=put,
    )


def prepare(context: PlaceboContext, folder: RunFolder) -> PlaceboContext:
    """With the placebo model's own heads, where rows have them."""
    rows = folder.rows("placebo").to_dict("records")
    return replace(context, kept_own=next((row["heads"] for row in rows if row["part"] == OWN), None))


def units(context: PlaceboContext) -> list[PlaceboUnit]:
    """Part by part, every item."""
    return [
        PlaceboUnit((f"{part}|{item.item_id}",), item, part)
        for part in context.parts
        for item in context.session.items
    ]


def measure(context: PlaceboContext, unit: PlaceboUnit) -> list[Row]:
    """The values of a part on an item."""
    item = unit.item
    keys = {"id": unit.row_ids[0], "part": unit.part, "item_id": item.item_id, "task_id": item.task_id}
    named = {"heads": str(context.own)} if unit.part == OWN else {}
    return [{**keys, **named, "values": context.parts[unit.part](item)}]


def report(context: PlaceboContext, tables: Tables) -> Report:
    """Every placebo in the metric that is shown, and which of them do not behave."""
    table, metric = tables["placebo"], context.config.metric
    mine = table[table["metric"] == metric]
    if mine.empty:
        raise InputError(f"No item has a reference action or a distractor: there is no {metric} to show.")
    shown = frame_text(mine.drop(columns=["metric", "threshold", "n"]), 4)
    lines = [f"in {metric}, all metrics in placebo.csv:", shown, verdict(mine)]
    return Report("\n".join(lines), ok=bool(mine["passed"].all()))


def verdict(table: pd.DataFrame) -> str:
    """Which placebos find what they must not, and which show nothing: too weak, or their counterpart finds nothing."""
    known = table["mde"].notna()
    wrong = table.loc[table["alive"] & known & ~table["behaves"], "what"].tolist()
    dead = table.loc[~table["alive"] & known, "what"].tolist()
    blind = table.loc[~known, "what"].tolist()
    weak = table[table["alive"] & table["behaves"] & known & ~table["powered"]]
    said = [f"does not behave: {', '.join(wrong)}"] if wrong else []
    if dead:
        said.append(f"shows nothing, as its counterpart on these items finds nothing: {', '.join(dead)}")
    if blind:
        said.append(
            f"cannot show anything (fewer than {MIN_CLUSTERS} clusters, or too few sets or items): {', '.join(blind)}"
        )
    for row in weak.itertuples():
        said.append(
            f"{row.what} has too little power: 80 % for effects of {row.mde:.3g} and more, its counterpart's is "
            f"{row.live:.3g}"
        )
    return (
        "\n".join(said)
        or "every placebo behaves, beside a live instrument, with power for half of what that finds"
    )


def shuffled_heads(scores: pd.DataFrame, by: str, selected: HeadSet, rng: np.random.Generator) -> HeadSet:
    """The top heads by a score that was permuted over all heads; a draw that gives the selected set is made again.

    Raises:
        InputError: all heads are selected, so that there is no other set.
    """
    if len(selected) >= len(scores):
        raise InputError(f"All {len(scores)} heads are ablated: there is no other set to compare with.")
    while True:
        shuffled = scores.assign(**{by: rng.permutation(scores[by].to_numpy())})
        heads = top_heads(shuffled, len(selected), by)
        if heads != selected:
            return heads


def under(
    session: Session, item: Item, conditions: tuple[str, ...], change: Intervention = NOTHING
) -> Values:
    """Condition → a× in every metric under an intervention (nats), named as `value_name` says."""
    contrast = contrast_of(session.model, item, session.wording)
    rows = score_item(session.engine, item, conditions, session.wording, contrast.candidates, change)
    values: Values = {}
    for name in conditions:
        values |= _in_metrics(name, contrast, scores_under(rows, name))
    return values


def _in_metrics(name: str, contrast: Contrast, scores: Mapping[str, Score]) -> Values:
    return {value_name(name, metric): value for metric, value in contrast.values(scores).items()}


def noised(session: Session, item: Item, sets: Mapping[str, HeadSet]) -> Values:
    """A× under neut, and with z of each set of heads at its action positions from pre, in every metric (nats)."""
    runs = pair_runs(session, item, ("pre", "neut"))
    scores: dict[str, dict[str, Score]] = {}
    for candidate, (before, after) in runs.runs.items():
        patched = {"neut": after.score, **patch_sets(session.engine, after, before, sets)}
        for name, score in patched.items():
            scores.setdefault(name, {})[candidate] = score
    values: Values = {}
    for name, of in scores.items():
        values |= _in_metrics(name, runs.contrast, of)
    return values


def self_patches(session: Session, item: Item) -> Values:
    """What patching a run with its own values changes, |nats|, beside patching it with another run's.

    `full` and `full_other`: all heads together, by full forwards, in which the hooks fired `fired` times; `run` and
    `other`: the largest of single heads, through the sweep. Nothing of `full` and `run` is skipped as equal.
    """
    model, engine = session.model, session.engine
    before, after = (run_decision_point(engine, item, name, session.wording) for name in ("pre", "neut"))
    own, across = (patch_in_full(model, run.query, after.query) for run in (after, before))
    engine.forwards.ran += 6
    z = stacked(after, model, "attn.hook_z")
    edits = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in all_heads(model)]
    found = {
        "run": (after, score_edits(engine, after, edits)),
        "other": (before, list(patch_heads(engine, before, after).values())),
    }
    return {
        "full": abs(own.patched.total - own.clean.total),
        "full_other": abs(across.patched.total - across.clean.total),
        "fired": float(own.fired),
        **{
            name: max(abs(score.total - recipient.score.total) for score in scores)
            for name, (recipient, scores) in found.items()
        },
    }


def padding_cuts(session: Session, item: Item) -> Values:
    """A× under neut_pad, as it is, and without all heads' attention to the call and to the padding (if any)."""
    model, engine = session.model, session.engine
    sources = padding_sources(engine, item, session.wording)
    if "padding" not in sources:
        return {"n_padding": 0.0}
    contrast = contrast_of(model, item, session.wording)
    asked = build_queries(model, item, ["neut_pad"], session.wording, contrast.candidates)
    changes = {
        "whole": NOTHING,
        **{kind: knock_out_edges(all_heads(model), at) for kind, at in sources.items()},
    }
    queries = [
        Query(scoring.query.prompt, scoring.query.action, change)
        for scoring in asked
        for change in changes.values()
    ]
    scores = iter(engine.score(queries, len(asked[0].query.prompt) - 1))
    found: dict[str, dict[str, Score]] = {kind: {} for kind in changes}
    for scoring in asked:
        for kind in changes:
            found[kind][scoring.candidate] = next(scores)
    values = {"n_padding": float(len(sources["padding"]))}
    for kind, each in found.items():
        values |= _in_metrics(kind, contrast, each)
    return values


def placebo_tables(context: PlaceboContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """placebo.csv, from all rows."""
    long = [
        {**{key: row[key] for key in ("part", "item_id", "task_id")}, "name": name, "value": value}
        for row in folder.rows("placebo").to_dict("records")
        for name, value in row["values"].items()
    ]
    session = context.session
    return {"placebo": placebo_table(session.clustered(pd.DataFrame(long)), session.rng_for)}


STUDY = ItemStudy(
    "placebo",
    "backfire placebo --limit 12 --where candidate --out runs/first",
    PlaceboConfig,
    rows="placebo",
    open=open_placebo,
    prepare=prepare,
    units=units,
    measure=measure,
    tables=placebo_tables,
    report=report,
    notes=lambda context, _: context.with_what.notes,
    extra=lambda context, _: {"redrawn_heads": context.kept_own or str(context.own)},
)
