"""`backfire compare`: finished runs beside published numbers, and rollouts of several runs beside each other.

    RUN… --paper FILE             RUN/summary.csv … and a published summary → compare.csv: every line of the paper's for
                                  each model, ours beside it, the difference, whether the intervals overlap and whether
                                  the signs agree
    --items RUN --published FILE  the scores of single items: RUN/scores.jsonl and FILE → compare_items.csv (a row a
                                  condition and candidate, or measure) and compare_item_pairs.csv (a row an item);
                                  `probes.measures.compare_items` lists the columns by which FILE is recognised
    RUN… of `rollout`             a change by how many heads it is made to: see `experiments.rollout.compare_doses`

Reads rows and tables only; no model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from experiments.rollout.compare_doses import compare_doses, is_rollout
from experiments.run.durable import naming, parse_rows, replace
from experiments.run.frames import csv_text, in_schema, read_frame
from experiments.run.study import Flag, Report, Study, positive_number
from experiments.run.tables import frame_text, interval_text
from mech.errors import InputError
from mech.input_files import NotJson, parse_json, read_bytes
from probes.measures.compare import compare, disagreements, only_ours
from probes.measures.compare_items import Items, item_pairs, largest, our_items, published_items, summary
from probes.stats.summaries import check_summary


@dataclass(frozen=True, kw_only=True)
class CompareConfig:
    """What `backfire compare` is given."""

    run: Annotated[
        tuple[str, ...],
        Flag("run folders with a summary.csv, or folders of rollout", str, positional=True),
    ] = ()
    paper: Annotated[
        Path | None, Flag("the published summary: model, env, measure, mean, ci_lo, ci_hi, n, …")
    ] = None
    names: Annotated[str, Flag("OURS=PAPERS,…: other names than ours without an ending -q4")] = ""
    items: Annotated[
        Path | None, Flag("compare single items: the run folder whose scores.jsonl is compared")
    ] = None
    published: Annotated[
        Path | None, Flag("with --items: published scores or measures, csv or JSON lines")
    ] = None
    within: Annotated[
        float | None,
        Flag(
            "with --items: exit 1 if a difference is larger than this many nats",
            positive_number,
            presentation=True,
        ),
    ] = None
    out: Annotated[
        Path | None,
        Flag(
            "csv file to write; by default one in the first run named for what is compared", presentation=True
        ),
    ] = None


def run(config: CompareConfig) -> Report:
    """Read the tables, write the comparison, and say how much agrees."""
    _refuse_mixture(config)
    if config.items is not None and config.published is not None:
        return compare_items(
            config.items, config.published, parse_names(config.names), config.within, config.out
        )
    if not config.run:
        raise InputError("Name run folders, or one with --items: backfire compare RUN … --paper FILE.")
    if config.paper is None and all(is_rollout(Path(one)) for one in config.run):
        return compare_doses([Path(one) for one in dict.fromkeys(config.run)], config.out)
    if config.paper is None:
        raise InputError("Name the published table with --paper FILE.")
    runs = list(dict.fromkeys(config.run))
    paper = read_summary(config.paper)
    ours = pd.concat(
        [read_summary(Path(one) / "summary.csv").assign(run=one) for one in runs], ignore_index=True
    )
    names = parse_names(config.names)
    table = in_schema("compare", compare(ours, paper, names))
    target = config.out or Path(runs[0]) / "compare.csv"
    replace(target, csv_text(table))
    parts = [_block(group) for _, group in table.groupby(["model", "env"], sort=False)]
    differing = disagreements(table)
    if len(differing):
        places = differing[["model", "env", "measure"]].agg(" ".join, axis=1)
        named = _lines(differing.assign(measure=places))
        parts.append(f"other sign although the paper's interval excludes zero:\n{named}")
    parts += [agreement(table, len(only_ours(ours, paper, names))), f"written to {target}"]
    return Report("\n\n".join(parts))


def _refuse_mixture(config: CompareConfig) -> None:
    """Raise for options that do not belong together."""
    if config.items is not None and (config.run or config.paper is not None):
        raise InputError("--items compares one run with --published FILE: leave out other runs and --paper.")
    if config.items is not None and config.published is None:
        raise InputError("Name the published scores with --published FILE.")
    if config.items is None and (config.published is not None or config.within is not None):
        raise InputError("--published and --within belong to --items RUN.")


def read_summary(path: Path) -> pd.DataFrame:
    """A summary table from a csv file, checked.

    Raises:
        InputError: there is no such file, it is no csv, or it is no summary; the sentence names it.
    """
    return check_summary(read_frame(path), str(path))


def parse_names(text: str) -> dict[str, str]:
    """`mine=smollm2-135m,other=qwen2.5-0.5b` as our name → the paper's.

    Raises:
        InputError: a part is not of this form.
    """
    names = {}
    for part in filter(None, text.split(",")):
        ours, equals, papers = part.partition("=")
        if not (ours and equals and papers):
            raise InputError(f"'{part}' does not name a model: write --names OURS=PAPERS.")
        names[ours] = papers
    return names


def agreement(table: pd.DataFrame, n_only_ours: int) -> str:
    """One line that counts what agrees."""
    met = table[table["ours"].notna()]
    decided = met[met["paper_excludes_zero"]]
    return (
        f"{len(table)} lines of the paper's, {len(met)} measured here: intervals overlap in "
        f"{int(met['overlap'].sum())}; the sign is the same in {int(decided['same_sign'].sum())} of the "
        f"{len(decided)} whose published interval excludes zero ({len(table) - len(met)} not measured, "
        f"{n_only_ours} of ours not published)"
    )


def _block(group: pd.DataFrame) -> str:
    """One model and environment: a heading and a line a measure."""
    first = group.iloc[0]
    return f"{first['model']} against the paper's {first['paper_model']}, {first['env']}\n{_lines(group)}"


def _lines(group: pd.DataFrame) -> str:
    """The comparison as aligned text; a dash where there is nothing."""
    shown = [
        {
            "measure": row["measure"],
            "ours": _interval(row["ours"], row["ours_lo"], row["ours_hi"]),
            "n": _or_dash(row["ours_n"]),
            "paper": _interval(row["paper"], row["paper_lo"], row["paper_hi"]),
            "n ": _or_dash(row["paper_n"]),
            "difference": "-" if pd.isna(row["difference"]) else f"{row['difference']:+.3f}",
            "overlap": _or_dash(row["overlap"], {True: "yes", False: "no"}),
            "sign": _or_dash(row["same_sign"], {True: "same", False: "other"}),
            "paper ≠ 0": _or_dash(row["paper_excludes_zero"], {True: "yes", False: "no"}),
            "run": _or_dash(row["run"]),
        }
        for row in group.to_dict("records")
    ]
    return frame_text(pd.DataFrame(shown))


def _interval(mean: float, lo: float, hi: float) -> str:
    return "-" if pd.isna(mean) else f"{mean:.3f} {interval_text(lo, hi)}"


def _or_dash(value: Any, words: dict[bool, str] | None = None) -> str:
    if pd.isna(value):
        return "-"
    return words[bool(value)] if words else str(value)


NAMED = 4
"""Unmatched items that the text names; compare_item_pairs.csv has them all."""


def compare_items(
    run: Path, published: Path, names: Mapping[str, str], within: float | None, out: Path | None
) -> Report:
    """Write both tables and say how far apart the two measurements are.

    Args:
        run: a run folder with scores.jsonl.
        published: see `probes.measures.compare_items`.
        names: our model's name → the file's; otherwise our name without an ending -q4.
        within: nats; a larger difference makes the report not ok.
        out: the file of the summary, in whose folder compare_item_pairs.csv is put; by default compare_items.csv in
        the run.

    Raises:
        InputError: a file is missing or holds no per-item numbers, or no item of the one is in the other.
    """
    rows = pd.DataFrame(parse_rows(run / "scores.jsonl")[0])
    if rows.empty:
        raise InputError(f"{run} has no scores.jsonl with rows: run backfire probe … --out {run} first.")
    with naming(run / "scores.jsonl"):
        ours = our_items(rows)
    model = str(rows["model"].iloc[0])
    named = names.get(model, model.removesuffix("-q4"))
    file = read_published(published)
    theirs = published_items(file, str(published), named, set(rows["env"].astype(str)))
    pairs = in_schema("compare_item_pairs", item_pairs(ours, theirs, model))
    table = in_schema("compare_items", summary(pairs))
    if not table["n"].sum():
        raise InputError(
            f"No item of {published} is in {run}: neither has a score or measure of the other's items."
        )
    target = out or run / "compare_items.csv"
    for path, frame in ((target, table), (target.with_name("compare_item_pairs.csv"), pairs)):
        replace(path, csv_text(frame))
    far = largest(pairs)
    says_model = "model" in file.columns
    lines = [
        f"{model} ({run}) against {named if says_model else 'what names no model'} ({published})",
        *_unmatched(pairs, theirs),
        frame_text(_shown(table), 4),
        _counts_text(pairs),
    ]
    if far is None:
        lines.append("No number in nats is matched.")
    else:
        which = f"{far['condition']} {far['candidate']}" if far["kind"] == "score" else far["measure"]
        lines.append(
            f"largest difference: {abs(far['difference']):.6f} nats ({far['item_id']}, {which}: ours "
            f"{far['ours']:.6f}, published {far['published']:.6f})"
        )
    if says_model and model != named:
        lines.append(
            f"The weights are not the same: ours are {model}, the published ones {named}. Differences are those of the "
            "weights (4-bit against full precision) and of the measurement together."
        )
    ok = within is None or (far is not None and abs(float(far["difference"])) <= within)
    if within is not None:
        met, alone = (int((pairs["found_in"] == side).sum()) for side in ("both", "published"))
        lines.append(
            f"{'Within' if ok else 'Not within'} {within:g} nats in every one of the {met} numbers that both have; "
            f"{alone} published ones have no counterpart here."
        )
    lines.append(f"written to {target} and {target.with_name('compare_item_pairs.csv')}")
    return Report("\n".join(lines), ok)


def read_published(path: Path) -> pd.DataFrame:
    """A published file: JSON lines if it begins with an opening brace, else csv.

    Raises:
        InputError: it cannot be read, or a line is no JSON object; the sentence names file and line.
    """
    raw = read_bytes(path, "published")
    if not raw.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        return read_frame(path)
    rows = []
    for number, line in enumerate(raw.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row, faults = parse_json(line)
        except NotJson as error:
            raise InputError(f"{path}, line {number}, is no JSON ({error}).") from error
        if faults or not isinstance(row, dict):
            raise InputError(f"{path}, line {number}: {'; '.join(faults[:3]) or 'it is no JSON object'}.")
        rows.append(row)
    return pd.DataFrame(rows)


def _unmatched(pairs: pd.DataFrame, theirs: Items) -> list[str]:
    """What is on one side only, counted and named."""
    met = pairs[pairs["found_in"] == "both"]
    scores = int((met["kind"] == "score").sum())
    lines = [f"matched: {scores} scores and {len(met) - scores} measures of {met['item_id'].nunique()} items"]
    items = set(met["item_id"])
    for side, what in (("ours", "only ours"), ("published", "only published")):
        rows = pairs[pairs["found_in"] == side]
        if rows.empty:
            continue
        alone = sorted(set(rows["item_id"]) - items)
        partly = rows[rows["item_id"].isin(items)]
        parts = [f"{len(alone)} items ({_named(alone)})"] if alone else []
        if len(partly):
            cells = (
                partly["item_id"]
                + " "
                + partly["condition"].where(partly["kind"] == "score", partly["measure"])
            )
            parts.append(f"{len(partly)} numbers of items that both have ({_named(cells.tolist())})")
        lines.append(f"{what}: {'; '.join(parts)}")
    if theirs.elsewhere:
        lines.append(f"left out: {theirs.elsewhere} published rows of other models or environments")
    if theirs.repeated:
        lines.append(f"{theirs.repeated} published rows are there twice: the later one counts")
    return lines


def _named(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f", and {more} more" if more > 0 else "")


def _shown(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of the summary that are printed."""
    what = [
        f"{row.condition}, {row.candidate}" if row.kind == "score" else row.measure
        for row in table.itertuples()
    ]
    columns = {
        "env": "env", "unit": "unit", "n": "n", "n_only_ours": "only ours", "n_only_published": "only published",
        "median_abs": "median", "max_abs": "largest", "max_abs_per_token": "per token", "pearson": "Pearson",
        "spearman": "Spearman", "item_of_max": "item of the largest",
    }  # fmt: skip
    shown = table[list(columns)].rename(columns=columns)
    shown.insert(0, "of", what)
    return shown[table["n"].to_numpy() > 0]


def _counts_text(pairs: pd.DataFrame) -> str:
    """How many token counts and context lengths agree."""
    met = pairs[(pairs["found_in"] == "both") & (pairs["kind"] == "score")]
    parts = []
    for name, what in (("n_tokens", "token counts of the action"), ("ctx_tokens", "context lengths")):
        known = met[met[name].notna() & met[f"{name}_published"].notna()]
        equal = int((known[name] == known[f"{name}_published"]).sum())
        parts.append(f"{what} equal in {equal} of {len(known)}" if len(known) else f"{what} not published")
    return "; ".join(parts)


STUDY = Study(
    "compare",
    "backfire compare runs/core runs/extended --paper paper_summary.csv",
    CompareConfig,
    run,
)
