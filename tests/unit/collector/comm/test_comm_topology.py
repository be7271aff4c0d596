"""The positions of ranks: the worked examples of msmodeling, and properties of every grid."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.ranks.topology import Grid
from tests.unit.collector.naming import naming

A3, A2 = Grid((48, 8, 2)), Grid((128, 8))


@pytest.mark.parametrize(
    ("grid", "ranks", "tier"),
    [
        (A3, [0, 1], 2),
        (A3, range(4), 1),
        (A3, range(8), 1),
        (A3, range(16), 1),
        (A3, range(17), 0),
        (A3, range(128), 0),
        (A3, [14, 15], 2),
        (A3, [15, 16], 0),
        (A3, [0, 2, 4, 6], 1),
        (A3, [0], 2),
        (A2, range(8), 1),
        (A2, range(16), 0),
        (Grid((2, 8, 2)), range(16), 1),
        (Grid((2, 8, 2)), range(32), 0),
        (Grid((8,)), range(3), 0),
        (A3, [16, 3, 17], 0),  # in any order
        (A3, [3, 2], 2),
        (A3, range(5, 16), 1),
    ],
)
def test_tier_is_the_outermost_level_in_which_ranks_differ(grid, ranks, tier):
    assert grid.tier(ranks) == tier


def test_ranks_count_through_the_innermost_extent_first():
    places = [A3.coordinates(rank) for rank in (0, 1, 15, 16, 767)]
    assert places == [(0, 0, 0), (0, 0, 1), (0, 7, 1), (1, 0, 0), (47, 7, 1)]


def test_ranks_of_a_super_pod_have_unique_coordinates():
    places = {A3.coordinates(rank) for rank in range(A3.size)}
    assert len(places) == A3.size == 768
    assert {A3.tier(range(size)) for size in range(2, 769)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("size", "tier", "first"),
    [
        (2, 2, (0, 1)),
        (16, 1, tuple(range(16))),
        (4, 1, (0, 1, 2, 3)),
        (2, 1, (0, 2)),  # two dies of different packages
        (2, 0, (0, 16)),
        (16, 0, tuple(range(0, 256, 16))),  # neighbours would be of tier 1
        (32, 0, tuple(range(32))),
    ],
)
def test_group_has_the_requested_tier(size, tier, first):
    assert A3.groups(size, tier, A3.size)[0] == first


def test_all_groups_of_a_tier_run_concurrently():
    assert Grid((3, 8, 2)).groups(16, 1, 48) == tuple(
        tuple(range(start, start + 16)) for start in (0, 16, 32)
    )
    assert A3.groups(2, 1, 8) == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert len(A3.groups(2, 2, 768)) == 384


def test_world_that_is_too_small_has_no_group():
    assert A3.groups(32, 0, 16) == ()


@pytest.mark.parametrize(("size", "tier"), [(4, 2), (32, 1), (769, 0), (2, 3), (0, 1), (1, 0)])
def test_group_that_the_grid_cannot_hold_is_refused(size, tier):
    with pytest.raises(BadInput, match=naming("48 8 2")):
        A3.groups(size, tier, A3.size)


@pytest.mark.parametrize("extents", [(), (0,), (2, -1)])
def test_a_grid_has_positive_extents(extents):
    with pytest.raises(BadInput, match=naming("grid", " ".join(map(str, extents)))):
        Grid(extents)


def test_rank_outside_of_the_grid_is_refused():
    with pytest.raises(BadInput, match=naming("rank", 768, "48 8 2", 767)):
        A3.coordinates(768)


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(0, 3),
    st.integers(1, 200),
)
def test_groups_have_one_tier_and_share_no_rank(extents, size, tier, world):
    grid = Grid(tuple(extents))
    try:
        found = grid.groups(size, tier, world)
    except BadInput:
        return
    ranks = [rank for group in found for rank in group]
    assert len(ranks) == len(set(ranks))
    assert all(rank < world for rank in ranks)
    assert all(len(group) == size and grid.tier(group) == tier for group in found)
    if world >= grid.size:
        assert found
        assert found[0][0] == 0


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_the_tier_is_where_any_two_ranks_differ(extents, data):
    grid = Grid(tuple(extents))
    ranks = data.draw(st.lists(st.integers(0, grid.size - 1), min_size=1, max_size=20))
    places = list(zip(*map(grid.coordinates, ranks), strict=True))
    differing = [tier for tier, all_ in enumerate(places) if len(set(all_)) > 1]
    assert grid.tier(ranks) == (differing[0] if differing else grid.innermost_tier)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.data())
def test_rank_is_recovered_from_its_coordinates(extents, data):
    grid = Grid(tuple(extents))
    rank = data.draw(st.integers(0, grid.size - 1))
    again = 0
    for at, extent in zip(grid.coordinates(rank), extents, strict=True):
        again = again * extent + at
    assert again == rank


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(1, 40),
    st.integers(-1, 4),
    st.integers(0, 200),
)
def test_has_group_agrees_with_groups(extents, size, tier, world):
    grid = Grid(tuple(extents))
    try:
        found = bool(grid.groups(size, tier, world))
    except BadInput:
        found = False
    assert grid.has_group(size, tier, world) == found
