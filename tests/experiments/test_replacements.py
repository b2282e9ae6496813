"""What takes the place of z: donors of other tasks at matching places, paired over conditions, fresh in every draw."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from experiments.heads.ablation import (
    METHODS,
    AblationOptions,
    Donors,
    Replacement,
    kept_z,
    replacement,
    resampled,
    score_under,
)
from experiments.heads.control_sets import KINDS, MatchedOptions, control_kinds, control_sets, damage_of
from experiments.heads.reference_sets import MIN_REFERENCE, reference_set
from experiments.run.seeds import stream
from experiments.run.session import Session
from mech.engine import reference
from mech.engine.capture import everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.engine.sweep import score_interventions
from mech.errors import InputError
from mech.heads import HeadSet
from mech.interventions.intervention import NOTHING, replace_heads
from mech.patching.patch import all_heads
from probes.items.item import Item
from probes.prompts.wording import load_wording
from probes.scoring.roles import position_roles
from probes.scoring.score import build_queries, score_item
from tests.mech_cases import FolderFactory, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.study_cases import ITEMS
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")
WORDING = load_wording()
HEADS = HeadSet.parse("L0H1,L1H3,L2H0")
POOL = [
    replace(one, item_id=f"meadow-{number}", task_id=f"meadow-{number}", goal=f"Mow meadow {number}.")
    for number, one in enumerate(ITEMS * 9)
]


@pytest.fixture
def session(tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch) -> Session:
    """Two items on the tiny Llama in float64, and a pool of 36 contexts of other tasks beside theirs."""
    monkeypatch.setattr("experiments.heads.reference_sets.read_pool", lambda args: [*ITEMS, *POOL])
    engine = Engine(tiny_model(tiny_folder, "llama"))
    return Session(engine, list(ITEMS[:2]), WORDING, lambda name: stream(0, name))


@dataclass(frozen=True, kw_only=True)
class Settings(AblationOptions, MatchedOptions):
    """What replacements and control sets are made by."""


def options(tmp: Path | None = None, **given: Any) -> Settings:
    return replace(Settings(out=tmp, draws=4), **given)


def ask_of(session: Session, item: Item, condition: str = "neut", candidate: str = "failed") -> Any:
    [scoring] = build_queries(session.model, item, [condition], WORDING, [candidate], end_of_turn=True)
    return scoring


def test_the_reference_has_contexts_of_its_own_and_no_measured_task(session: Session) -> None:
    found = reference_set(session, options())
    assert len(found.items) == len(set(found.prompts)) == 32 >= MIN_REFERENCE and not found.notes
    assert not {one.task_id for one in found.items} & {one.task_id for one in session.items}
    few = reference_set(session, options(reference_items=3))
    assert len(few.items) == 3 and "3 different contexts" in few.notes[0] and few.about["notes"]


def test_twins_of_one_context_count_once(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = [replace(one, item_id=f"{one.item_id}b") for one in POOL]
    monkeypatch.setattr("experiments.heads.reference_sets.read_pool", lambda args: [*ITEMS, *POOL, *twins])
    found = reference_set(session, options())
    assert len(found.items) == len(set(found.prompts)) == 32
    monkeypatch.setattr(
        "experiments.heads.reference_sets.read_pool", lambda args: [*ITEMS, *POOL[:20], *twins[:20]]
    )
    with pytest.raises(InputError, match=r"22 different contexts.*30 at least.*--reference-items FILE"):
        reference_set(session, options())


def test_the_sentence_says_how_many_tasks_may_be_measured(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.heads.reference_sets.read_pool", lambda args: POOL)
    many = replace(session, items=POOL[:10])
    with pytest.raises(InputError, match=r"6 of its 36 tasks at most; 10 are measured"):
        reference_set(many, options())
    assert len(reference_set(replace(session, items=POOL[:6]), options()).items) == 30


@pytest.mark.parametrize(
    ("how", "where"),
    [(how, where) for how in METHODS for where in ("all", "candidate") if (how, where) != ("optimal", "all")],
)
def test_every_way_agrees_with_full_forwards_and_changes_the_score(
    how: str, where: str, session: Session
) -> None:
    put = replacement(session, options(), how=how)
    rows = score_under(session, ITEMS[1], ["pre", "neut"], ["failed", "gold"], put, HEADS, where)
    slow = replace(session, engine=Engine(session.model, slow=True))
    assert len(rows) == put.draws == (4 if how == "resample" else 1)
    changes = {
        (condition, name): put.interventions(HEADS, where, ask_of(session, ITEMS[1], condition, name))
        for condition in ("pre", "neut")
        for name in ("failed", "gold")
    }
    clean = {row["id"]: row["logprob"] for row in score_item(slow.engine, ITEMS[1], ["pre", "neut"], WORDING)}
    for draw, own in enumerate(rows):
        for row in own:
            change = changes[row["condition"], row["candidate"]][draw]
            query = ask_of(session, ITEMS[1], row["condition"], row["candidate"]).query
            [score] = reference.score(session.model, [Query(query.prompt, query.action, change)])
            np.testing.assert_allclose(row["token_logprobs"], score.logprobs[:-1], rtol=0, atol=FP64)
            assert row["intervention"] == change.fingerprint
            assert abs(row["logprob"] - clean[row["id"]]) > 100 * FP64
    if how == "resample":
        assert len({row["logprob"] for [row, *_] in rows}) == 4


def test_a_donor_that_is_the_item_itself_changes_nothing(session: Session) -> None:
    model, scoring = session.model, ask_of(session, ITEMS[1])
    n = len(scoring.query.action)
    z = kept_z(session, scoring, False)
    own = resampled(z, (), (), (n, n), np.random.default_rng(0))
    assert torch.equal(own, z)
    run = session.engine.run(scoring.query, everything_names(model, "hook_resid_pre"))
    change = replace_heads(all_heads(model), own, "candidate")
    [score] = score_interventions(session.engine, run, [change])
    assert abs(score.total - run.score.total) <= FP64
    everywhere = kept_z(session, scoring, True)
    places = [str(at) for at in range(everywhere.shape[1])]
    laid = resampled(everywhere, places, places, (n, n), np.random.default_rng(0))
    assert torch.equal(laid, everywhere)
    positions = tuple(range(len(scoring.query.tokens)))
    query = Query(
        scoring.query.prompt, scoring.query.action, replace_heads(all_heads(model), laid, positions)
    )
    [score] = session.engine.score([query])
    assert abs(score.total - run.score.total) <= FP64


def test_hooks_put_the_values_at_every_position(session: Session) -> None:
    """Read back what flows: z of the heads is the donor's at each position, that of others is not."""
    put = replacement(session, options(), how="resample")
    scoring = ask_of(session, ITEMS[0])
    change = put.interventions(HEADS, "all", scoring)[0]
    query = Query(scoring.query.prompt, scoring.query.action, change)
    names = everything_names(session.model, "attn.hook_z")
    run = session.engine.run(query, names, 0, {"every": range(len(query.tokens))})
    assert len(change.edits) == len(HEADS)
    for edit in change.edits:
        assert edit.value is not None and len(edit.value) == len(query.tokens) and edit.head is not None
        assert torch.equal(run.at["every"][edit.hook_name][:, edit.head], edit.value)
    [reached] = session.engine.score([query])
    assert reached.total == pytest.approx(run.score.total, abs=FP64)


