"""All figures of a run folder: each one whose table is there, and a sentence for each whose table is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures.ablate import draw_ablate
from figures.ablate_off_target import draw_ablate_off_target
from figures.agree import draw_agree
from figures.attribute import draw_attribute
from figures.breakdown import draw_breakdown
from figures.circuit import draw_circuit
from figures.compare_items import draw_compare_items
from figures.direct import draw_direct
from figures.heads import draw_heads
from figures.joint import draw_joint
from figures.layers import draw_layers
from figures.load import FigureError, Heads, MissingTable, read_heads, selected_heads
from figures.manipulations import draw_manipulations
from figures.patch import draw_patch
from figures.patch_by_score import draw_patch_by_score
from figures.patch_sites import draw_patch_kv_heads, draw_patch_sites
from figures.path import draw_path
from figures.predict import draw_predict
from figures.profiles import draw_profiles
from figures.rollout import draw_rollout
from figures.rollout_survival import draw_rollout_survival
from figures.scaling import draw_scaling
from figures.summary import draw_summary
from figures.summary_repeats import draw_summary_repeats

_log = logging.getLogger(__name__)


def write_all(
    run: Path,
    selected: Heads | None = None,
    say: Callable[[str], None] = _log.warning,
    metric: str = "logprob",
) -> list[Path]:
    """Draw what the tables in `run` allow into `run/figures`; returns the files (png, pdf, csv of each).

    Args:
        run: the run folder.
        selected: (layer, head) pairs to outline; by default those marked in heads.csv.
        say: receives one sentence per figure that is skipped, with the reason.
        metric: which of the tables' metrics effects and shares are drawn of.

    Raises:
        FigureError: `run` is not a folder, or a table is there and cannot be drawn (a column is missing, text
            is where a number belongs, …).
    """
    if not run.is_dir():
        raise FigureError(f"{run} is not a run folder.")
    if selected is None:
        selected = selected_heads(read_heads(run)) if (run / "heads.csv").is_file() else []
    drawings: dict[str, tuple[Any, ...]] = {  # name → function, and what it takes beside the run
        "scaling": (draw_scaling,),
        "summary": (draw_summary,),
        "summary_repeats": (draw_summary_repeats,),
        "manipulations": (draw_manipulations,),
        "breakdown": (draw_breakdown,),
        "profiles": (draw_profiles,),
        "heads": (draw_heads, selected),
        "patch": (draw_patch, selected, metric),
        "patch_by_score": (draw_patch_by_score, selected, metric),
        "joint": (draw_joint,),
        "patch_sites": (draw_patch_sites, metric),
        "patch_kv_heads": (draw_patch_kv_heads, metric),
        "layers": (draw_layers, metric),
        "direct": (draw_direct, metric),
        "path": (draw_path, metric),
        "attribute": (draw_attribute, metric),
        "ablate": (draw_ablate,),
        "ablate_off_target": (draw_ablate_off_target,),
        "agree": (draw_agree, metric),
        "circuit": (draw_circuit,),
        "rollout": (draw_rollout,),
        "rollout_survival": (draw_rollout_survival,),
        "predict": (draw_predict,),
        "compare_items": (draw_compare_items,),
    }
    written: list[Path] = []
    for name, (draw, *options) in drawings.items():
        try:
            written += draw(run, *options)
        except MissingTable as reason:
            say(f"Skipped the figure {name}: {reason}")
    return written
