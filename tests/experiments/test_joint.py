"""backfire joint: its rows are those of hooked full forwards, all heads together are the other run, shares follow."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments.heads.ablation import Replacement
from experiments.heads.control_sets import NamedSet, Sets
from experiments.mechanism.joint import JointConfig, draws_of, kept, methods_of
from experiments.mechanism.joint_controls import control_kinds, labelled
from experiments.mechanism.joint_item import Decision, decision, elsewhere, item_rows
from experiments.run.seeds import stream
from experiments.run.session import Session
from mech.engine.engine import Engine
from mech.engine.sweep import score_interventions
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import replace_heads, scale_heads
from mech.patching.patch import all_heads
from probes.effects.joint import ABLATIONS, METHODS
from probes.effects.joint_effects import effect, kind_and_size
from probes.items.item import dump_items
from probes.prompts.unrelated import with_unrelated
from probes.prompts.wording import load_wording
from probes.scoring.contrast import FORMS, contrast_of
from probes.scoring.metric_sums import metrics_of
from tests.mech_cases import FolderFactory, one_thread  # noqa: F401 - a fixture
from tests.study_cases import ITEMS, Shell, loaded_once, shell  # noqa: F401 - a fixture
from tests.tolerances import NATS

SHORT = list(ITEMS[:3])
KINDS = "random,previous_token,sink,complement,direction"
PAIR = ("pre", "neut")


def words(shell: Shell, *more: str) -> list[str]:
    base = ["--k", "1,2", "--controls", "2", "--control-k", "2", "--control-kinds", KINDS]
    base += ["--ablation-controls", "1", "--optimal-controls", "1", "--draws", "3"]
    return [*base, "--reference-items", f"4@{shell.reference}", *more]


def session_of(shell: Shell, slow: bool = False) -> Session:
    engine = Engine(loaded_once(str(shell.model)), slow=slow)
    return Session(engine, SHORT, load_wording(), lambda name: stream(0, name))


def rows_of(at: Decision, sets: dict[str, Sets], puts: dict[str, Replacement]) -> list[dict]:
    return item_rows(at, sets, puts, lambda method, kind: 1, "settings", {})


@pytest.mark.usefixtures("few_control_sets")
def test_rows_are_those_of_full_forwards_and_shares_follow_from_them(shell: Shell) -> None:
    said = shell.ran("joint", *words(shell))
    shell.ran("joint", *words(shell, "--engine", "reference"), out="slow")
    rows, slow = shell.lines("joint"), shell.lines("joint", "slow")
    assert [row["id"] for row in rows] == [
        f"{one.item_id}|pre>neut|{how}" for one in SHORT for how in METHODS
    ]
    for one, other in zip(rows, slow, strict=True):
        for key, value in one["whole"].items():
            assert abs(value - other["whole"][key]) <= NATS
        loose = 20 if one["method"] == "optimal" else 1  # the constants are fitted on either path
        for key, values in one["under"].items():
            assert set(values) == set(other["under"][key])
            for label, value in values.items():
                assert abs(value - other["under"][key][label]) <= loose * NATS, (one["id"], key, label)
    table = shell.table("joint")
    assert (
        set(table["metric"]) == set(FORMS) and set(table["from"]) == {"pre"} and set(table["to"]) == {"neut"}
    )
    beside = {
        how: {"random", "previous_token", "sink", "complement", "direction"}
        - ({"direction"} if how == "knockout" else set())
        for how in METHODS
    } | {"optimal": {"random"}}
    for how in METHODS:
        for metric in ("logprob", "margin"):
            own = table[(table["method"] == how) & (table["metric"] == metric)]
            assert set(own.loc[own["k"] == 2, "controls"]) == beside[how]
            alone = set(own.loc[own["k"] == 1, "controls"].fillna(""))
            assert alone == ({""} if how == "optimal" else {"random"})
    by = {(row["method"], row["item_id"]): row for row in rows}
    cells = table.set_index(["metric", "method", "controls", "k"])
    for method in METHODS:
        chosen = [by[method, item.item_id] for item in SHORT]
        draws = 1 if method in ABLATIONS else 2
        for metric in ("logprob", "margin", "diverging_per_token"):
            copy = sum(difference(row)[metric] for row in chosen)
            shares = [
                sum(effect_on(row, label)[metric] for row in chosen) / copy
                for label in ("top2", "top2/random0", "top2/random1")[: 1 + draws]
            ]
            # A control takes one draw of donors: what it is compared with is the set under the same draw.
            paired = sum(effect_on(first_draw(row, "top2"), "top2")[metric] for row in chosen) / copy
            assert (paired == shares[0]) == (method != "resample")
            found = cells.loc[(metric, method, "random", 2)]
            assert found["share"] == pytest.approx(shares[0])
            assert found["control_mean"] == pytest.approx(np.mean(shares[1:]))
            assert found["excess"] == pytest.approx(paired - np.mean(shares[1:]))
            assert found["p"] == pytest.approx((sum(one >= paired for one in shares[1:]) + 1) / (draws + 1))
            assert found["n_controls"] == draws and found["n"] == len(SHORT)
    single = cells.loc[("margin", "noise", "complement", 2)]
    assert single["n_controls"] == 1 and np.isnan(single["p"]) and np.isnan(single["percentile"])
    assert any("pre → neut, logprob" in line for line in said.out)
    assert shell.about("joint")["config"]["draws"] == 3 and shell.about("joint")["extra"]["fitted"]


def difference(row: dict) -> dict[str, float]:
    terms = row["n_tokens"]
    return metrics_of(
        terms, {term: row["whole"][f"{term}|neut"] - row["whole"][f"{term}|pre"] for term in terms}
    )


def first_draw(row: dict, label: str) -> dict:
    """The row as if the set had taken its first draw alone."""
    under = {term: dict(values) for term, values in row["under"].items()}
    for term, values in row["draws"].items():
        if label in values:
            under[term][label] = values[label][0]
    return {**row, "under": under}


def effect_on(row: dict, label: str) -> dict[str, float]:
    """The effect of a set, metric by metric, written out anew."""
    found = {}
    for term in row["n_tokens"]:
        under = {name: row["under"].get(f"{term}|{name}", {}).get(label) for name in PAIR}
        whole = {name: row["whole"][f"{term}|{name}"] for name in PAIR}
        if row["method"] == "denoise":
            found[term] = under["pre"] - whole["pre"]
        elif row["method"] in ABLATIONS:
            found[term] = (whole["neut"] - whole["pre"]) - (under["neut"] - under["pre"])
        else:
            found[term] = whole["neut"] - under["neut"]
    return metrics_of(row["n_tokens"], found)


def test_draws_are_kept_one_by_one_and_their_mean_is_the_effect(shell: Shell) -> None:
    shell.ran("joint", *words(shell, "--methods", "resample"))
    for row in shell.lines("joint"):
        for key, values in row["under"].items():
            drawn = row["draws"][key]
            assert set(drawn) == {"top1", "top2"}  # a control is drawn once
            for label, draws in drawn.items():
                assert len(draws) == 3 and len(set(draws)) > 1
                assert values[label] == pytest.approx(sum(draws) / 3)
    table = shell.table("joint")
    assert (table["n_draws"] == 3).all() and (table["draw_sd"] > 0).all()


def test_the_whole_runs_metrics_are_the_contrasts(shell: Shell) -> None:
    session = session_of(shell)
    for item in SHORT:
        at = decision(session, item, PAIR, ["noise"])
        [row] = rows_of(at, {"noise": {"top1": NamedSet("top1", "selected", HeadSet.parse("L0H0"))}}, {})
        contrast = contrast_of(session.model, item, session.wording)
        scores = {name: at.clean[name, "neut"].score for name in contrast.candidates}
        terms = {term: row["whole"][f"{term}|neut"] for term in row["n_tokens"]}
        assert metrics_of(row["n_tokens"], terms) == pytest.approx(contrast.values(scores))


def test_effects_are_the_differences_their_docstring_says() -> None:
    whole, under = {"pre": -30.0, "neut": -10.0}, {"pre": -26.0, "neut": -15.0}
    assert effect("noise", PAIR, whole, under) == effect("knockout", PAIR, whole, under) == 5.0
    assert effect("denoise", PAIR, whole, under) == 4.0
    # Δcopy was 20 and is 11 under the ablation.
    assert effect("mean", PAIR, whole, under) == effect("resample", PAIR, whole, under) == 9.0


def test_all_heads_together_are_the_other_run_in_any_pair(shell: Shell) -> None:
    """With z of every head from the other run the MLPs follow: nothing is left of this one but the embedding."""
    session = session_of(shell)
    everyone: Sets = {"top6": NamedSet("top6", "selected", all_heads(session.model))}
    puts = {"zero": Replacement("zero")}
    methods = ["noise", "denoise", "zero"]
    for low, high in (PAIR, ("neut_other", "neut"), ("neut", "fail")):
        for item in with_unrelated(SHORT[1:3], ITEMS):
            at = decision(session, item, (low, high), methods)
            noise, denoise, zero = rows_of(at, dict.fromkeys(methods, everyone), puts)
            whole = noise["whole"]
            assert abs(whole[f"failed|{high}"] - whole[f"failed|{low}"]) > 10 * NATS
            for term in ("failed", "gold", "diverging"):
                assert noise["under"][f"{term}|{high}"]["top6"] == pytest.approx(
                    whole[f"{term}|{low}"], abs=NATS
                )
                other = whole[f"{term}|{high}"]
                assert denoise["under"][f"{term}|{low}"]["top6"] == pytest.approx(other, abs=NATS)
            # Without attention the action positions know nothing of the context.
            under = zero["under"]
            assert under[f"failed|{low}"]["top6"] == pytest.approx(under[f"failed|{high}"]["top6"], abs=NATS)
            assert "failed|fail" in under  # Δsem, read off target or explained


def test_what_acts_elsewhere_is_refused(shell: Shell) -> None:
    session = session_of(shell)
    run = decision(session, ITEMS[0], PAIR, ["noise"]).clean["failed", "neut"]
    heads = HeadSet.parse("L0H0")
    with pytest.raises(InputError, match="action positions only"):
        score_interventions(session.engine, run, [scale_heads(heads, 0.0, "all")])


def test_a_direction_moves_as_far_and_elsewhere_and_alike_where_runs_share_a_position(shell: Shell) -> None:
    session = session_of(shell)
    at = decision(session, ITEMS[0], PAIR, ["noise"])
    heads = HeadSet.parse("L0H1,L1H0")
    moved = {}
    for candidate in ("failed", "gold"):
        key = (candidate, "neut")
        change = replace_heads(heads, at.z((candidate, "pre")), "candidate")
        moved[candidate] = elsewhere(change, at.z(key), session.streams("x"))
        for edit, other in zip(change.without_knockouts, moved[candidate].without_knockouts, strict=True):
            own = at.z(key)[edit.layer, :, edit.head]
            assert edit.value is not None and other.value is not None
            far, wide = (edit.value - own).norm(dim=-1), (other.value - own).norm(dim=-1)
            assert (far - wide).abs().max() < 1e-5 and (edit.value - other.value).abs().max() > 1e-3
    for one, other in zip(moved["failed"].without_knockouts, moved["gold"].without_knockouts, strict=True):
        # The first position predicts the first token of either action: one run, one direction.
        assert one.value is not None and other.value is not None
        assert (one.value[0] - other.value[0]).abs().max() < 1e-5
    nowhere = elsewhere(scale_heads(heads, 1.0, "candidate"), at.z(("failed", "neut")), session.streams("x"))
    [score] = score_interventions(session.engine, at.clean["failed", "neut"], [nowhere])
    assert score.total == pytest.approx(at.clean["failed", "neut"].score.total, abs=NATS)


def test_two_pairs_share_a_folder_and_the_ablations_of_the_condition_they_share(shell: Shell) -> None:
    some = words(shell, "--methods", "noise,denoise,mean,resample,knockout")
    shell.once("joint", *some)
    first = shell.lines("joint")
    said = shell.ran("joint", *some, "--from", "neut_other", "--metric", "margin")
    both = shell.lines("joint")
    assert both[: len(first)] == first and any("neut_other → neut, margin" in line for line in said.out)
    shell.ran("joint", *some, "--from", "neut_other", out="alone")
    alone = {row["id"]: row for row in shell.lines("joint", "alone")}
    for row in both[len(first) :]:
        for key, values in row["under"].items():
            assert values == pytest.approx(alone[row["id"]]["under"][key], abs=NATS)
        assert row["draws"].keys() == alone[row["id"]]["draws"].keys()
    assert shell.forwards("joint neut_other>neut")[0] < shell.forwards("joint neut_other>neut", "alone")[0]
    table = shell.table("joint")
    assert set(zip(table["from"], table["to"], strict=True)) == {PAIR, ("neut_other", "neut")}
    shell.ran("joint", *some)  # derives the tables of both again
    assert shell.table("joint").equals(table)


def test_knockout_needs_a_record_of_the_call_and_other_methods_do_not(shell: Shell) -> None:
    pair = ["--from", "pre", "--to", "abstract"]
    shell("joint", *words(shell, *pair)).sentence("leave it out, with --methods")
    shell.ran("joint", *words(shell, *pair, "--methods", "noise,denoise,zero"), out="other")
    shell("joint", *words(shell, "--methods", "noise,mein")).sentence("mein")
    shell("joint", *words(shell, "--control-kinds", "random,sinks")).sentence("sinks")


def test_items_without_a_reference_action_have_a_margin_over_their_distractors(shell: Shell) -> None:
    dump_items([replace(one, gold_action=None) for one in SHORT], shell.items)
    said = shell.ran("joint", *words(shell, "--methods", "noise"))
    assert {row["references"] for row in shell.lines("joint")} == {"distractors"}
    assert any("mean of their distractors" in line for line in said.out)
    assert "margin" in set(shell.table("joint")["metric"])


def test_methods_are_asked_of_the_sets_that_the_options_say() -> None:
    args = JointConfig(k=(4, 16), controls=3, ablation_controls=2, optimal_controls=1)
    labels = labelled(args)
    # Two sizes; three random sets each; at 16 three of norm, damage, direction and one of three other kinds.
    assert len(labels) == 2 + 6 + 9 + 3
    assert {label: kind_and_size(label)[0] for label in labels} == labels
    assert len(kept(labels, "noise", args)) == 20 and len(kept(labels, "knockout", args)) == 17
    assert len(kept(labels, "mean", args)) == 2 + 4 + 6 + 3 and len(kept(labels, "optimal", args)) == 3
    assert draws_of(args)("resample", "selected") == 20 and draws_of(args)("resample", "random") == 1
    assert (
        control_kinds("random:100,sink", 5) == {"random": 100, "sink": 1} and control_kinds("none", 5) == {}
    )
    assert methods_of("mean,noise") == ("noise", "mean") and methods_of("all") == METHODS


def test_a_killed_run_goes_on_and_other_sets_are_refused(shell: Shell) -> None:
    some = words(shell, "--methods", "noise,denoise,mean,resample,knockout")
    shell.once("joint", *some)
    whole, table = shell.path("joint.jsonl").read_bytes(), shell.path("joint.csv").read_bytes()
    lines = whole.splitlines(keepends=True)
    shell.path("joint.jsonl").write_bytes(b"".join(lines[:8]) + lines[8][:30])
    shell.ran("joint", *some)
    assert shell.path("joint.jsonl").read_bytes() == whole
    assert shell.path("joint.csv").read_bytes() == table
    shell("joint", *some, "--k", "3").sentence("other settings")


def test_matched_controls_and_fits_are_made_once_in_a_folder(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = "random,norm,damage,sink"
    some = words(shell, "--control-kinds", kinds, "--methods", "mean,optimal")
    shell.ran("joint", *some)
    whole, fits = shell.path("joint.jsonl").read_bytes(), shell.path("joint_fits.jsonl").read_bytes()
    about = shell.about("joint")
    assert any(
        "/norm" in label for label in about["provenance"]["sets"]
    )  # these two heads cost nothing: no damage
    assert len(fits.splitlines()) == len(about["extra"]["fitted"]) >= 2
    shell.ran("joint", *some, "--from", "neut_other", out="alone")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("drawn or fitted again")

    for place in ("control_sets.head_norms", "ablation.fit_constants"):
        monkeypatch.setattr(f"experiments.heads.{place}", never)
    shell.path("joint.jsonl").write_bytes(b"")
    shell.ran("joint", *some)
    assert shell.path("joint.jsonl").read_bytes() == whole
    shell.ran("joint", *some, "--from", "neut_other")
    pair = shell.about("joint neut_other>neut")
    alone = shell.about("joint neut_other>neut", "alone")
    for name in ("sets", "displaced", "ratios", "not_reached"):
        assert pair["provenance"][name] == about["provenance"][name] == alone["provenance"][name]
    assert pair["config_hash"] == alone["config_hash"] and pair["extra"]["fitted"] == about["extra"]["fitted"]
    assert shell.path("joint_fits.jsonl").read_bytes() == fits


def test_what_other_settings_have_made_is_not_taken(shell: Shell) -> None:
    some = words(shell, "--control-kinds", "random,norm", "--methods", "mean,optimal", "--limit", "1")
    shell.ran("joint", *some)
    fits = len(shell.lines("joint_fits"))
    first = shell.about("joint")["provenance"]
    for pair, words_of in (("neut_other", ["--seed", "1"]), ("neut_matched", ["--controls", "3"])):
        other = [*some, "--from", pair, *words_of]
        shell.ran("joint", *other)
        shell.ran("joint", *other, out="alone")
        here, alone = (shell.about(f"joint {pair}>neut", out)["provenance"] for out in ("run", "alone"))
        assert here["sets"] == alone["sets"] and here["ratios"] == alone["ratios"]
        assert (
            here["ratios"] != first["ratios"]
        )  # else they would be the same sets, and nothing would be shown
    before = len(shell.lines("joint_fits"))
    slow = [*some, "--from", "neut_pad", "--engine", "reference"]
    shell.ran("joint", *slow)
    assert len(shell.lines("joint_fits")) == before + fits  # the other engine fits for itself


def test_a_fit_of_other_heads_than_it_names_is_refused(shell: Shell) -> None:
    some = words(shell, "--control-kinds", "none", "--methods", "optimal", "--limit", "1")
    shell.ran("joint", *some)
    rows = shell.lines("joint_fits")
    name, values = next(iter(rows[0]["constants"].items()))
    for changed in ({}, {name: values[:-1]}):
        rows[0]["constants"] = changed if not changed else {**rows[0]["constants"], **changed}
        shell.path("joint_fits.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        shell("joint", *some).sentence("joint_fits.jsonl", "delete that line")
