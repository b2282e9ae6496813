"""backfire circuit: found sets reach what is said of them, tasks do not leak, a stopped run ends with equal bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.find_circuit import smallest
from mech.circuits import KINDS
from mech.head_lists import read_head_list
from mech.heads import Head, HeadSet
from probes.circuit_search import Found
from probes.items import dump_items
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

SMALL = [
    *("--transfer", "none", "--controls", "2", "--subsets", "2", "--repeats", "1", "--screen", "4"),
    *("--held-out", "0.5", "--max-size", "8"),
]
ROWS = ("circuit_items.jsonl", "circuit_effects.jsonl")
TABLES = ("circuit", "circuit_heads", "circuit_completeness", "circuit_curve", "circuit_stability", "circuit_ranking")
# Two tasks more than the shared cases have, so that both sides have an interval.
MORE = tuple(
    replace(item, item_id=f"{item.item_id}-b", task_id=f"{item.task_id}-b", goal=f"{item.goal} Now.", template="b")
    for item in ITEMS
)


@pytest.fixture
def garden(shell: Shell) -> Shell:  # noqa: F811 - a fixture
    """The shell with items of four tasks and two templates."""
    dump_items([*ITEMS, *MORE], shell.items)
    return shell


def test_the_tables_say_what_the_rows_and_the_slow_path_say(garden: Shell) -> None:
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
            assert line.p in (1 / 3, 2 / 3, 1.0)
    gaps = garden.table("circuit_completeness")
    assert set(gaps.loc[gaps["subset"] == 0, "model_left"]) == {1.0}
    alone = table[table["test_set"] == "held-out"].set_index("method")["faithfulness"]
    for row in gaps[gaps["subset"] == 0].itertuples():
        assert row.gap == pytest.approx(abs(alone[row.method] - 1))
    steady = garden.table("circuit_stability")
    assert set(steady["variation"]) == {"seed", "tasks", "templates"}
    assert steady["jaccard"].between(0, 1).all() and steady["kendall"].dropna().between(-1, 1).all()
    assert any(line.startswith("score: ") for line in said.out)


def test_the_frozen_set_is_a_head_list_that_other_studies_read(garden: Shell) -> None:
    garden.ran("circuit", *SMALL)
    found = garden.about("circuit")["extra"]
    best = found["found"][found["smallest"]]
    listed = read_head_list(garden.path("circuit.json"), 3, 4)
    assert {str(head) for head, _ in listed} == set(best["heads"])
    by_score = sorted(listed, key=lambda pair: -pair[1])
    assert [str(head) for head, _ in by_score] == best["heads"]
    assert garden.path("circuit.json").read_bytes() == garden.path(f"circuit_{found['smallest']}.json").read_bytes()
    chosen = garden.table("circuit_ranking")
    assert chosen["selected"].sum() == len(listed) and len(chosen) == 12
    garden.ran(
        "cut", "--k", "1", "--controls", "1", "--limit", "1", out="other"
    )
    garden.ran("ablate", "--heads", garden.path("circuit.json"), "--controls", "1", "--limit", "1", out="other")
    assert garden.about("ablate", "other")["provenance"]["sets"]["named"] == str(HeadSet(h for h, _ in listed))


def test_no_task_of_the_training_items_is_tested_on(garden: Shell) -> None:
    strange = replace(ITEMS[0], item_id="far", task_id="far", goal="Another plot.", env="toolshed")
    file = garden.tmp / "paper.jsonl"
    dump_items([*ITEMS, *MORE, strange], file)
    for seed in ("0", "1"):
        garden.ran("circuit", *SMALL, "--test-items", file, "--seed", seed, out=seed)
        about = garden.about("circuit", seed)["provenance"]
        by_id = {item.item_id: item for item in (*ITEMS, *MORE, strange)}
        tasks = {label: {by_id[one].task_id for one in ids} for label, ids in about["items"].items()}
        assert set(tasks) == {"training", "held-out", "paper"} and all(tasks.values())
        assert not tasks["training"] & (tasks["held-out"] | tasks["paper"])
        assert about["left_out"] == {"paper": 4}
        assert set(garden.table("circuit", seed)["test_set"]) == set(tasks)
    dump_items(ITEMS[:1], file)
    texts = [
        garden("circuit", *SMALL, "--test-items", file, "--seed", seed, out=f"leak{seed}").err for seed in "0123"
    ]
    assert any("Every item of 'paper' shares a task or goal" in line for lines in texts for line in lines)
    file.rename(garden.tmp / "held-out.jsonl")
    garden("circuit", *SMALL, "--test-items", garden.tmp / "held-out.jsonl", out="x").sentence("Rename")


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
    said = garden.ran("circuit", *SMALL, "--target", "50", "--criterion", "sufficiency")
    assert sum("not found; the best of the sets up to 8 heads" in line for line in said.out) == 4
    assert not garden.table("circuit")["reached"].any()
    assert not list((garden.tmp / "run").glob("circuit*.json")) and garden.about("circuit")["done"]


def test_a_difference_too_small_to_divide_by_stops_in_one_sentence(garden: Shell) -> None:
    said = garden("circuit", *SMALL, "--from", "neut", "--to", "neut")
    said.sentence("logp(neut) − logp(neut) is 0.000 nats", "too small to divide by")
    garden("circuit", *SMALL, "--held-out", "1.5", out="x").sentence("between 0 and 1")
    dump_items(ITEMS[:2], garden.items)
    garden("circuit", *SMALL, out="x").sentence("1 task")


def test_the_smallest_set_is_of_fewest_heads_then_of_the_larger_share() -> None:
    one, two = Head(0, 0), Head(0, 1)
    sets = {
        "score": Found((one, two), 0.95, True, (), 0),
        "greedy": Found((one,), 0.8, False, (), 0),
        "elimination": Found((two, one), 0.97, True, (), 0),
    }
    assert smallest(sets) == "elimination" and smallest({"greedy": sets["greedy"]}) is None
