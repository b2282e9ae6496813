"""backfire agree: tables are those of the patches and scores of the folder; suppressors are signed."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest

from experiments.heads.ranking import score_heads
from experiments.mechanism.patch_tables import long_effects
from experiments.run import schema
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.head_scores.induction import SCORES
from mech.head_scores.transcript_induction import TRANSCRIPT_SCORES
from probes.effects.suppressors import SUPPRESSORS, suppressors
from probes.items.item import dump_items
from probes.prompts.wording import load_wording
from probes.scoring.contrast import METRICS
from probes.scoring.record import mean_by_head, record_attention
from tests.mech_cases import one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture


def _rng(name: str = "") -> np.random.Generator:
    return np.random.default_rng(sum(name.encode()))


def test_tables_compare_the_folders_patches_with_scores_and_their_own_transcripts(shell: Shell) -> None:
    shell.ran("patch", "--k", "2")
    said = shell.ran("agree")
    model = loaded_once(str(shell.model))
    scored = pd.concat([record_attention(Engine(model), item, "neut", load_wording()) for item in ITEMS[:3]])
    scores = score_heads(model, 0).merge(mean_by_head(scored), on=["layer", "head"])
    long = long_effects(pd.DataFrame(shell.lines("patch")))
    single = long[long["layer"].notna()]
    means = single.groupby(["metric", "direction", "layer", "head"])["effect_nats"].mean()
    table = shell.table("agree")
    assert tuple(table.columns) == schema.TABLES["agree"]
    found = table[table["statistic"] == "spearman"].set_index(["metric", "direction", "score"])
    found = found.sort_index()
    assert set(found.index) == {
        (m, d, s) for m in METRICS for d in ("denoise", "noise") for s in (*SCORES, *TRANSCRIPT_SCORES)
    }
    by_margin, by_logprob = (found.loc[metric, "estimate"].to_numpy() for metric in ("margin", "logprob"))
    assert np.abs(by_margin - by_logprob).max() > 0.01, "another metric ranks otherwise"
    for (metric, direction, name), row in found.iterrows():
        ranks = means[metric, direction].sort_index().rank().to_numpy()
        sums = single[(single["metric"] == metric) & (single["direction"] == direction)].groupby("item_id")
        assert row["effects_nats"] == pytest.approx(sums["effect_nats"].sum().mean())
        assert row["delta_nats"] == pytest.approx(sums["delta"].first().mean())
        own = scores.set_index(["layer", "head"]).sort_index()[name].rank().to_numpy()
        assert row["estimate"] == pytest.approx(np.corrcoef(own, ranks)[0, 1], abs=1e-6)
        assert (
            row["uses_task_data"] == (name in TRANSCRIPT_SCORES) and row["n"] == 3 and row["n_clusters"] == 2
        )
    between = shell.table("agree_scores")
    assert tuple(between.columns) == schema.TABLES["agree_scores"] and set(between["score"]) == {
        "prefix_matching"
    }
    assert between["uses_task_data"].sum() == len(TRANSCRIPT_SCORES)
    assert ("metric", *SUPPRESSORS) == schema.TABLES["agree_suppressors"]
    assert (
        tuple(shell.table("agree_suppressors").columns[: len(SUPPRESSORS) + 1])
        == schema.TABLES["agree_suppressors"]
    )
    assert any("transcript_induction" in line for line in said.out)
    # Nothing is run again, and only items that were patched are scored.
    shell.ran("agree")
    assert shell.forwards("agree") == (0, 0) and len(shell.lines("agree")) == 3


def test_a_folder_without_patches_of_copy_is_refused(shell: Shell) -> None:
    shell("agree").sentence("There are no patches", "backfire patch")
    shell.ran("patch", "--k", "2", "--from", "neut", "--to", "fail", "--direction", "noise", "--limit", "1")
    shell("agree").sentence("not from pre to neut")
    rows = [{**row, "from": "pre", "to": "neut", "site": "q"} for row in shell.lines("patch")]
    shell.path("patch.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shell("agree").sentence("not from pre to neut")  # nor of z


def test_transcripts_are_those_that_were_patched_and_no_others(shell: Shell) -> None:
    shell.ran("patch", "--k", "2", "--limit", "1", "--direction", "noise")
    shell("agree", "--seed", "1").sentence("patched under another seed (0, not 1)")
    other = shell.tmp / "other.jsonl"
    dump_items(ITEMS[:2], other)
    shell("agree", "--items", other).sentence("patched under another items")
    shell.ran("agree")
    shell.ran("patch", "--k", "2", "--limit", "1", "--direction", "noise", "--seed", "1", out="other")
    shell.ran("agree", "--seed", "1", out="other")
    one, two = (shell.path("agree.csv", out).read_text() for out in ("run", "other"))
    assert one != two  # other random tokens


def effects(values: dict[tuple[int, int], list[float]], direction: str = "noise") -> pd.DataFrame:
    lines = [
        (f"i{i}", f"t{i}", direction, *head, value)
        for head, column in values.items()
        for i, value in enumerate(column)
    ]
    return pd.DataFrame(lines, columns=["item_id", "task_id", "direction", "layer", "head", "effect_nats"])


SCORED = pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "copy_suppression": [0.1, 0.9, 0.5]})


def test_suppressors_are_negative_beyond_their_interval_most_negative_first() -> None:
    values = {
        (0, 0): [-1.0, 2, -2, 0.5, -1, 1],
        (0, 1): [-1.0, -2, -3, -1, -2, -1.5],
        (1, 0): [-5.0, -4, -6, -5, -4, -5],
    }
    rows = pd.concat(
        [effects(values), effects({(0, 0): [1.0] * 6, (0, 1): [2.0] * 6, (1, 0): [3.0] * 6}, "denoise")]
    )
    found = suppressors(rows, SCORED, _rng, ["copy_suppression"], 2000)
    assert list(zip(found["layer"], found["head"], strict=True)) == [(1, 0), (0, 1)]
    assert found["effect_nats"].tolist() == pytest.approx([-29 / 6, -10.5 / 6]) and (found["ci_hi"] < 0).all()
    assert found["copy_suppression"].tolist() == [0.5, 0.9] and set(found["direction"]) == {"noise"}
    assert (found["n_heads"] == 3).all() and (found["p_holm"] >= found["p"]).all()


def test_few_tasks_show_no_suppressor_and_a_head_without_a_score_is_named() -> None:
    rows = effects({(0, 1): [-1.0, -2, -3, -1, -2, -3]})
    assert suppressors(rows[:5], SCORED, _rng, ["copy_suppression"], 100).empty
    assert suppressors(rows.assign(task_id="t"), SCORED, _rng, ["copy_suppression"], 100).empty
    with pytest.raises(InputError, match="L0H1 was patched and has no score"):
        suppressors(rows, SCORED.drop(index=1), _rng, ["copy_suppression"], 100)
    assert not math.isnan(suppressors(rows, SCORED, _rng, ["copy_suppression"], 100)["ci_lo"].iloc[0])