def test_values_come_from_matching_places_of_one_donor(session: Session) -> None:
    put = replacement(session, options(), how="resample")
    donors = put.donors
    assert donors is not None
    scoring = ask_of(session, ITEMS[1], "fail")
    roles = position_roles(session.model, ITEMS[1], "fail", WORDING, scoring.query)
    own = donors.of(ITEMS[1], "fail", 4)
    for draw, change in enumerate(put.interventions(HEADS, "all", scoring)):
        asked = donors.scoring(own[draw], "fail", "failed")
        z = donors.z(asked, True)
        theirs = donors.roles(asked, True)
        edits = list(change.edits)
        for at, role in enumerate(roles):
            of = [
                {
                    place
                    for place in range(z.shape[1])
                    if torch.equal(z[edit.layer, place, edit.head or 0], edit.value[at])
                }
                for edit in edits
                if edit.value is not None and edit.head is not None
            ]
            shared = set.intersection(*of)  # all heads from one position
            assert any(theirs[place] == role for place in shared), (at, role)
        assert roles[-1] == "action"


def test_donors_are_paired_over_conditions_fresh_by_draw_and_of_other_tasks(session: Session) -> None:
    donors = replacement(session, options(), how="resample").donors
    assert isinstance(donors, Donors)
    names = [[one.item_id for one in donors.of(ITEMS[0], c, 12)] for c in ("pre", "neut", "fail")]
    assert names[0] == names[1] == names[2] and len(set(names[0])) == 12
    other = [one.item_id for one in donors.of(ITEMS[1], "pre", 12)]
    assert other != names[0]
    assert all(bool(one.step_index) for one in donors.of(ITEMS[1], "pre", 5))
    assert not any(one.step_index for one in donors.of(ITEMS[0], "pre", 5))
    measured = {one.task_id for one in session.items}
    assert not measured & {one.task_id for one in donors.reference.items}


def test_the_mean_by_role_is_the_plain_mean_where_all_positions_are_alike(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "experiments.heads.ablation.position_roles", lambda m, i, c, w, query: ("x",) * len(query.tokens)
    )
    put = replacement(session, options(reference_items=3), how="mean-role")
    assert put.donors is not None and put.reference is not None
    [change] = put.interventions(HEADS, "all", ask_of(session, ITEMS[0], "pre"))
    zs = [kept_z(session, put.donors.scoring(one, "pre", "failed"), True) for one in put.reference.items]
    mean = torch.cat(zs, dim=1).mean(dim=1)
    for edit in change.edits:
        assert edit.value is not None and edit.head is not None
        expected = mean[edit.layer, edit.head].expand_as(edit.value)
        torch.testing.assert_close(edit.value, expected, rtol=0, atol=FP64)


