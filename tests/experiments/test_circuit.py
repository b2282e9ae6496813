"""backfire circuit: found sets reach what is said of them, tasks do not leak, a stopped run ends with equal bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.heads.control_sets import KINDS as KINDS_OF_CONTROL
from experiments.mechanism.circuit import STUDY, sets_to_test, smallest
from experiments.run.flags import parse
from experiments.run.seeds import stream
from experiments.run.session import Session
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.head_scores.head_lists import read_head_list
from mech.heads import Head, HeadSet
from mech.patching.circuits import KINDS
from probes.effects.circuit_search import Found
from probes.items.item import Item, dump_items
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, contents, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

SMALL = [
    *("--transfer", "none", "--controls", "2", "--subsets", "2", "--repeats", "1", "--screen", "4"),
    *("--held-out", "0.5", "--max-size", "6", "--search-repeats", "1", "--control-kinds", "random"),
]
ROWS = ("circuit_items.jsonl", "circuit_effects.jsonl", "circuit_sets.jsonl")
TABLES = (
    "circuit",
    "circuit_controls",
    "circuit_heads",
    "circuit_completeness",
    "circuit_curve",
    "circuit_stability",
    "circuit_stability_summary",
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
    assert set(table["metric"]) == set(FORMS)
    np.testing.assert_allclose(
        table[list(KINDS)], garden.table("circuit", "slow")[list(KINDS)], rtol=0, atol=NATS
    )
    shares = shares_of_rows(garden)
    for line in table.itertuples():
        named = HeadSet.parse(line.heads)
        listed = heads[heads["method"] == line.method].sort_values("order")
        assert HeadSet(map(Head, listed["layer"], listed["head"])) == named and line.k == len(named)
        for kind in KINDS:
            share, n = shares(line.test_set, kind, named, line.metric)
            assert n == line.n and getattr(line, kind) == pytest.approx(share)
        if line.test_set == "training":
            assert np.isnan(line.excess_p) and line.n_controls == 0
            assert line.metric != "logprob" or line.reached == (line.necessity >= 0.9)
        assert np.isnan(line.p), "two control sets have no rank that reaches .05"
    beside = garden.table("circuit_controls")
    assert set(beside["control"]) == {"random"} and set(beside["test_set"]) == {"held-out"}
    drawn = {row["id"]: row["sets"] for row in garden.lines("circuit_sets")}
    for line in beside[beside["n_controls"] > 0].itertuples():
        [own] = table.loc[
            (table["method"] == line.method)
            & (table["test_set"] == line.test_set)
            & (table["metric"] == line.metric),
            "heads",
        ]
        sets = [
            HeadSet.parse(",".join(one["heads"])) for one in drawn[f"{HeadSet.parse(own).sha256[:16]}|random"]
        ]
        each = [shares("held-out", "necessity", heads, line.metric)[0] for heads in sets]
        assert len(each) == line.n_controls and line.control_mean == pytest.approx(np.mean(each))
        assert line.excess == pytest.approx(line.share - np.mean(each))
    gaps = garden.table("circuit_completeness")
    assert set(gaps.loc[gaps["subset"] == 0, "model_left"]) == {1.0}
    here = (table["test_set"] == "held-out") & (table["metric"] == "logprob")
    alone = table[here].set_index("method")["faithfulness"]
    for row in gaps[gaps["subset"] == 0].itertuples():
        assert row.gap == pytest.approx(abs(alone[row.method] - 1))
    assert any(line.startswith("score: ") for line in said.out)
    assert any("Holm family 'circuit' (margin)" in line for line in said.out)

    _is_a_head_list_that_other_studies_read(garden)


def shares_of_rows(garden: Shell) -> Callable[[str, str, HeadSet, str], tuple[float, int]]:
    """A share by hand, from token sums in the rows: of a test set, kind, set and metric; and of how many items."""
    items = {row["id"]: row for row in garden.lines("circuit_items") if "scores" in row}
    rows = garden.lines("circuit_effects")

    def metric(name: str, sums: Mapping[str, float], tail: float, row: Mapping[str, Any]) -> float:
        n = row["n_tokens"]
        per = name.endswith("_per_token")
        if name.startswith("diverging"):
            return tail / (row["n_diverging"] if per else 1)
        failed = sums["failed"] / (n["failed"] if per else 1)
        return failed - (sums["gold"] / (n["gold"] if per else 1) if name.startswith("margin") else 0)

    def shares(test_set: str, kind: str, heads: HeadSet, name: str) -> tuple[float, int]:
        key, top, bottom, n = heads.sha256[:16], 0.0, 0.0, 0
        for item, row in items.items():
            if not item.startswith(f"{test_set}/"):
                continue
            mine = [
                one for one in rows if (one["item"], one["kind"]) == (item, kind) and key in one["effects"]
            ]
            sums = {one["candidate"]: one["effects"][key] for one in mine}
            [tail] = [one["diverging"][key] for one in mine if one["candidate"] == "failed"]
            ends = [
                metric(name, row["scores"][end]["candidates"], row["scores"][end]["diverging"], row)
                for end in ("from", "to")
            ]
            top, bottom, n = top + metric(name, sums, tail, row), bottom + ends[1] - ends[0], n + 1
        return top / bottom, n

    return shares


def test_halves_are_compared_with_each_other_and_rankings_of_halves_cost_nothing(garden: Shell) -> None:
    many = ["--repeats", "3", "--held-out", "0.25"]
    garden.ran("circuit", *SMALL, *many)
    table = garden.table("circuit_stability")
    trained = garden.about("circuit")["provenance"]["items"]["training"]
    assert set(table["variation"]) == {"tokens", "task"}  # the two templates of a garden share its tasks
    pairs = table[table["variation"] == "task"]
    assert ((pairs["n_items"] + pairs["n_items_other"]) == len(trained)).all()
    assert set(pairs["method"]) == {"exact", "score", "attribution", "greedy", "elimination"}
    searched = pairs[pairs["jaccard"].notna() | pairs["k"].notna()]
    assert searched.groupby("method").size().to_dict() == {
        **{"attribution": 3, "elimination": 1, "greedy": 1, "score": 3}
    }
    ranked = pairs[pairs["method"] == "attribution"]
    assert ranked["spearman"].between(-1, 1).all() and ranked["recall_8"].between(0, 1).all()
    assert ranked["recall_16"].isna().all()  # twelve heads
    summary = garden.table("circuit_stability_summary").set_index(["method", "variation", "statistic"])
    row = summary.loc[("attribution", "task", "spearman")]
    assert row["n_repeats"] == 3 and row["mean"] == pytest.approx(ranked["spearman"].mean())
    assert row["lowest"] <= row["lo"] <= row["hi"] <= row["highest"] and row["chance"] == 0
    assert summary.loc[("attribution", "task", "recall_8"), "chance"] == pytest.approx(8 / 12)


def test_a_margin_asks_both_candidates_in_the_search_and_finds_sets_for_it(garden: Shell) -> None:
    garden.ran("circuit", *SMALL, "--metric", "margin", "--target", "0.5")
    table = garden.table("circuit")
    reached = table[(table["test_set"] == "training") & (table["metric"] == "margin") & table["reached"]]
    assert len(reached) and (reached["necessity"] >= 0.5).all()
    shares = shares_of_rows(garden)
    for line in table.itertuples():
        share, _ = shares(line.test_set, "necessity", HeadSet.parse(line.heads), line.metric)
        assert line.necessity == pytest.approx(share)
    searched = [row for row in garden.lines("circuit_effects") if row["item"].startswith("training/")]
    keys = {
        name: {key for row in searched if row["candidate"] == name for key in row["effects"]}
        for name in ("failed", "gold")
    }
    assert keys["failed"] == keys["gold"]
    garden("circuit", *SMALL, "--target", "0.5").sentence("other settings", "metric")


def test_items_without_anything_to_compare_with_are_left_out_of_a_margin(garden: Shell) -> None:
    bare = [replace(item, gold_action=None, distractors=(), obs_fail_other=None) for item in GARDEN]
    dump_items([*GARDEN[:6], *bare[6:]], garden.items)
    said = garden.ran("circuit", *SMALL, "--metric", "margin", "--target", "0.2")
    assert any("2 items have neither a reference action nor distractors" in line for line in said.out)
    told = garden.about("circuit")["provenance"]["items"]
    assert not {bare[6].item_id, bare[7].item_id} & {*told["training"], *told["held-out"]}
    garden.ran("circuit", *SMALL, "--target", "0.2", out="sums")
    table = garden.table("circuit", "sums")
    sizes = table[table["method"] == "score"].groupby("metric")["n"].sum()
    assert sizes["logprob"] == 8 and sizes["margin"] == sizes["diverging"] == 6
    dump_items(bare, garden.items)
    garden("circuit", *SMALL, "--metric", "margin", out="none").sentence(
        "--metric margin needs one of the two"
    )


def test_every_kind_of_control_stands_beside_the_set_or_is_said_to_be_missing(garden: Shell) -> None:
    said = garden.ran("circuit", *SMALL, "--control-kinds", "all", "--target", "0.3")
    table = garden.table("circuit_controls")
    missing = [line for line in said.out if line.startswith("no '")]
    kinds = {
        kind for kind in KINDS_OF_CONTROL if (table.loc[table["control"] == kind, "n_controls"] > 0).any()
    }
    told = {line.split("'")[1] for line in missing}
    assert kinds | told == set(KINDS_OF_CONTROL) and {"random", "complement", "sink"} <= kinds
    assert (
        table.loc[table["control"] == "complement", "control_k"]
        == 12 - table.loc[table["control"] == "complement", "k"]
    ).all()
    family = table[table["metric"] == "margin"]
    assert set(family["family_size"]) == {int(family["excess_p"].notna().sum())}


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
    about = garden.about("probe", "ablated")["provenance"]["ablations"]["circuit@zero"]
    assert about["heads"] == str(HeadSet(head for head, _ in listed))


def sets(
    garden: Shell, *words: str | Path, seed: int = 0, items: Sequence[Item] = GARDEN
) -> tuple[dict[str, list[Item]], dict[str, int]]:
    """The test sets that a command would have, by label, and what it leaves out."""
    config = parse(STUDY, [*SMALL, "--items", str(garden.items), *map(str, words)]).config
    engine = Engine(loaded_once(str(garden.model)))
    session = Session(engine, list(items), load_wording(), lambda name: stream(seed, name))
    tests, left_out = sets_to_test(session, config)
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


def test_no_template_of_the_training_items_is_tested_on_where_templates_are_split(garden: Shell) -> None:
    plots = [
        replace(item, item_id=f"p{at}", task_id=f"p{at}", goal=f"Plot {at}.", template=f"t{at // 2}")
        for at, item in enumerate((*GARDEN, *GARDEN[:4]))
    ]
    folder = garden.tmp / "files"
    folder.mkdir()
    strange = replace(plots[0], item_id="s", task_id="s", goal="Far.", template="far")
    alike = [
        replace(item, item_id=f"{item.item_id}x", task_id=f"{item.task_id}x", goal=f"{item.goal}x")
        for item in plots
    ]
    dump_items([*alike, strange], folder / "paper.jsonl")
    for words, level in (
        (["--split", "template"], "template"),
        ([], "template"),
        (["--split", "task"], "task"),
    ):
        found, left_out = sets(garden, *words, "--test-items", folder, items=plots)
        seen = {item.template for item in found["training"]}
        others = {
            label: {item.template for item in items} for label, items in found.items() if label != "training"
        }
        tasks = {item.task_id for item in found["training"]}
        assert not any(item.task_id in tasks for label in others for item in found[label])
        shared = any(seen & templates for templates in others.values())
        assert shared == (level == "task")
        assert left_out["paper"] == (len(seen) * 2 if level == "template" else 0)
    five = [replace(item, template=f"t{at % 5}") for at, item in enumerate(plots)]
    assert {item.template for item in sets(garden, items=five)[0]["training"]} & {
        item.template for item in sets(garden, items=five)[0]["held-out"]
    }, "five templates are split by task"


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
