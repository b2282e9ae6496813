"""Results of a notebook are the scores of the studies, as rows and as drawings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from matplotlib import pyplot

from mech.analysis import Effects, ablate, knockout, patch, sweep
from mech.engine.engine import Engine
from mech.engine.queries import Query
from mech.errors import InputError
from mech.head_scores.induction import head_scores, induction_scores, repeated_tokens, top_heads
from mech.heads import Head, HeadSet
from mech.interventions.intervention import knock_out_edges, replace_heads, scale_heads
from mech.patching.attribution import attribute, attribution_names
from mech.patching.means import mean_z
from mech.patching.patch import all_heads, patch_heads, patch_sets, sides, sweep_names
from tests.mech_cases import ACTION, HEADS, LEFT, RIGHT, FolderFactory, tiny_model
from tests.mech_cases import one_thread as one_thread

pytestmark = pytest.mark.usefixtures("one_thread")

RECIPIENT, DONOR = Query(LEFT, ACTION), Query(RIGHT, ACTION)


@pytest.fixture(scope="module")
def engine(tiny_folder: FolderFactory) -> Engine:
    return Engine(tiny_model(tiny_folder, "qwen2"))


def totals(found: Effects) -> list[float]:
    return [score.total for score in found.scores.values()]


def test_patch_gives_the_scores_of_single_heads_and_of_sets(engine: Engine) -> None:
    recipient, donor = (engine.run(query, sweep_names(engine.model)) for query in (RECIPIENT, DONOR))
    found = patch(engine, recipient, donor)
    scores = patch_heads(engine, recipient, donor)
    np.testing.assert_allclose(totals(found), [one.total for one in scores.values()], rtol=0, atol=1e-5)
    rows = found.to_dataframe()
    assert list(rows["intervention"]) == [str(head) for head in scores]
    np.testing.assert_allclose(rows["effect"], rows["logprob"] - recipient.score.total)
    sets = {"some": HEADS, "all": all_heads(engine.model)}
    joint = patch(engine, RECIPIENT, DONOR, sets)  # queries are run with what is needed
    expected = patch_sets(engine, recipient, donor, sets)
    assert totals(joint) == [expected["some"].total, expected["all"].total]
    rows = joint.to_dataframe()
    assert rows["layer"].isna().all() and rows["share"].iloc[1] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("where", ["candidate", "all", (2, 3)])
def test_ablation_scores_the_query_under_the_intervention(
    engine: Engine, where: str | tuple[int, ...]
) -> None:
    z = mean_z(engine, [DONOR.tokens]).z
    for values, change in ((None, scale_heads(HEADS, 0.0, where)), (z, replace_heads(HEADS, z, where))):
        [expected] = engine.score([Query(LEFT, ACTION, change)])
        [found] = totals(ablate(engine, RECIPIENT, {"set": HEADS}, values, where))
        assert found == pytest.approx(expected.total, abs=1e-4)
    alone = ablate(engine, RECIPIENT, HEADS, where=where)
    assert list(alone.scores) == list(HEADS)


def test_knockout_and_sweep_score_each_intervention_alone(engine: Engine) -> None:
    sources, every = range(1, 4), all_heads(engine.model)
    change = knock_out_edges(every, sources)
    [expected] = engine.score([Query(LEFT, ACTION, change)])
    [found] = totals(knockout(engine, RECIPIENT, sources, {"all": every}))
    assert found == pytest.approx(expected.total, abs=1e-4)
    swept = sweep(engine, RECIPIENT, {"cut": change, "off": scale_heads(HEADS, 0.0, "candidate")})
    assert list(swept.scores) == ["cut", "off"] and totals(swept)[0] == pytest.approx(found, abs=1e-5)
    with pytest.raises(InputError, match="at least one source"):
        knockout(engine, RECIPIENT, [])
    with pytest.raises(InputError, match="L9H0 does not exist"):
        ablate(engine, RECIPIENT, HeadSet([Head(9, 0)]))


def test_a_direction_says_recipient_donor_and_sign(engine: Engine) -> None:
    low, high = (engine.run(query, sweep_names(engine.model)) for query in (RECIPIENT, DONOR))
    noise, denoise = sides(low, high, "noise"), sides(low, high, "denoise")
    assert noise == (high, low, -1.0) and denoise == (low, high, 1.0)
    with pytest.raises(InputError, match="'up' is not a direction"):
        sides(low, high, "up")


def test_attribution_and_head_scores_are_frames_of_what_they_hold(engine: Engine) -> None:
    model = engine.model
    found = attribute(engine, RECIPIENT, DONOR)
    runs = [engine.run(query, attribution_names(model)) for query in (RECIPIENT, DONOR)]
    assert found == attribute(engine, *runs)
    rows = found.to_dataframe()
    assert rows["effect"].tolist() == [*found.heads.values(), *found.mlps.values()]
    assert rows["head"].notna().sum() == len(found.heads)
    scores = induction_scores(model, np.random.default_rng(0), 2, 6)
    same = head_scores(model, repeated_tokens(model, np.random.default_rng(0), 2, 6))
    assert scores.top(3) == top_heads(same, 3) and len(scores.to_dataframe()) == len(same)
    assert scores.to_dataframe()["prefix_matching"].is_monotonic_decreasing


def test_results_print_their_largest_rows_and_draw_themselves(engine: Engine) -> None:
    every, some = patch(engine, RECIPIENT, DONOR), patch(engine, RECIPIENT, DONOR, {"some": HEADS})
    scores = induction_scores(engine.model, np.random.default_rng(0), 2, 6)
    estimates = attribute(engine, RECIPIENT, DONOR)
    for found in (every, some, scores, estimates):
        axes = found.plot()
        assert axes.get_xlabel()
        pyplot.close(axes.figure)
        assert repr(found).startswith(found.headline) and found.headline in found._repr_html_()
    grid = every.plot().images[0].get_array()
    by_head = {head: score.total - every.base.total for head, score in every.scores.items()}
    assert all(grid[h.layer, h.head] == value for h, value in by_head.items() if isinstance(h, Head))
    pyplot.close("all")
    largest = every.to_dataframe().sort_values("effect", key=abs).iloc[-1]["intervention"]
    assert str(largest) in repr(every) and "and 2 more" in repr(every)


def test_a_query_of_texts_is_that_of_their_ids(engine: Engine) -> None:
    model = engine.model
    query = Query.from_text(model, "one two", " three")
    whole = tuple(model.tokenizer("one two three")["input_ids"])
    assert query.prompt + query.action == whole and model.tokenizer.decode(query.action) == " three"
    assert torch.isfinite(torch.tensor(engine.score([query])[0].total))
