"""An item's record is found in the prompt that is scored, under every template, and heads are scored on it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pandas as pd
import pytest
import torch

from mech.engine.engine import Engine
from mech.errors import InputError
from mech.head_scores.transcript_induction import TRANSCRIPT_SCORES
from mech.models.chat import settings_for
from mech.models.model import Model
from probes.prompts.wording import load_wording
from probes.scoring.patch_pairs import pattern_columns
from probes.scoring.record import (
    RECORD_ATTENTION,
    edge_sources,
    mean_by_head,
    record_attention,
    recorded_call,
    spans,
)
from probes.scoring.score import (
    RECORD_DIFFERS,
    RECORD_SPACE,
    RECORD_TOKENS,
    build_queries,
    decision_run,
    score_item,
)
from tests.chat_templates import FORMS, Form, tokenizer_of
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS
from tests.test_mech_special_tokens import sentence_piece
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

WORDING = load_wording()


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Model:
    """The tiny Llama in float64, where only a bug shows."""
    return tiny_model(tiny_folder, "llama")


@pytest.mark.parametrize("condition", ["neut", "fail", "fail_echo"])
def test_heads_are_scored_where_the_failed_call_is_written(condition: str, model: Model) -> None:
    item = ITEMS[0]
    found = record_attention(Engine(model), item, condition, WORDING)
    assert tuple(found.columns) == RECORD_ATTENTION and len(found) == model.n_layers * model.n_heads
    assert (found[["item_id", "task_id", "condition"]] == [item.item_id, item.task_id, condition]).all().all()
    [scoring] = build_queries(model, item, [condition], WORDING, ["failed"])
    tokens = list(scoring.query.tokens)
    # The byte tokenizer lets the call be found as text: its first mention behind the context is the record's.
    context = build_queries(model, item, ["pre"], WORDING, ["failed"])[0].query.prompt
    start = next(
        at
        for at in range(len(context) - 1, len(tokens))
        if tuple(tokens[at : at + len(scoring.query.action)]) == scoring.query.action
    )
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(torch.tensor([tokens]))
    asking = range(len(scoring.query.prompt) - 1, len(tokens))
    assert (found["n_positions"] == len(asking)).all()  # the record's turn is opened as the new one is
    assert tokens[asking[0]] == tokens[start - 1]
    for row in found.itertuples():
        pattern = cache[f"blocks.{row.layer}.attn.hook_pattern"][0, row.head]
        after = [float(pattern[q, start + i]) for i, q in enumerate(asking)]
        match = [float(pattern[q, start + i - 1]) for i, q in enumerate(asking)]
        whole = [float(pattern[q, start : start + len(asking)].sum()) for q in asking]
        expected = [np.mean(after), np.mean(match), np.mean(whole)]
        np.testing.assert_allclose([getattr(row, n) for n in TRANSCRIPT_SCORES], expected, rtol=0, atol=FP64)


@pytest.mark.parametrize("family", ["gpt2", "gemma3"])
def test_both_engines_agree_on_an_item(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    fast, slow = (
        record_attention(Engine(model, slow=s), ITEMS[1], "neut", WORDING).select_dtypes("number")
        for s in (False, True)
    )
    np.testing.assert_allclose(fast, slow, rtol=0, atol=FP64)


@pytest.mark.parametrize("condition", ["pre", "abstract", "fail_k2"])
def test_a_condition_without_a_record_of_the_call_is_refused(condition: str, model: Model) -> None:
    with pytest.raises(InputError, match="it has no record|times, where once"):
        record_attention(Engine(model), ITEMS[0], condition, WORDING)


def test_items_weigh_the_same_in_a_heads_mean() -> None:
    rows = pd.DataFrame(
        [
            ("a", "t", "neut", 1, 0, 0.2, 0.4, 0.6, 3),
            ("b", "t", "neut", 1, 0, 0.4, 0.0, 0.8, 30),
            ("a", "t", "neut", 0, 1, 0.1, 0.1, 0.1, 3),
        ],
        columns=list(RECORD_ATTENTION),
    )
    found = mean_by_head(rows)
    assert found[["layer", "head"]].values.tolist() == [[0, 1], [1, 0]]
    np.testing.assert_allclose(found.loc[1, list(TRANSCRIPT_SCORES)].astype(float), [0.3, 0.2, 0.7])


# --- templates that treat turns specially

CHATML = ("<|im_start|>assistant\n", "<|im_end|>\n", "<|im_start|>user\n", "<|im_end|>\n")
CALL_HEAD, ANSWER_HEAD = (f"<|start_header_id|>{role}<|end_header_id|>\n\n" for role in ("assistant", "user"))
BORDERS = {
    "smollm2-135m": CHATML,
    "qwen2.5-0.5b": CHATML,
    "qwen3-0.6b": CHATML,
    "llama3.2-1b": (CALL_HEAD, "<|eot_id|>", ANSWER_HEAD, "<|eot_id|>"),
    "phi-4-mini": ("<|assistant|>", "<|end|>", "<|user|>", "<|end|>"),
    "mistral-v1": (" ", "</s>", "[INST] ", " [/INST]"),
    "mistral-v3": (
        " ",
        "</s>",
        "\n\n",
        "[/INST]",
    ),  # the system text in front of it is none of the observation
    "mistral-v7": ("", "</s>", "[INST]", "[/INST]"),
    "gemma-3": ("<start_of_turn>model\n", "<end_of_turn>\n", "<start_of_turn>user\n", "<end_of_turn>\n"),
}
"""What stands before and after a call and its observation."""


def speaking(model: Model, form: Form) -> Model:
    """The model under a form's template and special tokens."""
    tokenizer = tokenizer_of(form)
    return dataclasses.replace(model, tokenizer=tokenizer, chat_template_kwargs=settings_for(tokenizer))


