"""backfire placebo: all behave on a model that does copy; where nothing is found anywhere, nothing passes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import t

from experiments.mechanism.placebo import self_patches, shuffled_heads, verdict
from experiments.run.schema import TABLES
from experiments.run.session import Session
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions import hooks
from mech.interventions.intervention import Edit
from mech.load import load_model, load_redrawn
from mech.models.model import Model
from mech.patching.patch import all_heads, patch_in_full, patch_sets
from probes.effects.placebo_checks import ROUNDING, placebo_table
from probes.items.item import Item, dump_items
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS
from probes.scoring.record import padding_sources
from probes.scoring.score import build_queries, run_decision_point
from tests.induction_model import built_by_hand
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, shell  # noqa: F401 - a fixture
from tests.tiny_models import byte_tokenizer
from tests.tolerances import FP64, NATS

WORDING = load_wording()
# Not a byte of the far placebo stands in a call, and the errors leave room for padding.
FAR = {"unrelated_action": "XYZW", "unrelated_observation": "QJVK"}


def garden(*numbers: int, tasks: int = 1) -> list[Item]:
    """These cases, in as many tasks each as are asked for."""
    long = " is not a thing this garden has"
    found = [replace(ITEMS[n], meta=FAR, obs_fail=ITEMS[n].obs_fail + long) for n in numbers]
    return [
        item
        if not copy
        else replace(
            item,
            item_id=f"{item.item_id}-{copy}",
            task_id=f"{item.task_id}-{copy}",
            goal=item.goal + " Now." * copy,
        )
        for copy in range(tasks)
        for item in found
    ]


def test_every_placebo_behaves_on_an_induction_model(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its attention is so sharp that a change of scores moves nothing, which the checks at load would not have.
    monkeypatch.setattr("experiments.run.session.load_model", partial(load_model, check=False))
    folder = shell.tmp / "induction"
    built_by_hand(places=512).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    dump_items(garden(0, 2, tasks=3), shell.items)
    words = ["--model", folder, "--top", "1", "--where", "candidate", "--shuffles", "19", "--controls", "0"]
    said = shell.ran("placebo", *words)
    assert tuple(shell.table("placebo").columns) == TABLES["placebo"]
    every = shell.table("placebo")
    assert set(every["metric"]) == set(FORMS)
    table = every[every["metric"] == "logprob"].set_index("what")
    assert table["passed"].all() and table["alive"].all() and table["powered"].all() and len(table) == 10
    own = {row["heads"] for row in shell.lines("placebo") if row["part"] == "redrawn_own"}
    assert own == {shell.about("placebo")["extra"]["redrawn_heads"]}
    rows = {(row["part"], row["item_id"]): row["values"] for row in shell.lines("placebo")}
    noised = [rows["noised", item.item_id] for item in garden(0, 2, tasks=3)]
    real = [rows["whole", item.item_id] for item in garden(0, 2, tasks=3)]
    lost = sum(one["neut"] - one["selected"] for one in noised) / sum(
        one["neut"] - one["pre"] for one in real
    )
    assert table.loc["redrawn_noising", "positive"] == pytest.approx(lost) == pytest.approx(1, abs=1e-3)
    assert table.loc["redrawn_ablation", "positive"] == pytest.approx(
        1, abs=1e-3
    )  # one head is all the copying
    assert table.loc["self_patch", "found"] == 0 and table.loc["self_patch", "positive"] > 1
    assert table.loc["self_patch_run", "found"] <= ROUNDING
    assert table.loc["shuffled_scores", "found"] == 1 / 20
    assert any("every placebo behaves" in line for line in said.out)
    # Resumed: nothing is measured again, not even the placebo model is made.
    monkeypatch.setattr("experiments.run.session.load_redrawn", lambda *_, **__: pytest.fail("made again"))
    before = shell.path("placebo.jsonl").read_bytes()
    shell.ran("placebo", *words)
    assert shell.path("placebo.jsonl").read_bytes() == before
    # Two clusters have no interval: nothing is shown, and that is what is said.
    few = shell("placebo", *words, "--cluster", "template")
    assert few.code == 1 and any(line.startswith("cannot show anything (fewer than 6") for line in few.out)


def test_a_dead_instrument_fails_though_every_placebo_finds_nothing(shell: Shell) -> None:
    dump_items(garden(0, 1, 2, tasks=3), shell.items)
    said = shell("placebo", "--top", "2", "--shuffles", "2", "--controls", "2")
    assert said.code == 1 and not said.err
    every = shell.table("placebo")
    table = every[every["metric"] == "logprob"].set_index("what")
    assert len(table) == 11
    assert not table.loc["redrawn_copy", "alive"] and not table.loc["redrawn_copy", "passed"]
    assert not table.loc[["redrawn_ablation", "shuffled_scores", "unrelated_call"], "passed"].any()
    blind = [line for line in said.out if line.startswith("cannot show anything")]
    assert any("shuffled_scores" in line and "random_heads" in line for line in blind), said.out
    assert any(
        line.startswith("shows nothing, as its counterpart") and "redrawn_copy" in line for line in said.out
    )


def test_items_of_one_task_are_refused_before_anything_runs(shell: Shell) -> None:
    dump_items(garden(0, 1), shell.items)
    shell("placebo").sentence("two tasks at least")
    assert not shell.path("run.json").exists()


# --- the parts


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_redrawn_model_has_the_architecture_and_none_of_the_weights(
    family: str, tiny_folder: FolderFactory
) -> None:
    folder = str(tiny_folder(family))
    model = load_model(folder, check=False)
    generators = [torch.Generator().manual_seed(seed) for seed in (1, 1, 2)]
    one, same, other = (load_redrawn(folder, generator) for generator in generators)
    assert torch.equal(generators[0].get_state(), torch.Generator().manual_seed(1).get_state())
    weights, drawn = (dict(m.bridge.original_model.named_parameters()) for m in (model, one))
    again = dict(same.bridge.original_model.named_parameters())
    assert {n: p.shape for n, p in weights.items()} == {n: p.shape for n, p in drawn.items()}
    matrices = [name for name, p in weights.items() if p.ndim == 2]
    for name in matrices:
        assert torch.equal(drawn[name], again[name])
        both = torch.stack([weights[name].detach().flatten(), drawn[name].detach().flatten()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.2
    third = dict(other.bridge.original_model.named_parameters())
    assert not any(torch.equal(drawn[name], third[name]) for name in matrices)
    assert one.identity.sha256 == same.identity.sha256
    assert len({model.identity.sha256, one.identity.sha256, other.identity.sha256}) == 3
    assert one.identity.n_parameters == model.identity.n_parameters and "re-drawn" in one.identity.name


def test_shuffled_heads_are_drawn_from_all_and_never_the_selected_set() -> None:
    scores = pd.DataFrame({"layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "prefix_matching": [4.0, 3, 2, 1]})
    selected = HeadSet([Head(0, 0)])
    drawn = [
        str(shuffled_heads(scores, "prefix_matching", selected, np.random.default_rng(seed)))
        for seed in range(60)
    ]
    assert set(drawn) == {"L0H1", "L1H0", "L1H1"} and min(map(drawn.count, set(drawn))) > 8
    everything = HeadSet(Head(layer, head) for layer in (0, 1) for head in (0, 1))
    with pytest.raises(InputError, match="All 4 heads"):
        shuffled_heads(scores, "prefix_matching", everything, np.random.default_rng(0))


def test_padding_sources_are_the_words_that_carry_nothing(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    [item] = garden(0)
    found = padding_sources(Engine(model), item, WORDING)
    [scoring] = build_queries(model, item, ["neut_pad"], WORDING, ["failed"])
    text = {
        kind: model.tokenizer.decode([scoring.query.prompt[at] for at in where])
        for kind, where in found.items()
    }
    assert text["record"] == item.failed_action
    observed = scoring.rendering.text.rpartition(item.obs_neutral)[2].partition("<end>")[0]
    assert observed.startswith(text["padding"]) and len(text["padding"]) == len(item.failed_action)
    short = replace(item, obs_fail="no")
    assert set(padding_sources(Engine(model), short, WORDING)) == {"record"}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_self_patches_run_and_change_nothing(
    family: str, tiny_folder: FolderFactory, exact_softmax: None
) -> None:
    engine = Engine(tiny_model(tiny_folder, family))
    session = Session(engine, [ITEMS[0]], WORDING, lambda name: np.random.default_rng(0))
    found = self_patches(session, ITEMS[0])
    assert found["full"] == 0.0 and found["fired"] == engine.model.n_layers
    assert found["run"] <= FP64 < 1e-3 < min(found["other"], found["full_other"])


@pytest.mark.parametrize("shift", ["row", "head", "size"])
def test_a_patch_that_lands_elsewhere_is_no_self_patch(
    shift: str, tiny_folder: FolderFactory, exact_softmax: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the two placebos are for: a patch one position or head off, or off by one part in a thousand."""
    engine = Engine(tiny_model(tiny_folder, "llama"))
    session = Session(engine, [ITEMS[0]], WORDING, lambda name: np.random.default_rng(0))
    right = hooks._edit

    def wrong(model: Model, activation: torch.Tensor, edit: Edit, at: torch.Tensor | None) -> None:
        assert edit.value is not None and edit.head is not None
        if shift == "row":
            edit = replace(edit, value=edit.value.roll(1, 0))
        elif shift == "head":
            edit = replace(edit, head=(edit.head + 1) % model.n_heads)
        else:
            edit = replace(edit, value=edit.value * 1.001)
        right(model, activation, edit, at)

    monkeypatch.setattr(hooks, "_edit", wrong)
    found = self_patches(session, ITEMS[0])
    assert found["full"] > 0 and found["run"] > ROUNDING


