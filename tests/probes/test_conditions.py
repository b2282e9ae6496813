"""Conditions: the same bytes outside the record, records as their names say, wording checked at the door."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.toolshed import Toolshed
from mech.errors import InputError
from probes.items.item import FRAME, Item, dump_items, load_items
from probes.items.toolshed import build_toolshed_items
from probes.prompts.conditions import (
    AS_LONG_AS,
    CONDITIONS,
    CORE,
    MANIPULATIONS,
    NEARLY_AS_LONG,
    OTHER_CALLS,
    UNRELATED,
    condition_messages,
    grams,
    lacking,
    other_call,
    parse_conditions,
)
from probes.prompts.filler import filler
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import DEFAULT_WORDING, Wording, load_wording

W = load_wording()


@pytest.fixture(scope="module")
def items() -> list[Item]:
    pool = build_toolshed_items(11, n_tasks=24)
    return with_unrelated(pool, pool)


def words(text: str) -> int:
    """A tokenizer that tests can count by: words, and punctuation one by one."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def test_outside_the_record_all_conditions_are_identical(items: list[Item]) -> None:
    for item in items:
        context = condition_messages(item, "pre", W)
        assert [turn["role"] for turn in context[:2]] == ["system", "user"]
        assert len(context) == 2 + 2 * item.step_index
        for condition in ("fail", "succ", "neut", "abstract", "fail_terse", "fail_k3", "fail_other"):
            assert condition_messages(item, condition, W)[: len(context)] == context
        for condition in CONDITIONS:
            assert condition_messages(item, condition, W, words)[-1]["role"] == "user"


@pytest.mark.parametrize(
    ("condition", "field"),
    [
        ("fail", "obs_fail"),
        ("succ", "obs_success"),
        ("neut", "obs_neutral"),
        ("fail_terse", "obs_fail_terse"),
        ("fail_verbose", "obs_fail_verbose"),
        ("fail_echo", "obs_fail_echo"),
    ],
)
def test_a_record_is_the_failed_call_and_its_observation(
    condition: str, field: str, items: list[Item]
) -> None:
    for item in items:
        record = condition_messages(item, condition, W)[len(condition_messages(item, "pre", W)) :]
        assert record == [
            {"role": "assistant", "content": item.failed_action},
            {"role": "user", "content": f"Result: {getattr(item, field)}"},
        ]


def test_the_mark_is_the_failure_without_the_call_and_ack_the_acknowledgement_without_it(
    items: list[Item],
) -> None:
    for item in items:
        context = condition_messages(item, "pre", W)
        for condition, recorded in (("mark", "fail"), ("ack", "neut")):
            messages = condition_messages(item, condition, W)
            assert messages == [*context, condition_messages(item, recorded, W)[-1]]
            assert all(item.failed_action not in turn["content"] for turn in messages)
    echoing = replace(items[0], obs_fail=f"no: {items[0].failed_action}")
    assert lacking(echoing, "mark") == "no failure observation without the call"
    with pytest.raises(InputError, match="no failure observation without the call"):
        condition_messages(echoing, "mark", W)
    assert lacking(echoing, "ack") is None


@pytest.mark.parametrize(
    ("frame", "written"),
    [
        ("[tool output] {observation}", '[tool output] say "no"\n{json}'),
        ("<o>\n{observation}\n</o>", '<o>\nsay "no"\n{json}\n</o>'),
        ('{"content": {json}}', '{"content": "say \\"no\\"\\n{json}"}'),
        (None, 'Result: say "no"\n{json}'),
    ],
)
def test_an_items_own_frame_stands_in_the_place_of_the_wordings_prefix(
    frame: str | None, written: str, items: list[Item], tmp_path: Path
) -> None:
    item = next(item for item in items if item.step_index)
    own = replace(item, obs_fail='say "no"\n{json}', meta={**item.meta, **({FRAME: frame} if frame else {})})
    for condition in ("fail", "mark", "fail_instr", "fail_early"):
        assert written in [turn["content"] for turn in condition_messages(own, condition, W)]
    told = {
        name: [turn["content"] for turn in condition_messages(own, name, W, words) if turn["role"] == "user"][
            1:
        ]
        for name in CONDITIONS
    }
    plain = {"abstract", "abstract_min", "abstract_forbids"}
    head, tail = written.split("say")[0], written.rpartition("{json}")[2]
    for name, turns in told.items():
        assert turns
        for turn in turns[: -1 if name in plain else None]:  # a note of the runtime has no frame
            assert turn.startswith(head) and turn.endswith(tail)
    for condition, other in AS_LONG_AS.items():
        if condition not in NEARLY_AS_LONG:
            sizes = [
                sum(words(t["content"]) for t in condition_messages(own, c, W, words))
                for c in (condition, other)
            ]
            assert sizes[0] == sizes[1]
    dump_items([own], tmp_path / "items.jsonl")
    assert load_items(tmp_path / "items.jsonl") == [own]


