"""`backfire knockout`: attention from the action positions to the failed call in the record is knocked out.

The most direct test of "the string being there": the call stays in the transcript, and some heads cannot see it from
where it would be repeated. All heads, the best k by score, as many random heads of the same layers (and other kinds of
controls); and for each, as many tokens elsewhere. The failed call and the reference are scored under every knockout, so
that every metric has its own share of L(to) − L(from). Where FROM has a record too, it is TO's that is knocked out. One
folder holds several pairs of conditions. knockout.jsonl → knockout.csv.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pandas as pd

from experiments.heads.control_sets import UNABLATED, NamedSet, Sets
from experiments.mechanism.joint_controls import DIRECTION, RankedControls, joint_sets
from experiments.mechanism.pairs import (
    DEFAULT,
    PairContext,
    PairSweepOptions,
    pair_of,
    references_said,
    require_conditions,
)
from experiments.run.left_out import noted, of_candidates
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import Session, open_session
from experiments.run.study import Flag, Report, positive
from experiments.run.tables import frame_text
from mech.engine.queries import Query
from mech.errors import InputError
from mech.interventions.intervention import NOTHING, Intervention, knock_out_edges
from mech.patching.patch import all_heads
from probes.effects.dose import against_controls, share_removed
from probes.items.item import Item
from probes.scoring.contrast import FORMS, contrast_of
from probes.scoring.metric_sums import metrics_of, sums_of, token_counts
from probes.scoring.record import SOURCES, edge_sources
from probes.scoring.score import build_queries, system_length
from probes.stats.bootstrap import RngFactory
from probes.stats.families import corrected, family_lines


@dataclass(frozen=True, kw_only=True)
class KnockoutConfig(PairSweepOptions, RankedControls):
    """What `backfire knockout` is given."""

    controls: Annotated[int, Flag("control sets of each drawn kind for each size", positive)] = 5
    control_kinds: Annotated[
        str, Flag("list of kinds of controls, as `backfire joint` has them, less direction")
    ] = "random"


@dataclass(frozen=True, kw_only=True)
class KnockoutContext(PairContext):
    """The head sets by label; `everything` has all items asked for."""

    everything: Session
    sets: Sets


@dataclass(frozen=True)
class KnockoutUnit(ItemUnit):
    """An item, and by kind of source the positions that are knocked out."""

    sources: Mapping[str, tuple[int, ...]]


def open_knockout(config: KnockoutConfig) -> KnockoutContext:
    """The session and the head sets.

    Raises:
        InputError: controls of kind `direction`, or conditions or sets that cannot be had.
    """
    if DIRECTION in config.counts:
        raise InputError(
            "A knockout moves no z, so that nothing can be moved in a random direction: leave direction out."
        )
    pair = pair_of(config)
    everything = open_session(config, one_env=True)
    session = require_conditions(everything, pair)
    session = noted(session, of_candidates(session.items))
    ranked, about_sets = joint_sets(everything, config)
    everyone = all_heads(session.model)
    sets: Sets = {"all": NamedSet("all", "selected", everyone, k=len(everyone)), **ranked}
    hashes = {name: one.heads.sha256 for name, one in sets.items()}
    return KnockoutContext(
        session,
        recorded=about_sets,
        decided={"set_sha256": hashes},
        study="knockout",
        config=config,
        everything=everything,
        sets=sets,
    )


def row_id(item: Item, pair: tuple[str, str], *parts: str) -> str:
    """The id of a row; the pair is named where it is not pre → neut."""
    named = () if pair == DEFAULT else (f"{pair[0]}>{pair[1]}",)
    return "|".join((item.item_id, *named, *parts))


def units(context: KnockoutContext) -> list[KnockoutUnit]:
    """A unit an item, of a row a set of heads and kind of source, and one of the clean run: they share the prompt."""
    session, found = context.session, []
    for item in session.items:
        known = edge_sources(session.engine, item, context.pair[1], session.wording)
        sources = {kind: known[kind] for kind in SOURCES if kind in known}
        parts = [*((kind, name) for kind in sources for name in context.sets), ("none",)]
        found.append(KnockoutUnit(tuple(row_id(item, context.pair, *one) for one in parts), item, sources))
    return found


def measure(context: KnockoutContext, unit: KnockoutUnit) -> list[Row]:
    """One row a set and kind of source: `terms` (nats) under the knockout, `before_terms` under FROM.

    `logprob` and `before` are of the failed call alone. The last row is the clean run. A knockout acts at the action
    positions alone, so the whole prompt before them is one prefix cache for all of them.
    """
    session, item, (low, high) = context.session, unit.item, context.pair
    changes: dict[tuple[str, str], Intervention] = {
        (kind, name): knock_out_edges(one.heads, places)
        for kind, places in unit.sources.items()
        for name, one in context.sets.items()
    }
    changes["none", "none"] = NOTHING
    contrast = contrast_of(session.model, item, session.wording)
    found: list[dict[str, float]] = [{} for _ in changes]
    start: dict[str, float] = {}
    tokens = {}
    for candidate in contrast.candidates:
        [after], [before] = (
            build_queries(session.model, item, [condition], session.wording, [candidate])
            for condition in (high, low)
        )
        prompt, action = after.query.prompt, after.query.action
        tokens[candidate] = len(action)
        queries = [Query(prompt, action, change) for change in changes.values()]
        scores = session.engine.score(queries, len(prompt) - 1)
        for terms, score in zip(found, scores, strict=True):
            terms.update(sums_of(contrast, candidate, score))
        [score] = session.engine.score([before.query], system_length(session.model, item))
        start.update(sums_of(contrast, candidate, score))
    rows = []
    for name_of_row, (kind, name), terms in zip(unit.row_ids, changes, found, strict=True):
        one = context.sets.get(name, UNABLATED)
        rows.append(
            {
                **{"id": name_of_row, "item_id": item.item_id, "task_id": item.task_id},
                **{"from": low, "to": high, "sources": kind, "set": name, "kind": one.kind},
                **{"k": one.k, "n_cut": len(unit.sources.get(kind, ()))},
                **{"before": start["failed"], "logprob": terms["failed"]},
                **{"references": contrast.references_are, "n_tokens": token_counts(contrast, tokens)},
                **{"terms": terms, "before_terms": start},
            }
        )
    return rows


def knockout_tables(context: KnockoutContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """knockout.csv: the share of L(to) − L(from) that each knockout removes, by pair, metric and kind of source.

    p: of a selected set among the random sets of its size, as `probes.effects.dose.against_controls`.
    """
    session = context.everything
    rows = session.clustered(folder.rows("knockout"))
    tables = []
    for pair, of_pair in rows.groupby(["from", "to"], sort=False):
        for metric, part in by_metric(of_pair).items():
            for kind in [one for one in SOURCES if one in set(part["sources"])]:
                of_kind = part[part["sources"] == kind]
                clean = part[(part["kind"] == "none") & part["item_id"].isin(of_kind["item_id"])]
                both = pd.concat([clean, of_kind], ignore_index=True)
                table = share_removed(both, _streams(session, pair, kind))
                beside = against_controls(table)
                p = beside[beside["control"] == "random"].set_index("set")["p"]
                named = {"from": pair[0], "to": pair[1], "metric": metric, "sources": kind}
                tables.append(table.assign(p=table["set"].map(p), **named))
    table = pd.concat(tables, ignore_index=True)
    first = ["from", "to", "metric", "sources"]
    table = table[[*first, *[name for name in table.columns if name not in first]]]
    return {"knockout": corrected(table, "knockout")}


def by_metric(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Metric → rows of the items that have it, with `value`: the metric under the knockout minus that under FROM."""
    found = [
        metrics_of(lengths, {term: value - start[term] for term, value in terms.items()})
        for terms, start, lengths in zip(rows["terms"], rows["before_terms"], rows["n_tokens"], strict=True)
    ]
    tables = {}
    for metric in FORMS:
        has = [metric in values for values in found]
        if any(has):
            values = [values[metric] for values in found if metric in values]
            tables[metric] = rows[has].assign(measure="copy", value=values)
    return tables


def report(context: KnockoutContext, tables: Tables) -> Report:
    """Shares of the selected sets, and of the controls where the call itself is knocked out."""
    table = context.of_pair(tables["knockout"])
    own = table[table["metric"] == context.metric]
    shown = own[(own["kind"] == "selected") | (own["sources"] == "record")]
    columns = ["sources", "set", "kind", "k", "share", "ci_lo", "ci_hi", "effect_nats", "p", "p_holm", "n"]
    title = f"{context.pair[0]} → {context.pair[1]}, {context.metric}"
    return Report("\n".join([title, frame_text(shown[columns]), *family_lines(own, "knockout")]))


def _streams(session: Session, pair: tuple[str, str], kind: str) -> RngFactory:
    named = kind if pair == DEFAULT else f"{pair[0]}>{pair[1]}/{kind}"
    return session.streams(f"knockout/{named}")


STUDY = ItemStudy(
    "knockout",
    "backfire knockout --limit 8 --k 8,16 --controls 3 --out runs/first",
    KnockoutConfig,
    rows="knockout",
    open=open_knockout,
    units=units,
    measure=measure,
    tables=knockout_tables,
    report=report,
    notes=references_said,
)
