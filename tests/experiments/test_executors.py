"""Executors: rows in the order and with the bytes of a run of one process; units that fail; shards."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments.run import flags, run_study
from experiments.run.executors import worker
from experiments.run.executors.pool import AHEAD, ATTEMPTS, Done, Event, Lost, Pool, Ready, Refused
from experiments.run.executors.tasks import Failure, Outcome, Spec, Task
from experiments.run.study import Shard
from mech.errors import InputError
from mech.patching.optimal_constants import fit_constants
from probes.items.item import dump_items
from tests import worker_study
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, shell  # noqa: F401 - a fixture

SPEC = Spec("none", None, Path(), "none", Path(), 1, {"weights": "a"})


class Inline:
    """A crew in this process: every worker has a context of its own, and answers come in no order."""

    kind = "inline"

    def __init__(self, spec: Spec) -> None:
        self._spec, self._rng = spec, random.Random(0)
        self._opened: dict[int, worker.OpenedStudy] = {}
        self._events: list[Event] = []

    def room(self) -> int:
        return 3

    def hire(self, number: int) -> None:
        self._opened[number] = worker.OpenedStudy(self._spec)
        self._events.append(Ready(number, self._opened[number].identity))

    def give(self, number: int, task: Task) -> None:
        self._events.append(Done(number, self._opened[number].measure(task)))

    def events(self) -> list[Event]:
        return [self._events.pop(self._rng.randrange(len(self._events)))]

    def dismiss(self) -> None:
        self._opened.clear()


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--executor processes` with workers in this process, three at a time."""
    monkeypatch.setattr("experiments.run.executors.crews.Processes", Inline)
    monkeypatch.setattr("experiments.run.executors.crews.cpus", lambda: 3)
    monkeypatch.setattr(
        "experiments.heads.ablation.fit_constants", partial(fit_constants, steps=3)
    )  # each fits


def without_run_json(folder: Path) -> dict[str, bytes]:
    """The row files and tables of a folder."""
    return {name: held for name, held in contents(folder).items() if name.endswith((".jsonl", ".csv"))}


WORKERS = ("--executor", "processes")
STUDIES = [
    [("probe", "--ablate", "top:2@how=optimal@where=candidate", "--ablate", "random:2@how=resample@draws=2")],
    [("patch", "--k", "2", "--screen", "attribution:3")],
    [("direct",), ("attribute",)],
    [("joint", "--k", "2", "--controls", "2", "--control-kinds", "random", "--draws", "2")],
    [("path", "--senders", "2", "--receivers", "2", "--controls", "2")],
    [("knockout", "--k", "2", "--controls", "1")],
    [
        (
            "ablate",
            "--heads",
            "top:2",
            "--controls",
            "1",
            "--how",
            "mean,resample",
            "--control-kinds",
            "random",
        )
    ],
    [("placebo", "--top", "2", "--shuffles", "1", "--controls", "1")],
]


@pytest.mark.parametrize("lines", STUDIES, ids=[lines[-1][0] for lines in STUDIES])
def test_workers_write_the_bytes_of_a_run_of_one_process(
    lines: Sequence[Sequence[str]], shell: Shell, inline: None
) -> None:
    if lines[-1][0] == "placebo":  # which needs calls of other tasks
        far = {"unrelated_action": "XYZW", "unrelated_observation": "QJVK"}
        dump_items([replace(one, meta=far) for one in ITEMS[:3]], shell.items)
    for study, *words in lines:
        one = shell(study, *words, out="one")
        many = shell(study, *words, *WORKERS, out="many")
        assert one.code == many.code, (one, many)
        assert [line for line in many.out if "forwards" not in line and "written to" not in line] == [
            line for line in one.out if "forwards" not in line and "written to" not in line
        ]
    found = without_run_json(shell.tmp / "many")
    assert found == without_run_json(shell.tmp / "one") and found
    alone, extra = (shell.about(lines[-1][0], out)["extra"] for out in ("one", "many"))
    assert (extra.pop("executor"), extra.pop("threads"), extra.pop("workers_lost")) == ("inline", 1, 0)
    assert 1 < extra.pop("workers") <= 3
    for name in ("forwards_run", "forwards_saved"):
        assert extra.pop(name) >= 0 and alone.pop(name) >= 0
    assert extra == alone


