"""`backfire patch --screen attribution:N`: one backward pass an item picks the heads that are patched exactly.

Estimates of z (`mech.patching.attribution`, one step) on every metric are kept item by item in patch_estimates.jsonl
and averaged over items, direction by direction; the N heads of largest |mean| on --metric are patched on all items.
patch_estimates.csv has every head, and whether it was patched. A screen is no result: what it can miss is reported
with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from experiments.mechanism.pairs import of_metric, row_id
from experiments.mechanism.patch_tables import Group
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder, read_run
from experiments.run.session import Session
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.patching.attribution import Attribution
from mech.patching.patch import sides
from probes.effects.attribution import ATTRIBUTION, attribute_sums, miss_sentence, misses, screened
from probes.scoring.contrast import contrast_of
from probes.scoring.metric_sums import by_metric, metrics_by_part, token_counts
from probes.scoring.pair import PatchTask

NO_SCREEN = "all"


@dataclass(frozen=True)
class Screen:
    """Which heads are patched alone in each direction (None: every part), under which name, and what is said of it."""

    name: str
    heads: Mapping[str, HeadSet | None]
    notes: tuple[str, ...] = ()


def no_screen(directions: Sequence[str]) -> Screen:
    """Everything is patched."""
    return Screen(NO_SCREEN, dict.fromkeys(directions))


def parse_screen(text: str, group: Group) -> int | None:
    """The N of attribution:N, None for all.

    Raises:
        InputError: anything else, or a site or place that is not screened.
    """
    if text == NO_SCREEN:
        return None
    found = re.fullmatch(r"attribution:(\d+)", text)
    if found is None or int(found[1]) < 1:
        raise InputError(f"'{text}' is not a screen: write all or attribution:N, such as attribution:40.")
    if group[:2] != ("z", "candidate"):
        raise InputError("Only z at the action positions is screened by attribution: leave out --screen.")
    return int(found[1])


def run_screen(
    folder: RunFolder,
    session: Session,
    group: Group,
    directions: Sequence[str],
    size: int,
    metric: str,
    quiet: bool,
) -> Screen:
    """Estimate on every item what is not estimated yet, and pick each direction's heads by the metric.

    Raises:
        InputError: the metric is defined for no item, or there are fewer heads than the screen keeps.
    """
    for item in progress(session.items, len(session.items), "estimate", quiet):
        done = folder.done_ids("patch_estimates")
        todo = [name for name in directions if row_id(item, group[2:], name) not in done]
        if todo:
            contrast = contrast_of(session.model, item, session.wording)
            tasks = {
                candidate: PatchTask.of(session.engine, item, group, session.wording, candidate)
                for candidate in contrast.candidates
            }
            lengths = {candidate: len(task.low.query.action) for candidate, task in tasks.items()}
            rows = []
            for direction in todo:
                values: dict[str, dict[str, float]] = {}
                for candidate, task in tasks.items():
                    recipient, donor, _ = sides(task.low, task.high, direction)
                    found = attribute_sums(
                        session.engine, contrast, candidate, recipient, donor, direction, sites=("z",)
                    )
                    for name, one in found.items():
                        values[name] = {str(head): value for head, value in one.heads.items()}
                about = {"item_id": item.item_id, "task_id": item.task_id, "direction": direction}
                pair = {"from": group[2], "to": group[3]}
                counts = {"n_tokens": token_counts(contrast, lengths)}
                rows.append(
                    {"id": row_id(item, group[2:], direction), **about, **pair, **counts, "heads": values}
                )
            folder.append_all("patch_estimates", rows)
    table = pooled(folder.rows("patch_estimates"))
    here = of_metric(table[(table["from"] == group[2]) & (table["to"] == group[3])], metric)
    chosen: dict[str, HeadSet | None] = {}
    notes = []
    for direction in directions:
        chosen[direction] = heads = _largest(here[here["direction"] == direction], size)
        n_left = len(here[here["direction"] == direction]) - len(heads)
        notes.append(
            f"{direction}: {n_left} of {n_left + len(heads)} heads were not patched, as their estimates are smaller; "
            + missed_sentence(folder, session, group, direction, size, metric)
        )
    return Screen(f"attribution:{size}", chosen, tuple(notes))


def estimates_table(folder: RunFolder) -> pd.DataFrame:
    """patch_estimates.csv: every head's mean estimate, pair by pair, and whether it was patched."""
    table = pooled(folder.rows("patch_estimates"))
    rows = folder.rows("patch")
    done = {
        (row["from"], row["to"], row["direction"], name)
        for row in rows[(rows["site"] == "z") & (rows["at"] == "candidate")].to_dict("records")
        for name in row["heads"]["failed"]
    }
    names = [str(Head(layer, head)) for layer, head in zip(table["layer"], table["head"], strict=True)]
    keys = zip(table["from"], table["to"], table["direction"], names, strict=True)
    return table.assign(patched=[key in done for key in keys])


def pooled(rows: pd.DataFrame) -> pd.DataFrame:
    """The mean estimate (nats) of every head over items, by metric, pair and direction."""
    long = [
        (
            metric,
            row["direction"],
            Head.parse(name).layer,
            Head.parse(name).head,
            value,
            row["from"],
            row["to"],
        )
        for row in rows.to_dict("records")
        for metric, heads in metrics_by_part(row["n_tokens"], row["heads"]).items()
        for name, value in heads.items()
    ]
    columns = ["metric", "direction", "layer", "head", "estimate_nats", "from", "to"]
    return by_metric(pd.DataFrame(long, columns=columns), _means)


def _means(table: pd.DataFrame) -> pd.DataFrame:
    keys = ["from", "to", "direction", "layer", "head"]
    grouped = table.groupby(keys, sort=True)["estimate_nats"].agg(["mean", "count"]).reset_index()
    found = grouped.rename(columns={"mean": "estimate_nats", "count": "n"}).assign(patched=False)
    return found[["direction", "layer", "head", "estimate_nats", "n", "patched", "from", "to"]]


def missed_sentence(
    folder: RunFolder, session: Session, group: Group, direction: str, size: int, metric: str
) -> str:
    """What a screen of this size, item by item, left out where every head was patched, or that it is not known.

    Known from attribute.csv, where it is of the same pair of conditions and of one gradient step.
    """
    about = read_run(folder.path)["studies"].get("attribute", {}).get("config", {})
    same = (about.get("from"), about.get("to"), about.get("steps")) == (*group[2:], 1)
    if not same or not (folder.path / "attribute.csv").is_file():
        return (
            "a gradient misses heads whose attention is saturated, as that of copy heads is in noising: "
            "`backfire attribute` measures how many."
        )
    exact = folder.read_table("attribute")
    exact = exact[(exact["metric"] == metric) & (exact["site"] == "z") & (exact["direction"] == direction)][
        list(ATTRIBUTION)
    ]
    if exact.empty:
        return f"`backfire attribute` has not measured how many of {metric} that misses."
    k = min(16, size, exact[["layer", "head"]].drop_duplicates().shape[0])
    found = misses(exact, size, session.rng_for, top=(k,))
    return miss_sentence(found, "z", direction, k)


def _largest(estimates: pd.DataFrame, size: int) -> HeadSet:
    by_head = {
        Head(int(row.layer), int(row.head)): float(row.estimate_nats) for row in estimates.itertuples()
    }
    return screened(Attribution(by_head, {}, 1), size)
