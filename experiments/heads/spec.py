"""Which heads a word on the command line names; every choice is frozen before task data are seen.

top:16             the best sixteen by a score on repeated random tokens (--by)
L18H6,L17H3        these
FILE               all of a head list: heads.json, [{"layer", "head", "score"}] or {"L-H": score}
top:8@FILE         the best eight of a head list
not:SPEC           every head but those of SPEC
random:SPEC        as many others in each layer, drawn under --seed; random3:SPEC is another draw
random:16          short for random:top:16
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from experiments.heads.ranking import ALL_SCORES, ranking
from experiments.run.session import require_out
from experiments.run.study import Flag, OutOptions, SeedOptions
from mech.errors import InputError
from mech.head_scores.controls import control_stream, layer_matched
from mech.head_scores.head_lists import read_head_list
from mech.head_scores.induction import top_heads
from mech.heads import HeadSet
from mech.models.model import Model
from mech.patching.patch import all_heads


@dataclass(frozen=True, kw_only=True)
class ByOptions:
    """What heads are ranked by."""

    by: Annotated[str, Flag("the score that top: ranks by", choices=ALL_SCORES)] = "prefix_matching"


@dataclass(frozen=True, kw_only=True)
class RankedOptions(ByOptions, OutOptions, SeedOptions):
    """What top:K is ranked by; the run folder's heads.csv is read where there is one."""


_TOP = re.compile(r"top:(\d+)(?:@(.+))?")
_RANDOM = re.compile(r"random(\d*):(.+)")


def choose_heads(
    spec: str,
    model: Model,
    args: RankedOptions,
    rng_for: Callable[[str], np.random.Generator],
) -> HeadSet:
    """The heads that `spec` names in this model.

    Args:
        spec: see the module.
        model: whose heads.
        args: `out` (a folder whose heads.csv is used, if there is one), `seed` and `by`, for top:K.
        rng_for: name of a draw → its stream.

    Raises:
        InputError: the word names no heads, or heads the model does not have.
    """
    drawn = _RANDOM.fullmatch(spec)
    if drawn:
        others = f"top:{drawn[2]}" if drawn[2].isdecimal() else drawn[2]
        heads = choose_heads(others, model, args, rng_for)
        rng = rng_for(control_stream(heads, int(drawn[1] or 0)))
        return layer_matched(heads, model.n_layers, model.n_heads, rng).heads
    if spec.startswith("not:"):
        named = choose_heads(spec.removeprefix("not:"), model, args, rng_for)
        rest = [head for head in all_heads(model) if head not in named]
        if not rest:
            raise InputError(f"'{spec}' leaves no head.")
        return HeadSet(rest)
    return _plain(spec, model, args).check(model.n_layers, model.n_heads)


def _plain(spec: str, model: Model, args: RankedOptions) -> HeadSet:
    top = _TOP.fullmatch(spec)
    if top and not top[2]:
        scores, _ = ranking(model, require_out(args), args.seed, args.by)
        return top_heads(scores, int(top[1]), args.by)
    path = Path(top[2] if top else spec)
    if top or path.suffix == ".json" or path.is_file():
        if not path.is_file():
            raise InputError(f"The head list {path} does not exist.")
        listed = read_head_list(path, model.n_layers, model.n_heads)
        count = int(top[1]) if top else len(listed)
        if not 1 <= count <= len(listed):
            raise InputError(f"{path} lists {len(listed)} heads: the top {count} cannot be taken.")
        return HeadSet(head for head, _ in listed[:count])
    if spec.startswith("top:"):
        raise InputError(f"'{spec}' is not a head set: write top:16, or heads by name such as L18H6,L17H3.")
    return HeadSet.parse(spec)
