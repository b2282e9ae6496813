"""Donors' positions answer a recipient's; means by role with one role are the mean; a random direction moves as far."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mech.engine.capture import everything_names
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.models.model import Model
from mech.patching.donors import RoleMeans, by_role, in_order, random_direction
from mech.patching.means import mean_z
from tests.mech_cases import LEFT, RIGHT, FolderFactory, noise, one_thread, tiny_model  # noqa: F401 - a fixture
from tests.tolerances import FP64

pytestmark = pytest.mark.usefixtures("exact_softmax", "one_thread")


def test_candidate_positions_answer_in_order_and_wrap_behind_the_first() -> None:
    assert in_order(5, 5) == [0, 1, 2, 3, 4]
    assert in_order(3, 7) == [0, 1, 2]
    assert in_order(7, 4) == [0, 1, 2, 3, 1, 2, 3]  # the last prompt token answers nothing but its like
    assert in_order(3, 1) == [0, 0, 0]
    with pytest.raises(InputError):
        in_order(3, 0)


def test_a_position_is_drawn_among_those_of_its_role() -> None:
    donor = ("a", "b", "a", "c", "b", "a")
    rng = np.random.default_rng(0)
    drawn = [by_role(("a", "b", "c", "d"), donor, rng) for _ in range(300)]
    columns = [set(column) for column in zip(*drawn, strict=True)]
    assert columns == [{0, 2, 5}, {1, 4}, {3}, set(range(6))]  # no "d": any
    assert by_role("abc", "abc", rng) == [0, 1, 2]
    with pytest.raises(InputError):
        by_role("a", "", rng)


def all_z(model: Model, sequence: tuple[int, ...]) -> torch.Tensor:
    names = everything_names(model, "attn.hook_z")
    query = Query(sequence, sequence[-1:])
    run = Engine(model).run(query, names, 0, {"every": range(len(sequence))})
    return torch.stack([run.at["every"][name] for name in names])


def test_means_by_one_role_are_the_mean_and_by_several_weigh_up_to_it(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    sequences = (LEFT, RIGHT, LEFT[:9])
    expected = mean_z(Engine(model), sequences).z
    one, two = RoleMeans(), RoleMeans()
    for sequence in sequences:
        z = all_z(model, sequence)
        one.add(z, ["x"] * len(sequence))
        two.add(z, ["even" if at % 2 == 0 else "odd" for at in range(len(sequence))])
    torch.testing.assert_close(one.means["x"], expected, rtol=0, atol=FP64)
    torch.testing.assert_close(two.everything, expected, rtol=0, atol=FP64)
    assert (two.means["even"] - two.means["odd"]).abs().max() > 100 * FP64
    values = two.at(["odd", "even", "never"])
    assert torch.equal(values[:, 0], two.means["odd"]) and torch.equal(values[:, 1], two.means["even"])
    assert torch.equal(values[:, 2], two.everything)
    even = torch.cat([all_z(model, sequence)[:, ::2] for sequence in sequences], dim=1).mean(dim=1)
    torch.testing.assert_close(two.means["even"], even, rtol=0, atol=FP64)
    with pytest.raises(ValueError, match="roles"):
        one.add(all_z(model, LEFT), ["x"])


def test_a_random_direction_moves_every_head_as_far_and_elsewhere(tiny_folder: FolderFactory) -> None:
    model = tiny_model(tiny_folder, "llama")
    z = noise(model, 3, 5, 4, 8)
    put = noise(model, 3, 1, 4, 8, seed=1)
    found = random_direction(z, put, np.random.default_rng(0))
    assert found.shape == z.shape and found.dtype == z.dtype
    torch.testing.assert_close((found - z).norm(dim=-1), (put - z).norm(dim=-1), rtol=1e-12, atol=0)
    cosine = torch.nn.functional.cosine_similarity(found - z, put.expand_as(z) - z, dim=-1)
    assert cosine.abs().max() < 0.999 and abs(float(cosine.mean())) < 0.3
    again = random_direction(z, put, np.random.default_rng(0))
    assert torch.equal(found, again) and torch.equal(random_direction(z, z, np.random.default_rng(0)), z)
