"""`backfire patch`: which parts cause Δcopy (or any difference of two conditions), by exact activation patching.

    noise     run TO with one part's activation from FROM:   effect = logp(TO) − logp(patched)
    denoise   run FROM with one part's activation from TO:   effect = logp(patched) − logp(FROM)

logp is of a×, and of the reference action for the margin of the two, each patched from a run of the same action: tables
hold every metric of `probes.scoring.contrast` (--metric: which is shown, and which a screen ranks by).

share = effect / (logp(TO) − logp(FROM)), both of one metric; with --from pre --to neut that difference is Δcopy, with
--from neut --to fail Δsem, with --from neut_matched --to neut Δcopy against a record of equal length. --site says what
is taken (z of a head, its queries or pattern, keys or values by key/value head, a layer's MLP output or residual
stream), --at where.
All parts one by one, and joint sets of the top k heads by prefix-matching score, which no task data have chosen.

A share can exceed 1: with neut_matched as donor the recorded call's values become those of its filler, which heads that
still attend there then copy; that lowers a× more than no record at all would.

One folder holds patches of several sites and pairs: each has an entry of its own in run.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pandas as pd

from experiments.heads.ranking import ranking
from experiments.mechanism.pairs import (
    PairContext,
    PairRuns,
    PairSweepOptions,
    of_metric,
    pair_of,
    pair_session,
    references_said,
)
from experiments.mechanism.patch_screen import (
    NO_SCREEN,
    Screen,
    estimates_table,
    no_screen,
    parse_screen,
    run_screen,
)
from experiments.mechanism.patch_tables import DEFAULT, GROUP, Group, effects_tables
from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import require_out
from experiments.run.study import Flag, Report, whole_numbers
from experiments.run.tables import frame_text
from mech.errors import InputError
from mech.head_scores.induction import top_heads
from mech.heads import HeadSet
from probes.items.item import Item
from probes.scoring.contrast import contrast_of
from probes.scoring.pair import AT, SITES, PatchTask, mismatch, patched, require_pattern_pair


@dataclass(frozen=True, kw_only=True)
class PatchConfig(PairSweepOptions):
    """What `backfire patch` is given."""

    site: Annotated[str, Flag("what is patched; k and v are by key/value head", choices=SITES)] = "z"
    at: Annotated[
        str,
        Flag(
            "where: from where the call is repeated, at its tokens in the record, or at the observation",
            choices=AT,
        ),
    ] = "candidate"
    direction: Annotated[Literal["noise", "denoise", "both"], Flag("noise, denoise or both")] = "both"
    k: Annotated[tuple[int, ...], Flag("sizes of the joint sets", whole_numbers)] = (4, 8, 16, 32)
    screen: Annotated[str, Flag("all, or attribution:N to patch the N heads of largest estimate only")] = (
        NO_SCREEN
    )

    @property
    def group(self) -> Group:
        """What a folder tells patches apart by: site, at, from, to."""
        return self.site, self.at, *pair_of(self)

    @property
    def directions(self) -> tuple[str, ...]:
        """The directions asked for."""
        return ("noise", "denoise") if self.direction == "both" else (self.direction,)


@dataclass(frozen=True, kw_only=True)
class PatchContext(PairContext):
    """The joint sets, which heads are patched alone, and the items that cannot be patched, with the reason."""

    config: PatchConfig
    sets: Mapping[str, HeadSet]
    screen: Screen
    skipped: Mapping[str, str]

    @property
    def entry(self) -> str:
        """With site, place and pair where they are not the default."""
        return entry_name(self.config.group)


def open_patch(config: PatchConfig) -> PatchContext:
    """The session, the joint sets, and which items cannot be patched.

    Raises:
        InputError: a site, place, direction, screen or metric has no meaning here, or no item can be patched.
    """
    group, directions = config.group, config.directions
    parse_screen(config.screen, group)
    require_defined(group, directions)
    session = pair_session(config)
    scores, source = ranking(session.model, require_out(config), config.seed)
    sets = {f"top{k}": top_heads(scores, k) for k in config.k if k <= len(scores)}
    skipped = {}
    for item in session.items:
        candidates = contrast_of(session.model, item, session.wording).candidates
        reason = mismatch(session.model, item, group, session.wording, candidates, directions)
        if reason is not None:
            skipped[item.item_id] = reason
    if len(skipped) == len(session.items):
        raise InputError(f"No item can be patched at the {group[1]}: {next(iter(skipped.values()))}")
    decided: dict[str, Any] = {"set_sha256": {name: heads.sha256 for name, heads in sets.items()}}
    if config.screen != NO_SCREEN:
        decided["screen_metric"] = config.metric  # decides which heads are patched
    return PatchContext(
        session,
        recorded={"head_scores": source, "sets": {name: str(heads) for name, heads in sets.items()}},
        decided=decided,
        study="patch",
        config=config,
        sets=sets,
        screen=no_screen(directions),
        skipped=skipped,
    )


def prepare(context: PatchContext, folder: RunFolder) -> PatchContext:
    """With the heads that a screen picks on all items."""
    config = context.config
    size = parse_screen(config.screen, config.group)
    if size is None:
        return context
    screen = run_screen(
        folder, context.session, config.group, config.directions, size, config.metric, config.quiet
    )
    return replace(context, screen=screen)


def entry_name(group: Group) -> str:
    """The study's entry in run.json: `patch`, and its site, place and pair where they are not the default."""
    site, at, source, target = group
    return "patch" if group == DEFAULT else f"patch {site} {at} {source}>{target}"


