"""What a failed call could have been answered with: from the log by rule, or else a text of a file; origin named.

success   the log's answer of the same tool to the nearest other call that succeeded (the earlier of two as near),
          unless it is the neutral text
neutral   a stock answer: a short text that the tool gave to two or more different calls that succeeded in this log,
          the most frequent one. It says nothing of the particular call
terse, echo   always templates: the failure in a word, and the failure with the call quoted

The texts are data, `probes/items/logs/texts/default.json`, so that they can be replaced and are not part of the code.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter

from mech.errors import InputError
from mech.input_files import NotJson, checked, parse_json, read_bytes
from probes.items.item import NonBlank

DEFAULT_TEXTS = Path(__file__).parent / "texts" / "default.json"
Origin = Literal["log", "template"]

STOCK_LENGTH = 200
"""Characters that a stock answer has at most."""

_STOCK = 1000  # different short answers of a tool that are counted in one log


@dataclass(frozen=True)
class Texts:
    """The template texts; `echo` has {observation} and {call}, `empty` is for a failure without output."""

    neutral: str
    success: str
    terse: str
    echo: str
    empty: str

    def echoed(self, observation: str, call: str) -> str:
        """The failure observation with the call quoted."""
        before, _, after = self.echo.partition("{call}")
        return (
            before.replace("{observation}", observation) + call + after.replace("{observation}", observation)
        )


def load_texts(path: str | os.PathLike[str] = DEFAULT_TEXTS) -> Texts:
    """Read a file of template texts: a JSON object with the fields of `Texts`.

    Raises:
        InputError: it cannot be read, or a text is missing, blank, or lacks its placeholder.
    """
    name = os.fspath(path)
    try:
        record, faults = parse_json(read_bytes(path, "text file"))
    except NotJson as error:
        raise InputError(f"The text file '{name}' is not valid JSON ({error}).") from error
    parsed, wrong = checked(_RECORD, record)
    if parsed is None or faults:
        raise InputError(f"The text file '{name}' cannot be used: {'; '.join([*faults, *wrong])}.")
    return Texts(**parsed.model_dump())


def _with_placeholders(text: str) -> str:
    if text.count("{call}") != 1 or text.count("{observation}") != 1:
        raise ValueError("needs {observation} and {call}, once each")
    return text


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    neutral: NonBlank
    success: NonBlank
    terse: NonBlank
    echo: Annotated[str, AfterValidator(_with_placeholders)]
    empty: NonBlank


_RECORD = TypeAdapter(_Record)


@dataclass
class Answers:
    """What the tools of one log answered to calls that succeeded, by the calls' places in the log (from 1)."""

    _of_tool: dict[str, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    _stock: dict[str, dict[str, list[str]]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, tool: str, number: int, text: str, arguments: str) -> None:
        """Remember an answer to the call of that number with these (canonical) arguments."""
        if not text.strip():
            return
        self._of_tool[tool].append((number, text))
        counted = self._stock[tool]
        if len(text) <= STOCK_LENGTH and (text in counted or len(counted) < _STOCK):
            counted.setdefault(text, []).append(arguments)

    def success(self, tool: str, number: int, *others_than: str | None) -> str | None:
        """The nearest answer that is none of these texts (the failure, the neutral one); None where there is none."""
        answers = self._of_tool.get(tool, ())
        others = [(abs(at - number), at, text) for at, text in answers if text not in others_than]
        return min(others)[2] if others else None

    def neutral(self, tool: str, failure: str) -> str | None:
        """The most frequent stock answer (of equals the first); None where the log has none."""
        stock: Mapping[str, list[str]] = self._stock.get(tool, {})
        fit = [text for text, calls in stock.items() if text != failure and len(set(calls)) > 1]
        return max(fit, key=lambda text: len(stock[text])) if fit else None
