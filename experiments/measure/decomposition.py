"""`backfire decomposition`: how much of the damage is that the call is there, how much what is said of it.

The core conditions of every item, on one or all environments, and what the split is held against: an acknowledgement
as long as the error (`neut_pad`), as many tokens of filler or another valid call in the place of the call
(`neut_matched`, `neut_other`), and the mark of failure without the call (`mark`, `abstract_min`; `ack` is the
acknowledgement without it), for the split in the other order and the interaction of the two. Then the split with
intervals, by operator, error family, template and step, and which tokens of a× carry it.
"""

from __future__ import annotations

import argparse

import pandas as pd

from experiments.heads.ablation import ABLATING
from experiments.heads.arms import ablation_arms, parse_arms
from experiments.measure.measuring import Tables, derive, score_all
from experiments.run.left_out import conditions_of, noted, of_candidates, of_conditions, write_left_out
from experiments.run.session import about_items, open_run, open_session
from experiments.run.study import DELTA, ON_ITEMS, ON_MODEL, RUNNING, Report, Study
from experiments.run.tables import arms_text, estimate_text, forwards_text, summary_text, whole_model
from probes.prompts.conditions import CORE
from probes.scoring.score import DISTRACTORS_IN
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


def run(args: argparse.Namespace) -> Report:
    """Score what is missing, derive the tables, and print the split of each environment."""
    tables, forwards = measured(args)
    return Report(f"{text(tables)}\n{forwards}\nwritten to {args.out}")


def measured(args: argparse.Namespace) -> tuple[Tables, str]:
    """The study without its report: the tables, then what was left out and how much of the model was run."""
    parse_arms(args)  # a mistake there costs nothing
    session = open_session(args)
    session = noted(session, [*of_conditions(session.items, NAMES), *of_candidates(session.items, four=True)])
    arms = ablation_arms(session, args)
    with open_run(STUDY, args, session.model, {**about_items(session), **arms.about}, arms.derived) as folder:
        score_all(
            folder,
            session,
            lambda item: conditions_of(item, NAMES),
            DISTRACTORS_IN,
            args.quiet,
            arms.arms,
        )
        tables = derive(folder, session, args.delta, arms.labels)
        notes = [*write_left_out(folder, session), *arms.notes]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved, **arms.fitted})
    return tables, "\n".join([*notes, forwards_text(forwards.ran, forwards.saved)])


def text(tables: Tables) -> str:
    """The headline measures and the derived quantities of every environment."""
    parts: list[str] = []
    for env, summary in whole_model(tables.summary).groupby("env", sort=True):
        chosen = summary[summary["measure"].isin(SHOWN)]
        ordered = chosen.set_index("measure").reindex(
            [name for name in SHOWN if name in set(chosen["measure"])]
        )
        split = whole_model(tables.decomposition[tables.decomposition["env"] == env])
        parts += [f"== {env}", summary_text(ordered.reset_index()), "", estimate_text(_named(split))]
        parts += [*arms_text(tables.arms[tables.arms["env"] == env], SHOWN), ""]
    return "\n".join([*parts, *family_lines(tables.summary, "headline")])


def _named(split: pd.DataFrame) -> pd.DataFrame:
    return split.rename(columns={"quantity": "name"})[
        ["name", "estimate", "ci_lo", "ci_hi", "n", "n_clusters"]
    ]


STUDY = Study(
    "decomposition",
    "split the damage into copy and meaning, with intervals, by error family and by token",
    "backfire decomposition --env all --limit 48 --out runs/split",
    (*ON_MODEL, *ON_ITEMS, *ABLATING, DELTA, *RUNNING),
    run,
)
