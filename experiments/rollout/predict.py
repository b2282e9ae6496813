"""`backfire predict`: does what the probe measures before a step tell whether the step repeats the failed call?

A decision point is a free step of a rollout under `verbatim` or `verbatim+instr`, unablated, no ban, that has a
failed call a× right before it. Its prompt is read back from rollout.jsonl and must be written again, token for token:

    fail   what the model saw                      neut   the same, a× acknowledged without a word of how it went
    pre    the transcript before a×

    G, copy, sem              of a×, in nats, as the probe defines them
    logp_fail                 log p(a×, end of turn | fail)
    p_exact                   exp of it: at temperature 1 the probability that the step is a× and nothing else
    p_repeat                  softmax of the sums over {a×, the task's reference calls} under fail (p_repeat_pre: pre)

With --ablate every decision point is scored under each ablation arm too, the unablated model first, and the rollouts
whose agent was itself ablated (--change ablate, ablate-random) are decision points as well: arm and change say who
acted, `ablation` under what the step was scored. predict_arms.csv has the AUC of every predictor under an arm less
that of the unablated model, on the same points.

predict.jsonl → predict.csv (AUC by predictor) and predict_calibration.csv (of the probabilities). What is predicted:
the step is a canonical repeat of a call that failed before; for p_exact, that it is a× to the letter and ends there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from envs.agent import AgentEnvironment
from envs.base import Task
from envs.harness import HARNESSES, Past, write
from experiments.heads.ablation import AblationOptions, ArmOptions
from experiments.heads.arms import Arms, ablation_arms, parse_arms
from experiments.rollout.arms import with_pool
from experiments.rollout.environments import AgentOptions, open_environment
from experiments.rollout.rolling import phrases
from experiments.run.progress import progress
from experiments.run.run_folder import RunFolder, read_run, recorded
from experiments.run.seeds import py_stream, stream
from experiments.run.session import Session, open_model, open_run, read_wording, require_out
from experiments.run.study import EngineOptions, ModelOptions, OutOptions, Report, Study
from experiments.run.tables import frame_text
from mech.engine.engine import Engine
from mech.engine.queries import Query, Score
from mech.engine.trie import common_prefix
from mech.errors import InputError
from mech.interventions.intervention import NOTHING, Intervention
from mech.models.chat import action_ids, end_of_turn_id, render, shared_length
from probes.measures.ablation_arms import ArmTable, by_arm, labelled
from probes.prompts.wording import Wording
from probes.rollouts.prediction import auc_differences, calibration_table, predict_table
from probes.rollouts.steps import per_step
from probes.stats.bootstrap import RngFactory
from probes.stats.layout import UNABLATED

HARNESSES_READ = ("verbatim", "verbatim+instr")
PREDICTORS = ("backfire_nats", "copy", "sem", "logp_fail", "logp_fail_per_token", "p_repeat", "p_repeat_pre")
PROBABILITIES = ("p_repeat", "p_repeat_pre")
CONTEXTS = ("pre", "fail", "neut")
_UNCHANGED: Mapping[str, Intervention] = {UNABLATED: NOTHING}


@dataclass(frozen=True, kw_only=True)
class PredictConfig(EngineOptions, ArmOptions, OutOptions, AgentOptions, ModelOptions):
    """What `backfire predict` is given; environment, tasks and seed are those of the rollouts."""


def run(config: PredictConfig) -> Report:
    """Score every decision point that is not in the folder yet, then derive the tables."""
    parse_arms(config)  # a mistake there costs nothing
    path = require_out(config)
    studies = read_run(path)["studies"]
    if not studies.get("rollout", {}).get("done"):
        raise InputError(f"{path} has no finished rollouts: run `backfire rollout --out {path}` first.")
    entry = studies["rollout"]
    n_tasks, seed = (recorded(path, entry, f"config.{name}", int) for name in ("tasks", "seed"))
    names = recorded(path, entry, "provenance.tasks", list)
    wording = read_wording(config)
    if wording.sha256 != recorded(path, entry, "provenance.wording_sha256", str):
        raise InputError("The rollouts were written with another wording: give the same --wording.")
    env = recorded(path, entry, "config.env", str)
    with open_environment(env, config.problems) as environment:
        tasks = environment.rollout_tasks(n_tasks, lambda name: py_stream(seed, name))
        known = {task.task_id for task in tasks}
        unknown = [name for name in names if name not in known]
        if unknown:
            raise InputError(
                f"The task {unknown[0]} of the rollouts is not among these: give the same --problems."
            )
        engine = Engine(open_model(config, wording), slow=config.engine == "reference", memory=config.memory)
        session = Session(engine, [], wording, lambda name: stream(seed, name))
        changes, arms = changed_models(session, with_pool(config, env=env, seed=seed), known)
        derived = {"rollout": entry["config_hash"], **arms.derived}
        about = {"wording_sha256": wording.sha256, **arms.about}
        with open_run(STUDY, config, engine.model, about, derived) as folder:
            points = decision_points(folder, ablated=len(changes) > 1)
            by_id = {task.task_id: task for task in tasks}
            scored(folder, engine, environment, by_id, points, wording, config.quiet, changes)
            tables = tables_of(folder.rows("predict"), lambda name: stream(seed, f"predict/{name}"))
            for name, table in tables.items():
                folder.write_table(name, table)
            folder.finish({"forwards_run": engine.forwards.ran, **arms.fitted})
    shown = [frame_text(tables["predict"])]
    if "predict_arms" in tables:
        shown += ["", "AUC under an ablation arm less that of the unablated model, same points"]
        shown.append(frame_text(tables["predict_arms"]))
    return Report("\n".join([*shown, *arms.notes, f"written to {config.out}"]))


def changed_models(
    session: Session, options: AblationOptions, tasks: Collection[str]
) -> tuple[dict[str, Intervention], Arms]:
    """Ablation label → the intervention that decision points are scored under, the unablated first; and the arms.

    Raises:
        InputError: as `ablation_arms`, or an arm has other values for every question (mean-role, resample).
    """
    arms = ablation_arms(session, options, tasks)
    found = {
        arm.label: NOTHING if arm.instead is None else arm.instead.fixed(arm.heads, arm.where)
        for arm in arms.arms
    }
    return found, arms


@dataclass(frozen=True)
class Point:
    """A decision point: the step's row, and the rows of its rollout before it, the last of which failed."""

    row: dict[str, Any]
    before: tuple[dict[str, Any], ...]

    @property
    def history(self) -> tuple[Past, ...]:
        """The steps before it, as a harness writes them."""
        return tuple(
            Past(row["action"], row["observation"], row["error_type"], row["tool"]) for row in self.before
        )