def row_id(item: Item, group: Group, direction: str) -> str:
    """The id of a row."""
    site, at, source, target = group
    return f"{item.item_id}|{site}|{at}|{source}>{target}|{direction}"


def require_defined(group: Group, directions: tuple[str, ...]) -> None:
    """Raise InputError for a site, place or direction that has no meaning, before anything is run."""
    site, at, source, target = group
    if site != "pattern":
        return
    if at != "candidate":
        raise InputError(
            f"Attention patterns are patched from the action positions, not at the {at}: leave out --at."
        )
    for direction in directions:
        donor, recipient = (source, target) if direction == "noise" else (target, source)
        require_pattern_pair(donor, recipient)


def units(context: PatchContext) -> list[ItemUnit]:
    """A unit an item that can be patched, of a row a direction: the clean runs are shared."""
    config = context.config
    return [
        ItemUnit(tuple(row_id(item, config.group, direction) for direction in config.directions), item)
        for item in context.session.items
        if item.item_id not in context.skipped
    ]


def measure(context: PatchContext, unit: ItemUnit) -> list[Row]:
    """One row a direction: the differences, and by sum the effect (nats) of every part and joint set."""
    session, group, sets, item = context.session, context.config.group, context.sets, unit.item
    contrast = contrast_of(session.model, item, session.wording)
    tasks = {
        candidate: PatchTask.of(session.engine, item, group, session.wording, candidate)
        for candidate in contrast.candidates
    }
    first = tasks["failed"]
    runs = PairRuns(contrast, {name: (task.low, task.high) for name, task in tasks.items()})
    rows = []
    for direction in context.config.directions:
        heads = context.screen.heads[direction]
        scores = {name: patched(session.engine, task, direction, sets, heads) for name, task in tasks.items()}
        effects = {
            kind: runs.effects(direction, {name: found[at] for name, found in scores.items()})
            for at, kind in enumerate(("heads", "sets"))
        }
        rows.append(
            {
                "id": row_id(item, group, direction),
                "item_id": item.item_id,
                "task_id": item.task_id,
                "direction": direction,
                **dict(zip(GROUP, group, strict=True)),
                "screen": context.screen.name,
                "n_positions": len(first.positions) or len(first.low.query.action),
                **dict(zip(("logprob_from", "logprob_to"), runs.ends, strict=True)),
                **runs.about(),
                **effects,
                "members": {name: str(sets[name]) for name in effects["sets"]["failed"]},
            }
        )
    return rows


def patch_tables(context: PatchContext, folder: RunFolder) -> dict[str, pd.DataFrame]:
    """The four tables of every patch in the folder, and patch_estimates.csv of a screen."""
    tables = effects_tables(folder, context.session)
    return (
        tables
        if context.config.screen == NO_SCREEN
        else {**tables, "patch_estimates": estimates_table(folder)}
    )


def of_group(table: pd.DataFrame, group: Group) -> pd.DataFrame:
    """The rows of one site, place and pair, without the columns that say so."""
    here = (table[list(GROUP)] == list(group)).all(axis=1)
    rows = table[here].drop(columns=[*GROUP, "screen"], errors="ignore")
    numbers = [name for name in ("head", "kv_head") if name in rows and rows[name].isna().all()]
    return rows.drop(columns=numbers)


def report(context: PatchContext, tables: Tables) -> Report:
    """The largest shares of each direction, the joint sets' gaps, and what was not patched."""
    config, session = context.config, context.session
    shares, gaps = (of_metric(tables[name], config.metric) for name in ("patch", "patch_redundancy"))
    ranked = of_group(shares, config.group).sort_values(["direction", "share"], ascending=[True, False])
    n_heads = session.model.n_layers * session.model.n_heads
    lines = [
        f"shares of {config.metric}:",
        frame_text(ranked.groupby("direction").head(8)),
        "",
        frame_text(of_group(gaps, config.group)) if len(gaps) else "",
        *context.screen.notes,
        *skips(context.skipped),
        *(f"There is no top {k}: the model has {n_heads} heads." for k in config.k if k > n_heads),
    ]
    return Report("\n".join(lines))


def skips(skipped: Mapping[str, str]) -> list[str]:
    """The items that were left out, with the reason of the first."""
    if not skipped:
        return []
    return [f"{len(skipped)} items left out ({', '.join(skipped)}): {next(iter(skipped.values()))}"]


STUDY = ItemStudy(
    "patch",
    "backfire patch --from pre --to neut --site z --direction both --limit 4 --out runs/first",
    PatchConfig,
    rows="patch",
    open=open_patch,
    prepare=prepare,
    units=units,
    measure=measure,
    tables=patch_tables,
    report=report,
    notes=references_said,
    extra=lambda context, _: {"skipped": dict(context.skipped), "screen": list(context.screen.notes)},
)