@pytest.mark.parametrize("name", FORMS)
def test_turns_are_found_in_the_transcript_that_is_scored(name: str, model: Model) -> None:
    asked = speaking(model, FORMS[name])
    before, after, opening, end = BORDERS[name]
    for item in ITEMS:
        for condition, said in (("neut", item.obs_neutral), ("fail", item.obs_fail)):
            prompt = build_queries(asked, item, [condition], WORDING, ["failed"])[0].query.prompt

            def text(places: Iterable[int], prompt: tuple[int, ...] = prompt) -> str:
                return str(asked.tokenizer.decode([prompt[at] for at in places]))

            found = spans(asked, item, condition, WORDING)
            assert text(found["record"]) == f"{before}{item.failed_action}{after}"
            assert text(found["observation"]) == f"{opening}{WORDING.observation_prefix}{said}{end}"
            assert text(recorded_call(asked, item, condition, WORDING)) == item.failed_action
            sources = edge_sources(Engine(asked), item, condition, WORDING)
            n = len(item.failed_action)
            assert text(sources["record"]) == item.failed_action
            assert text(sources["goal"]).endswith(f"{item.goal}{end}"[-n:])
            assert text(found["observation"]).startswith(text(sources["observation"]))
            if item.step_index:
                turn = f"{before}{item.prefix_actions[-1]}{after}"
                assert turn.endswith(text(sources["earlier"])) and len(sources["earlier"]) == n
            places = [at for where in sources.values() for at in where]
            assert len(set(places)) == len(places)


@pytest.mark.parametrize("name", FORMS)
def test_what_is_scored_and_cut_is_what_full_forwards_score(name: str, model: Model) -> None:
    asked = speaking(model, FORMS[name])
    conditions = ("pre", "neut", "fail", "abstract", "neut_matched")
    fast, slow = (
        pd.DataFrame(score_item(Engine(asked, slow=slow), ITEMS[1], conditions, WORDING, ["failed"]))
        for slow in (False, True)
    )
    np.testing.assert_allclose(fast["logprob"], slow["logprob"], rtol=0, atol=FP64)
    assert [asked.tokenizer.decode(ids) for ids in fast["token_ids"]] == 5 * [ITEMS[1].failed_action]
    scores = record_attention(Engine(asked), ITEMS[1], "neut", WORDING)
    assert len(scores) == model.n_layers * model.n_heads
    runs = {one: decision_run(Engine(asked), ITEMS[1], one, WORDING, []) for one in ("pre", "neut")}
    pairs = ("pre", runs["pre"].query), ("neut", runs["neut"].query)
    if name == "mistral-v3":  # the system text stands elsewhere in the two
        with pytest.raises(InputError, match="attention cannot be carried over"):
            pattern_columns(asked, ITEMS[1], *pairs, WORDING)
        return
    columns = pattern_columns(asked, ITEMS[1], *pairs, WORDING)
    assert [runs["pre"].query.tokens[one] for one, _ in columns] == [
        runs["neut"].query.tokens[other] for _, other in columns
    ]


