"""backfire mechanism: a plan that counts what is asked, stages resumed in one folder, one table out of theirs."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest

from experiments.mechanism.mechanism_stages import MechanismConfig, Stage, stages
from experiments.mechanism.mechanism_table import COLUMNS, NAMES, from_joint, markdown
from experiments.mechanism.workload import Work, leaves, sizes
from experiments.run.seeds import stream
from experiments.run.session import Session
from mech.engine.engine import Engine
from probes.items.item import dump_items
from probes.prompts.wording import load_wording
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture

FAR = {"unrelated_action": "XYZW", "unrelated_observation": "QJVK"}


SMALL = MechanismConfig(
    limit=3,
    few=3,
    deep=3,
    k=(1, 2),
    controls=2,
    ablation_controls=1,
    control_k=(2,),
    control_kinds="random,sink,direction",
    draws=2,
    methods="noise,denoise,mean,resample,zero,knockout",
)
WORDS = [
    *("--k", "1,2", "--controls", "2", "--ablation-controls", "1", "--control-k", "2", "--draws", "2"),
    *("--control-kinds", SMALL.control_kinds, "--methods", SMALL.methods),
]


def planned(shell: Shell, name: str) -> float:
    """Questions that the plan counts for a stage of three short items."""
    session = Session(
        Engine(loaded_once(str(shell.model))), list(ITEMS[:3]), load_wording(), lambda name: stream(0, name)
    )
    [stage] = [one for one in stages(SMALL) if one.name == name]
    return stage.work(sizes(session, session.items, ("pre", "neut", "fail", "neut_other"))).questions


def asked(shell: Shell, study: str, *words: str) -> int:
    """Forwards that the reference path takes for them: one a question."""
    shell.ran(study, *words, "--engine", "reference")
    return shell.forwards(study + (" neut_other>neut" if "--from" in words else ""))[0]


def test_the_plan_counts_the_questions_that_the_reference_path_answers(shell: Shell) -> None:
    reference = ["--reference-items", f"4@{shell.reference}"]
    found = asked(shell, "joint", *WORDS, *reference)
    # Beside the questions: means and donors of ablations (four items, two conditions and actions), prefix caches of
    # contexts.
    assert planned(shell, "joint") == pytest.approx(found, abs=20 + 2 * len(ITEMS))
    found = asked(shell, "joint", *WORDS, *reference, "--from", "neut_other")
    assert planned(shell, "joint other") < planned(shell, "joint")
    assert planned(shell, "joint other") == pytest.approx(found, abs=20 + 2 * len(ITEMS))
    found = asked(shell, "patch", "--k", "1,2")
    assert planned(shell, "patch copy") == pytest.approx(found, abs=2 * len(ITEMS))


def test_work_adds_up_and_is_multiplied() -> None:
    one = leaves(10, 4, depth=0.5)
    assert one == Work(4, 20, 40) and (one + one) == one * 2


def rows() -> tuple[pd.DataFrame, pd.DataFrame]:
    base = {"env": "shed", "from": "pre", "to": "neut", "method": "noise", "set": "top4", "k": 4, "n": 9}
    base = {**base, "direction": "necessity", "n_clusters": 9, "n_draws": 1, "draw_sd": None}
    own = {**base, "share": 0.5, "ci_lo": 0.41, "ci_hi": 0.62}
    random = {
        "controls": "random",
        "control_mean": -0.02,
        "control_lo": -0.1,
        "control_hi": 0.03,
        "n_controls": 20,
    }
    random = {**random, "p": 1 / 21, "p_holm": 0.4, "family_size": 8, "percentile": 100.0}
    random = {
        **random,
        "excess": 0.52,
        "excess_lo": 0.4,
        "excess_hi": 0.6,
        "excess_p": 0.001,
        "excess_p_holm": 0.008,
    }
    sink = {
        **random,
        "controls": "sink",
        "control_mean": 0.1,
        "control_lo": 0.05,
        "control_hi": 0.15,
        "n_controls": 1,
    }
    sink = {**sink, "p": math.nan, "percentile": math.nan}
    margin = {"share": 0.3, "ci_lo": math.nan, "ci_hi": math.nan, "control_mean": 0.01}
    lines = [{**own, **kind, "metric": "logprob"} for kind in (random, sink)]
    lines += [{**one, **margin, "metric": "margin"} for one in lines]
    lines += [{**lines[0], "metric": "logprob_per_token"}]
    off = {name: base[name] for name in ("env", "from", "to", "method", "set", "k")}
    changes = pd.DataFrame(
        [
            {**off, "quantity": "reference", "change": -1.234, "equivalent": False},
            {**off, "quantity": "sem", "change": 0.1, "equivalent": True},
        ]
    )
    return pd.DataFrame(lines), changes


def test_the_table_puts_metrics_side_by_side_and_names_every_kind_of_control() -> None:
    table = from_joint(*rows())
    assert tuple(table.columns) == COLUMNS and len(table) == 4  # sums alone
    row = table.iloc[0]
    assert row["p"] == pytest.approx(1 / 21) and row["reference_change"] == -1.234
    assert row["sem_equivalent"] == "true" and pd.isna(row["prose_change"])
    text = markdown(table)
    assert "### shed, pre → neut, 9 items" in text
    assert "| noising (z from `pre`): necessity | 50 % [41, 62] / 30 % |" in text
    assert "| random, same layers | −2 % (−10 to 3) / 1 % (−10 to 3) |" in text
    assert "| top 4 | excess over random sets (Holm p) | random, same layers | sink heads |" in text
    assert "| 52 % [40, 60] (p 0.008) / 52 % [40, 60] (p 0.008) |" in text
    assert "| 10 % [5, 15] / 1 % [5, 15] |" in text
    assert "log p of the reference action | −1.23 |" in text and "prose" not in text


def test_every_stage_is_a_study_with_options_it_has() -> None:
    found: list[Stage] = stages(MechanismConfig(limit=24))
    assert len({stage.name for stage in found}) == len(found)
    for stage in found:
        assert set(stage.options) <= {option.key for option in stage.study.options}, stage.name


def test_the_whole_suite_runs_resumes_and_ends_in_one_table(shell: Shell) -> None:
    words = [*WORDS, "--ablated-controls", "1", "--deep", "3", "--few", "3", "--metric", "margin"]
    words += ["--reference-items", f"4@{shell.reference}"]
    dump_items([replace(one, meta={**one.meta, **FAR}) for one in ITEMS[:3]], shell.items)
    said = shell("mechanism", *words)
    # A model of random weights is dead: the placebos say so, and the suite is done all the same.
    assert said.code == 1 and not said.err and any("placebo: a check fails" in line for line in said.out)
    table = shell.table("mechanism")
    assert tuple(table.columns) == COLUMNS
    assert set(zip(table["method"], table["where"], strict=True)) == set(NAMES) - {
        *(("resample", "all"), ("zero", "all"), ("mean-role", "candidate"), ("optimal", "candidate")),
    }
    assert set(zip(table["from"], table["to"], strict=True)) == {("pre", "neut"), ("neut_other", "neut")}
    assert set(table["metric"]) == {"logprob", "margin", "diverging"}
    carried, removed = shell.table("joint"), shell.table("ablate_removed")
    here = "method == 'knockout' and k == 2 and metric == 'margin' and controls == 'sink'"
    assert table.query(here)["share"].tolist() == carried.query(here)["share"].tolist()
    assert len(table.query(here)) == 2  # pairs
    everywhere = table.query("where == 'all' and k == 2 and metric == 'logprob'").iloc[0]
    chosen = removed.query("kind == 'selected' and k == 2 and metric == 'logprob'")
    assert everywhere["share"] == chosen["share"].iloc[0]
    for name in ("overlap", "agree", "circuit", "placebo", "direct", "layers", "path", "attribute"):
        assert len(shell.table(name)), name
    assert set(shell.table("patch")["site"]) == {"z", "pattern", "k", "v"}
    assert shell.path("mechanism.md").read_text().strip() in "\n".join(said.out)
    about = shell.about("mechanism")
    assert set(about["extra"]["seconds"]) == set(about["extra"]["planned_seconds"])
    before = {name: shell.path(name).read_bytes() for name in ("mechanism.csv", "joint.jsonl")}
    assert shell("mechanism", *words).code == 1
    assert {name: shell.path(name).read_bytes() for name in before} == before
