"""Every site and place by one part after another: as by full forwards, nothing from oneself, all from a donor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from mech.engine.capture import everything_names
from mech.engine.engine import Engine, Run
from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.edits import HOOKS
from mech.interventions.hooks import hooked
from mech.patching.patch import (
    PATCH_SITES,
    Part,
    PatchSite,
    all_heads,
    parts_of,
    parts_of_heads,
    patch_part_sets,
    patch_parts,
    site_names,
)
from mech.patching.patterns import moved_patterns, patch_pattern_sets, patch_patterns, pattern_names
from tests.mech_cases import (
    ACTION,
    LEFT,
    SOME,
    STEM,
    FolderFactory,
    assert_bits,
    assert_scores,
    n_torch_hooks,
    tiny_model,
)
from tests.mech_cases import one_thread as one_thread
from tests.tiny_models import FAMILIES
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")

RECORD = tuple(range(25, 31))
OTHER = tuple(token + 40 if at in RECORD else token for at, token in enumerate(LEFT))  # as long as LEFT
SETS = {"two": HeadSet([Head(0, 1), Head(2, 3)]), "all of a layer": HeadSet([Head(1, h) for h in range(4)])}
HEADS_SITES: tuple[PatchSite, ...] = ("z", "q", "k", "v")
SAME = [(place, place) for place in range(len(LEFT) + len(ACTION) - 1)]
# LEFT is the stem, a record and one token; a donor that is the stem and this token has no record.
SHORT = (*STEM, LEFT[-1])
WITHOUT_RECORD = [(i, i) for i in range(len(STEM))] + [
    (len(STEM) + i, len(LEFT) - 1 + i) for i in range(len(ACTION))
]


def two(engine: Engine, site: str, right: tuple[int, ...] = OTHER) -> tuple[Run, Run]:
    """Runs of LEFT and of a donor that kept a site at the action positions and at RECORD."""
    names = pattern_names(engine.model) if site == "pattern" else site_names(engine.model, site)
    at = {"record": RECORD} if len(right) == len(LEFT) else None
    recipient, donor = (engine.run(Query(prompt, ACTION), names, at=at) for prompt in (LEFT, right))
    return recipient, donor


@pytest.mark.parametrize("at", ["candidate", "record"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_part_and_set_is_as_by_full_forwards(family: str, at: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, family)
    fast, slow = Engine(model), Engine(model, slow=True)
    places = RECORD if at == "record" else ()
    for site in get_args(PatchSite):
        runs = two(fast, site)
        found = patch_parts(fast, *runs, site, at, places)
        some = list(found)[::3]
        by_hand = patch_parts(slow, *runs, site, at, places, some)
        assert list(by_hand) == some
        assert_scores([found[part] for part in some], list(by_hand.values()), FP64)
        base = runs[0].score.total
        assert max(abs(score.total - base) for score in found.values()) > 1e-4, site
        if site in HEADS_SITES and family in ("llama", "gemma3", "gpt2"):
            joint = patch_part_sets(fast, *runs, site, SETS, at, places)
            others = patch_part_sets(slow, *runs, site, SETS, at, places)
            assert_scores(list(joint.values()), list(others.values()), FP64)
    assert n_torch_hooks(model) == n_torch_hooks(tiny_model(tiny_folder, family))


@pytest.mark.parametrize("site", PATCH_SITES)
def test_a_run_patched_from_itself_is_itself_to_the_bit(site: PatchSite, tiny_folder: FolderFactory) -> None:
    engine = Engine(tiny_model(tiny_folder, "llama"))
    run, _ = two(engine, site)
    for at, places in (("candidate", ()), ("record", RECORD)):
        ran = engine.forwards.ran
        found = patch_parts(engine, run, run, site, at, places)
        assert found and engine.forwards.ran == ran  # equal values are not run
        assert_bits(list(found.values()), [run.score] * len(found))


@pytest.mark.parametrize("at", ["candidate", "record"])
@pytest.mark.parametrize("site", PATCH_SITES)
def test_its_own_values_change_nothing_when_they_are_run(
    site: PatchSite, at: str, tiny_folder: FolderFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same without the short cut for equal values."""
    engine = Engine(tiny_model(tiny_folder, "llama"))
    run, other = two(engine, site)
    places = RECORD if at == "record" else ()
    monkeypatch.setattr(torch, "equal", lambda one, other: False)
    ran = engine.forwards.ran
    own, others = (patch_parts(engine, run, donor, site, at, places) for donor in (run, other))
    assert engine.forwards.ran > ran
    assert_scores(list(own.values()), [run.score] * len(own), FP64)
    moved = [abs(score.total - run.score.total) for score in others.values()]
    assert max(moved) > 1e-3


@pytest.mark.parametrize("family", SOME)
def test_the_embedding_of_every_changed_position_is_the_donors_whole_answer(
    family: str, tiny_folder: FolderFactory
) -> None:
    engine = Engine(tiny_model(tiny_folder, family))
    recipient, donor = two(engine, "resid_pre")
    found = patch_parts(engine, recipient, donor, "resid_pre", "record", RECORD)
    assert_scores([found[Part(0)]], [donor.score], FP64)
    assert abs(donor.score.total - recipient.score.total) > 1e-4
    # Further up, the positions behind the record have read it already.
    assert abs(found[Part(2)].total - donor.score.total) > 1e-4


