"""Doctor tries on a template all that studies ask of it: what passes here runs there, what cannot is named."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest

from experiments.cli import main
from mech.checks.checks import CheckResult
from mech.models.chat import settings_for
from mech.models.model import Model
from probes.prompts.wording import load_wording
from probes.scoring.transcript_checks import transcript_checks
from tests.chat_templates import FORMS, PAPER, save_form, tokenizer_of
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

WORDING = load_wording()
NAMES = (
    *("observation_role", "end_of_turn", "conditions", "content_kept", "special_tokens_as_text"),
    *("record_spans", "record_tokens", "pattern_positions", "hidden_turns"),
)
FLAGGED = {
    "llama3.2-1b": {"content_kept"},
    "gemma-3": {"content_kept", "conditions"},
    "mistral-v1": {"conditions"},
    "mistral-v3": {"content_kept", "conditions", "pattern_positions"},
}


@pytest.fixture
def model(tiny_folder: FolderFactory) -> Model:
    return tiny_model(tiny_folder, "llama", "float32")


def checked(model: Model, template: str | None) -> dict[str, CheckResult]:
    """The checks by name, of the model under another template."""
    tokenizer = copy.deepcopy(model.tokenizer)
    tokenizer.chat_template = template
    return {
        one.name: one for one in transcript_checks(dataclasses.replace(model, tokenizer=tokenizer), WORDING)
    }


@pytest.mark.parametrize("name", FORMS)
def test_every_known_form_passes_and_what_it_changes_is_flagged(name: str, model: Model) -> None:
    tokenizer = tokenizer_of(FORMS[name])
    asked = dataclasses.replace(model, tokenizer=tokenizer, chat_template_kwargs=settings_for(tokenizer))
    found = transcript_checks(asked, WORDING)
    assert tuple(check.name for check in found) == NAMES and all(check.passed for check in found)
    assert {check.name for check in found if check.flagged} == FLAGGED.get(name, set()), found


@pytest.mark.parametrize("name", PAPER)
def test_doctor_says_ok_on_the_templates_of_the_paper_s_models(
    name: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_form(tmp_path / name, PAPER[name], "qwen3" if name.startswith("qwen3") else "llama")
    assert main(["doctor", "--model", str(folder)]) == 0
    said = capsys.readouterr().out
    lines = {line.split()[1]: line for line in said.splitlines() if line.startswith(("ok", "note", "FAIL"))}
    assert set(NAMES) <= set(lines) and "cannot run" not in said
    assert {one for one, line in lines.items() if line.startswith("note")} == FLAGGED.get(name, set())


def test_what_a_template_keeps_from_studies_is_named(model: Model) -> None:
    plain = str(model.tokenizer.chat_template)
    found = checked(model, plain.replace("{{ m['content'] }}", "{{ m['content'] | upper }}"))
    assert "the template changes the case of message" in found["conditions"].sentence
    assert found["record_spans"].sentence.startswith(
        "cannot run: knockout, joint, patch --at, path, mechanism ("
    )
    assert found["hidden_turns"].flagged and "rollout --change knockout" in found["hidden_turns"].sentence
    silent = checked(
        model, "{{ bos_token }}{% for m in messages if m.role != 'user' %}{{ m.content }}{% endfor %}"
    )
    assert not silent["observation_role"].passed and set(silent) == set(NAMES[:3])
    picky = "{% if messages | length == 3 %}{{ raise_exception('never three') }}{% endif %}" + plain
    assert (
        "abstract: " in checked(model, picky)["conditions"].sentence
        or checked(model, picky)["conditions"].passed
    )


def test_a_model_that_reads_special_tokens_in_messages_is_flagged(model: Model) -> None:
    allowed = dataclasses.replace(model, special_in_content=True)
    [check] = [one for one in transcript_checks(allowed, WORDING) if one.name == "special_tokens_as_text"]
    assert check.flagged
