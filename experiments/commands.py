"""Every command of `backfire`: group, module and one line. Nothing is imported here, so that help is at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Where a command's STUDY is, and what the overview and the command's help say of it."""

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
_SUMMARIES: Mapping[str, Mapping[str, str]] = {
    "measure": {
        "items": "make the environment's decision points and show what is in them",
        "import": "make decision points of the failed calls in agent logs",
        "probe": "measure how much a recorded failure raises or lowers the log-probability of repeating it",
        "decomposition": "split the damage into copy and meaning, with intervals, by error family and by token",
        "manipulations": "write the same failure in other ways and measure each against the standard record",
        "scaling": "run the decomposition on many models and fit G against their size",
        "compare": "put finished runs beside published numbers: summaries, or the scores of single items",
    },
    "mechanism": {
        "heads": "find induction-style heads on repeated random tokens and freeze a set",
        "patch": "attribute a difference of two conditions to heads or layers by exact noising and denoising",
        "joint": "share of Δcopy that the best heads account for, by eight methods, beside seven kinds of controls",
        "ablate": "ablate a frozen head set and measure again, beside controls of six kinds",
        "knockout": "knock out attention from where the call would be repeated to the failed call in the record",
        "circuit": (
            "find the smallest set of heads that accounts for a share of Δcopy, and test it where it was not found"
        ),
        "attribute": "estimate every head's effect by gradients and show the estimates against the exact sweep",
        "direct": (
            "split every head's and MLP's effect into what reaches the logits by itself and what goes through others"
        ),
        "layers": "attribute a difference of two conditions to layers: MLP outputs and the residual stream",
        "path": "ablate the path from previous-token heads into the keys of induction heads at the recorded call",
        "agree": "compare the ranking of heads by every score with that by their causal effects",
        "overlap": "does the mark of failure (Δsem) have heads of its own, and are they those of Δcopy",
        "placebo": (
            "what must find nothing: redrawn weights, shuffled heads, an unrelated call, self-patches, padding"
        ),
        "mechanism": "the whole suite of evidence on one environment, with a plan of its cost first (--plan)",
    },
    "rollouts": {
        "rollout": "let the model act under harnesses, bans and changed heads, and count what it repeats",
        "predict": "whether G, copy and repeat probabilities before a step of a rollout predict that it repeats",
    },
    "tools": {
        "demo": "run the main job on the bundled model: measure, find heads, patch and knock out, draw",
        "merge": "join the shards of a study, run as a job array with --shard, into one run folder with its tables",
        "doctor": "print versions and identity, and run every check of a model, its tokenizer and its chat template",
        "calibrate": "simulate how often the tests err and the intervals miss, with few clusters of skewed values",
        "bench": (
            "time the packed engine against the usual ways, in one run, and say how near the machine's limit it is"
        ),
        "bench-sandbox": "programs a second through the sandbox, beside a bare interpreter for each",
    },
}
_FOLDERS = {"rollouts": "rollout", "tools": "bench"}
_MODULES = {
    "demo": "experiments.demo",
    "import": "experiments.measure.import_logs",
    "merge": "experiments.merge",
}
COMMANDS: Mapping[str, Command] = {
    name: Command(
        group,
        _MODULES.get(name, f"experiments.{_FOLDERS.get(group, group)}.{name.replace('-', '_')}"),
        summary,
    )
    for group, commands in _SUMMARIES.items()
    for name, summary in commands.items()
}
"""Name → command; the module has the command's name, but for those of _MODULES."""
