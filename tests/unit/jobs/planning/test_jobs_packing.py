"""Packing: near the ideal for real distributions of cost, never worse than LPT's bound, nothing
lost."""

from itertools import product
from math import fsum
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collector.model.plan import ShardSettings
from jobs.planning.shard_cutting import longest_first, pack, shards_a_device

costs_of_small_instances = st.lists(st.integers(1, 50).map(float), min_size=1, max_size=8)


@st.composite
def spread_costs(draw: st.DrawFn) -> tuple[int, list[float], list[list[int]]]:
    """Devices, log-uniform costs over five decades, 3 to 60 minutes per device, in groups of very
    different sizes."""
    rng = Random(draw(st.integers(0, 2**32)))
    devices = draw(st.sampled_from([64, 256]))
    shape = [10 ** rng.uniform(-5.0, 0.0) for _ in range(devices * draw(st.integers(8, 40)))]
    scale = devices * draw(st.floats(180.0, 3600.0)) / fsum(shape)
    costs = [part * scale for part in shape]
    kinds = draw(st.sampled_from([1, 30, 300, 10**9]))
    groups: dict[int, list[int]] = {}
    for index in range(len(costs)):
        groups.setdefault(int(kinds * rng.random() ** 3), []).append(index)
    return devices, costs, list(groups.values())


def loads(shards: tuple[tuple[int, ...], ...], costs: list[float]) -> float:
    return fsum(costs[item] for shard in shards for item in shard)


def best_makespan(costs: list[float], bins: int) -> float:
    """By trying every assignment."""
    return min(
        max(fsum(c for c, at in zip(costs, chosen, strict=True) if at == b) for b in range(bins))
        for chosen in product(range(bins), repeat=len(costs))
    )


@settings(max_examples=80, deadline=None)
@given(spread_costs())
def test_devices_are_busy_for_98_percent_of_the_ideal(
    instance: tuple[int, list[float], list[list[int]]],
) -> None:
    devices, costs, groups = instance
    shards = shards_a_device(fsum(costs), devices, ShardSettings(), start_s=40.0)
    packing = pack(groups, costs, devices, shards)
    ideal = max(fsum(costs) / devices, max(costs))
    longest = max(loads(device, costs) for device in packing.devices)
    assert ideal / longest >= 0.98
    assert packing.device_balance == pytest.approx(ideal / longest)


@settings(max_examples=60, deadline=None)
@given(costs_of_small_instances, st.integers(1, 3))
def test_longest_first_satisfies_its_bound(costs: list[float], bins: int) -> None:
    dealt = longest_first(costs, bins)
    longest = max(fsum(costs[item] for item in part) for part in dealt)
    assert longest <= best_makespan(costs, bins) * (4 / 3 - 1 / (3 * bins)) + 1e-9


@settings(max_examples=60, deadline=None)
@given(costs_of_small_instances, st.integers(1, 3), st.integers(1, 2), st.integers(1, 3))
def test_groups_never_cost_more_than_the_bound_of_single_cases(
    costs: list[float], devices: int, shards: int, groups: int
) -> None:
    grouped = [list(range(start, len(costs), groups)) for start in range(groups)]
    packing = pack([group for group in grouped if group], costs, devices, shards)
    longest = max(loads(device, costs) for device in packing.devices)
    bound = best_makespan(costs, devices) * (4 / 3 - 1 / (3 * devices))
    # A balance above 99 % counts as balanced, and is not split further.
    assert longest <= bound / 0.99 + 1e-9


@given(
    st.lists(st.floats(0.0, 100.0), max_size=60),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 7),
)
def test_every_item_is_in_exactly_one_shard(
    costs: list[float], devices: int, shards: int, groups: int
) -> None:
    grouped = [list(range(start, len(costs), groups)) for start in range(groups)]
    packing = pack([group for group in grouped if group], costs, devices, shards)
    dealt = [item for device in packing.devices for shard in device for item in shard]
    assert sorted(dealt) == list(range(len(costs)))
    assert len(packing.devices) <= devices
    assert all(0 < len(device) <= shards for device in packing.devices)
    assert all(shard for device in packing.devices for shard in device)


def test_group_that_fits_is_not_split() -> None:
    costs = [1.0] * 40
    groups = [list(range(start, start + 5)) for start in range(0, 40, 5)]
    (device,) = pack(groups, costs, devices=1, shards=4).devices
    for shard in device:
        assert len({item // 5 for item in shard}) == 2


def test_a_group_that_exceeds_a_shard_is_split_in_equal_parts() -> None:
    packing = pack([list(range(30))], [1.0] * 30, devices=3, shards=1)
    assert [len(shard) for device in packing.devices for shard in device] == [10, 10, 10]


def test_groups_that_would_leave_devices_idle_are_split() -> None:
    # Three groups of equal cost for two devices: unsplit, one device is idle a third of the time.
    groups = [list(range(start, start + 8)) for start in (0, 8, 16)]
    packing = pack(groups, [1.0] * 24, devices=2, shards=1)
    assert [len(shard) for device in packing.devices for shard in device] == [12, 12]


def test_cases_of_zero_cost_are_distributed_evenly() -> None:
    packing = pack([[index] for index in range(8)], [0.0] * 8, devices=2, shards=2)
    assert [len(shard) for device in packing.devices for shard in device] == [2, 2, 2, 2]


def test_no_cases_give_no_shard() -> None:
    assert pack([], [], devices=4, shards=2).devices == ()


def test_device_begins_with_its_longest_shard() -> None:
    packing = pack([[index] for index in range(3)], [1.0, 9.0, 4.0], devices=1, shards=3)
    assert packing.devices == (((1,), (2,), (0,)),)
