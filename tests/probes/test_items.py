"""Items: files load and dump without loss, bad lines are named, the toolshed pool is what it says."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envs.base import Action
from envs.toolshed import Toolshed
from envs.toolshed.perturb import OPERATORS
from envs.toolshed.tasks import TEMPLATES
from mech.errors import InputError
from probes.items.item import (
    FRAME,
    Item,
    balanced_order,
    dump_items,
    item_line,
    load_items,
    select_items,
)
from probes.items.toolshed import build_toolshed_items, wording_of
from tests.fresh_process import printed

BOTH = pytest.mark.parametrize("env", ["toolshed", "coderepair"])


@pytest.fixture(scope="module")
def pool() -> list[Item]:
    return build_toolshed_items(11)


@pytest.fixture(scope="module")
def varied() -> list[Item]:
    return build_toolshed_items(11, templates="all")


def test_a_seed_gives_the_same_bytes_and_another_seed_others(pool: list[Item]) -> None:
    lines = [item_line(item) for item in pool]
    assert [item_line(item) for item in build_toolshed_items(11)] == lines
    assert [item_line(item) for item in build_toolshed_items(12)] != lines


DRAWN = """
import numpy as np
from mech.head_scores.controls import layer_matched
from mech.heads import Head, HeadSet
from probes.items.item import item_line
from probes.items.toolshed import build_toolshed_items
selected = HeadSet([Head(0, 0), Head(2, 1), Head(2, 2)])
drawn = [str(layer_matched(selected, 4, 5, np.random.default_rng(seed)).heads) for seed in range(20)]
text = "\\n".join([*drawn, *(item_line(item) for item in build_toolshed_items(11))])
"""


def test_a_seed_draws_the_same_items_and_control_heads_in_every_process() -> None:
    here: dict[str, Any] = {}
    exec(DRAWN, here)
    assert len(here["text"].splitlines()) > 300
    for hash_seed in (1, 2):
        assert printed(f"{DRAWN}\nprint(text)", hash_seed) == here["text"]


@pytest.mark.parametrize("seed", [0, 11, 20260101])
def test_the_pool_has_every_operator_and_twelve_families(seed: int) -> None:
    items = build_toolshed_items(seed)
    assert {item.operator for item in items} == set(OPERATORS)
    assert len({item.error_type for item in items}) == 12
    per_operator = Counter(item.operator for item in items)
    assert max(per_operator.values()) == 45
    assert min(per_operator.values()) >= 20
    assert len({item.task_id for item in items}) >= 55
    assert [item.item_id for item in items] == sorted({item.item_id for item in items})


def test_a_cap_spreads_over_tasks_and_families_instead_of_taking_the_first() -> None:
    capped = build_toolshed_items(11, per_operator=20)
    misspelt = [item for item in capped if item.operator == "misspell_tool"]
    assert len({item.task_id for item in misspelt}) == 20
    assert max(item.task_id for item in misspelt) > "shed-0040"
    unknown = Counter(item.error_type for item in capped if item.operator == "unknown_entity")
    assert sorted(unknown.values()) == [4, 4, 4, 4, 4]


def test_every_item_has_four_different_candidates_in_a_fixed_order(pool: list[Item]) -> None:
    for item in pool:
        assert list(item.candidates()) == ["failed", "gold", "distractor0", "distractor1"]
        assert len(set(item.candidates().values())) == 4


def test_replaying_an_item_gives_its_texts(pool: list[Item]) -> None:
    shed = Toolshed()
    tasks = {task.task_id: task for task in shed.tasks(60, lambda name: random.Random(f"11:{name}"))}
    for item in pool:
        task = tasks[item.task_id]
        world = shed.reset(task)
        assert item.prefix_actions == tuple(each.text for each in task.gold[: item.step_index])
        for gold, observation in zip(task.gold, item.prefix_observations, strict=False):
            world, outcome = shed.execute(world, gold)
            assert outcome.result == observation
        for name, text in item.candidates().items():
            action = next((each for each in task.gold if each.text == text), None) or type(task.gold[0])(text)
            after, outcome = shed.execute(world, action)
            assert outcome.ok == (name == "gold")
            if name == "failed":
                assert after == world
                assert shed.observe(action, outcome) == item.obs_fail
            if name == "distractor0":
                assert shed.observe(action, outcome) == item.obs_fail_other


def test_texts_have_no_blanks_at_their_ends_and_only_the_echo_holds_the_call(pool: list[Item]) -> None:
    for item in pool:
        for name, value in json.loads(item_line(item)).items():
            for text in value if isinstance(value, list) else [value]:
                if isinstance(text, str):
                    assert text == text.strip(), name
                    assert "\n " not in text.replace("\n  - ", "")
                    assert not re.search(r"[ \t]\n", text), name
        assert item.failed_action in item.obs_fail_echo
        for text in (item.obs_fail, item.obs_fail_terse, item.obs_fail_verbose, item.obs_neutral):
            assert item.failed_action not in text
        assert item.failed_action not in item.obs_success
        assert item.gold_action not in item.obs_fail_verbose
        assert item.obs_success not in (item.obs_neutral, "")


def test_the_neutral_text_is_one_and_tells_no_outcome(pool: list[Item]) -> None:
    (text,) = {item.obs_neutral for item in pool}
    assert not re.search(r"error|fail|success|done|ok\b|not |wrong|complete|saved", text, re.IGNORECASE)


PAPER_SHA256 = {
    0: "9a93428ec13c3f8c752f6e223acea127e711b447b251d46284111193e8cc159a",
    11: "9ce614c721f78fd66f450863c025436af50b914c5ebd0fdd7f8d2d9fa920c216",
}
"""SHA-256 of the pool's lines as the versions with six templates made them: recorded runs are of these items."""


