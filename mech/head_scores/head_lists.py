"""Head lists as files: what this project freezes, and the two forms in which others publish their heads.

    form     contents                                                                 as in
    heads    {"by", "k", "sha256", "heads": [{"layer", "head", "score"}, …]}          heads.json of this project
    list     [{"layer": 18, "head": 6, "score": 0.93}, …]                             The Dual-Route Model of Induction
    map      {"18-6": 0.93, …}, or {"18-6": [0.9, 0.96], …} with a score a test       Retrieval Head

Layers and heads count from zero everywhere. A list of scores under one head is read as its mean. Scores are finite
numbers; their order in the file is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import NotRequired, TypedDict

from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.input_files import SHOWN, NotJson, checked, parse_json, read_bytes

Form = Literal["heads", "list", "map"]
FORMS: tuple[Form, ...] = ("heads", "list", "map")

ScoredHeads = list[tuple[Head, float]]
"""Heads with their scores, in the order in which they were given."""

_KEY = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")


def best_first(scored: Iterable[tuple[Head, float]]) -> ScoredHeads:
    """Ordered by score, the highest first; ties go to the lower layer, then head, as in `top_heads`."""
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))


def head_list_text(scored: Sequence[tuple[Head, float]], form: Form, by: str = "score") -> str:
    """Scored heads as the text of a file of this form; `heads` lists them by layer and head, the others as given.

    Args:
        scored: heads with finite scores, none twice.
        form: one of FORMS.
        by: the name of the score, which only `heads` records.

    Raises:
        InputError: an unknown form, a head given twice, a score that is no finite number.
    """
    heads = HeadSet(head for head, _ in scored)
    for head, score in scored:
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
            raise InputError(f"the score of {head} is {score!r}, where a finite number is expected.")
    if form == "map":
        return _text({f"{head.layer}-{head.head}": float(score) for head, score in scored})
    listed = [{"layer": head.layer, "head": head.head, "score": float(score)} for head, score in scored]
    if form == "list":
        return _text(listed)
    if form == "heads":
        listed.sort(key=lambda one: (one["layer"], one["head"]))
        return _text({"by": by, "k": len(heads), "sha256": heads.sha256, "heads": listed})
    raise InputError(f"'{form}' is not a form of head list: choose one of {', '.join(FORMS)}.")


def read_head_list(path: Path, n_layers: int, n_heads: int) -> ScoredHeads:
    """Read a file of any of the three forms for a model of this size.

    Returns:
        (head, score) pairs in the file's order.

    Raises:
        InputError: the file is missing, not JSON or of none of the forms; it is empty, names a head twice or one the
            model does not have, holds a score that is no finite number, or a hash that is not that of its heads.
    """
    try:
        contents, faults = parse_json(read_bytes(path, "head list"))
    except NotJson as error:
        raise InputError(f"The head list {path} is not JSON ({error}).") from error
    scored, wrong = ([], []) if faults else _parsed(contents, n_layers, n_heads)
    faults += wrong
    if faults:
        raise InputError(f"The head list {path} cannot be used: {'; '.join(faults[:SHOWN])}.")
    return scored


_STRICT = ConfigDict(strict=True, allow_inf_nan=False)


@with_config(_STRICT)
class _Entry(TypedDict):
    """A head of a list; further fields are allowed."""

    layer: Annotated[int, Field(ge=0)]
    head: Annotated[int, Field(ge=0)]
    score: float


@with_config(_STRICT)
class _Frozen(TypedDict):
    """The form `heads`."""

    heads: list[_Entry]
    sha256: NotRequired[str]


_Scores = Annotated[
    list[float],
    Field(min_length=1),
    BeforeValidator(lambda score: score if isinstance(score, list) else [score]),
]
_FORMS: dict[Form, TypeAdapter] = {
    "heads": TypeAdapter(_Frozen),
    "list": TypeAdapter(list[_Entry]),
    "map": TypeAdapter(dict[str, _Scores], config=_STRICT),
}


def _parsed(contents: Any, n_layers: int, n_heads: int) -> tuple[ScoredHeads, list[str]]:
    """The scored heads of a file, and what is wrong with it, each fault a clause."""
    form: Form = "list"
    if isinstance(contents, dict):
        form = "heads" if "heads" in contents else "map"
    elif not isinstance(contents, list):
        return [], ['write [{"layer": 18, "head": 6, "score": 0.9}] or {"18-6": 0.9}']
    read, faults = checked(_FORMS[form], contents)
    if faults:
        return [], faults
    if form == "map":
        named = [(key, _KEY.fullmatch(key), score) for key, score in read.items()]
        faults = [
            f"'{key}' is not a head: write it like 18-6 (layer 18, head 6, both from 0)"
            for key, match, _ in named
            if match is None
        ]
        scored = [(Head(int(match[1]), int(match[2])), fmean(score)) for _, match, score in named if match]
    else:
        listed = read["heads"] if form == "heads" else read
        scored = [(Head(one["layer"], one["head"]), float(one["score"])) for one in listed]
    counts = Counter(head for head, _ in scored)
    faults += [f"it names {head} twice" for head, n in counts.items() if n > 1]
    if not scored and not faults:
        faults.append("it names no head")
    if faults:
        return [], faults
    try:
        heads = HeadSet(counts).check(n_layers, n_heads)
    except InputError as error:
        return [], [str(error).rstrip(".")]
    if form == "heads" and read.get("sha256", heads.sha256) != heads.sha256:
        faults.append("its sha256 is not that of the heads it lists, so it was changed after it was frozen")
    return scored, faults


def _text(contents: Any) -> str:
    return json.dumps(contents, indent=2, allow_nan=False) + "\n"
