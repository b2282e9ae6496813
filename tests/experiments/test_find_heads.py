"""`backfire heads`: the causal scores beside the others, resumed by sequence, and head lists as others write them."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from experiments.heads.ranking import ALL_SCORES, random_sequences, ranking
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.head_scores.causal_copying import CAUSAL_SCORES, causal_scores
from mech.head_scores.head_lists import best_first, read_head_list
from mech.head_scores.induction import SCORES
from mech.heads import Head, HeadSet
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--n-sequences", "2", "--length", "5", "--top", "3")


def scores_of(shell: Shell, out: str = "run") -> pd.DataFrame:
    return shell.table("heads", out)


def test_all_scores_are_the_synthetic_ones_and_the_causal_ones_beside(shell: Shell) -> None:
    shell.ran("heads", *SMALL, out="plain")
    shell.ran("heads", *SMALL, "--scores", "all", "--by", "causal_copying")
    plain, found = scores_of(shell, "plain"), scores_of(shell)
    assert list(plain.columns) == ["layer", "head", *SCORES, "selected"]
    assert list(found.columns) == ["layer", "head", *ALL_SCORES, "selected"]
    pd.testing.assert_frame_equal(found[["layer", "head", *SCORES]], plain[["layer", "head", *SCORES]])
    model = loaded_once(str(shell.model))
    expected = causal_scores(Engine(model), random_sequences(model, 0, 2, 5))
    np.testing.assert_allclose(found[list(CAUSAL_SCORES)], expected[list(CAUSAL_SCORES)], rtol=0, atol=NATS)
    best = found.sort_values("causal_copying", ascending=False).head(3)
    frozen = json.loads(shell.path("heads.json").read_text())
    assert frozen["by"] == "causal_copying" and best["selected"].all()
    assert frozen["sha256"] == HeadSet(Head(r.layer, r.head) for r in best.itertuples()).sha256
    scores, source = ranking(model, shell.path("."), 0, "causal_copying")
    assert source == "heads.csv" and scores["causal_copying"].tolist() == found["causal_copying"].tolist()


def test_a_run_that_was_stopped_goes_on_with_the_next_sequence(shell: Shell) -> None:
    words = ("heads", *SMALL, "--scores", "all")
    shell.ran(*words)
    whole, rows = shell.path("heads.csv").read_bytes(), shell.path("heads_causal_copying.jsonl").read_text()
    assert [json.loads(line)["id"] for line in rows.splitlines()] == [
        f"{index}|{score}" for index in (0, 1) for score in CAUSAL_SCORES
    ]
    kept = "".join(rows.splitlines(keepends=True)[:3])
    shell.path("heads_causal_copying.jsonl").write_text(kept + rows.splitlines()[3][:20])  # a torn line
    shell.ran(*words)
    assert (
        shell.path("heads_causal_copying.jsonl").read_text() == rows
        and shell.path("heads.csv").read_bytes() == whole
    )


def test_ablations_may_take_fewer_sequences_than_the_other_scores(shell: Shell) -> None:
    shell.ran("heads", *SMALL, "--scores", "all", "--causal-sequences", "1")
    model = loaded_once(str(shell.model))
    expected = causal_scores(Engine(model), random_sequences(model, 0, 1, 5))
    found = scores_of(shell)
    np.testing.assert_allclose(found[list(CAUSAL_SCORES)], expected[list(CAUSAL_SCORES)], rtol=0, atol=NATS)
    shell.ran("heads", *SMALL, out="plain")
    assert found["copying"].tolist() == scores_of(shell, "plain")["copying"].tolist()


def test_the_selected_heads_are_written_as_others_write_theirs(shell: Shell) -> None:
    shell.ran("heads", *SMALL, "--format", "both")
    model = loaded_once(str(shell.model))
    frozen = read_head_list(shell.path("heads.json"), model.n_layers, model.n_heads)
    assert len(frozen) == 3 and sorted(frozen) == frozen
    for form in ("list", "map"):
        listed = read_head_list(shell.path(f"heads_{form}.json"), model.n_layers, model.n_heads)
        assert listed == best_first(frozen)
    assert set(json.loads(shell.path("heads_map.json").read_text())) == {
        f"{head.layer}-{head.head}" for head, _ in frozen
    }
    shell.ran("heads", *SMALL, "--format", "list", out="one")
    assert shell.path("heads_list.json", "one").is_file() and not shell.path("heads_map.json", "one").exists()
    shell.ran("heads", *SMALL, out="none")
    assert not list(shell.path(".", "none").glob("heads_*.json"))
    shell.ran("heads", *SMALL, "--format", "map", out="none")  # it only presents: the same run
    assert shell.path("heads_map.json", "none").read_text() == shell.path("heads_map.json").read_text()


def test_a_causal_ranking_needs_its_scores(shell: Shell) -> None:
    shell("heads", *SMALL, "--by", "causal_copying").sentence("computed with --scores all only")
    assert not shell.path(".").exists()
    shell("heads", "--length", "1", "--scores", "all").sentence("needs two tokens at least")
    model = loaded_once(str(shell.model))
    with pytest.raises(InputError, match="run `backfire heads --scores all` first to rank by causal_copying"):
        ranking(model, shell.path("."), 0, "causal_copying")
    shell.ran("heads", *SMALL)
    with pytest.raises(InputError, match="does not score causal_copying"):
        ranking(model, shell.path("."), 0, "causal_copying")
