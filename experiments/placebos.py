"""`backfire placebo`: what must find nothing, beside what the instrument finds on the same items.

The same architecture with weights drawn anew; head scores permuted over heads; an unrelated failed call; every head
patched with its own value; attention cut to words that carry nothing. `probes.placebo_checks` says what each must
give, and that a dead instrument passes nothing. placebos.jsonl → placebos.csv; exit code 1 if one does not behave.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd

from experiments.ablating import ALPHA, BY, HOW, REFERENCE, WHERE, Replacement, replacement
from experiments.find_heads import ranking
from experiments.options import ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study, positive
from experiments.progress import progress
from experiments.records import RunFolder
from experiments.session import Session, about_items, open_redrawn, open_run, open_session
from experiments.tables import frame_text, meter_text
from mech.changes import stacked, sweep
from mech.engine import Engine
from mech.errors import InputError
from mech.heads import HeadSet
from mech.induction import top_heads
from mech.interventions import NOTHING, Edit, Intervention, cut_edges
from mech.patching import all_heads, patch_heads, patch_in_full
from mech.queries import Query
from probes.items import Item
from probes.placebo_checks import SHUFFLED, placebo_table
from probes.record import padding_sources
from probes.scoring import asks, decision_run, score_item

TOP = Option("top", positive, 16, "how many heads, best first by --by, are taken out")
SHUFFLES = Option(
    "shuffles", positive, 20, "sets of as many heads by permuted scores; 19 at least for a p of 0.05"
)
Values = dict[str, float]


@dataclass(frozen=True)
class Placebos:
    """What the parts share: the session, the sets of heads, and the placebo model, made when it is first needed."""

    session: Session
    args: argparse.Namespace
    sets: Mapping[str, HeadSet]
    with_what: Replacement

    @cached_property
    def redrawn(self) -> tuple[Session, Replacement]:
        """The same items on the model with weights drawn anew, and what replaces z there."""
        model = open_redrawn(self.args, "placebo weights")
        here = self.session.engine
        engine = Engine(model, here.cache_dir, here.slow, here.meter)
        session = replace(self.session, engine=engine)
        return session, replacement(session, self.args)

    def parts(self) -> Iterator[tuple[str, Callable[[Item], Values]]]:
        """Name → what measures it on an item."""
        yield "whole", self.whole
        for name, heads in self.sets.items():
            yield name, partial(self.ablated, self.session, self.with_what, heads)
        yield "self", partial(self_patches, self.session)
        yield "padding", partial(padding_cuts, self.session)
        yield "redrawn", lambda item: logprobs(self.redrawn[0], item, ("pre", "neut"))
        yield "redrawn_selected", lambda item: self.ablated(*self.redrawn, self.sets["selected"], item)

    def whole(self, item: Item) -> Values:
        """The whole model, and the length of a×."""
        values = logprobs(self.session, item, ("pre", "neut", "fail", "fail_unrelated"))
        [ask] = asks(self.session.model, item, ["pre"], self.session.wording, ["failed"])
        return {**values, "n_tokens": float(len(ask.query.action))}

    def ablated(self, session: Session, with_what: Replacement, heads: HeadSet, item: Item) -> Values:
        """A set of heads taken out."""
        return logprobs(session, item, ("pre", "neut"), with_what.intervention(heads, self.args))


def run(args: argparse.Namespace) -> Report:
    """Measure every part on every item, then judge."""
    session = open_session(args, one_env=True)
    if len({item.task_id for item in session.items}) < 2:
        raise InputError("Placebos need items of two tasks at least: one task gives no interval.")
    scores, source = ranking(session.model, args.out, args.seed, args.by)
    sets = {"selected": top_heads(scores, args.top, args.by)}
    for index in range(args.shuffles):
        rng = session.rng_for(f"{SHUFFLED}/{index}")
        sets[f"{SHUFFLED}{index}"] = shuffled_heads(scores, args.by, sets["selected"], rng)
    placebos = Placebos(session, args, sets, replacement(session, args))
    about = {
        **about_items(session),
        "head_scores": source,
        "sets": {name: str(heads) for name, heads in sets.items()},
        "mean_reference": dict(placebos.with_what.about),
    }
    derived = {
        "set_sha256": {name: heads.sha256 for name, heads in sets.items()},
        "mean_sha256": placebos.with_what.sha256,
    }
    with open_run(STUDY, args, session.model, about, derived) as folder:
        units = [(part, measure, item) for part, measure in placebos.parts() for item in session.items]
        for part, measure, item in progress(units, len(units), "placebo", args.quiet):
            row_id = f"{part}|{item.item_id}"
            if row_id not in folder.done_ids("placebos"):
                keys = {"id": row_id, "part": part, "item_id": item.item_id, "task_id": item.task_id}
                folder.append("placebos", {**keys, "values": measure(item)})
        table = judged(folder, session)
        meter = session.engine.meter
        folder.finish({"forwards_run": meter.ran, "forwards_saved": meter.saved})
    shown = table.drop(columns=["threshold", "n", "n_clusters"])
    said = verdict(table)
    text = "\n".join(
        [frame_text(shown, 4), said, meter_text(meter.ran, meter.saved), f"written to {args.out}"]
    )
    return Report(text, ok=bool(table["passed"].all()))


def verdict(table: pd.DataFrame) -> str:
    """Which placebos find what they must not, and which show nothing because their counterpart does not either."""
    dead = table.loc[~table["alive"], "what"].tolist()
    wrong = table.loc[table["alive"] & ~table["passed"], "what"].tolist()
    said = [f"does not behave: {', '.join(wrong)}"] if wrong else []
    if dead:
        said.append(f"shows nothing, as its counterpart on these items finds nothing: {', '.join(dead)}")
    return "\n".join(said) or "every placebo behaves, beside a live instrument"


def shuffled_heads(scores: pd.DataFrame, by: str, selected: HeadSet, rng: np.random.Generator) -> HeadSet:
    """The top heads by a score that was permuted over all heads; a draw that gives the selected set is made again.

    Raises:
        InputError: all heads are selected, so that there is no other set.
    """
    if len(selected) >= len(scores):
        raise InputError(f"All {len(scores)} heads are taken out: there is no other set to compare with.")
    while True:
        shuffled = scores.assign(**{by: rng.permutation(scores[by].to_numpy())})
        heads = top_heads(shuffled, len(selected), by)
        if heads != selected:
            return heads


def logprobs(
    session: Session, item: Item, conditions: tuple[str, ...], change: Intervention = NOTHING
) -> Values:
    """Condition → log p(a×) (nats) under an intervention."""
    rows = score_item(session.engine, item, conditions, session.wording, ["failed"], change)
    return {row["condition"]: float(row["logprob"]) for row in rows}


def self_patches(session: Session, item: Item) -> Values:
    """What patching a run with its own values changes, |nats|, beside patching it with another run's.

    `full` and `full_other`: all heads together, by full forwards, in which the hooks fired `fired` times; `run` and
    `other`: the largest of single heads, through the sweep. Nothing of `full` and `run` is skipped as equal.
    """
    model, engine = session.model, session.engine
    before, after = (decision_run(engine, item, name, session.wording) for name in ("pre", "neut"))
    own, across = (patch_in_full(model, run.query, after.query) for run in (after, before))
    engine.meter.ran += 6
    z = stacked(after, model, "attn.hook_z")
    edits = [Edit("z", h.layer, h.head, "candidate", z[h.layer, :, h.head].clone()) for h in all_heads(model)]
    found = {
        "run": (after, sweep(engine, after, edits)),
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
    """Log p(a×) under neut_pad, uncut, and with all heads' attention cut to the call and to the padding (if any)."""
    model, engine = session.model, session.engine
    sources = padding_sources(engine, item, session.wording)
    if "padding" not in sources:
        return {"n_padding": 0.0}
    [ask] = asks(model, item, ["neut_pad"], session.wording, ["failed"])
    prompt, action = ask.query.prompt, ask.query.action
    changes = {"whole": NOTHING, **{kind: cut_edges(all_heads(model), at) for kind, at in sources.items()}}
    queries = [Query(prompt, action, change) for change in changes.values()]
    scores = engine.score(queries, len(prompt) - 1)
    values = {kind: score.total for kind, score in zip(changes, scores, strict=True)}
    return {**values, "n_padding": float(len(sources["padding"]))}


def judged(folder: RunFolder, session: Session) -> pd.DataFrame:
    """placebos.csv, from all rows."""
    long = [
        {
            "part": row["part"],
            "item_id": row["item_id"],
            "task_id": row["task_id"],
            "name": name,
            "value": value,
        }
        for row in folder.rows("placebos").to_dict("records")
        for name, value in row["values"].items()
    ]
    table = placebo_table(pd.DataFrame(long), session.rng_for)
    folder.write_table("placebos", table)
    return table


STUDY = Study(
    "placebo",
    "what must find nothing: redrawn weights, shuffled heads, an unrelated call, self-patches, padding",
    "backfire placebo --limit 4 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, TOP, BY, HOW, WHERE, ALPHA, REFERENCE, SHUFFLES, *RUNNING),
    run,
)