@pytest.mark.parametrize("seed", list(PAPER_SHA256))
def test_the_papers_pool_is_what_it_was_byte_for_byte(seed: int) -> None:
    text = "\n".join(item_line(item) for item in build_toolshed_items(seed))
    assert hashlib.sha256(text.encode()).hexdigest() == PAPER_SHA256[seed]


def test_the_varied_pool_crosses_templates_prompts_and_frames(varied: list[Item]) -> None:
    assert 275 <= len(varied) <= 400
    assert set(Counter(item.operator for item in varied).values()) == {45}
    templates = Counter(item.template for item in varied)
    assert set(templates) == set(TEMPLATES) and min(templates.values()) >= 12
    for n, count in (
        (6, Counter(item.system_prompt for item in varied)),
        (4, Counter(item.meta.get(FRAME) for item in varied)),
    ):
        assert len(count) == n and min(count.values()) > 0.8 / n * len(varied)
    assert len({item.task_id for item in varied}) >= 105
    cells = [(place % 14, *wording_of(place)) for place in range(112)]
    assert len(set(cells)) == 112
    of_prompt, of_frame = (Counter((cell[0], cell[part]) for cell in cells) for part in (1, 2))
    assert set(of_prompt.values()) == {1, 2} and len(of_prompt) == 14 * 6
    assert set(of_frame.values()) == {2} and len(of_frame) == 14 * 4
    pairs = Counter(cell[1:] for cell in cells)
    assert len(pairs) == 24 and set(pairs.values()) == {4, 5}


def test_varied_items_of_the_papers_wording_are_the_papers_and_others_say_their_wording() -> None:
    paper = {item.item_id: item for item in build_toolshed_items(11, per_operator=None)}
    varied = build_toolshed_items(11, per_operator=None, templates="all")
    assert len({item.item_id for item in varied}) == len(varied)
    same = [item for item in varied if item.item_id in paper]
    assert len(same) > 20 and all(item == paper[item.item_id] for item in same)
    for item in varied:
        old = item.item_id.removesuffix("-" + "-".join(item.item_id.split("-")[-2:]))
        if item.item_id not in paper and old in paper:  # the same decision in another wording
            plain = {name: value for name, value in item.meta.items() if name != FRAME}
            back = replace(item, item_id=old, system_prompt=paper[old].system_prompt, meta=plain)
            assert back == paper[old]
            assert item.system_prompt != paper[old].system_prompt or FRAME in item.meta


