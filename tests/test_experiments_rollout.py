"""`backfire rollout` and `backfire predict`: every step is kept, a killed run ends as an unkilled one, changes hold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from envs.toolshed import Toolshed
from experiments.changes_in_loop import CHANGES, parse_changes
from experiments.records import RunFolder
from experiments.schema import STEPS
from mech import reference
from mech.decoding import Decoding, decode_uncached
from mech.heads import HeadSet
from mech.interventions import scale_heads
from mech.patching import all_heads
from mech.queries import Query
from mech.standing import STANDING_NOTHING, Standing
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, contents, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import FP32, FP64, NATS

SMALL = ("--tasks", "2", "--steps", "3", "--tokens", "5", "--quiet", "yes")
HEADS = "L0H1,L1H0,L2H3"
ZERO = ("--how", "zero", "--heads", HEADS)


@pytest.fixture(autouse=True)
def short_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve tools are two thousand tokens to a tokenizer of bytes; a random model reads none of them."""
    monkeypatch.setattr("envs.toolshed.Toolshed.system_prompt", "Answer with one call.")
    monkeypatch.setattr("envs.toolshed.Toolshed.demonstrations", Toolshed.demonstrations[:1])


def test_every_step_is_kept_with_all_that_led_to_it(shell: Shell) -> None:
    said = shell.ran("rollout", "--harness", "verbatim,verbatim+ban", "--detectors", "2,4,6", *SMALL)
    rows = shell.lines("steps")
    assert all(set(STEPS) <= set(row) for row in rows)
    assert {row["arm"] for row in rows} == {"verbatim", "verbatim+ban"}
    for row in rows:
        assert row["stop"] and row["kind"] and row["n_prompt_tokens"] == len(row["prompt_ids"])
        assert len(row["token_ids"]) == len(row["token_logprobs"]) == row["n_new_tokens"] >= 1
        assert row["first_top"][0][2] <= 0 and len(row["first_top"]) == 5
    assert "readable" in said.out[1] and "at their floor" in " ".join(said.out)
    for name in ("rollouts", "rollout_rates", "rollout_contrasts", "survival"):
        assert len(shell.table(name))
    rollouts = shell.table("rollouts")
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
    standings = {
        "none": STANDING_NOTHING,
        "ablate": Standing(scale_heads(chosen, 0.0, "all")),
        "hide": Standing(hidden=chosen),
        "hide-all": Standing(hidden=all_heads(model)),
        "ablate-random0": Standing(scale_heads(drawn, 0.0, "all")),
        "hide-random0": Standing(hidden=drawn),
    }
    rows = [row for row in shell.lines("steps") if not row["given"] and row["index"] == 1]
    given = {row["task_id"]: row for row in shell.lines("steps") if row["given"]}
    assert {row["change"] for row in rows} == set(standings)
    first = {}
    for row in rows:
        call = tuple(model.tokenizer.encode(given[row["task_id"]]["action"], add_special_tokens=False))
        prompt = tuple(row["prompt_ids"])
        [start] = [at for at in range(len(prompt)) if prompt[at : at + len(call)] == call]
        turn = decode_uncached(
            model, prompt, Decoding(1), standings[row["change"]], spans=[(start, start + len(call))]
        )
        assert row["token_ids"][0] == (turn.tokens[0] if turn.tokens else turn.end)
        assert row["token_logprobs"][0] == pytest.approx(turn.logprobs[0], abs=FP32 * 10)
        first.setdefault(row["task_id"], []).append(round(row["first_top"][0][2], 5))
    assert all(len(set(values)) == len(standings) for values in first.values())  # each change does something


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
    words = ("--harness", "verbatim+ban,drop", "--change", "none,hide", "--temperature", "1.2", *ZERO, *SMALL)
    shell.ran("rollout", *words, out="whole")
    whole = tables_and_rows(shell.tmp / "whole")
    with monkeypatch.context() as patch:
        kill_after(patch, 3)
        assert shell("rollout", *words, out="killed").code == 130
    rows = (shell.tmp / "killed" / "steps.jsonl").read_bytes()
    assert rows and whole["steps.jsonl"].startswith(rows) and rows != whole["steps.jsonl"]
    # Killed again, this time in the middle of a row of an unfinished rollout.
    with monkeypatch.context() as patch:
        kill_after(patch, 2)
        assert shell("rollout", *words, out="killed").code == 130
    longer = (shell.tmp / "killed" / "steps.jsonl").read_bytes()
    cut = longer.rindex(b"\n", 0, -1) + 40
    (shell.tmp / "killed" / "steps.jsonl").write_bytes(longer[:cut])
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
        patch.setattr("experiments.policies.decode", never)
        shell.ran("rollout", *words)
    assert tables_and_rows(shell.tmp / "run") == before
    shell("rollout", *words, "--steps", "4").sentence("other settings", "steps")


