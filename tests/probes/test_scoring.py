"""Rows say what the model says: by either engine, in any order, in any company, and of the ids they name."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mech.engine.engine import Engine
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import NOTHING, scale_heads
from mech.models.chat import end_of_turn_id, render
from mech.models.model import Model
from mech.models.templates import PLAIN
from probes.measures.measures import measure
from probes.prompts import conditions
from probes.prompts.conditions import AS_LONG_AS, CONDITIONS, CORE, NEARLY_AS_LONG
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import load_wording
from probes.scoring.score import build_queries, run_decision_point, score_item, spans, system_length
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS
from tests.tolerances import FP64, IDENTITY, NATS

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

WORDING = load_wording()
ABLATED = scale_heads(HeadSet([Head(0, 1), Head(1, 3)]), 0.0, "all")
FAR = dataclasses.replace(
    ITEMS[3], item_id="far", task_id="far", failed_action="sing(song=1)", gold_action="sing(song='a')"
)
TOLERANCE = {"float64": FP64, "float32": NATS}

Row = dict[str, Any]


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Model:
    """The tiny Llama in float64, where only a bug shows."""
    return tiny_model(tiny_folder, "llama")


def with_template(model: Model, template: str | None) -> Model:
    """The model under another chat template."""
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = template
    return dataclasses.replace(model, tokenizer=tokenizer)


def assert_rows(found: list[Row], expected: list[Row], tolerance: float) -> None:
    """Equal rows, the log-probabilities token by token within the tolerance."""
    assert [row["id"] for row in found] == [row["id"] for row in expected] != []
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one["token_logprobs"], other["token_logprobs"], rtol=0, atol=tolerance)
        assert abs(one["logprob"] - other["logprob"]) <= tolerance * one["n_tokens"]
        assert abs(one["end_logprob"] - other["end_logprob"]) <= tolerance
        numbers = ("token_logprobs", "logprob", "end_logprob")
        assert {**one, **dict.fromkeys(numbers)} == {**other, **dict.fromkeys(numbers)}


def test_a_row_says_that_its_sequence_is_longer_than_any_in_training(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = score_item(Engine(model), ITEMS[0], ["pre", "neut"], WORDING, ["failed"])
    lengths = {row["condition"]: row["ctx_tokens"] + row["n_tokens"] for row in rows}
    assert lengths["pre"] < lengths["neut"] and all(row["notes"] == [] for row in rows)
    # What is run: the prompt and the action, without the token that ends the turn.
    monkeypatch.setattr(model.hf_config, "max_position_embeddings", lengths["neut"] - 1)
    noted = score_item(Engine(model), ITEMS[0], ["pre", "neut"], WORDING, ["failed"])
    note = f"longer than the {lengths['neut'] - 1} positions that the model was trained for"
    assert [row["notes"] for row in noted] == [[], [note]]
    assert [row["logprob"] for row in noted] == [row["logprob"] for row in rows]


@pytest.mark.parametrize("intervention", [NOTHING, ABLATED], ids=["clean", "ablated"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_packed_rows_are_those_of_full_forwards(
    dtype: str, intervention: Any, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, "llama", dtype)
    for item in ITEMS[:2]:
        fast = score_item(Engine(model), item, CORE, WORDING, intervention=intervention)
        slow = score_item(Engine(model, slow=True), item, CORE, WORDING, intervention=intervention)
        assert len(fast) == len(CORE) * 4
        assert_rows(fast, slow, TOLERANCE[dtype])


def test_every_condition_scores_as_by_full_forwards(model: Model) -> None:
    names = list(CONDITIONS)
    longer = dataclasses.replace(
        ITEMS[1], obs_fail="error: there is no tree here"
    )  # so that there is room to pad
    [item] = with_unrelated([longer], [*ITEMS, FAR])
    fast = score_item(Engine(model), item, names, WORDING, ["failed"])
    assert_rows(fast, score_item(Engine(model, slow=True), item, names, WORDING, ["failed"]), FP64)
    length = {row["condition"]: row["ctx_tokens"] for row in fast}
    for row in fast:
        other = AS_LONG_AS.get(row["condition"])
        assert row["length_mismatch"] == (length[row["condition"]] - length[other] if other else None)
        # A byte-level tokenizer is matched exactly, but for a call that is as long as calls are.
        assert not other or row["length_mismatch"] == 0 or row["condition"] in NEARLY_AS_LONG
        assert (row["shared_tokens"] is not None) == (row["condition"] in ("neut_matched", "neut_other"))
    assert len({row["prompt_sha256"] for row in fast}) == len(names)  # an item with a prefix tells all apart


def test_a_row_is_what_transformers_says_of_the_rendered_text(
    tiny_hf_model: Any, tiny_folder: FolderFactory
) -> None:
    model, stock = tiny_model(tiny_folder, "llama", "float32"), tiny_hf_model("llama")
    for row in score_item(Engine(model), ITEMS[0], ("pre", "fail"), WORDING, ["failed"]):
        messages = conditions.condition_messages(ITEMS[0], row["condition"], WORDING)
        text = model.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        prompt = model.tokenizer(text, add_special_tokens=False)["input_ids"]
        action = model.tokenizer(ITEMS[0].failed_action, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logprobs = stock(torch.tensor([prompt + action])).logits[0].log_softmax(-1)
        expected = [float(logprobs[len(prompt) - 1 + at, token]) for at, token in enumerate(action)]
        np.testing.assert_allclose(row["token_logprobs"], expected, rtol=0, atol=NATS)


def test_the_end_of_the_turn_is_what_the_template_writes_behind_an_action(
    tiny_hf_model: Any, tiny_folder: FolderFactory
) -> None:
    model, stock = tiny_model(tiny_folder, "llama", "float32"), tiny_hf_model("llama")
    [row] = score_item(Engine(model), ITEMS[0], ["fail"], WORDING, ["failed"])
    messages = conditions.condition_messages(ITEMS[0], "fail", WORDING)
    said = [*messages, {"role": "assistant", "content": ITEMS[0].failed_action}]
    text = model.tokenizer.apply_chat_template(said, tokenize=False)
    cut = text.rindex(ITEMS[0].failed_action) + len(ITEMS[0].failed_action)
    ids, whole = (model.tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text[:cut], text))
    with torch.no_grad():
        logprobs = stock(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    assert model.tokenizer.decode(whole[len(ids)]) == "<end>" and whole[: len(ids)] == ids
    assert row["end_logprob"] == pytest.approx(float(logprobs[whole[len(ids)]]), abs=NATS)
    assert row["end_is_argmax"] == (int(logprobs.argmax()) == whole[len(ids)])
    assert row["n_tokens"] == len(row["token_ids"]) == len(ITEMS[0].failed_action)


def test_a_model_that_cannot_end_a_turn_is_refused(model: Model) -> None:
    endless = with_template(model, "{% for m in messages %}{{ m['content'] }}{% endfor %}")
    assert end_of_turn_id(endless) == endless.tokenizer.eos_token_id
    endless.tokenizer.eos_token = None
    with pytest.raises(InputError, match="no end of turn"):
        end_of_turn_id(endless)


def test_minus_G_is_copy_plus_sem_on_every_item(tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama", "float32"))
    rows = [row for item in ITEMS for row in score_item(engine, item, CORE, WORDING)]
    logprob = {row["id"]: row["logprob"] for row in rows}
    wide = measure(pd.DataFrame(rows)).pivot(index="item_id", columns="measure", values="value")
    assert len(wide) == len(ITEMS)
    for item_id, found in wide.iterrows():
        pre, neut, fail = (logprob[f"{item_id}|{name}|failed"] for name in ("pre", "neut", "fail"))
        assert (found["G"], found["copy"], found["sem"]) == (pre - fail, neut - pre, fail - neut)
        assert abs(found["G"] + found["copy"] + found["sem"]) <= IDENTITY
        assert found[["G", "copy", "sem"]].abs().min() > NATS  # three numbers, none of them idle


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_rows_do_not_depend_on_order_or_company(family: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family, "float32")

    def rows(items: tuple[Any, ...]) -> dict[str, Row]:
        engine = Engine(model)
        return {row["id"]: row for item in items for row in score_item(engine, item, CORE, WORDING)}

    all_of_them = rows(ITEMS)
    assert rows(ITEMS[::-1]) == all_of_them == rows((ITEMS[2], ITEMS[0], ITEMS[3], ITEMS[1]))
    for item in ITEMS:
        alone = rows((item,))
        assert alone == {key: row for key, row in all_of_them.items() if row["item_id"] == item.item_id}


def test_a_score_does_not_depend_on_the_other_conditions_and_candidates(model: Model) -> None:
    whole = score_item(Engine(model), ITEMS[1], CORE, WORDING)
    part = score_item(Engine(model), ITEMS[1], ("neut", "pre"), WORDING, ["gold", "failed"])
    ids = ["neut|gold", "neut|failed", "pre|gold", "pre|failed"]
    assert [row["id"] for row in part] == [f"garden-1|{name}" for name in ids]
    by_id = {row["id"]: row for row in whole}
    assert_rows(part, [by_id[row["id"]] for row in part], FP64)


def test_a_row_names_its_ids_its_context_and_its_text(model: Model) -> None:
    rows = score_item(Engine(model), ITEMS[1], CORE, WORDING)
    assert {row["condition"] for row in rows} == set(CORE)
    for row in rows:
        action = ITEMS[1].candidates()[row["candidate"]]
        rendering = render(model, conditions.condition_messages(ITEMS[1], row["condition"], WORDING))
        assert model.tokenizer.decode(row["token_ids"]) == action
        assert row["n_tokens"] == len(row["token_ids"]) == len(row["token_logprobs"]) == len(action)
        assert row["ctx_tokens"] == len(rendering.ids)
        assert row["prompt_sha256"] == hashlib.sha256(rendering.text.encode()).hexdigest()
        assert row["logprob"] == pytest.approx(sum(row["token_logprobs"]))
        assert row["is_greedy"] == (row["n_argmax_match"] == row["n_tokens"])
        assert not row["boundary_merged"] and row["notes"] == []
        assert (row["env"], row["task_id"]) == ("garden", "task-0")


def test_unknown_conditions_and_candidates_are_refused(model: Model) -> None:
    with pytest.raises(InputError, match="no condition 'after': choose from pre, fail"):
        score_item(Engine(model), ITEMS[0], ["pre", "after"], WORDING)
    with pytest.raises(InputError, match="no candidate 'best': it has failed, gold, distractor0"):
        build_queries(model, ITEMS[0], ["pre"], WORDING, ["best"])
    with pytest.raises(InputError, match="'reply' is not a position set: choose from candidate, record"):
        run_decision_point(Engine(model), ITEMS[0], "neut", WORDING, positions=["reply"])
    fewer = dataclasses.replace(ITEMS[0], distractors=ITEMS[0].distractors[:1])
    assert {row["candidate"] for row in score_item(Engine(model), fewer, ["pre"], WORDING)} == {
        "failed",
        "gold",
        "distractor0",
    }


def test_spans_are_the_turns_of_the_call_and_of_its_observation(model: Model) -> None:
    for item in ITEMS:
        for name, said in (("neut", item.obs_neutral), ("fail", item.obs_fail), ("succ", item.obs_success)):
            ids = render(model, conditions.condition_messages(item, name, WORDING)).ids
            texts = {
                label: model.tokenizer.decode(ids[where.start : where.stop])
                for label, where in spans(model, item, name, WORDING).items()
            }
            assert texts == {
                "record": f"<turn>assistant\n{item.failed_action}<end>\n",
                "observation": f"<turn>user\n{WORDING.observation_prefix}{said}<end>\n",
            }


def test_a_condition_without_a_record_has_no_spans(model: Model) -> None:
    for name in ("pre", "abstract", "fail_k2", "fail_early", "fail_instr"):
        with pytest.raises(InputError, match="it has no record"):
            spans(model, ITEMS[1], name, WORDING)


def test_spans_are_those_of_the_whole_transcript_where_the_template_rewrites_the_past(model: Model) -> None:
    plain = spans(model, ITEMS[1], "neut", WORDING)
    rewriting = "{% if messages | length > 4 %}!{% endif %}" + model.tokenizer.chat_template
    found = spans(with_template(model, rewriting), ITEMS[1], "neut", WORDING)
    assert found == {name: range(span.start + 1, span.stop + 1) for name, span in plain.items()}


@pytest.mark.parametrize(
    "template",
    [
        "{% for m in messages if m.role != 'assistant' %}<turn>{{ m.content }}<end>{% endfor %}",
        "{% for m in messages %}<turn>{{ m.content }}{{ m.content }}<end>{% endfor %}",
    ],
)
def test_spans_are_refused_where_the_template_keeps_no_turn_of_the_call(template: str, model: Model) -> None:
    with pytest.raises(InputError, match="no span of its own"):
        spans(with_template(model, template), ITEMS[1], "neut", WORDING)


def test_a_decision_run_keeps_record_and_observation_where_they_stand(model: Model) -> None:
    names = ["blocks.1.attn.hook_z", "blocks.2.hook_resid_pre"]
    run = run_decision_point(
        Engine(model), ITEMS[1], "neut", WORDING, names, ("candidate", "record", "observation")
    )
    where = {**spans(model, ITEMS[1], "neut", WORDING), "candidate": run.query.candidate}
    assert set(run.at) == set(where) and run.cache is run.at["candidate"]
    with torch.no_grad():
        _, cache = model.bridge.run_with_cache(torch.tensor([run.query.tokens]))
    for label, positions in where.items():
        for name in names:
            expected = cache[name][0, list(positions)]
            torch.testing.assert_close(run.at[label][name], expected, rtol=0, atol=FP64)


def test_a_decision_run_scores_as_the_row_does(model: Model) -> None:
    engine = Engine(model)
    rows = {row["condition"]: row for row in score_item(engine, ITEMS[1], CORE, WORDING, ["failed"])}
    for name in CORE:
        run = run_decision_point(engine, ITEMS[1], name, WORDING)
        np.testing.assert_allclose(run.score.logprobs, rows[name]["token_logprobs"], rtol=0, atol=FP64)
        assert list(run.query.action) == rows[name]["token_ids"]


def test_the_shared_prefix_ends_where_the_goal_begins(model: Model) -> None:
    for template in (model.tokenizer.chat_template, None):
        asked = with_template(model, template)
        length = system_length(asked, ITEMS[0])
        assert length == system_length(asked, ITEMS[3])
        text = asked.tokenizer.decode(
            build_queries(asked, ITEMS[0], ["pre"], WORDING)[0].query.prompt[:length]
        )
        assert text.count(ITEMS[0].system_prompt) == 1
        assert text.endswith("<turn>user\n" if template else "User:\n") and ITEMS[0].goal not in text


def test_a_template_that_knows_no_system_turn_still_shares_the_system_text(model: Model) -> None:
    strict = (
        "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}"
        "{{ raise_exception('no system role') }}{% endif %}<turn>{{ m['role'] }}\n{{ m['content'] }}<end>\n"
        "{% endfor %}{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
    )
    folded = with_template(model, strict)
    rows = score_item(Engine(folded), ITEMS[0], CORE, WORDING)
    prompt = build_queries(folded, ITEMS[0], ["pre"], WORDING)[0].query.prompt
    text = folded.tokenizer.decode(prompt[: system_length(folded, ITEMS[0])])
    assert text == f"<bos><turn>user\n{ITEMS[0].system_prompt}\n\n"
    assert all(len(row["notes"]) == 1 and "system text" in row["notes"][0] for row in rows)
    assert_rows(rows, score_item(Engine(folded, slow=True), ITEMS[0], CORE, WORDING), FP64)


def test_a_model_without_a_template_is_scored_on_a_plain_transcript(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    plain = with_template(model, None)
    rows = score_item(Engine(plain), ITEMS[1], CORE, WORDING)
    assert all(row["notes"] == [PLAIN] for row in rows)
    assert_rows(rows, score_item(Engine(plain, slow=True), ITEMS[1], CORE, WORDING), FP64)
    ids = build_queries(plain, ITEMS[1], ["fail"], WORDING, ["failed"])[0].query.prompt
    said = (
        f"Assistant:\n{ITEMS[1].failed_action}\n\nUser:\n{WORDING.observation_prefix}{ITEMS[1].obs_fail}\n\n"
    )
    assert plain.tokenizer.decode(ids).endswith(f"{said}Assistant:\n")
    where = spans(plain, ITEMS[1], "fail", WORDING)["record"]
    assert plain.tokenizer.decode(ids[where.start : where.stop]).strip() == (
        f"Assistant:\n{ITEMS[1].failed_action}"
    )


def test_a_kept_run_is_read_back_to_the_bit(model: Model, tmp_path: Path) -> None:
    first, second = Engine(model, cache_dir=tmp_path), Engine(model, cache_dir=tmp_path)
    one = score_item(first, ITEMS[1], CORE, WORDING)
    assert (
        score_item(second, ITEMS[1], CORE, WORDING)
        == one
        == score_item(Engine(model), ITEMS[1], CORE, WORDING)
    )
    assert (second.forwards.ran, second.forwards.saved) == (0, first.forwards.ran) and first.forwards.ran > 0
    score_item(second, ITEMS[1], CORE, WORDING, intervention=ABLATED)
    assert second.forwards.ran > 0  # another intervention is another entry