def test_a_limit_by_template_takes_every_template_and_prompt_before_any_twice(varied: list[Item]) -> None:
    few = select_items(varied, None, 14, by_template=True)
    assert len({item.template for item in few}) >= 12  # an operator may apply to none that is left
    assert max(Counter(item.system_prompt for item in few).values()) <= 6
    assert max(Counter(item.operator for item in few).values()) <= 2
    more = select_items(varied, None, 28, by_template=True)
    assert {item.item_id for item in few} < {item.item_id for item in more}
    assert set(Counter(item.template for item in more).values()) <= {1, 2, 3}
    plain = select_items(varied, None, 14)
    assert len({item.template for item in plain}) < 12  # else the option would do nothing
    order = balanced_order(varied, random.Random(5), by_template=True)
    assert sorted(item.item_id for item in order) == sorted(item.item_id for item in varied)
    first: dict[str, int] = {}
    for place, item in enumerate(order):
        first.setdefault(item.template, place)
    assert max(first.values()) < 30


def test_varied_items_replay_and_only_the_echo_holds_the_call(varied: list[Item]) -> None:
    shed = Toolshed()
    tasks = {task.task_id: task for task in shed.varied_tasks(112, lambda name: random.Random(f"11:{name}"))}
    for item in varied:
        world = shed.reset(tasks[item.task_id])
        for action, observation in zip(item.prefix_actions, item.prefix_observations, strict=True):
            world, outcome = shed.execute(world, Action(action))
            assert outcome.result == observation
        for name, text in item.candidates().items():
            after, outcome = shed.execute(world, Action(text))
            assert outcome.ok == (name == "gold")
            if name == "failed":
                assert after == world and shed.observe(Action(text), outcome) == item.obs_fail
        assert len(set(item.candidates().values())) == 4
        assert item.failed_action in str(item.obs_fail_echo) and item.failed_action not in item.obs_fail
        assert item.failed_action not in str(item.obs_success) and item.obs_success != item.obs_neutral
        assert all(text == text.strip() for text in (item.system_prompt, item.goal, item.obs_fail))


@pytest.mark.needs_reference
def test_varied_items_share_no_tool_person_or_sentence_with_the_reference(
    varied: list[Item], reference_dir: Path
) -> None:
    theirs = load_items(reference_dir / "toolshed_items.jsonl")
    prompts = {item.system_prompt for item in varied}
    sentences = {line for item in theirs for line in item.system_prompt.split("\n") if len(line) > 20}
    tools = set(re.findall(r"^- (\w+)\(", theirs[0].system_prompt, re.MULTILINE))
    for prompt in prompts:
        assert not sentences & set(prompt.split("\n"))
        assert not [tool for tool in tools if tool in prompt]
    observed = {text for item in theirs for text in (item.obs_fail, item.obs_neutral, item.goal)}
    assert not observed & {text for item in varied for text in (item.obs_fail, item.obs_neutral, item.goal)}
    assert not {item.template for item in theirs} & {item.template for item in varied}


