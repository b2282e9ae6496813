"""What one program may use up: time, memory, processes, files, output."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from envs.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Limits of one run. Every limit must be positive (`processes` may be 0), or InputError is raised.

    wall_s: seconds from the moment the interpreter is ready for the program. cpu_s: processor seconds of the program's
    process. memory_mb: MiB of address space above that of a fresh interpreter, for every process it starts.
    processes: processes and threads beside the program's own. file_mb: MiB of the largest file it may write.
    output_kb: KiB it may write to standard output, and as much to standard error.
    """

    wall_s: float = 10.0
    cpu_s: int = 10
    memory_mb: int = 256
    processes: int = 8
    file_mb: int = 8
    output_kb: int = 64

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "wall_s" and not isinstance(value, int):
                raise InputError(f"the limit {each.name} must be a whole number, not {value!r}")
            if not math.isfinite(value) or value < 0 or (value == 0 and each.name != "processes"):
                raise InputError(f"the limit {each.name} must be a positive number, not {value}")


DEFAULT_LIMITS = Limits()
