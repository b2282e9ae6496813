"""`backfire rollout` and `backfire predict`: every step is kept, a killed run ends as an unkilled one, changes hold."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from envs.coderepair import CodeRepair, bundled_problems
from envs.coderepair.problems import Problem
from envs.harness import Ban, Phrases
from envs.sandbox import Sandbox
from envs.toolshed import Toolshed
from experiments.cli import main
from experiments.rollout import predict as predict_repeats
from experiments.rollout.arms import CHANGES, parse_changes
from experiments.rollout.environments import REPLY_TOKENS
from experiments.rollout.policy import ModelPolicy
from experiments.rollout.predict import PREDICTORS
from experiments.rollout.rollout import with_copies
from experiments.rollout.text import SHOWN, rollout_text
from experiments.run.item_pools import checkpoint_cache
from experiments.run.run_folder import RunFolder
from experiments.run.schema import ROWS
from experiments.run.seeds import py_stream
from mech.decoding.bans import Proposal, token_bans
from mech.decoding.decode import Decoding, decode_uncached
from mech.engine import reference
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.heads import HeadSet
from mech.interventions.intervention import scale_heads
from mech.interventions.persistent import NOTHING_PERSISTENT, PersistentIntervention
from mech.models.model import Model
from mech.patching.patch import all_heads
from probes.rollouts.steps import per_step
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, contents, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import FP32, FP64, NATS

SMALL = ("--tasks", "2", "--steps", "3", "--tokens", "5", "--quiet")
HEADS = "L0H1,L1H0,L2H3"
ZERO = ("--how", "zero", "--heads", HEADS)


def seeded(name: str) -> random.Random:
    return py_stream(0, name)


@pytest.fixture(autouse=True)
def short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve tools are two thousand tokens to a tokenizer of bytes; a random model reads none of them."""
    monkeypatch.setattr("envs.toolshed.Toolshed.system_prompt", "Answer with one call.")
    monkeypatch.setattr("envs.toolshed.Toolshed.demonstrations", Toolshed.demonstrations[:1])


def test_every_step_is_kept_with_all_that_led_to_it(shell: Shell) -> None:
    said = shell.ran("rollout", "--harness", "verbatim,verbatim+ban", "--detectors", "2,4,6", *SMALL)
    rows = shell.lines("rollout")
    assert all(set(ROWS["rollout"]) <= set(row) for row in rows)
    assert {row["arm"] for row in rows} == {"verbatim", "verbatim+ban"}
    for row in rows:
        assert row["stop"] and row["kind"] and row["n_prompt_tokens"] == len(row["prompt_ids"])
        assert len(row["token_ids"]) == len(row["token_logprobs"]) == row["n_new_tokens"] >= 1
        assert row["first_top"][0][2] <= 0 and len(row["first_top"]) == 5
    assert "readable" in said.out[1] and "at their floor" in " ".join(said.out)
    for name in ("rollout", "rollout_rates", "rollout_contrasts", "rollout_survival"):
        assert len(shell.table(name))
    for row in rows:
        found = Toolshed().extract(row["raw"])
        assert (row["action"], row["extraction"], row["dropped"]) == (
            found.action.text,
            list(found.edits),
            found.dropped,
        )
    edited = shell.table("rollout_extractions")
    counts = Counter((row["arm"], edit) for row in rows for edit in row["extraction"])
    assert dict(zip(zip(edited["arm"], edited["edit"], strict=True), edited["n"], strict=True)) == counts
    rollouts = shell.table("rollout")
    assert {"same_action_error_2", "same_observation_4", "alternating_6"} <= set(rollouts.columns)
    assert len(rollouts) == 4 and not rollouts.duplicated(["arm", "task_id", "sample"]).any()
    assert sum(row["last"] for row in rows) == 4
    about = shell.about("rollout")
    assert about["done"] and about["provenance"]["tasks"] == ["roll-0000", "roll-0001"]