@pytest.mark.parametrize("at", ["candidate", "record"])
def test_keys_and_values_are_counted_by_key_value_head(at: str, tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    assert model.n_kv_heads < model.n_heads
    for site, count in (("k", model.n_kv_heads), ("v", model.n_kv_heads), ("q", 4), ("z", 4)):
        parts = parts_of(model, site)
        assert len(parts) == model.n_layers * count and len(set(map(str, parts))) == len(parts)
        assert all(("KV" in str(part)) == (site in ("k", "v")) for part in parts)
    heads = HeadSet([Head(1, 0), Head(1, 1), Head(2, 3)])
    assert parts_of_heads(model, "v", heads) == [Part(1, kv_head=0), Part(2, kv_head=1)]
    # One key/value head alone is the set of the query heads that read it.
    runs, places = two(engine, "v"), RECORD if at == "record" else ()
    alone = patch_parts(engine, *runs, "v", at, places, [Part(1, kv_head=0)])
    group = patch_part_sets(engine, *runs, "v", {"g": HeadSet([Head(1, 0), Head(1, 1)])}, at, places)
    assert_scores(list(alone.values()), list(group.values()), FP64)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("short", [False, True])
def test_a_pattern_is_patched_as_by_a_hook_on_the_pattern_itself(
    family: str, short: bool, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    fast, slow = Engine(model), Engine(model, slow=True)
    runs, columns = two(fast, "pattern", SHORT if short else OTHER), WITHOUT_RECORD if short else SAME
    found = patch_patterns(fast, *runs, columns)
    assert list(found) == list(all_heads(model))
    some = HeadSet(list(found)[::2])
    by_hand = patch_patterns(slow, *runs, columns, some)
    assert_scores([found[head] for head in some], list(by_hand.values()), FP64)
    assert max(abs(score.total - runs[0].score.total) for score in found.values()) > 1e-4
    joint, others = (patch_pattern_sets(engine, *runs, columns, SETS) for engine in (fast, slow))
    assert_scores(list(joint.values()), list(others.values()), FP64)


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_carried_pattern_sums_to_one_and_gives_the_record_nothing(
    family: str, tiny_folder: FolderFactory
) -> None:
    model = tiny_model(tiny_folder, family)
    runs = two(Engine(model), "pattern", SHORT)
    for pattern in moved_patterns(model, *runs, WITHOUT_RECORD):
        np.testing.assert_allclose(pattern.sum(-1), 1.0, atol=1e-12)
        assert float(pattern[:, :, len(STEM) : len(LEFT) - 1].abs().max()) == 0.0
    with pytest.raises(InputError, match="attention may not be lost"):
        moved_patterns(model, *runs, WITHOUT_RECORD[1:])
    with pytest.raises(InputError, match="each once"):
        moved_patterns(model, *runs, [(theirs, 0) for theirs, _ in WITHOUT_RECORD])


def test_a_pattern_from_oneself_and_values_from_oneself_change_nothing(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "gemma3")
    engine = Engine(model)
    run, donor = two(engine, "pattern")
    found = patch_patterns(engine, run, run, SAME)
    assert_bits(list(found.values()), [run.score] * len(found))
    # Layer 0 sees equal tokens at the action positions: where they look there depends on the record's keys alone.
    moved = patch_patterns(engine, run, donor, SAME, HeadSet([Head(0, 0)]))
    seen: dict[str, Any] = {}

    def keep(value: torch.Tensor, hook: Any) -> None:
        seen["pattern"] = value

    with hooked(model, [("blocks.0.attn.hook_pattern", keep)], fires=1), torch.no_grad():
        model.bridge(torch.tensor([donor.query.tokens]))
    rows = seen["pattern"][0, 0, donor.query.candidate.start :]
    np.testing.assert_allclose(donor.cache["blocks.0.attn.hook_pattern"][0], rows, atol=1e-12)
    assert abs(moved[Head(0, 0)].total - run.score.total) > 0


def test_what_cannot_be_patched_is_refused_by_name(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    engine = Engine(model)
    recipient, donor = two(engine, "k")
    with pytest.raises(InputError, match="'hook' is not a site"):
        parts_of(model, "hook")
    with pytest.raises(InputError, match="There is no L0KV2 to patch"):
        patch_parts(engine, recipient, donor, "k", parts=[Part(0, kv_head=2)])
    with pytest.raises(InputError, match="There is no L3 to patch"):
        patch_parts(engine, *two(engine, "resid_pre"), "resid_pre", "record", RECORD, [Part(3)])
    with pytest.raises(InputError, match="did not keep 'blocks.0.attn.hook_q'"):
        patch_parts(engine, recipient, donor, "q")
    with pytest.raises(InputError, match="Sets of heads have no 'mlp_out'"):
        patch_part_sets(engine, *two(engine, "mlp_out"), "mlp_out", SETS)
    shorter = engine.run(donor.query, site_names(model, "k"), at={"record": RECORD[:-1]})
    with pytest.raises(InputError, match="donor has 5 record positions, the recipient 6"):
        patch_parts(engine, recipient, shorter, "k", "record", RECORD)
    other = replace(donor, query=Query(OTHER, ACTION[:-1]))
    with pytest.raises(InputError, match="same action tokens"):
        patch_parts(engine, recipient, other, "k")
    assert everything_names(model, HOOKS["k"])[0] in site_names(model, "k")
