"""The stages of `backfire mechanism`: which study, with which options, and what it costs.

Each is a study of its own, resumed by itself in the one run folder; the suite adds nothing but the order and a table.
Costs follow what the studies do (`experiments.mechanism.workload`); where a study decides as it goes, they are what
it takes at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from experiments.heads.ablation import FITTED_ITEMS
from experiments.heads.control_sets import KINDS
from experiments.heads.reference_sets import ReferenceOptions
from experiments.measure import probe as probe_items
from experiments.mechanism import ablate as ablate_heads
from experiments.mechanism import agree as agree_scores
from experiments.mechanism import attribute as attribute_heads
from experiments.mechanism import circuit as find_circuit
from experiments.mechanism import direct as direct_effects
from experiments.mechanism import heads as find_heads
from experiments.mechanism import joint as joint_sets
from experiments.mechanism import knockout as knock_out_edges
from experiments.mechanism import layers as patch_layers
from experiments.mechanism import overlap as compare_effects
from experiments.mechanism import patch as patch_heads
from experiments.mechanism import path as patch_path
from experiments.mechanism import placebo as placebos
from experiments.mechanism.joint import MethodsOptions
from experiments.mechanism.joint_controls import labelled
from experiments.mechanism.joint_item import acts_in
from experiments.mechanism.workload import Sizes, Work, context, leaves
from experiments.run.run_study import ItemStudy
from experiments.run.study import (
    REFERENCE_SIZE,
    Flag,
    MetricOptions,
    SessionOptions,
    Study,
    arguments,
    keyed,
    positive,
)
from mech.errors import InputError
from mech.patching.optimal_constants import STEPS
from probes.effects.joint import ABLATIONS

PAIRS = {"copy": ("pre", "neut"), "sem": ("neut", "fail")}
JOINT_PAIRS = {"joint": ("pre", "neut"), "joint other": ("neut_other", "neut")}
"""Stage → the pair that head sets are asked about: what a record does, and what the failed call's own text does."""
SEQUENCE, N_SEQUENCES = 48, 8  # tokens before a random sequence repeats; sequences that heads are scored on
CIRCUIT_SETS = 600  # sets that the circuit's searches and tests ask an item about, or fewer
PASSAGES = 1600.0  # tokens of the bundled prose and code, and of the random sequences beside them


@dataclass(frozen=True, kw_only=True)
class MechanismConfig(MetricOptions, SessionOptions, MethodsOptions, ReferenceOptions):
    """What `backfire mechanism` is given."""

    ablated_controls: Annotated[
        int, Flag("random sets of each size under mean ablation at all positions", positive)
    ] = 2
    cut_controls: Annotated[
        int, Flag("random sets of each size whose attention to the call is knocked out", positive)
    ] = 1
    deep: Annotated[
        int,
        Flag(
            "items on which every head is patched, for Δcopy and Δsem, or all positions are ablated", positive
        ),
    ] = 8
    few: Annotated[
        int, Flag("items of the further stages: attribution, edges, patterns, layers, paths", positive)
    ] = 24
    plan: Annotated[bool, Flag("print questions, memory and time, and stop", presentation=True)] = False


@dataclass(frozen=True)
class Stage:
    """One study with its options; `work` is what it does for these items.

    Without a stage that is `needed` there is no table, and the suite stops; past others it goes on and says so.
    """

    name: str
    study: Study[Any]
    options: Mapping[str, Any]
    work: Callable[[Sizes], Work]
    needed: bool = False

    def config(self, suite: MechanismConfig) -> Any:
        """The study's config: the stage's options, and the suite's where the study has them.

        A study that maps over no units runs in this process, whatever the suite is given.
        """
        here = {} if isinstance(self.study, ItemStudy) else {"executor": "serial"}
        return arguments(self.study, {**keyed(suite), **here, **self.options})


