"""What imported logs do with awkward input: torn lines, parallel calls, missing results, unknown outcomes, anything."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as trials
from hypothesis import strategies as st

from mech.errors import InputError
from probes.items.item import dump_items, load_items
from probes.items.logs import documents
from probes.items.logs.counterfactuals import Answers, load_texts
from probes.items.logs.decision_points import Transcript
from probes.items.logs.failure import decided, parse_rule, verdict
from probes.items.logs.formats import FORMATS
from probes.items.logs.importing import read_log, unique_names
from probes.items.logs.repeats import repeated, similarity
from probes.items.logs.transcript import Call, Opened, Result, Turn
from tests.log_cases import LOGS, calls, imported, of_lines, settings

FUZZ = trials(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
USER = {"role": "user", "content": "Do it."}


def asked(*ids_and_arguments: tuple[str, Any], name: str = "t", text: str | None = None) -> dict[str, Any]:
    made = [
        {"id": each, "function": {"name": name, "arguments": json.dumps(value)}}
        for each, value in ids_and_arguments
    ]
    return {"role": "assistant", "content": text, "tool_calls": made}


def answered(call_id: str, text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text, **fields}


FAILED = answered("a", "no such key", is_error=True)


def reasons(notes: list[Any], what: str) -> list[str]:
    return [note.why for note in notes if note.what == what and note.fate == "skipped"]


# --- the outcome of a call ---


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"is_error": True, "exit_code": 0}, ("yes", "is_error=true")),
        ({"is_error": False, "status": "error"}, ("no", "is_error=false")),
        ({"is_error": None}, ("unknown", "")),
        ({"status": "error"}, ("yes", "status=error")),
        ({"status": "success"}, ("no", "status=success")),
        ({"status": "pending"}, ("unknown", "")),
        ({"error": "boom"}, ("yes", "error")),
        ({"error": {"type": "x"}}, ("yes", "error")),
        ({"error": None, "exit_code": 2}, ("yes", "exit_code=2")),
        ({"returncode": 0}, ("no", "returncode=0")),
        ({"exit_code": True}, ("unknown", "")),
        ({"content": "Error: failed with an exception"}, ("unknown", "")),
    ],
)
def test_a_field_says_whether_a_call_failed_and_a_word_never_does(
    fields: dict[str, Any], says: tuple[str, str]
) -> None:
    assert verdict(fields) == says


def test_rules_decide_on_unknown_outcomes_alone() -> None:
    unknown = Result("404: none", fields={"code": 404, "extra": {"deep": True}})
    for rule, outcome in (
        ("code=404", "yes"),
        ("code!=404", "no"),
        ("extra.deep=true", "yes"),
        ("content~^4\\d\\d", "yes"),
        ("content~^5", "no"),
        ("tool=get", "yes"),
        ("absent=1", "unknown"),
        ("absent!=1", "unknown"),
    ):
        assert decided(unknown, "get", [parse_rule(rule)])[0] == outcome, rule
    both = [parse_rule("absent=1"), parse_rule("content~^5"), parse_rule("code=404")]
    assert decided(unknown, "get", both) == ("yes", "rule code=404")
    assert decided(unknown, "get", both[:2]) == ("no", "rule content~^5")
    known = Result("404", failed="no", said_by="is_error=false")
    assert decided(known, "get", both) == ("no", "is_error=false")


@pytest.mark.parametrize("text", ["", "content", "=x", "content~(", "a b=c"])
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no r"):
        parse_rule(text)


def test_unknown_outcomes_are_listed_with_their_place_and_text() -> None:
    items, notes = imported(of_lines(USER, asked(("a", {})), answered("a", "Error: no")), settings())
    assert items == []
    (note,) = calls(notes)
    assert (note.fate, note.place, note.text) == ("unknown", "line 2", "t: Error: no")


# --- repeats ---


@pytest.mark.parametrize(
    ("following", "outcome"),
    [
        (None, "unknown"),
        ([], "no"),
        ([Call("u", {"x": 1})], "no"),
        ([Call("t", {"x": "abcdefghij", "y": 2})], "exact"),
        ([Call("t", {"y": 2, "x": "abcdefghij"})], "canonical"),
        ([Call("t", {"x": "abcdefghi", "y": 2})], "near"),
        ([Call("t", {"x": "zzz", "y": 3}), Call("t", {"y": 2, "x": "abcdefghij"})], "canonical"),
        ([Call("t", {"x": "zzz", "y": 3})], "no"),
    ],
)
def test_how_the_next_turn_repeats(following: list[Call] | None, outcome: str) -> None:
    assert repeated(Call("t", {"x": "abcdefghij", "y": 2}), following)[0] == outcome


def test_the_text_of_the_arguments_tells_exact_from_canonical() -> None:
    call = Call("t", {"x": 1}, written='{"x": 1}')
    assert repeated(call, [Call("t", {"x": 1}, written='{"x":1}')])[0] == "canonical"
    assert repeated(call, [Call("t", {"x": 1}, written='{"x": 1}')])[0] == "exact"


@FUZZ
@given(st.text(max_size=30), st.text(max_size=30))
def test_similarity_is_symmetric_in_its_ends_and_between_none_and_all(left: str, right: str) -> None:
    found = similarity(left, right)
    assert 0 <= found <= 1 and (found == 1) == (left == right)


def test_the_similarity_of_two_huge_texts_is_found_at_once() -> None:
    same = "x" * 300_000
    assert similarity(f"{same}a{same}", f"{same}b{same}") == pytest.approx(600_000 / 600_001)
    assert similarity("a" * 300_000, "b" * 300_000) == 0


# --- counterfactual texts ---


def test_success_is_the_nearest_other_answer_and_neutral_a_stock_answer() -> None:
    answers = Answers()
    for number, text, arguments in (
        (1, "saved", "1"),
        (3, "saved", "3"),
        (5, "row 5", "5"),
        (6, "row 6", "6"),
        (7, "row 6", "6"),
    ):
        answers.add("t", number, text, arguments)
    assert answers.success("t", 4, "no") == "saved" and answers.success("t", 8, "no") == "row 6"
    assert answers.success("t", 2, "saved") == "row 5" and answers.success("u", 4, "no") is None
    assert answers.neutral("t", "no") == "saved" and answers.neutral("t", "saved") is None


def test_texts_of_the_log_are_named_and_templates_can_be_forced() -> None:
    log = (
        USER,
        *(asked(("a", {"n": 1})), answered("a", "saved", is_error=False)),
        *(asked(("a", {"n": 2})), answered("a", "saved", is_error=False)),
        *(asked(("a", {"n": 3})), FAILED),
        *(asked(("a", {"n": 4})), answered("a", "saved as 4", is_error=False)),
    )
    texts = load_texts()
    ((one,), _), ((other,), _) = (
        imported(of_lines(*log), settings(counterfactuals=kind)) for kind in ("auto", "template")
    )
    assert (one.obs_neutral, one.obs_success) == ("saved", "saved as 4")
    assert one.env == "log (neutral: log, success: log)" and one.meta["neutral_from"] == "log"
    assert (other.obs_neutral, other.obs_success) == (texts.neutral, texts.success)
    assert other.env == "log (neutral: template, success: template)"
    assert one.obs_fail_terse == texts.terse and one.failed_action in str(one.obs_fail_echo)
    assert str(one.obs_fail_echo).startswith("no such key")


def test_braces_in_a_call_or_an_observation_stay_as_they_are() -> None:
    echo = load_texts().echoed("saw {call}", "f({observation})")
    assert echo == "saw {call}\nThe call was: f({observation})"


def test_a_text_file_with_a_fault_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "texts.json"
    place.write_text(
        json.dumps({"neutral": " ", "success": "s", "terse": "t", "echo": "{call}", "empty": "e"})
    )
    with pytest.raises(InputError, match="neutral.*non-empty.*echo.*observation"):
        load_texts(place)
    place.write_text("{")
    with pytest.raises(InputError, match="not valid JSON"):
        load_texts(place)


def test_a_failure_without_output_gets_a_named_template() -> None:
    (one,), _ = imported(of_lines(USER, asked(("a", {})), answered("a", " ", exit_code=1)), settings())
    assert one.obs_fail == load_texts().empty and one.meta["fail_from"] == "template"


# --- turns, calls and results ---


def test_n_calls_in_a_turn_with_n_results_in_another_order_are_n_calls_of_one_log() -> None:
    log = (
        USER,
        asked(("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 3}), text="All three."),
        answered("c", "three", is_error=False),
        FAILED,
        answered("b", "two is bad", is_error=True),
        asked(("d", {"n": 2})),
    )
    items, notes = imported(of_lines(*log), settings())
    assert [note.fate for note in calls(notes)] == ["succeeded", "skipped", "item", "item"]
    first, second = items
    assert first.failed_action == '{"name": "t", "arguments": {"n": 1}}' and first.obs_fail == "no such key"
    assert first.prefix_actions == (
        'All three.\n{"name": "t", "arguments": {"n": 2}}\n{"name": "t", "arguments": {"n": 3}}',
    )
    assert first.prefix_observations == ("two is bad\nthree",) and first.step_index == 1
    assert (first.task_id, first.meta["repeated_next"]) == (second.task_id, "no")
    assert second.meta["repeated_next"] == "exact" and second.meta["parallel_calls"] == 2


def test_results_without_ids_answer_open_calls_in_order() -> None:
    log = [
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "bad", "is_error": True},
    ]
    (one,), _ = imported(of_lines(*log), settings())
    assert one.obs_fail == "bad" and one.tool == "f"


def test_missing_late_and_doubled_results_are_reported() -> None:
    log = (
        USER,
        asked(("a", {"n": 1}), ("b", {"n": 2})),
        FAILED,
        FAILED,
        asked(("c", {"n": 3})),
        answered("b", "late"),
        answered("c", "ok", is_error=False),
    )
    items, notes = imported(of_lines(*log), settings())
    assert len(items) == 1
    assert reasons(notes, "call") == ["no result in the log"]
    why = "no open call that it answers (its text stays in the context)"
    assert [(note.place, note.why) for note in notes if note.what == "result"] == [
        ("line 4", why),
        ("line 6", why),
    ]


def test_consecutive_messages_of_the_agent_are_one_turn_and_roles_may_mix() -> None:
    log = (
        {"role": "system", "content": "S1"},
        {"role": "developer", "content": "S2"},
        USER,
        {"role": "assistant", "content": "I think."},
        asked(("a", {})),
        FAILED,
        {"role": "system", "content": "a reminder"},
        USER,
        {"role": "narrator", "content": "meanwhile"},
        asked(("b", {"n": 1})),
        answered("b", "bad", is_error=True),
    )
    (first, second), notes = imported(of_lines(*log), settings())
    assert first.system_prompt == "S1\nS2" and first.goal == "Do it." and first.prefix_actions == ()
    assert first.meta["turn_text"] == "I think." and first.meta["repeated_next"] == "no"
    assert second.prefix_observations == ("no such key\na reminder\nDo it.",)
    assert reasons(notes, "message") == ["unknown role: narrator"]


def test_an_empty_turn_of_the_agent_joins_the_turns_around_it() -> None:
    empty = {"role": "assistant", "content": None}
    log = (USER, empty, USER, asked(("a", {})), answered("a", "ok", is_error=False), empty, USER)
    (one,), _ = imported(of_lines(*log, asked(("a", {"n": 1})), FAILED), settings())
    assert one.goal == "Do it.\nDo it." and one.prefix_observations == ("ok\nDo it.",)


def test_a_log_without_a_request_needs_a_goal() -> None:
    log = (asked(("a", {})), FAILED)
    items, notes = imported(of_lines(*log), settings())
    assert items == [] and "no user's message comes before it" in reasons(notes, "call")[0]
    (one,), _ = imported(of_lines(*log), settings(goal="Find the key."))
    assert one.goal == "Find the key."


def test_a_context_that_is_too_long_is_skipped_and_never_cut() -> None:
    steps = [each for n in range(9) for each in (asked(("a", {"n": n})), FAILED)]
    items, notes = imported(of_lines(USER, *steps), settings(max_context=120))
    lengths = [
        len(one.goal) + sum(map(len, (*one.prefix_actions, *one.prefix_observations))) for one in items
    ]
    assert 0 < len(items) < 9 and max(lengths) <= 120
    assert Counter(note.fate for note in calls(notes)) == {"item": len(items), "skipped": 9 - len(items)}
    assert set(reasons(notes, "call")) == {
        "failed, but its context has more than 120 characters (--max-context)"
    }


def test_a_turn_whose_own_text_is_too_long_gives_no_item_with_half_a_context() -> None:
    log = (
        USER,
        asked(("a", {"n": 1}), ("b", {"n": 2}), text="x" * 300),
        FAILED,
        answered("b", "ok", is_error=False),
    )
    for limit, n in ((200, 0), (500, 1)):
        items, _ = imported(of_lines(*log), settings(max_context=limit))
        assert len(items) == n and all("x" * 300 in one.prefix_actions[0] for one in items)


def test_a_first_line_of_a_claude_code_session_is_no_langchain_message() -> None:
    system = {"type": "system", "subtype": "note", "content": "x", "sessionId": "s", "uuid": "u"}
    _, notes = imported(of_lines(system), settings())
    assert notes[0].why == "format claude-code"


def test_calls_in_messages_that_are_read_as_plain_are_reported() -> None:
    items, notes = imported(of_lines(USER, asked(("a", {})), FAILED), settings(), log_format="plain")
    assert items == [] and "--format openai" in reasons(notes, "part")[0]


def test_texts_of_a_span_with_halves_of_surrogate_pairs_can_be_written(tmp_path: Path) -> None:
    raw = (LOGS / "otel.jsonl").read_text().replace("unknown city: Oslow", "cut \\\\ud83d")
    (one,), _ = imported(io.BytesIO(raw.encode()), settings())
    assert one.obs_fail == "cut \ufffd"
    dump_items([one], tmp_path / "items.jsonl")


def test_the_last_call_of_a_trace_is_answered_by_the_span_of_its_tool() -> None:
    first, second = map(json.loads, (LOGS / "otel.jsonl").read_text().splitlines()[:2])
    (span,) = second["resourceSpans"][0]["scopeSpans"][0]["spans"]
    _, notes = imported(of_lines(first, second), settings())
    assert reasons(notes, "call") == ["no result in the log"]
    span["attributes"].append({"key": "gen_ai.tool.call.result", "value": {"stringValue": "no such city"}})
    (one,), _ = imported(of_lines(first, second), settings())
    assert (one.obs_fail, one.meta["repeated_next"]) == ("no such city", "unknown")


def test_a_log_of_one_side_alone_keeps_no_more_than_its_context() -> None:
    made = Transcript("log", "plain", Opened(), settings(max_context=100))
    for _ in range(50):
        assert list(made.add(Turn("user", "line 1", "x" * 10))) == []
    for _ in range(50):
        assert list(made.add(Turn("assistant", "line 2", "y" * 10))) == []
    assert len(made._context.goal) == 10 and made._step is not None and made._step.texts == []


def test_arguments_that_no_item_file_could_hold_are_kept_as_text(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    log = of_lines(USER, asked(("a", {"x": deep, "y": float("inf")})), FAILED)
    items, _ = imported(log, settings())
    dump_items(items, tmp_path / "items.jsonl")
    assert load_items(tmp_path / "items.jsonl") == items
    assert isinstance(items[0].meta["call"]["arguments"], str)


def test_several_transcripts_of_a_file_are_clusters_of_their_own() -> None:
    messages = {"messages": [USER, asked(("a", {})), FAILED]}
    items, _ = imported(of_lines(messages, {**messages, "id": "x"}, messages), settings())
    assert [one.task_id for one in items] == ["log", "log #2, x", "log #3"]
    assert len({one.item_id for one in items}) == 3


def test_a_claude_code_turn_may_go_on_behind_the_results_of_its_first_calls() -> None:
    def line(kind: str, block: dict[str, Any], message: str = "") -> dict[str, Any]:
        return {"type": kind, "sessionId": "s", "message": {"id": message, "role": kind, "content": [block]}}

    def use(name: str) -> dict[str, Any]:
        return line("assistant", {"type": "tool_use", "id": name, "name": "t", "input": {"x": name}}, "m1")

    def result(name: str) -> dict[str, Any]:
        return line(
            "user", {"type": "tool_result", "tool_use_id": name, "content": f"no {name}", "is_error": True}
        )

    request = line("user", {"type": "text", "text": "Go."})
    items, _ = imported(of_lines(request, use("a"), result("a"), use("b"), result("b")), settings())
    assert [one.meta["parallel_calls"] for one in items] == [1, 1]
    assert {one.meta["repeated_next"] for one in items} == {"unknown"}


def claude_code(*contents: tuple[str, Any] | tuple[str, Any, dict[str, Any]]) -> io.BytesIO:
    """A session: (kind, content, further fields of the line)."""
    lines = [
        {
            "type": kind,
            "sessionId": "s",
            "message": {"id": f"m{n}", "role": kind, "content": content},
            **dict(*further),
        }
        for n, (kind, content, *further) in enumerate(contents)
    ]
    return of_lines(*lines)


def used(name: str, /, **arguments: Any) -> tuple[str, list[dict[str, Any]]]:
    return "assistant", [{"type": "tool_use", "id": name, "name": "t", "input": arguments}]


def refused(name: str) -> tuple[str, list[dict[str, Any]]]:
    return "user", [{"type": "tool_result", "tool_use_id": name, "content": f"no {name}", "is_error": True}]


def test_what_claude_code_itself_or_a_sub_agent_says_is_no_turn_of_the_agent() -> None:
    own = {"message": {"role": "assistant", "model": "<synthetic>", "content": "No response requested."}}
    inner = {"parent_tool_use_id": "a"}
    log = claude_code(
        ("user", "Go."),
        used("a"),
        (*used("b"), inner),
        (*refused("b"), inner),
        refused("a"),
        ("assistant", "", own),
        ("user", "Go on."),
        used("c"),
    )
    (item,), notes = imported(log, settings())
    assert item.meta["repeated_next"] == "exact" and item.obs_fail == "no a"
    assert [note.place for note in notes if note.why.startswith("a sub-agent's")] == ["line 3", "line 4"]
    assert [note.place for note in notes if note.why.startswith("written by the program")] == ["line 6"]


@pytest.mark.parametrize(
    ("seen", "fate"),
    [
        ({"is_error": False, "exit_code": 1}, "item"),
        ({"is_error": False, "exit_code": 0}, "succeeded"),
        ({"is_error": False, "exit_code": None}, "succeeded"),
        ({"is_error": True, "exit_code": -1}, "item"),
        ({"is_error": False, "exit_code": -1}, "unknown"),
        ({"exit_code": -1}, "unknown"),
    ],
)
def test_the_exit_code_decides_of_a_command_that_openhands_ran(seen: dict[str, Any], fate: str) -> None:
    call = {"tool_name": "terminal", "tool_call_id": "a"}
    log = of_lines(
        {"kind": "MessageEvent", "llm_message": USER},
        {"kind": "ActionEvent", **call, "tool_call": {"arguments": "{}"}},
        {"kind": "ObservationEvent", **call, "observation": {"content": "x", **seen}},
    )
    _, notes = imported(log, settings())
    assert [note.fate for note in calls(notes)] == [fate]


def test_calls_of_older_openhands_events_are_those_that_the_model_wrote() -> None:
    def events(reply: str, number: int, command: str, blocking: bool, code: int) -> list[dict[str, Any]]:
        tool = {"name": "execute_bash", "arguments": json.dumps({"command": command})}
        call = {"id": f"c{number}", "type": "function", "function": tool}
        response = {"id": reply, "choices": [{"message": {"role": "assistant", "tool_calls": [call]}}]}
        made = {"function_name": "execute_bash", "tool_call_id": f"c{number}", "model_response": response}
        own = {"command": command, "thought": "", "blocking": blocking, "cwd": None}
        return [
            {"id": number, "source": "agent", "action": "run", "args": own, "tool_call_metadata": made},
            {
                "source": "agent",
                "observation": "run",
                "content": "x",
                "cause": number,
                "extras": {"metadata": {"exit_code": code}},
            },
        ]

    request = {"source": "user", "action": "message", "args": {"content": "Go."}}
    log = [
        request,
        *events("r1", 1, "ls a", True, 2),
        *events("r1", 2, "pwd", True, 0),
        *events("r2", 3, "ls a", False, 0),
    ]
    (item,), _ = imported(of_lines(log), settings())
    assert item.failed_action == '{"name": "execute_bash", "arguments": {"command": "ls a"}}'
    assert (item.meta["parallel_calls"], item.meta["repeated_next"]) == (1, "exact")
    for event in log:
        event.pop("tool_call_metadata", None)
    (item,), _ = imported(of_lines(log), settings())
    assert item.meta["call"]["arguments"] == {"command": "ls a", "cwd": None}


@pytest.mark.parametrize("name", ["²", "9" * 5000, "1." * 3000])
def test_no_name_of_an_attribute_breaks_the_spans(name: str) -> None:
    role = {f"llm.input_messages.{index}.message.role": "user" for index in (name, "0")}
    span = {"name": "llm", "attributes": {"openinference.span.kind": "LLM", **role}}
    _, notes = imported(of_lines(span), settings())
    assert [note.what for note in notes] == ["file", "span", "record"]


def test_a_summary_takes_the_place_of_what_stands_before_it() -> None:
    log = claude_code(
        ("user", "Go."),
        used("a"),
        refused("a"),
        used("b"),
        refused("b"),
        ("user", "Summary: nothing works.", {"isCompactSummary": True}),
        used("c"),
        refused("c"),
        used("d"),
    )
    items, _ = imported(log, settings())
    assert [one.goal for one in items] == ["Go.", "Go.", "Summary: nothing works."]
    assert [len(one.prefix_actions) for one in items] == [0, 1, 0]
    assert [one.meta["repeated_next"] for one in items] == ["exact", "unknown", "exact"]
    assert len({one.task_id for one in items}) == 1 and len({one.item_id for one in items}) == 3


@pytest.mark.parametrize(
    "log",
    [
        of_lines(USER, {**asked(("a", {})), "reasoning_content": "r"}),
        of_lines({"type": "ai", "content": "", "additional_kwargs": {"reasoning_content": "r"}}),
        of_lines({"kind": "ActionEvent", "tool_name": "t", "reasoning_content": "r"}),
        of_lines({"trajectory": [{"action": "a", "observation": "b", "reasoning_content": "r"}]}),
        of_lines({"schema_version": "ATIF-v1", "steps": [{"source": "agent", "reasoning_content": "r"}]}),
        of_lines(
            {
                "trajectory_format": "mini-swe-agent-1.1",
                "messages": [{"role": "assistant", "content": "", "reasoning_content": "r"}],
            }
        ),
    ],
)
def test_reasoning_beside_a_content_is_counted_as_skipped(log: io.BytesIO) -> None:
    assert reasons(imported(log, settings())[1], "part") == ["no text: reasoning_content"]


def test_messages_of_a_span_that_were_cut_off_are_reported() -> None:
    cut = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}])[:-9]
    span = {"name": "chat", "attributes": {"gen_ai.input.messages": cut}}
    _, notes = imported(of_lines(span), settings())
    assert reasons(notes, "part") == ["gen_ai.input.messages is no JSON (was it cut off?)"]
    assert reasons(notes, "span") == ["no messages and no call in it: chat"]


def test_a_mark_that_is_no_boolean_leaves_a_claude_code_call_unknown() -> None:
    odd = [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": "true"}]
    _, notes = imported(claude_code(("user", "Go."), used("a"), ("user", odd)), settings())
    assert [note.fate for note in calls(notes)] == ["unknown"]


def test_two_runs_of_a_trace_that_begin_alike_are_two_logs() -> None:
    def part(**fields: Any) -> list[dict[str, Any]]:
        return [{"role": fields.pop("role"), "parts": [fields]}]

    def chat(start: str, given: list[Any], out: list[Any]) -> dict[str, Any]:
        texts = {"gen_ai.input.messages": json.dumps(given), "gen_ai.output.messages": json.dumps(out)}
        return {"name": "chat", "trace_id": "T", "start_time": start, "attributes": texts}

    def tool(call_id: str) -> dict[str, Any]:
        attributes = {"gen_ai.tool.call.id": call_id, "error.type": "E", "gen_ai.tool.call.result": "no"}
        return {"name": "execute_tool", "trace_id": "T", "attributes": attributes}

    request = part(role="user", type="text", content="Go.")
    one, two, other = (part(role="assistant", type="tool_call", name="f", id=name) for name in "abc")
    again = [*request, *one, *part(role="tool", type="tool_call_response", id="a", response="no")]
    spans = [chat("1", request, one), chat("3", request, other), chat("2", again, two), *map(tool, "abc")]
    items, _ = imported(of_lines(*spans), settings())
    assert [(item.task_id, item.meta["call"]["id"]) for item in items] == [
        ("log, T", "a"),
        ("log, T", "b"),
        ("log #2, T, thread 2", "c"),
    ]


@pytest.mark.parametrize("written", ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": "\\ud83d"}', "[1]", "{'a': 1}"])
def test_arguments_that_an_object_would_change_are_kept_as_text(written: str) -> None:
    call = {"id": "a", "function": {"name": "t", "arguments": written}}
    (item,), _ = imported(of_lines(USER, {"role": "assistant", "tool_calls": [call]}, FAILED), settings())
    assert item.meta["call"]["arguments"] == written


def test_marked_calls_may_be_answered_by_the_role_tool() -> None:
    marked = {"role": "assistant", "content": "ls /a", "failed": True}
    (item,), _ = imported(of_lines(USER, marked, {"role": "tool", "content": "no"}), settings())
    assert (item.template, item.failed_action, item.obs_fail) == ("plain", "ls /a", "no")


def test_atif_steps_that_the_model_did_not_decide_give_no_item() -> None:
    value = json.loads((LOGS / "atif.json").read_text())
    for change in ({"is_copied_context": True}, {"llm_call_count": 0}):
        changed = {**value, "steps": [{**step, **change} for step in value["steps"]]}
        items, notes = imported(of_lines(changed), settings())
        assert items == [] and any(why.startswith("failed, but ") for why in reasons(notes, "call"))


# --- input that is not whole ---


def test_torn_and_malformed_lines_are_located_and_the_rest_is_read() -> None:
    rows = [json.dumps(one) for one in (USER, asked(("a", {})), FAILED)]
    raw = "\n".join([rows[0], "", "{no json}", *rows[1:], '{"role": "assist'])
    items, notes = imported(io.BytesIO(raw.encode()), settings())
    assert len(items) == 1
    skipped = {note.place: note.why for note in notes if note.what == "record" and note.fate == "skipped"}
    assert set(skipped) == {"line 2", "line 3", "line 6"} and skipped["line 2"] == "blank line"
    assert skipped["line 3"].startswith("it is no JSON that can be used")
    assert skipped["line 6"].startswith("the last line is cut off: ")


def test_a_torn_first_line_and_a_torn_document_are_told_apart() -> None:
    rows = [json.dumps(one) for one in (USER, asked(("a", {})), FAILED)]
    items, notes = imported(io.BytesIO("\n".join(['{"role": "sys', *rows]).encode()), settings())
    assert len(items) == 1 and [note.place for note in notes if note.fate == "skipped"] == ["line 1"]
    whole = json.dumps([USER], indent=1)
    items, notes = imported(io.BytesIO(whole[:-3].encode()), settings())
    assert items == [] and notes[0].place == "document" and "no JSON" in notes[0].why


@pytest.mark.parametrize(
    "noise", ["(node:1) Warning: old", "[12:00] started\n[12:01] INFO", "{torn: 1}\n\n{x"]
)
def test_json_lines_may_follow_lines_of_text(noise: str) -> None:
    lines = [USER, asked(("a", {})), {**answered("a", "no"), "is_error": True}]
    raw = "\n".join([noise, *map(json.dumps, lines)])
    (item,), notes = imported(io.BytesIO(raw.encode()), settings())
    assert item.obs_fail == "no" and item.meta["place"] == f"line {noise.count(chr(10)) + 3}"
    assert sum(note.what == "record" for note in notes) == raw.count("\n") + 1


def test_json_in_front_of_a_text_log_leaves_it_a_text_log() -> None:
    raw = b'You have tools.\n{"name": "f"}\nQuestion: Who?\nAction: f[x]\nObservation: none\n'
    (item,), _ = imported(io.BytesIO(raw), settings("content=none"))
    assert item.template == "react" and item.goal == 'You have tools.\n{"name": "f"}\nWho?'


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "it is empty"),
        (b"\x1f\x8b\x08\0\n{}\n", "it is packed (gzip): unpack it first"),
        ("{}\n{}".encode("utf-16"), "it is UTF-16 text: convert it to UTF-8"),
    ],
)
def test_a_file_that_holds_no_text_in_utf8_is_one_record_with_what_to_do(raw: bytes, why: str) -> None:
    _, notes = imported(io.BytesIO(raw), settings())
    assert [(note.what, note.why) for note in notes] == [("record", why)]


def test_calls_that_are_not_the_agents_and_results_before_its_first_turn_are_reported() -> None:
    log = of_lines(answered("a", "early"), USER, {**asked(("b", {})), "role": "user"}, asked(("c", {})))
    _, notes = imported(log, settings(), log_format="openai")
    assert "it stands before the agent's first turn" in reasons(notes, "result")
    assert reasons(notes, "call") == ["t: a call in a turn of the role user", "no result in the log"]
    value = json.loads((LOGS / "atif.json").read_text())
    steps = [{**step, "source": "system"} for step in value["steps"]]
    _, notes = imported(of_lines({**value, "steps": steps}), settings())
    assert [note.why for note in calls(notes)] == [
        f"{name}: a call in a turn of the role system" for name in ("search", "open", "open")
    ]


def test_an_atif_result_without_a_call_beside_others_answers_none() -> None:
    made = [{"tool_call_id": name, "function_name": "t", "arguments": {}} for name in "ab"]
    said = [{"source_call_id": None, "content": "notice"}, {"source_call_id": "a", "content": "A"}]
    steps = [
        {"source": "user", "message": "Go."},
        {"source": "agent", "message": "", "tool_calls": made, "observation": {"results": said}},
    ]
    _, notes = imported(of_lines({"schema_version": "ATIF-v1.7", "steps": steps}), settings())
    assert [(note.fate, note.text) for note in calls(notes)] == [("unknown", "t: A"), ("skipped", "t: ")]


def test_several_atif_results_of_a_call_are_one_and_fail_if_one_of_them_did() -> None:
    made = [{"tool_call_id": "a", "function_name": "t", "arguments": {}}]
    said = [
        {"source_call_id": "a", "content": None, "extra": {"is_error": False}},
        {"source_call_id": "a", "content": "lost", "extra": {"is_error": True, "error_type": "net"}},
        {"source_call_id": "a", "content": "twice"},
    ]
    steps = [
        {"source": "user", "message": "Go."},
        {"source": "agent", "message": "", "tool_calls": made, "observation": {"results": said}},
    ]
    (item,), notes = imported(of_lines({"schema_version": "ATIF-v1.7", "steps": steps}), settings())
    assert (item.obs_fail, item.error_type, item.meta["failed_by"]) == ("lost\ntwice", "net", "is_error=true")
    assert not reasons(notes, "result")


def test_a_demonstration_of_swe_agent_hides_no_message_behind_it() -> None:
    said = [
        ("user", "demo", True),
        ("assistant", "ls", True),
        ("user", "a.py", True),
        ("user", "The issue.", False),
    ]
    value = {
        "trajectory": [{"action": "f", "observation": "no", "thought": ""}],
        "history": [{"role": role, "content": text, "is_demo": demo} for role, text, demo in said],
    }
    (item,), _ = imported(of_lines(value), settings("content=no"))
    assert (item.goal, item.prefix_actions, item.prefix_observations) == (
        "demo",
        ("ls",),
        ("a.py\nThe issue.",),
    )


def test_documents_that_stand_one_behind_another_are_all_read() -> None:
    spans = [
        span
        for line in (LOGS / "otel.jsonl").read_text().splitlines()
        for span in json.loads(line)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    ]
    text = "\n".join(json.dumps(span, indent=4) for span in spans)
    items, notes = imported(io.BytesIO(text.encode()), settings(), name="otel.jsonl")
    (wanted,), _ = imported(LOGS / "otel.jsonl", settings())
    assert [one.prefix_actions for one in items] == [wanted.prefix_actions] and items[0].goal == wanted.goal
    assert items[0].meta["place"].startswith("document 5, ")
    items, notes = imported(io.BytesIO(text[:-9].encode()), settings())
    torn = [note.place for note in notes if note.what == "record" and note.fate == "skipped"]
    assert len(items) == 1 and torn == ["document 6"]


def test_halves_of_surrogate_pairs_and_bytes_that_are_no_utf8_are_replaced_and_noted(tmp_path: Path) -> None:
    failed = answered("a", "cut \ud83d", is_error=True)
    items, notes = imported(of_lines(USER, asked(("a", {"x": "\udc00"})), failed), settings())
    assert items[0].obs_fail == "cut \ufffd" and items[0].meta["call"]["arguments"] == '{"x": "\\udc00"}'
    assert [note.place for note in notes if note.fate == "changed"] == ["line 3"]
    dump_items(items, tmp_path / "items.jsonl")
    text = b"Question: go\nAction: f[\xff]\nObservation: bad\n"
    (one,), notes = imported(io.BytesIO(text), settings("content~bad"))
    assert one.failed_action == "Action: f[\ufffd]"
    assert [note.place for note in notes if note.fate == "changed"] == ["line 2"]


def test_a_line_or_document_that_is_too_long_is_skipped_without_being_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(documents, "MAX_BYTES", 300)
    big = {"role": "user", "content": "x" * 2_000_000}
    items, notes = imported(of_lines(USER, big, asked(("a", {})), FAILED), settings())
    assert len(items) == 1 and reasons(notes, "record") == ["it is longer than 300 bytes"]
    _, notes = imported(io.BytesIO(json.dumps([big], indent=1).encode()), settings())
    assert "more than 300 bytes" in notes[0].why


def test_zip_files_that_are_none_or_of_another_kind_are_reported(tmp_path: Path) -> None:
    torn, other = tmp_path / "torn.eval", tmp_path / "other.eval"
    torn.write_bytes((LOGS / "inspect.eval").read_bytes()[:100])
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("a.txt", "x")
    for path, why in ((torn, "no whole zip file"), (other, "without samples/")):
        items, notes = imported(path, settings())
        assert items == [] and why in notes[0].why


def test_samples_that_this_python_cannot_unpack_name_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.eval"
    with zipfile.ZipFile(
        packed, "w", zipfile.ZIP_BZIP2
    ) as archive:  # as zstandard, none of the two usual ways
        archive.writestr("samples/1_epoch_1.json", "{}")

    def absent(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(documents, "import_module", absent)
    _, notes = imported(packed, settings())
    assert "backfire[inspect]" in notes[0].why


def test_samples_packed_with_zstandard_are_read_by_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.eval"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("samples/q7_epoch_1.json", "{}")
    raw = json.dumps(json.loads((LOGS / "inspect.json").read_text())["samples"][0])

    class Sample:
        def model_dump_json(self, exclude: set[str]) -> str:
            return raw

    def sample(path: str, id: str, epoch: int) -> Sample:
        if id == "torn":
            raise ValueError("torn")
        return Sample()

    library = SimpleNamespace(
        read_eval_log_sample_summaries=lambda path: [
            SimpleNamespace(id=each, epoch=1) for each in ("q7", "torn")
        ],
        read_eval_log_sample=sample,
    )
    monkeypatch.setattr(documents, "import_module", lambda name: library)
    items, notes = imported(packed, settings(), name="inspect.eval")
    assert items == imported(LOGS / "inspect.eval", settings())[0] and len(items) == 1
    assert reasons(notes, "record") == ["inspect_ai cannot read it (torn)"]


def test_what_no_format_knows_is_skipped_with_every_record() -> None:
    items, notes = imported(of_lines({"x": 1}, 3, {"y": 2}), settings())
    assert items == [] and [note.place for note in notes] == ["line 1", "line 2", "line 3"]
    assert all("no format is recognised" in note.why for note in notes)


def test_a_log_that_is_missing_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="Cannot read the log 'nowhere.jsonl'"):
        list(read_log("nowhere.jsonl", "n", settings(), io.BytesIO()))


def test_two_files_of_one_name_are_told_apart_by_their_paths() -> None:
    assert unique_names(["a/x.json", "b/x.json", "c/y.json", "-"]) == [
        "a/x.json",
        "b/x.json",
        "y.json",
        "standard input",
    ]


# --- anything at all ---

WORDS = st.sampled_from(
    "role content type assistant user tool system messages tool_calls function name arguments id message text "
    "tool_use tool_result tool_use_id is_error status error steps source agent observation results trajectory action "
    "attributes parts kind ActionEvent MessageEvent ObservationEvent llm_message samples epoch eval version "
    "schema_version ATIF-v1.6 trajectory_format mini-swe-agent-1.1 sessionId human ai args extra info".split()
)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats() | WORDS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=6),
    max_leaves=25,
)


def spoilt(rng: random.Random, others: list[Any], value: Any) -> Any:
    """The value with some of its parts left out or replaced by others."""
    if rng.random() < 0.05:
        return rng.choice(others)
    if isinstance(value, dict):
        return {name: spoilt(rng, others, one) for name, one in value.items() if rng.random() > 0.03}
    if isinstance(value, list):
        return [spoilt(rng, others, one) for one in value if rng.random() > 0.03]
    return value


def accounted(raw: bytes, log_format: str | None, place: Path) -> None:
    """Whatever the bytes are: no exception, every call and record has one fate, every item can be written and read."""
    items, notes = imported(io.BytesIO(raw), settings("content~x", goal="go"), log_format=log_format)
    records = Counter(note.place for note in notes if note.what == "record")
    assert set(records.values()) <= {1}
    found = calls(notes)
    assert {note.fate for note in found} <= {"item", "succeeded", "unknown", "skipped"}
    assert [note.item_id for note in found if note.fate == "item"] == [one.item_id for one in items]
    if items:
        dump_items(items, place / "items.jsonl")
        assert load_items(place / "items.jsonl") == items


@pytest.mark.parametrize("log_format", sorted(FORMATS))
def test_no_value_breaks_a_reader(log_format: str, tmp_path: Path) -> None:
    @FUZZ
    @given(st.lists(ANY, max_size=5))
    def check(values: list[Any]) -> None:
        accounted("\n".join(map(json.dumps, values)).encode(), log_format, tmp_path)

    check()


@pytest.mark.parametrize("name", sorted(path.name for path in LOGS.iterdir() if path.suffix != ".eval"))
def test_no_spoilt_log_breaks_its_reader(name: str, tmp_path: Path) -> None:
    raw = (LOGS / name).read_text()
    lines = raw.splitlines()

    @FUZZ
    @given(st.integers(0, 2**32), st.lists(ANY, min_size=1, max_size=4))
    def check(seed: int, others: list[Any]) -> None:
        rng = random.Random(seed)
        if name.endswith(".txt"):
            text = "\n".join(line for line in lines if rng.random() > 0.1)
        else:
            whole = [json.loads(line) for line in lines] if name.endswith(".jsonl") else [json.loads(raw)]
            text = "\n".join(json.dumps(spoilt(rng, others, one)) for one in whole)
        accounted(text[: len(text) - rng.choice((0, 0, 5))].encode(), None, tmp_path)

    check()


@FUZZ
@given(at=st.integers(0, 1200), put=st.binary(min_size=1, max_size=3))
def test_no_damage_to_a_zip_file_breaks_the_input(at: int, put: bytes, tmp_path: Path) -> None:
    raw = (LOGS / "inspect.eval").read_bytes()
    damaged = tmp_path / "damaged.eval"
    damaged.write_bytes(raw[:at] + put + raw[at + len(put) :])
    imported(damaged, settings(), log_format="inspect")


@FUZZ
@given(st.binary(max_size=200))
def test_no_bytes_break_the_input(raw: bytes) -> None:
    for log_format in (None, "react", "plain"):
        imported(io.BytesIO(raw), settings(), log_format=log_format)