@pytest.mark.parametrize(
    "frame", ["no place", "{observation} {observation}", "{json}{observation}", 3, ["x"]]
)
def test_a_frame_without_one_place_for_the_observation_is_refused(
    frame: Any, items: list[Item], tmp_path: Path
) -> None:
    path = tmp_path / "items.jsonl"
    dump_items([replace(items[0], meta={FRAME: frame})], path)
    with pytest.raises(InputError, match="line 1.*observation_frame"):
        load_items(path)


def test_repeated_failures_repeat_the_record_and_nothing_else(items: list[Item]) -> None:
    for item in items:
        context, once = condition_messages(item, "pre", W), condition_messages(item, "fail", W)
        record = once[len(context) :]
        assert condition_messages(item, "fail_k2", W) == [*once, *record]
        assert condition_messages(item, "fail_k3", W) == [*once, *record, *record]


def test_an_early_failure_stands_before_the_successful_steps(items: list[Item]) -> None:
    for item in items:
        fail, early = condition_messages(item, "fail", W), condition_messages(item, "fail_early", W)
        assert early == [*fail[:2], *fail[-2:], *fail[2:-2]]
        assert (early == fail) == (item.step_index == 0)


def test_the_instruction_is_the_only_change_of_fail_instr(items: list[Item]) -> None:
    fail, told = condition_messages(items[0], "fail", W), condition_messages(items[0], "fail_instr", W)
    assert told[1:] == fail[1:]
    assert told[0]["content"] == f"{fail[0]['content']}\n{W.negative_instruction}"


def test_the_placebo_never_shows_the_failed_call(items: list[Item]) -> None:
    for item in items:
        messages = condition_messages(item, "fail_other", W)
        assert messages[-2]["content"] == item.distractors[0]
        assert item.failed_action not in [turn["content"] for turn in messages]


def test_the_abstract_is_one_turn_without_the_call_its_values_or_a_misspelt_tool(items: list[Item]) -> None:
    for item in items:
        for condition in ("abstract", "abstract_min"):
            context, messages = condition_messages(item, "pre", W), condition_messages(item, condition, W)
            assert len(messages) == len(context) + 1
            note = messages[-1]["content"]
            assert "(" not in note[1:]
            assert item.failed_action not in note
            assert not re.search(r"repeat|again|not repeatable|different|do not|don't", note)
        named = item.tool in condition_messages(item, "abstract", W)[-1]["content"]
        assert named == (item.operator != "misspell_tool")


def test_the_forbidding_abstract_adds_the_ban_and_the_tool_as_it_was_called(items: list[Item]) -> None:
    for item in items:
        note = condition_messages(item, "abstract_forbids", W)[-1]["content"]
        assert "must not be sent again" in note and str(item.tool) in note and item.failed_action not in note
        plain = condition_messages(item, "abstract", W)[-1]["content"]
        if item.operator != "misspell_tool":
            assert note == plain.replace(")", "; the same call must not be sent again)")


def test_neut_matched_is_neut_with_as_many_tokens_that_repeat_nothing_in_the_place_of_the_call(
    items: list[Item],
) -> None:
    for item in items:
        matched, neut = (
            condition_messages(item, "neut_matched", W, words),
            condition_messages(item, "neut", W),
        )
        assert [*matched[:-2], matched[-1]] == [*neut[:-2], neut[-1]]
        call = matched[-2]["content"]
        assert words(call) == words(item.failed_action) and matched[-2]["role"] == "assistant"
        tokens = re.findall(r"\w+", call)
        said = " ".join(turn["content"] for turn in neut)
        whole = set(tokens[:-1])  # the last word is cut where the count asks for it
        assert len(set(tokens)) == len(tokens) and not whole & set(re.findall(r"\w+", said))
        assert condition_messages(item, "neut_matched", W, words) == matched