def test_a_full_patch_is_the_joint_patch_of_all_heads(
    tiny_folder: FolderFactory, exact_softmax: None
) -> None:
    model = tiny_model(tiny_folder, "llama")
    before, after = (run_decision_point(Engine(model), ITEMS[0], name, WORDING) for name in ("pre", "neut"))
    full = patch_in_full(model, before.query, after.query)
    [joint] = patch_sets(Engine(model), before, after, {"all": all_heads(model)}).values()
    assert full.patched.total == pytest.approx(joint.total, abs=FP64 * 10)
    assert full.clean.total == pytest.approx(before.score.total, abs=FP64 * 10)
    with pytest.raises(InputError, match="as many action tokens"):
        patch_in_full(model, before.query, replace(after.query, action=after.query.action[:-1]))


# --- the verdicts


N_TASKS = 8


def rows(n_tasks: int = N_TASKS, **changed: dict[str, list[float]]) -> pd.DataFrame:
    """Four kinds of items, two of a task, in eight tasks for which every placebo behaves, but for the parts given.

    The margin of every value is half of its log-probability.
    """
    copy = {"pre": [-30.0, -32, -28, -31], "neut": [-10.0, -11, -9, -10]}
    parts: dict[str, dict[str, list[float]]] = {
        "whole": {**copy, "fail": [-8.0, -9, -8, -9], "fail_unrelated": [-31.0, -31, -29, -30], "n_tokens": [10.0] * 4},
        "selected": {"pre": copy["pre"], "neut": [-28.0, -30, -27, -29]},
        **{f"{kind}{i}": copy for kind in ("shuffled", "random") for i in range(20)},
        "noised": {"neut": copy["neut"], "selected": [-26.0, -28, -25, -27]},
        "redrawn": {"pre": [-90.0] * 4, "neut": [-90.1, -89.9, -90.2, -90.0]},
        "redrawn_selected": {"pre": [-90.0] * 4, "neut": [-90.1, -89.9, -90.1, -90.0]},
        "redrawn_own": {"pre": [-90.0] * 4, "neut": [-90.1, -89.9, -90.2, -90.1]},
        "redrawn_noised": {"neut": [-90.1, -89.9, -90.2, -90.0], "selected": [-90.1, -89.9, -90.2, -90.1],
                           "own": [-90.1, -90.0, -90.2, -90.0]},
        "self": {"full": [0.0] * 4, "run": [1e-5] * 4, "other": [3.0, 1, 2, 5], "full_other": [9.0, 4, 6, 7],
                 "fired": [30.0] * 4},
        "padding": {"n_padding": [5.0] * 4, "whole": [-10.0] * 4, "record": [-30.0, -31, -29, -30],
                    "padding": [-10.5, -9.5, -10, -11]},
    }  # fmt: skip
    for name, values in changed.items():
        parts[name] = {**parts.get(name, {}), **values}
    frame = pd.DataFrame(
        [
            {"part": part, "item_id": f"i{i}", "task_id": f"t{i // 2}", "name": name, "value": column[i % 4]}
            for part, values in parts.items()
            for name, column in values.items()
            for i in range(2 * n_tasks)
        ]
    )
    counted = ["n_tokens", "n_padding", "full", "run", "other", "full_other", "fired"]
    margins = frame[~frame["name"].isin(counted)]
    margins = margins.assign(name=margins["name"] + ":margin", value=margins["value"] / 2)
    return pd.concat([frame, margins], ignore_index=True)