def test_optimal_constants_never_cost_more_than_the_mean(session: Session) -> None:
    put = replacement(session, options(), how="optimal")
    change = put.fixed(HEADS, "candidate")
    [told] = put.fitted().values()
    assert told["loss_fitted"] < told["loss_at_mean"] and set(put.fitted()) == {HEADS.sha256}
    assert put.fixed(HEADS, "candidate").fingerprint == change.fingerprint


def test_what_serves_every_question_alike_and_what_does_not(session: Session) -> None:
    scoring = ask_of(session, ITEMS[0])
    for how in METHODS:
        put = replacement(session, options(), how=how)
        assert put.interventions(None, "all", scoring) == [NOTHING] * put.draws
        if put.by_question:
            with pytest.raises(InputError, match=f"--how {how}"):
                put.fixed(HEADS, "all")
        else:
            where = "candidate" if how == "optimal" else "all"
            [one] = put.interventions(HEADS, where, scoring)
            assert one.fingerprint == put.fixed(HEADS, where).fingerprint
    with pytest.raises(InputError, match="is not a way"):
        replacement(session, options(), how="median")
    with pytest.raises(InputError, match="needs a reference set"):
        Replacement("resample").interventions(HEADS, "all", scoring)


# --- control sets


def by_cost(session: Session) -> list[str]:
    """All heads, by what taking each out alone costs the reference action."""
    measure = damage_of(session, reference_set(session, options()))
    heads = list(all_heads(session.model))
    costs = measure([HeadSet([head]) for head in heads])
    return [str(head) for _, head in sorted(zip(costs, heads, strict=True), key=lambda pair: pair[0])]


def test_controls_of_every_kind_are_other_heads(session: Session, tmp_path: Any) -> None:
    selected = HeadSet.parse(",".join(by_cost(session)[-2:]))  # of heads that cost nothing there is no equal
    found = control_sets(session, options(tmp_path), "top2", selected, KINDS, 3)
    kinds = [one.kind for one in found]
    assert list(dict.fromkeys(kinds)) == list(KINDS)
    counts = {kind: kinds.count(kind) for kind in KINDS}
    assert counts["random"] == 3 and 1 <= counts["damage"] <= 3 and 1 <= counts["norm"] <= 3
    assert all(counts[kind] == 1 for kind in ("previous_token", "sink", "complement"))
    assert len({one.label for one in found}) == len(found)
    for one in found:
        assert one.label.startswith(f"top2/{one.kind}") and not set(one.heads) & set(selected)
        assert (one.ratio is None) == (one.kind not in ("norm", "damage"))
    sizes = {one.kind: len(one.heads) for one in found if one.kind != "damage"}
    assert sizes == {"random": 2, "norm": 2, "previous_token": 2, "sink": 2, "complement": 10}


def test_damage_controls_cost_what_the_selected_heads_cost(session: Session, tmp_path: Any) -> None:
    measure = damage_of(session, reference_set(session, options()))
    ratios: list[float] = []
    for name in by_cost(session)[
        -4:
    ]:  # how near they come is for tests/test_mech_damage.py: here are six heads in all
        selected = HeadSet.parse(name)
        [target] = measure([selected])
        if target <= 0:
            continue
        for one in control_sets(session, options(tmp_path), "one", selected, ["damage"], 4):
            [cost] = measure([one.heads])
            assert one.ratio == pytest.approx(cost / target, rel=1e-6)
            ratios.append(one.ratio or 0.0)
            assert not one.reached or max(ratios) > 0
    assert ratios
    least = by_cost(session)[0]
    [gain] = measure([HeadSet.parse(least)])
    if gain <= 0:
        assert control_sets(session, options(tmp_path), "one", HeadSet.parse(least), ["damage"], 2) == []


def test_unknown_kinds_are_refused(session: Session, tmp_path: Any) -> None:
    assert control_kinds("all") == KINDS and control_kinds("none") == ()
    assert control_kinds("damage, random") == ("random", "damage")
    with pytest.raises(ValueError, match="no kind of control 'strength'"):
        control_kinds("strength")
    with pytest.raises(InputError, match="no kind of control 'x'"):
        control_sets(session, options(tmp_path), "a", HEADS, ["x"], 1)
    everything = HeadSet(head for head in all_heads(session.model) if str(head) != "L0H0")
    with pytest.raises(InputError, match="no 'sink' control"):
        control_sets(session, options(tmp_path), "a", everything, ["sink"], 1)
