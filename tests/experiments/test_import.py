"""`backfire import`: agent logs become an item file that the studies take, with an account of all that was read."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.cli import main
from probes.items.item import load_items
from probes.prompts.conditions import CONDITIONS, condition_messages, lacking
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import load_wording
from tests.log_cases import LOGS
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture

ALL = sorted(str(path) for path in LOGS.iterdir())
RULE = ("--failed-when", "content~(?i)not found|404|^Could not")


def run(capsys: Any, *words: str | Path) -> tuple[int, str, str]:
    code = main(["import", *map(str, words)])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.fixture
def items(tmp_path: Path, capsys: Any) -> Path:
    place = tmp_path / "imported.jsonl"
    code, _, error = run(capsys, *ALL, "--out", place, *RULE)
    assert code == 0, error
    return place


def test_all_formats_at_once_give_an_item_file_and_a_whole_account(tmp_path: Path, capsys: Any) -> None:
    place, report = tmp_path / "items.jsonl", tmp_path / "report.csv"
    code, out, _ = run(capsys, *ALL, "--out", place, *RULE, "--report", report)
    items = load_items(place)
    with report.open(newline="") as file:
        rows = list(csv.DictReader(file))
    of_calls = [row for row in rows if row["what"] == "call"]
    assert code == 0 and f"calls: {len(of_calls)} = {len(items)} failed and are items + " in out
    assert [row["item_id"] for row in of_calls if row["fate"] == "item"] == [one.item_id for one in items]
    assert {row["file"] for row in rows} == {Path(path).name for path in ALL}
    assert len(items) == 21 and f"items: 21 in {len({one.task_id for one in items})} logs" in out
    assert "logs: 1 as anthropic" in out and "2 as inspect" in out and "2 as openhands" in out
    assert "repeated in the next turn: canonical 3, exact 2, near 5, no 10, unknown 1" in out
    assert "+ 13 succeeded + 0 of unknown outcome + 1 skipped" in out
    assert "neutral text: template 21; success text: log 9, template 12" in out


def test_every_condition_that_a_log_can_have_can_be_written(items: Path) -> None:
    found, wording = load_items(items), load_wording()
    pool = with_unrelated(found, found)
    for one in pool:
        missing = {name for name in CONDITIONS if lacking(one, name)}
        assert missing <= {"neut_other", "fail_verbose", "fail_other", "fail_unrelated", "mark"}
        assert {"fail_verbose", "neut_other"} <= missing
        written = {
            name: condition_messages(one, name, wording, lambda text: len(text.split()))
            for name in CONDITIONS
            if name not in missing
        }
        assert written["fail"][-1]["content"] == one.obs_fail
        assert [turn["role"] for turn in written["pre"][:2]] == ["system", "user"]
        assert written["fail"][-2] == {"role": "assistant", "content": one.failed_action}


def test_the_unrelated_call_of_a_log_is_of_another_tool(items: Path) -> None:
    found = load_items(items)
    tools = {one.failed_action: one.tool for one in found}
    for one in with_unrelated(found, found):
        if "unrelated_action" in one.meta and one.failed_action.startswith("{"):
            assert tools[one.meta["unrelated_action"]] != one.tool


def test_probe_measures_imported_items(items: Path, shell: Shell) -> None:
    shell.items.write_text("".join(items.read_text().splitlines(keepends=True)[:4]))
    shell.ran("probe", "--conditions", "pre,fail,succ,neut,neut_pad,neut_matched,fail_terse,fail_echo")
    rows = shell.lines("scores")
    envs = {one.item_id: one.env for one in load_items(items)}
    assert rows and all(row["env"] == envs[row["item_id"]] for row in rows)
    measures = shell.table("measures")
    assert {"G", "copy", "sem", "polarity"} <= set(measures["measure"])
    assert set(shell.table("summary")["env"]) == {row["env"] for row in rows}
    assert all(env.startswith("log (neutral: ") for env in measures["env"])


def test_items_takes_imported_items(items: Path, capsys: Any) -> None:
    assert main(["items", "--items", str(items)]) == 0
    assert "21 items" in capsys.readouterr().out


def test_standard_input_is_a_log(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Piped:
        buffer = io.BytesIO((LOGS / "claude_code.jsonl").read_bytes())

    monkeypatch.setattr(sys, "stdin", Piped())
    code, out, _ = run(capsys, "-", "--out", tmp_path / "items.jsonl")
    assert code == 0 and "logs: 1 as claude-code" in out
    assert load_items(tmp_path / "items.jsonl")[0].task_id == "standard input, S1"


def test_logs_without_a_known_failure_write_nothing_and_say_how_to_go_on(tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "items.jsonl"
    code, out, _ = run(capsys, LOGS / "react.txt", "--out", place)
    assert code == 1 and not list(tmp_path.iterdir())
    assert "unknown: Search 2, Lookup 1. Decide with --failed-when RULE." in out
    assert "react.txt, line 3: 'Search: Could not find [Rann].'" in out and "nothing is written" in out


def test_options_reach_the_items(tmp_path: Path, capsys: Any) -> None:
    place, texts, log = tmp_path / "items.jsonl", tmp_path / "texts.json", tmp_path / "log.jsonl"
    own = {"neutral": "n", "success": "s", "terse": "t", "echo": "{call}: {observation}", "empty": "e"}
    texts.write_text(json.dumps(own))
    rows = [{"role": "assistant", "content": f"f({n})", "failed": True} for n in range(2)]
    answer = {"role": "tool", "content": "bad"}
    log.write_text("".join(f"{json.dumps(row)}\n{json.dumps(answer)}\n" for row in rows))
    words = ("--goal", "Go.", "--texts", texts, "--counterfactuals", "template", "--format", "plain")
    run(capsys, log, "--out", place, *words)
    first, second = load_items(place)
    assert first.goal == "Go." and (first.obs_neutral, first.obs_success, first.obs_fail_terse) == (
        "n",
        "s",
        "t",
    )
    assert second.obs_fail_echo == "f(1): bad"
    run(capsys, log, "--out", place, *words, "--max-context", "5")
    assert len(load_items(place)) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "Name the logs to import"),
        ((ALL[0],), "Say where to write the items with --out FILE."),
        ((ALL[0], ALL[0], "--out", "x"), "is named twice"),
        ((ALL[0], str(LOGS / ".." / "logs" / Path(ALL[0]).name), "--out", "x"), "is named twice"),
        ((ALL[0], "--out", ALL[0]), "is named as the log and as the item file"),
        ((ALL[0], "--out", "x", "--report", "./x"), "is named as the item file and as the report"),
        ((ALL[0], "--out", "."), "Cannot write the item file '.'"),
        (("/proc/self/mem", "--out", "x"), "Cannot read the log '/proc/self/mem'"),
        (("nowhere", "--out", "x"), "Cannot read the log 'nowhere'"),
        ((ALL[0], "--out", "no/such/folder/x"), "Cannot write the item file"),
        ((ALL[0], "--out", "x", "--failed-when", "content"), "is no rule"),
        ((ALL[0], "--out", "x", "--format", "csv"), "--format. Choose from"),
        ((ALL[0], "--oot", "x"), "Unknown option: --oot"),
    ],
)
def test_mistakes_are_one_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, error = run(capsys, *words)
    assert code == 2 and sentence in error and error.count("\n") == 1 and not out
    assert not list(tmp_path.iterdir())


def test_the_report_can_be_read_whatever_the_log_holds(tmp_path: Path, capsys: Any) -> None:
    log, report = tmp_path / "log.jsonl", tmp_path / "report.csv"
    asked = {"id": "a", "function": {"name": "t", "arguments": "{}"}}
    rows = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "tool_calls": [asked]},
        {"role": "tool", "tool_call_id": "a", "content": '10 %\r20 %\r\n"done",\0', "is_error": True},
    ]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run(capsys, log, "--out", tmp_path / "items.jsonl", "--report", report)[0] == 0
    with report.open(newline="") as file:
        *_, last = csv.DictReader(file)
    assert last["fate"] == "item" and last["text"] == 't: 10 %\r20 %\r\n"done",\0'


def test_names_and_arguments_that_are_no_utf8_can_be_written(tmp_path: Path, capsys: Any) -> None:
    log, place = tmp_path / os.fsdecode(b"a\xff.jsonl"), tmp_path / "items.jsonl"
    rows = [
        {"role": "assistant", "content": "f()", "failed": None},
        {"role": "user", "content": "bad"},
    ]
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    odd = os.fsdecode(b"\xff")
    words = ("--goal", f"Go{odd}.", "--failed-when", f"content!={odd}", "--report", tmp_path / f"r{odd}.csv")
    code, out, _ = run(capsys, log, "--out", place, *words)
    (item,) = load_items(place)
    assert code == 0 and "r?.csv" in out
    assert (item.goal, item.task_id, item.meta["failed_by"]) == ("Go?.", "a?.jsonl", "rule content!=?")


def test_a_device_is_written_to_and_a_link_stays_one(tmp_path: Path, capsys: Any) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(tmp_path / "items.jsonl")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert run(capsys, ALL[0], "--out", link, "--report", pipe)[0] == 0
    assert link.is_symlink() and load_items(tmp_path / "items.jsonl")
    assert pipe.is_fifo() and os.read(reader, 6) == b'"file"'
    os.close(reader)


def test_standard_input_may_be_closed(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(capsys, ALL[0], "--out", tmp_path / "items.jsonl")[0] == 0
    code, _, error = run(capsys, "-", "--out", tmp_path / "none.jsonl")
    assert code == 2 and "Standard input is closed" in error


def test_a_wrong_format_is_asked_about(tmp_path: Path, capsys: Any) -> None:
    code, out, _ = run(capsys, LOGS / "openai.jsonl", "--out", tmp_path / "x", "--format", "react")
    assert code == 1 and "no call was found: is that the format of the logs?" in out


def test_copies_of_a_session_are_counted(tmp_path: Path, capsys: Any) -> None:
    log = LOGS / "claude_code.jsonl"
    copy = tmp_path / "copy.jsonl"
    copy.write_text(log.read_text())
    _, out, _ = run(capsys, log, "--out", tmp_path / "x")
    assert "copies:" not in out
    _, out, _ = run(capsys, log, copy, "--out", tmp_path / "x")
    assert "copies: 2 items stand word for word in an earlier log" in out and "items: 4 in 2 logs" in out
