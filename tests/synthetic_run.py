"""A run folder with made-up tables of a realistic shape (30 layers, 9 heads), to be drawn only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments.run.schema import TABLES
from tests.synthetic_patching import write_patching
from tests.synthetic_rollouts import write_rollouts

Cells = list[tuple[str, str]]  # model, environment
N_LAYERS, N_HEADS, N_SELECTED = 30, 9, 16
ITEMS = {"a": 20.0, "b": 31.0, "c": 12.5, "d": 24.0}  # item → its Δcopy in nats
MODELS = {
    "smollm2-135m-q4": 0.135,
    "qwen2.5-0.5b": 0.494,
    "llama3.2-1b": 1.236,
    "smollm2-360m": 0.362,
    "qwen3-0.6b": 0.596,
    "smollm2-1.7b": 1.711,
}  # billions of parameters
LEVELS = {
    "toolshed": {
        "error_type": (
            "unknown_tool",
            "missing_argument",
            "unknown_argument",
            "bad_type",
            "bad_format",
            "not_found",
            "permission_denied",
        ),
        "operator": (
            "arg_typo",
            "date_format",
            "drop_arg",
            "hallucinated_entity",
            "name_for_email",
            "readonly_target",
            "tool_typo",
            "type_swap",
        ),
        "template": ("archive", "cancel_event", "convert", "email_file", "roster", "schedule"),
        "step": ("0", "1", "2"),
        "quotes_source": ("false",),
    },
    "coderepair": {
        "error_type": ("test_failure", "runtime_error", "syntax_error", "timeout"),
        "operator": (
            "comparison_flip",
            "off_by_one",
            "index_shift",
            "dropped_return",
            "undefined_name",
            "arithmetic_flip",
            "boolean_flip",
            "dropped_negation",
            "dropped_reverse",
            "wrong_initial_value",
        ),
        "template": ("strings", "lists", "dicts", "numbers", "recursion", "sorting", "parsing"),
        "step": ("0",),
        "quotes_source": ("true", "false"),
    },
}
# condition → its delta as tenths of −G
DELTAS = {
    "abstract_min": -5.6,
    "abstract": -5.0,
    "fail_other": -5.2,
    "abstract_instr": -5.1,
    "fail_other_unrelated": -9.0,
    "fail_terse": -0.2,
    "fail_verbose": 0.25,
    "fail_echo": 2.1,
    "quote_matched": 0.3,
    "fail_instr": 0.05,
    "fail_early": -1.1,
    "fail_k2": 2.9,
    "fail_k3": 3.8,
    "succ": 0.6,
    "neut": -0.3,
    "neut_pad": 0.0,
}


def write_run(run: Path, seed: int = 0, only_heads: bool = False) -> Path:
    """Write every table that figures read into `run`, or those about heads only."""
    run.mkdir(parents=True, exist_ok=True)
    if not only_heads:
        write_measurement(run, seed=seed + 1)
        write_patching(run)
        write_rollouts(run)
        write_item_pairs(run)
    rng = np.random.default_rng(seed)
    heads = _heads(rng)
    heads.to_csv(run / "heads.csv", index=False)
    effects = _effects(heads, rng)
    effects.to_csv(run / "patch_effects.csv", index=False)
    shares = _head_shares(effects)
    others = [] if only_heads else [pd.read_csv(run / "patch.csv")]
    pd.concat([shares, *others])[list(TABLES["patch"])].to_csv(run / "patch.csv", index=False)
    _attribution(effects, np.random.default_rng(seed + 2)).to_csv(run / "attribute.csv", index=False)
    _ablation(rng).to_csv(run / "ablate.csv", index=False)
    _joint_shares(np.random.default_rng(seed + 3)).to_csv(run / "joint.csv", index=False)
    write_controls(run, np.random.default_rng(seed + 3))
    if not only_heads:
        write_circuit(run, heads)
    return run


def write_item_pairs(run: Path) -> None:
    """Write compare_item_pairs.csv: scores and G of ten items, ours near the published ones."""
    keys = {"model": "m", "env": "toolshed", "unit": "nats", "found_in": "both"}
    rows = [
        {
            **keys,
            **{"kind": kind, "item_id": f"i{item}", "condition": condition, "candidate": candidate},
            **{"measure": measure, "ours": -10.0 - item, "published": -10.1 - item, "difference": 0.1},
        }
        for item in range(10)
        for kind, condition, candidate, measure in (
            ("score", "pre", "failed", "logprob"),
            ("score", "fail", "gold", "logprob"),
            ("measure", "-", "-", "G"),
        )
    ]
    pd.DataFrame(rows).reindex(columns=list(TABLES["compare_item_pairs"])).to_csv(
        run / "compare_item_pairs.csv", index=False
    )


def write_controls(run: Path, rng: np.random.Generator) -> None:
    """Write ablate_controls.csv, ablate_off_target.csv and agree.csv."""
    sizes, kinds = (4, 8, 16, 32), ("random", "norm")
    controls = [
        ("mean", "logprob", f"top{k}", k, 0.8, 0.0, -0.1, 0.1, 20, 1 / 21, 8 / 21, 8, kind, 95.0 + place)
        for k in sizes
        for place, kind in enumerate(kinds)
    ]
    pd.DataFrame(controls, columns=list(TABLES["ablate_controls"])).to_csv(
        run / "ablate_controls.csv", index=False
    )
    rows = []
    for quantity, delta, slope in (
        ("sem", 0.5, 0.01), ("reference_logprob", 0.5, -0.8), ("prose_loss", 0.1, 0.004), ("code_loss", 0.1, 0.01),
        ("random_first_loss", 0.1, -0.01), ("random_repeat_loss", 0.1, 0.3),
    ):  # fmt: skip
        for k in sizes:
            for label in ("", *(f"/{kind}{draw}" for kind in kinds for draw in range(3))):
                kind = label.strip("/0123456789") or "selected"
                change = slope * k * (1 if kind == "selected" else float(rng.normal(0.2, 0.1)))
                arm = 0.1 * delta + 0.2 * abs(change)
                inside = abs(change) + arm < delta
                cells = (1.0, 1.0 + change, change, change - arm, change + arm, delta, inside, 25, 20)
                rows.append(("mean", f"top{k}{label}", kind, k, quantity, *cells))
    pd.DataFrame(rows, columns=list(TABLES["ablate_off_target"])).to_csv(
        run / "ablate_off_target.csv", index=False
    )
    agreed = []
    for direction in ("denoise", "noise"):
        for place, score in enumerate(
            ("prefix_matching", "previous_token", "copying", "transcript_induction")
        ):
            for statistic, k, chance in (
                ("spearman", None, 0.0),
                ("kendall", None, 0.0),
                ("jaccard", 16, 0.03),
            ):
                estimate = 0.5 - 0.15 * place
                cells = (estimate, estimate - 0.1, estimate + 0.08, chance, 25, 20, N_LAYERS * N_HEADS, False)
                effects = ("exact effects", 0.9, 12.6, score.startswith("transcript"))
                agreed += [
                    (metric, direction, score, statistic, k, *cells, *effects)
                    for metric in ("logprob", "margin")
                ]
        halves = (0.7, 0.6, 0.8, 0.0, 25, 20, N_LAYERS * N_HEADS, False, "the other half", 0.9, 12.6, False)
        agreed += [(metric, direction, "", "reliability", None, *halves) for metric in ("logprob", "margin")]
    pd.DataFrame(agreed, columns=list(TABLES["agree"])).to_csv(run / "agree.csv", index=False)


def write_circuit(run: Path, heads: pd.DataFrame) -> None:
    """Write the tables of a circuit that are drawn: three searches reach the target, one does not."""
    sizes = {"score": 46, "attribution": 28, "greedy": 24, "elimination": 21}
    order = heads.sort_values("prefix_matching", ascending=False)
    tests, curve = [], []
    for at, (method, found) in enumerate(sizes.items()):
        for side, loss, n in (("training", 0.0, 9), ("held-out", 0.05 + at / 100, 15)):
            shares = (0.9 - loss, 0.8 - loss, 1.0 - loss) * 3
            for metric, less in (("logprob", 0.0), ("margin", 0.2)):
                head = (method, "necessity", 0.9, found, "L0H0", method != "greedy", side, metric)
                values = [share - less for share in shares]
                beside = (0.1, 100.0, 0.05, 20, 3.5, 0.6, 0.01, 0.08, 8)
                tests.append((*head, *values, n, n, 28.0, *beside, 0.2, 0.4))
            for k in sorted({1, 2, 4, 8, 16, found, *((32, 64) if at < 2 else ())}):
                share = min(1.05, 0.9 * (k / found) ** 0.7) - loss
                curve.append((method, side, "logprob", k, share, share - 0.1, share + 0.08, n))
    for k in (1, 2, 4, 8, 16, 32, 46, 64):
        curve.append(("random", "held-out", "logprob", k, k / 500, -k / 400, k / 200, 15))
    ranking = heads[["layer", "head", "prefix_matching"]].assign(estimate=heads["copying"] / 50, n_methods=0)
    for size in sizes.values():
        ranking["n_methods"] += ranking.index.isin(order.index[:size]).astype(int)
    ranking["selected"] = ranking["n_methods"] == len(sizes)
    frames = {"circuit": tests, "circuit_curve": curve}
    for name, rows in frames.items():
        pd.DataFrame(rows, columns=list(TABLES[name])).to_csv(run / f"{name}.csv", index=False)
    ranking[list(TABLES["circuit_ranking"])].to_csv(run / "circuit_ranking.csv", index=False)


def write_measurement(
    run: Path, models: Sequence[str] = tuple(MODELS)[:1], envs: Sequence[str] = ("toolshed",), seed: int = 1
) -> Path:
    """Write summary.csv and the tables of issue 3 that are drawn, for any names of `models`."""
    run.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    cells = [(model, env) for model in models for env in envs]
    tables = {
        "summary": _summary(cells),
        "breakdown": _breakdown(cells, rng),
        "manipulations": _manipulations(cells, rng),
        "equivalence": _equivalence(cells),
        "profiles": _profiles(cells, rng),
        "scaling": _scaling(cells),
        "scaling_fit": _fits(models, envs),
    }
    for name, table in tables.items():
        table.to_csv(run / f"{name}.csv", index=False)
    return run


def _size(model: str) -> float:
    """Parameters in billions; of a model that is not in the list, a number made of its name's length."""
    return MODELS.get(model, 0.1 * len(model))