def test_a_row_s_turn_is_what_full_forwards_write_under_the_same_change(shell: Shell) -> None:
    """The cached loop against the slow path, on prompts with failed calls in them, under every change."""
    shell.ran("rollout", "--harness", "verbatim", "--change", "all", *SMALL, *ZERO, "--first", "given")
    model = loaded_once(str(shell.model))
    drawn = HeadSet.parse(shell.about("rollout")["provenance"]["sets"]["random0"])
    chosen = HeadSet.parse(HEADS)
    persistent_kinds = {
        "none": NOTHING_PERSISTENT,
        "ablate": PersistentIntervention(scale_heads(chosen, 0.0, "all")),
        "knockout": PersistentIntervention(knockout_heads=chosen),
        "knockout-all": PersistentIntervention(knockout_heads=all_heads(model)),
        "ablate-random0": PersistentIntervention(scale_heads(drawn, 0.0, "all")),
        "knockout-random0": PersistentIntervention(knockout_heads=drawn),
    }
    every = shell.lines("rollout")
    rows = [row for row in every if row["index"] in (1, 3)]
    assert {row["change"] for row in rows} == set(persistent_kinds)
    first: dict[tuple[str, int], list[float]] = {}
    knockout_heads: dict[int, int] = {}
    for row in rows:
        prompt = tuple(row["prompt_ids"])
        spans = failed_calls(model, every, row)
        turn = decode_uncached(model, prompt, Decoding(1), persistent_kinds[row["change"]], spans=spans)
        knockout_heads[row["index"]] = max(knockout_heads.get(row["index"], 0), len(spans))
        assert row["token_ids"][0] == (turn.tokens[0] if turn.tokens else turn.end)
        assert row["token_logprobs"][0] == pytest.approx(turn.logprobs[0], abs=FP32 * 10)
        first.setdefault((row["task_id"], row["index"]), []).append(round(row["first_top"][0][2], 5))
    later = [values for (_, index), values in first.items() if index == 1]
    assert later and all(
        len(set(values)) == len(persistent_kinds) for values in later
    )  # each change does something
    assert knockout_heads[1] == 1 and knockout_heads[3] > 1  # not the first failure alone


def failed_calls(model: Any, rows: list[dict[str, Any]], row: dict[str, Any]) -> list[tuple[int, int]]:
    """Where the failed calls before a step stand in its prompt, found by their tokens, in order."""
    same = [each for each in rows if all(each[k] == row[k] for k in ("arm", "task_id", "sample"))]
    spans: list[tuple[int, int]] = []
    prompt, at = tuple(row["prompt_ids"]), 0
    opening = tuple(model.tokenizer.encode("assistant\n", add_special_tokens=False))
    for each in sorted(same, key=lambda one: one["index"])[: row["index"]]:
        call = (*opening, *model.tokenizer.encode(each["action"], add_special_tokens=False))
        if each["action"] and each["error_type"] is not None:
            at = next(start for start in range(at, len(prompt)) if prompt[start : start + len(call)] == call)
            spans.append((at + len(opening), at + len(call)))
            at += len(call)
    return spans


