"""Head lists as files: what this project freezes, and the two forms in which others publish their heads.

    form     contents                                                                 as in
    heads    {"by", "k", "sha256", "heads": [{"layer", "head", "score"}, …]}          heads.json of this project
    list     [{"layer": 18, "head": 6, "score": 0.93}, …]                             The Dual-Route Model of Induction
    map      {"18-6": 0.93, …}, or {"18-6": [0.9, 0.96], …} with a score a test       Retrieval Head

Layers and heads count from zero everywhere. A list of scores under one head stands for its mean. Scores are finite
numbers; their order in the file is kept.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from mech.errors import InputError
from mech.heads import Head, HeadSet

Form = Literal["heads", "list", "map"]
FORMS: tuple[Form, ...] = ("heads", "list", "map")

ScoredHeads = list[tuple[Head, float]]
"""Heads with their scores, in the order in which they were given."""

_KEY = re.compile(r"(\d+)-(\d+)")


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
        _score(score, str(head))
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
    """Read a file of any of the three forms for a model of this size; the form is told by the contents.

    Returns:
        (head, score) pairs in the file's order.

    Raises:
        InputError: the file is missing, not JSON or of none of the forms; it is empty, names a head twice or one the
            model does not have, holds a score that is no finite number, or a hash that is not that of its heads.
    """
    try:
        contents = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_Pairs)
    except OSError as error:
        raise InputError(f"The head list {path} cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"The head list {path} is not JSON ({error}).") from error
    try:
        return _parsed(contents, n_layers, n_heads)
    except InputError as error:
        raise InputError(f"The head list {path} cannot be used: {error}") from error


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as written: a dictionary would keep the last of two equal names and say nothing."""


def _parsed(contents: Any, n_layers: int, n_heads: int) -> ScoredHeads:
    frozen = dict(contents) if isinstance(contents, _Pairs) else {}
    if "heads" in frozen:
        scored = _from_list(frozen["heads"])
    elif isinstance(contents, _Pairs):
        scored = [(_from_key(key), _mean(score, key)) for key, score in contents]
    else:
        scored = _from_list(contents)
    if not scored:
        raise InputError("it names no head.")
    heads = HeadSet(_no_head_twice(scored)).check(n_layers, n_heads)
    if frozen.get("sha256", heads.sha256) != heads.sha256:
        raise InputError(
            "its sha256 is not that of the heads it lists, so it was changed after it was frozen."
        )
    return scored


def _from_list(contents: Any) -> ScoredHeads:
    if not isinstance(contents, list) or isinstance(contents, _Pairs):
        raise InputError('write [{"layer": 18, "head": 6, "score": 0.9}] or {"18-6": 0.9}.')
    scored = []
    for place, one in enumerate(contents):
        entry = dict(one) if isinstance(one, _Pairs) else {}
        missing = [name for name in ("layer", "head", "score") if name not in entry]
        if missing:
            raise InputError(f"its entry {place} has no {missing[0]}.")
        numbers = [entry["layer"], entry["head"]]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise InputError(f"the layer and head of its entry {place} must be whole numbers from 0.")
        head = Head(*numbers)
        scored.append((head, _score(entry["score"], str(head))))
    return scored


def _from_key(key: str) -> Head:
    match = _KEY.fullmatch(key)
    if match is None:
        raise InputError(f"'{key}' is not a head: write it like 18-6 (layer 18, head 6, both from 0).")
    return Head(int(match[1]), int(match[2]))


def _mean(score: Any, name: str) -> float:
    if isinstance(score, list) and not isinstance(score, _Pairs):
        if not score:
            raise InputError(f"the list of scores of {name} is empty.")
        each = [_score(one, name) for one in score]
        return _score(math.fsum(each) / len(each), name)
    return _score(score, name)


def _score(score: Any, name: str) -> float:
    if isinstance(score, bool) or not isinstance(score, (int, float)) or not math.isfinite(score):
        raise InputError(f"the score of {name} is {score!r}, where a finite number is expected.")
    return float(score)


def _no_head_twice(scored: ScoredHeads) -> list[Head]:
    seen: set[Head] = set()
    for head, _ in scored:
        if head in seen:
            raise InputError(f"it names {head} twice.")
        seen.add(head)
    return list(seen)


def _text(contents: Any) -> str:
    return json.dumps(contents, indent=2, allow_nan=False) + "\n"
