"""The sentences a condition is written with, as data: a JSON file, by default `probes/prompts/wordings/default.json`.

Wording is part of what is measured (an abstract that also forbids repetition measures two things at once), so
it is a file with a hash, recorded with every run, and never text inside the code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import string
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter

from mech.errors import InputError
from mech.input_files import NotJson, checked, parse_json, read_bytes
from mech.models.templates import ROLES

DEFAULT_WORDING = Path(__file__).parent / "wordings" / "default.json"
OBSERVATION_ROLES = tuple(role for role in ROLES if role != "assistant")
"""Roles that an observation may have; whether a model's template knows one is found when the model is opened."""
_PLACEHOLDERS = ("index", "tool", "gloss")


@dataclass(frozen=True)
class Wording:
    """How records, abstracts and instructions are phrased.

    `abstract_template` may use {index} (attempt, from 1), {tool} and {gloss} (of the item's error type);
    `negative_instruction_join` is put between the system prompt and the instruction;
    `abstract_hides_tool_for` lists the error types whose abstract must not spell the tool as it was called;
    `abstract_forbids_template` is the abstract that also forbids the call and names the tool as it was called, as
    the original's does (absent: `abstract_template`); `pad_template` is an acknowledgement and its {filler}.
    """

    observation_role: str
    observation_prefix: str
    abstract_template: str
    abstract_tool_when_unknown: str
    abstract_gloss_when_unknown: str
    abstract_min: str
    negative_instruction: str
    negative_instruction_join: str
    error_gloss: Mapping[str, str] = field(hash=False)
    abstract_hides_tool_for: tuple[str, ...] = ()
    abstract_forbids_template: str = ""
    pad_template: str = "{neutral} {filler}"

    def abstract(self, error_type: str, tool: str | None, index: int = 1) -> str:
        """The runtime's description of failed attempt `index`: which tool, what was wrong, no call."""
        hidden = tool is None or error_type in self.abstract_hides_tool_for
        return self._abstract(self.abstract_template, error_type, None if hidden else tool, index)

    def abstract_forbids(self, error_type: str, tool: str | None, index: int = 1) -> str:
        """As `abstract`, with a ban on repeating the call and the tool as it was called, misspelt or not."""
        template = self.abstract_forbids_template or self.abstract_template
        return self._abstract(template, error_type, tool, index)

    def _abstract(self, template: str, error_type: str, tool: str | None, index: int) -> str:
        return template.format(
            index=index,
            tool=self.abstract_tool_when_unknown if tool is None else tool,
            gloss=self.error_gloss.get(error_type, self.abstract_gloss_when_unknown),
        )

    @property
    def sha256(self) -> str:
        """Hash of all fields: the identity a run records for its wording, whatever the file was called."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


def load_wording(path: str | os.PathLike[str] = DEFAULT_WORDING) -> Wording:
    """Read a wording file; keys that are not needed here are ignored.

    Raises InputError, naming the file and everything that is wrong with it: a file that cannot be read or parsed, a
    required key that is missing or no string, a role that chat templates do not know, and a placeholder that does not
    exist.
    """
    name = os.fspath(path)
    try:
        record, faults = parse_json(read_bytes(path, "wording file"))
    except NotJson as error:
        raise InputError(f"The wording file '{name}' is not valid JSON ({error}).") from error
    if not isinstance(record, dict):
        raise InputError(f"The wording file '{name}' must hold one JSON object.")
    parsed, wrong = checked(_RECORD, record)
    faults += wrong
    if parsed is None or faults:
        raise InputError(f"The wording file '{name}' cannot be used: {'; '.join(faults)}.")
    values = {key: value for key, value in parsed.model_dump().items() if value is not None}
    hides = tuple(values.pop("abstract_hides_tool_for", ()))
    return Wording(**values, abstract_hides_tool_for=hides)


def _role(value: str) -> str:
    if value not in OBSERVATION_ROLES:
        raise ValueError(f"must be one of {', '.join(OBSERVATION_ROLES)}")
    return value


def _template(*placeholders: str) -> AfterValidator:
    def check(template: str) -> str:
        try:
            parts = list(string.Formatter().parse(template))
        except ValueError as error:
            raise ValueError(f"is malformed: {error}") from error
        for _, placeholder, spec, conversion in parts:
            if placeholder is not None and (placeholder not in placeholders or spec or conversion):
                *others, last = (f"{{{each}}}" for each in placeholders)
                raise ValueError(f"uses '{{{placeholder}}}': only {', '.join(others)} and {last} exist")
        return template

    return AfterValidator(check)


def _with_filler(template: str) -> str:
    if "{filler}" not in template:
        raise ValueError("needs its {filler}")
    return template


def _join(value: str) -> str:
    """The white space itself; a remark in brackets may follow it, since white space is hard to see."""
    match = re.fullmatch(r"(\s+?)(?: ?\(.*\))?", value)
    if match is None:
        raise ValueError("must be white space")
    return match[1]


class _Record(BaseModel):
    """A wording file; the fields are those of `Wording`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    observation_role: Annotated[str, AfterValidator(_role)]
    observation_prefix: str
    abstract_template: Annotated[str, _template(*_PLACEHOLDERS)]
    abstract_tool_when_unknown: str
    abstract_gloss_when_unknown: str
    abstract_min: str
    negative_instruction: str
    negative_instruction_join: Annotated[str, AfterValidator(_join)]
    error_gloss: dict[str, str]
    abstract_hides_tool_for: list[str] = []
    abstract_forbids_template: Annotated[str, _template(*_PLACEHOLDERS)] | None = None
    pad_template: Annotated[str, _template("neutral", "filler"), AfterValidator(_with_filler)] | None = None


_RECORD = TypeAdapter(_Record)
