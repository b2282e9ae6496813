"""Every command of `backfire`: group, module and one line. Nothing is imported here, so that help is at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Where a command's STUDY is, and what `backfire --help` says of it (the study's `summary`)."""

    group: str
    module: str
    summary: str


GROUPS: Mapping[str, str] = {
    "measure": "how much a failed call makes itself likelier",
    "mechanism": "which heads do it",
    "rollouts": "in a running agent",
    "tools": "checks, benchmarks, the demo",
}
RENAMED: Mapping[str, str] = {"cut": "knockout"}
"""A command's earlier name → its name."""
COMMANDS: Mapping[str, Command] = {
    "items": Command(
        "measure",
        "experiments.measure.items",
        "make the environment's decision points and show what is in them",
    ),
    "probe": Command(
        "measure",
        "experiments.measure.probe",
        "measure how much a recorded failure raises or lowers the log-probability of repeating it",
    ),
    "decomposition": Command(
        "measure",
        "experiments.measure.decomposition",
        "split the damage into copy and meaning, with intervals, by error family and by token",
    ),
    "manipulations": Command(
        "measure",
        "experiments.measure.manipulations",
        "write the same failure in other ways and measure each against the standard record",
    ),
    "scaling": Command(
        "measure",
        "experiments.measure.scaling",
        "run the decomposition on many models and fit G against their size",
    ),
    "compare": Command(
        "measure",
        "experiments.measure.compare",
        "put finished runs beside published numbers: summaries, or the scores of single items",
    ),
    "heads": Command(
        "mechanism",
        "experiments.mechanism.heads",
        "find induction-style heads on repeated random tokens and freeze a set",
    ),
    "patch": Command(
        "mechanism",
        "experiments.mechanism.patch",
        "attribute a difference of two conditions to heads or layers by exact noising and denoising",
    ),
    "joint": Command(
        "mechanism",
        "experiments.mechanism.joint",
        "what the best heads carry of Δcopy together, by eight methods, each beside seven kinds of controls",
    ),
    "ablate": Command(
        "mechanism",
        "experiments.mechanism.ablate",
        "take a frozen head set out of the whole run and measure again, beside controls of six kinds",
    ),
    "knockout": Command(
        "mechanism",
        "experiments.mechanism.knockout",
        "cut attention from where the call would be repeated to the failed call in the record",
    ),
    "circuit": Command(
        "mechanism",
        "experiments.mechanism.circuit",
        "find the smallest set of heads that carries a share of Δcopy, and test it where it was not found",
    ),
    "attribute": Command(
        "mechanism",
        "experiments.mechanism.attribute",
        "estimate every head's effect by gradients and show the estimates against the exact sweep",
    ),
    "direct": Command(
        "mechanism",
        "experiments.mechanism.direct",
        "split every head's and MLP's effect into what reaches the logits by itself and what goes through others",
    ),
    "layers": Command(
        "mechanism",
        "experiments.mechanism.layers",
        "attribute a difference of two conditions to layers: MLP outputs and the residual stream",
    ),
    "path": Command(
        "mechanism",
        "experiments.mechanism.path",
        "cut the path from previous-token heads into the keys of induction heads at the recorded call",
    ),
    "agree": Command(
        "mechanism",
        "experiments.mechanism.agree",
        "compare the ranking of heads by every score with that by their causal effects",
    ),
    "overlap": Command(
        "mechanism",
        "experiments.mechanism.overlap",
        "does the mark of failure (Δsem) have heads of its own, and are they those of Δcopy",
    ),
    "placebo": Command(
        "mechanism",
        "experiments.mechanism.placebo",
        "what must find nothing: redrawn weights, shuffled heads, an unrelated call, self-patches, padding",
    ),
    "mechanism": Command(
        "mechanism",
        "experiments.mechanism.mechanism",
        "the whole suite of evidence on one environment, with a plan of its cost first (--plan)",
    ),
    "rollout": Command(
        "rollouts",
        "experiments.rollout.rollout",
        "let the model act under harnesses, bans and changed heads, and count what it repeats",
    ),
    "predict": Command(
        "rollouts",
        "experiments.rollout.predict",
        "whether G, copy and repeat probabilities before a step of a rollout tell that it repeats",
    ),
    "demo": Command(
        "tools",
        "experiments.demo",
        "run the main job on the bundled model: measure, find heads, patch and cut them, draw",
    ),
    "merge": Command(
        "tools",
        "experiments.merge",
        "join the shards of a study, run as a job array with --shard, into one run folder with its tables",
    ),
    "doctor": Command(
        "tools",
        "experiments.bench.doctor",
        "print versions and identity, and run every check of a model, its tokenizer and its chat template",
    ),
    "calibrate": Command(
        "tools",
        "experiments.bench.calibrate",
        "simulate how often the tests err and the intervals miss, with few clusters of skewed values",
    ),
    "bench": Command(
        "tools",
        "experiments.bench.bench",
        "time the packed engine against the usual ways, in one run, and say how near the machine's limit it is",
    ),
    "bench-sandbox": Command(
        "tools",
        "experiments.bench.bench_sandbox",
        "programs a second through the sandbox, beside a bare interpreter for each",
    ),
}
