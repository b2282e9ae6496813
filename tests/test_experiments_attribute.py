"""backfire attribute: the exact effects are those of `patch`, both engines agree, the tables follow from the rows."""

from __future__ import annotations

import pytest

from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

WORDS = ["--limit", "2", "--screen", "4"]


def test_exact_effects_are_those_of_patch_and_estimates_stand_beside_them(shell: Shell) -> None:
    said = shell.ran("attribute", *WORDS)
    shell.ran("patch", "--limit", "2", "--k", "2")
    table = shell.table("attribution")
    heads = table[table["site"] == "z"].set_index(["item_id", "direction", "layer", "head"])
    patched = shell.table("effects").set_index(["item_id", "direction", "layer", "head"])
    assert len(heads) == len(patched) == 2 * 2 * 12 and set(heads.index) == set(patched.index)
    assert (heads["effect_nats"] - patched["effect_nats"].reindex(heads.index)).abs().max() <= NATS
    mlps = table[table["site"] == "mlp_out"]
    assert len(mlps) == 2 * 2 * 3 and mlps["head"].isna().all()
    assert table["estimate_nats"].abs().max() > NATS
    screening = shell.table("screening")
    assert {"spearman", "recall"} == set(screening["statistic"]) and {"item", "pooled"} == set(
        screening["scope"]
    )
    assert len(shell.table("screen_misses")) and shell.path("false_negatives.csv").is_file()
    assert any("spearman" in line for line in said.out)


def test_both_engines_and_a_killed_run_give_the_same_rows(shell: Shell) -> None:
    shell.ran("attribute", *WORDS)
    shell.ran("attribute", *WORDS, "--engine", "reference", out="slow")
    fast, slow = shell.table("attribution"), shell.table("attribution", "slow")
    for name in ("effect_nats", "estimate_nats"):
        assert (fast[name] - slow[name]).abs().max() <= NATS
    whole = shell.path("attributions.jsonl").read_bytes()
    shell.path("attributions.jsonl").write_bytes(whole[: len(whole) * 2 // 3])
    shell.ran("attribute", *WORDS)
    assert shell.path("attributions.jsonl").read_bytes() == whole


def test_more_steps_are_other_estimates_of_the_same_effects(shell: Shell) -> None:
    shell.ran("attribute", *WORDS)
    shell.ran("attribute", *WORDS, "--steps", "8", out="more")
    one, more = shell.table("attribution"), shell.table("attribution", "more")
    assert one["effect_nats"].tolist() == pytest.approx(more["effect_nats"].tolist())
    assert (one["estimate_nats"] - more["estimate_nats"]).abs().max() > 1e-6