def test_samples_have_the_same_draws_in_every_arm_and_differ_among_themselves(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim,abstract", "--temperature", "1", "--samples", "3", *SMALL)
    firsts: dict[str, dict[str, Any]] = {"verbatim": {}, "abstract": {}}
    for row in shell.lines("steps"):
        if row["index"] == 0:
            firsts[row["arm"]][row["task_id"], row["sample"]] = row["token_ids"]
    assert firsts["verbatim"] == firsts["abstract"]
    assert len({tuple(ids) for ids in firsts["verbatim"].values()}) > 3


@pytest.mark.parametrize("level", ["string", "canonical"])
def test_under_a_ban_no_text_is_written_twice(shell: Shell, level: str) -> None:
    shell.ran("rollout", "--harness", "drop,drop+ban", "--ban", level, *SMALL)
    rows = [row for row in shell.lines("steps") if row["kind"] != "ok"]
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
    assert [row["n_ban_events"] for row in events] == [len(row["ban_events"]) for row in events]


def test_a_given_first_call_is_the_same_in_every_arm_and_counts_for_nobody(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim,abstract", "--first", "given", *SMALL)
    given = [row for row in shell.lines("steps") if row["given"]]
    assert {row["index"] for row in given} == {0} and len(given) == 4
    assert len({(row["task_id"], row["action"]) for row in given}) == 2
    assert all(
        row["kind"] == "failed" and row["stop"] == "given" and row["n_new_tokens"] == 0 for row in given
    )
    assert set(shell.table("rollouts")["n_steps"]) == {3}
    assert (shell.table("survival").query("t == 0")["at_risk"] == 2).all()


def test_predictions_are_of_the_prompts_that_the_model_saw(shell: Shell) -> None:
    shell.ran("rollout", "--harness", "verbatim,verbatim+instr,abstract", "--first", "given", *SMALL)
    shell.ran("predict")
    rows = {row["id"]: row for row in shell.lines("steps")}
    points = shell.lines("decisions")
    assert {point["arm"] for point in points} == {"verbatim", "verbatim+instr"} and len(points) >= 4
    model = loaded_once(str(shell.model))
    end = model.tokenizer.convert_tokens_to_ids("<end>")
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
    assert set(shell.table("calibration")["predictor"]) == {"p_repeat", "p_repeat_pre", "p_exact"}


def test_a_step_that_repeats_to_the_letter_has_the_probability_that_predict_gives_it(shell: Shell) -> None:
    """Known answer: the log-probabilities of a turn that was written are those that teacher forcing finds."""
    shell.ran(
        "rollout",
        "--harness",
        "drop,verbatim",
        "--tasks",
        "2",
        "--steps",
        "4",
        "--tokens",
        "60",
        "--quiet",
        "yes",
    )
    shell.ran("predict")
    rows = {row["id"]: row for row in shell.lines("steps")}
    exact = [point for point in shell.lines("decisions") if point["repeats_exact"]]
    for point in exact:
        written = math.fsum(rows[point["id"]]["token_logprobs"])
        assert point["logp_fail_exact"] == pytest.approx(written, abs=NATS)


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
    shell("predict", out="abstract").sentence("no step behind a failed call")
    shell.ran("rollout", "--harness", "verbatim", *SMALL, out="other")
    wording = tmp_path / "wording.json"
    default = Path(__file__).parent.parent / "probes" / "wordings" / "default.json"
    wording.write_text(default.read_text().replace("Result: ", "Got: "))
    shell("predict", "--wording", wording, out="other").sentence("another wording")


def test_changes_are_read_once_each() -> None:
    assert parse_changes("hide,none,hide") == ("hide", "none")
    assert parse_changes("all") == CHANGES
