"""Cases the tests of imported logs share."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from probes.items.item import Item
from probes.items.logs.counterfactuals import load_texts
from probes.items.logs.decision_points import Settings
from probes.items.logs.failure import parse_rules
from probes.items.logs.importing import read_log
from probes.items.logs.transcript import Note

LOGS = Path(__file__).resolve().parent / "data" / "logs"


def settings(*rules: str, **further: Any) -> Settings:
    """The settings with these rules for calls of unknown outcome."""
    return Settings(rules=parse_rules(rules), texts=load_texts(), **further)


def imported(
    log: Path | io.BytesIO, chosen: Settings, name: str | None = None, log_format: str | None = None
) -> tuple[list[Item], list[Note]]:
    """The items and the notes of a file, or of bytes on standard input."""
    if isinstance(log, Path):
        found = list(read_log(str(log), name or log.name, chosen, io.BytesIO(), log_format))
    else:
        found = list(read_log("-", name or "log", chosen, log, log_format))
    return [one for one in found if isinstance(one, Item)], [one for one in found if isinstance(one, Note)]


def of_lines(*values: Any) -> io.BytesIO:
    """JSON lines."""
    return io.BytesIO("".join(f"{json.dumps(value)}\n" for value in values).encode())


def calls(notes: list[Note]) -> list[Note]:
    """The notes of calls."""
    return [note for note in notes if note.what == "call"]
