"""Each study does what it says: rows by the same definitions, caches that save and change nothing, runs that go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.cli import main
from experiments.heads.ablation import BY_QUESTION, METHODS, Replacement, replacement
from experiments.heads.control_sets import NamedSet
from experiments.heads.ranking import score_heads
from experiments.mechanism.ablate import on_item
from experiments.run.session import Session
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.head_scores.controls import low_heads
from mech.head_scores.norms import head_norms
from mech.heads import Head, HeadSet
from mech.interventions.intervention import scale_heads
from mech.load import load_model
from mech.models.templates import PLAIN
from mech.patching.means import mean_z
from mech.patching.patch import all_heads, sweep_names
from probes.items.item import dump_items, load_items, select_items
from probes.items.toolshed import build_toolshed_items
from probes.measures.measures import DEFINITIONS, measure
from probes.prompts.conditions import CORE
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS
from probes.scoring.score import DISTRACTORS_IN, build_queries, run_decision_point, score_item, scored
from probes.scoring.text_loss import LOSSES
from tests.mech_cases import FolderFactory, everything_from, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, REFERENCE, Shell, contents, shell  # noqa: F401 - a fixture
from tests.tiny_gguf import write_gguf
from tests.tolerances import FP64, IDENTITY, NATS

ROOT = Path(__file__).resolve().parent.parent.parent
WORDING = load_wording()
N_HEADS = 12


# --- probe


def test_probe_writes_every_row_and_the_measures_of_them(shell: Shell) -> None:
    shell.once("probe")
    rows = shell.lines("scores")
    assert [row["id"] for row in rows] == [
        f"{item.item_id}|{name}|{candidate}"
        for item in ITEMS[:3]
        for name in CORE
        for candidate in scored(item, name, DISTRACTORS_IN)
    ]
    assert {row["condition"] for row in rows if row["candidate"] == "distractor1"} == {"pre", "fail"}
    shell.ran("probe", "--distractors", "everywhere", "--limit", "1", out="all")
    assert len(shell.lines("scores", "all")) == 5 * 4
    measures = shell.table("measures")
    pd.testing.assert_frame_equal(measures, measure(pd.DataFrame(rows)))
    wide = measures.pivot(index="item_id", columns="measure", values="value")
    assert (wide["G"] + wide["copy"] + wide["sem"]).abs().max() <= IDENTITY
    summary = shell.table("summary").set_index("measure")
    assert set(summary.index) == set(wide.columns) <= set(DEFINITIONS)
    assert {"G", "copy", "sem", "p_repeat_fail", "G_exact", "sem_succ"} <= set(summary.index)
    for name, line in summary.iterrows():
        assert line["mean"] == pytest.approx(wide[name].mean(), abs=1e-12)
        assert (line["n"], line["n_clusters"]) == (3, 2)
    about = shell.about("probe")
    assert about["done"] and about["config"]["conditions"] == "core"
    assert about["provenance"]["item_ids"] == [item.item_id for item in ITEMS[:3]]


def test_probe_of_some_conditions_leaves_out_what_it_cannot_measure(shell: Shell) -> None:
    shell.ran("probe", "--conditions", "pre,neut", "--limit", "1")
    assert set(shell.table("measures")["measure"]) == {
        *("copy", "copy_per_token", "copy_exact", "margin_copy", "greedy_repeat_pre"),
        *("p_repeat_pre", "p_repeat2_pre", "p_repeat4_pre", "p_repeat_exact_pre"),
    }
    said = shell.ran("probe", "--conditions", "fail_k2", "--limit", "1", out="other")
    assert shell.table("measures", "other").empty and len(shell.lines("scores", "other")) == 2
    assert "forwards run" in "\n".join(said.out)


def test_probe_of_two_orders_of_the_items_gives_the_same_rows(shell: Shell) -> None:
    backwards = shell.tmp / "backwards.jsonl"
    dump_items(ITEMS[2::-1], backwards)
    shell.once("probe")
    shell.ran("probe", "--items", backwards, out="other")
    one, other = ({row["id"]: row for row in shell.lines("scores", out)} for out in ("run", "other"))
    assert one == other and list(one) != list(other)
    for name in ("measures", "summary"):
        assert shell.path(f"{name}.csv").read_bytes() == shell.path(f"{name}.csv", "other").read_bytes()


def test_a_model_without_a_chat_template_works_end_to_end(shell: Shell, tiny_folder: FolderFactory) -> None:
    plain = tiny_folder("llama", chat=False)
    shell.ran("probe", "--model", plain, "--limit", "1")
    assert all(row["notes"] == [PLAIN] for row in shell.lines("scores"))
    assert {"G", "copy", "sem", "G_exact"} <= set(shell.table("measures")["measure"])
    shell.ran("patch", "--model", plain, "--limit", "1", "--k", "2", "--direction", "noise")
    assert len(shell.logprob("patch_effects")) == N_HEADS


KILLED = """
import os, signal, sys
from experiments.run import run_folder as records
from experiments.cli import main

whole, calls = records.append_bytes, []

def dies_in_the_second_write(path, data):
    calls.append(path)
    if len(calls) < 2:
        return whole(path, data)
    with open(path, "ab", buffering=0) as file:
        file.write(data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)

