"""Every position of a question has one role, under every template and condition; a text has the tokens that hold it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from mech.engine.queries import Query
from mech.models.chat import render
from mech.models.model import Model
from probes.prompts.conditions import CONDITIONS
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import load_wording
from probes.scoring.record import rendered
from probes.scoring.roles import ROLES, position_roles
from probes.scoring.score import build_queries
from tests.chat_templates import FORMS, Form, tokenizer_of
from tests.mech.test_special_tokens import sentence_piece
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS

pytestmark = pytest.mark.usefixtures("one_thread")
WORDING = load_wording()
ITEMS4 = with_unrelated(list(ITEMS), list(ITEMS))


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Model:
    return tiny_model(tiny_folder, "llama")


def texts_of(model: Model, number: int, condition: str) -> dict[str, str]:
    """Role → the text of its positions, of the byte tokenizer, where a token is a letter or a special one."""
    item = ITEMS4[number]
    [scoring] = build_queries(model, item, [condition], WORDING, ["failed"])
    roles = position_roles(model, item, condition, WORDING, scoring.query)
    tokens = scoring.query.tokens
    return {
        role: model.tokenizer.decode([token for token, own in zip(tokens, roles, strict=True) if own == role])
        for role in ROLES
    }


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("number", [0, 1])
def test_every_position_has_one_role_under_every_condition(condition: str, number: int, model: Model) -> None:
    item = ITEMS4[number]
    for scoring in build_queries(model, item, [condition], WORDING, ["failed", "gold"], end_of_turn=True):
        roles = position_roles(model, item, condition, WORDING, scoring.query)
        assert len(roles) == len(scoring.query.tokens) and set(roles) <= set(ROLES)
        assert [at for at, role in enumerate(roles) if role == "last_prompt"] == [
            len(scoring.query.prompt) - 1
        ]
        assert roles[len(scoring.query.prompt) :] == ("action",) * (len(scoring.query.action) - 1)
        assert ("recorded_call" in roles) == any(
            message["role"] == "assistant"
            for message in rendered(model, item, condition, WORDING)[0][2 + 2 * item.step_index :]
        ) or condition == "fail_early"
        assert ("earlier_action" in roles) == bool(item.step_index)


def test_the_texts_of_roles_are_those_of_the_messages(model: Model) -> None:
    item = ITEMS4[1]
    found = texts_of(model, 1, "fail")
    messages, _ = rendered(model, item, "fail", WORDING)
    names = ["system", "goal", "earlier_action", "earlier_observation", "recorded_call", "observation"]
    assert [found[name] for name in names] == [message["content"] for message in messages]
    assert found["action"] == item.failed_action[:-1]
    early = texts_of(model, 1, "fail_early")
    assert early["recorded_call"] == item.failed_action and early["earlier_action"] == item.prefix_actions[0]
    assert texts_of(model, 1, "pre")["recorded_call"] == "" == texts_of(model, 0, "neut")["earlier_action"]
    assert WORDING.negative_instruction in texts_of(model, 0, "fail_instr")["system"]


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
@pytest.mark.parametrize("condition", ["pre", "neut"])
def test_roles_cover_every_position_under_every_template(form: Form, condition: str, model: Model) -> None:
    other = dataclasses.replace(model, tokenizer=tokenizer_of(form))
    for item in ITEMS4[:2]:
        [scoring] = build_queries(other, item, [condition], WORDING, ["failed"])
        roles = position_roles(other, item, condition, WORDING, scoring.query)
        assert len(roles) == len(scoring.query.tokens)
        counts = Counter(roles)
        assert counts["last_prompt"] == 1 and counts["goal"] >= len(item.goal) - 2  # merged, if at its ends
        assert (counts["recorded_call"] > 0) == (condition == "neut")


def test_tokens_that_hold_two_parts_belong_to_one(model: Model) -> None:
    """A word-piece tokenizer joins letters and the white space before them: still one role a token."""
    other = dataclasses.replace(model, tokenizer=sentence_piece())
    for item in ITEMS4[:2]:
        for condition in ("pre", "neut", "fail"):
            [scoring] = build_queries(other, item, [condition], WORDING, ["failed"])
            roles = position_roles(other, item, condition, WORDING, scoring.query)
            assert len(roles) == len(scoring.query.tokens) and None not in roles


def test_another_prompt_is_refused(model: Model) -> None:
    [scoring] = build_queries(model, ITEMS4[0], ["pre"], WORDING, ["failed"])
    with pytest.raises(ValueError, match="not the prompt"):
        position_roles(model, ITEMS4[0], "neut", WORDING, scoring.query)
    other = Query(render(model, [{"role": "user", "content": "0"}]).ids, scoring.query.action)
    with pytest.raises(ValueError, match="not the prompt"):
        position_roles(model, ITEMS4[0], "pre", WORDING, other)
