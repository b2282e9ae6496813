"""--ablate in every study of decision points: rows are those of the intervention, and never mixed with others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.heads.spec import RankedOptions, choose_heads
from experiments.run.seeds import stream
from mech.engine.engine import Engine
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import scale_heads
from mech.models.model import Model
from mech.patching.patch import all_heads
from probes.prompts.conditions import CORE
from probes.prompts.wording import load_wording
from probes.scoring.score import DISTRACTORS_IN, score_item
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

HEADS = "L0H1,L1H3"


def model_of(shell: Shell) -> Model:
    return loaded_once(str(shell.model))


def test_rows_under_an_ablation_are_those_of_the_intervention(shell: Shell) -> None:
    shell.ran_for_rows("probe", "--ablate", HEADS, "--how", "zero")
    engine, change = Engine(model_of(shell)), scale_heads(HeadSet.parse(HEADS), 0.0, "all")
    rows = [
        row
        for item in ITEMS[:3]
        for row in score_item(engine, item, CORE, load_wording(), None, change, DISTRACTORS_IN)
    ]
    arm = "L0H1+L1H3@zero"
    found = [row for row in shell.lines("scores") if row["ablation"] == arm]
    assert [row["id"] for row in found] == [f"{row['id']}|{arm}" for row in rows]
    assert {row["intervention"] for row in found} == {change.fingerprint}
    for one, other in zip(found, rows, strict=True):
        assert abs(one["logprob"] - other["logprob"]) <= NATS
    about = shell.about("probe")["provenance"]["ablations"][arm]
    assert about["heads"] == HEADS and about["sha256"] == HeadSet.parse(HEADS).sha256


def test_optimal_constants_are_of_the_candidate_positions_alone(shell: Shell) -> None:
    said = shell("probe", "--ablate", HEADS, "--how", "optimal", "--where", "all", "--limit", "1")
    assert said.code == 2 and "are not optimal elsewhere" in said.err[-1]


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("mean", "all"),
        ("scale", "all"),
        ("mean", "candidate"),
        ("scale", "candidate"),
        ("optimal", "candidate"),
    ],
)
def test_every_way_of_ablating_agrees_with_full_forwards_and_changes_the_rows(
    how: str, where: str, shell: Shell
) -> None:
    words = ["--ablate", HEADS, "--how", how, "--where", where, "--limit", "1", "--conditions", "pre,neut"]
    shell.ran_for_rows("probe", *words)
    shell.ran_for_rows("probe", *words, "--engine", "reference", out="slow")
    shell.ran_for_rows("probe", *words[6:], out="clean")
    rows, slow, clean = (shell.lines("scores", out) for out in ("run", "slow", "clean"))
    assert [row["id"] for row in rows] == [row["id"] for row in slow]
    for one, other in zip(rows, slow, strict=True):
        assert abs(one["logprob"] - other["logprob"]) <= NATS
    assert rows[: len(clean)] == clean
    rows = rows[len(clean) :]
    assert (
        max(abs(one["logprob"] - other["logprob"]) for one, other in zip(rows, clean, strict=True))
        > 10 * NATS
    )


def test_scaling_by_one_gives_the_clean_measures(shell: Shell) -> None:
    shell.ran("probe", "--ablate", HEADS, "--how", "scale", "--alpha", "1")
    both = shell.table("measures")
    whole, arm = (both[both["ablation"] == name]["value"].tolist() for name in ("none", "L0H1+L1H3@scale1"))
    assert whole == arm
    shell.once("probe", out="clean")
    assert whole == shell.table("measures", "clean")["value"].tolist()


def test_a_study_takes_the_arms_that_another_left_and_refuses_others_of_their_name(shell: Shell) -> None:
    shell.ran_for_rows("probe", "--ablate", HEADS, "--how", "zero")
    kept = shell.path("scores.jsonl").read_bytes()
    ranked = ["--ablate", "top:2", "--how", "zero", "--conditions", "fail_echo"]
    shell.ran_for_rows("manipulations", *ranked, out="ranked")
    shell("decomposition", *ranked[:4], "--by", "copying", out="ranked").sentence(
        "another prompt, action or ablation", "choose another --out"
    )
    shell("probe", "--ablate", "L0H1", "--how", "zero").sentence("other settings", "ablate")
    assert shell.path("scores.jsonl").read_bytes() == kept
    shell.ran_for_rows("decomposition", "--ablate", HEADS, "--how", "zero")
    shell.ran_for_rows("manipulations", "--ablate", HEADS, "--how", "zero", "--conditions", "fail_echo")
    assert shell.path("scores.jsonl").read_bytes().startswith(kept)


def choose(shell: Shell, spec: str) -> HeadSet:
    return choose_heads(spec, model_of(shell), RankedOptions(out=shell.tmp), lambda name: stream(0, name))


def test_a_word_names_heads_in_every_way_it_says(shell: Shell, tmp_path: Path) -> None:
    everything = all_heads(model_of(shell))
    top = choose(shell, "top:3")
    assert len(top) == 3 and choose(shell, str(top)) == top
    rest = choose(shell, "not:top:3")
    assert sorted([*top, *rest]) == list(everything)
    drawn = choose(shell, "random:top:3")
    assert len(drawn) == 3 and not set(drawn) & set(top) and choose(shell, "random:top:3") == drawn
    assert {str(choose(shell, f"random{n}:L0H1")) for n in range(12)} > {str(choose(shell, "random:L0H1"))}
    listed = tmp_path / "list.json"
    listed.write_text(
        json.dumps([{"layer": 2, "head": 1, "score": 0.9}, {"layer": 0, "head": 3, "score": 0.5}])
    )
    assert choose(shell, str(listed)) == HeadSet.parse("L0H3,L2H1")
    assert choose(shell, f"top:1@{listed}") == HeadSet.parse("L2H1")
    assert choose(shell, f"not:top:1@{listed}") == HeadSet(h for h in everything if str(h) != "L2H1")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("top:x", "'top:x' is not a head set"),
        ("top:99", "top 99 cannot be taken"),
        ("L9H0", "L9H0 does not exist"),
        ("not:not:", "list of heads is empty"),
        ("random:top:9", "no control set"),
        ("nowhere.json", "head list nowhere.json does not exist"),
        ("top:2@nowhere.json", "head list nowhere.json does not exist"),
        ("some heads", "'some heads' is not a head"),
    ],
)
def test_a_word_that_names_no_heads_is_one_sentence(spec: str, says: str, shell: Shell) -> None:
    with pytest.raises(InputError, match=says):
        choose(shell, spec)
    shell("probe", "--ablate", spec, out="none").sentence("backfire probe: ", says)
    assert not (shell.tmp / "none").exists()


def test_everything_but_nothing_is_refused(shell: Shell) -> None:
    everything = str(all_heads(model_of(shell)))
    with pytest.raises(InputError, match="leaves no head"):
        choose(shell, f"not:{everything}")
