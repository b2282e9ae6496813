"""Public names of a package, each loaded at its first use: importing the package alone loads no library.

The names are listed in the package's `__init__.pyi`, as `from package.module import Name as Name`. Type checkers and
editors read that stub; at run time the same lines give the module of a name (SPEC 1 of Scientific Python).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` (PEP 562) and `__all__` of a package.

    Args:
        package: its `__name__`.
        file: its `__file__`; the stub lies beside it.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [line for line in stub.body if isinstance(line, ast.ImportFrom)]
    homes = {alias.name: str(line.module) for line in imports for alias in line.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        found = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, found)
        return found

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names, sorted(homes)
