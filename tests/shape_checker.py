"""The checker that pytest puts around every function of the rooms whose signature names a shape.

A checked call costs tens of microseconds, and only one function in ten takes or gives an array: checking them all
doubled the time of the tests. Types other than shapes are mypy's. An int may stand for a float, as PEP 484 and mypy
have it; beartype alone does not.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import partial
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))
"""The type checker named in the option `--jaxtyping-packages`."""

_stock = jaxtyping.jaxtyped


def _names_a_shape(target: Any) -> bool:
    """Whether an annotation of a function or of a class's fields has an array type of jaxtyping, or an alias of one."""
    names = vars(sys.modules[target.__module__])
    words = re.findall(r"\w+", " ".join(map(str, getattr(target, "__annotations__", {}).values())))
    return any(
        inspect.isclass(names.get(word))
        and issubclass(names[word], (jaxtyping.AbstractDtype, jaxtyping.AbstractArray))
        for word in words
    )


def _jaxtyped(target: Any = None, *, typechecker: Any = None) -> Any:
    """`jaxtyping.jaxtyped`, which leaves a function or class without shapes as it is."""
    if target is None:
        return partial(_jaxtyped, typechecker=typechecker)
    function = getattr(
        target, "__func__", getattr(target, "fget", target)
    )  # of a class or static method, a property
    return _stock(target, typechecker=typechecker) if _names_a_shape(function) else target


def check_shapes_only() -> None:
    """Let the import hook, which decorates every function, check those with shapes; before a room is imported."""
    jaxtyping.jaxtyped = _jaxtyped
