"""`backfire circuit`: the smallest set of heads that recovers a share of Δcopy, by several searches, tested elsewhere.

Items are split by template where there are enough of them (--split): no template, task or goal of a test item is seen
in training, by a search or by a ranking that one starts from. On the training items each method (`circuit_searching`)
looks for the smallest set whose joint effect on --metric reaches --target of the difference, by one of three criteria
(`mech.patching.circuits`):

    necessity      the default. Noising the set must remove the share although every other head may compensate.
    sufficiency    passes early and past 1: on the bundled model a few heads brought into `pre` raise logp(a×) by more
                   than Δcopy on some items, as suppression heads do not see what they would suppress.
    faithfulness   passes 1 likewise, since the set can be chosen without the suppression heads.

Sets found by necessity on ToolShed were sufficient and faithful there, and not the other way round; all three are
reported.
Found sets are then measured, in every metric, on held-out items, on the other environment and on any item files given:
circuit.csv, circuit_controls.csv (beside random sets, sets matched in output norm and in damage, and others),
circuit_heads.csv, circuit_completeness.csv, circuit_curve.csv, circuit_ranking.csv; circuit_stability.csv and its
summary compare halves of the training items. circuit.json is the smallest set found, circuit_METHOD.json each method's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as with_changes
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd

from experiments.heads.control_sets import DRAWN, KindsOptions, MatchedOptions, NamedSet, control_sets
from experiments.heads.ranking import ranking
from experiments.heads.reference_sets import ReferenceOptions, reference_set
from experiments.mechanism.circuit_searching import (
    METHODS,
    Search,
    SearchOptions,
    scores_of,
    searched_level,
    stability,
    stability_summary,
)
from experiments.mechanism.circuit_testing import (
    Testing,
    circuit_tables,
    completeness_table,
    curve_table,
    heads_table,
    subsets_of,
)
from experiments.mechanism.circuit_values import Evaluations, ItemSet
from experiments.mechanism.pairs import PairSweepOptions, pair_of, require_conditions
from experiments.run.durable import replace
from experiments.run.item_pools import read_pool
from experiments.run.left_out import LeftOut, conditions_of, noted, write_left_out
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder
from experiments.run.session import Session, about_items, open_run, open_session, require_out
from experiments.run.study import (
    Flag,
    Report,
    Study,
    existing,
    narrowed,
    positive,
    positive_number,
    require_serial,
)
from experiments.run.tables import forwards_text, frame_text
from mech.errors import InputError
from mech.head_scores.head_lists import head_list_text
from mech.heads import Head, HeadSet
from mech.patching.circuits import CRITERIA, Criterion
from probes.effects.circuit import require_delta
from probes.effects.circuit_search import Found
from probes.effects.circuit_stability import (
    FEWEST_TEMPLATES,
    Level,
    default_level,
    split_items,
    untouched,
)
from probes.items.item import Item, item_line, load_items, select_items
from probes.prompts.unrelated import with_unrelated
from probes.stats.families import family_lines

ENVIRONMENTS: tuple[Literal["toolshed", "coderepair"], ...] = ("coderepair", "toolshed")
TRAINING = "training"
OUTSIDE = "held-out"
SHOWN = ("logprob", "margin")
"""The metrics that the report shows side by side."""


@dataclass(frozen=True, kw_only=True)
class CircuitConfig(PairSweepOptions, SearchOptions, KindsOptions, ReferenceOptions):
    """What `backfire circuit` is given."""

    criterion: Annotated[Criterion, Flag("whose share must reach the target")] = "necessity"
    metric: Annotated[
        Literal["logprob", "margin", "diverging"],
        Flag(
            "what is shown and searched by: log p(a×), its margin over the reference call, or its diverging tokens "
            "alone; target and tables beside circuit.csv are of it"
        ),
    ] = "logprob"
    split: Annotated[
        Literal["auto", "task", "template"],
        Flag(
            "what no training and test item share; auto: template where the items have "
            f"{FEWEST_TEMPLATES} of them, else task"
        ),
    ] = "auto"
    held_out: Annotated[
        float, Flag("share of the templates (or tasks) that no search sees", positive_number)
    ] = 0.6
    transfer: Annotated[
        Literal["other", "toolshed", "coderepair", "none"],
        Flag(
            "further environment to test on; other: the first of coderepair and toolshed that no item is of"
        ),
    ] = "other"
    transfer_limit: Annotated[int, Flag("items of that environment, and of each file below", positive)] = 4
    test_items: Annotated[Path | None, Flag("item file to test on as well, or a folder of such files")] = None
    controls: Annotated[int, Flag("control sets of each found set, of each kind that is drawn", positive)] = (
        20
    )
    subsets: Annotated[int, Flag("random subsets of each found set, for completeness", positive)] = 6


def run(config: CircuitConfig) -> Report:
    """Split, search, test, derive the tables."""
    require_serial(config, STUDY.name)
    session = require_conditions(open_session(config, one_env=True), pair_of(config))
    session = with_references(session, config.metric)
    source, target = pair_of(config)
    level = split_level(session, config)
    tests, left_out = sets_to_test(session, config)
    scores, score_source = ranking(session.model, require_out(config), config.seed)
    about = {
        **about_items(session),
        "head_scores": score_source,
        "items": {test.label: [item.item_id for item in test.items] for test in tests},
        "split": {"by": level, **{test.label: test.templates for test in tests}},
        "left_out": {**about_items(session).get("left_out", {}), **left_out},
    }
    derived = {
        "scores_sha256": _hash(scores),
        "items_sha256": {one.label: _hash(one) for one in tests},
        "split_by": level,
    }
    with open_run(STUDY, config, session.model, about, derived) as folder:
        evaluations = Evaluations(session, folder, source, target, config.metric, config.quiet)
        training = tests[0]
        deltas = evaluations.deltas(training)
        what = f"logp({target}) − logp({source})"
        if config.metric != "logprob":
            what = f"The {config.metric} under {target} less that under {source}"
        require_delta(deltas.tolist(), training.tasks, session.rng_for("circuit/delta"), what)
        search = Search(
            evaluations,
            config.criterion,
            training,
            scores_of(scores),
            evaluations.estimates(training),
            config,
        )
        shown = progress(METHODS, len(METHODS), "search", config.quiet)
        found = {method: search.find(method) for method in shown}
        table, controls, notes = write_tests(folder, session, config, search, found, tests)
        write_lists(folder, found, config.criterion)
        steady = stability(search, found, session.rng_for)
        summary = stability_summary(steady, len(search.scores))
        folder.write_table("circuit_stability", steady)
        folder.write_table("circuit_stability_summary", summary)
        notes += write_left_out(folder, session)
        forwards = session.engine.forwards
        searched = searched_level(search, session.rng_for)
        about_halves = {"sets_of_halves_by": searched}
        folder.finish(
            {
                "forwards_run": forwards.ran,
                "forwards_saved": forwards.saved,
                **about_halves,
                **about_found(found),
            }
        )
    sizes = family_lines(controls[controls["metric"].isin(SHOWN)], "circuit")
    text = [*split_lines(level, tests, config), "", found_text(found, config), "", _shown(table), ""]
    text += ["beside control sets, by the criterion:", _beside(controls), *sizes, ""]
    text += [
        _about_halves(searched, config),
        _steady(summary),
        *notes,
        forwards_text(forwards.ran, forwards.saved),
    ]
    return Report("\n".join([*text, f"written to {config.out}"]))


def with_references(session: Session, metric: str) -> Session:
    """The session with the items for which the searches' metric is defined, the others noted as left out.

    Raises:
        InputError: there is none.
    """
    if metric == "logprob":
        return session
    items = [item for item in session.items if len(item.candidates()) > 1]
    if not items:
        raise InputError(
            f"No item has a reference action or a distractor: --metric {metric} needs one of the two."
        )
    n = len(session.items) - len(items)
    if not n:
        return session
    why = f"{n} items have neither a reference action nor distractors"
    return noted(with_changes(session, items=items), [LeftOut(metric, n, why)])


def split_level(session: Session, config: CircuitConfig) -> Level:
    """What --split holds out: as it says, or by the items' number of templates."""
    level: Level = default_level(session.items) if config.split == "auto" else config.split
    return level


