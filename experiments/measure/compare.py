"""`backfire compare`: finished runs beside published numbers, and rollouts of several runs beside each other.

    RUN… --paper FILE             RUN/summary.csv … and a published summary → compare.csv: every line of the paper's for
                                  each model, ours beside it, the difference, whether the intervals overlap and whether
                                  the signs agree
    --items RUN --published FILE  the scores of single items: see `experiments.measure.compare_items`
    RUN… of `rollout`             a change by how many heads it is made to: see `experiments.rollout.compare_doses`

Reads rows and tables only; no model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pandas as pd

from experiments.measure.compare_items import compare_items
from experiments.rollout.compare_doses import compare_doses, is_rollout
from experiments.run.durable import replace
from experiments.run.run_folder import in_schema, read_frame
from experiments.run.study import Flag, Report, Study, positive_number
from experiments.run.tables import frame_text, interval_text
from mech.errors import InputError
from probes.measures.compare import compare, disagreements, only_ours
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
    replace(target, table.to_csv(index=False, lineterminator="\n"))
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


STUDY = Study(
    "compare",
    "put finished runs beside published numbers: summaries, or the scores of single items",
    "backfire compare runs/core runs/extended --paper paper_summary.csv",
    CompareConfig,
    run,
)
