"""The log formats by name, in the order in which they are recognised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from probes.items.logs.readers import (
    anthropic,
    atif,
    claude_code,
    inspect,
    langchain,
    mini_swe_agent,
    openai,
    openhands,
    openinference,
    otel,
    plain,
    react,
    swe_agent,
)
from probes.items.logs.transcript import Events, Record


@dataclass(frozen=True)
class Format:
    """One log format: whether a record is of it, and its reader."""

    recognises: Callable[[Any], bool]
    read: Callable[[Iterable[Record]], Events]


FORMATS: Mapping[str, Format] = {
    name: Format(module.recognises, module.read)
    for name, module in {
        "atif": atif,
        "inspect": inspect,
        "claude-code": claude_code,
        "otel": otel,
        "openinference": openinference,
        "mini-swe-agent": mini_swe_agent,
        "swe-agent": swe_agent,
        "openhands": openhands,
        "openai": openai,
        "anthropic": anthropic,
        "langchain": langchain,
        "react": react,
        "plain": plain,
    }.items()
}
"""Of two formats that fit a record the earlier one is taken: the more particular come first."""

TEXT_FORMATS = frozenset({"react"})
"""Those that are lines of text and no JSON."""


def recognise(values: Iterable[Any]) -> str | None:
    """The format of a log by its first records: the first one that any format but `plain` knows, else `plain`."""
    fallback = None
    for value in values:
        for name, one in FORMATS.items():
            if one.recognises(value):
                if name != "plain":
                    return name
                fallback = "plain"
    return fallback