def sets_to_test(session: Session, config: CircuitConfig) -> tuple[list[ItemSet], dict[str, int]]:
    """Training items, those held out, then every other test set; and how many items were left out of which.

    Items of other files that share a task or a goal with a training item (by template also a template), or cannot be
    put under a condition, or lack what the metric needs, are left out.

    Raises:
        InputError: tasks cannot be split, a file or environment has no item left, two sets have one label.
    """
    rng = session.rng_for("circuit/split")
    level = split_level(session, config)
    training, outside = split_items(session.items, level, config.held_out, rng)
    further: dict[str, list[Item]] = {}
    env: Literal["other", "toolshed", "coderepair", "none"] = config.transfer
    if env == "other":
        missing = [one for one in ENVIRONMENTS if one not in {item.env for item in session.items}]
        env = missing[0] if missing else "none"
    if env != "none":
        pool = read_pool(with_changes(config, items=None, env=env))
        further[env] = with_unrelated(pool, pool)
    for file in item_files(config.test_items):
        if file.stem in (TRAINING, OUTSIDE, *further):
            raise InputError(f"Rename {file}: '{file.stem}' is the name of another test set.")
        own = load_items(file)
        further[file.stem] = with_unrelated(own, own)
    tests, left_out = [ItemSet(TRAINING, training), ItemSet(OUTSIDE, outside)], {}
    for label, pool in further.items():
        chosen = [
            item
            for item in untouched(pool, training, level)
            if len(conditions_of(item, pair_of(config))) == 2
            and (config.metric == "logprob" or len(item.candidates()) > 1)
        ]
        if not chosen:
            shared = "task or goal" if level == "task" else "template, task or goal"
            raise InputError(
                f"Every item of '{label}' shares a {shared} with a training item, or lacks what is asked of it."
            )
        left_out[label] = len(pool) - len(chosen)
        tests.append(ItemSet(label, select_items(chosen, limit=config.transfer_limit)))
    return tests, left_out