def _gain(model: str, env: str) -> float:
    """G in nats: on a line in the logarithm of the size, and off it by a number made of the name's length."""
    start, slope = {"toolshed": (-24.8, 11.0)}.get(env, (-83.0, 27.0))
    return start + slope * float(np.log10(_size(model) / 0.135)) + len(model) % 5 - 2


def _summary(cells: Cells) -> pd.DataFrame:
    rows = []
    for model, env in cells:
        gain = _gain(model, env)
        repeat = 0.9 - 0.4 * float(np.tanh(_size(model)))
        measures = {
            "G": (gain, 2.0), "copy": (0.97 * -gain, 2.0), "sem": (0.03 * -gain, 0.6), "p_repeat_pre": (0.16, 0.03),
            "p_repeat_fail": (repeat, 0.06), "greedy_repeat_pre": (0.0, 0.0), "greedy_repeat_fail": (repeat / 2, 0.09),
            "greedy_repeat_abstract": (repeat / 9, 0.04),
        }  # fmt: skip
        for measure, (mean, arm) in measures.items():
            interval = (mean - arm, mean + 0.9 * arm)
            rows.append((model, env, measure, mean, *interval, 100, 52, 1.2, 0.0001, 0.0002, 2))
    return pd.DataFrame(rows, columns=list(TABLES["summary"]))


