"""Reference sets of mean and resample ablation: of other tasks than every measured item, or one error that says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from experiments.heads.reference_sets import MIN_REFERENCE, ReferenceOptions, reference_set
from experiments.run.seeds import py_stream, stream
from experiments.run.session import Session
from experiments.run.study import REFERENCE_SIZE, ReferenceFile, reference_items
from mech.engine.engine import Engine
from probes.items.item import Item, dump_items
from probes.items.toolshed import build_toolshed_items
from probes.prompts.wording import load_wording
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, REFERENCE, Shell, loaded_once, shell  # noqa: F401 - a fixture

HEADS = ["--heads", "top:2", "--controls", "1", "--control-kinds", "random"]
NEEDS = (
    ("ablate", HEADS),
    ("ablate", [*HEADS, "--how", "resample"]),
    ("ablate", [*HEADS, "--how", "zero", "--control-kinds", "norm"]),
    ("joint", ["--k", "1", "--controls", "1", "--ablation-controls", "1"]),
    ("placebo", ["--top", "2", "--shuffles", "1"]),
    ("probe", ["--ablate", "L0H1"]),
    ("decomposition", ["--ablate", "L0H1", "--how", "resample"]),
    ("manipulations", ["--ablate", "L0H1", "--conditions", "fail_k2"]),
)


def session_of(shell: Shell, items: list[Item]) -> Session:
    return Session(Engine(loaded_once(str(shell.model))), items, load_wording(), lambda name: stream(0, name))


def options(**given: Any) -> ReferenceOptions:
    return ReferenceOptions(**{"templates": "paper", "reference_items": 16, **given})


@pytest.mark.parametrize(("study", "words"), NEEDS)
def test_a_file_without_other_tasks_is_refused_and_says_what_to_name(
    study: str, words: list[str], shell: Shell
) -> None:
    said = shell(study, *words, "--reference-items", "16").sentence(
        "--reference-items FILE", str(shell.items)
    )
    assert "has 0 items of other tasks" in said and "takes 16 at least" in said
    assert not shell.path("scores.jsonl").exists() and not shell.path("ablate.jsonl").exists()


def test_the_measured_items_in_any_disguise_are_no_reference(shell: Shell) -> None:
    disguised = [
        ITEMS[0],  # itself
        replace(ITEMS[0], item_id="twin"),  # its task
        replace(ITEMS[2], item_id="other", task_id="elsewhere"),  # its context under another task
        *REFERENCE[:3],
    ]
    file = shell.tmp / "mixed.jsonl"
    dump_items(disguised, file)
    said = shell("ablate", *HEADS, "--reference-items", f"4@{file}").sentence(str(file))
    assert "has 3 items of other tasks" in said
    said = shell("ablate", *HEADS, "--reference-items", file).sentence(str(file))
    assert "has 3 different contexts of other tasks" in said and f"takes {MIN_REFERENCE} at least" in said
    dump_items([*disguised, REFERENCE[-1]], file)
    shell.ran("ablate", *HEADS, "--reference-items", f"4@{file}")
    reference = shell.about("ablate")["provenance"]["mean_reference"]
    assert sorted(reference["items"]) == [one.item_id for one in REFERENCE]


def test_a_run_records_its_reference_set_and_is_not_resumed_under_another(shell: Shell) -> None:
    shell.ran("ablate", *HEADS, "--reference-items", f"4@{shell.reference}")
    entry = shell.about("ablate")
    reference = entry["provenance"]["mean_reference"]
    assert reference["n"] == 4 and reference["file"] == shell.reference.name
    assert reference["tasks"] == sorted({one.task_id for one in REFERENCE})
    assert len(reference["items_sha256"]) == len(entry["config"]["reference_items"]["file"]) == 64
    changed = [replace(one, goal=f"{one.goal} Now.") for one in REFERENCE]
    dump_items(changed, shell.reference)
    shell("ablate", *HEADS, "--reference-items", f"4@{shell.reference}").sentence(
        "other settings", "reference_items"
    )
    shell("ablate", *HEADS, "--reference-items", "nowhere.jsonl", out="new").sentence(
        "nowhere.jsonl does not exist"
    )


def test_the_items_of_a_pool_are_drawn_as_they_were(shell: Shell) -> None:
    pool = build_toolshed_items(0)
    measured = pool[:10]
    tasks = {one.task_id for one in measured}
    rng = py_stream(0, "mean reference")
    expected = rng.sample([one for one in pool if one.task_id not in tasks], 16)
    assert reference_set(session_of(shell, measured), options()).items == expected


def test_a_rollout_takes_no_item_of_a_task_that_it_runs(shell: Shell) -> None:
    items = shell.tmp / "rolled.jsonl"
    dump_items([*ITEMS, *REFERENCE], items)
    tasks = {one.task_id for one in ITEMS}
    found = reference_set(session_of(shell, []), options(items=items, reference_items=4), tasks)
    assert {one.item_id for one in found.items} == {one.item_id for one in REFERENCE}
    assert len(reference_set(session_of(shell, []), options(items=items, reference_items=8)).items) == len(
        ITEMS
    ) + len(REFERENCE)


def test_the_option_is_a_number_a_file_or_both() -> None:
    assert reference_items("3") == 3
    assert reference_items("a/b.jsonl") == ReferenceFile(Path("a/b.jsonl"), REFERENCE_SIZE)
    assert reference_items("5@a/b.jsonl") == ReferenceFile(Path("a/b.jsonl"), 5)
    for text in ("0", "-1", "0@a"):
        with pytest.raises(ValueError):
            reference_items(text)


def test_fewer_than_the_least_are_enough_where_fewer_are_asked_for(shell: Shell) -> None:
    ids = shell.tmp / "ids"
    ids.write_text(json.dumps(["garden-2"]))
    shell.ran("ablate", *HEADS, "--ids", ids, "--reference-items", "2")
    found = shell.about("ablate")["provenance"]["mean_reference"]
    assert found["items"] == ["garden-0", "garden-1"] or found["items"] == ["garden-1", "garden-0"]
    shell("ablate", *HEADS, "--ids", ids, "--reference-items", "16", out="more").sentence("has 2 items")
