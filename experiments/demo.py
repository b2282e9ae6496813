"""`backfire demo`: the main job on the bundled model in a few minutes, by calling the studies one after the other.

doctor → items → probe → heads → patch → ablate → figures, all in one run folder, on the project's own items.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from experiments.bench import doctor
from experiments.measure import items as make_items
from experiments.measure import probe as probe_items
from experiments.mechanism import ablate as ablate_heads
from experiments.mechanism import heads as find_heads
from experiments.mechanism import patch as patch_heads
from experiments.run.drawing import draw
from experiments.run.run_folder import read_frame
from experiments.run.study import (
    Flag,
    NameOptions,
    OutOptions,
    Report,
    SeedOptions,
    Study,
    arguments,
    positive,
    whole_numbers,
)
from experiments.run.tables import interval_text
from mech.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DemoConfig(OutOptions, SeedOptions, NameOptions):
    """What `backfire demo` is given."""

    items_probed: Annotated[int, Flag("items whose Δcopy and Δsem are measured", positive)] = 24
    items_patched: Annotated[int, Flag("items whose every head is patched, both directions", positive)] = 2
    items_ablated: Annotated[int, Flag("items measured under every ablation", positive)] = 8
    controls: Annotated[int, Flag("random control sets for each size", positive)] = 2
    k: Annotated[tuple[int, ...], Flag("sizes of the ablated sets; 16 must be among them", whole_numbers)] = (
        16,
        32,
    )


def run(config: DemoConfig) -> Report:
    """Run every study in turn, draw the figures, and say the three numbers that matter."""
    if 16 not in config.k:
        raise InputError("The demo reports the top 16 heads: leave 16 among the sizes of --k.")
    out: Path = config.out or Path("runs/demo")
    common = {
        "model": config.model,
        "pre": config.pre,
        "seed": config.seed,
        "out": out,
        "quiet": config.quiet,
    }
    steps: list[tuple[Study[Any], dict[str, Any]]] = [
        (doctor.STUDY, {}),
        (make_items.STUDY, {"out": None, "limit": config.items_probed}),
        (probe_items.STUDY, {"limit": config.items_probed}),
        (find_heads.STUDY, {"top": 16}),
        (patch_heads.STUDY, {"limit": config.items_patched}),
        (
            ablate_heads.STUDY,
            {
                "limit": config.items_ablated,
                "k": config.k,
                "controls": config.controls,
                "control_kinds": ("random",),
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


def conclusion(out: Path) -> str:
    """The three numbers in plain words, and where everything lies."""
    summary = read_frame(out / "summary.csv").set_index("measure")
    removed, beside = (
        table[table["metric"] == "logprob"]
        for table in (read_frame(out / f"{name}.csv") for name in ("removed", "controls"))
    )
    controls = beside.set_index(["control", "k"]).loc[("random", 16)]
    top = removed[(removed["kind"] == "selected") & (removed["k"] == 16)].iloc[0]
    gain, copy, sem = (summary.loc[name] for name in ("G", "copy", "sem"))
    ratio = copy["mean"] / -gain["mean"]
    lines = [
        f"1. Showing the model its failed call and the error changes the call's log-probability by "
        f"{-gain['mean']:+.1f} nats "
        f"{interval_text(-gain['ci_hi'], -gain['ci_lo'], digits=1)} (G = {gain['mean']:.1f}; {int(gain['n'])} items): "
        f"{_verdict(gain['ci_lo'], gain['ci_hi'])}.",
        f"2. {ratio:.0%} of that is there as soon as the call stands in the transcript, whatever is said of it "
        f"(Δcopy = {copy['mean']:.1f}, Δsem = {sem['mean']:.1f} nats).",
        f"3. Ablating the 16 heads that score highest on repeated random tokens removes {top['share']:.0%} of Δcopy "
        f"{_percentages(top['ci_lo'], top['ci_hi'])}; as many random heads of the same layers remove "
        f"{controls['random_lo']:.0%} to {controls['random_hi']:.0%} ({int(controls['n_controls'])} draws, "
        f"{int(top['n'])} items).",
        "",
        f"pictures: {out / 'figures'}",
        f"tables:   {out} (summary.csv, heads.csv, effects.csv, shares.csv, ablation.csv, removed.csv, …)",
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
    "run the main job on the bundled model: measure, find heads, patch, ablate, draw",
    "backfire demo --out runs/demo",
    DemoConfig,
    run,
)