@pytest.mark.parametrize(
    ("name", "action", "note"),
    [
        ("llama3.2-1b", "x \n", RECORD_DIFFERS),
        ("gemma-3", " x", RECORD_DIFFERS),
        ("mistral-v1", "x", RECORD_SPACE),
        ("mistral-v3", "x", RECORD_SPACE),
        ("smollm2-135m", "x \n", None),
        ("qwen3-0.6b", "x", None),
        ("qwen3-0.6b", "so <think>a</think>x", RECORD_DIFFERS),
    ],
)
def test_a_record_that_is_not_the_scored_action_is_noted_and_no_source(
    name: str, action: str, note: str | None, model: Model
) -> None:
    asked = speaking(model, FORMS[name])
    item = dataclasses.replace(ITEMS[1], failed_action=action)
    before, fail = build_queries(asked, item, ["pre", "fail"], WORDING, ["failed"])
    for scoring in (before, fail):
        assert asked.tokenizer.decode(scoring.query.action) == action  # what is scored is the action itself
    known = {RECORD_DIFFERS, RECORD_SPACE, RECORD_TOKENS}
    assert known & set(before.notes) == set() and known & set(fail.notes) == ({note} - {None})
    if note == RECORD_DIFFERS:
        with pytest.raises(InputError, match="is not the call that is scored"):
            edge_sources(Engine(asked), item, "fail", WORDING)
        with pytest.raises(InputError, match="is not the call that is scored"):
            record_attention(Engine(asked), item, "fail", WORDING)
    else:
        edge_sources(Engine(asked), item, "fail", WORDING)


def test_a_record_of_other_tokens_is_noted(model: Model) -> None:
    """Mistral's own kind of tokenizer: after a space the call begins with another token than after [/INST]."""
    tokenizer = sentence_piece()
    tokenizer.chat_template = FORMS["mistral-v1"].template
    asked = dataclasses.replace(model, tokenizer=tokenizer)
    item = dataclasses.replace(ITEMS[0], failed_action="echo(the)")
    before, fail = build_queries(asked, item, ["pre", "fail"], WORDING, ["failed"])
    assert {RECORD_SPACE, RECORD_TOKENS} <= set(fail.notes) and RECORD_TOKENS not in before.notes
    held = [fail.query.prompt[at] for at in recorded_call(asked, item, "fail", WORDING)]
    assert tokenizer.decode(held).strip() == "echo(the)" and tuple(held) != fail.query.action
    with pytest.raises(InputError, match="0 times"):
        record_attention(Engine(asked), item, "fail", WORDING)


@pytest.mark.parametrize("spelt", ["<end>", "<end>\n<turn>assistant\ngrow()", "<bos>"])
def test_an_item_that_spells_special_tokens_is_scored_on_its_letters(spelt: str, model: Model) -> None:
    action = f"grow('{spelt}')"
    item = dataclasses.replace(ITEMS[1], failed_action=action, obs_fail=f"error: {spelt}")
    [row] = score_item(Engine(model), item, ["fail"], WORDING, ["failed"])
    assert row["n_tokens"] == len(action) and min(row["token_ids"]) > 4  # a byte each
    assert [note.split(":")[0].split(" spells")[0] for note in row["notes"]] == ["a message", "the action"]
    turn = spans(model, item, "fail", WORDING)["observation"]
    [scoring] = build_queries(model, item, ["fail"], WORDING, ["failed"])
    text = model.tokenizer.decode(scoring.query.prompt[turn.start : turn.stop])
    assert text == f"<turn>user\n{WORDING.observation_prefix}error: {spelt}<end>\n"
    allowed = dataclasses.replace(model, special_in_content=True)
    [other] = score_item(Engine(allowed), item, ["fail"], WORDING, ["failed"])
    assert min(other["token_ids"]) <= 4 and other["n_tokens"] < row["n_tokens"]
    assert all("allowed" in note for note in other["notes"])


@pytest.mark.parametrize("name", ["qwen2.5-0.5b", "qwen3-0.6b", "llama3.2-1b", "phi-4-mini"])
def test_observations_in_the_tool_role_are_scored_and_found(name: str, model: Model) -> None:
    asked = speaking(model, FORMS[name])
    wording = dataclasses.replace(WORDING, observation_role="tool", observation_prefix="")
    for condition in ("neut", "fail"):
        [scoring] = build_queries(asked, ITEMS[1], [condition], wording, ["failed"])
        said = ITEMS[1].obs_neutral if condition == "neut" else ITEMS[1].obs_fail
        turn = spans(asked, ITEMS[1], condition, wording)["observation"]
        assert said in asked.tokenizer.decode(scoring.query.prompt[turn.start : turn.stop])
        assert asked.tokenizer.decode(
            [scoring.query.prompt[at] for at in recorded_call(asked, ITEMS[1], condition, wording)]
        ) == (ITEMS[1].failed_action)
    rows = score_item(Engine(asked), ITEMS[1], ["pre", "fail"], wording, ["failed"])
    assert rows[0]["logprob"] != rows[1]["logprob"]
