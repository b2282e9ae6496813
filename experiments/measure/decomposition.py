"""`backfire decomposition`: how much of the damage is that the call is there, how much what is said of it.

The core conditions of every item, on one or all environments, and what the split is held against: an acknowledgement
as long as the error (`neut_pad`), as many tokens of filler or another valid call in the place of the call
(`neut_matched`, `neut_other`), and the mark of failure without the call (`mark`, `abstract_min`; `ack` is the
acknowledgement without it), for the split in the other order and the interaction of the two. Then the split with
intervals, by operator, error family, template and step, and which tokens of a× it comes from.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from experiments.measure.measuring import (
    Scoring,
    ScoringOptions,
    arms_of,
    open_scoring,
    score_unit,
    scoring_study,
    scoring_units,
)
from experiments.run.run_study import Tables
from experiments.run.study import Report
from experiments.run.tables import arms_text, estimate_text, summary_text, unablated
from probes.prompts.conditions import CORE
from probes.stats.families import family_lines

NAMES = (*CORE, "neut_pad", "neut_matched", "neut_other", "mark", "ack", "abstract_min")
SHOWN = (
    *("G", "copy", "sem", "copy_pad", "sem_pad", "G_per_token", "p_repeat_pre", "p_repeat_fail"),
    *("p_repeat4_pre", "p_repeat4_fail", "G_exact", "greedy_repeat_fail", "G_abstract"),
    *("copy_matched", "copy_other", "other_damage", "copy_succ", "polarity"),
    *("sem_first", "copy_after", "interaction", "sem_ack", "interaction_ack"),
    *("sem_first_min", "copy_after_min", "interaction_min"),
    *(
        "repair",
        "margin_shift",
        "margin_copy",
        "margin_copy_matched",
        "margin_copy_other",
        "margin_other_damage",
    ),
    *(
        "margin_sem_first",
        "margin_copy_after",
        "margin_interaction",
        "margin_sem_first_min",
        "margin_copy_after_min",
    ),
)


def report(_: Scoring, tables: Tables) -> Report:
    """The headline measures and the derived quantities of every environment."""
    parts: list[str] = []
    split, arms = unablated(tables["decomposition"]), arms_of(tables)
    for env, summary in unablated(tables["summary"]).groupby("env", sort=True):
        chosen = summary[summary["measure"].isin(SHOWN)]
        ordered = chosen.set_index("measure").reindex(
            [name for name in SHOWN if name in set(chosen["measure"])]
        )
        parts += [
            f"== {env}",
            summary_text(ordered.reset_index()),
            "",
            estimate_text(_named(split[split["env"] == env])),
        ]
        parts += [*arms_text(arms[arms["env"] == env], SHOWN), ""]
    return Report("\n".join([*parts, *family_lines(tables["summary"], "headline")]))


def _named(split: pd.DataFrame) -> pd.DataFrame:
    return split.rename(columns={"quantity": "name"})[
        ["name", "estimate", "ci_lo", "ci_hi", "n", "n_clusters"]
    ]


STUDY = scoring_study(
    "decomposition",
    "backfire decomposition --env all --limit 48 --out runs/split",
    ScoringOptions,
    open=partial(open_scoring, names=NAMES),
    units=scoring_units,
    measure=score_unit,
    report=report,
)
