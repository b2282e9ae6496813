"""The stages of `backfire mechanism`: which study, with which options, and what it costs.

Each is a study of its own, resumed by itself in the one run folder; the suite adds nothing but the order and a table.
Costs follow what the studies do (`experiments.workload`); where a study decides as it goes, they are what it takes at
most.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments import (
    ablate_heads,
    agree_scores,
    attribute_heads,
    compare_effects,
    cut_edges,
    direct_effects,
    find_circuit,
    find_heads,
    joint_sets,
    patch_heads,
    patch_layers,
    patch_path,
    placebos,
    probe_items,
)
from experiments.options import Study
from experiments.workload import Sizes, Work, context, leaves

PAIRS = {"copy": ("pre", "neut"), "sem": ("neut", "fail")}
SEQUENCE, N_SEQUENCES = 48, 8  # tokens before a random sequence repeats; sequences that heads are scored on
CIRCUIT_SETS = 600  # sets that the circuit's searches and tests ask an item about, or fewer
PASSAGES = 1600.0  # tokens of the bundled prose and code, and of the random sequences beside them


@dataclass(frozen=True)
class Stage:
    """One study with its options; `work` is what it does for these items.

    Without a stage that is `needed` there is no table, and the suite stops; past others it goes on and says so.
    """

    name: str
    study: Study
    options: Mapping[str, Any]
    work: Callable[[Sizes], Work]
    needed: bool = False


def stages(args: argparse.Namespace) -> list[Stage]:
    """All stages in order: the measurement, the frozen heads, then each kind of evidence."""
    many, few, deep = args.limit, min(args.limit, args.few), min(args.limit, args.deep)
    k, controls = args.k, args.controls
    n_sizes = len(k)
    copy, sem = ({"from": a, "to": b} for a, b in PAIRS.values())
    return [
        Stage("probe", probe_items.STUDY, {"limit": many}, lambda s: _probe(s) * many, needed=True),
        Stage(
            "heads",
            find_heads.STUDY,
            {"scores": "all", "causal_sequences": 1, "top": _at_most(16, k)},
            lambda s: _heads(s, 1),
            needed=True,
        ),
        Stage(
            "joint",
            joint_sets.STUDY,
            {"limit": many, "k": k, "controls": controls, "ablation_controls": args.ablation_controls},
            lambda s: _joint(s, n_sizes, controls, min(controls, args.ablation_controls)) * many,
            needed=True,
        ),
        Stage(
            "patch copy",
            patch_heads.STUDY,
            {"limit": deep, **copy, "k": k},
            lambda s: _patch(s, *PAIRS["copy"], n_sizes) * deep,
        ),
        Stage(
            "patch sem",
            patch_heads.STUDY,
            {"limit": deep, **sem, "k": k},
            lambda s: _patch(s, *PAIRS["sem"], n_sizes) * deep,
        ),
        Stage("overlap", compare_effects.STUDY, {}, lambda s: Work()),
        Stage("agree", agree_scores.STUDY, {}, lambda s: _runs(s, ("neut",), s.failed) * deep),
        *_in_depth(args, few),
        Stage(
            "ablate",
            ablate_heads.STUDY,
            {"limit": deep, "k": k, "controls": args.ablated_controls, "control_kinds": ("random",)},
            lambda s: _ablate(s, deep) * (1 + n_sizes * (1 + args.ablated_controls)),
            needed=True,
        ),
        Stage(
            "circuit",
            find_circuit.STUDY,
            {"limit": many, "transfer": "none"},
            lambda s: leaves(s.failed, CIRCUIT_SETS, 0.7) * many + _runs(s, PAIRS["copy"], s.failed) * many,
        ),
        Stage(
            "placebo",
            placebos.STUDY,
            {"limit": deep, "top": _at_most(16, k), "where": "candidate"},
            lambda s: _placebo(s, deep),
        ),
    ]


def _in_depth(args: argparse.Namespace, few: int) -> list[Stage]:
    """What carries the effect of a head, and along which way: estimates, edges, sites, layers, paths."""
    pattern = {"site": "pattern", "from": "pre", "to": "neut", "direction": "noise"}
    record = {"at": "record", "from": "neut_matched", "to": "neut", "direction": "noise"}
    fewer = max(2, few // 2)  # everything behind the call is run again for each part
    return [
        Stage("attribute", attribute_heads.STUDY, {"limit": few}, lambda s: _attribute(s) * few),
        Stage(
            "cut",
            cut_edges.STUDY,
            {"limit": few, "k": args.k, "controls": 1},
            lambda s: _cut(s, 1 + 2 * len(args.k)) * few,
        ),
        Stage("direct", direct_effects.STUDY, {"limit": few}, lambda s: _direct(s) * few),
        Stage("layers", patch_layers.STUDY, {"limit": few}, lambda s: _layers(s) * few),
        Stage(
            "path",
            patch_path.STUDY,
            {"limit": few, "senders": _at_most(8, args.k), "receivers": _at_most(8, args.k)},
            lambda s: _path(s, 20) * few,
        ),
        Stage(
            "patterns",
            patch_heads.STUDY,
            {"limit": few, **pattern, "k": args.k},
            lambda s: _patch(s, "pre", "neut", len(args.k)) * (few / 2),
        ),
        *(
            Stage(
                f"{site} at the call",
                patch_heads.STUDY,
                {"limit": fewer, "site": site, **record, "k": args.k},
                lambda s: _at_record(s, len(args.k)) * fewer,
            )
            for site in ("k", "v")
        ),
    ]


def _at_most(most: int, k: Sequence[int]) -> int:
    """The largest of the sizes that is no more than that, or the smallest."""
    return max([one for one in k if one <= most] or k[:1])


def _probe(s: Sizes) -> Work:
    records = sum(s.contexts[name] - s.contexts["pre"] for name in ("neut", "fail", "fail", "neut"))
    return context(s.contexts["pre"] + records) + leaves(s.failed, 9) + leaves(s.gold, 5)


def _heads(s: Sizes, n_causal: int) -> Work:
    scored = context(N_SEQUENCES * 2 * SEQUENCE)
    return scored + leaves(SEQUENCE - 1, 2 * n_causal * s.n_heads, s.half)


def _runs(s: Sizes, conditions: Sequence[str], tokens: float) -> Work:
    """A clean run with activations kept under each condition."""
    return context(sum(s.contexts[name] for name in conditions)) + leaves(tokens, len(conditions))


def _joint(s: Sizes, n_sizes: int, controls: int, ablation_controls: int) -> Work:
    """Effects of every set (in pre and neut for three ablations), off-target changes of the selected ones."""
    clean = _runs(s, ("pre", "neut", "fail"), s.failed) + _runs(s, ("pre", "neut"), s.gold)
    patched, ablated = n_sizes * (1 + controls), n_sizes * (1 + ablation_controls)
    effects = leaves(s.failed, 3 * patched + 6 * ablated + 5 * n_sizes)
    return clean + effects + leaves(s.gold, 6 * n_sizes)


def _patch(s: Sizes, source: str, target: str, n_sets: int) -> Work:
    sweeps = leaves(s.failed, 2 * s.n_heads, s.half) + leaves(s.failed, 2 * n_sets)
    return _runs(s, (source, target), s.failed) + sweeps


def _attribute(s: Sizes) -> Work:
    """A backward pass is twice a forward."""
    units = s.n_heads + s.n_layers
    return _runs(s, ("pre", "neut"), s.failed) + leaves(s.failed, 2 * units, s.half) + leaves(s.failed, 6)


def _cut(s: Sizes, n_sets: int) -> Work:
    return context(s.system + s.contexts["neut"]) + leaves(s.failed, 4 * n_sets + 2)


def _direct(s: Sizes) -> Work:
    """Total effects of heads and MLPs by a sweep, direct ones by an unembedding each, in both directions."""
    units = 2 * (s.n_heads + s.n_layers)
    return (
        _runs(s, ("pre", "neut"), s.failed) + leaves(s.failed, units, s.half) + leaves(s.failed, units, 0.0)
    )


def _layers(s: Sizes) -> Work:
    return _runs(s, ("pre", "neut"), s.failed) + leaves(s.failed, 4 * s.n_layers, s.half)


def _path(s: Sizes, controls: int) -> Work:
    return _runs(s, ("pre", "neut", "neut"), s.failed) + leaves(s.failed, controls + 2, s.half)


def _at_record(s: Sizes, n_sets: int) -> Work:
    """A copy begins at the recorded call: behind it stand the observation and a× again. Heads by key/value group."""
    behind = s.contexts["neut"] - s.contexts["pre"] + s.failed
    copies = s.n_kv_heads + n_sets
    return _runs(s, ("neut", "neut"), s.failed) + Work(copies, copies * behind, copies * s.failed)


def _placebo(s: Sizes, n_items: int, shuffles: int = 20) -> Work:
    """Sets ablated at all positions, three sweeps an item, cuts; the model with redrawn weights as well."""
    item = context(s.contexts["neut"]) + leaves(s.failed, 2)
    sets = (item * n_items + context(s.system)) * (shuffles + 4)
    return sets + (leaves(s.failed, 3 * s.n_heads, s.half) + leaves(s.failed, 3)) * n_items


def _ablate(s: Sizes, n_items: int) -> Work:
    """One set: the system prompt once, every item's contexts, and the texts that losses are read on."""
    item = context(s.contexts["fail"] + s.contexts["neut"] - s.contexts["pre"])
    each = item + leaves(s.failed, 3) + leaves(s.gold, 3)
    return each * n_items + context(s.system) + Work(PASSAGES / 60, PASSAGES, PASSAGES)
