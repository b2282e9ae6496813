"""backfire joint: its rows are those of hooked full forwards, all heads together are the other run, shares follow."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.ablating import Replacement
from experiments.joint_sets import ABLATIONS, clean_runs, effect, joint_item
from experiments.seeds import stream
from experiments.session import Session
from mech.changes import score_changes
from mech.engine import Engine
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions import scale_heads
from mech.patching import all_heads
from probes.carried import METHODS
from probes.wording import load_wording
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

SHORT = list(ITEMS[:3])
WORDS = ["--k", "1,2", "--controls", "2", "--ablation-controls", "1"]


def session_of(shell: Shell, slow: bool = False) -> Session:
    engine = Engine(loaded_once(str(shell.model)), slow=slow)
    return Session(engine, SHORT, load_wording(), lambda name: stream(0, name))


def test_rows_are_those_of_full_forwards_and_shares_follow_from_them(shell: Shell) -> None:
    said = shell.ran("joint", *WORDS)
    shell.ran("joint", *WORDS, "--engine", "reference", out="slow")
    rows, slow = shell.lines("joint_sets"), shell.lines("joint_sets", "slow")
    assert [row["id"] for row in rows] == [f"{item.item_id}|{one}" for item in SHORT for one in METHODS]
    for one, other in zip(rows, slow, strict=True):
        for key, value in one["whole"].items():
            assert abs(value - other["whole"][key]) <= NATS
        for key, values in one["under"].items():
            assert set(values) == set(other["under"][key])
            for label, value in values.items():
                assert abs(value - other["under"][key][label]) <= NATS
    table = shell.table("carried").set_index(["method", "k"])
    assert set(table.index) == {(method, k) for method in METHODS for k in (1, 2)}
    by = {(row["method"], row["item_id"]): row for row in rows}
    for method in METHODS:
        chosen = [by[method, item.item_id] for item in SHORT]
        draws = 1 if method in ABLATIONS else 2
        copy = sum(row["whole"]["failed|neut"] - row["whole"]["failed|pre"] for row in chosen)
        shares = [
            sum(effect(method, row["whole"], row["under"], label) for row in chosen) / copy
            for label in ("top2", "top2/random0", "top2/random1")[: 1 + draws]
        ]
        cells = table.loc[(method, 2)]
        assert cells["share"] == pytest.approx(shares[0])
        assert cells["control_mean"] == pytest.approx(np.mean(shares[1:]))
        assert cells["excess"] == pytest.approx(shares[0] - np.mean(shares[1:]))
        assert cells["p"] == pytest.approx((sum(one >= shares[0] for one in shares[1:]) + 1) / (draws + 1))
        assert cells["n_controls"] == draws and cells["n"] == len(SHORT)
    assert any("knockout" in line for line in said.out)


def test_effects_are_the_differences_their_docstring_says() -> None:
    whole = {"failed|pre": -30.0, "failed|neut": -10.0}
    under = {"failed|pre": {"s": -26.0}, "failed|neut": {"s": -15.0}}
    assert effect("noise", whole, under, "s") == effect("knockout", whole, under, "s") == 5.0
    assert effect("denoise", whole, under, "s") == 4.0
    # Δcopy was 20 and is 11 under the ablation.
    assert effect("mean", whole, under, "s") == effect("zero", whole, under, "s") == 9.0


def test_all_heads_together_are_the_other_run(shell: Shell) -> None:
    """With z of every head from the other run the MLPs follow: nothing is left of this one but the embedding."""
    session = session_of(shell)
    everyone = dict.fromkeys(["noise", "denoise", "zero"], {"all": ("selected", all_heads(session.model))})
    puts = {how: Replacement(None) for how in ("mean", "resample", "zero")}
    for item in SHORT[1:3]:
        noise, denoise, zero = joint_item(session, item, everyone, puts)
        whole = noise["whole"]
        assert abs(whole["failed|neut"] - whole["failed|pre"]) > 10 * NATS
        assert noise["under"]["failed|neut"]["all"] == pytest.approx(whole["failed|pre"], abs=NATS)
        assert noise["under"]["gold|neut"]["all"] == pytest.approx(whole["gold|pre"], abs=NATS)
        assert denoise["under"]["failed|pre"]["all"] == pytest.approx(whole["failed|neut"], abs=NATS)
        # Without attention the candidate positions know nothing of the context.
        under = zero["under"]
        assert under["failed|pre"]["all"] == pytest.approx(under["failed|fail"]["all"], abs=NATS)


def test_what_acts_elsewhere_is_refused(shell: Shell) -> None:
    session = session_of(shell)
    run = clean_runs(session, ITEMS[0]).clean["failed", "neut"]
    heads = HeadSet.parse("L0H0")
    with pytest.raises(InputError, match="candidate positions only"):
        score_changes(session.engine, run, [scale_heads(heads, 0.0, "all")])


def test_a_killed_run_goes_on_and_other_sets_are_refused(shell: Shell) -> None:
    shell.ran("joint", *WORDS)
    whole, table = shell.path("joint_sets.jsonl").read_bytes(), shell.path("carried.csv").read_bytes()
    lines = whole.splitlines(keepends=True)
    shell.path("joint_sets.jsonl").write_bytes(b"".join(lines[:8]) + lines[8][:30])
    shell.ran("joint", *WORDS)
    assert shell.path("joint_sets.jsonl").read_bytes() == whole
    assert shell.path("carried.csv").read_bytes() == table
    shell("joint", "--k", "3", "--controls", "2").sentence("other settings")