@pytest.mark.parametrize("condition", ["neut_pad", "quote_matched"])
def test_a_length_matched_record_has_as_many_tokens_and_no_second_copy(
    condition: str, items: list[Item]
) -> None:
    for item in items:
        record = condition_messages(item, condition, W, words)[-2:]
        other = condition_messages(item, AS_LONG_AS[condition], W)[-2:]
        assert record[0] == other[0]
        text = record[1]["content"]
        assert words(text) == words(other[1]["content"])
        assert item.failed_action not in text
        frame = item.obs_neutral if condition == "neut_pad" else item.obs_fail_echo
        added = [word for word in re.findall(r"\w+", text) if word not in frame and word != "Result"]
        assert added and len(set(added)) == len(added)
        assert condition_messages(item, condition, W, words)[-2:] == record


def test_every_length_matched_condition_is_as_long_as_another_in_words(items: list[Item]) -> None:
    def length(item: Item, condition: str) -> int:
        return sum(words(turn["content"]) for turn in condition_messages(item, condition, W, words))

    assert set(AS_LONG_AS) == {"neut_pad", "neut_matched", "neut_other", "quote_matched"}
    for condition in set(AS_LONG_AS) - NEARLY_AS_LONG:
        assert all(length(item, condition) == length(item, AS_LONG_AS[condition]) for item in items)
    [near] = NEARLY_AS_LONG
    off = [abs(length(item, near) - length(item, AS_LONG_AS[near])) for item in items]
    assert max(off) > 0  # else the rule that none is refused would hold for nothing
    assert sum(off) / len(off) < 1


def test_what_is_too_long_already_is_not_padded(items: list[Item]) -> None:
    item = replace(items[0], obs_fail="no", obs_neutral="The desk has noted this call.")
    assert (
        condition_messages(item, "neut_pad", W, words)[-1]["content"]
        == "Result: The desk has noted this call."
    )
    with pytest.raises(InputError, match="no failed action in obs_fail_echo"):
        condition_messages(replace(item, obs_fail_echo="no"), "quote_matched", W, words)
    with pytest.raises(ValueError, match="as long as another"):
        condition_messages(item, "neut_pad", W)


def test_the_far_placebo_is_another_tools_call_and_shares_less_with_the_failed_one(items: list[Item]) -> None:
    def shared(one: str, other: str) -> float:
        return SequenceMatcher(None, one, other, autojunk=False).ratio()

    near, far = [], []
    for item in items:
        call, said = condition_messages(item, "fail_unrelated", W)[-2:]
        assert call["content"] == item.meta[UNRELATED[0]]
        donors = [
            other
            for other in items
            if other.failed_action == call["content"] and said["content"].endswith(other.obs_fail)
        ]
        assert any(
            other.task_id != item.task_id
            and other.gold_action.split("(")[0] != item.gold_action.split("(")[0]
            for other in donors
        )
        near.append(shared(item.failed_action, item.distractors[0]))
        far.append(shared(item.failed_action, call["content"]))
    assert sum(far) / len(far) < 0.5 * sum(near) / len(near)


def test_the_far_placebo_depends_on_the_pool_and_is_given_once(items: list[Item]) -> None:
    bare = [replace(item, meta={}) for item in items]
    assert [item.meta for item in with_unrelated(bare[:3], bare)] == [
        {key: item.meta[key] for key in (*UNRELATED, OTHER_CALLS)} for item in items[:3]
    ]
    assert with_unrelated(items, bare[:1]) == items
    near = replace(bare[0], item_id="near", failed_action="look(up=1)", gold_action="look(up=2)")
    far = replace(near, item_id="far", task_id="another")
    same_tool = replace(far, gold_action=bare[0].gold_action)
    [alone] = with_unrelated(
        bare[:1], [bare[0], near, same_tool]
    )  # of its own task, of its own tool: neither will do
    assert with_unrelated(bare[:1], [near, far])[0].meta[UNRELATED[0]] == far.failed_action
    with pytest.raises(InputError, match="no unrelated call"):
        condition_messages(alone, "fail_unrelated", W)


def test_neut_other_records_a_call_that_is_right_in_another_task_and_answers_it_as_neut(
    items: list[Item],
) -> None:
    shed = Toolshed()
    starts = {task.task_id: task for task in shed.tasks(24, lambda name: random.Random(f"11:{name}"))}
    tasks: dict[str, list[str]] = {}
    for task in starts.values():
        for gold in task.gold:
            tasks.setdefault(gold.text, []).append(task.task_id)
    for item in items:
        neut, other = condition_messages(item, "neut", W), condition_messages(item, "neut_other", W, words)
        assert [*other[:-2], other[-1]] == [*neut[:-2], neut[-1]] and other[-2]["role"] == "assistant"
        call = other[-2]["content"]
        assert item.task_id not in tasks[call]
        assert call not in (item.failed_action, item.gold_action, *item.distractors, *item.prefix_actions)
        task = starts[tasks[call][0]]
        world, results = shed.reset(task), {}
        for gold in task.gold:
            world, results[gold.text] = shed.execute(world, gold)
        assert results[call].ok  # in its own task's world it works
        assert condition_messages(item, "neut_other", W, words) == other


