"""Patching in depth as commands: every site and place, screens, direct effects, layers and the path, end to end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from experiments.mechanism.patch_tables import parse_part
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.patching.patch import Part
from probes.items.item import dump_items
from probes.prompts.wording import load_wording
from probes.scoring.pair import SITES, LengthMismatch, PatchTask, patched, pattern_columns, shared_positions
from probes.scoring.score import run_decision_point
from tests.mech_cases import FolderFactory, assert_scores, one_thread, tiny_model  # noqa: F401
from tests.study_cases import ITEMS, Shell, contents, shell  # noqa: F401 - a fixture
from tests.tolerances import FP64, NATS

WORDING = load_wording()
MATCHED = ("--from", "neut_matched", "--to", "neut")
QUICK = ("--limit", "1", "--k", "2", "--direction", "noise")


@pytest.mark.usefixtures("exact_softmax", "one_thread")
@pytest.mark.parametrize(
    ("site", "at", "pair"),
    [
        *((site, "candidate", ("pre", "neut")) for site in ("q", "pattern")),
        *((site, "record", ("neut_matched", "neut")) for site in SITES if site != "pattern"),
        ("v", "observation", ("neut_pad", "fail")),
        ("pattern", "candidate", ("neut_matched", "neut")),
    ],
)
def test_an_items_patches_are_those_of_full_forwards(
    site: str, at: str, pair: tuple[str, str], tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, "llama")
    fast, slow = Engine(model), Engine(model, slow=True)
    item = replace(ITEMS[1], obs_fail="error: there is no tree here")  # room to pad
    task = PatchTask.of(fast, item, (site, at, *pair), WORDING)
    found, by_hand = (patched(engine, task, "noise")[0] for engine in (fast, slow))
    assert_scores(list(found.values()), list(by_hand.values()), FP64)
    moved = [abs(score.total - task.high.score.total) for score in found.values()]
    assert max(moved) > NATS
    same = PatchTask(task.item, task.group, task.high, task.high, task.positions, WORDING)
    if site != "pattern":
        itself, _ = patched(fast, same, "noise")
        assert {score.total - task.high.score.total for score in itself.values()} == {0.0}


@pytest.mark.usefixtures("exact_softmax", "one_thread")
@pytest.mark.parametrize("family", ["gemma3", "gpt_neox"])
def test_the_embeddings_of_the_recorded_call_are_all_that_tells_neut_from_neut_matched(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    task = PatchTask.of(Engine(model), ITEMS[0], ("resid_pre", "record", "neut_matched", "neut"), WORDING)
    found, _ = patched(Engine(model), task, "noise")
    back, _ = patched(Engine(model), task, "denoise")
    assert_scores([found[Part(0)], back[Part(0)]], [task.low.score, task.high.score], FP64)
    assert abs(task.high.score.total - task.low.score.total) > NATS
    assert len(task.positions) == len(
        ITEMS[0].failed_action
    )  # a byte a token: the call and no more of its turn


@pytest.mark.usefixtures("one_thread")
def test_positions_that_do_not_correspond_are_refused(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    with pytest.raises(LengthMismatch, match="observation of item garden-0 has"):
        shared_positions(model, ITEMS[0], ("neut", "fail"), WORDING, "observation")
    with pytest.raises(InputError, match="has no record"):
        shared_positions(model, ITEMS[0], ("pre", "neut"), WORDING, "record")
    runs = {
        name: run_decision_point(Engine(model), ITEMS[0], name, WORDING) for name in ("pre", "neut", "fail")
    }
    with pytest.raises(LengthMismatch, match="cannot be carried over"):
        pattern_columns(model, ITEMS[0], ("neut", runs["neut"].query), ("fail", runs["fail"].query), WORDING)
    columns = pattern_columns(
        model, ITEMS[0], ("pre", runs["pre"].query), ("neut", runs["neut"].query), WORDING
    )
    theirs, ours = runs["pre"].query.tokens, runs["neut"].query.tokens
    assert [theirs[one] for one, _ in columns] == list(theirs)
    assert all(theirs[one] == ours[other] for one, other in columns)
    left = [place for place in range(len(ours)) if place not in {other for _, other in columns}]
    assert left == list(range(left[0], left[-1] + 1))  # the record and the observation, in one piece
    text = model.tokenizer.decode([ours[place] for place in left])
    assert ITEMS[0].failed_action in text and "call received" in text


def test_one_folder_holds_several_sites_and_pairs(shell: Shell) -> None:
    shell.ran("patch", *QUICK)
    alone = shell.logprob("patch")
    shell.ran("patch", *QUICK, "--site", "v", "--at", "record", *MATCHED)
    shell.ran("patch", *QUICK, "--from", "neut", "--to", "fail")
    shell.ran("patch", *QUICK, "--site", "resid_pre")
    shell.ran("patch", *QUICK, "--site", "pattern")
    names = ["patch", "patch v record neut_matched>neut", "patch z candidate neut>fail"]
    assert [shell.about(name)["done"] for name in names] == [True] * 3
    shares, effects = shell.logprob("patch"), shell.logprob("patch_effects")
    pd.testing.assert_frame_equal(
        shares.iloc[: len(alone)].astype({"kv_head": float, "head": int}), alone.astype({"kv_head": float})
    )
    by_site = effects.groupby(["site", "at", "from", "to"])
    assert set(by_site.groups) == {
        ("z", "candidate", "pre", "neut"),
        ("v", "record", "neut_matched", "neut"),
        ("z", "candidate", "neut", "fail"),
        ("resid_pre", "candidate", "pre", "neut"),
        ("pattern", "candidate", "pre", "neut"),
    }
    values = effects[effects["site"] == "v"]
    assert values["head"].isna().all() and sorted(values["kv_head"].unique()) == [0, 1] and len(values) == 6
    layers = effects[effects["site"] == "resid_pre"]
    assert layers[["head", "kv_head"]].isna().all(axis=None) and sorted(layers["layer"]) == [0, 1, 2, 3]
    joint = shell.logprob("patch_redundancy")
    assert set(joint["site"]) == {"z", "v", "pattern"}
    last = layers[layers["layer"] == 3].iloc[0]  # all that the final norm reads is the other run's answer
    assert last["share"] == pytest.approx(1.0, abs=1e-4)
    before = contents(shell.tmp / "run")
    shell.ran("patch", *QUICK, "--site", "pattern")
    after = contents(shell.tmp / "run")
    assert {k: v for k, v in after.items() if k != "run.json"} == {
        k: v for k, v in before.items() if k != "run.json"
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--site", "pattern"], "cannot be put into pre"),
        (["--site", "pattern", "--at", "record", *MATCHED], "leave out --at"),
        (["--at", "record"], "has no record"),
        (
            ["--at", "observation", "--from", "neut", "--to", "fail"],
            "No item can be patched at the observation",
        ),
        (["--site", "q", "--screen", "attribution:3"], "leave out --screen"),
        (["--screen", "some"], "'some' is not a screen"),
        (["--screen", "attribution:99"], "12 were attributed"),
    ],
)
def test_what_has_no_meaning_is_one_sentence(words: list[str], said: str, shell: Shell) -> None:
    shell("patch", "--limit", "1", "--k", "2", *words).sentence(said)
    assert not shell.path("patch.jsonl").exists()


def test_items_of_unequal_length_are_left_out_by_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(name: str, target: int, count: object) -> str:
        return "tok" if name.startswith("garden-0") else "x" * target

    monkeypatch.setattr("probes.prompts.conditions.filler", short)
    said = shell.ran("patch", "--k", "2", "--site", "v", "--at", "record", *MATCHED, "--direction", "noise")
    assert any("1 items left out (garden-0): The record of item garden-0 has" in line for line in said.out)
    assert list(shell.about("patch v record neut_matched>neut")["extra"]["skipped"]) == ["garden-0"]
    assert set(shell.logprob("patch_effects")["item_id"]) == {"garden-1", "garden-2"}


def test_a_screen_patches_the_heads_of_largest_pooled_estimate_and_says_what_it_left(shell: Shell) -> None:
    words = ["--k", "2", "--direction", "noise", "--limit", "2"]
    said = shell.ran("patch", *words, "--screen", "attribution:3")
    estimates, effects = shell.logprob("patch_estimates"), shell.logprob("patch_effects")
    assert len(estimates) == 12 and estimates["patched"].sum() == 3
    largest = estimates.sort_values("estimate_nats", key=abs, ascending=False).head(3)
    assert largest["patched"].all()
    chosen = set(zip(largest["layer"], largest["head"], strict=True))
    assert set(zip(effects["layer"], effects["head"], strict=True)) == chosen
    assert set(effects["screen"]) == {"attribution:3"}
    assert any("9 of 12 heads were not patched" in line and "saturated" in line for line in said.out)
    shell.ran("patch", *words, out="all")
    keys = ["item_id", "direction", "layer", "head"]
    whole = shell.logprob("patch_effects", "all").set_index(keys)["effect_nats"]
    ours = effects.set_index(keys)["effect_nats"]
    np.testing.assert_allclose(ours, whole.loc[ours.index], rtol=0, atol=NATS)
    shell("patch", *words).sentence("other settings: screen")
    shell.ran("attribute", "--screen", "3", "--limit", "2")
    pair = ["--from", "neut", "--to", "fail"]
    said_of = {
        name: "\n".join(shell.ran("patch", *words, *more, "--screen", "attribution:3").out)
        for name, more in (("copy", []), ("sem", pair))
    }
    assert "on 2 fully patched items a screen of 3 heads left out" in said_of["copy"]
    assert "saturated" in said_of["sem"]  # the table is of Δcopy
    assert shell.logprob("patch_estimates").groupby(["from", "to"])["patched"].sum().tolist() == [3, 3]


def test_direct_effects_add_up_and_name_their_roles(shell: Shell) -> None:
    shell.ran("direct", "--limit", "2")
    shell.ran("direct", "--from", "neut", "--to", "fail", "--limit", "1")
    table = shell.logprob("direct")
    copy = table[table["to"] == "neut"]
    assert len(copy) == 2 * (12 + 3) and copy[copy["kind"] == "mlp"]["head"].isna().all()
    np.testing.assert_allclose(copy["total_nats"], copy["direct_nats"] + copy["indirect_nats"], atol=1e-12)
    assert copy["role"].isna().all()  # one task tells nothing
    shell.ran("patch", "--k", "2", "--limit", "2")
    shares = shell.logprob("patch").set_index(["direction", "layer", "head"])
    heads = copy[copy["kind"] == "head"].set_index(["direction", "layer", "head"])
    np.testing.assert_allclose(heads["total_share"], shares.loc[heads.index, "share"], atol=1e-4)
    assert (heads["direct_share"] - heads["total_share"]).abs().max() > 1e-3


def test_layers_are_those_of_patch_and_end_in_the_whole_answer(shell: Shell) -> None:
    shell.ran("layers", "--limit", "2")
    shell.ran("patch", "--k", "2", "--site", "mlp_out", "--limit", "2")
    table = shell.logprob("layers")
    keys = ["direction", "layer"]
    mlp = table[table["site"] == "mlp_out"].set_index(keys)["share"]
    np.testing.assert_allclose(mlp, shell.logprob("patch").set_index(keys).loc[mlp.index, "share"], atol=1e-6)
    resid = table[table["site"] == "resid_pre"].set_index(keys)["share"]
    for direction in ("noise", "denoise"):
        assert resid[direction, 0] == 0.0  # the same tokens
        assert resid[direction, 3] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.usefixtures("few_control_sets")
@pytest.mark.parametrize("how", ["mean"])
def test_a_path_has_a_share_and_controls(how: str, shell: Shell) -> None:
    words = ["--senders", "2", "--receivers", "4", "--controls", "3", "--how", how]
    said = shell.ran("path", *words)
    table = shell.logprob("path").set_index("set")
    assert list(table.index[table["kind"] == "random"]) == ["random0", "random1", "random2"]
    line = table.loc["previous-token"]
    spread = table.loc[table["kind"] == "random", "share"]
    assert (line["random_lo"], line["random_hi"]) == (spread.min(), spread.max())
    assert line["p"] == (1 + (spread >= line["share"]).sum()) / 4 and line["n_controls"] == 3
    rows = pd.DataFrame(shell.lines("path"))
    clean = rows[rows["set"] == "none"].set_index("item_id")
    cut = rows[rows["set"] == "previous-token"].set_index("item_id")
    sums = {
        name: pd.DataFrame(list(rows[column]), index=rows.index)
        for name, rows, column in (
            ("before", clean, "before"),
            ("clean", clean, "after"),
            ("cut", cut, "after"),
        )
    }
    for metric, of in (
        ("logprob", lambda one: one["failed"]),
        ("margin", lambda one: one["failed"] - one["gold"]),
    ):
        both = shell.table("path")
        line_of = both[(both["metric"] == metric) & (both["set"] == "previous-token")].iloc[0]
        lost, delta = of(sums["clean"]) - of(sums["cut"]), of(sums["clean"]) - of(sums["before"])
        assert line_of["share"] == pytest.approx(lost.mean() / delta.mean())
        assert (line_of["p_holm"], line_of["family_size"]) == (line_of["p"], 1)
    assert line["how"] == how and abs(line["share"]) > 1e-6
    entry = shell.about("path")["provenance"]
    assert entry["receivers"].count(",") == 3 and any("share their keys" in text for text in said.out)


def test_a_path_without_another_task_has_no_mean(shell: Shell) -> None:
    ids = shell.tmp / "ids"
    ids.write_text('["garden-0", "garden-1"]')
    words = ["--ids", ids, "--senders", "2", "--receivers", "4", "--controls", "1"]
    shell("path", *words).sentence("items of two tasks", "--how zero")
    assert shell.ran("path", *words, "--how", "zero").code == 0


@pytest.mark.parametrize(
    ("study", "name", "words"),
    [
        ("patch", "patch", ["--site", "k", "--at", "record", *MATCHED, "--k", "2", "--limit", "1"]),
        ("patch", "patch_estimates", ["--screen", "attribution:3", "--k", "2", "--limit", "1"]),
        ("direct", "direct", ["--limit", "1"]),
        ("layers", "layers", ["--limit", "1"]),
        (
            "path",
            "path",
            ["--senders", "2", "--receivers", "4", "--controls", "1", "--how", "zero", "--limit", "2"],
        ),
    ],
)
def test_a_torn_run_goes_on_to_the_same_bytes(study: str, name: str, words: list[str], shell: Shell) -> None:
    shell.ran(study, *words)
    whole = contents(shell.tmp / "run")
    rows = whole[f"{name}.jsonl"]
    shell.path(f"{name}.jsonl").write_bytes(rows[: len(rows) * 2 // 3])
    shell.ran(study, *words)
    after = contents(shell.tmp / "run")
    assert {k: v for k, v in after.items() if k != "run.json"} == {
        k: v for k, v in whole.items() if k != "run.json"
    }


def test_a_part_is_read_as_it_is_printed() -> None:
    for part in (Part(3, head=1), Part(3, kv_head=1), Part(30)):
        assert parse_part(str(part)) == part
    with pytest.raises(InputError, match="is no part of a model"):
        parse_part("L3K1")


def test_items_without_a_reference_are_in_logprob_alone_and_the_report_says_so(shell: Shell) -> None:
    items = shell.tmp / "few.jsonl"
    by_distractors = replace(ITEMS[1], gold_action=None)
    alone = replace(ITEMS[2], gold_action=None, distractors=())
    dump_items([ITEMS[0], by_distractors, alone], items)
    said = shell.ran("patch", *QUICK[2:], "--items", items, "--metric", "margin")
    text = "\n".join(said.out)
    assert (
        "1 of 3 items have no reference action: their margin is against the mean of their distractors."
        in text
    )
    assert (
        "1 of 3 items have neither a reference action nor distractors" in text and "shares of margin:" in text
    )
    shares = shell.table("patch").groupby("metric")["n"].first()
    assert shares["logprob"] == shares["logprob_per_token"] == 3
    assert shares["margin"] == shares["diverging_per_token"] == 2
    rows = {row["item_id"]: row for row in shell.lines("patch")}
    assert set(rows["garden-1"]["delta"]) == {"failed", "diverging", "distractor0", "distractor1"}
    assert set(rows["garden-2"]["delta"]) == {"failed"}
    effects = shell.table("patch_effects")
    own = effects[(effects["item_id"] == "garden-1") & (effects["metric"] == "margin")]
    for row in own.itertuples():
        sums = {name: parts[f"L{row.layer}H{row.head}"] for name, parts in rows["garden-1"]["heads"].items()}
        others = (sums["distractor0"] + sums["distractor1"]) / 2
        assert row.effect_nats == pytest.approx(sums["failed"] - others, abs=1e-12)
    dump_items([alone], items)
    for study in ("patch", "direct", "layers", "attribute", "path"):
        shell(study, "--items", items, "--metric", "margin", out="none").sentence(
            "There is no margin of these"
        )


def test_a_screen_by_another_metric_is_another_setting_and_ranks_by_its_estimates(shell: Shell) -> None:
    words = ["--k", "2", "--direction", "denoise", "--limit", "2", "--screen", "attribution:3"]
    shell.ran("patch", *words, "--metric", "margin")
    estimates = shell.table("patch_estimates").query("metric == 'margin'")
    largest = estimates.sort_values("estimate_nats", key=abs, ascending=False).head(3)
    assert largest["patched"].all() and estimates["patched"].sum() == 3
    shell("patch", *words).sentence("other settings: screen_metric")
    # Without a screen the metric is what is shown, and nothing else.
    shell.ran("patch", *words[:-2], "--metric", "margin", out="whole")
    shell.ran("patch", *words[:-2], out="whole")


def test_templates_as_clusters_relabel_tables_and_not_rows(shell: Shell) -> None:
    shell.ran("layers")
    rows = shell.path("layers.jsonl").read_bytes()
    assert (shell.table("layers")["n_clusters"] == 2).all()
    shell.ran("layers", "--cluster", "template")
    assert shell.path("layers.jsonl").read_bytes() == rows
    assert (shell.table("layers")["n_clusters"] == 1).all()
