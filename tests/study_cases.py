"""Cases the tests of studies share: short items, their file, and commands run as a user types them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments.cli import main
from experiments.commands import COMMANDS
from experiments.run.run_folder import EXACT_FLOATS
from experiments.run.run_study import ItemStudy
from experiments.run.study import Report
from mech.load import load_model
from mech.models.model import Model
from mech.patching.optimal_constants import fit_constants
from probes.items.item import Item, dump_items
from probes.scoring import contrast

FolderFactory = Callable[..., Path]
ON_ITEMS = (
    *("probe", "decomposition", "manipulations", "scaling"),
    *("patch", "ablate", "knockout", "joint", "attribute", "placebo", "agree", "circuit"),
    *("direct", "layers", "path", "mechanism"),
)
ABLATES = ("ablate", "joint", "placebo", "mechanism", "circuit")
SYSTEM = "Tools: grow(plant, cups), prune(plant)."


def item(
    number: int,
    failed: str,
    gold: str,
    error: str,
    before: tuple[tuple[str, str], ...] = (),
    others: tuple[str, ...] = ("prune(plant='oak')", "grow(plant='elm', cups=9)"),
    operator: str = "arg_typo",
) -> Item:
    """A short decision point in a garden that no environment knows; two items share a task."""
    return Item(
        item_id=f"garden-{number}",
        env="garden",
        task_id=f"task-{number // 2}",
        template="garden",
        step_index=len(before),
        operator=operator,
        error_type="argument_unknown",
        system_prompt=SYSTEM,
        goal=f"Look after plot {number}.",
        prefix_actions=tuple(action for action, _ in before),
        prefix_observations=tuple(answer for _, answer in before),
        failed_action=failed,
        gold_action=gold,
        obs_fail=error,
        obs_fail_terse="error",
        obs_fail_verbose=f"{error}; nothing was done",
        obs_fail_echo=f"{error} in {failed}",
        obs_success="done",
        obs_neutral="call received",
        obs_fail_other="error: no oak",
        distractors=others,
        tool=failed.split("(")[0],
        meta={},
    )


ITEMS = (
    item(0, "grow(plnt='fig', cups=2)", "grow(plant='fig', cups=2)", "error: no plnt"),
    item(
        1,
        "prune(tree='fig')",
        "prune(plant='fig')",
        "error: no tree",
        before=(("grow(plant='fig', cups=1)", "watered"),),
    ),
    item(2, "grow(plant='ash', cups='two')", "grow(plant='ash', cups=2)", "error: two?", operator="type"),
    item(3, "prun(plant='ash')", "prune(plant='ash')", "error: prun?", operator="tool"),
)

REFERENCE = tuple(
    replace(
        one,
        item_id=f"meadow-{number}",
        task_id=f"meadow-{number}",
        goal=f"Mow meadow {number}.",
    )
    for number, one in enumerate((*ITEMS[:2], *ITEMS[:2]))
)
"""Items of other tasks, for means."""


@cache
def loaded_once(
    name: str,
    dtype: str = "float32",
    device: str = "cpu",
    cache_dir: Path | None = None,
    pre: str | None = None,
    mapped: bool = False,
) -> Model:
    """`load_model` with its checks, each checkpoint once: nothing in a run changes a model, mapped or not."""
    return load_model(name, dtype=dtype, device=device, cache_dir=cache_dir, pre=pre)


fitted_briefly = partial(fit_constants, steps=8)
"""`fit_constants` in fewer steps: what a study does with constants does not depend on how good they are."""


@dataclass(frozen=True)
class Said:
    """What a command gave: exit code, lines on stdout and on stderr."""

    code: int
    out: list[str]
    err: list[str]

    def sentence(self, *parts: str) -> str:
        """The one line of a refusal, which must hold these parts."""
        assert self.code == 2 and len(self.err) == 1 and not self.out, self
        for part in parts:
            assert part in self.err[0], (part, self.err[0])
        return self.err[0]


@contextmanager
def rows_alone(*studies: str) -> Iterator[None]:
    """Let studies that map over units measure them, and make no tables and no report."""
    with pytest.MonkeyPatch.context() as patch:
        for name in studies:
            mapped = import_module(COMMANDS[name].module).STUDY
            assert isinstance(mapped, ItemStudy), f"{name} has no step that makes tables"
            patch.setitem(vars(mapped), "tables", lambda *_: {})
            patch.setitem(vars(mapped), "report", lambda *_: Report(""))
        yield


_DONE: dict[tuple[str | bytes, ...], tuple[Said, Path]] = {}
"""What `Shell.once` has run: command and item files → what it said and a copy of its folder."""


@dataclass(frozen=True)
class Shell:
    """A folder with a tiny model and an item file, and the commands on them."""

    tmp: Path
    model: Path
    items: Path
    reference: Path
    shared: Path
    capture: Any

    def __call__(self, study: str, *words: str | Path, out: Path | str | None = "run") -> Said:
        """Run `backfire STUDY` in this process; words given later win. `out` names a folder in tmp."""
        base: list[str | Path] = [] if study == "scaling" else ["--model", self.model]
        if study in ON_ITEMS:
            base += ["--items", self.items, "--quiet"]
        if study in ABLATES or "--ablate" in words:
            base += ["--reference-items", f"4@{self.reference}"]
        if out is not None:
            base += ["--out", self.tmp / out]
        self.capture.readouterr()
        code = main([study, *map(str, [*base, *words])])
        shown = self.capture.readouterr()
        return Said(code, shown.out.splitlines(), shown.err.splitlines())

    def ran(self, study: str, *words: str | Path, out: Path | str = "run") -> Said:
        """As calling, for a command that must succeed in silence."""
        said = self(study, *words, out=out)
        assert said.code == 0 and not said.err, said
        return said

    def ran_for_rows(self, study: str, *words: str | Path, out: Path | str = "run") -> Said:
        """As `ran`, without tables and report, which take most of a small run: for tests of rows and run.json alone."""
        with rows_alone(study):
            return self.ran(study, *words, out=out)

    def once(self, study: str, *words: str | Path, out: Path | str = "run") -> Said:
        """As `ran`, for a command that several tests begin with: it runs in the first, others get a copy of its folder.

        Not where a test has patched what the command calls (but for `three_metrics`), nor for a folder that holds
        something already.
        """
        folder = self.tmp / out
        assert not folder.exists(), "a copy would be put over what is there"
        typed = (study, *(str(word).replace(str(self.tmp), "") for word in words))
        key = (*typed, *contrast.FORMS, self.items.read_bytes(), self.reference.read_bytes())
        if key in _DONE:
            said, kept = _DONE[key]
            shutil.copytree(kept, folder)
            return said
        said = self.ran(study, *words, out=out)
        kept = self.shared / f"{study}-{len(_DONE)}"
        shutil.copytree(folder, kept)
        _DONE[key] = said, kept
        return said

    def path(self, name: str, out: str = "run") -> Path:
        """A file of a run folder."""
        return self.tmp / out / name

    def table(self, name: str, out: str = "run") -> pd.DataFrame:
        """A table of a run folder, floats read exactly."""
        return pd.read_csv(self.path(f"{name}.csv", out), **EXACT_FLOATS)

    def logprob(self, name: str, out: str = "run") -> pd.DataFrame:
        """The rows of a table that are of the metric logprob, without the column that says so."""
        table = self.table(name, out)
        return table[table["metric"] == "logprob"].drop(columns="metric").reset_index(drop=True)

    def lines(self, name: str, out: str = "run") -> list[dict[str, Any]]:
        """The rows of a run folder."""
        return [json.loads(line) for line in self.path(f"{name}.jsonl", out).read_text().splitlines()]

    def about(self, study: str, out: str = "run") -> dict[str, Any]:
        """A study's entry of run.json."""
        entry: dict[str, Any] = json.loads(self.path("run.json", out).read_text())["studies"][study]
        return entry

    def forwards(self, study: str, out: str = "run") -> tuple[int, int]:
        """(run, saved) as the study recorded them."""
        extra = self.about(study, out)["extra"]
        return extra["forwards_run"], extra["forwards_saved"]


