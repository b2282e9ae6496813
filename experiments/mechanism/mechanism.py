"""`backfire mechanism`: the evidence that copy heads make the call repeat, all of it, in one resumable folder.

Measurement, frozen heads, joint sets by six methods beside controls, exact patching of Δcopy and Δsem, attribution,
edge knockouts, ablation; then mechanism.csv and mechanism.md, the one table. --plan prints the questions, the
memory and the time first, and runs nothing.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from experiments.mechanism.mechanism_stages import JOINT_PAIRS, MechanismConfig, Stage, stages
from experiments.mechanism.mechanism_table import from_ablation, from_joint, markdown
from experiments.mechanism.workload import Work, peak_bytes, rate_of, sizes
from experiments.run.drawing import draw
from experiments.run.durable import replace as replace_file
from experiments.run.session import Session, open_run, open_session
from experiments.run.study import Report, Study
from experiments.run.tables import frame_text
from mech.engine.engine import MAX_NODES
from mech.errors import InputError
from probes.items.item import select_items

logger = logging.getLogger(__name__)

DEFAULT_ITEMS = 24


def run(config: MechanismConfig) -> Report:
    """Plan; then every stage in turn, the table and the figures."""
    out = config.out or Path("runs/mechanism")
    config = replace(config, limit=config.limit or DEFAULT_ITEMS, out=out)
    steps = stages(config)
    plan = planned(config, steps)
    if config.plan:
        return Report(plan.text)
    logger.info("%s\n", plan.text)
    took: dict[str, float] = {}
    failed: dict[str, str] = {}
    for stage in steps:
        start = time.perf_counter()
        logger.info("== %s", stage.name)
        try:
            report = stage.study.run(stage.config(config))
        except InputError as reason:
            if stage.needed:
                raise
            report = Report(f"not done: {reason}", ok=False)
        took[stage.name] = time.perf_counter() - start
        logger.info("%s\n== %s took %.0f s", report.text, stage.name, took[stage.name])
        if not report.ok:
            failed[stage.name] = (
                report.text.splitlines()[-1] if report.text.startswith("not done") else "a check fails"
            )
    table = write(config, out, plan, took, failed)
    draw(out)
    said = "".join(f"{name}: {reason} (see above)\n" for name, reason in failed.items())
    where = f"{out / 'mechanism.csv'}, {out / 'mechanism.md'}, {out / 'figures'}"
    return Report(f"{markdown(table)}\n{said}{where}", ok=not failed)


@dataclass(frozen=True)
class Plan:
    """What is to be run: a line a stage, with the seconds expected, and the session that was planned with."""

    table: pd.DataFrame
    bytes: float
    session: Session

    @property
    def text(self) -> str:
        """The plan for reading."""
        minutes = self.table["seconds"].sum() / 60
        lines = [
            frame_text(self.table, 0),
            f"in all about {minutes:.0f} minutes here, {self.table['questions'].sum():.0f} questions (hooked full "
            f"forwards with --engine reference), {self.bytes / 2**30:.1f} GiB beside Python's own",
        ]
        return "\n".join(lines)


def planned(config: MechanismConfig, steps: Sequence[Stage]) -> Plan:
    """The plan on this machine, now: the model is loaded, and one run is timed."""
    session = open_session(config, one_env=True)
    for name, limit in (("few", config.few), ("deep", config.deep)):
        if len({item.task_id for item in select_items(session.items, limit=limit)}) < 2:
            raise InputError(
                f"The stages of --{name} items need two tasks at least, for controls and intervals."
            )
    pairs = {name for pair in JOINT_PAIRS.values() for name in pair}
    found = sizes(session, session.items, sorted({"pre", "neut", "fail", *pairs}))
    rate = rate_of(session, session.items[0])
    lines = []
    for stage in steps:
        work: Work = stage.work(found)
        lines.append((stage.name, work.questions, work.nodes, work.reads, work.seconds(session.model, rate)))
    table = pd.DataFrame(lines, columns=["stage", "questions", "nodes", "reads", "seconds"])
    longest = found.system + max(found.contexts.values())
    return Plan(table, peak_bytes(session.model, longest, MAX_NODES), session)


def write(
    config: MechanismConfig, out: Path, plan: Plan, took: dict[str, float], failed: dict[str, str]
) -> pd.DataFrame:
    """mechanism.csv, mechanism.md and the suite's own entry of run.json, with what each stage took."""
    with open_run(STUDY, config, plan.session.model, {}) as folder:
        tables = {
            name: folder.read_table(name)
            for name in (
                "joint",
                "joint_off_target",
                "ablate_removed",
                "ablate_controls",
                "ablate_off_target",
            )
        }
        env = plan.session.items[0].env
        joint = from_joint(tables["joint"].fillna({"controls": ""}), tables["joint_off_target"])
        everywhere = from_ablation(
            env, "mean", tables["ablate_removed"], tables["ablate_controls"], tables["ablate_off_target"]
        )
        table = pd.concat([joint, everywhere], ignore_index=True)
        folder.write_table("mechanism", table)
        replace_file(out / "mechanism.md", markdown(table) + "\n")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        expected = dict(zip(plan.table["stage"], plan.table["seconds"].round(1), strict=True))
        folder.finish(
            {"seconds": took, "planned_seconds": expected, "peak_bytes": peak, "not_behaving": failed}
        )
    return table


STUDY = Study(
    "mechanism",
    "backfire mechanism --env toolshed --limit 24 --plan --out runs/mechanism",
    MechanismConfig,
    run,
)
