"""Whether a call failed: yes, no or unknown, by a field of its result and never by a word in its text.

The log's own fields come first. What they leave unknown, the user decides by rules (`--failed-when`): `FIELD=VALUE`,
`FIELD!=VALUE` or `FIELD~REGEX`. FIELD is a field of the result as the log has it (`extra.code` is one inside
another), `content` (its text) or `tool` (the called tool).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mech.errors import InputError
from probes.items.logs.transcript import Result, Verdict

_FAILED = frozenset({"error", "failed", "failure", "errored"})
_SUCCEEDED = frozenset({"ok", "success", "succeeded", "completed"})
_FLAGS = ("failed", "is_error", "isError")
_CODES = ("exit_code", "exitCode", "returncode", "return_code")


def verdict(fields: Mapping[str, Any]) -> tuple[Verdict, str]:
    """What the fields of a result say, and which field said it.

    In this order, the first that says something: a flag (`is_error`, `failed`), `status`, `error` (a text or an object
    that is not empty means failure; nothing means nothing), an exit code (0 or not).
    """
    for name in _FLAGS:
        if isinstance(fields.get(name), bool):
            return ("yes" if fields[name] else "no"), f"{name}={_shown(fields[name])}"
    status = fields.get("status")
    if isinstance(status, str) and status.lower() in _FAILED | _SUCCEEDED:
        return ("yes" if status.lower() in _FAILED else "no"), f"status={status}"
    error = fields.get("error")
    if isinstance(error, (str, Mapping)) and error:
        return "yes", "error"
    if error is True:
        return "yes", "error=true"
    for name in _CODES:
        code = fields.get(name)
        if isinstance(code, int) and not isinstance(code, bool):
            return ("yes" if code else "no"), f"{name}={code}"
    return "unknown", ""


def error_type(fields: Mapping[str, Any]) -> str | None:
    """The kind of error that the fields name: `error_type`, `error.type`, or `type` inside `error`."""
    found = fields.get("error_type") or fields.get("error.type")
    if not found and isinstance(fields.get("error"), Mapping):
        found = fields["error"].get("type")
    return found if isinstance(found, str) and found.strip() else None


@dataclass(frozen=True)
class Rule:
    """One rule of the user: which results of unknown outcome are failures."""

    field: str
    operator: str
    value: str

    def says(self, result: Result, tool: str) -> Verdict:
        """Whether the result fails by this rule; unknown where it lacks the field."""
        found = _looked_up(self.field, result, tool)
        if found is None:
            return "unknown"
        if self.operator == "~":
            met = re.search(self.value, found) is not None
        else:
            met = (found == self.value) == (self.operator == "=")
        return "yes" if met else "no"

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{self.value}"


def parse_rule(text: str) -> Rule:
    """Read a rule.

    Raises:
        ValueError: it has no `=`, `!=` or `~` after a field, or its regular expression is none.
    """
    match = re.match(r"([\w.-]+?)\s*(!=|=|~)\s*(.*)", text, re.DOTALL)
    if match is None:
        raise ValueError(f"'{text}' is no rule: write FIELD=VALUE, FIELD!=VALUE or FIELD~REGEX")
    rule = Rule(*match.groups())
    if rule.operator == "~":
        try:
            re.compile(rule.value)
        except re.error as error:
            raise ValueError(f"'{rule.value}' is no regular expression ({error})") from error
    return rule


def parse_rules(texts: Sequence[str]) -> tuple[Rule, ...]:
    """Read rules; raises InputError for one that is none."""
    try:
        return tuple(parse_rule(text) for text in texts)
    except ValueError as error:
        raise InputError(f"{error}.") from error


def decided(result: Result, tool: str, rules: Sequence[Rule]) -> tuple[Verdict, str]:
    """The log's verdict; where it is unknown that of the rules (any yes, else any no), and which one said it."""
    if result.failed != "unknown":
        return result.failed, result.said_by
    said = [(rule.says(result, tool), rule) for rule in rules]
    for wanted in ("yes", "no"):
        for found, rule in said:
            if found == wanted:
                return found, f"rule {rule}"
    return "unknown", ""


def _looked_up(name: str, result: Result, tool: str) -> str | None:
    if name == "content":
        return result.content
    if name == "tool":
        return tool
    if name in result.fields:
        return _shown(result.fields[name])
    found: Any = result.fields
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return None
        found = found[part]
    return _shown(found)


def _shown(value: Any) -> str:
    """A value as a rule writes it: a text as it is, anything else as JSON (true, 1, null)."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