def decision_points(folder: RunFolder, ablated: bool = False) -> list[Point]:
    """The decision points of a folder's rollouts of the unablated model (`ablated`: and of ablated ones), as written.

    Raises:
        InputError: there is none.
    """
    steps = folder.rows("rollout")
    acted = steps["change"] == "none"
    if ablated:
        acted |= steps["change"].str.startswith("ablate")
    kept = steps[steps["harness"].isin(HARNESSES_READ) & acted]
    found: list[Point] = []
    if len(kept):
        marked = per_step(kept)
        for _, group in marked.groupby(["arm", "task_id", "sample"], sort=False):
            rows = [_plain(row) for row in group.to_dict("records")]
            for at, row in enumerate(rows):
                last = rows[at - 1] if at else None
                if row["at_risk"] and last is not None and last["error_type"] is not None and last["action"]:
                    found.append(Point(row, tuple(rows[:at])))
    if not found:
        raise InputError(
            f"{folder.path} has no step after a failed call under {' or '.join(HARNESSES_READ)} without "
            "ablation: run `backfire rollout` with such a harness."
        )
    return found


def _plain(row: dict[Any, Any]) -> dict[str, Any]:
    """A row with None where the frame has NaN."""
    return {
        str(name): None if isinstance(value, float) and math.isnan(value) else value
        for name, value in row.items()
    }


def scored(
    folder: RunFolder,
    engine: Engine,
    environment: AgentEnvironment[Any],
    tasks: dict[str, Task[Any]],
    points: Sequence[Point],
    wording: Wording,
    quiet: bool,
    changes: Mapping[str, Intervention] = _UNCHANGED,
) -> None:
    """Append the row of every decision point under every ablation (label → intervention) that is not there yet."""
    for point in progress(points, len(points), "predict", quiet):
        for label, change in changes.items():
            if decision_id(point, label) not in folder.done_ids("predict"):
                task = tasks[point.row["task_id"]]
                row = decision_row(engine, environment, task, point, wording, label, change)
                folder.append("predict", row)


def decision_id(point: Point, ablation: str) -> str:
    """The id of a decision's row: the step's, then the label of the ablation."""
    return str(point.row["id"]) if ablation == UNABLATED else f"{point.row['id']}|{ablation}"


