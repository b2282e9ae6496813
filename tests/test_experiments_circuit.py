"""backfire circuit: found sets reach what is said of them, tasks do not leak, a stopped run ends with equal bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.cli import parser
from experiments.find_circuit import STUDY, sets_to_test, smallest
from experiments.seeds import stream
from experiments.session import Session
from mech.circuits import KINDS
from mech.engine import Engine
from mech.errors import InputError
from mech.head_lists import read_head_list
from mech.heads import Head, HeadSet
from probes.circuit_search import Found
from probes.items import Item, dump_items
from probes.wording import load_wording
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

SMALL = [
    *("--transfer", "none", "--controls", "2", "--subsets", "2", "--repeats", "1", "--screen", "4"),
    *("--held-out", "0.5", "--max-size", "6"),
]
ROWS = ("circuit_items.jsonl", "circuit_effects.jsonl")
TABLES = (
    "circuit",
    "circuit_heads",
    "circuit_completeness",
    "circuit_curve",
    "circuit_stability",
    "circuit_ranking",
)
# Twice the shared cases, so that both sides have two tasks, and two templates within a task.
GARDEN = tuple(
    replace(
        item,
        item_id=f"{item.item_id}{end}",
        task_id=f"{item.task_id}{end}",
        goal=item.goal + (" Now." if end else ""),
        template=("rows", "beds")[at % 2],
    )
    for end in ("", "-b")
    for at, item in enumerate(ITEMS)
)


@pytest.fixture
def garden(shell: Shell) -> Shell:  # noqa: F811 - a fixture
    """The shell with items of four tasks and two templates."""
    dump_items(GARDEN, shell.items)
    return shell


def test_the_tables_say_what_the_rows_and_the_slow_path_say_and_the_set_is_read_by_other_studies(
    garden: Shell,
) -> None:
    said = garden.ran("circuit", *SMALL)
    garden.ran("circuit", *SMALL, "--engine", "reference", out="slow")
    table, heads = garden.table("circuit"), garden.table("circuit_heads")
    assert set(table["method"]) == {"score", "attribution", "greedy", "elimination"}
    assert set(table["test_set"]) == {"training", "held-out"} and table["reached"].any()
    np.testing.assert_allclose(
        table[list(KINDS)], garden.table("circuit", "slow")[list(KINDS)], rtol=0, atol=NATS
    )
    deltas = {row["id"]: row["delta"] for row in garden.lines("circuit_items") if "delta" in row}
    rows = garden.lines("circuit_effects")
    for line in table.itertuples():
        named = HeadSet.parse(line.heads)
        listed = heads[heads["method"] == line.method].sort_values("order")
        assert HeadSet(map(Head, listed["layer"], listed["head"])) == named and line.k == len(named)
        for kind in KINDS:
            effects = {
                row["item"]: row["effects"][named.sha256[:16]]
                for row in rows
                if row["kind"] == kind
                and row["item"].startswith(line.test_set)
                and named.sha256[:16] in row["effects"]
            }
            assert len(effects) == line.n
            share = sum(effects.values()) / sum(deltas[item] for item in effects)
            assert getattr(line, kind) == pytest.approx(share)
        if line.test_set == "training":
            assert line.reached == (line.necessity >= 0.9) and np.isnan(line.p)
        elif line.n_controls:
            assert line.p in [
                (beaten + 1) / (line.n_controls + 1) for beaten in range(int(line.n_controls) + 1)
            ]
    gaps = garden.table("circuit_completeness")
    assert set(gaps.loc[gaps["subset"] == 0, "model_left"]) == {1.0}
    alone = table[table["test_set"] == "held-out"].set_index("method")["faithfulness"]
    for row in gaps[gaps["subset"] == 0].itertuples():
        assert row.gap == pytest.approx(abs(alone[row.method] - 1))
    steady = garden.table("circuit_stability")
    assert set(steady["variation"]) == {"seed", "tasks", "templates"}
    assert steady["jaccard"].between(0, 1).all() and steady["kendall"].dropna().between(-1, 1).all()
    assert any(line.startswith("score: ") for line in said.out)

    _is_a_head_list_that_other_studies_read(garden)


def _is_a_head_list_that_other_studies_read(garden: Shell) -> None:
    found = garden.about("circuit")["extra"]
    best = found["found"][found["smallest"]]
    listed = read_head_list(garden.path("circuit.json"), 3, 4)
    assert [str(head) for head, _ in sorted(listed, key=lambda pair: -pair[1])] == best["heads"]
    of_method = garden.path(f"circuit_{found['smallest']}.json")
    assert garden.path("circuit.json").read_bytes() == of_method.read_bytes()
    chosen = garden.table("circuit_ranking")
    assert chosen["selected"].sum() == len(listed) and len(chosen) == 12
    words = [
        "--ablate",
        garden.path("circuit.json"),
        "--conditions",
        "pre,neut",
        "--how",
        "zero",
        "--limit",
        "1",
    ]
    garden.ran("probe", *words, out="ablated")
    about = garden.about("probe", "ablated")["provenance"]["ablated"]
    assert about["heads"] == str(HeadSet(head for head, _ in listed))


def sets(garden: Shell, *words: str | Path, seed: int = 0) -> tuple[dict[str, list[Item]], dict[str, int]]:
    """The test sets that a command would have, by label, and what it leaves out."""
    study = parser(STUDY).parse_args([*SMALL, "--items", str(garden.items), *map(str, words)])
    engine = Engine(loaded_once(str(garden.model)))
    session = Session(engine, list(GARDEN), load_wording(), lambda name: stream(seed, name))
    tests, left_out = sets_to_test(session, study)
    return {test.label: test.items for test in tests}, left_out


def test_no_task_of_the_training_items_is_tested_on(garden: Shell) -> None:
    strange = replace(GARDEN[0], item_id="far", task_id="far", goal="Another plot.", env="toolshed")
    folder = garden.tmp / "files"
    folder.mkdir()
    dump_items([*GARDEN, strange], folder / "paper.jsonl")
    dump_items([strange], folder / "few.jsonl")
    splits = set()
    for seed in range(4):
        found, left_out = sets(garden, "--test-items", folder, seed=seed)
        tasks = {label: {item.task_id for item in items} for label, items in found.items()}
        assert list(tasks) == ["training", "held-out", "few", "paper"] and all(tasks.values())
        assert not tasks["training"] & (tasks["held-out"] | tasks["paper"] | tasks["few"])
        assert left_out == {"paper": 4, "few": 0}
        splits.add(tuple(sorted(tasks["training"])))
    assert len(splits) > 1
    [one] = [item for item in sets(garden)[0]["training"] if item.item_id.startswith("garden-0")] or [
        ITEMS[2]
    ]
    dump_items([one], folder / "few.jsonl")
    with pytest.raises(InputError, match="Every item of 'few' shares a task or goal with a training item"):
        sets(garden, "--test-items", folder / "few.jsonl")
    (folder / "few.jsonl").rename(folder / "held-out.jsonl")
    with pytest.raises(InputError, match="Rename .*'held-out' is the name of another test set"):
        sets(garden, "--test-items", folder / "held-out.jsonl")
    empty = garden.tmp / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="holds no item file"):
        sets(garden, "--test-items", empty)


def test_the_other_environment_is_the_one_that_no_item_is_of(garden: Shell) -> None:
    found, _ = sets(garden, "--transfer", "toolshed", "--transfer-limit", "3")
    assert len(found["toolshed"]) == 3 and {item.env for item in found["toolshed"]} == {"toolshed"}
    assert set(sets(garden, "--transfer", "none")[0]) == {"training", "held-out"}


def test_a_stopped_run_ends_with_equal_bytes_and_a_finished_one_costs_nothing(garden: Shell) -> None:
    garden.ran("circuit", *SMALL)
    whole = contents(garden.tmp / "run")
    assert garden.forwards("circuit")[0] > 0
    garden.ran("circuit", *SMALL)
    assert garden.forwards("circuit") == (0, 0)
    lines = whole["circuit_effects.jsonl"].splitlines(keepends=True)
    garden.path("circuit_effects.jsonl").write_bytes(b"".join(lines[:9]) + lines[9][:30])
    garden.path("circuit.csv").unlink()
    garden.ran("circuit", *SMALL)
    again = contents(garden.tmp / "run")
    for name in (*ROWS, *(f"{table}.csv" for table in TABLES), "circuit.json"):
        assert again[name] == whole[name], name
    garden("circuit", *SMALL, "--target", "0.8").sentence("other settings", "target")


def test_what_cannot_be_found_is_said_and_leaves_no_list(garden: Shell) -> None:
    said = garden.ran("circuit", *SMALL, "--target", "50", "--criterion", "sufficiency", "--limit", "4")
    assert sum("not found; the best of the sets up to 6 heads" in line for line in said.out) == 4
    assert not garden.table("circuit")["reached"].any()
    assert not list((garden.tmp / "run").glob("circuit*.json")) and garden.about("circuit")["done"]


def test_a_difference_too_small_to_divide_by_stops_in_one_sentence(garden: Shell) -> None:
    said = garden("circuit", *SMALL, "--from", "neut", "--to", "neut")
    said.sentence("logp(neut) − logp(neut) is 0.000 nats", "too small to divide by")
    garden("circuit", *SMALL, "--held-out", "1.5", out="x").sentence("between 0 and 1")


def test_the_smallest_set_is_of_fewest_heads_then_of_the_larger_share() -> None:
    one, two = Head(0, 0), Head(0, 1)
    sets = {
        "score": Found((one, two), 0.95, True, (), 0),
        "greedy": Found((one,), 0.8, False, (), 0),
        "elimination": Found((two, one), 0.97, True, (), 0),
    }
    assert smallest(sets) == "elimination" and smallest({"greedy": sets["greedy"]}) is None
