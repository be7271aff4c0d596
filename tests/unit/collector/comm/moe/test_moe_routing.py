"""Routing: the drawn routing is complete, as requested, and the same on every rank."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.comm.moe.routing import load_imbalance, replayed, skewed
from collector.ranks.experts import ExpertCall
from tests.unit.collector.naming import names, naming

pytestmark = pytest.mark.fast

SEEDS = st.integers(0, 2**32)
DEEPSEEK = ExpertCall(120, 7168, 2048, 256, 8, 16)


@st.composite
def calls(draw):
    ranks, local = draw(st.integers(1, 6)), draw(st.integers(1, 12))
    choices = draw(st.integers(1, min(8, ranks * local)))
    return ExpertCall(draw(st.integers(1, 60)), 8, 8, ranks * local, choices, ranks)


def is_whole(call, routing):
    """Check that every token has this many distinct experts, and the loads are those of the
    tokens."""
    assert routing.experts.shape == (call.ep_size, call.tokens, call.choices)
    assert routing.experts.min() >= 0
    ordered = np.sort(routing.experts, axis=-1)
    assert (ordered[..., 1:] != ordered[..., :-1]).all()
    drawn = np.bincount(routing.experts.ravel(), minlength=call.experts)
    assert (drawn == routing.loads).all()
    assert routing.loads.sum() == call.tokens * call.ep_size * call.choices


@pytest.mark.thorough
@given(calls(), SEEDS)
def test_balanced_experts_differ_by_one_row_at_most(call, seed):
    routing = skewed(call, seed, 0.0)
    is_whole(call, routing)
    assert routing.loads.max() - routing.loads.min() <= 1


@pytest.mark.thorough
@given(calls(), SEEDS, st.floats(0, 3))
def test_skewed_routing_is_complete_or_refused(call, seed, imbalance):
    try:
        routing = skewed(call, seed, imbalance)
    except BadInput as error:
        assert names(str(error), "imbalance", f"{imbalance:g}")
    else:
        is_whole(call, routing)


@pytest.mark.thorough
@given(calls(), SEEDS, st.data())
def test_replayed_routing_is_complete_and_monotonic_in_the_counts(call, seed, data):
    counts = data.draw(st.lists(st.integers(0, 1000), min_size=call.experts, max_size=call.experts))
    if not any(counts):
        counts[0] = 1
    routing = replayed(call, seed, counts)
    is_whole(call, routing)
    ordered = routing.loads[np.argsort(counts, kind="stable")]
    assert (np.diff(ordered) >= -1).all()  # of equal counts one may have the remainder


@pytest.mark.thorough
@given(calls(), SEEDS, st.floats(0, 1))
def test_drawn_routing_can_be_replayed_row_for_row(call, seed, imbalance):
    try:
        loads = skewed(call, seed, imbalance).loads
    except BadInput:
        return
    assert (replayed(call, seed + 1, [int(load) for load in loads]).loads == loads).all()


@pytest.mark.parametrize("imbalance", [0.14, 0.3, 0.7, 1.0, 1.5, 2.1])
@settings(max_examples=5)
@given(seed=SEEDS)
def test_imbalance_of_production_is_drawn_within_one_percent(imbalance, seed):
    routing = skewed(DEEPSEEK, seed, imbalance)
    is_whole(DEEPSEEK, routing)
    assert routing.imbalance == pytest.approx(imbalance, abs=0.01)
    assert routing.rank_imbalance(16) >= 1.0


@pytest.mark.thorough
@given(calls(), SEEDS)
def test_same_seed_gives_the_same_routing_on_every_rank(call, seed):
    one, other = skewed(call, seed, 0.0), skewed(call, seed, 0.0)
    assert (one.experts == other.experts).all()


def test_another_seed_changes_the_experts_but_not_the_loads():
    one, other = skewed(DEEPSEEK, 1, 0.5), skewed(DEEPSEEK, 2, 0.5)
    assert (one.experts != other.experts).any()
    assert sorted(one.loads) == sorted(other.loads)


def test_imbalance_is_the_spread_of_loads_by_their_mean():
    assert load_imbalance(np.array([4, 4, 4, 4])) == 0.0
    assert load_imbalance(np.array([8, 0, 0, 0])) == pytest.approx(3**0.5)
    assert load_imbalance(np.array([0, 0])) == 0.0


def test_imbalance_of_ranks_is_their_maximum_over_their_mean():
    call = ExpertCall(4, 8, 8, 4, 1, 2)
    routing = replayed(call, 0, [3, 3, 1, 1])
    assert routing.rank_imbalance(2) == pytest.approx(6 / 4)


def test_count_above_the_limit_of_an_expert_is_spread_over_the_others():
    call = ExpertCall(4, 8, 8, 4, 2, 1)
    assert replayed(call, 0, [100, 1, 1, 0]).loads.tolist() == [4, 2, 2, 0]
    assert replayed(call, 0, [100, 0, 0, 0]).loads.sum() == 8


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (lambda: skewed(DEEPSEEK, 0, -1.0), ("imbalance", -1)),
        (lambda: skewed(DEEPSEEK, 0, 9.0), ("imbalance", 9, 5.57)),
        (lambda: replayed(DEEPSEEK, 0, [1, 2]), ("experts", 2, 256)),
        (lambda: replayed(DEEPSEEK, 0, [0] * 256), ("counts", 0)),
        (lambda: replayed(DEEPSEEK, 0, [-1] * 256), ("counts", 0)),
    ],
)
def test_impossible_routing_is_refused(draw, named):
    with pytest.raises(BadInput, match=naming(*named)):
        draw()
