"""The bench compares like with like: equal answers by every method, work counted by hand, ratios of what was timed."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path

import pytest

from experiments.bench.bench import (
    layer_flop,
    matrix_entries,
    rate_method,
    read_flop,
    scoring_flop,
    scoring_methods,
    sweep_flop,
    sweep_methods,
)
from experiments.bench.bench_decoding import CONDITIONS, _same, decoding_methods
from experiments.bench.bench_methods import PrefixCached, full_forwards, load_stock
from experiments.bench.bench_timing import Method, Turn, compare, report_text, spread, turns
from mech.engine import reference
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head
from probes.prompts.wording import load_wording
from probes.scoring.score import run_decision_point
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

pytestmark = pytest.mark.usefixtures("one_thread")

STEM = tuple(range(20, 43))  # longer than the sliding window of the tiny Gemma 3
QUERIES = (
    Query((*STEM, 60, 61, 9), (100, 101, 102)),
    Query((*STEM, 60, 61, 9), (100, 103)),
    Query((*STEM, 70, 9), (100, 101, 102)),
    Query((*STEM, 70, 9), (104,)),
)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_the_competing_methods_give_the_scores_of_the_slow_reference(
    tiny_folder: FolderFactory, family: str, tmp_path: Path
) -> None:
    model = tiny_model(tiny_folder, family, "float32")
    stock = load_stock(model, tmp_path)
    expected = [score.total for score in reference.score(model, QUERIES)]
    cached = PrefixCached(stock)
    cached.warm(STEM)
    for _ in range(2):  # the second time on a cache that the first has used
        assert [s.total for s in cached.score(QUERIES)] == pytest.approx(expected, abs=NATS)
        cached.warm(STEM)
    backwards = [score.total for score in cached.score(QUERIES[::-1])]
    assert backwards[::-1] == pytest.approx(expected, abs=NATS)
    assert [s.total for s in full_forwards(stock, QUERIES)] == pytest.approx(expected, abs=NATS)


def test_a_checkpoint_that_changed_since_it_was_loaded_is_refused(
    tiny_folder: FolderFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    other = tiny_folder("llama", seed=1)
    monkeypatch.setattr(
        "experiments.bench.bench_methods.resolve", lambda name, folder, pre: _resolved(other, folder)
    )
    with pytest.raises(InputError, match="changed"):
        load_stock(model, tmp_path)


def _resolved(folder: Path, cache: Path) -> object:
    from mech.models.checkpoints import resolve

    return resolve(str(folder), cache)


def test_the_work_of_a_tiny_llama_is_what_a_hand_counts(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    # d_model 32, 4 heads and 2 key/value heads of 8, MLP 48, vocabulary 272, 3 layers.
    entries = 32 * 32 + 2 * 32 * 16 + 32 * 32 + 3 * 32 * 48
    assert matrix_entries(model, 0) == entries
    assert layer_flop(model, 0, [0, 4]) == 2 * 2 * entries + 4 * 32 * (1 + 5)
    assert read_flop(model, 2) == 2 * 2 * 32 * 272
    # Over a prefix cache of 2 tokens: 7 and its two branches, so nodes at 2, 3, 3; each of the three is read, 7 once.
    queries = [Query((5, 6, 7), (8, 9)), Query((5, 6, 7), (9, 8))]
    assert scoring_flop(model, queries, 2) == 3 * layer_flop(model, 0, [2, 3, 3]) + read_flop(model, 3)
    # A head of layer 1 passes layers 1 and 2, one of layer 2 the last alone; positions 2 and 3 each.
    one_layer = layer_flop(model, 0, [2, 3])
    assert sweep_flop(model, queries[0], [Head(1, 0), Head(2, 3)]) == 3 * one_layer + 2 * read_flop(model, 2)


def test_a_method_timed_on_a_part_is_scaled_and_the_median_of_its_rounds_counts() -> None:
    def method(name: str, value: float, **more: int) -> Method:
        return Method("scoring", name, lambda: {"q": value}, **more)

    ours, theirs = method("ours", -1.0, flop=4 * 10**9), method("theirs", -1.5, done=2, of=10)
    rate = Method("rate", "product", lambda: {"entry": 1.0}, flop=8 * 10**9)
    ticks = iter([0, 1, 1, 2, 2, 4, 4, 13, 13, 15, 15, 16, 16, 19, 19, 20, 20, 24])
    rounds = [unit for _ in range(3) for unit in enumerate([[ours, theirs], [rate]])]
    done = list(turns(rounds, lambda: next(ticks)))
    assert [turn.seconds for turn in done] == [1, 5, 2, 9, 10, 1, 3, 5, 4]
    table = compare(done).set_index("method")
    assert list(table["seconds"]) == [3, 5, 2]
    assert table.loc["theirs", "ratio"] == pytest.approx(5 / 3)
    assert table.loc["theirs", "max_diff_nats"] == 0.5
    # 4 GFLOP in 3 s, where the machine does 8 in 2.
    assert table.loc["ours", "fraction"] == pytest.approx(1 / 3)


def test_units_of_different_size_count_alike() -> None:
    ours = Method("scoring", "ours", lambda: {}, flop=1)
    rate = Method("rate", "product", lambda: {}, flop=1)

    def turn(unit: int, method: Method, seconds: float) -> Turn:
        return Turn(unit, method, seconds, {"q": 0.0})

    done = [turn(0, ours, 1), turn(0, ours, 3), turn(1, ours, 8), turn(2, rate, 1)]
    assert compare(done).set_index("method").loc["ours", "seconds"] == 5


def test_what_makes_a_method_ready_is_not_timed() -> None:
    clock = count()
    spent: list[int] = []

    def ready() -> None:
        spent.append(next(clock))

    [turn] = turns([(0, [Method("scoring", "ours", lambda: {}, ready)])], lambda: float(next(clock)))
    assert spent == [0] and turn.seconds == 1


def test_a_sample_is_spread_and_no_larger_than_what_there_is() -> None:
    assert spread(range(270), 4) == [33, 101, 168, 236]
    assert spread("ab", 5) == ["a", "b"]


def test_all_methods_of_a_part_answer_alike(tiny_folder: FolderFactory, tmp_path: Path) -> None:
    model = tiny_model(tiny_folder, "llama", "float32")
    engine, wording = Engine(model), load_wording()
    stock = load_stock(model, tmp_path)
    recipient, donor = (run_decision_point(engine, ITEMS[1], name, wording) for name in ("neut", "pre"))
    parts = [
        scoring_methods(engine, stock, PrefixCached(stock), ITEMS[1], wording, 5),
        sweep_methods(engine, recipient, donor, 4),
        decoding_methods(engine, stock, ITEMS[1], wording),
        [rate_method(model)],
    ]
    clock = count()
    done = list(turns(enumerate(parts), lambda: float(next(clock))))
    answers: list[Mapping[str, float]] = [turn.answers for turn in done]
    assert [len(each) for each in answers] == [20, 20, 5, 12, 4, 2, 2, 2, 2, 1]
    # A sweep in which patching changes nothing would agree by itself.
    assert max(abs(value - recipient.score.total) for value in answers[3].values()) > 100 * NATS
    assert compare(done)["max_diff_nats"].max() <= NATS


def test_ways_that_write_different_turns_are_not_compared() -> None:
    written: list[tuple[int, ...]] = []
    first = _same(written, [(1, 2), (3,)], [-1.0, -2.0])
    assert first == dict(zip(CONDITIONS, [-1.0, -2.0], strict=True))
    assert _same(written, [(1, 2), (3,)], [-1.5, -2.0])["pre"] == -1.5
    with pytest.raises(RuntimeError, match="different turns"):
        _same(written, [(1, 2), (4,)], [-1.0, -2.0])


def test_bench_prints_every_ratio_and_writes_the_table(shell: Shell) -> None:
    said = shell.ran(
        *("bench", "--items", shell.items, "--limit", "2", "--repeats", "1", "--sweep-id", "garden-2"),
        *("--sample-heads", "3", "--sample-full", "2", "--quiet"),
    )
    text, table = "\n".join(said.out), shell.table("bench").set_index("method")
    assert list(table["part"]) == ["scoring"] * 3 + ["decoding"] * 4 + ["sweep"] * 2 + ["rate"]
    for name, row in table.iterrows():
        if row["part"] != "rate":
            assert f"{name:<34}{row['seconds']:>9.3f}{row['ratio']:>8.1f}x" in text
    assert "timed on 2 of 20, scaled" in text and "timed on 3 of 12, scaled" in text
    assert "sweep of 12 heads" in text and "of that rate" in text
    assert table["max_diff_nats"].max() <= NATS
    about = shell.about("bench")
    assert about["done"] and about["provenance"]["swept"] == "garden-2"
    assert about["provenance"]["threads"] == 1


def test_bench_without_a_folder_writes_nothing_and_an_unknown_item_is_refused(shell: Shell) -> None:
    words = (
        "--items",
        shell.items,
        "--limit",
        "1",
        "--repeats",
        "1",
        "--sample-heads",
        "1",
        "--quiet",
    )
    assert shell("bench", *words, out=None).code == 0
    assert not (shell.tmp / "run").exists()
    shell("bench", *words, "--sweep-id", "nobody", out=None).sentence("backfire bench", "nobody")


def test_the_report_marks_what_was_scaled_and_only_that() -> None:
    ours = Method("sweep", "ours", lambda: {}, flop=10**9)
    theirs = Method("sweep", "theirs", lambda: {}, done=1, of=9)
    rate = Method("rate", "product", lambda: {}, flop=10**9)
    done = [Turn(0, each, second, {"q": 0.0}) for each, second in ((ours, 2.0), (theirs, 8.0), (rate, 1.0))]
    lines = report_text(compare(done), {"sweep": "the sweep"}).splitlines()
    assert [line.strip().split()[0] for line in lines if "scaled" in line] == ["theirs"]
    assert "4.0x" in next(line for line in lines if "theirs" in line)