def test_a_run_of_workers_goes_on_from_its_last_whole_row(shell: Shell, inline: None) -> None:
    shell.once("probe", out="one")
    shell.ran("probe", *WORKERS)
    whole = shell.path("scores.jsonl").read_bytes()
    shell.path("scores.jsonl").write_bytes(whole[: len(whole) // 2])
    shell.ran("probe", *WORKERS)
    assert without_run_json(shell.tmp / "run") == without_run_json(shell.tmp / "one")


def troubled(shell: Shell, *words: str, out: str = "run") -> run_study.Report:
    """The study of `tests.worker_study` on eight items."""
    items = shell.tmp / "eight.jsonl"
    dump_items([replace(ITEMS[n % 4], item_id=f"bed-{n}", task_id=f"bed-{n}") for n in range(8)], items)
    trouble = shell.tmp / "trouble"
    trouble.mkdir(exist_ok=True)
    base = [
        "--model",
        shell.model,
        "--items",
        items,
        "--quiet",
        "--trouble",
        trouble,
        "--out",
        shell.tmp / out,
    ]
    config = flags.parse(worker_study.STUDY, [*map(str, base), *words]).config
    return worker_study.STUDY.run(config)


@pytest.mark.parametrize("words", [(), WORKERS])
def test_a_unit_that_fails_is_named_and_a_resume_puts_its_rows_where_they_belong(
    words: tuple[str, ...], shell: Shell, inline: None
) -> None:
    troubled(shell, out="whole")
    for name in ("bed-0.raise", "bed-3.raise-once", "bed-4.raise", "bed-7.raise"):
        (shell.tmp / "trouble" / name).touch()
    first = troubled(shell, *words)
    assert not first.ok and first.text.startswith("not done: 4 of 8 units failed:")
    for name in ("bed-0", "bed-3", "bed-4", "bed-7"):
        assert f"  {name} ({name}|pre, …): ValueError: {name} cannot be measured" in first.text
    assert not shell.path("troubled.csv").exists() and not shell.about("troubled")["done"]
    assert [row["item_id"] for row in shell.lines("troubled")][::2] == ["bed-1", "bed-2", "bed-5", "bed-6"]
    assert not troubled(shell, *words).ok  # bed-3 is measured now
    for file in (shell.tmp / "trouble").iterdir():
        file.unlink()
    assert troubled(shell, *words).ok
    for name in ("troubled.jsonl", "troubled.csv"):
        assert shell.path(name).read_bytes() == shell.path(name, "whole").read_bytes()


def test_what_every_unit_fails_with_ends_the_run(shell: Shell, inline: None) -> None:
    (shell.tmp / "trouble").mkdir()
    for words in ((), WORKERS):
        with pytest.raises(InputError, match="^No tokens left$"):
            broken = replace(worker_study.STUDY, measure=_refuse)
            worker_study.STUDY.__dict__["measure"], kept = broken.measure, worker_study.STUDY.measure
            try:
                troubled(shell, *words)
            finally:
                worker_study.STUDY.__dict__["measure"] = kept
        assert not json.loads(shell.path("run.json").read_text())["studies"]


def _refuse(context: Any, unit: Any) -> Any:
    raise InputError("No tokens left")


# --- the pool, on a crew that does what it is told


class Scripted:
    """A crew whose workers die, and answer late, as a script says."""

    kind = "scripted"

    def __init__(self, dies: dict[int, int], identity: str = "a", opens: bool = True) -> None:
        self.dies, self.identity, self.opens = dies, identity, opens
        self.hired = 0
        self.at_work: dict[int, Task] = {}
        self.given: list[int] = []
        self.most = 0
        self.dismissed = False
        self._opening: list[int] = []

    def room(self) -> int:
        return 2

    def hire(self, number: int) -> None:
        self.hired += 1
        self._opening.append(number)

    def give(self, number: int, task: Task) -> None:
        assert number not in self.at_work
        self.at_work[number] = task
        self.given.append(task.place)

    def events(self) -> list[Event]:
        if self._opening:
            number = self._opening.pop()
            return [Ready(number, {"weights": self.identity}) if self.opens else Lost(number, "signal 9")]
        number = max(self.at_work, key=lambda one: (self.at_work[one].place != 0, self.at_work[one].place))
        task = self.at_work.pop(number)
        if self.dies.get(task.place, 0):
            self.dies[task.place] -= 1
            return [Lost(number, "signal 9")]
        return [Done(number, Outcome(task, [{"id": task.row_ids[0]}]))]

    def dismiss(self) -> None:
        self.dismissed = True


def tasks(n: int) -> list[Task]:
    return [Task(place, (f"row-{place}",), f"unit {place}") for place in range(n)]


def test_outcomes_come_in_order_and_no_unit_is_far_ahead_of_the_one_that_is_waited_for() -> None:
    crew = Scripted({})
    found = []
    for outcome in Pool(crew, SPEC, 2).run(tasks(60)):
        if not found:  # the first unit was answered last of all that were given out
            assert len(crew.given) == 2 * AHEAD
        found.append(outcome.task.place)
    assert found == list(range(60)) and crew.dismissed and crew.hired == 2


def test_the_unit_of_a_lost_worker_is_measured_again_and_given_up_at_the_third() -> None:
    crew = Scripted({2: 1, 5: ATTEMPTS})
    found = list(Pool(crew, SPEC, 2).run(tasks(9)))
    assert [one.task.place for one in found] == list(range(9))
    assert [one.task.place for one in found if one.failure] == [5]
    assert "3 workers were lost" in str(found[5].failure.error) and "signal 9" in str(found[5].failure.error)
    assert crew.given.count(2) == 2 and crew.given.count(5) == ATTEMPTS and crew.given.count(1) == 1
    assert crew.hired == 2 + 1 + ATTEMPTS


def test_workers_that_open_another_study_or_none_end_the_run() -> None:
    other = Scripted({}, identity="b")
    with pytest.raises(InputError, match=r"weights \(b, not a\)"):
        list(Pool(other, SPEC, 2).run(tasks(3)))
    dead = Scripted({}, opens=False)
    with pytest.raises(InputError, match="6 workers in turn were lost while they opened the study"):
        list(Pool(dead, SPEC, 2).run(tasks(3)))
    assert other.dismissed and dead.dismissed

    class Refusing(Scripted):
        def events(self) -> list[Event]:
            return [Refused(1, Failure(InputError("There is no model here.")))]

    with pytest.raises(InputError, match="no model here"):
        list(Pool(Refusing({}), SPEC, 2).run(tasks(3)))


def test_leaving_early_ends_every_worker() -> None:
    crew = Scripted({})
    outcomes = Pool(crew, SPEC, 2).run(tasks(9))
    next(outcomes)
    outcomes.close()
    assert crew.dismissed


def test_an_exception_that_cannot_be_sent_is_sent_as_its_text() -> None:
    class Odd(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    sent = Failure.of(Odd(1, 2))
    assert type(sent.error) is RuntimeError and str(sent.error) == "Odd: 1 and 2" and "Odd" in sent.trace


# --- shards


@pytest.mark.parametrize(("n", "of"), [(7, 3), (2, 5), (0, 2), (12, 12)])
def test_shards_are_runs_of_places_that_cover_all(n: int, of: int) -> None:
    parts = [list(Shard(number, of).places(n)) for number in range(1, of + 1)]
    assert sum(parts, []) == list(range(n)) and max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0"])
def test_a_shard_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--shard"):
        flags.parse(worker_study.STUDY, ["--shard", text])


@pytest.mark.parametrize(
    "lines",
    [
        [("probe", "--conditions", "pre,neut,fail")],
        [("heads", "--top", "3"), ("patch", "--k", "2", "--screen", "attribution:3")],
        [("joint", "--k", "2", "--controls", "2", "--control-kinds", "random", "--draws", "2")],
    ],
    ids=["probe", "patch", "joint"],
)
def test_merged_shards_are_the_run_without_shards(lines: Sequence[Sequence[str]], shell: Shell) -> None:
    for study, *words in lines:
        shell.ran(study, *words, out="whole")
        for number in (1, 2):
            shard = ["--shard", f"{number}/2"] if study != "heads" else []
            shell.ran(study, *words, *shard, out=f"part-{number}")
    name = lines[-1][0]
    table = {"probe": "summary", "patch": "patch", "joint": "joint"}[name]
    assert not (shell.tmp / "part-1" / f"{table}.csv").exists() and shell.about(name, "part-1")["done"]
    said = merged(shell, "part-2", "part-1")
    assert said.code == 0, said
    assert without_run_json(shell.tmp / "merged") == without_run_json(shell.tmp / "whole")
    assert set(shell.about(name, "merged")["extra"]["shards"]) == {"1/2", "2/2"}
    again = merged(shell, "part-2", "part-1")
    assert again.code == 0 and without_run_json(shell.tmp / "merged") == without_run_json(shell.tmp / "whole")


def merged(shell: Shell, *parts: str) -> Any:
    from experiments.cli import main
    from tests.study_cases import Said

    shell.capture.readouterr()
    code = main(
        ["merge", *(str(shell.tmp / part) for part in parts), "--quiet", "--out", str(shell.tmp / "merged")]
    )
    shown = shell.capture.readouterr()
    return Said(code, shown.out.splitlines(), shown.err.splitlines())


def test_shards_that_do_not_go_together_are_named(shell: Shell) -> None:
    words = ["--conditions", "pre,fail"]
    for number in (1, 3):
        shell.ran("probe", *words, "--shard", f"{number}/3", out=f"part-{number}")
    merged(shell, "part-1", "part-3").sentence("missing: 2/3")
    merged(shell, "part-1", "part-1").sentence("is shard 1/3")
    shell.ran("probe", *words, "--seed", "1", "--shard", "2/3", out="other")
    merged(shell, "part-1", "other", "part-3").sentence("other", "under other settings")
    shell.ran("probe", *words, out="all")
    merged(shell, "all").sentence("was run without --shard")
    merged(shell, "part-1", "all").sentence("has no shard of 'probe'")
    shell("probe", *words, "--shard", "2/3", out="part-1").sentence("part-1", "1/3", "not 2/3")
    shell("probe", *words, "--shard", "2/3", out="all").sentence("all units")
    assert not (shell.tmp / "merged").exists()


def test_a_study_without_units_refuses_workers_and_shards(shell: Shell) -> None:
    shell("circuit", *WORKERS).sentence("`circuit` runs in one process: leave out --executor processes")
    shell("circuit", "--shard", "1/2").sentence("`circuit` has no shards")
    shell("mechanism", "--shard", "1/2", "--limit", "3").sentence("`mechanism` has no shards")
    shell("scaling", "--models", shell.model, "--shard", "1/2").sentence("`scaling` has no shards")
    shell("heads", *WORKERS).sentence("--executor")
    shell("probe", "--workers", "2").sentence("--executor processes or ray")
