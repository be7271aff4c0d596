"""How shards, including gangs, become the indexes of a wave."""

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.objects.waves import cut, parallelism, wave_size

pytestmark = pytest.mark.fast

DEVICES = 8  # of a pod


@pytest.mark.thorough
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 9), st.integers(1, 40))
def test_every_shard_is_in_one_index_in_order_and_a_gang_has_its_own(kinds, per_index, workers):
    shards = [f"{'g' if gang else 's'}{at}" for at, gang in enumerate(kinds)]
    gangs = {shard for shard in shards if shard.startswith("g")}
    indexes = cut(shards, per_index, workers, gangs)
    assert [shard for index in indexes for shard in index] == shards[: sum(map(len, indexes))]
    assert len(indexes) <= wave_size(workers) + 1
    for index in indexes:
        assert len(index) <= per_index
        assert len(index) == 1 or not gangs.intersection(index)


@pytest.mark.thorough
@given(st.lists(st.text(min_size=1), unique=True), st.integers(1, 9), st.integers(1, 40))
def test_shards_without_gangs_are_cut_in_order(shards, per_index, workers):
    chosen = shards[: per_index * wave_size(workers)]
    plain = [tuple(chosen[i : i + per_index]) for i in range(0, len(chosen), per_index)]
    assert [index for index in cut(shards, per_index, workers) if index] == plain


def busy_share(indexes, took_s, pods):
    """The share of the time of all devices that is spent measuring, where each pod takes the next
    index."""
    ends = [0.0] * pods
    spent_s = 0.0
    for index in indexes:
        if not index:
            continue
        gangs = [shard for shard in index if shard.startswith("g")]
        singles = [took_s for _ in index if not gangs]
        lasts_s = took_s * len(gangs) + max(singles, default=0.0)
        spent_s += DEVICES * took_s * len(gangs) + sum(singles)
        heapq.heapreplace(ends, ends[0] + lasts_s)
    return spent_s / (pods * DEVICES * max(ends))


def test_twenty_shards_and_four_gangs_keep_64_devices_80_percent_busy():
    shards = [*(f"g{at}" for at in range(4)), *(f"s{at}" for at in range(20))]
    indexes = cut(shards, DEVICES, 8, set(shards[:4]))
    assert list(map(len, indexes)) == [1, 1, 1, 1, 8, 8, 4, 0]
    assert parallelism(len(indexes), 8) == 7
    assert busy_share(indexes, 600.0, 8) >= 0.8