@pytest.mark.needs_reference
def test_own_items_share_no_tool_person_group_or_sentence_with_the_reference(
    pool: list[Item], reference_dir: Path
) -> None:
    theirs = load_items(reference_dir / "toolshed_items.jsonl")
    ours = " ".join(item_line(item) for item in pool)
    tools = set(re.findall(r"^- (\w+)\(", theirs[0].system_prompt, re.MULTILINE))
    assert len(tools) == 12
    names = {word for item in theirs for word in re.findall(r"'name': '(\w+) (\w+)'", item_line(item))}
    groups = {word for item in theirs for word in re.findall(r"'team': '(\w+)'", item_line(item))}
    words = tools | {each for pair in names for each in pair}
    assert len(words) > 30
    for word in words | {item.tool or "" for item in theirs}:
        assert not re.search(rf"\b{word}\b", ours), word
    assert not groups & {word for item in pool for word in re.findall(r">, (\w+)", item.obs_success)}
    sentences = {line for item in theirs for line in item.system_prompt.split("\n") if len(line) > 20}
    assert not sentences & set(pool[0].system_prompt.split("\n"))
    observed = {text for item in theirs for text in (item.obs_fail, item.obs_neutral, item.goal)}
    assert not observed & {text for item in pool for text in (item.obs_fail, item.obs_neutral, item.goal)}


def test_dumped_items_load_equal(pool: list[Item], tmp_path: Path) -> None:
    odd = replace(pool[0], item_id="odd", goal="a\u2028b \x85 ü \\ \"'", tool=None, meta={"n": [1, None]})
    dump_items([*pool, odd], tmp_path / "items.jsonl")
    assert load_items(tmp_path / "items.jsonl") == [*pool, odd]
    assert [each.name for each in tmp_path.iterdir()] == ["items.jsonl"]


