"""A study whose units go wrong as files in a folder say, once or always, so that workers can be killed on purpose.

--trouble DIR holds ITEM.WHAT: `die`, `die-once` (the worker kills itself), `raylet-once` (and its raylet),
`raise`, `raise-once`, `wait` (while the file is there). What happens once removes its file first.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from experiments.run.run_folder import RunFolder
from experiments.run.run_study import ItemContext, ItemStudy, ItemUnit, Row, Tables
from experiments.run.session import open_session
from experiments.run.study import Flag, Report, SessionOptions
from experiments.run.tables import frame_text
from probes.scoring.score import build_queries

MAY_LOSE_ITS_RAYLET = "BACKFIRE_TEST_MAY_LOSE_RAYLET"
"""Set in the environment of a raylet that is not the cluster's first."""


@dataclass(frozen=True, kw_only=True)
class TroubledConfig(SessionOptions):
    trouble: Annotated[Path | None, Flag("folder of what goes wrong", presentation=True)] = None


@dataclass(frozen=True, kw_only=True)
class Troubled(ItemContext):
    trouble: Path | None


def measure(context: Troubled, unit: ItemUnit) -> list[Row]:
    if context.trouble is not None:
        go_wrong(context.trouble, unit.item.item_id)
    session = context.session
    asked = build_queries(session.model, unit.item, ["pre", "fail"], session.wording, ["failed"])
    scores = session.engine.score([one.query for one in asked], 0)
    return [
        {"id": row_id, "item_id": unit.item.item_id, "task_id": unit.item.task_id, "logprob": score.total}
        for row_id, score in zip(unit.row_ids, scores, strict=True)
    ]


def go_wrong(folder: Path, item: str) -> None:
    for file in folder.glob(f"{item}.*"):
        what = file.suffix[1:]
        if what == "wait":
            while file.exists():
                time.sleep(0.05)
            continue
        if what == "raylet-once" and MAY_LOSE_ITS_RAYLET not in os.environ:
            time.sleep(0.2)  # so that the other raylet's worker has its turn
            continue
        if what.endswith("-once"):
            file.unlink()
        if what.startswith("raise"):
            raise ValueError(f"{item} cannot be measured")
        if what.startswith("raylet"):
            os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def tables(context: Troubled, folder: RunFolder) -> Tables:
    return {"troubled": folder.rows("troubled")}


def report(context: Troubled, tables: Tables) -> Report:
    return Report(frame_text(tables["troubled"]))


STUDY = ItemStudy(
    "troubled",
    "backfire troubled --out runs/troubled",
    TroubledConfig,
    rows="troubled",
    open=lambda config: Troubled(open_session(config), trouble=config.trouble),
    units=lambda context: [
        ItemUnit(tuple(f"{item.item_id}|{name}" for name in ("pre", "fail")), item)
        for item in context.session.items
    ],
    measure=measure,
    tables=tables,
    report=report,
)