def verdicts(
    metric: str = "logprob", n_tasks: int = N_TASKS, **changed: dict[str, list[float]]
) -> pd.DataFrame:
    table = placebo_table(rows(n_tasks, **changed), lambda name: np.random.default_rng(0), n_draws=300)
    return table[table["metric"] == metric].set_index("what")


def test_numbers_are_ratios_of_sums_and_all_pass() -> None:
    table = verdicts()
    assert table["passed"].all() and len(table) == 11
    assert table.loc["redrawn_copy", "found"] == pytest.approx(-0.2 / 81)
    assert table.loc["redrawn_copy", "positive"] == pytest.approx(81 / 40)
    assert table.loc["redrawn_ablation", "found"] == pytest.approx(-0.1 / 81)
    assert table.loc["redrawn_ablation", ["positive", "live"]].tolist() == pytest.approx([74 / 81] * 2)
    assert table.loc["redrawn_own_ablation", "found"] == pytest.approx(0.1 / 81)
    assert table.loc["redrawn_noising", "found"] == pytest.approx(0.1 / 81)
    assert table.loc["redrawn_own_noising", ["found", "live"]].tolist() == pytest.approx([0.1 / 81, 66 / 81])
    assert table.loc[["shuffled_scores", "random_heads"], "found"].tolist() == pytest.approx([1 / 21] * 2)
    assert (
        table.loc["unrelated_call", "found"] == pytest.approx(0.0)
        and table.loc["unrelated_call", "positive"] == 21.75
    )
    assert table.loc["self_patch_run", ["found", "positive"]].tolist() == [1e-5, 1.0]
    assert table.loc["padding_edges", "found"] == pytest.approx(1 / 80)
    halved = verdicts("margin")
    assert set(halved.index) == set(table.index) - {"self_patch", "self_patch_run"} and halved["passed"].all()
    assert halved.loc["redrawn_copy", "found"] == pytest.approx(-0.2 / 81)
    assert halved.loc["unrelated_call", "positive"] == 21.75 / 2


