"""An intervention is a value: what it does, and nothing else, decides its fingerprint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mech.engine.queries import Query
from mech.errors import InputError
from mech.heads import Head, HeadSet
from mech.interventions.intervention import (
    NOTHING,
    Edit,
    Intervention,
    Knockout,
    Where,
    knock_out_edges,
    merge,
    replace_heads,
    scale_heads,
)

VALUE = torch.arange(4.0)
Z_EDIT = Edit("z", 1, 2, "candidate", VALUE)


@pytest.mark.parametrize(
    "changed",
    [
        {"layer": 2},
        {"head": 3},
        {"where": "all"},
        {"value": VALUE + 1e-6},
        {"value": VALUE.double()},
        {"value": VALUE[None]},
        {"value": None},
        {"site": "mlp_out", "head": None},
        {"site": "q"},
        {"site": "k"},
        {"where": (4, 5)},
        {"where": (4, 6)},
    ],
)
def test_a_change_of_any_field_changes_the_fingerprint(changed: dict[str, Any]) -> None:
    assert replace(Z_EDIT, **changed).fingerprint != Z_EDIT.fingerprint


def test_the_factor_counts_where_there_is_no_value_and_only_there() -> None:
    scaled = Edit("z", 1, 2, "all", None, 0.5)
    assert replace(scaled, alpha=0.25).fingerprint != scaled.fingerprint
    assert replace(Z_EDIT, alpha=0.25).fingerprint == Z_EDIT.fingerprint


def test_equal_edits_have_equal_fingerprints_whatever_memory_they_lie_in() -> None:
    strided = torch.stack([VALUE, -VALUE], dim=1)[:, 0]
    assert not strided.is_contiguous()
    assert replace(Z_EDIT, value=strided).fingerprint == Z_EDIT.fingerprint


def test_the_order_of_edits_does_not_change_the_fingerprint_but_their_number_does() -> None:
    other = Edit("mlp_out", 0, None, "all", VALUE)
    assert Intervention((Z_EDIT, other)).fingerprint == Intervention((other, Z_EDIT)).fingerprint
    assert Intervention((Z_EDIT,)).fingerprint != Intervention((Z_EDIT, other)).fingerprint
    assert NOTHING.fingerprint == "clean" != Intervention((Z_EDIT,)).fingerprint


def test_the_parts_of_an_intervention_make_it_up() -> None:
    whole = scale_heads(HeadSet([Head(0, 0), Head(1, 1)]), 0.0) + Intervention((Z_EDIT,))
    assert {edit.where for edit in whole.everywhere.edits} == {"all"} and len(whole.everywhere.edits) == 2
    assert whole.at_candidate.edits == (Z_EDIT,)
    assert merge([whole.at_candidate, whole.everywhere]).fingerprint == whole.fingerprint


def test_heads_take_their_own_slice() -> None:
    z = torch.arange(2 * 3 * 2 * 4.0).reshape(2, 3, 2, 4)  # layer, pos, head, d_head
    first, second = replace_heads(HeadSet([Head(0, 1), Head(1, 0)]), z, "candidate").edits
    assert torch.equal(first.value, z[0, :, 1]) and torch.equal(second.value, z[1, :, 0])
    mean = z[:, 0]
    [edit] = replace_heads(HeadSet([Head(1, 1)]), mean, "all").edits
    assert torch.equal(edit.value, mean[1, 1])
    z.zero_()
    assert edit.value.any(), "the intervention changed with the tensor it was made from"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("pattern", 0, 1, "all"), "not a site"),
        (("z", 0, None, "all"), "needs a head"),
        (("k", 0, None, "all"), "needs a head"),
        (("resid_post", 0, 1, "all"), "takes no head"),
        (("z", 0, 1, "record"), "'record' is no place"),
        (("z", 0, 1, ()), "at least one"),
        (("z", 0, 1, (3, 3)), "ascending"),
        (("z", 0, 1, (4, 3)), "ascending"),
        (("z", 0, 1, (-1, 3)), "from 0"),
        (("z", 0, 1, (3, 4), torch.zeros(3, 4)), "3 values for 2 positions"),
        (("mlp_out", 0, 1, "all"), "takes no head"),
        (("z", 0, 1, "all", torch.zeros(3, 4)), "at all positions"),
        (("z", 0, 1, "candidate", torch.zeros(1, 3, 4)), r"\[pos, d\]"),
        (("z", 0, 1, "candidate", torch.tensor(0.0)), r"\[pos, d\]"),
    ],
)
def test_an_edit_that_means_nothing_is_refused(arguments: tuple[Any, ...], words: str) -> None:
    # Site is a Literal, which the shape checker of the tests would refuse before the code does.
    with pytest.raises(InputError, match=words):
        unchecked_edit(*arguments)


def unchecked_edit(site: Any, layer: int, head: int | None, where: Any, value: Any = None) -> Edit:
    edit = object.__new__(Edit)
    fields = {"site": site, "layer": layer, "head": head, "where": where, "value": value, "alpha": 0.0}
    for name, given in fields.items():
        object.__setattr__(edit, name, given)
    edit.__post_init__()
    return edit


def test_two_edits_of_one_activation_at_one_place_are_refused() -> None:
    """Their order would decide the result, and the fingerprint that keys every cache knows no order."""
    with pytest.raises(InputError, match="twice"):
        Intervention((Z_EDIT,)) + Intervention((replace(Z_EDIT, value=VALUE + 1),))
    elsewhere = replace(Z_EDIT, where="all")
    assert len(Intervention((Z_EDIT, elsewhere)).edits) == 2


def test_places_given_by_number_may_not_overlap() -> None:
    first = replace(Z_EDIT, where=(2, 3))
    with pytest.raises(InputError, match="twice"):
        Intervention((first, replace(Z_EDIT, where=(3, 4), value=VALUE + 1)))
    both = Intervention((Z_EDIT, replace(Z_EDIT, where="all"), first, replace(Z_EDIT, where=(4,))))
    assert [edit.where for edit in both.local.edits] == [(2, 3), (4,), "candidate"]
    assert both.at_positions.fingerprint != both.local.fingerprint != both.fingerprint


def test_every_field_of_a_cut_counts() -> None:
    cut = Knockout(1, (0, 2), (3, 4), "candidate")
    changes: list[dict[str, Any]] = [
        {"layer": 0}, {"heads": (0,)}, {"sources": (3,)}, {"where": (5,)}, {"where": (6,)},
    ]  # fmt: skip
    others = [replace(cut, **change).fingerprint for change in changes]
    assert len({cut.fingerprint, *others}) == 1 + len(others)
    assert replace(cut).fingerprint == cut.fingerprint


def test_edges_are_cut_by_layer_and_none_is_nothing() -> None:
    heads = HeadSet([Head(2, 1), Head(0, 3), Head(2, 0)])
    first, second = knock_out_edges(heads, range(4, 6)).edits
    assert isinstance(first, Knockout) and isinstance(second, Knockout)
    assert (first.layer, first.heads, first.sources, first.where) == (0, (3,), (4, 5), "candidate")
    assert (second.layer, second.heads) == (2, (0, 1))
    assert (
        knock_out_edges(heads, []).fingerprint
        == knock_out_edges(HeadSet([]), [4]).fingerprint
        == NOTHING.fingerprint
    )
    whole = scale_heads(heads, 0.0) + knock_out_edges(heads, [4], (6, 7))
    assert (
        len(whole.without_knockouts) == len(whole.everywhere.edits) == 3
        and len(whole.at_positions.edits) == 2
    )


@pytest.mark.parametrize(
    ("sources", "where", "words"),
    [
        ((3,), "all", "at the action positions or at positions given by number"),
        ((3, 3), "candidate", "source positions .* ascending"),
        ((-2,), "candidate", "from 0"),
        ((3,), (), "at least one"),
    ],
)
def test_a_cut_that_means_nothing_is_refused(sources: tuple[int, ...], where: Where, words: str) -> None:
    with pytest.raises(InputError, match=words):
        knock_out_edges(HeadSet([Head(0, 0)]), sources, where)


def test_places_must_lie_in_the_sequence_and_sources_in_the_prompt() -> None:
    heads = HeadSet([Head(0, 0)])
    Query((1, 2), (3, 4, 5), scale_heads(heads, 0.0, (3,)) + knock_out_edges(heads, [1], (3,)))
    with pytest.raises(InputError, match="acts at position 4, the sequence has 0-3"):
        Query((1, 2), (3, 4, 5), scale_heads(heads, 0.0, (1, 4)))
    with pytest.raises(InputError, match="acts at position 4, the sequence has 0-3"):
        Query((1, 2), (3, 4, 5), knock_out_edges(heads, [0], (4,)))
    with pytest.raises(InputError, match="Edges to position 2 are to be knocked out, the prompt has 0-1"):
        Query((1, 2), (3, 4, 5), knock_out_edges(heads, [2]))


def test_a_shared_prefix_ends_before_the_first_position_that_is_edited() -> None:
    heads = HeadSet([Head(0, 0)])
    prompt, action = tuple(range(10)), (3, 4)
    for kind, untouched in (
        (NOTHING, 9),
        (scale_heads(heads, 0.0, "all"), 9),
        (scale_heads(heads, 0.0, "candidate"), 9),
        (scale_heads(heads, 0.0, (10,)), 9),
        (scale_heads(heads, 0.0, (4, 7)) + scale_heads(heads, 0.0, "candidate"), 4),
        (knock_out_edges(heads, [1, 2]), 9),
        (knock_out_edges(heads, [1, 2], (6, 7)), 6),
    ):
        assert Query(prompt, action, kind).untouched == untouched


def test_values_by_position_must_be_as_many_as_the_action_has_tokens() -> None:
    """One row would broadcast over all positions in silence."""
    for rows in (1, 2, 4):
        with pytest.raises(InputError, match="action positions"):
            Query((1, 2), (3, 4, 5), Intervention((replace(Z_EDIT, value=torch.zeros(rows, 4)),)))
    Query((1, 2), (3, 4, 5), Intervention((replace(Z_EDIT, value=torch.zeros(3, 4)),)))
