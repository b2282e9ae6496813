"""`backfire compare --items RUN --published FILE`: the scores of single items beside published ones.

RUN/scores.jsonl and FILE → compare_items.csv (a row a condition and candidate, or measure) and compare_item_pairs.csv
(a row an item), which the figure `compare_items` is drawn from. The columns by which a published file is recognised
are listed in `probes.measures.item_compare`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from experiments.run.durable import naming, parse_rows, replace
from experiments.run.frames import in_schema, read_frame
from experiments.run.study import Report
from experiments.run.tables import frame_text
from mech.errors import InputError
from mech.input_files import NotJson, parse_json, read_bytes
from probes.measures.item_compare import Items, item_pairs, largest, our_items, published_items, summary

NAMED = 4
"""Unmatched items that the text names; compare_item_pairs.csv has them all."""


def compare_items(
    run: Path, published: Path, names: Mapping[str, str], within: float | None, out: Path | None
) -> Report:
    """Write both tables and say how far apart the two measurements are.

    Args:
        run: a run folder with scores.jsonl.
        published: see `probes.measures.item_compare`.
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
        replace(path, frame.to_csv(index=False, lineterminator="\n"))
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
        lines.append(f"{theirs.repeated} published rows stand twice: the later one counts")
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
