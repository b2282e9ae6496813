"""The first words of the program's interpreter: it reads its own code and the job from descriptor 0, and starts.

The code is compiled once by the server and travels as bytes, so that the program's interpreter needs no file of this
project, and no import beyond what a bare interpreter has.
"""

from __future__ import annotations

import marshal
from pathlib import Path
from typing import Any

from envs.sandbox.plan import Setting

# The functions get a copy of the builtins of their own: an honest program may replace the common ones.
SCRIPT = """
import builtins, marshal, os
data = b""
while part := os.read(0, 1 << 20):
    data += part
codes, program, memory, rules = marshal.loads(data)
guard, inside = (dict(__name__=name, __builtins__=vars(builtins).copy()) for name in ("guard", "inside"))
exec(marshal.loads(codes[0]), guard)
exec(marshal.loads(codes[1]), inside)
exec(marshal.loads(codes[2]), inside)
del data
inside["main"](program, memory, guard, rules)
"""
# No site, no user site: the standard library only. Text is UTF-8 whatever the locale.
FLAGS = ("-s", "-S", "-B", "-X", "utf8", "-c", SCRIPT)


def payload() -> tuple[bytes, ...]:
    """The code of `guard`, `peer` and `inside`, marshalled."""
    here = Path(__file__).parent
    texts = [here.joinpath(f"{name}.py").read_text(encoding="utf-8") for name in ("guard", "peer", "inside")]
    return tuple(marshal.dumps(compile(text, "<sandbox>", "exec", dont_inherit=True)) for text in texts)


def packed(setting: Setting, folder: str, program: str) -> bytes:
    """What the interpreter reads: code, program, its limit of memory, and the guard's rules."""
    most = setting.memory_base + (setting.limits.memory_mb << 20) if setting.memory_base else 0
    return marshal.dumps((setting.payload, program, most, guard_rules(setting, folder)))


def guard_rules(setting: Setting, folder: str) -> tuple[Any, ...]:
    """The arguments of `guard.make_guard`: it guards what the kernel does not hold."""
    isolation = setting.plan.isolation
    # Landlock alone does not cover modes, owners, times and attributes.
    files_are_held = isolation.files == "namespace" or (
        isolation.files == "landlock" and setting.plan.seccomp
    )
    return (
        setting.extensions,
        "" if files_are_held else folder,
        isolation.network == "none",
        isolation.processes == "limits",
    )
