"""The sentences a condition is written with, as data: a JSON file, by default `probes/wordings/default.json`.

Wording is part of what is measured (an abstract that also forbids repetition measures two things at once), so
it is a file with a hash, recorded with every run, and never text inside the code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mech.errors import InputError
from mech.templates import ROLES

DEFAULT_WORDING = Path(__file__).parent / "wordings" / "default.json"
OBSERVATION_ROLES = tuple(role for role in ROLES if role != "assistant")
"""Roles that an observation may have; whether a model's template knows one is found when the model is opened."""
_PLACEHOLDERS = ("index", "tool", "gloss")
_TEXTS = (
    "observation_role",
    "observation_prefix",
    "abstract_template",
    "abstract_tool_when_unknown",
    "abstract_gloss_when_unknown",
    "abstract_min",
    "negative_instruction",
    "negative_instruction_join",
)


@dataclass(frozen=True)
class Wording:
    """How records, abstracts and instructions are phrased.

    `abstract_template` may use {index} (attempt, from 1), {tool} and {gloss} (of the item's error type);
    `negative_instruction_join` stands between the system prompt and the instruction;
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

    Raises InputError, naming the file and the key, for a file that cannot be read or parsed, a required key
    that is missing or no string, a role that chat templates do not know, and a placeholder that does not
    exist.
    """
    name = os.fspath(path)
    record = _read_object(name)
    texts: dict[str, str] = {}
    for key in _TEXTS:
        value = record.get(key)
        if not isinstance(value, str):
            raise InputError(f"The wording file '{name}' needs a text under '{key}'.")
        texts[key] = value
    if texts["observation_role"] not in OBSERVATION_ROLES:
        raise InputError(
            f"The 'observation_role' in the wording file '{name}' must be one of {', '.join(OBSERVATION_ROLES)}."
        )
    _check_template(texts["abstract_template"], "abstract_template", _PLACEHOLDERS, name)
    optional = {"abstract_forbids_template": _PLACEHOLDERS, "pad_template": ("neutral", "filler")}
    for key, placeholders in optional.items():
        value = record.get(key)
        if value is not None and not isinstance(value, str):
            raise InputError(f"'{key}' in the wording file '{name}' must be a text.")
        if value is not None:
            _check_template(value, key, placeholders, name)
            texts[key] = value
    if "{filler}" not in texts.get("pad_template", "{filler}"):
        raise InputError(f"The 'pad_template' in the wording file '{name}' needs its {{filler}}.")
    texts["negative_instruction_join"] = _join(texts["negative_instruction_join"], name)
    gloss = record.get("error_gloss")
    if not isinstance(gloss, dict) or not all(isinstance(value, str) for value in gloss.values()):
        raise InputError(f"The wording file '{name}' needs an object of texts under 'error_gloss'.")
    hides = record.get("abstract_hides_tool_for", [])
    if not isinstance(hides, list) or not all(isinstance(value, str) for value in hides):
        raise InputError(f"'abstract_hides_tool_for' in the wording file '{name}' must be a list of texts.")
    return Wording(**texts, error_gloss=gloss, abstract_hides_tool_for=tuple(hides))


def _read_object(name: str) -> dict[str, object]:
    try:
        record = json.loads(Path(name).read_bytes().decode())
    except OSError as error:
        raise InputError(f"Cannot read the wording file '{name}': {error.strerror or error}.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"The wording file '{name}' is not valid JSON: {error}.") from error
    if not isinstance(record, dict):
        raise InputError(f"The wording file '{name}' must hold one JSON object.")
    return record


def _check_template(template: str, key: str, placeholders: Sequence[str], name: str) -> None:
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"The '{key}' in the wording file '{name}' is malformed: {error}.") from error
    for _, placeholder, spec, conversion in parts:
        if placeholder is not None and (placeholder not in placeholders or spec or conversion):
            *others, last = (f"{{{each}}}" for each in placeholders)
            raise InputError(
                f"The wording file '{name}' uses '{{{placeholder}}}' in '{key}': "
                f"only {', '.join(others)} and {last} exist."
            )


def _join(value: str, name: str) -> str:
    """The white space itself; a remark in brackets may follow it, since white space is hard to see."""
    match = re.fullmatch(r"(\s+?)(?: ?\(.*\))?", value)
    if match is None:
        raise InputError(f"The wording file '{name}' needs white space under 'negative_instruction_join'.")
    return match[1]