def stages(config: MechanismConfig) -> list[Stage]:
    """All stages in order: the measurement, the frozen heads, then each kind of evidence."""
    many, k = limit_of(config), config.k
    few, deep = min(many, config.few), min(many, config.deep)
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
        *_joint_stages(config),
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
        *_in_depth(config, few),
        Stage(
            "ablate",
            ablate_heads.STUDY,
            {"limit": deep, "k": k, "controls": config.ablated_controls, "control_kinds": ("random",)},
            lambda s: _ablate(s, deep) * (1 + n_sizes * (1 + config.ablated_controls)),
            needed=True,
        ),
        Stage(
            "circuit",
            find_circuit.STUDY,
            {"limit": many, "transfer": "none", "control_kinds": KINDS},
            lambda s: leaves(s.failed, CIRCUIT_SETS, 0.7) * many + _runs(s, PAIRS["copy"], s.failed) * many,
        ),
        Stage(
            "placebo",
            placebos.STUDY,
            {"limit": deep, "top": _at_most(16, k), "where": "candidate"},
            lambda s: _placebo(s, deep),
        ),
    ]


def limit_of(config: MechanismConfig) -> int:
    """The most items of any stage; InputError where the config does not say."""
    if config.limit is None:
        raise InputError("The suite is planned for a number of items: say --limit.")
    return config.limit


def _joint_stages(config: MechanismConfig) -> list[Stage]:
    """Head sets by every method for each pair; the later pair takes the ablations of TO from the first."""
    return [
        Stage(
            name,
            joint_sets.STUDY,
            {"limit": config.limit, "from": pair[0], "to": pair[1]},
            partial(_joint, config=config, pair=pair, first=name == "joint"),
            needed=name == "joint",
        )
        for name, pair in JOINT_PAIRS.items()
    ]