def item_files(path: Path | None) -> list[Path]:
    """The file, or the folder's .jsonl files by name; InputError where there is none."""
    if path is not None and path.is_dir():
        files = sorted(path.glob("*.jsonl"))
        if not files:
            raise InputError(f"The folder {path} holds no item file (.jsonl).")
        return files
    file = existing(path, "item")
    return [] if file is None else [file]


def write_tests(
    folder: RunFolder,
    session: Session,
    config: CircuitConfig,
    search: Search,
    found: Mapping[str, Found],
    tests: list[ItemSet],
) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """All tables that the found sets are tested in; returns circuit.csv, circuit_controls.csv, and notes."""
    model = session.model
    tested = {item.task_id for test in tests for item in test.items}
    controls, notes = controls_of(folder, session, config, found, tested)
    subsets = subsets_of(found, config.subsets, session.rng_for)
    testing = Testing(
        *(search.evaluations, search.kind, config.target, found, controls, subsets),
        *(session.rng_for, session.cluster),
    )
    training, outside = tests[:2]
    completeness = completeness_table(testing, outside)
    gaps = completeness.groupby("method")["gap"].agg(["mean", "max"])
    table, beside = circuit_tables(testing, tests)
    here = (table["test_set"] == outside.label) & (table["metric"] == config.metric)
    table["completeness_mean"] = table["method"].map(gaps["mean"]).where(here)
    table["completeness_worst"] = table["method"].map(gaps["max"]).where(here)
    orders = {
        method: search.order(method)[: config.max_size] if method in ("score", "attribution") else one.heads
        for method, one in found.items()
    }
    folder.write_table("circuit", table)
    folder.write_table("circuit_controls", beside)
    folder.write_table("circuit_completeness", completeness)
    folder.write_table("circuit_heads", heads_table(testing, training, outside, search.scores))
    folder.write_table("circuit_curve", curve_table(testing, [training, outside], orders, model))
    folder.write_table("circuit_ranking", ranking_table(search, found))
    return table, beside, notes


