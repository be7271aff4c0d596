"""The probe's search: every monotone region is found exactly, and simple ones with few tries."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.codec.errors import BadInput
from collector.comm.moe.probe_plan import Limit, ProbeGrid, Region
from tests.unit.collector.naming import naming

pytestmark = pytest.mark.fast


def grid_of(sizes):
    return ProbeGrid(*(tuple(range(1, size + 1)) for size in sizes))


def all_points(grid):
    tokens, experts, choices = grid.sizes
    return [(m, e, k) for m in range(tokens) for e in range(experts) for k in range(choices)]


class CountingOracle:
    def __init__(self, accepts):
        self._accepts = accepts
        self.points = []

    def __call__(self, point):
        assert point not in self.points
        self.points.append(point)
        return self._accepts(point)


def find_region(grid, oracle, is_call=lambda point: True):
    """Return the region in which an oracle accepts, reported like the tries of ranks: one after the
    other."""
    region = Region(grid, is_call)
    for point in region.tries():
        region.record(point, oracle(point))
    return region


def is_found(grid, accepts):
    """Check that the region is exactly the planted one; return the number of tries."""
    oracle = CountingOracle(accepts)
    region = find_region(grid, oracle)
    assert region.open_points == 0
    assert all(region.is_accepted(point) == accepts(point) for point in all_points(grid))
    return len(oracle.points)


@st.composite
def boxes(draw, most=40):
    """Limits that do not depend on each other; -1: nothing is accepted."""
    sizes = draw(st.tuples(*[st.integers(1, most)] * 3))
    return sizes, draw(st.tuples(*(st.integers(-1, size - 1) for size in sizes)))


@pytest.mark.thorough
@given(boxes())
def test_independent_limits_are_found_in_logarithmically_many_tries(box):
    sizes, limits = box
    tries = is_found(
        grid_of(sizes),
        lambda point: all(at <= most for at, most in zip(point, limits, strict=True)),
    )
    points = sizes[0] * sizes[1] * sizes[2]
    assert tries <= max(1, 2 * log2(points))


def down_sets(sizes):
    """Any region that is monotone along all axes: all points below some corners."""
    corner = st.tuples(*(st.integers(0, size - 1) for size in sizes))
    return st.lists(corner, max_size=6)


@pytest.mark.thorough
@given(st.tuples(*[st.integers(1, 9)] * 3).flatmap(lambda s: st.tuples(st.just(s), down_sets(s))))
def test_any_staircase_is_found_by_bisecting_its_lines_at_worst(planted):
    sizes, corners = planted
    tries = is_found(
        grid_of(sizes),
        lambda point: any(
            all(at <= most for at, most in zip(point, corner, strict=True)) for corner in corners
        ),
    )
    by_line = sizes[1] * sizes[2] * ceil(log2(sizes[0] + 1))
    by_axis = sum(ceil(log2(size)) for size in sizes)
    guesses = 3 * sizes[2]
    assert tries <= by_line + by_axis + guesses + 2


@pytest.mark.thorough
@given(st.integers(1, 400), st.integers(1, 8))
def test_a_limit_of_rows_is_found_where_more_choices_leave_fewer_tokens(rows, most_experts):
    """Like the operator's own: tokens x choices within a buffer, experts within a memory."""
    grid = ProbeGrid((1, 2, 4, 8, 16, 32, 64, 128), (8, 16, 32, 64), (1, 2, 4, 6, 8))

    def accepts(point):
        tokens, experts, choices = grid.values(point)
        return tokens * choices <= rows and experts <= 8 * most_experts

    assert is_found(grid, accepts) <= 21  # of 160 points


def test_probe_ends_if_the_smallest_call_is_refused():
    oracle = CountingOracle(lambda point: False)
    find_region(grid_of((9, 9, 9)), oracle)
    assert oracle.points == [(0, 0, 0)]


def test_invalid_points_of_the_grid_are_not_tried():
    grid = ProbeGrid((1, 2, 4), (2, 4), (1, 2, 4))

    def is_call(point):
        _, experts, choices = grid.values(point)
        return choices <= experts

    oracle = CountingOracle(lambda point: grid.values(point)[0] <= 2)
    region = find_region(grid, oracle, is_call)
    assert all(map(is_call, oracle.points))
    assert [(one.experts, one.choices) for one in region.limits()] == [
        (2, 1),
        (2, 2),
        (4, 1),
        (4, 2),
        (4, 4),
    ]
    assert {(one.accepted, one.refused) for one in region.limits()} == {(2, 4)}


def test_unprobed_points_are_counted_as_open():
    region = Region(ProbeGrid((1, 2, 4), (8,), (2,)), lambda point: True)
    region.record((0, 0, 0), True)
    assert region.open_points == 2
    assert region.limits() == [Limit(8, 2, 1, None)]
    region.record((2, 0, 0), False)
    assert region.limits() == [Limit(8, 2, 1, 4)]


@pytest.mark.parametrize("values", [(), (2, 1), (1, 1), (0, 1)])
def test_a_grid_is_ascending(values):
    with pytest.raises(BadInput, match=naming("experts", values)):
        ProbeGrid((1, 2), values, (1,))
