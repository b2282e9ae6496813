"""All figures of a run folder: each one whose table is there, and a sentence for each whose table is not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from figures.agreement import draw_agreement
from figures.attribution import draw_attribution
from figures.by_family import draw_by_family
from figures.calibration import draw_calibration
from figures.carried import draw_carried
from figures.circuit import draw_circuit
from figures.direct_total import draw_direct_total
from figures.dose_curve import draw_dose_curve
from figures.head_map import draw_head_effects, draw_head_scores
from figures.item_compare import draw_item_compare
from figures.layer_profile import draw_layer_profile
from figures.load import FigureError, Heads, MissingTable, read_heads, selected_heads
from figures.manipulations import draw_manipulations
from figures.off_target import draw_off_target
from figures.path_bars import draw_path_bars
from figures.profiles import draw_profiles
from figures.repeat_probability import draw_repeat_probability
from figures.rollouts import draw_rollouts
from figures.scaling import draw_scaling
from figures.score_vs_effect import draw_score_vs_effect
from figures.site_comparison import draw_kv_heads, draw_site_comparison
from figures.split_bars import draw_split_bars
from figures.survival import draw_survival

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
            stands for a number, …).
    """
    if not run.is_dir():
        raise FigureError(f"{run} is not a run folder.")
    if selected is None:
        selected = selected_heads(read_heads(run)) if (run / "heads.csv").is_file() else []
    heads = selected
    drawings: dict[str, Callable[[], list[Path]]] = {
        "scaling": lambda: draw_scaling(run),
        "split_bars": lambda: draw_split_bars(run),
        "repeat_probability": lambda: draw_repeat_probability(run),
        "manipulations": lambda: draw_manipulations(run),
        "by_family": lambda: draw_by_family(run),
        "profiles": lambda: draw_profiles(run),
        "head_scores": lambda: draw_head_scores(run, heads),
        "head_effects": lambda: draw_head_effects(run, heads, metric),
        "score_vs_effect": lambda: draw_score_vs_effect(run, heads, metric),
        "carried": lambda: draw_carried(run),
        "site_comparison": lambda: draw_site_comparison(run, metric),
        "kv_heads": lambda: draw_kv_heads(run, metric),
        "layer_profile": lambda: draw_layer_profile(run, metric),
        "direct_total": lambda: draw_direct_total(run, metric),
        "path_bars": lambda: draw_path_bars(run, metric),
        "attribution": lambda: draw_attribution(run, metric),
        "dose_curve": lambda: draw_dose_curve(run),
        "off_target": lambda: draw_off_target(run),
        "agreement": lambda: draw_agreement(run, metric),
        "circuit": lambda: draw_circuit(run),
        "rollouts": lambda: draw_rollouts(run),
        "survival": lambda: draw_survival(run),
        "calibration": lambda: draw_calibration(run),
        "item_compare": lambda: draw_item_compare(run),
    }
    written: list[Path] = []
    for name, draw in drawings.items():
        try:
            written += draw()
        except MissingTable as reason:
            say(f"Skipped the figure {name}: {reason}")
    return written
