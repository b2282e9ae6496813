"""Message contents as chat formats write them: a text, or a list of parts of which some are text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from probes.items.logs.transcript import Note, skipped

_TEXTS = ("text", "output_text", "input_text")
_BESIDE = (
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "thinking",
    "thinking_blocks",
    "refusal",
    "audio",
)


def text_of(content: Any) -> str:
    """The text of a message's content: texts of parts joined by line breaks, nothing for nothing, JSON for the rest."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(text for part in content for text in [_text(part)] if text is not None)
    return json.dumps(content, ensure_ascii=False)


def other_parts(content: Any, place: str, used: tuple[str, ...] = ()) -> Iterator[Note]:
    """Notes of the parts that are no text (images, reasoning), nor of a type that the reader uses."""
    for part in content if isinstance(content, list) else ():
        if _text(part) is None:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            if kind not in used:
                yield skipped(place, "part", f"no text: {kind}")


def other_fields(message: Mapping[str, Any], place: str) -> Iterator[Note]:
    """Notes of the fields beside a message's content in which an agent's reasoning, refusal or speech stands."""
    for name in _BESIDE:
        if message.get(name):
            yield skipped(place, "part", f"no text: {name}")


def _text(part: Any) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str) and part.get("type", "text") in _TEXTS:
        return part["text"]
    return None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def named(value: Any) -> str | None:
    """The value if it is a text or a number (as a text), else None: what an id or a name may be."""
    if isinstance(value, str) and value:
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None