records.append_bytes = dies_in_the_second_write
main(sys.argv[1:])
"""


def test_kill_9_in_the_middle_of_a_row_loses_and_doubles_nothing(shell: Shell) -> None:
    words = ["probe", "--model", shell.model, "--items", shell.items, "--out", shell.tmp / "run"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    torn = shell.path("scores.jsonl").read_bytes()
    assert torn.count(b"\n") > 14 and not torn.endswith(b"\n")  # an item, a part of the next, half a row
    assert not shell.about("probe")["done"]
    shell.once("probe", out="whole")
    assert shell.path("scores.jsonl", "whole").read_bytes().startswith(torn[: torn.rindex(b"\n")])
    shell.ran("probe")
    for name in ("scores.jsonl", "measures.csv", "summary.csv"):
        assert shell.path(name).read_bytes() == shell.path(name, "whole").read_bytes()
    assert shell.about("probe")["done"] and len(shell.about("probe")["resumes"]) == 1


@pytest.mark.parametrize(
    ("study", "name", "words"),
    [
        ("probe", "scores", []),
        ("patch", "patch", ["--k", "2"]),
        ("ablate", "ablate", ["--heads", "top:2", "--controls", "1", "--control-kinds", "random"]),
    ],
)
def test_a_run_goes_on_from_its_last_whole_row(study: str, name: str, words: list[str], shell: Shell) -> None:
    shell.ran(study, *words, "--limit", "2")
    whole = contents(shell.tmp / "run")
    path = shell.path(f"{name}.jsonl")
    ran = shell.forwards(study)[0]
    keep = len(whole[f"{name}.jsonl"]) * 2 // 3  # the tear is within a row
    path.write_bytes(whole[f"{name}.jsonl"][:keep])
    shell.ran(study, *words, "--limit", "2")
    after = contents(shell.tmp / "run")
    assert {k: v for k, v in after.items() if k != "run.json"} == {
        k: v for k, v in whole.items() if k != "run.json"
    }
    assert shell.forwards(study)[0] < ran
    done = shell.forwards(study)[0]
    shell.ran(study, *words, "--limit", "2")
    assert shell.forwards(study)[0] < max(done, 1 if study == "probe" else done)
    assert path.read_bytes() == whole[f"{name}.jsonl"]


@pytest.mark.parametrize("setting", ["seed", "items", "wording", "conditions", "model", "limit", "engine"])
def test_resuming_under_another_setting_is_refused_by_its_name(
    setting: str, shell: Shell, tiny_folder: FolderFactory
) -> None:
    shell.once("probe", "--limit", "1", "--conditions", "pre")
    given = shell.tmp / "given"
    if setting == "items":
        dump_items([replace(item, goal="Another goal.") for item in ITEMS[:3]], given)
    elif setting == "wording":
        given.write_text((ROOT / "probes" / "prompts" / "wordings" / "default.json").read_text())
    values = {"seed": "1", "conditions": "pre,fail", "limit": "2", "engine": "reference"}
    values["model"] = str(tiny_folder("llama", seed=1))
    before = contents(shell.tmp / "run")
    said = shell("probe", "--limit", "1", "--conditions", "pre", f"--{setting}", values.get(setting, given))
    said.sentence("run", "choose another --out", setting if setting != "model" else "other weights")
    assert contents(shell.tmp / "run") == before


def test_a_copy_of_the_same_weights_elsewhere_is_another_setting(shell: Shell) -> None:
    shell.once("probe", "--limit", "1", "--conditions", "pre")
    other = shell.tmp / "copied"
    other.symlink_to(shell.model)
    said = shell("probe", "--limit", "1", "--conditions", "pre", "--model", other)
    said.sentence(f"model ({shell.model} there, {other} here)")


# --- the cache


def test_patch_takes_from_the_cache_what_probe_kept(shell: Shell) -> None:
    cache, words = shell.tmp / "cache", ["--k", "2", "--limit", "2"]
    shell.ran("probe", "--limit", "2", "--cache", cache)
    shell.ran("patch", *words, out="cold")
    said = shell.ran("patch", *words, "--cache", cache, out="warm")
    (cold_ran, cold_saved), (warm_ran, warm_saved) = (
        shell.forwards("patch", "cold"),
        shell.forwards("patch", "warm"),
    )
    kept = 2 * 2 + 1  # two conditions of two items, and the prefix cache of their system prompt
    assert cold_saved == 0 and warm_saved == kept
    assert cold_ran - warm_ran == kept
    assert said.out[-2] == f"forwards run: {warm_ran}, saved by the cache: {kept}"
    for name in ("patch.jsonl", "patch_effects.csv", "patch_sets.csv", "patch.csv", "patch_redundancy.csv"):
        assert shell.path(name, "warm").read_bytes() == shell.path(name, "cold").read_bytes()


def test_a_second_probe_on_the_cache_runs_nothing(shell: Shell) -> None:
    cache = shell.tmp / "cache"
    shell.once("probe", out="clean")
    shell.ran("probe", "--cache", cache, out="first")
    shell.ran("probe", "--cache", cache, out="second")
    ran, saved = shell.forwards("probe", "second")
    assert ran == 0 and saved >= shell.forwards("probe", "first")[0] > shell.forwards("probe", "clean")[0]
    for out in ("first", "second"):
        for name in ("scores.jsonl", "measures.csv", "summary.csv"):
            assert shell.path(name, out).read_bytes() == shell.path(name, "clean").read_bytes()


def test_probe_keeps_the_further_hooks_it_is_told_to(shell: Shell) -> None:
    cache = shell.tmp / "cache"
    words = ["--limit", "1", "--conditions", "pre,neut", "--cache", str(cache)]
    shell.ran("probe", *words)
    shell.ran("probe", *words, "--keep", "hook_mlp_out,attn.hook_pattern")  # the same run: nothing but a wish
    shell.ran("probe", *words, "--keep", "hook_mlp_out,attn.hook_pattern", out="again")
    assert shell.forwards("probe")[0] == 2 and shell.forwards("probe", "again")[0] == 0
    engine = Engine(tiny_model_of(shell), cache_dir=cache)
    run = run_decision_point(
        engine, ITEMS[0], "neut", WORDING, ["blocks.1.attn.hook_pattern", "blocks.0.hook_mlp_out"]
    )
    assert engine.forwards.ran == 0
    assert torch.allclose(run.cache["blocks.1.attn.hook_pattern"].sum(-1), torch.ones(4, 1), atol=NATS)


def tiny_model_of(shell: Shell) -> Any:
    from tests.study_cases import loaded_once

    return loaded_once(str(shell.model))


@pytest.mark.parametrize("how", ["foreign", "torn", "other weights"])
def test_a_stale_or_foreign_entry_is_refused(how: str, shell: Shell, tiny_folder: FolderFactory) -> None:
    cache = shell.tmp / "cache"
    words = ["--limit", "1", "--k", "2", "--direction", "noise", "--cache", str(cache)]
    shell.ran("probe", "--limit", "1", "--conditions", "pre,neut", "--cache", cache)
    runs = sorted(cache.rglob("run-*.safetensors"))
    assert len(runs) == 2
    if how == "foreign":
        one, other = (file.read_bytes() for file in runs)
        runs[0].write_bytes(other)
        runs[1].write_bytes(one)
    elif how == "torn":
        for file in runs:
            file.write_bytes(file.read_bytes()[:-40])
    else:
        other_model = tiny_folder("llama", seed=1)
        shell.ran(
            "patch", *words, "--model", other_model, out="other"
        )  # has its own entries in the same folder
        [theirs] = {file.parent for file in cache.rglob("run-*")} - {runs[0].parent}
        for entry in theirs.iterdir():
            entry.rename(runs[0].parent / entry.name)
        found = shell.ran("patch", *words)  # the name says whose it is, so it is not even looked at
        assert "saved by the cache: 3" in "\n".join(found.out)
        return
    said = shell("patch", *words)
    said.sentence("stale or foreign" if how == "foreign" else "cannot be read", "delete it and run again")
    assert not shell.path("patch.jsonl").exists()


# --- patch


@pytest.fixture
def patched(shell: Shell) -> Shell:
    """All heads of three items in both directions, and two joint sets."""
    shell.once("patch", "--k", "2,5")
    return shell


def test_patch_has_every_head_of_every_item_and_shares_that_add_up(patched: Shell) -> None:
    effects, rows = patched.logprob("patch_effects"), pd.DataFrame(patched.lines("patch"))
    places = effects[["item_id", "direction", "layer", "head"]]
    assert len(effects) == 3 * 2 * N_HEADS and not places.duplicated().any()
    assert set(zip(effects["layer"], effects["head"], strict=True)) == {
        (layer, head) for layer in range(3) for head in range(4)
    }
    delta = rows.set_index(["item_id", "direction"])["delta"].map(lambda sums: sums["failed"])
    each = delta.loc[list(zip(effects["item_id"], effects["direction"], strict=True))].to_numpy()
    np.testing.assert_allclose(effects["share"], effects["effect_nats"] / each, rtol=1e-12)
    shares = patched.logprob("patch")
    sums = effects.groupby(["direction", "layer", "head"])["effect_nats"].sum()
    for row in shares.itertuples():
        total = delta.xs(row.direction, level="direction").sum()
        assert row.share == pytest.approx(sums[row.direction, row.layer, row.head] / total, rel=1e-9)
    joint = patched.logprob("patch_redundancy").set_index(["direction", "set"])
    for (direction, name), line in joint.iterrows():
        found = np.mean(
            [row["sets"]["failed"][name] for _, row in rows[rows["direction"] == direction].iterrows()]
        )
        assert line["joint_nats"] == pytest.approx(found)
        assert line["redundancy_nats"] == pytest.approx(line["joint_nats"] - line["singles_nats"])
    assert {name.count(",") for name in patched.about("patch")["provenance"]["sets"].values()} == {1, 4}


def test_patch_measures_the_delta_that_probe_measures(patched: Shell) -> None:
    patched.ran("probe")
    copy = patched.table("measures").query("measure == 'copy'").set_index("item_id")["value"]
    rows = patched.lines("patch")
    assert {row["item_id"] for row in rows} == set(copy.index) != set()
    for row in rows:
        assert (row["from"], row["to"]) == ("pre", "neut")
        for name, delta in row["delta"].items():
            assert delta == row["logprob_to"][name] - row["logprob_from"][name]
        assert row["delta"]["failed"] == pytest.approx(copy[row["item_id"]], abs=NATS)
        assert set(row["delta"]) == {"failed", "diverging", "gold"} and row["references"] == "gold"


@torch.no_grad()
def test_an_effect_has_its_sign_and_size_by_transformer_lens_alone(patched: Shell) -> None:
    """noise: logp(neut) − logp(neut with z of pre); denoise: logp(pre with z of neut) − logp(pre)."""
    model, item = tiny_model_of(patched), ITEMS[1]
    queries = {
        name: build_queries(model, item, [name], WORDING, ["failed"])[0].query for name in ("pre", "neut")
    }
    n = len(queries["pre"].action)

    def logp(query: Query, donor: Query | None = None, head: Head | None = None) -> float:
        tokens, hooks = torch.tensor([query.tokens]), []
        if donor is not None and head is not None:
            name = f"blocks.{head.layer}.attn.hook_z"
            _, cache = model.bridge.run_with_cache(torch.tensor([donor.tokens]))
            z = cache[name].reshape(1, len(donor.tokens), model.n_heads, model.d_head)[0, -n:, head.head]

            def put(value: torch.Tensor, hook: Any) -> torch.Tensor:
                heads = value.clone().view(1, len(query.tokens), model.n_heads, model.d_head)
                heads[0, -n:, head.head] = z
                return heads.view_as(value)

            hooks = [(name, put)]
        logits = model.bridge.run_with_hooks(tokens, fwd_hooks=hooks)[0, -n:].log_softmax(-1)
        return float(logits[torch.arange(n), torch.tensor(query.action)].sum())

    rows = {row["direction"]: row for row in patched.lines("patch") if row["item_id"] == item.item_id}
    for head in (Head(0, 2), Head(1, 1), Head(2, 3)):
        noise = logp(queries["neut"]) - logp(queries["neut"], queries["pre"], head)
        denoise = logp(queries["pre"], queries["neut"], head) - logp(queries["pre"])
        assert rows["noise"]["heads"]["failed"][str(head)] == pytest.approx(noise, abs=NATS)
        assert rows["denoise"]["heads"]["failed"][str(head)] == pytest.approx(denoise, abs=NATS)
        assert max(abs(noise), abs(denoise)) > NATS


@pytest.mark.usefixtures("exact_softmax", "one_thread")
def test_everything_from_the_other_run_gives_the_other_run_on_every_item(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    keep = [*sweep_names(model), *(f"blocks.{layer}.hook_mlp_out" for layer in range(model.n_layers))]
    for item, candidate in product(ITEMS, ("failed", "gold")):
        pre, neut = (
            run_decision_point(engine, item, name, WORDING, keep, candidate=candidate)
            for name in ("pre", "neut")
        )
        for recipient, donor in ((pre, neut), (neut, pre)):
            query = recipient.query
            changed = Query(query.prompt, query.action, everything_from(model, donor))
            [found] = engine.score([changed])
            np.testing.assert_allclose(found.logprobs, donor.score.logprobs, rtol=0, atol=FP64)
            assert np.abs(found.logprobs - recipient.score.logprobs).max() > NATS


def test_a_condition_patched_from_itself_has_no_effect_at_all(shell: Shell) -> None:
    shell.ran("patch", "--from", "neut", "--to", "neut", "--k", "2")
    effects = shell.logprob("patch_effects")
    assert len(effects) == 3 * 2 * N_HEADS
    assert (effects["effect_nats"] == 0).all() and effects["share"].isna().all()
    shares = shell.logprob("patch")
    assert shares["share"].isna().all() and shares["flagged"].all()
    for row in shell.lines("patch"):
        assert set(row["delta"].values()) == {0}
        for sets in row["sets"].values():
            assert all(abs(value) < NATS for value in sets.values())  # a joint set is run, not skipped


def test_one_direction_writes_only_that_one(shell: Shell) -> None:
    shell.ran("patch", "--direction", "noise", "--k", "2", "--limit", "2")
    for table in ("patch_effects", "patch_sets", "patch", "patch_redundancy"):
        assert set(shell.table(table)["direction"]) == {"noise"}
    assert {row["direction"] for row in shell.lines("patch")} == {"noise"}
    both = shell.ran("patch", "--k", "2", "--limit", "2", out="both")
    assert both.code == 0
    wanted = {row["id"]: row for row in shell.lines("patch", "both") if row["direction"] == "noise"}
    assert {row["id"]: row for row in shell.lines("patch")} == wanted


def test_the_slow_engine_patches_to_the_same_effects(patched: Shell) -> None:
    patched.ran("patch", "--k", "2,5", "--engine", "reference", out="slow")
    pairs = list(zip(patched.lines("patch"), patched.lines("patch", "slow"), strict=True))
    assert pairs
    for one, other in pairs:
        assert one["id"] == other["id"]
        for kind in ("heads", "sets"):
            assert one[kind].keys() == other[kind].keys() == {"failed", "diverging", "gold"}
            for of, values in one[kind].items():
                assert max(abs(values[name] - other[kind][of][name]) for name in values) <= NATS


def test_a_run_does_not_go_on_with_other_head_sets_than_it_began_with(shell: Shell) -> None:
    words = {
        "patch": ["--k", "2", "--limit", "1", "--direction", "noise"],
        "ablate": ["--heads", "top:2", "--controls", "1", "--limit", "1"],
    }
    for study in words:
        shell.ran(study, *words[study])
    shell.ran("heads", "--seed", "1", "--top", "2")  # the table that rankings are read from is another now
    before = contents(shell.tmp / "run")
    for study in words:
        shell(study, *words[study]).sentence("other settings: set_sha256.top2", "choose another --out")
    assert contents(shell.tmp / "run") == before


# --- heads


def test_heads_freezes_the_best_and_later_studies_read_them(shell: Shell) -> None:
    said = shell.ran("heads", "--top", "3", "--seed", "5", "--by", "previous_token")
    table, frozen = shell.table("heads"), json.loads(shell.path("heads.json").read_text())
    assert len(table) == N_HEADS and table["selected"].sum() == 3
    best = table.sort_values("previous_token", ascending=False).head(3)
    assert best["selected"].all()
    heads = HeadSet(Head(row.layer, row.head) for row in best.itertuples())
    assert (frozen["sha256"], frozen["by"], frozen["k"]) == (heads.sha256, "previous_token", 3)
    assert {f"L{h['layer']}H{h['head']}": h["score"] for h in frozen["heads"]} == {
        f"L{row.layer}H{row.head}": row.previous_token for row in best.itertuples()
    }
    assert f"selected {heads}" in said.out
    assert shell.about("heads")["extra"] == {"head_set_sha256": heads.sha256}
    shell.ran(
        "ablate",
        "--heads",
        "top:3",
        "--by",
        "previous_token",
        "--controls",
        "1",
        "--limit",
        "1",
        "--how",
        "zero",
    )
    assert shell.about("ablate")["provenance"]["sets"]["top3"] == str(heads)


# --- ablate


RANDOM = ("--control-kinds", "random")


def test_ablate_measures_no_heads_the_selected_and_their_controls(shell: Shell) -> None:
    shell.ran("ablate", "--heads", "top:9", "--k", "2,3", "--controls", "2", *RANDOM)
    shell.ran("probe")
    provenance = shell.about("ablate")["provenance"]
    sets = {label: HeadSet.parse(text) for label, text in provenance["sets"].items() if text}
    assert set(sets) == {f"top{k}{more}" for k in (2, 3) for more in ("", "/random0", "/random1")}
    for k in (2, 3):
        selected = sets[f"top{k}"]
        for index in range(2):
            control = sets[f"top{k}/random{index}"]
            assert not set(control) & set(selected)
            assert Counter(h.layer for h in control) == Counter(h.layer for h in selected)
    assert provenance["displaced"] == {}
    curve = shell.table("ablate")
    assert set(curve["kind"]) == {"none", "selected", "random"} and set(curve["k"]) == {0, 2, 3}
    assert set(curve["measure"]) == {
        *("G", "copy", "sem", "repair", "margin_shift", "reference_logprob", *LOSSES)
    }
    counts = curve.groupby("metric")["measure"].nunique().to_dict()
    assert counts == {"logprob": 6, "loss": 4, **dict.fromkeys(set(FORMS) - {"logprob"}, 3)}
    assert set(curve["how"]) == {"mean"} and len(curve) == sum(counts.values()) * (1 + len(sets))
    assert curve["n"].tolist() == [1 if name in LOSSES else 3 for name in curve["measure"]]
    curve = curve[curve["metric"].isin(["logprob", "loss"])]
    clean = curve[curve["kind"] == "none"].set_index("measure")["mean"]
    probed = shell.table("summary").set_index("measure")["mean"]
    for name in ("G", "copy", "sem", "repair", "margin_shift"):
        assert clean[name] == pytest.approx(probed[name], abs=NATS)
    copy = curve[curve["measure"] == "copy"].set_index("set")["mean"]
    removed = shell.table("ablate_removed").query("metric == 'logprob'").set_index("set")["share"]
    for label in sets:
        assert removed[label] == pytest.approx(1 - copy[label] / copy["none"])
    assert set(shell.table("ablate_controls")["n_controls"]) == {2}


@pytest.mark.usefixtures("few_control_sets")
def test_ablate_ranks_each_set_among_controls_of_each_kind_and_says_what_else_it_changes(
    shell: Shell,
) -> None:
    kinds = "random,norm,complement"
    shell.ran("ablate", "--heads", "top:2", "--controls", "2", "--control-kinds", kinds, "--limit", "2")
    about = shell.about("ablate")["provenance"]
    sets = {label: HeadSet.parse(text) for label, text in about["sets"].items() if text}
    low = low_heads(score_heads(tiny_model_of(shell), 0))
    matched = [sets[f"top2/norm{index}"] for index in range(2)]
    assert matched[0] != matched[1] and all(set(one) <= set(low) - set(sets["top2"]) for one in matched)
    contexts = [
        build_queries(tiny_model_of(shell), one, ["pre"], WORDING)[0].query.prompt for one in REFERENCE
    ]
    norms = head_norms(Engine(tiny_model_of(shell)), contexts)
    matches = shell.table("ablate_control_sets").set_index("set")
    assert matches.loc["top2/complement0", ["k", "n_heads"]].tolist() == [2, 10]
    for index, one in enumerate(matched):
        ratio = sum(map(norms.of, one)) / sum(map(norms.of, sets["top2"]))
        assert matches.loc[f"top2/norm{index}", "ratio"] == pytest.approx(ratio, rel=1e-5)
    removed = shell.table("ablate_removed").query("metric == 'logprob'").set_index("set")["share"]
    controls, area = (
        shell.table(name).query("metric == 'logprob'").set_index("control")
        for name in ("ablate_controls", "ablate_dose")
    )
    assert np.isnan(controls.loc["complement", "p"]) and controls.loc["complement", "n_controls"] == 1
    for kind in ("random", "norm"):
        others = [removed[f"top2/{kind}{index}"] for index in range(2)]
        beaten = sum(share >= removed["top2"] for share in others)
        assert controls.loc[kind, ["p", "percentile"]].tolist() == [(beaten + 1) / 3, 100 * (2 - beaten) / 2]
        copy = area[area["measure"] == "copy"].loc[kind]
        assert copy["area"] == pytest.approx(removed["top2"] / 2) and copy["p"] == (beaten + 1) / 3
    rows = {row["id"]: row for row in shell.lines("ablate")}
    beside = shell.table("ablate_off_target").set_index(["set", "quantity"])
    code = [rows[f"{label}|prose"]["losses"]["code_loss"] for label in ("mean|top2", "none|none")]
    assert beside.loc[("top2", "code_loss"), "change"] == pytest.approx(np.mean(np.subtract(*code)))
    assert beside.loc[("top2", "code_loss"), "delta"] == 0.1 and beside.loc[("top2", "sem"), "delta"] == 0.5
    items = {row["item_id"] for row in rows.values()} - {"prose"}
    sems = [
        {
            which: np.subtract(*(rows[f"{which}|{i}"]["scores"]["logprob"][c][0] for c in ("fail", "neut")))
            for which in ("mean|top2", "none|none")
        }
        for i in items
    ]
    sem = [one["mean|top2"] - one["none|none"] for one in sems]
    assert beside.loc[("top2", "sem"), "change"] == pytest.approx(np.mean(sem))
    assert set(beside.index.get_level_values("quantity")) == {"sem", "reference_logprob", *LOSSES}


def test_fewer_controls_than_asked_for_are_all_there_are(shell: Shell) -> None:
    shell.ran("ablate", "--heads", "top:3", "--controls", "90", "--control-kinds", "norm", "--limit", "1")
    sets = shell.about("ablate")["provenance"]["sets"]
    drawn = [heads for label, heads in sets.items() if "/norm" in label]
    assert 1 <= len(drawn) < 90 and len(set(drawn)) == len(drawn)
    assert set(shell.table("ablate_controls")["n_controls"]) == {len(drawn)}


def test_a_selected_layer_without_room_is_controlled_from_its_neighbours_and_counted(shell: Shell) -> None:
    shell.ran(
        "ablate", "--heads", "L1H0,L1H1,L1H2", "--controls", "1", "--limit", "1", "--how", "zero", *RANDOM
    )
    provenance = shell.about("ablate")["provenance"]
    assert provenance["displaced"] == {"named/random0": 2}
    assert Counter(h.layer for h in HeadSet.parse(provenance["sets"]["named/random0"])) == {1: 1, 0: 2}


def session_of(shell: Shell, slow: bool = False) -> Session:
    engine = Engine(tiny_model_of(shell), slow=slow)
    return Session(engine, list(ITEMS[:3]), WORDING, lambda name: np.random.default_rng(0))


def copy_of(row: dict[str, Any], metric: str = "logprob") -> list[float]:
    scores = row["scores"][metric]
    return [after - before for before, after in zip(scores["pre"], scores["neut"], strict=True)]


@pytest.mark.parametrize("how", METHODS)
def test_ablated_rows_are_those_of_full_forwards_under_the_same_intervention(how: str, shell: Shell) -> None:
    """The prefix is recomputed too: with the clean one the rows would be far off."""
    words = ["--heads", "L0H2,L1H1", "--how", how, "--controls", "1", "--limit", "1", "--draws", "3", *RANDOM]
    if how == "optimal":  # fitted at the action positions, and refused elsewhere
        words += ["--where", "candidate"]
    shell.ran("ablate", *words)
    shell.ran("ablate", *words, "--engine", "reference", out="slow")
    rows, slow = shell.lines("ablate"), shell.lines("ablate", "slow")
    assert [row["id"] for row in rows] == [row["id"] for row in slow]
    for one, other in zip(rows, slow, strict=True):
        assert one["scores"].keys() == other["scores"].keys()
        for metric, by_condition in one["scores"].items():
            for condition, values in by_condition.items():
                # Constants are fitted twice, in single precision: their path may part by more.
                near = 20 * NATS if how == "optimal" else NATS
                np.testing.assert_allclose(values, other["scores"][metric][condition], rtol=0, atol=near)
    found = {row["id"]: row for row in rows}
    [item] = [one for one in ITEMS if f"{how}|named|{one.item_id}" in found]
    own, clean = (found[f"{name}|{item.item_id}"] for name in (f"{how}|named", "none|none"))
    assert len(copy_of(own)) == (3 if how == "resample" else 1)
    for metric in ("logprob", "margin", "diverging"):
        [before] = copy_of(clean, metric)
        assert all(abs(value - before) > 10 * NATS for value in copy_of(own, metric))
    texts = {one["set"] for one in rows if one["item_id"] == "prose"}
    expected = {"none", "named", "named/random0"}
    if how in BY_QUESTION:
        expected = {"none"}
    elif how == "optimal":  # would be fitted for the control
        expected.remove("named/random0")
    assert texts == expected


def test_several_ways_share_the_whole_model_and_one_reference(shell: Shell) -> None:
    words = [
        "--heads",
        "top:2",
        "--controls",
        "2",
        "--limit",
        "2",
        "--draws",
        "3",
        "--control-draws",
        "2",
        *RANDOM,
    ]
    shell.ran(
        "ablate", *words, "--how", "zero,resample,mean-role", "--controlled", "all", "--where", "candidate"
    )
    rows = shell.lines("ablate")
    items = {row["item_id"] for row in rows} - {"prose"}
    assert len(items) == 2
    assert len(rows) == len({row["id"] for row in rows}) == 3 + 3 * (1 + 2) * 2 + 3  # texts under zero alone
    assert sum(row["set"] == "none" for row in rows) == 3
    draws = {row["kind"]: len(copy_of(row)) for row in rows if row["how"] == "resample"}
    assert draws == {"selected": 3, "random": 2}
    removed = shell.table("ablate_removed").query("metric == 'margin'").set_index(["how", "set"])
    assert list(dict.fromkeys(removed.index.get_level_values("how"))) == ["zero", "resample", "mean-role"]
    by_draw = {
        row["item_id"]: copy_of(row, "margin")
        for row in rows
        if row["how"] == "resample" and row["kind"] == "selected"
    }
    whole = {
        row["item_id"]: copy_of(row, "margin")[0] for row in rows if row["set"] == "none" and row["scores"]
    }
    base = sum(whole.values())
    shares = [1 - sum(by_draw[item][draw] for item in items) / base for draw in range(3)]
    assert removed.loc[("resample", "top2"), "share"] == pytest.approx(np.mean(shares))
    assert removed.loc[("resample", "top2"), "draw_sd"] == pytest.approx(np.std(shares, ddof=1))
    assert np.isnan(removed.loc[("zero", "top2"), "draw_sd"])
    assert set(shell.table("ablate_off_target").query("how == 'resample'")["quantity"]) == {
        "sem",
        "reference_logprob",
    }


def test_any_pair_of_conditions_is_a_difference_to_remove(shell: Shell) -> None:
    shell.ran("ablate", "--heads", "top:2", "--controls", "1", "--from", "neut", "--to", "fail", *RANDOM)
    rows = [row for row in shell.lines("ablate") if row["scores"]]
    assert {(row["from"], row["to"]) for row in rows} == {("neut", "fail")}
    assert set(rows[0]["scores"]["margin"]) == {"neut", "fail"}
    curve = shell.table("ablate").query("metric == 'logprob' and set == 'none'").set_index("measure")["mean"]
    assert curve["copy"] == curve["sem"] and "G" not in curve.index
    said = shell("ablate", "--from", "neut", "--to", "neut", *RANDOM, out="same")
    said.sentence("--from and --to are both neut")
    shell("ablate", "--how", "mean,median", *RANDOM, out="other")
    assert not (shell.tmp / "other").exists()


def test_mean_and_zero_are_two_ablations(shell: Shell) -> None:
    session = session_of(shell)
    mean = mean_z(session.engine, [build_queries(session.model, ITEMS[3], ["pre"], WORDING)[0].query.prompt])
    one = NamedSet("named", "selected", HeadSet.parse("L0H2"), k=1)
    put = Replacement("mean", z=mean.z)
    rows = [
        on_item(session, ITEMS[0], way, those, "all", ("pre", "neut"))
        for way, those in (
            (put, one),
            (Replacement("zero"), one),
            (put, NamedSet("none", "none", HeadSet(()))),
        )
    ]
    copies = [copy_of(row)[0] for row in rows]
    assert min(abs(a - b) for at, a in enumerate(copies) for b in copies[:at]) > NATS
    edit = put.fixed(one.heads, "all").edits[0]
    assert edit.where == "all" and edit.value is not None and torch.equal(edit.value, mean.z[0, 2])


def test_scaling_every_head_by_one_is_the_clean_run_to_the_bit(shell: Shell) -> None:
    model = tiny_model_of(shell)
    one = scale_heads(all_heads(model), 1.0, "all")
    clean = score_item(Engine(model), ITEMS[1], CORE, WORDING)
    scaled = score_item(Engine(model), ITEMS[1], CORE, WORDING, intervention=one)
    assert {row["intervention"] for row in clean} == {"clean"} != {row["intervention"] for row in scaled}
    assert [{**row, "intervention": "clean"} for row in scaled] == clean


def test_the_mean_is_taken_over_other_tasks_and_says_so(shell: Shell) -> None:
    dump_items(ITEMS, shell.items)
    ids = shell.tmp / "ids.json"
    ids.write_text('["garden-2"]')  # the others of its task: garden-3
    shell.ran("ablate", "--heads", "L0H0", "--ids", ids, "--controls", "1", "--reference-items", "2")
    reference = shell.about("ablate")["provenance"]["replacements"]["mean"]
    assert sorted(reference["items"]) == ["garden-0", "garden-1"]
    session = replace(session_of(shell), items=[ITEMS[2]])
    args = _arguments(shell, ids)
    with_what = replacement(session, args, how="mean")
    named = with_what.about["items"]
    prompts = [
        build_queries(session.model, item, ["pre"], WORDING, ["failed"])[0].query.prompt
        for name in named
        for item in ITEMS
        if item.item_id == name
    ]
    mean = mean_z(session.engine, prompts)
    assert (
        reference["positions"] == sum(map(len, prompts)) == mean.n_positions == with_what.about["positions"]
    )
    assert reference["sha256"] == with_what.sha256 == mean.sha256
    assert with_what.z is not None and torch.equal(with_what.z, mean.z)
    none_left = shell("ablate", "--heads", "L0H0", "--controls", "1", "--reference-items", "2", out="all")
    none_left.sentence("0 items of other tasks", "--reference-items FILE")


def _arguments(shell: Shell, ids: Path) -> Any:
    from experiments.mechanism.ablate import STUDY
    from experiments.run.flags import parse

    words = ["--items", str(shell.items), "--ids", str(ids), "--heads", "L0H0", "--reference-items", "2"]
    return parse(STUDY, words).config


# --- items and doctor


def test_items_shows_what_is_in_them_and_writes_them(
    shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    file = shell.tmp / "pool.jsonl"
    assert main(["items", "--limit", "24", "--out", str(file)]) == 0
    shown = capsys.readouterr().out
    found, pool = load_items(file), build_toolshed_items(0, templates="all")
    assert len({item.template for item in found}) == 14 and len({item.system_prompt for item in found}) == 6
    assert found == select_items(with_unrelated(pool, pool), None, 24, by_template=True)
    known = {item.item_id: item for item in with_unrelated(pool, pool)}
    assert len(found) == 24 and all(item == known[item.item_id] for item in found)
    assert shown.startswith(f"24 items, {len({item.task_id for item in found})} tasks")
    assert found[0].failed_action in shown and found[0].obs_fail in shown
    for operator, count in Counter(item.operator for item in found).items():
        assert f"{operator} {count}" in shown
    paper = shell.tmp / "paper.jsonl"
    assert main(["items", "--limit", "24", "--templates", "paper", "--out", str(paper)]) == 0
    capsys.readouterr()
    six = build_toolshed_items(0)
    assert load_items(paper) == select_items(with_unrelated(six, six), None, 24)
    again = shell.tmp / "again.jsonl"
    assert main(["items", "--items", str(file), "--out", str(again)]) == 0
    assert again.read_bytes() == file.read_bytes()


def test_pre_tokenizer_of_a_gguf_file_is_said_by_hand_and_recorded(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BACKFIRE_CACHE", str(shell.tmp / "cache"))
    file = write_gguf(shell.tmp / "tiny.gguf", pre=None)
    few = ("--n-sequences", "1", "--length", "4", "--top", "2", "--quiet")
    shell("heads", "--model", file, *few).sentence("tiny.gguf", "names no pre-tokenizer", "--pre NAME")
    shell("heads", "--model", file, "--pre", "qwen", *few).sentence("'qwen' (--pre) is unknown", "smollm")
    shell("heads", "--pre", "smollm", *few).sentence("--pre names the pre-tokenizer of a GGUF file")
    assert shell("heads", "--model", file, "--pre", "smollm", *few).code == 0  # converting shows its progress
    about = shell.about("heads")
    recorded = about["provenance"]["model"]
    assert about["config"]["pre"] == recorded["pre"] == "smollm"
    loaded = load_model(str(file), cache_dir=shell.tmp / "cache", pre="smollm")
    assert recorded["tensors_sha256"] == loaded.identity.tensors_sha256
    other = shell("heads", "--model", file, "--pre", "qwen2", *few)
    assert other.code == 2 and "was made with another tokenizer" in other.err[-1]


def test_doctor_says_what_was_loaded_and_what_was_checked(shell: Shell) -> None:
    said = shell("doctor", out=None)
    text = "\n".join(said.out)
    model = tiny_model_of(shell)
    assert said.code == 0 and not said.err
    assert model.identity.sha256 in text and f"{model.identity.n_parameters:,} parameters" in text
    assert "3 layers x 4 heads, 2 key/value heads, d_head 8" in text
    assert f"torch {torch.__version__}" in text and "transformer-lens" in text
    checks = [line.split()[1] for line in said.out if line.split(" ")[0] in ("ok", "note", "FAIL")]
    assert model.identity.tensors_sha256 in text
    assert {"cache_length", "packed_row", "versions", "pre_tokenizer"} <= set(checks) and len(
        set(checks)
    ) == len(checks)
    assert said.out[-1] == f"{len(checks)} of {len(checks)} checks passed"
