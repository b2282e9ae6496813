"""backfire attribute: the exact effects are those of `patch`, both engines agree, the tables follow from the rows."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from probes.scoring.contrast import FORMS, METRICS
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import Shell, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

WORDS = ["--limit", "2", "--screen", "4"]


def test_exact_effects_are_those_of_patch_and_estimates_stand_beside_them(shell: Shell) -> None:
    said = shell.once("attribute", *WORDS)
    shell.ran("patch", "--limit", "2", "--k", "2")
    table = shell.logprob("attribute")
    heads = table[table["site"] == "z"].set_index(["item_id", "direction", "layer", "head"])
    patched = shell.logprob("patch_effects").set_index(["item_id", "direction", "layer", "head"])
    assert len(heads) == len(patched) == 2 * 2 * 12 and set(heads.index) == set(patched.index)
    assert (heads["effect_nats"] - patched["effect_nats"].reindex(heads.index)).abs().max() <= NATS
    mlps = table[table["site"] == "mlp_out"]
    assert len(mlps) == 2 * 2 * 3 and mlps["head"].isna().all()
    assert table["estimate_nats"].abs().max() > NATS
    screening = shell.table("attribute_screening")
    statistics = {"spearman", "spearman_within_layer", "recall", "reliability", "reliability_within_layer"}
    assert set(screening["statistic"]) == statistics and set(screening["scope"]) == {"item", "pooled"}
    assert set(screening["metric"]) == set(METRICS)
    line = screening[(screening["metric"] == "margin") & (screening["site"] == "z")].iloc[0]
    margin = shell.table("attribute").query("metric == 'margin' and site == 'z'")
    margin = margin[margin["direction"] == line["direction"]].groupby("item_id")
    assert line["effects_nats"] == pytest.approx(margin["effect_nats"].sum().mean())
    assert line["delta_nats"] == pytest.approx(margin["delta"].first().mean())
    assert f"of {line['delta_nats']:.1f} nats" in line["with"]
    assert (
        len(shell.table("attribute_screen_misses")) and shell.path("attribute_false_negatives.csv").is_file()
    )
    assert any("spearman" in line for line in said.out)


def test_both_engines_and_a_killed_run_give_the_same_rows(shell: Shell) -> None:
    shell.once("attribute", *WORDS)
    shell.ran("attribute", *WORDS, "--engine", "reference", out="slow")
    fast, slow = shell.table("attribute"), shell.table("attribute", "slow")
    for name in ("effect_nats", "estimate_nats"):
        assert (fast[name] - slow[name]).abs().max() <= NATS
    whole = shell.path("attribute.jsonl").read_bytes()
    shell.path("attribute.jsonl").write_bytes(whole[: len(whole) * 2 // 3])
    shell.ran("attribute", *WORDS)
    assert shell.path("attribute.jsonl").read_bytes() == whole


def test_exact_effects_that_direct_has_kept_are_taken_and_are_those_of_a_sweep(shell: Shell) -> None:
    shell.once("attribute", *WORDS, out="alone")
    shell.ran("direct", "--limit", "1")
    said = shell.ran("attribute", *WORDS)
    assert any("exact effects of 2 rows" in line for line in said.out)
    assert shell.about("attribute")["extra"]["from_direct"] == 2
    alone, kept = shell.table("attribute", "alone"), shell.table("attribute")
    pd.testing.assert_frame_equal(alone, kept, check_exact=False, rtol=0, atol=NATS)
    assert kept["effect_nats"].abs().max() > 10 * NATS
    ran = [shell.about("attribute", out)["extra"]["forwards_run"] for out in ("alone", "run")]
    assert ran[1] < ran[0]


@pytest.mark.parametrize("what", ["wording", "engine", "delta", "pair"])
def test_totals_of_other_runs_are_not_taken(shell: Shell, what: str) -> None:
    shell.ran("direct", "--limit", "1", *(["--from", "neut_matched"] if what == "pair" else []))
    words = [*WORDS, *(["--engine", "reference"] if what == "engine" else [])]
    if what == "wording":
        about = json.loads(shell.path("run.json").read_text())
        about["studies"]["direct"]["provenance"]["wording_sha256"] = "0" * 64
        shell.path("run.json").write_text(json.dumps(about))
    if what == "delta":
        rows = shell.lines("direct")
        rows[0]["delta"]["failed"] += 0.01
        shell.path("direct.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shell.ran("attribute", *words)
    assert shell.about("attribute")["extra"]["from_direct"] == (1 if what == "delta" else 0)


def test_more_steps_are_other_estimates_of_the_same_effects(shell: Shell) -> None:
    shell.once("attribute", *WORDS)
    shell.ran("attribute", *WORDS, "--steps", "8", out="more")
    one, more = shell.table("attribute"), shell.table("attribute", "more")
    assert one["effect_nats"].tolist() == pytest.approx(more["effect_nats"].tolist())
    assert (one["estimate_nats"] - more["estimate_nats"]).abs().max() > 1e-6


def test_every_metric_is_the_effects_of_patch_and_the_margin_that_of_two_actions(shell: Shell) -> None:
    shell.once("attribute", *WORDS)
    shell.ran("patch", "--limit", "2", "--k", "2")
    keys = ["metric", "item_id", "direction", "layer", "head"]
    table = shell.table("attribute").query("site == 'z'").set_index(keys).sort_index()
    patched = shell.table("patch_effects").set_index(keys).sort_index()
    assert set(table.index) == set(patched.index) and set(table.index.get_level_values(0)) == set(FORMS)
    assert (table["effect_nats"] - patched["effect_nats"].reindex(table.index)).abs().max() <= NATS
    for row in shell.lines("attribute"):
        own = table.xs(row["item_id"], level="item_id").xs(row["direction"], level="direction")
        for name, column in (("exact", "effect_nats"), ("estimates", "estimate_nats")):
            sums = row[name]
            margin = own.loc["margin", column]
            by_hand = [
                sums["failed"][f"L{i}H{j:.0f}"] - sums["gold"][f"L{i}H{j:.0f}"] for i, j in margin.index
            ]
            assert margin.tolist() == pytest.approx(by_hand, abs=1e-12)
            assert max(abs(a - b) for a, b in zip(margin, own.loc["logprob", column], strict=True)) > NATS
        assert row["n_tokens"]["diverging"] <= row["n_tokens"]["failed"]


def test_the_report_shows_the_metric_that_is_asked_for_and_rows_do_not_depend_on_it(shell: Shell) -> None:
    shell.once("attribute", *WORDS)
    rows = shell.path("attribute.jsonl").read_bytes()
    said = shell.ran("attribute", *WORDS, "--metric", "margin")
    assert shell.path("attribute.jsonl").read_bytes() == rows and "margin:" in said.out
