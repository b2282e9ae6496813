"""`backfire probe`: G, Δcopy and Δsem of every decision point, teacher-forced.

items × conditions × ablation arms × candidates → scores.jsonl → measures.csv → summary.csv, arms.csv
"""

from __future__ import annotations

import argparse

from experiments.heads.ablation import ABLATING
from experiments.heads.arms import ablation_arms, parse_arms
from experiments.measure.measuring import derive, score_all
from experiments.run.left_out import conditions_of, noted, of_candidates, of_conditions, write_left_out
from experiments.run.progress import progress
from experiments.run.session import about_items, open_run, open_session
from experiments.run.study import CONDITIONS, DELTA, ON_ITEMS, ON_MODEL, RUNNING, Option, Report, Study
from experiments.run.tables import arms_text, forwards_text, summary_text, whole_model
from mech.engine.capture import everything_names
from mech.errors import InputError
from mech.interventions.hooks import hook_point
from mech.patching.patch import sweep_names
from probes.prompts.conditions import parse_conditions
from probes.scoring.score import DISTRACTORS_IN, run_decision_point
from probes.stats.families import family_lines

KEPT_CONDITIONS = ("pre", "neut", "fail")
"""With --cache, what is kept of these (where scored): all that `patch` takes donors, residuals and prefixes from."""

KEEP = Option(
    "keep",
    str,
    "",
    "with --cache: more hooks to keep, by their name in a block: attn.hook_pattern,hook_mlp_out",
    presentation=True,
)

DISTRACTORS = Option(
    "distractors",
    str,
    "measured",
    "score them where a measure reads them (pre, fail) or everywhere",
    ("measured", "everywhere"),
)


def run(args: argparse.Namespace) -> Report:
    """Score all items and derive the tables; a killed run goes on where it stopped."""
    names = parse_conditions(args.conditions)
    if args.keep and args.cache is None:
        raise InputError("--keep says what to keep in the folder of --cache: name one.")
    parse_arms(args)  # a mistake there costs nothing
    where = DISTRACTORS_IN if args.distractors == "measured" else None
    session = open_session(args)
    session = noted(
        session, [*of_conditions(session.items, names), *of_candidates(session.items, where is not None)]
    )
    arms = ablation_arms(session, args)
    model, wording = session.model, session.wording
    kinds = [kind for kind in args.keep.split(",") if kind]
    keep = [*sweep_names(model), *everything_names(model, *kinds)]
    points = model.bridge.hook_dict
    for name in keep:
        hook_point(points, name)  # an unknown name is refused before anything is run
    with open_run(STUDY, args, model, {**about_items(session), **arms.about}, arms.derived) as folder:
        score_all(folder, session, lambda item: conditions_of(item, names), where, args.quiet, arms.arms)
        if args.cache is not None:
            kept = [name for name in KEPT_CONDITIONS if name in names]
            for item in progress(session.items, len(session.items), "keep", args.quiet):
                for name in conditions_of(item, kept):
                    run_decision_point(session.engine, item, name, wording, keep)
        tables = derive(folder, session, args.delta, arms.labels)
        notes = [*write_left_out(folder, session), *arms.notes]
        forwards = session.engine.forwards
        folder.finish({"forwards_run": forwards.ran, "forwards_saved": forwards.saved, **arms.fitted})
    text = [
        summary_text(whole_model(tables.summary)),
        *arms_text(tables.arms),
        *family_lines(tables.summary, "headline"),
        *notes,
        forwards_text(forwards.ran, forwards.saved),
        f"written to {args.out}",
    ]
    return Report("\n".join(text))


STUDY = Study(
    "probe",
    "measure how much a recorded failure raises or lowers the log-probability of repeating it",
    "backfire probe --limit 24 --out runs/first",
    (*ON_MODEL, *ON_ITEMS, *ABLATING, CONDITIONS, DISTRACTORS, DELTA, KEEP, *RUNNING),
    run,
)