def test_neut_other_shares_less_text_than_the_reference_and_prefers_another_tool(items: list[Item]) -> None:
    def shared(item: Item, call: str) -> float:
        own = grams(item.failed_action)
        return len(grams(call) & own) / len(own)

    calls = {item.item_id: other_call(item, words) for item in items}
    found = [shared(item, calls[item.item_id]) for item in items]
    near = [shared(item, str(item.gold_action)) for item in items]
    assert sum(found) / len(found) < 0.35 * sum(near) / len(near)
    another = [
        calls[item.item_id].partition("(")[0] != str(item.gold_action).partition("(")[0] for item in items
    ]
    assert sum(another) / len(another) > 0.6


def test_neut_other_takes_the_least_similar_call_within_a_token_and_the_nearest_where_none_is(
    items: list[Item],
) -> None:
    item = replace(items[0], failed_action="look(up='aa bb cc')")  # nine words and signs

    def chosen(*calls: str) -> str:
        return other_call(replace(item, meta={OTHER_CALLS: list(calls)}), words)

    assert words(item.failed_action) == 10
    far, same, one_off = "sing(song='la la')", "look(at='aa bb dd')", "sing(a='la la lu lo')"
    assert [words(call) for call in (far, same, one_off)] == [9, 10, 11]
    assert chosen(far, same) == far  # within one token: the least similar
    assert chosen("go()", "sing(a='b c d e f g h i')") in ("go()", "sing(a='b c d e f g h i')")
    assert chosen("go()", "run(to='b')") == "run(to='b')"  # none is: the nearest
    several = ["sing(a='fa fa do')", "hums(b='mi mi re')"]  # equal in both: by the item's id
    names = {
        other_call(replace(item, item_id=name, meta={OTHER_CALLS: several}), words) for name in "abcdefghij"
    }
    assert names == set(several)


def test_an_item_for_which_the_pool_has_no_other_valid_call_stays_without(items: list[Item]) -> None:
    bare = [replace(item, meta={}) for item in items]
    one_task = [item for item in bare if item.task_id == bare[0].task_id]
    for item in with_unrelated(one_task, one_task):
        assert OTHER_CALLS not in item.meta
        assert lacking(item, "neut_other") == "no other valid call in the pool"
        with pytest.raises(InputError, match="no other valid call in the pool"):
            condition_messages(item, "neut_other", W, words)
    no_reference = [replace(item, gold_action=None, prefix_actions=(), prefix_observations=(), step_index=0)
                    for item in bare]  # fmt: skip
    assert all(OTHER_CALLS not in item.meta for item in with_unrelated(no_reference[:5], no_reference))
    steps = [replace(item, gold_action=None) for item in bare]  # what worked before a decision is valid too
    found = with_unrelated(steps[:5], steps)
    worked = {call for item in steps for call in item.prefix_actions}
    assert all(set(item.meta[OTHER_CALLS]) <= worked for item in found)
    for wrong in ("a call", [], [1], None):
        assert lacking(replace(bare[0], meta={OTHER_CALLS: wrong}), "neut_other") is not None


@given(st.integers(0, 60), st.text("abc-", min_size=1, max_size=8))
def test_filler_has_the_wanted_length_and_repeats_no_word(target: int, name: str) -> None:
    text = filler(name, target, words)
    assert words(text) == target and len(set(text.split())) == target
    assert filler(name, target, words) == text


def test_filler_comes_as_near_as_a_coarse_tokenizer_lets_it() -> None:
    in_pairs = lambda text: 2 * words(text)  # noqa: E731
    assert words(filler("x", 7, in_pairs)) == 3  # 6 tokens: of two equally near the shorter
    with pytest.raises(ValueError, match="do not reach"):
        filler("x", 1, lambda text: 0)


def test_the_default_wording_has_a_gloss_for_every_family_of_the_pool() -> None:
    families = {item.error_type for item in build_toolshed_items(11)}
    assert families <= set(W.error_gloss)


def test_an_unknown_tool_and_family_get_the_stand_ins() -> None:
    assert W.abstract("out_of_ink", None) == (
        "(runtime note, try 1: an action was used and nothing happened, as it did not go through)"
    )