def test_the_minimal_detectable_effect_is_found_with_a_chance_of_four_in_five() -> None:
    rng = np.random.default_rng(0)
    n, spread, reps = 12, 3.0, 1500
    critical = float(t.ppf(0.975, n - 1))
    values = rng.normal(0, spread, n)
    gain = {"fail_unrelated": (-30 - values).tolist()}
    frame = rows().query(
        "not (part == 'whole' and name in ('pre', 'fail_unrelated', 'pre:margin', 'fail_unrelated:margin'))"
    )
    frame = frame[~frame["name"].str.endswith(":margin") & frame["item_id"].isin([f"i{i}" for i in range(n)])]
    more = [
        {"part": "whole", "item_id": f"i{i}", "task_id": "-", "name": name, "value": value}
        for name, column in {"pre": [-30.0] * n, **gain}.items()
        for i, value in enumerate(column)
    ]
    frame = pd.concat([frame, pd.DataFrame(more)], ignore_index=True)
    frame["task_id"] = frame["item_id"]  # a task an item
    table = placebo_table(frame, lambda name: np.random.default_rng(0), n_draws=200).set_index("what")
    mde = float(table.loc["unrelated_call", "mde"])
    error = values.std(ddof=1) / np.sqrt(n)
    assert mde == pytest.approx((critical + float(t.ppf(0.8, n - 1))) * error)
    drawn = rng.normal(mde, values.std(ddof=1), (reps, n))
    found = np.abs(drawn.mean(1)) > critical * drawn.std(axis=1, ddof=1) / np.sqrt(n)
    assert 0.74 < found.mean() < 0.86


