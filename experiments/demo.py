"""`backfire demo`: the main job on the bundled model in a few minutes, by calling the studies one after the other.

G of one decision point → probe → heads → joint (denoising, attention knockout, random heads) → figures, in one
run folder, on the project's own items. `backfire mechanism` is the long version.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from experiments.measure import probe
from experiments.mechanism import heads, joint
from experiments.run.drawing import draw
from experiments.run.run_folder import read_frame
from experiments.run.session import open_session
from experiments.run.study import (
    Flag,
    NameOptions,
    OutOptions,
    Report,
    SeedOptions,
    Study,
    arguments,
    positive,
)
from experiments.run.tables import interval_text
from probes.decomposition import decompose

logger = logging.getLogger(__name__)

TOP = 16  # heads
OPENING = """You will see: how much likelier a failed tool call becomes once it is recorded (G); how much of that
its text alone does (Δcopy); how much of Δcopy sixteen attention heads account for, beside random heads."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig(OutOptions, SeedOptions, NameOptions):
    """What `backfire demo` is given."""

    items: Annotated[int, Flag("items that are measured, and whose heads are patched", positive)] = 6
    controls: Annotated[int, Flag("random sets of heads", positive)] = 3


def run(config: DemoConfig) -> Report:
    """Run the studies in turn, draw the figures, and say the three numbers that matter."""
    out: Path = config.out or Path("runs/demo")
    common = {
        "model": config.model,
        "pre": config.pre,
        "seed": config.seed,
        "out": out,
        "quiet": config.quiet,
    }
    logger.info("%s\n", OPENING)
    first_number(common)
    steps: list[tuple[Study[Any], dict[str, Any]]] = [
        (probe.STUDY, {"limit": config.items, "conditions": "pre,neut,fail"}),
        (heads.STUDY, {"top": TOP}),
        (
            joint.STUDY,
            {
                **{"limit": config.items, "k": (TOP,), "methods": "denoise,knockout"},
                **{"controls": config.controls, "control_kinds": "random"},
            },
        ),
    ]
    for study, chosen in steps:
        report = _step(study, arguments(study, {**common, **chosen}))
        logger.info("%s\n", report.text)
        if not report.ok:
            return Report(f"The {study.name} step failed (see above).", ok=False)
    draw(out)
    return Report(conclusion(out))


def first_number(common: dict[str, Any]) -> None:
    """Say G of one decision point, before anything is written."""
    session = open_session(arguments(probe.STUDY, {**common, "limit": 1}))
    found = decompose(session.engine, session.items, session.wording).to_dataframe().iloc[0]
    logger.info(
        "One decision point (%s): recorded with its error, the failed call's log-probability changes by %+.1f nats "
        "(G = %.1f).\n",
        found["item_id"],
        -found["G"],
        found["G"],
    )


def conclusion(out: Path) -> str:
    """The three numbers in plain words, and where everything is."""
    summary = read_frame(out / "summary.csv").set_index("measure")
    table = read_frame(out / "joint.csv").query("metric == 'logprob' and controls == 'random'")
    by_method = table.set_index("method")
    cut, added = by_method.loc["knockout"], by_method.loc["denoise"]
    gain, copy, sem = (summary.loc[name] for name in ("G", "copy", "sem"))
    lines = [
        f"1. Showing the model its failed call and the error changes the call's log-probability by "
        f"{-gain['mean']:+.1f} nats "
        f"{interval_text(-gain['ci_hi'], -gain['ci_lo'], digits=1)} (G = {gain['mean']:.1f}; {int(gain['n'])} items): "
        f"{_verdict(gain['ci_lo'], gain['ci_hi'])}.",
        f"2. {copy['mean'] / -gain['mean']:.0%} of that is there as soon as the transcript holds the call, before it "
        f"is marked as failed (Δcopy = {copy['mean']:.1f}, Δsem = {sem['mean']:.1f} nats).",
        f"3. Knocking out the attention to the recorded call of the {TOP} heads that score highest on repeated random "
        f"tokens removes {cut['share']:.0%} of Δcopy {_percentages(cut['ci_lo'], cut['ci_hi'])}; as many random heads "
        f"of the same layers remove {cut['control_lo']:.0%} to {cut['control_hi']:.0%} ({int(cut['n_controls'])} sets, "
        f"{int(cut['n'])} items). Their outputs alone, put into the run without the record, give "
        f"{added['share']:.0%} of it.",
        "",
        f"pictures: {out / 'figures'}",
        f"tables:   {out} (summary.csv, heads.csv, joint.csv, …)",
        "more:     backfire mechanism --limit 24 --plan --out runs/mechanism",
    ]
    return "\n".join(lines)


def _verdict(lo: float, hi: float) -> str:
    """What the interval of G says."""
    if math.isnan(lo) or math.isnan(hi):
        return "too few tasks for an interval"
    return "the feedback backfires" if hi < 0 else "no inversion beyond noise"


def _percentages(lo: float, hi: float) -> str:
    return "(too few tasks for an interval)" if math.isnan(lo) or math.isnan(hi) else f"[{lo:.0%}, {hi:.0%}]"


def _step(study: Study[Any], config: Any) -> Report:
    start = time.perf_counter()
    logger.info("== %s", study.name)
    report = study.run(config)
    logger.info("== %s took %.0f s", study.name, time.perf_counter() - start)
    return report


STUDY = Study(
    "demo",
    "backfire demo --out runs/demo",
    DemoConfig,
    run,
)