def _in_depth(config: MechanismConfig, few: int) -> list[Stage]:
    """By what, and along which way, a head has its effect: estimates, edges, sites, layers, paths."""
    pattern = {"site": "pattern", "from": "pre", "to": "neut", "direction": "noise"}
    record = {"at": "record", "from": "neut_matched", "to": "neut", "direction": "noise"}
    fewer = min(few, max(2, config.deep // 2))  # all after the call is run again for each part
    return [
        Stage("direct", direct_effects.STUDY, {"limit": few}, lambda s: _direct(s) * few),
        Stage("attribute", attribute_heads.STUDY, {"limit": few}, lambda s: _attribute(s) * few),
        Stage(
            "knockout",
            knock_out_edges.STUDY,
            {"limit": few, "k": config.k, "controls": config.cut_controls, "control_kinds": "random"},
            lambda s: _knockout(s, 1 + len(config.k) * (1 + config.cut_controls)) * few,
        ),
        Stage("layers", patch_layers.STUDY, {"limit": few}, lambda s: _layers(s) * few),
        Stage(
            "path",
            patch_path.STUDY,
            {"limit": few, "senders": _at_most(8, config.k), "receivers": _at_most(8, config.k)},
            lambda s: _path(s, 20) * few,
        ),
        Stage(
            "patterns",
            patch_heads.STUDY,
            {"limit": few, **pattern, "k": config.k},
            lambda s: _patch(s, "pre", "neut", len(config.k)) * (few / 2),
        ),
        *(
            Stage(
                f"{site} at the call",
                patch_heads.STUDY,
                {"limit": fewer, "site": site, **record, "k": config.k},
                lambda s: _at_record(s, len(config.k)) * fewer,
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


def _both(s: Sizes, copies: float, depth: float = 1.0) -> Work:
    """So many copies of either candidate."""
    return leaves(s.failed, copies, depth) + leaves(s.gold, copies, depth)


def _pair_runs(s: Sizes, source: str, target: str) -> Work:
    """A clean run of either candidate under both conditions."""
    return _runs(s, (source, target), s.failed) + _runs(s, (source, target), s.gold)


def _runs(s: Sizes, conditions: Sequence[str], tokens: float) -> Work:
    """A clean run with activations kept under each condition."""
    return context(sum(s.contexts[name] for name in conditions)) + leaves(tokens, len(conditions))


def _joint(s: Sizes, config: MechanismConfig, pair: tuple[str, str], first: bool) -> Work:
    """Clean runs; every set by every method, both candidates, where the effect is read; selected ones under fail too.

    Beside the questions: the reference items' contexts, their runs as donors, and the fits of optimal constants.
    """
    labels, draws = labelled(config), joint_sets.draws_of(config)
    methods = joint_sets.methods_of(config.methods)
    work = _runs(s, (*pair, "fail"), s.failed) + _runs(s, pair, s.gold)
    for method in methods:
        ablates = method in ABLATIONS
        copies, selected = 0, 0
        for kind in joint_sets.kept(labels, method, config).values():
            copies += draws(method, kind)
            selected += draws(method, kind) if kind == "selected" else 0
        if ablates and not first:
            reads = 1
        else:
            reads = len(acts_in(method, pair))
            if method != "denoise":
                work += leaves(s.failed, selected)
        work += leaves(s.failed, reads * copies) + leaves(s.gold, reads * copies)
    fits = len(joint_sets.kept(labels, "optimal", config)) if "optimal" in methods else 0
    fitted = FITTED_ITEMS * (s.contexts[pair[0]] + fits * STEPS * 4 * 3 * s.half * (s.failed + s.gold) / 2)
    donors = 2 * REFERENCE_SIZE * (sum(s.contexts[name] for name in pair) + s.failed + s.gold)
    return work * limit_of(config) + context(donors + fitted)


def _patch(s: Sizes, source: str, target: str, n_sets: int) -> Work:
    """Both candidates, both directions."""
    sweeps = _both(s, 2 * s.n_heads, s.half) + _both(s, 2 * n_sets)
    return _pair_runs(s, source, target) + sweeps


def _attribute(s: Sizes) -> Work:
    """A backward pass is twice a forward; of a× there is one of its diverging tokens as well.

    The exact effects are those that the stage `direct` has kept.
    """
    return _pair_runs(s, "pre", "neut") + _both(s, 6) + leaves(s.failed, 6)


def _knockout(s: Sizes, n_sets: int) -> Work:
    return context(s.system + s.contexts["neut"]) * 2 + _both(s, 4 * n_sets + 2)


def _direct(s: Sizes) -> Work:
    """Total effects of heads and MLPs by a sweep, direct ones by an unembedding each, in both directions."""
    units = 2 * (s.n_heads + s.n_layers)
    return _pair_runs(s, "pre", "neut") + _both(s, units, s.half) + _both(s, units, 0.0)


def _layers(s: Sizes) -> Work:
    return _pair_runs(s, "pre", "neut") + _both(s, 4 * s.n_layers, s.half)


def _path(s: Sizes, controls: int) -> Work:
    return _pair_runs(s, "pre", "neut") + _runs(s, ("neut",), s.failed) + _both(s, controls + 2, s.half)


def _at_record(s: Sizes, n_sets: int) -> Work:
    """A copy begins at the recorded call: after it come the observation and a× again. Heads by key/value group."""
    after = s.contexts["neut"] - s.contexts["pre"]
    copies = s.n_kv_heads + n_sets
    per_candidate = [Work(copies, copies * (after + n), copies * n) for n in (s.failed, s.gold)]
    return _pair_runs(s, "neut", "neut") + per_candidate[0] + per_candidate[1]


def _placebo(s: Sizes, n_items: int, shuffles: int = 20) -> Work:
    """Sets ablated at all positions, three sweeps an item, knockouts; the model with redrawn weights as well."""
    item = context(s.contexts["neut"]) + leaves(s.failed, 2)
    sets = (item * n_items + context(s.system)) * (shuffles + 4)
    return sets + (leaves(s.failed, 3 * s.n_heads, s.half) + leaves(s.failed, 3)) * n_items


def _ablate(s: Sizes, n_items: int) -> Work:
    """One set: the system prompt once, every item's contexts, and the texts that losses are read on."""
    item = context(s.contexts["fail"] + s.contexts["neut"] - s.contexts["pre"])
    each = item + leaves(s.failed, 3) + leaves(s.gold, 3)
    return each * n_items + context(s.system) + Work(PASSAGES / 60, PASSAGES, PASSAGES)