def test_a_placebo_without_power_passes_nothing_and_says_what_it_would_have_found() -> None:
    wide = verdicts(whole={"fail_unrelated": [-80.0, -31, 20, -31]})
    line = wide.loc["unrelated_call"]
    assert line["behaves"] and line["alive"] and not line["powered"] and not line["passed"]
    assert line["mde"] > line["live"] / 2
    said = verdict(wide.reset_index())
    assert (
        said.startswith("unrelated_call has too little power: 80 % for effects of")
        and len(said.splitlines()) == 1
    )
    few = verdicts(n_tasks=5)
    patched = ["self_patch", "self_patch_run"]  # no interval is asked of a maximum
    assert not few.drop(index=patched)["passed"].any() and few.loc[patched, "passed"].all()
    assert few.drop(index=patched)["mde"].isna().all()
    assert verdict(few.reset_index()).startswith("cannot show anything (fewer than 6 clusters")
    eighteen = rows().query("part not in ('random18', 'random19')")
    table = placebo_table(eighteen, lambda name: np.random.default_rng(0), 200)
    line = table[table["metric"] == "logprob"].set_index("what").loc["random_heads"]
    assert np.isnan(line["mde"]) and not line["passed"]  # 1 / 19 is more than .05


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("redrawn_own_ablation", {"redrawn_own": {"neut": [-99.0, -98, -97, -99]}}),
        ("redrawn_noising", {"redrawn_noised": {"selected": [-99.0, -98, -97, -99]}}),
        ("redrawn_own_noising", {"redrawn_noised": {"own": [-99.0, -98, -97, -99]}}),
        ("redrawn_own_noising", {"noised": {"selected": [-10.0, -11, -9, -10]}}),
        ("random_heads", {"random7": {"neut": [-30.0, -32, -28, -31]}}),
        ("redrawn_copy", {"redrawn": {"neut": [-80.0, -81, -82, -80]}}),
        ("redrawn_ablation", {"redrawn_selected": {"neut": [-99.0, -98, -97, -99]}}),
        ("shuffled_scores", {"shuffled7": {"neut": [-30.0, -32, -28, -31]}}),
        ("unrelated_call", {"whole": {"fail_unrelated": [-20.0, -21, -22, -20]}}),
        ("self_patch", {"self": {"full": [0.0, 0, 1e-9, 0]}}),
        ("self_patch_run", {"self": {"run": [1e-5, 3e-4, 1e-5, 1e-5]}}),
        ("padding_edges", {"padding": {"padding": [-20.0, -19, -18, -20]}}),
        # The counterparts, each dead.
        ("redrawn_copy", {"whole": {"neut": [-29.0, -33, -27, -32]}}),
        ("redrawn_ablation", {"selected": {"neut": [-10.0, -11, -9, -10]}}),
        ("shuffled_scores", {"selected": {"neut": [-9.0, -12, -8, -11]}}),
        ("unrelated_call", {"whole": {"fail": [-30.0, -32, -28, -31]}}),
        ("self_patch", {"self": {"full_other": [3.0, 0, 2, 5]}}),
        ("self_patch", {"self": {"fired": [30.0, 30, 0, 30]}}),
        ("self_patch_run", {"self": {"other": [3.0, 0.01, 2, 5]}}),
        ("padding_edges", {"padding": {"record": [-10.0, -9, -10, -10]}}),
        ("padding_edges", {"padding": {"n_padding": [0.0] * 4}}),
    ],
)
def test_what_must_fail_fails(what: str, changed: dict[str, dict[str, list[float]]]) -> None:
    found = verdicts(**changed)
    assert not found.loc[what, "passed"]
    assert verdicts().loc[what, "passed"]


def test_a_placebo_that_finds_something_and_a_dead_counterpart_are_told_apart() -> None:
    assert verdict(verdicts().reset_index()).startswith("every placebo behaves, beside a live instrument")
    both = verdicts(self={"full": [0.0, 0, 1e-9, 0]}, selected={"neut": [-10.0, -11, -9, -10]})
    wrong, dead = verdict(both.reset_index()).splitlines()
    assert wrong == "does not behave: self_patch"
    nothing = "redrawn_ablation, redrawn_own_ablation, shuffled_scores, random_heads"
    assert dead.endswith(f"finds nothing: {nothing}")


def test_one_task_shows_nothing_and_a_missing_part_is_named() -> None:
    one = rows().assign(task_id="t")
    table = placebo_table(one, lambda name: np.random.default_rng(0), 100)
    table = table[table["metric"] == "logprob"].set_index("what")
    patched = ["self_patch", "self_patch_run"]  # no interval is asked of a maximum
    assert not table.drop(index=patched)["passed"].any()
    with pytest.raises(InputError, match="lack 'run' of the part 'self'"):
        placebo_table(rows().query("name != 'run'"), lambda name: np.random.default_rng(0), 100)
    with pytest.raises(InputError, match="occurs twice"):
        placebo_table(pd.concat([rows(), rows().head(1)]), lambda name: np.random.default_rng(0), 100)


def test_a_self_patch_may_differ_from_zero_as_two_paths_of_the_engine_may() -> None:
    assert ROUNDING == NATS
