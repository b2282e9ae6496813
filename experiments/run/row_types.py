"""What the columns of a run folder's rows hold, so that a damaged or foreign row is refused with its line.

Row files that are not listed here hold objects with an `id` and whatever else their study writes. Columns beyond the
listed ones are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, cast

from pydantic import ConfigDict, Field, TypeAdapter, with_config
from typing_extensions import NotRequired, TypedDict

from mech.input_files import checked

_LARGEST = 2**53  # a table holds whole numbers up to here exactly
_Int = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
_Count = Annotated[int, Field(ge=0, le=_LARGEST)]
_Tokens = Annotated[int, Field(ge=1, le=_LARGEST)]
_LogProb = Annotated[float, Field(le=0)]
_Share = Annotated[float, Field(ge=0, le=1)]
_Name = Annotated[str, Field(min_length=1)]
_Heads = dict[Annotated[str, Field(pattern=r"^L\d{1,6}H\d{1,6}$")], float]
_Parts = dict[Annotated[str, Field(pattern=r"^L\d{1,6}((H|KV)\d{1,6})?$")], float]
_Units = dict[Annotated[str, Field(pattern=r"^(L\d{1,6}H\d{1,6}|MLP\d{1,6})$")], float]
_TotalAndDirect = Annotated[list[float], Field(min_length=2, max_length=2)]
_Layers = dict[Annotated[str, Field(pattern=r"^\d{1,6}$")], float]
_ITEM: dict[str, Any] = {"item_id": _Name, "task_id": _Name}
_PAIR: dict[str, Any] = {"from": _Name, "to": _Name}
_STUDIED: dict[str, Any] = {**_ITEM, "direction": _Name}
# By sum (probes.scoring.metric_sums): "failed", "diverging", and each reference candidate by its name.
_CONTRAST: dict[str, Any] = {"references": _Name, "n_tokens": dict[str, _Tokens]}
_DIFFERENCE: dict[str, Any] = {**_CONTRAST, "delta": dict[str, float]}

_COLUMNS: dict[str, dict[str, Any]] = {
    "scores": {
        **{name: _Name for name in ("model", "env", "item_id", "task_id", "condition", "candidate")},
        "logprob": _LogProb,
        "n_tokens": _Tokens,
        "is_greedy": bool | _Share,
        "end_logprob": NotRequired[_LogProb | None],
        "end_is_argmax": NotRequired[bool | _Share | None],
        "ablation": NotRequired[_Name],
        "n_draws": NotRequired[Annotated[int, Field(ge=2, le=_LARGEST)]],
        "logprob_sd": NotRequired[Annotated[float, Field(ge=0)]],
        "draws": NotRequired[dict[str, list[bool | float]]],
        "length_mismatch": NotRequired[_Int | None],
        "shared_tokens": NotRequired[float | None],
        "token_ids": NotRequired[list[_Count]],
        "token_logprobs": NotRequired[list[_LogProb]],
        "notes": NotRequired[list[str]],
        "step_index": NotRequired[_Count | None],
        "quotes_source": NotRequired[bool | None],
        **{
            name: NotRequired[str]
            for name in ("operator", "error_type", "template", "prompt_sha256", "intervention")
        },
    },
    "patch": {
        **{**_STUDIED, **_PAIR, "site": _Name, "at": _Name, "screen": _Name},
        **{**_DIFFERENCE, "heads": dict[str, _Parts], "sets": dict[str, dict[str, float]]},
        "members": dict[str, str],
    },
    "patch_estimates": {**_STUDIED, **_PAIR, "n_tokens": dict[str, _Tokens], "heads": dict[str, _Heads]},
    "attribute": {
        **{**_STUDIED, **_DIFFERENCE, "exact": dict[str, _Units], "estimates": dict[str, _Units]},
    },
    "layers": {**_STUDIED, **_PAIR, **_DIFFERENCE, "sites": dict[str, dict[str, _Layers]]},
    "direct": {
        **{**_STUDIED, **_PAIR, **_DIFFERENCE},
        "heads": dict[str, dict[str, _TotalAndDirect]],
        "mlps": dict[str, dict[str, _TotalAndDirect]],
    },
    "path": {
        **{**_ITEM, **_PAIR, **_CONTRAST, "how": _Name, "set": _Name, "kind": _Name},
        **{"k": _Count, "before": dict[str, _LogProb], "after": dict[str, _LogProb]},
    },
    "knockout": {
        **{**_ITEM, **_PAIR, "sources": _Name, "set": _Name, "kind": _Name},
        **{"k": _Count, "before": _LogProb, "logprob": _LogProb},
        **{"n_tokens": dict[str, _Tokens], "terms": dict[str, _LogProb], "before_terms": dict[str, _LogProb]},
    },
    "ablate": {
        **{**_ITEM, **_PAIR, "how": _Name, "set": _Name, "kind": _Name, "k": _Count, "references": _Name},
        "scores": dict[str, dict[str, list[float]]],
        "losses": NotRequired[dict[str, list[float]]],
    },
    "joint": {
        **{**_ITEM, **_PAIR, "env": _Name, "method": _Name, "settings_sha256": _Name},
        **{"n_tokens": dict[str, _Tokens], "whole": dict[str, _LogProb]},
        **{"under": dict[str, dict[str, _LogProb]], "draws": dict[str, dict[str, list[_LogProb]]]},
    },
    "joint_fits": {
        **{"heads": _Name, "settings_sha256": _Name, "before": float, "after": float, "steps": _Count},
        "constants": dict[Annotated[str, Field(pattern=r"^L\d{1,6}H\d{1,6}$")], list[float]],
    },
    "placebo": {**_ITEM, "part": _Name, "values": dict[str, float]},
    "agree": {**_ITEM, "condition": _Name, "heads": dict[str, list[float]]},
    "heads_causal_copying": {"sequence": _Count, "score": _Name, "heads": _Heads},
    "circuit_items": {
        **{"item_id": _Name, "heads": NotRequired[_Heads]},
        **{name: NotRequired[float] for name in ("logprob_from", "logprob_to", "delta")},
        **{"n_tokens": NotRequired[dict[str, _Tokens]], "n_diverging": NotRequired[_Tokens]},
        "scores": NotRequired[dict[str, dict[str, Any]]],
    },
    "circuit_sets": {"set": _Name, "control": _Name, "sets": list[dict[str, Any]], "why": str},
    "circuit_effects": {
        **{name: _Name for name in ("item", "kind", "candidate")},
        **{"effects": dict[str, float], "diverging": NotRequired[dict[str, float]]},
    },
    "rollout": {
        **{name: _Name for name in ("model", "env", "arm", "harness", "change", "task_id", "template")},
        **{"n_gold": _Count, "sample": _Count, "index": _Count, "given": bool, "raw": str, "kind": _Name},
        **{name: str | None for name in ("action", "canonical", "error_type", "observation", "stop", "end")},
        **{
            "solved": bool,
            "last": bool,
            "n_bans": _Int,
            "n_prompt_tokens": _Int | None,
            "n_new_tokens": _Int | None,
        },
    },
    "predict": {
        **{name: _Name for name in ("model", "env", "arm", "task_id", "template")},
        **{
            name: float for name in ("logp_pre", "logp_fail", "G", "backfire_nats", "copy", "sem", "p_repeat")
        },
        **{"n_tokens": _Tokens, "repeats": bool, "repeats_exact": bool},
        **{name: NotRequired[_Name] for name in ("change", "ablation", "step")},
    },
}
_CONFIG = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def _adapter(name: str, columns: dict[str, Any]) -> TypeAdapter:
    make: Any = cast(Any, TypedDict)  # the columns are data
    kind = make(name, {"id": _Name, **columns})
    return TypeAdapter(with_config(_CONFIG)(kind))


_ROWS = {name: _adapter(name, columns) for name, columns in _COLUMNS.items()}
_ANY = _adapter("row", {})


def row_faults(name: str, row: Any) -> list[str]:
    """What is wrong with a row of NAME.jsonl, each fault a clause."""
    return checked(_ROWS.get(name, _ANY), row)[1]
