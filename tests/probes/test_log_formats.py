"""A small log of every format, made after its published fields, becomes the decision points that it should."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from probes.items.item import FRAME, Item, dump_items, load_items
from probes.items.logs.formats import FORMATS
from tests.log_cases import LOGS, calls, imported, settings


@dataclass(frozen=True)
class Want:
    """What comes of a file: the format that is recognised, the fates of its calls, and its items."""

    log_format: str
    fates: dict[str, int]
    items: list[dict[str, Any]] = field(default_factory=list)
    rules: tuple[str, ...] = ()


def call(tool: str, /, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


NOT_FOUND = "File parser.py not found"
INSPECT = {
    "system_prompt": "You have a shell.",
    "goal": "Count the lines of a.txt.",
    "prefix_actions": (),
    "failed_action": call("bash", cmd="wc -l A.txt"),
    "obs_fail": "A.txt was not found",
    "obs_success": "a.txt\nb.txt",
    "error_type": "file_not_found",
    "failed_by": "error.type=file_not_found",
    "repeated_next": "no",
}

WANT = {
    "atif.json": Want(
        "atif",
        {"item": 1, "succeeded": 1, "unknown": 1},
        [
            {
                "item_id": "atif.json, s-1: call 2",
                "task_id": "atif.json, s-1",
                "system_prompt": "You look things up.",
                "goal": "Who wrote the report of May?",
                "prefix_actions": ("I search.\n" + call("search", q="report"),),
                "prefix_observations": ("2 hits",),
                "failed_action": call("open", path="may.txt"),
                "obs_fail": "no such file: may.txt",
                "tool": "open",
                "call": {"name": "open", "arguments": {"path": "may.txt"}, "id": "c2"},
                "tools": ["search", "open"],
                "parallel_calls": 1,
                "failed_by": "is_error=true",
                "repeated_next": "exact",
                "repeat_similarity": 1.0,
            }
        ],
    ),
    "inspect.json": Want("inspect", {"item": 1, "succeeded": 1}, [INSPECT]),
    "inspect.eval": Want("inspect", {"item": 1, "succeeded": 1}, [INSPECT]),
    "claude_code.jsonl": Want(
        "claude-code",
        {"item": 2, "succeeded": 1},
        [
            {
                "system_prompt": "",
                "goal": "Run the tests.",
                "prefix_actions": (),
                "failed_action": call("Bash", command="make tests"),
                "obs_fail": "make: no rule to make target 'tests'",
                "obs_success": "41 passed",
                "turn_text": "I run them.",
                "repeated_next": "near",
                "repeat_similarity": round(2 * 10 / 21, 4),
                "place": "line 5",
            },
            {
                "prefix_actions": ("I run them.\n" + call("Bash", command="make tests"),),
                "prefix_observations": ("make: no rule to make target 'tests'",),
                "failed_action": call("Bash", command="make  tests"),
                "repeated_next": "near",
                "repeat_similarity": round(2 * 9 / 20, 4),
            },
        ],
    ),
    "otel.jsonl": Want(
        "otel",
        {"item": 1, "succeeded": 1},
        [
            {
                "task_id": "otel.jsonl, t1",
                "system_prompt": "You report the weather.",
                "goal": "Weather in Oslo?",
                "failed_action": call("weather", city="Oslow"),
                "obs_fail": "unknown city: Oslow",
                "obs_success": '{"sky": "rain"}',
                "error_type": "UnknownCity",
                "failed_by": "error.type=UnknownCity",
                "repeated_next": "no",
                "repeat_similarity": round(8 / 9, 4),
            }
        ],
    ),
    "openinference.jsonl": Want(
        "openinference",
        {"item": 1, "skipped": 1},
        [
            {
                "system_prompt": "You sum numbers.",
                "goal": "What is 2 + x?",
                "failed_action": call("add", a=2, b="x"),
                "obs_fail": "b is no number",
                "failed_by": "span status ERROR",
                "repeated_next": "canonical",
            }
        ],
    ),
    "mini_swe_agent.traj.json": Want(
        "mini-swe-agent",
        {"item": 1, "succeeded": 1},
        [
            {
                "goal": "Fix the typo in README.",
                "failed_action": "```mswea_bash_command\ncat README\n```",
                "call": {"name": "bash", "arguments": {"command": "cat README"}, "id": None},
                "turn_text": "THOUGHT: I look.",
                "obs_success": "<returncode>0</returncode>\n<output>\nteh</output>",
                "failed_by": "returncode=1",
                "repeated_next": "no",
            }
        ],
    ),
    "swe_agent.traj": Want(
        "swe-agent",
        {"item": 2, "succeeded": 1},
        [
            {
                "system_prompt": "You use the shell.",
                "goal": "Repair the parser.",
                "failed_action": "open parser.py",
                "obs_fail": NOT_FOUND,
                "failed_by": "rule content~not found$",
                "repeated_next": "canonical",
            },
            {
                "prefix_actions": ("I open it.\nopen parser.py",),
                "prefix_observations": (NOT_FOUND,),
                "failed_action": "open  parser.py",
                "repeated_next": "no",
                "repeat_similarity": None,
            },
        ],
        ("content~not found$",),
    ),
    "openhands.jsonl": Want(
        "openhands",
        {"item": 2, "succeeded": 1},
        [
            {
                "system_prompt": "You are a coder.",
                "prefix_actions": ("Both ways.\n" + call("terminal", command="ls"),),
                "prefix_observations": ("a.py",),
                "failed_action": call("terminal", command="sl"),
                "failed_by": "is_error=true",
                "repeated_next": "no",
            },
            {
                "prefix_actions": (
                    "Both ways.\n" + call("terminal", command="sl") + "\n" + call("terminal", command="ls"),
                ),
                "prefix_observations": ("sl: command not found\na.py",),
                "failed_action": json.dumps({"name": "editor", "arguments": '{"path": "a.py", '}),
                "failed_by": "AgentErrorEvent",
                "repeated_next": "unknown",
            },
        ],
    ),
    "openhands_old.json": Want(
        "openhands",
        {"item": 1},
        [
            {
                "failed_action": call("execute_bash", command="ehco hello"),
                "turn_text": "I say it.",
                "failed_by": "exit_code=127",
                "repeated_next": "no",
            }
        ],
    ),
    "openai.jsonl": Want(
        "openai",
        {"item": 3},
        [
            {
                "task_id": "openai.jsonl, conv-1",
                "system_prompt": "You manage users.",
                "prefix_actions": (call("get_user", name="Grete"),),
                "failed_action": call("get_user", name="Greta"),
                "obs_fail": '{"code": 404}',
                "repeated_next": "canonical",
                "tools": ["get_user"],
            },
            {"prefix_actions": (call("get_user", name="Greta"),), "repeated_next": "no"},
            {"repeated_next": "no", "repeat_similarity": None},
        ],
        ("content~404",),
    ),
    "anthropic.json": Want(
        "anthropic",
        {"item": 1, "unknown": 1},
        [
            {
                "system_prompt": "You book flights.",
                "goal": "To Oslo on 3 May.",
                "failed_action": call("book", to="Oslo", day="3 May"),
                "obs_fail": "day must be written YYYY-MM-DD",
                "failed_by": "is_error=true",
                "repeated_next": "near",
            }
        ],
    ),
    "langchain.json": Want(
        "langchain",
        {"item": 1, "succeeded": 1},
        [
            {
                "failed_action": call("sql", query="SELEC 1"),
                "obs_success": "1",
                "failed_by": "status=error",
                "repeated_next": "near",
            }
        ],
    ),
    "react.txt": Want(
        "react",
        {"item": 2, "succeeded": 1},
        [
            {
                "goal": "Answer with tools.\nWho directed Ran?",
                "failed_action": "Action 1: Search[Rann]",
                "obs_fail": "Could not find [Rann].",
                "tool": "Search",
                "repeated_next": "exact",
                "place": "line 3",
            },
            {
                "prefix_actions": ("Thought 1: I search for the film.\nAction 1: Search[Rann]",),
                "failed_action": "Action 2: Search[Rann]",
                "repeated_next": "no",
            },
        ],
        ("content~^Could not",),
    ),
    "plain.jsonl": Want(
        "plain",
        {"item": 1, "succeeded": 1},
        [
            {
                "system_prompt": "Answer with one call.",
                "goal": "Turn on the lamp.",
                "failed_action": "lamp(state='onn')",
                "obs_fail": "state must be on or off",
                "obs_success": "done",
                "tool": "lamp",
                "failed_by": "failed=true",
                "repeated_next": "near",
            }
        ],
    ),
}


def value(item: Item, name: str) -> Any:
    return item.meta[name] if name in item.meta else getattr(item, name)


@pytest.mark.parametrize("name", sorted(WANT))
def test_a_log_of_every_format_gives_the_right_items(name: str, tmp_path: Path) -> None:
    want = WANT[name]
    items, notes = imported(LOGS / name, settings(*want.rules))
    assert [note.why for note in notes if note.what == "file"] == [f"format {want.log_format}"]
    assert Counter(note.fate for note in calls(notes)) == want.fates
    assert len(items) == len(want.items)
    for item, wanted in zip(items, want.items, strict=True):
        assert {each: value(item, each) for each in wanted} == wanted
        assert item.template == want.log_format and item.meta[FRAME] == "{observation}"
    dump_items(items, tmp_path / "items.jsonl")
    assert load_items(tmp_path / "items.jsonl") == items


def test_every_format_has_a_log_here() -> None:
    assert {want.log_format for want in WANT.values()} == set(FORMATS)
    assert {path.name for path in LOGS.iterdir()} == set(WANT)


@pytest.mark.parametrize("name", sorted(WANT))
def test_standard_input_and_a_named_format_give_the_same_items(name: str) -> None:
    want, path = WANT[name], LOGS / name
    of_file, _ = imported(path, settings(*want.rules), log_format=want.log_format)
    assert of_file == imported(path, settings(*want.rules))[0]
    piped, notes = imported(io.BytesIO(path.read_bytes()), settings(*want.rules), name=name)
    if name.endswith(".eval"):
        assert piped == [] and "cannot be read from standard input" in notes[0].why
    else:
        assert piped == of_file


@pytest.mark.parametrize("name", sorted(WANT))
def test_every_record_has_one_note(name: str) -> None:
    _, notes = imported(LOGS / name, settings())
    places = Counter(note.place for note in notes if note.what == "record")
    assert set(places.values()) == {1}
    if name.endswith((".jsonl", ".txt")):
        n_lines = (LOGS / name).read_text().count("\n")
        assert set(places) == {f"line {number}" for number in range(1, n_lines + 1)}