def test_unknown_conditions_are_refused_with_the_list(items: list[Item]) -> None:
    with pytest.raises(InputError, match="no condition 'failed': choose from pre, fail, succ"):
        condition_messages(items[0], "failed", W)
    with pytest.raises(InputError, match="no condition 'x': choose from core, all, pre"):
        parse_conditions("core,x")
    with pytest.raises(InputError, match="empty"):
        parse_conditions(" , ")


def test_condition_lists_are_read_once_each_in_order() -> None:
    assert parse_conditions("core") == CORE == ("pre", "fail", "succ", "neut", "abstract")
    assert parse_conditions("neut, pre,neut") == ("neut", "pre")
    assert parse_conditions("core,fail_k2,pre") == (*CORE, "fail_k2")
    assert parse_conditions("all") == tuple(CONDITIONS) == parse_conditions("all,core")
    assert set(MANIPULATIONS) == set(CONDITIONS) - {"pre", "fail", "succ", "neut", "neut_other", "ack"}


def test_the_role_and_prefix_of_observations_come_from_the_wording(items: list[Item], tmp_path: Path) -> None:
    wording = edited(tmp_path, observation_role="tool", observation_prefix="")
    last = condition_messages(items[0], "fail", wording)[-1]
    assert last == {"role": "tool", "content": items[0].obs_fail}


def edited(folder: Path, **changes: Any) -> Wording:
    """The default wording with some keys changed, read from a file; a value of None removes the key."""
    record = {**json.loads(DEFAULT_WORDING.read_text(encoding="utf-8")), **changes}
    path = folder / "wording.json"
    path.write_text(json.dumps({key: value for key, value in record.items() if value is not None}))
    return load_wording(path)


def test_the_hash_of_a_wording_follows_its_content_not_its_file(tmp_path: Path) -> None:
    assert edited(tmp_path, _note="for the reader", agent_demo_suffix="unused").sha256 == W.sha256
    assert edited(tmp_path, abstract_min="(runtime note)").sha256 != W.sha256
    assert edited(tmp_path, error_gloss={}).sha256 != W.sha256


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"abstract_min": None}, "the field 'abstract_min' is missing"),
        ({"observation_prefix": 3}, "the field 'observation_prefix' must be a string"),
        ({"observation_role": "human"}, "must be one of user, tool, system"),
        ({"abstract_template": "{index} {call}"}, "only {index}, {tool} and {gloss} exist"),
        ({"abstract_template": "{tool.name}"}, "only {index}, {tool} and {gloss} exist"),
        ({"abstract_template": "{index:9}"}, "only {index}, {tool} and {gloss} exist"),
        ({"abstract_template": "{index"}, "malformed"),
        ({"abstract_forbids_template": "{call}"}, "'abstract_forbids_template' uses '{call}': only {index}"),
        ({"pad_template": "{tool}"}, "only {neutral} and {filler} exist"),
        ({"pad_template": 3}, "'pad_template' must be a string"),
        ({"negative_instruction_join": "one newline"}, "must be white space"),
        ({"error_gloss": ["x"]}, "'error_gloss' must be an object"),
        ({"error_gloss": {"x": 1}}, "'error_gloss.x' must be a string"),
        ({"abstract_hides_tool_for": "x"}, "must be a list"),
    ],
)
def test_a_malformed_wording_is_refused_by_key(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        edited(tmp_path, **changes)


def test_a_wording_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Cannot read the wording file"):
        load_wording(tmp_path / "none.json")
    path = tmp_path / "torn.json"
    path.write_text('{"abstract_min": ')
    with pytest.raises(InputError, match="not valid JSON"):
        load_wording(path)
    path.write_text("[]")
    with pytest.raises(InputError, match="one JSON object"):
        load_wording(path)


@pytest.mark.needs_reference
def test_the_published_wording_loads_and_its_abstract_has_no_observation_prefix(reference_dir: Path) -> None:
    wording = load_wording(reference_dir / "condition_strings.json")
    assert wording.abstract_forbids("type_error", "cat") == wording.abstract("type_error", "cat")
    record = json.loads((reference_dir / "condition_strings.json").read_text())
    assert wording.negative_instruction_join == "\n"
    item = load_items(reference_dir / "toolshed_items.jsonl")[0]
    gloss = record["error_gloss"][item.error_type]
    expected = record["abstract_template"].format(index=1, tool=item.tool, gloss=gloss)
    assert condition_messages(item, "abstract", wording)[-1] == {"role": "user", "content": expected}
    assert (
        condition_messages(item, "fail", wording)[-1]["content"]
        == record["observation_prefix"] + item.obs_fail
    )