def _breakdown(cells: Cells, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for model, env in cells:
        for by, levels in LEVELS[env if env in LEVELS else "coderepair"].items():
            for index, level in enumerate(levels):
                n = 1 if level == "timeout" else int(rng.integers(8, 45))
                copy = -_gain(model, env) * float(rng.uniform(0.6, 1.4))
                for measure, mean in (("copy", copy), ("sem", float(rng.normal(0.8, 1.5))), ("G", -copy)):
                    arm = np.nan if n == 1 else 9 / np.sqrt(n)
                    rows.append(
                        (model, env, by, level, measure, mean, mean - arm, mean + arm, n, min(n, index + 5))
                    )
    return pd.DataFrame(rows, columns=list(TABLES["breakdown"]))


def _manipulations(cells: Cells, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for model, env in cells:
        for condition, part in DELTAS.items():
            gain = _gain(model, env)
            delta = -part * gain / 10 + float(rng.normal(0, 0.4))
            arm = 0.5 + 0.1 * abs(delta)
            p = 1e-4 if abs(delta) > arm else 0.3
            n = 47 if condition == "fail_early" else 60
            row = (model, env, condition, delta, delta - arm, delta + arm, n, 39, 1.2, p, min(1, 13 * p), 13)
            rows.append((*row, gain - delta, abs(delta) + arm < 1.0))
    return pd.DataFrame(rows, columns=list(TABLES["manipulations"]))


def _equivalence(cells: Cells) -> pd.DataFrame:
    rows = [
        (*cell, measure, 0.2, -0.5, 0.9, 1.0, True) for cell in cells for measure in ("sem", "delta_succ")
    ]
    return pd.DataFrame(rows, columns=list(TABLES["equivalence"]))


def _profiles(cells: Cells, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for model, env in cells:
        for measure, share in (("copy", 0.97), ("sem", 0.03), ("G", -1.0)):
            total = -_gain(model, env) * share
            weights = rng.dirichlet(np.linspace(1.0, 4.0, 10))
            parts = dict(zip(("before", "error", "after"), (0.15, 0.6, 0.25), strict=True))
            levels = [("position", str(place), part) for place, part in enumerate(weights)]
            for axis, level, part in [*levels, *(("part", name, part) for name, part in parts.items())]:
                mean = total * part
                rows.append((model, env, measure, axis, level, mean, mean - 0.5, mean + 0.6, 60, 39))
    return pd.DataFrame(rows, columns=list(TABLES["profiles"]))


def _scaling(cells: Cells) -> pd.DataFrame:
    rows = []
    for model, env in cells:
        for measure, mean in (("G", _gain(model, env)), ("copy", -_gain(model, env))):
            rows.append((model, round(_size(model) * 1e9), env, measure, mean, mean - 3, mean + 2.6, 60, 39))
    return pd.DataFrame(rows, columns=list(TABLES["scaling"]))


def _fits(models: Sequence[str], envs: Sequence[str]) -> pd.DataFrame:
    rows: list[tuple[object, ...]] = []
    for env in envs:
        if len(models) < 3:
            rows.append((env, "all", len(models), *[np.nan] * 6, "fewer than three models: not fitted"))
            continue
        x = np.log10([_size(model) * 1e9 for model in models])
        y = np.array([_gain(model, env) for model in models])
        slope, intercept = np.polyfit(x, y, 1)
        crossing = 10 ** (-intercept / slope)
        rows.append(
            (env, "all", len(models), slope, intercept, 0.6, crossing, crossing / 3, crossing * 4, None)
        )
    return pd.DataFrame(rows, columns=list(TABLES["scaling_fit"]))


def _heads(rng: np.random.Generator) -> pd.DataFrame:
    layer, head = np.divmod(np.arange(N_LAYERS * N_HEADS), N_HEADS)
    score = np.clip(rng.exponential(0.03, layer.size), 0, 1)
    strong = rng.choice(np.flatnonzero(layer > 7), N_SELECTED + 4, replace=False)
    score[strong] = rng.uniform(0.35, 0.97, strong.size)
    chosen = np.isin(np.arange(layer.size), np.argsort(-score)[:N_SELECTED])
    return pd.DataFrame(
        {
            "layer": layer,
            "head": head,
            "prefix_matching": score,
            "previous_token": rng.uniform(0, 0.5, layer.size),
            "duplicate_token": rng.uniform(0, 0.2, layer.size),
            "copying": rng.normal(0, 1, layer.size),
            "selected": chosen,
        }
    )


def _effects(heads: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    rows = []
    for direction, strength in (("noise", 0.06), ("denoise", 0.28)):
        share = strength * heads["prefix_matching"] ** 2 * rng.uniform(0.2, 1.1, len(heads))
        share += rng.normal(0, 0.006, len(heads))
        for item, delta in ITEMS.items():
            own = share * rng.uniform(0.7, 1.3)
            for layer, head, value in zip(heads["layer"], heads["head"], own, strict=True):
                rows.append((item, direction, layer, head, value * delta, value))
    table = pd.DataFrame(rows, columns=["item_id", "direction", "layer", "head", "effect_nats", "share"])
    named = {"site": "z", "at": "candidate", "from": "pre", "to": "neut"}
    whole = table.assign(**named, kv_head=np.nan, screen="all")
    # Half of what a head does for a× it does for the reference call.
    margin = whole.assign(effect_nats=0.5 * whole["effect_nats"], metric="margin")
    return pd.concat([whole.assign(metric="logprob"), margin])


def _head_shares(effects: pd.DataFrame) -> pd.DataFrame:
    """Ratios of sums, as `probes.effects.shares.head_shares` makes them."""
    keys = ["metric", "direction", "layer", "head", "site", "at", "from", "to", "screen"]
    means = effects.groupby(keys, sort=False)["effect_nats"].mean().reset_index()
    share = means["effect_nats"] / np.mean(list(ITEMS.values()))
    share = share.where(means["metric"] == "logprob", 2 * share)
    cells = {"n": len(ITEMS), "n_clusters": len(ITEMS), "flagged": False, "kv_head": np.nan}
    return means.assign(share=share, ci_lo=share - 0.01, ci_hi=share + 0.01, **cells)


def _attribution(effects: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Estimates that follow the effects of the heads, less so the larger they are, and of thirty MLPs."""
    exact = effects["effect_nats"].to_numpy()
    table = effects.assign(
        task_id=effects["item_id"], site="z", estimate_nats=2 * np.tanh(exact / 2), delta=20.0
    )
    table["estimate_nats"] += rng.normal(0, 0.1, len(table))
    mlps = table[table["head"] == 0].assign(site="mlp_out", head=np.nan)
    return pd.concat([table, mlps])[list(TABLES["attribute"])]


def _joint_shares(rng: np.random.Generator) -> pd.DataFrame:
    """Eight methods at four sizes, selected heads above their controls, margins below log-probabilities."""
    methods = ("noise", "denoise", "mean", "mean-role", "resample", "zero", "optimal", "knockout")
    rows = []
    for place, method in enumerate(methods):
        for step, k in enumerate((4, 8, 16, 32)):
            kinds = ("random", "norm", "damage", "direction", "sink") if k == 16 else ("random",)
            for metric, factor in (("logprob", 1.0), ("margin", 0.7)):
                share = factor * (0.2 + 0.2 * step + 0.03 * place)
                for kind in kinds:
                    control = 0.02 * step + float(rng.normal(0, 0.01))
                    row = {
                        **{
                            "env": "toolshed",
                            "from": "pre",
                            "to": "neut",
                            "metric": metric,
                            "method": method,
                        },
                        **{"direction": "sufficiency" if method == "denoise" else "necessity"},
                        **{
                            "set": f"top{k}",
                            "k": k,
                            "share": share,
                            "ci_lo": share - 0.1,
                            "ci_hi": share + 0.12,
                        },
                        **{"effect_nats": 24 * share, "controls": kind, "n_controls": 20},
                        **{
                            "control_mean": control,
                            "control_lo": control - 0.05,
                            "control_hi": control + 0.07,
                        },
                        **{"percentile": 100.0, "p": 1 / 21, "family_size": 64},
                        **{"excess": share - control, "excess_lo": share - control - 0.1},
                        **{"excess_hi": share - control + 0.1, "excess_p": 0.001, "excess_p_holm": 0.06},
                        **{"n_draws": 1, "draw_sd": np.nan, "n": 24, "n_clusters": 22},
                    }
                    rows.append(row)
    return pd.DataFrame(rows)[list(TABLES["joint"])]


def _ablation(rng: np.random.Generator) -> pd.DataFrame:
    rows: list[tuple[str, str, int, str, float, float, float, int]] = []
    selected = {4: 23.1, 8: 13.5, 16: 3.2, 32: 2.0}
    for measure, sign in (("copy", 1.0), ("G", -1.0)):
        rows.append(("none", "none", 0, measure, sign * 22.9, sign * 22.9 - 2.2, sign * 22.9 + 2.4, 25))
        for k, value in selected.items():
            mean = sign * value + (0.0 if sign > 0 else 1.5)
            rows.append((f"top{k}", "selected", k, measure, mean, mean - 1.8, mean + 2.0, 25))
            for draw in range(5):
                mean = sign * (24 + 0.3 * k + float(rng.normal(0, 1.5)))
                rows.append((f"random_{draw}", "random", k, measure, mean, mean - 2, mean + 2, 25))
            for draw in range(2):
                mean = sign * (22 + 0.1 * k + draw)
                rows.append((f"norm_{draw}", "norm", k, measure, mean, mean - 2, mean + 2, 25))
    table = pd.DataFrame(rows, columns=list(TABLES["ablate"])[2:])
    return table.assign(how="mean", metric="logprob")[list(TABLES["ablate"])]