def decision_row(
    engine: Engine,
    environment: AgentEnvironment[Any],
    task: Task[Any],
    point: Point,
    wording: Wording,
    ablation: str = UNABLATED,
    change: Intervention = NOTHING,
) -> dict[str, Any]:
    """What is known before a step, scored under an ablation (`change`), and whether it repeats.

    Raises:
        InputError: the prompt cannot be written again as it was: another version, template or problem file.
    """
    model, row = engine.model, point.row
    harness, said = HARNESSES[row["harness"]], phrases(wording)
    failed = point.history[-1]
    seen = {
        "pre": point.history[:-1],
        "fail": point.history,
        "neut": (*point.history[:-1], replace(failed, observation=environment.acknowledge())),
    }
    requests = {name: write(harness, environment, task, history, said) for name, history in seen.items()}
    prompts = {name: render(model, list(request.messages)) for name, request in requests.items()}
    opening = list(requests["pre"].messages[: requests["pre"].opening])
    if list(prompts["fail"].ids) != row["prompt_ids"]:
        raise InputError(
            f"The prompt of step {row['id']} cannot be written again: roll out anew with this version."
        )
    golds = [action.text for action in task.gold if action.text != failed.action]
    texts = [failed.action, *dict.fromkeys(golds)]
    asked = [("pre", text) for text in texts] + [("fail", text) for text in texts] + [("neut", failed.action)]
    end = (end_of_turn_id(model),)
    queries = [
        Query(prompts[c].ids, action_ids(model, prompts[c], text).ids + end, change) for c, text in asked
    ]
    shared = min(shared_length(model, opening), common_prefix([query.prompt[:-1] for query in queries]))
    answers = dict(zip(asked, engine.score(queries, shared), strict=True))
    logp = {question: _without_end(answer) for question, answer in answers.items()}
    before, after, neutral = (logp[name, failed.action] for name in CONTEXTS)
    exact = answers["fail", failed.action].total
    return {
        **{
            name: row[name]
            for name in ("id", "model", "env", "arm", "task_id", "template", "sample", "index")
        },
        "id": decision_id(point, ablation),
        "failed_action": failed.action,
        "n_tokens": len(queries[0].action) - 1,
        "logp_pre": before,
        "logp_fail": after,
        "logp_neut": neutral,
        "logp_fail_exact": exact,
        "logp_fail_per_token": after / (len(queries[0].action) - 1),
        "G": before - after,
        "backfire_nats": after - before,
        "copy": neutral - before,
        "sem": after - neutral,
        "p_exact": math.exp(exact),
        "p_repeat": _share([logp["fail", text] for text in texts]),
        "p_repeat_pre": _share([logp["pre", text] for text in texts]),
        "repeats": bool(row["canonical_repeat"]),
        "repeats_exact": row["raw"] == failed.action and row["stop"] == "end_of_turn",
        "change": row["change"],
        "ablation": ablation,
        "step": row["id"],
    }


def _without_end(score: Score) -> float:
    """The log-probability (nats) of the action, without the token that ends the turn."""
    return math.fsum(score.logprobs[:-1].tolist())


def _share(sums: Sequence[float]) -> float:
    """Softmax of the first among them; NaN is never written: one candidate alone has 1."""
    weights = np.exp(np.array(sums) - max(sums))
    return float(weights[0] / weights.sum())


def tables_of(decisions: pd.DataFrame, rng_for: RngFactory) -> dict[str, pd.DataFrame]:
    """The tables predict and calibration of every ablation, and predict_arms where there are two or more.

    p_exact is judged by repeats to the letter, all else by canonical ones.
    """
    points = labelled(decisions.astype({"repeats": int, "repeats_exact": int}))
    exact = points.assign(repeats=points["repeats_exact"])
    kinds = ((points, PREDICTORS, PROBABILITIES), (exact, ("p_exact",), ("p_exact",)))
    parts: dict[str, list[pd.DataFrame]] = {"predict": [], "predict_calibration": []}
    for some, names, probable in kinds:
        parts["predict"].append(by_arm(some, rng_for, _areas(names, probable)))
        parts["predict_calibration"].append(by_arm(some, rng_for, _curves(probable)))
    if points["ablation"].nunique() > 1:
        parts["predict_arms"] = [auc_differences(some, names, rng_for) for some, names, _ in kinds]
    return {name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}


def _areas(names: Sequence[str], probable: Sequence[str]) -> ArmTable:
    return lambda rows, rng_for: predict_table(rows, names, probable, rng_for)


def _curves(probable: Sequence[str]) -> ArmTable:
    return lambda rows, rng_for: calibration_table(rows, probable, rng_for)


STUDY = Study(
    "predict",
    "backfire predict --out runs/rollouts",
    PredictConfig,
    run,
)