def controls_of(
    folder: RunFolder,
    session: Session,
    config: CircuitConfig,
    found: Mapping[str, Found],
    tested: Collection[str],
) -> tuple[dict[str, dict[str, list[NamedSet]]], list[str]]:
    """Method → kind of control → its sets, read from circuit_sets.jsonl or drawn and written there; and notes.

    No item of the `tested` tasks is a reference that sets are matched on.

    A kind that cannot be drawn for a set (no heads left, or heads that cost nothing) is noted, and has no sets. Random
    sets are drawn where half of all heads are left at least.
    """
    kept = {row["id"]: row for row in folder.rows("circuit_sets").to_dict("records")}
    model, reference = session.model, None
    controls: dict[str, dict[str, list[NamedSet]]] = {}
    notes = []
    for method, one in found.items():
        large = 2 * len(one.set) > model.n_layers * model.n_heads
        controls[method] = {}
        for kind in config.control_kinds:
            row_id = f"{one.set.sha256[:16]}|{kind}"
            if row_id not in kept:
                sets, why = [], ""
                if kind in DRAWN and large:
                    why = "more than half of all heads are selected"
                else:
                    if kind in ("norm", "damage") and reference is None:
                        reference = reference_set(session, config, tested)
                    settings = narrowed(config, MatchedOptions)
                    try:
                        sets = control_sets(
                            session, settings, "circuit", one.set, [kind], config.controls, reference
                        )
                    except InputError as error:
                        why = str(error)
                if not sets and not why:
                    why = "no heads match these, whose ablation may cost nothing"
                described = [
                    {
                        "label": each.label,
                        "heads": [str(head) for head in each.heads],
                        "displaced": each.displaced,
                        "ratio": each.ratio,
                        "reached": each.reached,
                    }
                    for each in sets
                ]
                row = {"id": row_id, "set": str(one.set), "control": kind, "sets": described, "why": why}
                folder.append("circuit_sets", row)
                kept[row_id] = row
            row = kept[row_id]
            controls[method][kind] = [
                NamedSet(
                    *(each["label"], kind, HeadSet(map(Head.parse, each["heads"]))),
                    *(int(each["displaced"]), each["ratio"], bool(each["reached"])),
                )
                for each in row["sets"]
            ]
            if row["why"]:
                notes.append(f"no '{kind}' controls of the {len(one.set)} heads of {method}: {row['why']}")
    return controls, notes


def ranking_table(search: Search, found: Mapping[str, Found]) -> pd.DataFrame:
    """circuit_ranking.csv: every head with what it was ranked by, and which found sets have it."""
    best = smallest(found)
    selected = found[best].set if best is not None else ()
    lines = [
        (
            *(head.layer, head.head, search.scores[head], estimate),
            *(sum(head in one.set for one in found.values()), head in selected),
        )
        for head, estimate in sorted(search.pooled.items())
    ]
    columns = ["layer", "head", "prefix_matching", "estimate", "n_methods", "selected"]
    return pd.DataFrame(lines, columns=columns)


def write_lists(folder: RunFolder, found: Mapping[str, Found], criterion: str) -> None:
    """circuit_METHOD.json of each set that reached the target, scores falling in the order chosen; circuit.json."""
    for method, one in found.items():
        if one.reached:
            scored = [(head, float(len(one.heads) - at)) for at, head in enumerate(one.heads)]
            text = head_list_text(scored, "heads", f"{method} by {criterion}, first chosen highest")
            replace(folder.path / f"circuit_{method}.json", text)
    best = smallest(found)
    if best is not None:
        source = folder.path / f"circuit_{best}.json"
        replace(folder.path / "circuit.json", source.read_text(encoding="utf-8"))


