"""One line of an item file: the fields, their types, and what cannot be true of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

QUOTES = "traceback_quotes_source"  # the key of meta that says whether the error quotes a line of a×
FRAME = "observation_frame"  # the key of meta that frames this item's observations, instead of the wording's prefix
AS_TEXT = "{observation}"  # what stands in a frame for the observation as it is
AS_JSON = "{json}"  # the same, as a JSON string
LISTS = ("prefix_actions", "prefix_observations", "distractors")
_MAX_STEPS = 2**31 - 1


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must be a non-empty string")
    return text


def _flag(meta: dict[str, Any]) -> dict[str, Any]:
    if meta.get(QUOTES) not in (None, True, False):
        raise ValueError(f"must be an object whose '{QUOTES}' is true, false or null")
    frame = meta.get(FRAME)
    if frame is not None and not (
        isinstance(frame, str) and frame.count(AS_TEXT) + frame.count(AS_JSON) == 1
    ):
        raise ValueError(
            f"must be an object whose '{FRAME}' is a text with {AS_TEXT} or {AS_JSON} in it, once"
        )
    return meta


_Text = Annotated[str, AfterValidator(_not_blank)]


class _Record(BaseModel):
    """A line of an item file; the fields and their order are those of `Item`. Null means the same as nothing."""

    model_config = ConfigDict(strict=True, extra="forbid")

    item_id: _Text
    env: _Text
    task_id: _Text
    template: _Text | None = None
    step_index: Annotated[int, Field(ge=0, le=_MAX_STEPS)] | None = None
    operator: _Text | None = None
    error_type: _Text | None = None
    system_prompt: str
    goal: _Text
    prefix_actions: list[_Text] | None = None
    prefix_observations: list[str] | None = None
    failed_action: _Text
    gold_action: _Text | None = None
    obs_fail: _Text
    obs_fail_terse: _Text | None = None
    obs_fail_verbose: _Text | None = None
    obs_fail_echo: _Text | None = None
    obs_success: _Text | None = None
    obs_neutral: _Text
    obs_fail_other: str | None = None
    distractors: list[_Text] | None = None
    tool: str | None = None
    meta: Annotated[dict[str, Any], AfterValidator(_flag)] | None = None


RECORD = TypeAdapter(_Record)


def contradictions(record: Mapping[str, Any]) -> Iterator[str]:
    """Fields that are right by themselves and cannot all be; those of a wrong type are passed over."""
    actions, observations = (record.get(name) or [] for name in LISTS[:2])
    if isinstance(actions, list) and isinstance(observations, list) and len(actions) != len(observations):
        yield "'prefix_actions' and 'prefix_observations' must be equally long"
    step = record.get("step_index")
    if isinstance(actions, list) and isinstance(step, int) and bool(step) != bool(actions):
        yield f"'step_index' is {step} and there are {len(actions)} 'prefix_actions': steps precede it, or none do"
    distractors = record.get("distractors")
    named = {"failed_action": record.get("failed_action"), "gold_action": record.get("gold_action")}
    if isinstance(distractors, list):
        named |= {f"distractors[{index}]": text for index, text in enumerate(distractors)}
    # Compared without the blanks at their ends, which many chat templates trim.
    seen: dict[str, str] = {}
    for name, text in named.items():
        if isinstance(text, str) and text.strip() and seen.setdefault(text.strip(), name) != name:
            yield f"'{name}' is the same action as '{seen[text.strip()]}': each stands for another one"
