"""decomposition, manipulations and scaling as a user runs them: rows shared, tables derived, mixtures refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from envs.coderepair.problems import bundled_problems
from experiments.cli import main
from experiments.measure.decomposition import NAMES
from experiments.run.item_pools import pool_key
from experiments.run.schema import TABLES
from probes.items.item import dump_items
from probes.items.toolshed import build_toolshed_items
from probes.measures.measures import DEFINITIONS
from probes.prompts.conditions import CONDITIONS, CORE, MANIPULATIONS
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, shell  # noqa: F401 - a fixture
from tests.tolerances import IDENTITY

FAMILIES = ("llama", "gpt_neox")  # two of those whose tiny model has room for these prompts


def wide(shell: Shell, out: str = "run") -> pd.DataFrame:
    """Items down, measures across."""
    return shell.table("measures", out).pivot(index="item_id", columns="measure", values="value")


def test_decomposition_scores_the_core_and_derives_every_table(shell: Shell) -> None:
    said = shell.once("decomposition")
    rows = shell.lines("scores")
    assert {row["condition"] for row in rows} == set(NAMES) > {*CORE, "neut_pad", "neut_other", "mark"}
    for item in ITEMS[:3]:
        own = [row["condition"] for row in rows if row["item_id"] == item.item_id]
        assert len(own) == 2 * len(set(own)) + 2 * 2, "a× and reference everywhere, distractors in two"
    values = wide(shell)
    assert (values["G"] + values["copy"] + values["sem"]).abs().max() <= IDENTITY
    assert (values["G"] + values["copy_pad"] + values["sem_pad"]).abs().max() <= IDENTITY
    split = shell.table("decomposition").set_index("quantity")
    assert split.loc["copy_share", "estimate"] == pytest.approx(values["copy"].sum() / -values["G"].sum())
    assert split.loc["share_G_negative", "estimate"] == pytest.approx((values["G"] < 0).mean())
    parts = shell.table("profiles")
    for axis in ("position", "part"):
        of_axis = parts[(parts["axis"] == axis) & (parts["measure"] == "copy")]
        assert of_axis["mean"].sum() == pytest.approx(values["copy"].mean(), abs=1e-6)
    for name in (
        "measures",
        "summary",
        "decomposition",
        "equivalence",
        "breakdown",
        "profiles",
        "length_match",
    ):
        assert tuple(shell.table(name).columns[: len(TABLES[name])]) == TABLES[name], name
        assert len(shell.table(name)), name
    matched = shell.table("length_match").set_index("condition")
    assert (
        set(matched.index) == {"neut_pad", "neut_matched", "neut_other"} and matched.loc["neut_pad", "n"] == 3
    )
    assert any("copy_share" in line for line in said.out) and "forwards run" in "\n".join(said.out)


def test_manipulations_are_paired_with_the_standard_record(shell: Shell) -> None:
    said = shell.ran("manipulations", "--conditions", "all")
    values, table = wide(shell), shell.table("manipulations").set_index("condition")
    assert set(table.index) == set(MANIPULATIONS)
    logprob = {row["id"]: row["logprob"] for row in shell.lines("scores")}
    for name in MANIPULATIONS:
        items = [i for i in values.index if f"{i}|{name}|failed" in logprob]
        if name == "fail_early":  # elsewhere it is fail
            items = [item.item_id for item in ITEMS[:3] if item.step_index]
        n = {"fail_unrelated": 2, "fail_early": 1}.get(name, 3)
        assert len(items) == table.loc[name, "n"] == n
        deltas = [logprob[f"{i}|{name}|failed"] - logprob[f"{i}|fail|failed"] for i in items]
        assert table.loc[name, "delta"] == pytest.approx(np.mean(deltas))
        assert table.loc[name, "G"] == pytest.approx(values.loc[items, f"G_{name}"].mean())
    assert (table["bound"] == 0.5).all() and table["p"].isna().all()  # two tasks cannot say anything
    assert any("quote_matched" in line for line in said.out)
    assert "left out: fail_unrelated: 1 items have no unrelated call in the pool" in said.out


def test_a_study_takes_rows_that_another_left_and_changes_none(shell: Shell) -> None:
    shell.once("decomposition")
    before = shell.path("scores.jsonl").read_bytes()
    shell.ran("manipulations", "--conditions", "fail_echo,quote_matched")
    after = shell.path("scores.jsonl").read_bytes()
    assert after.startswith(before)
    new = [json.loads(line) for line in after[len(before) :].splitlines()]
    assert {row["condition"] for row in new} == {"fail_echo", "quote_matched"}
    shell.ran_for_rows("manipulations", "--conditions", "fail_echo,quote_matched", out="alone")
    for one in shell.lines("scores", "alone"):
        [same] = [row for row in shell.lines("scores") if row["id"] == one["id"]]
        assert same["prompt_sha256"] == one["prompt_sha256"]
        assert same["logprob"] == pytest.approx(one["logprob"], abs=1e-4)
    summary = shell.table("summary").set_index("measure")
    echo = summary.loc["G", "mean"] - summary.loc["G_fail_echo", "mean"]
    assert summary.loc["delta_fail_echo", "mean"] == pytest.approx(echo)


def test_rows_of_another_wording_or_other_items_are_not_taken_for_these(shell: Shell) -> None:
    shell.ran_for_rows("probe")
    kept = contents(shell.tmp / "run")["scores.jsonl"]
    wording = json.loads(
        (Path(__file__).parent.parent.parent / "probes/prompts/wordings/default.json").read_text()
    )
    other = shell.tmp / "wording.json"
    other.write_text(json.dumps({**wording, "observation_prefix": "Seen: "}))
    shell("decomposition", "--wording", other).sentence(
        "another prompt, action or ablation", "choose another --out"
    )
    changed = [dataclasses.replace(ITEMS[0], failed_action="grow(plt='fig')"), *ITEMS[1:3]]
    dump_items(changed, shell.tmp / "changed.jsonl")
    shell("manipulations", "--items", shell.tmp / "changed.jsonl").sentence("garden-0|pre|failed")
    assert contents(shell.tmp / "run")["scores.jsonl"] == kept


def test_what_an_environment_cannot_have_is_left_out_and_said(shell: Shell) -> None:
    bare = [
        dataclasses.replace(item, distractors=(), prefix_actions=(), prefix_observations=(), step_index=0)
        for item in ITEMS
    ]
    dump_items(bare, shell.tmp / "bare.jsonl")
    said = shell.ran("manipulations", "--items", shell.tmp / "bare.jsonl", "--limit", "2")
    text = "\n".join(said.out)
    assert "left out: fail_early: garden has no step" in text
    assert "left out: fail_other: 2 items have no distractor" in text
    assert not {"fail_early", "fail_other"} & {row["condition"] for row in shell.lines("scores")}


@pytest.mark.parametrize("family", FAMILIES)
def test_identities_hold_and_random_weights_show_no_inversion(
    family: str, shell: Shell, tiny_folder: FolderFactory, tmp_path: Path
) -> None:
    items = tmp_path / "shed.jsonl"
    dump_items(build_toolshed_items(5, n_tasks=12)[:40:20], items)
    shell.ran("decomposition", "--model", tiny_folder(family), "--items", items)
    values, summary = wide(shell), shell.table("summary").set_index("measure")
    assert (values["G"] + values["copy"] + values["sem"]).abs().max() <= IDENTITY
    assert (values["margin_shift"] - values["repair"] - values["G"]).abs().max() <= IDENTITY
    assert values[["G", "copy", "sem"]].abs().min().min() > 0
    # A trained model loses more than one nat a token; random weights move a small part of that, in either direction.
    assert summary.loc["G_per_token", "mean"] == pytest.approx(0, abs=0.1)
    assert summary.loc["p_repeat_shift", "mean"] == pytest.approx(0, abs=0.25)


def test_scaling_puts_many_models_into_one_table_and_runs_none_twice(
    shell: Shell, tiny_folder: FolderFactory
) -> None:
    models = [tiny_folder("llama"), tiny_folder("gpt2"), tiny_folder("qwen2")]
    names = ",".join(map(str, models))
    said = shell.ran("scaling", "--models", names, "--limit", "2")
    table = shell.table("scaling")
    assert table[table["measure"] == "G"]["n_parameters"].is_monotonic_increasing
    assert table["model"].nunique() == 3 and set(table["measure"]) <= set(DEFINITIONS)
    fits = shell.table("scaling_fit")
    assert fits[fits["group"] == "all"]["n_models"].tolist() == [3]
    summary = shell.table("summary")
    assert summary["p_holm"].isna().all()  # two tasks: no test
    subfolder = json.loads((shell.tmp / "run" / models[0].name / "run.json").read_text())
    assert subfolder["studies"]["decomposition"]["done"]
    before = contents(shell.tmp / "run")
    shell.ran("scaling", "--models", names, "--limit", "2")
    after = contents(shell.tmp / "run")
    changed = {name for name in before if before[name] != after[name]}
    assert {Path(name).name for name in changed} == {"run.json"}  # each took note of the resumption
    four = ",".join(map(str, [*models, tiny_folder("gpt_neox")]))
    shell.ran("scaling", "--models", four, "--limit", "2")  # one more, later
    assert shell.table("scaling")["model"].nunique() == 4
    assert any("slope" in line for line in said.out)
    shell("scaling", "--models", f"{models[0]},{models[0]}", out="x").sentence("named twice")
    shell("scaling", "--models", " , ", out="x").sentence("at least one model")


def test_scaling_of_two_models_extrapolates_nothing(shell: Shell, tiny_folder: FolderFactory) -> None:
    shell.ran("scaling", "--models", f"{tiny_folder('llama')},{tiny_folder('gpt2')}", "--limit", "2")
    [line] = shell.table("scaling_fit").to_dict("records")
    assert np.isnan(line["crossing_parameters"]) and "fewer than 3" in line["note"]


@pytest.fixture
def three_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three problems instead of all, and a cache of this test's own."""
    monkeypatch.setattr("experiments.run.item_pools.bundled_problems", lambda: bundled_problems()[:3])
    monkeypatch.setenv("BACKFIRE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "items"


def test_executed_items_are_made_once_and_read_back(
    three_problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def made(seed: int, name: str) -> bytes:
        assert main(["items", "--env", "coderepair", "--seed", str(seed), "--out", str(tmp_path / name)]) == 0
        return (tmp_path / name).read_bytes()

    first = made(0, "a")
    assert len(first.splitlines()) > 10 and len(list(three_problems.glob("*.jsonl"))) == 1
    assert made(1, "b") != first and len(list(three_problems.glob("*.jsonl"))) == 2
    monkeypatch.setattr(
        "experiments.run.item_pools.coderepair_pool", lambda *_, **__: pytest.fail("executed")
    )
    assert made(0, "c") == first
    assert "environment coderepair" in capsys.readouterr().out
    keys = {pool_key(seed, bundled_problems()[:n]) for seed in (0, 1) for n in (1, 2)}
    assert len(keys) == 4


def test_both_environments_are_measured_in_one_run(three_problems: Path, shell: Shell) -> None:
    words = ["--model", shell.model, "--limit", "1", "--quiet", "--out", shell.tmp / "both"]
    assert main(["decomposition", "--env", "all", *map(str, words)]) == 0
    values = shell.table("measures", "both")
    assert values.groupby("env")["item_id"].nunique().to_dict() == {"coderepair": 1, "toolshed": 1}
    wide = values.pivot(index="item_id", columns="measure", values="value")
    assert (wide["G"] + wide["copy"] + wide["sem"]).abs().max() <= IDENTITY
    summary = shell.table("summary", "both")
    assert (
        summary["ci_lo"].isna().all() and summary["p"].isna().all()
    )  # one task of each: no interval, no test
    levels = shell.table("breakdown", "both")
    assert levels.empty or set(levels["env"]) <= {"coderepair", "toolshed"}


def test_every_condition_is_measured_somewhere() -> None:
    read = {name for name in CONDITIONS if f"G_{name}" in DEFINITIONS}
    assert read == set(MANIPULATIONS)