@BOTH
@pytest.mark.needs_reference
def test_reference_items_load_and_dump_to_the_same_bytes(
    env: str, reference_dir: Path, tmp_path: Path
) -> None:
    source = reference_dir / f"{env}_items.jsonl"
    items = load_items(source)
    dump_items(items, tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == source.read_bytes()
    assert load_items(tmp_path / "again.jsonl") == items


def broken(change: Callable[[dict[str, Any]], object]) -> Callable[[str], str]:
    """A function that edits the record on a line."""

    def edit(line: str) -> str:
        record = json.loads(line)
        change(record)
        return json.dumps(record)

    return edit


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda line: line[: len(line) // 2], "not a whole JSON object"),
        (lambda line: line + "}", "not a whole JSON object"),
        (lambda line: "[1]", "not a JSON object"),
        (broken(lambda record: record.pop("goal")), "the field 'goal' is missing"),
        (broken(lambda record: record.update(colour="red")), "the field 'colour' is not known here"),
        (broken(lambda record: record.update(step_index="0")), "'step_index' must be an integer"),
        (broken(lambda record: record.update(step_index=True)), "'step_index' must be an integer"),
        (broken(lambda record: record.update(goal=None)), "'goal' must be a string"),
        (broken(lambda record: record.update(tool=3)), "'tool' must be a string"),
        (broken(lambda record: record.update(distractors="x")), "'distractors' must be a list"),
        (broken(lambda record: record.update(distractors=[1])), "'distractors[0]' must be a string"),
        (broken(lambda record: record.update(meta=[])), "'meta' must be an object"),
        (broken(lambda record: record.update(failed_action=" ")), "'failed_action' must be a non-empty"),
        (broken(lambda record: record.update(prefix_actions=["a", "b", "c"])), "must be equally long"),
        (
            broken(lambda record: record.update(step_index=3, prefix_actions=[], prefix_observations=[])),
            "'step_index' is 3 and there are 0 'prefix_actions'",
        ),
    ],
)
def test_a_bad_line_is_refused_with_file_and_line(
    edit: Callable[[str], str], says: str, pool: list[Item], tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{item_line(pool[0])}\n\n{edit(item_line(pool[1]))}\n", encoding="utf-8")
    with pytest.raises(InputError, match=re.escape(says)) as caught:
        load_items(path)
    assert f"{path}, line 3" in str(caught.value)


def test_a_line_torn_inside_a_character_and_a_repeated_id_are_refused(
    pool: list[Item], tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    line = item_line(replace(pool[0], goal="ü")).encode()
    path.write_bytes(line[: line.index("ü".encode()) + 1])
    with pytest.raises(InputError, match="line 1: it is not a whole JSON object"):
        load_items(path)
    path.write_bytes(line + b"\n" + line)
    with pytest.raises(InputError, match="line 2 .*: the item id is already on line 1"):
        load_items(path)


def test_a_missing_and_an_empty_file_and_an_unwritable_place_are_refused(
    pool: list[Item], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="Cannot read the item file"):
        load_items(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(InputError, match="holds no items"):
        load_items(tmp_path / "empty.jsonl")
    with pytest.raises(InputError, match="Cannot write the item file"):
        dump_items(pool, tmp_path / "nowhere" / "items.jsonl")


def test_selection_keeps_the_order_of_the_file_and_names_an_unknown_id(pool: list[Item]) -> None:
    ids = [pool[7].item_id, pool[2].item_id]
    assert select_items(pool, ids) == [pool[2], pool[7]]
    assert select_items(pool) == pool
    with pytest.raises(InputError, match=r"No item has the id 'nope' \(and 1 more\)"):
        select_items(pool, [*ids, "nope", "neither"])
    with pytest.raises(InputError, match="empty"):
        select_items(pool, [])
    with pytest.raises(InputError, match="at least 1"):
        select_items(pool, None, 0)


def test_a_limit_takes_a_balanced_sample_and_a_smaller_one_is_a_subset(pool: list[Item]) -> None:
    samples = [select_items(pool, None, n) for n in (8, 16, 80, len(pool), 10_000)]
    for small, large in zip(samples, samples[1:], strict=False):
        assert {item.item_id for item in small} <= {item.item_id for item in large}
    assert set(Counter(item.operator for item in samples[1]).values()) == {2}
    assert max(Counter(item.task_id for item in samples[2]).values()) <= 3
    assert samples[3] == samples[4] == pool
    assert samples[2] == [item for item in pool if item in samples[2]]


def test_the_balanced_order_holds_every_item_once(pool: list[Item]) -> None:
    order = balanced_order(pool, random.Random(5))
    assert sorted(item.item_id for item in order) == sorted(item.item_id for item in pool)


@pytest.mark.needs_reference
@pytest.mark.parametrize(("env", "n", "per_task"), [("toolshed", 100, 3), ("coderepair", 60, 1)])
def test_the_first_of_the_balanced_order_are_the_published_subset(
    env: str, n: int, per_task: int, reference_dir: Path
) -> None:
    items = load_items(reference_dir / f"{env}_items.jsonl")
    published = json.loads((reference_dir / f"core_ids_{env}.json").read_text())
    chosen = balanced_order(items, random.Random(20260808), per_task)[:n]
    assert sorted(item.item_id for item in chosen) == published


def spoilt(item: Item, **changes: Any) -> str:
    return json.dumps({**json.loads(item_line(item)), **changes})


def test_every_fault_of_a_file_is_in_one_message_with_its_line_and_item(
    pool: list[Item], tmp_path: Path
) -> None:
    a, b, c = (one.item_id for one in pool[:3])
    gone = json.loads(item_line(pool[1]))
    for name in ("goal", "obs_fail", "system_prompt"):
        del gone[name]
    lines = [
        spoilt(pool[0], gold_action=pool[0].failed_action, goal="cut \ud83d", colour=1, shape=2),
        json.dumps({**gone, "step_index": "x", "prefix_actions": ["p"], "prefix_observations": []}),
        "{",
        spoilt(pool[2], distractors=[" x", "x", "y"]).replace('"tool"', '"tool": null, "tool"', 1),
        item_line(pool[0]),
    ]
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        load_items(path)
    head, *said = str(caught.value).splitlines()
    assert head == f"The item file '{path}' has {len(said)} faults:"
    for line, parts in {
        f"line 1 (item '{a}')": (
            "'goal' holds half of a surrogate",
            "'colour' is not known",
            "'shape' is not known",
        ),
        f"line 2 (item '{b}')": (
            *("'goal' is missing", "'obs_fail' is missing", "'system_prompt' is missing"),
            *("'step_index' must be an integer", "must be equally long"),
        ),
        "line 3": ("not a whole JSON object",),
        f"line 4 (item '{c}')": (
            "'tool' occurs twice",
            "'distractors[1]' is the same action as 'distractors[0]'",
        ),
        f"line 5 (item '{a}')": ("already on line 1",),
    }.items():
        for part in parts:
            assert any(one.startswith(f"  {line}: ") and part in one for one in said), (line, part)
    assert any("'gold_action' is the same action as 'failed_action'" in one for one in said)
    assert len(said) == 13


@pytest.mark.parametrize(
    ("place", "spoil"),
    [
        ("goal", lambda record, text: record.update(goal=text)),
        (
            "prefix_actions[0]",
            lambda record, text: record.update(prefix_actions=[text], prefix_observations=["a"]),
        ),
        ("distractors[1]", lambda record, text: record.update(distractors=["a", text])),
        ("meta.deep[0].x", lambda record, text: record.update(meta={"deep": [{"x": text}]})),
        ("item_id", lambda record, text: record.update(item_id=text)),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_wherever_it_stands(
    place: str, spoil: Callable[[dict[str, Any], str], object], pool: list[Item], tmp_path: Path
) -> None:
    record = json.loads(item_line(pool[0]))
    spoil(record, "cut \ud83d")
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(record))
    with pytest.raises(
        InputError, match=re.escape(f"the field '{place}' holds half of a surrogate pair")
    ) as caught:
        load_items(path)
    assert "line 1" in str(caught.value) and str(caught.value).encode()
    spoil(record, "whole \U0001f600")
    path.write_text(json.dumps(record))
    assert len(load_items(path)) == 1


def test_an_item_of_such_a_text_is_not_written_either(pool: list[Item], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="half of a surrogate pair"):
        dump_items([replace(pool[0], goal="\ud83d")], tmp_path / "items.jsonl")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"gold_action": "A"}, "'gold_action' is the same action as 'failed_action'"),
        ({"gold_action": " A\n"}, "'gold_action' is the same action as 'failed_action'"),
        ({"distractors": ["B", "A"]}, "'distractors[1]' is the same action as 'failed_action'"),
        ({"gold_action": "B", "distractors": ["B "]}, "'distractors[0]' is the same action as 'gold_action'"),
        ({"distractors": ["B", "B"]}, "'distractors[1]' is the same action as 'distractors[0]'"),
        ({"distractors": ["B", " "]}, "'distractors[1]' must be a non-empty string"),
        ({"obs_success": ""}, "'obs_success' must be a non-empty string"),
        ({"step_index": 10**400}, "'step_index' must be less than or equal to"),
        ({"meta": {"x": float("nan")}}, "'meta.x' is no finite number"),
        ({"meta": {"x": float("inf")}}, "'meta.x' is no finite number"),
    ],
)
def test_what_would_make_a_probability_or_a_number_mean_nothing_is_refused(
    changes: dict[str, Any], says: str, pool: list[Item], tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(spoilt(pool[0], failed_action="A", **changes))
    with pytest.raises(InputError, match=re.escape(says)):
        load_items(path)


def test_deep_nesting_long_lines_a_byte_order_mark_and_crlf(pool: list[Item], tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    for depth in (80, 100_000):
        path.write_text(
            item_line(pool[0]).replace('"meta": {', f'"meta": {{"x": {"[" * depth}{"]" * depth}, ', 1)
        )
        with pytest.raises(InputError, match="line 1: .*nested too deeply"):
            load_items(path)
    path.write_text(spoilt(pool[0], goal="word " * 400_000))
    assert len(load_items(path)[0].goal) == 2_000_000
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(map(item_line, pool[:2])).encode() + b"\r\n")
    assert load_items(path) == pool[:2]
    path.write_text("\n".join("{" for _ in range(50)))
    with pytest.raises(InputError, match="has 50 faults") as caught:
        load_items(path)
    assert len(str(caught.value).splitlines()) == 22 and str(caught.value).endswith("and 30 more")