def smallest(found: Mapping[str, Found]) -> str | None:
    """The method of the smallest set that reached the target, of equal ones that of the larger share on training."""
    reached = [method for method, one in found.items() if one.reached]
    return min(reached, key=lambda method: (len(found[method].heads), -found[method].share), default=None)


def about_found(found: Mapping[str, Found]) -> dict[str, Any]:
    """What run.json says of the searches."""
    return {
        "found": {
            method: {
                "heads": [str(head) for head in one.heads],
                "sha256": one.set.sha256,
                "share": one.share,
                "reached": one.reached,
                "falls": one.falls,
            }
            for method, one in found.items()
        },
        "smallest": smallest(found),
    }


def found_text(found: Mapping[str, Found], config: CircuitConfig) -> str:
    """A sentence a method: found, or not found and how near."""
    lines = []
    for method, one in found.items():
        falls = f"; one more head lowered it {one.falls} times on the way" if one.falls else ""
        if one.reached:
            lines.append(
                f"{method}: {len(one.heads)} heads account for {one.share:.3f} of the difference{falls}"
            )
        else:
            lines.append(
                f"{method}: not found; the best of the sets up to {config.max_size} heads accounts for {one.share:.3f} "
                f"({len(one.heads)} heads){falls}"
            )
    return "\n".join([f"by {config.criterion}, on training tasks:", *lines])


def split_lines(level: str, tests: Sequence[ItemSet], config: CircuitConfig) -> list[str]:
    """The templates of each test set, a line each."""
    why = ""
    if config.split == "auto":
        few = "at least" if level == "template" else "fewer than"
        why = f" (the items have {few} {FEWEST_TEMPLATES} templates)"
    lines = [f"split by {level}{why}:"]
    for test in tests:
        n_tasks = len(set(test.tasks))
        lines.append(
            f"  {test.label}: {len(test.items)} items, {n_tasks} tasks, templates {', '.join(test.templates)}"
        )
    return lines


def _shown(table: pd.DataFrame) -> str:
    """Log-probability and margin side by side, and what was searched by."""
    rows = table[table["metric"].isin(SHOWN) | (table["completeness_worst"].notna())]
    return frame_text(
        rows[["method", "k", "test_set", "metric", *CRITERIA, "n", "n_clusters", "completeness_worst"]]
    )


def _beside(controls: pd.DataFrame) -> str:
    rows = controls[controls["metric"].isin(SHOWN)]
    names = [
        "method",
        "test_set",
        "metric",
        "control",
        "share",
        "control_mean",
        "control_hi",
        "n_controls",
        "p",
    ]
    return frame_text(rows[[*names, "excess", "excess_p", "p_holm"]])


def _about_halves(level: str, config: CircuitConfig) -> str:
    return (
        f"half of the training items against the other half (over up to {config.repeats} pairs; lo, hi: middle 95 % of "
        f"pairs). Sets are looked for in halves by {level}; greedy and elimination in {config.search_repeats} pairs."
    )


def _steady(summary: pd.DataFrame) -> str:
    names = ["jaccard", "spearman", "spearman_within_layer", "recall_16"]
    rows = summary[summary["statistic"].isin(names)]
    return frame_text(rows.drop(columns=["lowest", "highest"]))


def _hash(what: pd.DataFrame | ItemSet) -> str:
    if isinstance(what, ItemSet):
        text = "\n".join(item_line(item) for item in what.items)
    else:
        ordered = what.sort_values(["layer", "head"])
        text = repr(ordered["prefix_matching"].tolist())
    return hashlib.sha256(text.encode()).hexdigest()


STUDY = Study(
    "circuit",
    "backfire circuit --limit 24 --criterion necessity --transfer none --out runs/first",
    CircuitConfig,
    run,
)