def kill_after(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """The n-th append dies before it writes."""
    stock, calls = RunFolder.append_all, iter(range(n + 1))

    def append_all(self: RunFolder, name: str, rows: Any) -> None:
        if next(calls, None) == n:
            raise KeyboardInterrupt
        stock(self, name, rows)

    monkeypatch.setattr(RunFolder, "append_all", append_all)


def tables_and_rows(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name not in ("run.json", ".lock")}


def test_a_killed_run_ends_with_the_bytes_of_an_unkilled_one(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "--harness",
        "verbatim+ban,drop",
        "--change",
        "none,knockout",
        "--temperature",
        "1.2",
        *ZERO,
        *SMALL,
    )
    shell.ran("rollout", *words, out="whole")
    whole = tables_and_rows(shell.tmp / "whole")
    with monkeypatch.context() as patch:
        kill_after(patch, 3)
        assert shell("rollout", *words, out="killed").code == 130
    rows = (shell.tmp / "killed" / "rollout.jsonl").read_bytes()
    assert rows and whole["rollout.jsonl"].startswith(rows) and rows != whole["rollout.jsonl"]
    # Killed again, this time in the middle of a row of an unfinished rollout.
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        assert shell("rollout", *words, out="killed").code == 130
    longer = (shell.tmp / "killed" / "rollout.jsonl").read_bytes()
    cut = longer.rindex(b"\n", 0, -1) + 40
    (shell.tmp / "killed" / "rollout.jsonl").write_bytes(longer[:cut])
    shell.ran("rollout", *words, out="killed")
    assert tables_and_rows(shell.tmp / "killed") == whole


def test_what_is_finished_is_not_done_again_and_other_settings_are_refused(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("--harness", "verbatim", *SMALL)
    shell.ran("rollout", *words)
    before = tables_and_rows(shell.tmp / "run")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("a finished rollout was done again")

    with monkeypatch.context() as patch:
        patch.setattr("experiments.rollout.policy.decode", never)
        shell.ran("rollout", *words)
    assert tables_and_rows(shell.tmp / "run") == before
    shell("rollout", *words, "--steps", "4").sentence("other settings", "steps")


def test_samples_have_the_same_draws_in_every_arm_and_differ_among_themselves(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim,abstract", "--temperature", "1", "--samples", "3", *SMALL)
    firsts: dict[str, dict[str, Any]] = {"verbatim": {}, "abstract": {}}
    for row in shell.lines("rollout"):
        if row["index"] == 0:
            firsts[row["arm"]][row["task_id"], row["sample"]] = row["token_ids"]
    assert firsts["verbatim"] == firsts["abstract"]
    assert len({tuple(ids) for ids in firsts["verbatim"].values()}) > 3


@pytest.mark.parametrize("level", ["string", "canonical"])
def test_under_a_ban_no_text_is_written_twice(shell: Shell, level: str) -> None:
    shell.ran("rollout", "--harness", "drop,drop+ban", "--ban", level, *SMALL)
    rows = [row for row in shell.lines("rollout") if row["kind"] != "ok"]
    for arm, repeats in (("drop", True), ("drop+ban", False)):
        per_task: dict[str, list[str]] = {}
        for row in rows:
            if row["arm"] == arm and row["action"]:
                per_task.setdefault(row["task_id"], []).append(
                    row["action" if level != "canonical" else "canonical"]
                )
        doubled = any(len(set(texts)) < len(texts) for texts in per_task.values())
        assert doubled == repeats  # deleted failures and a greedy model: the same again, unless it is banned
    events = [row for row in rows if row["arm"] == "drop+ban" and row["n_ban_events"]]
    assert events and all(row["n_bans"] for row in events)
    for row in events:  # a token of which the ban changed the choice counts once, however many were refused
        assert row["n_ban_events"] == len({at for at, *_ in row["ban_events"]}) <= row["n_refused"]
    assert sum(row["n_refused"] for row in events) > sum(row["n_ban_events"] for row in events)


def test_a_given_first_call_is_the_same_in_every_arm_and_counts_for_nobody(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim,abstract", "--first", "given", *SMALL)
    given = [row for row in shell.lines("rollout") if row["given"]]
    assert {row["index"] for row in given} == {0} and len(given) == 4
    assert len({(row["task_id"], row["action"]) for row in given}) == 2
    assert all(
        row["kind"] == "failed" and row["stop"] == "given" and row["n_new_tokens"] == 0 for row in given
    )
    assert set(shell.table("rollout")["n_steps"]) == {3}
    assert (shell.table("rollout_survival").query("t == 0")["at_risk"] == 2).all()


def test_a_leftover_that_does_not_fit_the_rollout_is_refused(shell: Shell) -> None:
    words = ("--harness", "verbatim", *SMALL)
    shell.ran("rollout", *words)
    path = shell.path("rollout.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    first = json.loads(lines[3])  # the second task's first step, and no last step behind it
    first["action"] = "other"
    path.write_text("".join([*lines[:3], json.dumps(first) + "\n"]))
    shell("rollout", *words).sentence("does not go as it went before")


def test_what_a_ban_means_to_the_decoder(shell: Shell) -> None:
    """A readable call is refused wherever its end would stand, in any spelling; a part of one only as a whole."""
    shed, engine = Toolshed(), Engine(loaded_once(str(shell.model)))
    by_tokens = ModelPolicy(engine, shed, NOTHING_PERSISTENT, Decoding(4), "token", np.random.default_rng(0))
    assert by_tokens.bans(Ban("done()", True)) == list(token_bans(engine.model, "done()"))
    for level, spellings in (("string", 0), ("canonical", 1)):
        policy = ModelPolicy(engine, shed, NOTHING_PERSISTENT, Decoding(4), level, np.random.default_rng(0))
        call = policy.bans(Ban("drop_meeting(ref='mt-7')", True))
        respelt = Proposal((), 0, 'drop_meeting( ref = "mt-7" )', False)
        assert [ban.when for ban in call] == ["end", "always", "always"][: 2 + spellings]
        assert sum(ban.forbids(respelt) for ban in call) == spellings
        assert any(ban.forbids(Proposal((), 0, "`drop_meeting(ref='mt-7')", False)) for ban in call)
        part = policy.bans(Ban("drop_meeting(ref='mt", False))
        assert {ban.when for ban in part} == {"end"}
        assert not any(ban.forbids(Proposal((), 0, "drop_meeting(ref='mt-8')", True)) for ban in part)
        assert any(ban.forbids(Proposal((), 0, "Action: drop_meeting(ref='mt", True)) for ban in part)


def test_a_ban_and_a_turn_s_end_know_the_program_that_the_task_asks_for(shell: Shell) -> None:
    """The banned program is refused as the whole of a reply in any dress, and its helper alone is not taken for it."""
    engine = Engine(loaded_once(str(shell.model)))
    double, helper = "def double(x):\n    return 3 * x", "def twice(x):\n    return 2 * x + 0 * x"
    problem = Problem("code-9001", "Double.", double, ("assert double(2) == 4",), ())
    with Sandbox() as sandbox:
        repair = CodeRepair(sandbox, [problem])
        [task] = repair.tasks(1, seeded)
        policy = ModelPolicy(
            engine, repair, NOTHING_PERSISTENT, Decoding(4), "canonical", np.random.default_rng(0), task
        )
        equal, same = policy.bans(Ban(double, False))
        dressed = f"```\n{helper}\n```\n```python\n{double}\n```"
        for text in (double, f"{double}\n```\nThat is it.", dressed):
            assert equal.breaks(text) and same.breaks(text)
        respelt = dressed.replace("3 * x", "(3*x)  # thrice")
        assert not equal.breaks(respelt) and same.breaks(respelt)
        assert not equal.breaks(f"```\n{helper}\n```") and not same.breaks(f"```\n{helper}\n```")
        assert repair.stops(dressed, task) and not repair.stops(f"```\n{helper}\n```", task)


def test_copies_are_told_apart_from_repeats() -> None:
    shed = Toolshed()
    [task] = shed.rollout_tasks(1, seeded)
    demonstration = shed.demonstrations[0].steps[0][0].replace("'", '"')
    said = ["drop(x was", "(note 7: drop(x went wrong)", demonstration, "drop_meeting(ref='mt-7')"]

    def abstract(error: str, tool: str | None, index: int) -> str:
        return f"(note {index}: drop(x went wrong)"

    phrases = Phrases("user", "Result: ", abstract, "", "")
    rows = [
        {"arm": "abstract", "harness": "abstract", "task_id": task.task_id, "sample": 0, "index": at, "given": False,
         "action": text, "canonical": shed.canonical(text), "observation": "bad", "error_type": "unparsable",
         "tool": None}
        for at, text in enumerate(said)
    ]  # fmt: skip
    table = with_copies(pd.DataFrame(rows), shed, {task.task_id: task}, phrases)
    assert table["copies"].fillna("").tolist() == ["", "runtime", "demonstration", ""]
    rows[1]["given"] = True
    again = with_copies(pd.DataFrame(rows), shed, {task.task_id: task}, phrases)
    assert again["copies"].fillna("").tolist() == ["", "", "demonstration", ""]


def test_every_arm_at_its_floor_is_named_and_what_success_cannot_show_is_said() -> None:
    def rates(arm: str, readable: float, recovered: float) -> list[dict[str, Any]]:
        values = {**dict.fromkeys(SHOWN, 0.0), "parseable_share": readable, "recovered": recovered}
        return [
            {"arm": arm, "metric": name, "mean": value, "n": 3, "n_chance": 2}
            for name, value in values.items()
        ]

    two = rates("verbatim", 0.9, 0.0) + rates("verbatim/ablate", 0.1, 0.0)
    low = rollout_text({"rollout_rates": pd.DataFrame(two)})
    assert (
        "Fewer than half of the steps under verbatim/ablate can" in low and "No rollout with a failure" in low
    )
    fine = rollout_text({"rollout_rates": pd.DataFrame(rates("verbatim", 0.9, 0.5))})
    assert "Fewer" not in fine and "No rollout" not in fine


def test_programs_are_rolled_out_and_predicted_too(shell: Shell) -> None:
    words = ("--env", "coderepair", "--tasks", "1", "--steps", "1", "--tokens", "4", "--quiet")
    shell.ran("rollout", *words, "--harness", "verbatim,verbatim+ban", "--first", "given")
    assert {row["env"] for row in shell.lines("rollout")} == {"coderepair"}
    shell.ran("predict")
    assert len(shell.lines("predict")) == 1


def test_a_transcript_that_fills_the_model_ends_the_rollout_with_that_outcome(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.ran("rollout", "--harness", "verbatim", *SMALL)
    longest = max(row["n_prompt_tokens"] for row in shell.lines("rollout"))
    monkeypatch.setattr(Model, "n_positions", longest + 4)
    shell.ran("rollout", "--harness", "verbatim", *SMALL, out="full")
    last = [row for row in shell.lines("rollout", "full") if row["kind"] == "no_room"]
    assert last and all(row["end"] == row["stop"] == "no_room" and row["last"] for row in last)
    assert "no_room" in set(shell.table("rollout", "full")["end"])


def test_a_step_says_that_its_transcript_is_longer_than_any_in_training(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.ran("rollout", "--harness", "verbatim", *SMALL)
    rows = shell.lines("rollout")
    lengths = [row["n_prompt_tokens"] + row["n_new_tokens"] for row in rows]
    trained = sorted(set(lengths))[0]
    cached = checkpoint_cache()
    model = loaded_once(str(shell.model), dtype="float32", device="cpu", cache_dir=cached, pre=None)
    monkeypatch.setattr(model.hf_config, "max_position_embeddings", trained)
    shell.ran("rollout", "--harness", "verbatim", *SMALL, out="long")
    note = f"longer than the {trained} positions that the model was trained for"
    found = [note in row["notes"] for row in shell.lines("rollout", "long")]
    assert found == [length > trained for length in lengths] and True in found and False in found


def test_predictions_are_of_the_prompts_that_the_model_saw(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim,verbatim+instr,abstract", "--first", "given", *SMALL)
    shell.ran("predict")
    rows = {row["id"]: row for row in shell.lines("rollout")}
    points = shell.lines("predict")
    assert {point["arm"] for point in points} == {"verbatim", "verbatim+instr"} and len(points) >= 4
    model = loaded_once(str(shell.model))
    end = model.tokenizer.convert_tokens_to_ids("<end>")
    marked = per_step(pd.DataFrame(list(rows.values()))).set_index("id")
    gold = {task.task_id: [each.text for each in task.gold] for task in Toolshed().rollout_tasks(2, seeded)}
    for point in points:
        assert point["repeats"] == marked.loc[point["id"], "canonical_repeat"]
    for point in [each for each in points if each["index"] == 2]:
        step, last = (rows[f"{point['id'].rpartition('|')[0]}|{index}"] for index in (2, 1))
        text = model.tokenizer.decode(step["prompt_ids"])
        silent = text[::-1].replace(last["observation"][::-1], Toolshed().acknowledge()[::-1], 1)[::-1]
        prompts = {
            "pre": tuple(last["prompt_ids"]),  # what the model saw before it wrote the call
            "fail": tuple(step["prompt_ids"]),
            "neut": tuple(model.tokenizer.encode(silent, add_special_tokens=False)),
        }
        for name, prompt in prompts.items():
            assert point[f"logp_{name}"] == pytest.approx(
                logp(model, prompt, point["failed_action"]), abs=NATS
            )
        assert len({round(point[f"logp_{name}"], 3) for name in prompts}) == 3
        for key, name in (("p_repeat", "fail"), ("p_repeat_pre", "pre")):
            texts = (point["failed_action"], *gold[point["task_id"]])
            sums = [logp(model, prompts[name], each) for each in texts]
            assert point[key] == pytest.approx(1 / sum(math.exp(one - sums[0]) for one in sums), abs=1e-3)
    for point in points[:3]:
        step = rows[point["id"]]
        action = (*model.tokenizer.encode(point["failed_action"], add_special_tokens=False), end)
        [score] = reference.score(model, [Query(tuple(step["prompt_ids"]), action)])
        assert point["logp_fail_exact"] == pytest.approx(score.total, abs=NATS)
        assert -point["G"] == pytest.approx(point["copy"] + point["sem"], abs=FP64 * 10)
        assert point["p_exact"] == pytest.approx(math.exp(point["logp_fail_exact"]))
        assert 0 <= point["p_repeat"] <= 1
    table = shell.table("predict")
    assert set(table["predictor"]) >= {"backfire_nats", "copy", "p_repeat", "p_exact"}
    assert set(shell.table("predict_calibration")["predictor"]) == {"p_repeat", "p_repeat_pre", "p_exact"}


def logp(model: Model, prompt: tuple[int, ...], action: str) -> float:
    """By one full forward."""
    ids = tuple(model.tokenizer.encode(action, add_special_tokens=False))
    return reference.score(model, [Query(prompt, ids)])[0].total


def test_a_step_that_repeats_to_the_letter_has_the_probability_that_predict_gives_it(
    tmp_path: Path, smollm2: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Known answer, on the real model: a turn's own log-probabilities are those that teacher forcing finds."""
    monkeypatch.undo()  # the whole prompt
    monkeypatch.setattr("experiments.run.session.load_model", lambda *_, **__: smollm2)
    out = ("--out", str(tmp_path / "run"), "--quiet")
    assert main(["rollout", "--harness", "verbatim", "--tasks", "2", "--steps", "3", *out]) == 0
    assert main(["predict", *out]) == 0

    def lines(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / "run" / f"{name}.jsonl").read_text().splitlines()]

    rows = {row["id"]: row for row in lines("rollout")}
    exact = [point for point in lines("predict") if point["repeats_exact"]]
    assert len(exact) >= 2  # the model does repeat itself
    for point in exact:
        written = math.fsum(rows[point["id"]]["token_logprobs"])
        assert point["logp_fail_exact"] == pytest.approx(written, abs=NATS)


def test_what_is_exact_is_judged_by_exact_repeats() -> None:
    base = {"model": "m", "env": "e", "arm": "verbatim", **dict.fromkeys(PREDICTORS, 0.5)}
    lines = [(0.9, 1, 1), (0.1, 1, 0), (0.8, 0, 1), (0.2, 0, 0)]
    names = ("p_exact", "repeats", "repeats_exact")
    points = [
        {**base, "task_id": str(at), **dict(zip(names, line, strict=True))} for at, line in enumerate(lines)
    ]
    tables = predict_repeats.tables_of(pd.DataFrame(points), lambda name: np.random.default_rng(0))
    found = tables["predict"].set_index("predictor")
    assert found.loc["p_exact", "auc"] == 1.0 and found.loc["p_repeat", "auc"] == 0.5


def test_what_cannot_be_rolled_out_or_predicted_is_one_sentence(shell: Shell, tmp_path: Path) -> None:
    shell("rollout", "--harness", "verbatm", *SMALL).sentence("verbatm", "choose from all, paper")
    shell("rollout", "--change", "ablat", *SMALL).sentence("ablat", *CHANGES)
    assert shell("rollout", "--detectors", "3,4", *SMALL).code == 2
    assert shell("rollout", "--detectors", "1,4,6", *SMALL).code == 2
    shell("rollout", "--samples", "2", *SMALL).sentence("--temperature")
    shell("rollout", "--change", "ablate", "--heads", "L9H9", *SMALL).sentence("L9H9 does not exist")
    shell("rollout", *SMALL, out=None).sentence("--out")
    assert shell("rollout", "--temperature", "-1", *SMALL).code == 2
    shell("predict", out="nothing").sentence("not a run folder")
    shell.ran("rollout", "--harness", "abstract", *SMALL, out="abstract")
    shell("predict", out="abstract").sentence("no step after a failed call")
    shell.ran("rollout", "--harness", "verbatim", *SMALL, out="other")
    wording = tmp_path / "wording.json"
    default = Path(__file__).parent.parent.parent / "probes" / "prompts" / "wordings" / "default.json"
    wording.write_text(default.read_text().replace("Result: ", "Got: "))
    shell("predict", "--wording", wording, out="other").sentence("another wording")


def test_an_arm_that_would_hide_nothing_is_left_out(shell: Shell) -> None:
    said = shell(
        "rollout", "--harness", "verbatim,abstract,drop+ban", "--change", "none,knockout", *SMALL, *ZERO
    )
    assert said.code == 0
    names = {row["arm"] for row in shell.lines("rollout")}
    assert names == {"verbatim", "abstract", "drop+ban", "verbatim/knockout"}
    assert set(shell.about("rollout")["provenance"]["arms"]) == names
    shell("rollout", "--harness", "drop", "--change", "knockout", *SMALL, *ZERO, out="none").sentence(
        "add verbatim"
    )


def test_every_reference_fits_into_a_reply(smollm2: Any) -> None:
    def longest(texts: list[str]) -> int:
        return max(len(smollm2.tokenizer(text)["input_ids"]) for text in texts)

    calls = [action.text for task in Toolshed().rollout_tasks(48, seeded) for action in task.gold]
    programs = [problem.code for problem in bundled_problems()]
    assert (longest(calls), longest(programs)) == (49, 139)
    assert longest(calls) < REPLY_TOKENS["toolshed"] and longest(programs) < REPLY_TOKENS["coderepair"]


def test_changes_are_read_once_each() -> None:
    assert parse_changes("knockout,none,knockout") == ("knockout", "none")
    assert parse_changes("all") == CHANGES
