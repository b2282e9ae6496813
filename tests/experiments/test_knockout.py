"""backfire knockout: rows are those of full forwards, sources are what they say, hiding nothing changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.interventions.intervention import NOTHING, knock_out_edges
from mech.patching.patch import all_heads
from probes.items.toolshed import build_toolshed_items
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS
from probes.scoring.record import edge_sources
from probes.scoring.score import build_queries
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

WORDING = load_wording()
WORDS = ["--k", "2", "--controls", "1"]


@pytest.mark.usefixtures("few_control_sets")
def test_rows_are_those_of_full_forwards_and_shares_follow_from_them(shell: Shell) -> None:
    said = shell.once("knockout", *WORDS)
    shell.ran_for_rows("knockout", *WORDS, "--engine", "reference", out="slow")
    rows, slow = shell.lines("knockout"), shell.lines("knockout", "slow")
    assert [row["id"] for row in rows] == [row["id"] for row in slow]
    for one, other in zip(rows, slow, strict=True):
        assert abs(one["logprob"] - other["logprob"]) <= NATS and abs(one["before"] - other["before"]) <= NATS
    every = shell.table("knockout")
    assert set(every["metric"]) == set(FORMS) and every["k"].tolist().count(6) < len(every)
    table = every[every["metric"] == "logprob"].set_index(["sources", "set"])
    assert set(table.index.get_level_values("sources")) == {"record", "observation", "goal", "earlier"}
    assert set(table.index.get_level_values("set")) == {"all", "top2", "top2/random0"}
    by_id = {row["id"]: row for row in rows}
    items = sorted({row["item_id"] for row in rows})
    copy = [by_id[f"{i}|none"]["logprob"] - by_id[f"{i}|none"]["before"] for i in items]
    removed = [by_id[f"{i}|none"]["logprob"] - by_id[f"{i}|record|all"]["logprob"] for i in items]
    assert table.loc[("record", "all"), "share"] == pytest.approx(sum(removed) / sum(copy))
    assert table.loc[("record", "all"), "effect_nats"] == pytest.approx(np.mean(removed))
    assert table.loc[("earlier", "all"), "n"] == 1  # one of the items has a step
    assert any("record" in line for line in said.out)
    margin = every[every["metric"] == "margin"].set_index(["sources", "set"])

    def margins(row: str, terms: str) -> float:
        return by_id[row][terms]["failed"] - by_id[row][terms]["gold"]

    copy = [margins(f"{i}|none", "terms") - margins(f"{i}|none", "before_terms") for i in items]
    removed = [margins(f"{i}|none", "terms") - margins(f"{i}|record|all", "terms") for i in items]
    assert margin.loc[("record", "all"), "share"] == pytest.approx(sum(removed) / sum(copy))
    assert np.isnan(table.loc[("record", "all"), "p"])  # without controls
    assert table.loc[("record", "top2"), "p"] in (0.5, 1.0)


def test_other_pairs_and_kinds_of_controls_have_rows_of_their_own(shell: Shell) -> None:
    shell.once("knockout", *WORDS)
    first = shell.lines("knockout")
    more = ["--from", "neut_other", "--control-kinds", "random,previous_token,complement", "--control-k", "2"]
    said = shell.ran("knockout", *WORDS, *more, "--metric", "margin")
    assert shell.lines("knockout")[: len(first)] == first and any(
        "neut_other → neut, margin" in one for one in said.out
    )
    table = shell.table("knockout")
    assert set(table["from"]) == {"pre", "neut_other"}
    own = table[(table["from"] == "neut_other") & (table["kind"] == "complement")]
    assert len(own) and set(own["k"]) == {2}  # of the set that it controls
    shell("knockout", *WORDS, "--control-kinds", "direction", out="other").sentence("leave direction out")


def test_a_killed_run_goes_on_and_another_set_is_refused(shell: Shell) -> None:
    shell.once("knockout", *WORDS)
    whole = shell.path("knockout.jsonl").read_bytes()
    first = whole.splitlines(keepends=True)
    shell.path("knockout.jsonl").write_bytes(b"".join(first[:5]) + first[5][:20])
    shell.ran_for_rows("knockout", *WORDS)
    assert sorted(shell.path("knockout.jsonl").read_bytes().splitlines()) == sorted(whole.splitlines())
    shell("knockout", "--k", "3", "--controls", "1").sentence("other settings")


def test_the_earlier_name_of_the_command_names_the_present_one(shell: Shell) -> None:
    shell("cut", "--k", "3").sentence("'cut' is now 'knockout'")


def test_the_sources_are_the_tokens_they_are_called(shell: Shell) -> None:
    model = loaded_once(str(shell.model))
    engine = Engine(model)
    items = build_toolshed_items(3, n_tasks=12)[::9]
    assert {bool(item.step_index) for item in items} == {False, True}
    for item in items:
        [scoring] = build_queries(model, item, ["neut"], WORDING, ["failed"])
        found = edge_sources(engine, item, "neut", WORDING)
        text = {
            kind: model.tokenizer.decode([scoring.query.prompt[at] for at in where])
            for kind, where in found.items()
        }
        assert text["record"] == item.failed_action
        n = len(scoring.query.action)
        assert text["goal"].endswith("<end>\n") and item.goal[-min(n, 30) + 6 :] in text["goal"]
        turn = f"<turn>user\n{WORDING.observation_prefix}{item.obs_neutral}<end>\n"
        assert turn.startswith(text["observation"])
        assert ("earlier" in found) == bool(item.step_index)
        if item.step_index:
            assert f"<turn>assistant\n{item.prefix_actions[-1]}<end>\n".endswith(text["earlier"])
        places = [at for where in found.values() for at in where]
        assert len(set(places)) == len(places) and all(len(where) <= n for where in found.values())


def test_cutting_nothing_is_the_uncut_run_and_cutting_the_record_is_not(shell: Shell) -> None:
    model = loaded_once(str(shell.model))
    engine, item = Engine(model), ITEMS[1]
    [scoring] = build_queries(model, item, ["neut"], WORDING, ["failed"])
    record = edge_sources(engine, item, "neut", WORDING)["record"]
    changes = [NOTHING, knock_out_edges(all_heads(model), ()), knock_out_edges(all_heads(model), record)]
    queries = [Query(scoring.query.prompt, scoring.query.action, change) for change in changes]
    uncut, nothing, cut = engine.score(queries, len(scoring.query.prompt) - 1)
    assert nothing.total == uncut.total and abs(cut.total - uncut.total) > 10 * NATS