@pytest.fixture
def shell(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_folder: FolderFactory,
    capsys: pytest.CaptureFixture[str],
    one_thread: None,
    monkeypatch: pytest.MonkeyPatch,
) -> Shell:
    """Commands on the tiny Llama, three short items, two short passages of prose and constants fitted in few steps.

    Nothing waits for the disk to hold what a test writes.
    """
    monkeypatch.setenv("BACKFIRE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr("experiments.run.session.load_model", loaded_once)
    monkeypatch.setattr("experiments.heads.ablation.fit_constants", fitted_briefly)
    monkeypatch.setattr(
        "probes.scoring.text_loss.passages", lambda: ["Rain fell on the hill.", "We ate soup."]
    )
    monkeypatch.setattr(
        "probes.scoring.text_loss.code_passages", lambda: ["x = [1, 2]", "for a in b:\n    c(a)"]
    )
    items = tmp_path / "items.jsonl"
    dump_items(ITEMS[:3], items)
    reference = tmp_path / "reference.jsonl"
    dump_items(REFERENCE, reference)
    shared = tmp_path_factory.getbasetemp() / "once"
    return Shell(tmp_path, tiny_folder("llama"), items, reference, shared, capsys)


@pytest.fixture
def three_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log p, margin and diverging tokens, none of them per token: half the tables, which are made alike."""
    for place in ("metric_sums", "contrast"):
        monkeypatch.setattr(f"probes.scoring.{place}.FORMS", ("logprob", "margin", "diverging"))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    return {
        file.relative_to(folder).as_posix(): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }
