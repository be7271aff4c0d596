"""Which device measures a case the second time."""

import heapq
import random
import threading
from dataclasses import replace

import pytest

from collector.model.plan import PlannedShard
from collector.store.in_memory import MemoryStore
from jobs.executor.local_run import Todo, next_shard
from tests.unit.jobs.executor.test_jobs_local_run import reported_run
from tests.unit.jobs.plans import plan_of, shards_of

pytestmark = pytest.mark.fast

AGAIN = {"r0": ("s0",), "r1": ("s1",), "r2": ("s2",)}


def with_repeats(again_of, first):
    """A plan of this many shards and of shards that measure their cases again."""
    shards = shards_of(*[1.0] * first)
    again = (replace(shards[0], shard_id=name, again_of=of) for name, of in again_of.items())
    return plan_of((*shards, *again))


def test_first_measurements_follow_the_order_of_the_plan():
    assert next_shard(["s3", "r0", "r1"], 0, AGAIN, {"s0": 0}) == "s3"


@pytest.mark.parametrize(("device", "shard"), [(0, "r1"), (1, "r0"), (2, "r0")])
def test_repeat_goes_to_a_device_that_has_not_measured_it(device, shard):
    assert next_shard(["r0", "r1"], device, AGAIN, {"s0": 0, "s1": 1}) == shard


def test_every_third_repeat_stays_on_its_device_and_no_device_waits():
    taken = {"s0": 0, "s1": 1, "s2": 2}
    assert next_shard(["r1", "r2"], 2, {**AGAIN, "r1": ("s2",)}, taken) == "r2"
    assert next_shard(["r2"], 0, AGAIN, taken) == "r2"
    assert next_shard(["r0"], 0, AGAIN, taken) == "r0"


def test_repeat_with_the_fewest_own_shards_is_chosen():
    again = {"r0": ("s0", "s1"), "r1": ("s0", "s1", "s3")}
    assert next_shard(["r0", "r1"], 0, again, {"s0": 0, "s1": 1, "s3": 1}) == "r1"


def test_each_shard_is_assigned_once():
    todo = Todo(with_repeats(AGAIN, 3), ["s0", "s1", "s2", "r0", "r1", "r2"], [0, 1])
    given = [todo.take(at % 2) for at in range(8)]
    assert sorted(given[:6]) == ["r0", "r1", "r2", "s0", "s1", "s2"]
    assert given[6:] == [None, None]


def kept_from(**places):
    """A plan of shards that must not run at these places again."""
    (shard,) = shards_of(1.0)
    return plan_of(tuple(replace(shard, shard_id=s, not_on=p) for s, p in places.items()))


def place(plan, device):
    return f"here/d{device}"


def test_suspect_shard_waits_for_another_device():
    todo = Todo(kept_from(a="here/d0", b="here/d1"), ["a", "b"], [0, 1], place)
    assert [todo.take(0), todo.take(0), todo.take(1), todo.take(1)] == ["b", None, "a", None]


def test_single_device_and_other_machines_run_suspect_shards():
    alone = Todo(kept_from(a="here/d0"), ["a"], [0], place)
    assert alone.take(0) == "a"
    far = Todo(kept_from(a="there/d0"), ["a"], [0, 1], place)
    assert far.take(0) == "a"


def test_run_of_one_shard_starts_on_a_device_that_it_need_not_avoid(tmp_path):
    on = {}

    def worker(assignment):
        on[assignment.shard] = assignment.device
        return 0, ""

    run = reported_run(MemoryStore(), tmp_path, worker)
    replace(run, plan=kept_from(a="here/d0"), devices=[0, 1], identity_of=place).measure(["a"])
    assert on == {"a": 1}


def elsewhere(devices, seed):
    """For a plan whose shards take arbitrary times, whether each repeat was on a device other than
    that of its cases: those that should be, and those that should stay."""
    chance = random.Random(seed)
    first = 6 * devices
    again = {
        f"r{n}": tuple(f"s{at}" for at in range(n % devices, first, devices)) for n in range(6)
    }
    todo = Todo(
        with_repeats(again, first), [*(f"s{n}" for n in range(first)), *again], range(devices)
    )
    on, free = {}, [(0.0, device) for device in range(devices)]
    while free:
        now, device = heapq.heappop(free)
        if (shard := todo.take(device)) is not None:
            on[shard] = device
            heapq.heappush(free, (now + chance.uniform(0.9, 1.1), device))
    far = {name: sum(on[shard] != on[name] for shard in of) / len(of) for name, of in again.items()}
    stays = ("r2", "r5")
    return [far[n] for n in far if n not in stays], [far[n] for n in stays]


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_most_repeats_are_measured_on_other_devices_and_some_are_not(devices):
    simulated = [elsewhere(devices, seed) for seed in range(20)]
    others, stayed = (sum(sum(one[side]) for one in simulated) for side in (0, 1))
    of_chance = 1 - 1 / devices
    assert others / (20 * 4) > of_chance + 0.5 / devices
    assert stayed / (20 * 2) < of_chance


def test_run_on_two_devices_repeats_on_the_other_one(tmp_path):
    both, on = threading.Barrier(2, timeout=60), {}

    def worker(assignment):
        on[assignment.shard] = assignment.device
        both.wait()  # neither is so fast that nothing is left for the other
        return 0, ""

    shards = [
        PlannedShard(name, 1, 1.0, "", 1, of)
        for name, of in {"s0": (), "s1": (), "r0": ("s0",), "r1": ("s1",)}.items()
    ]
    run = reported_run(MemoryStore(), tmp_path, worker)
    run = replace(run, plan=replace(run.plan, shards=tuple(shards)), devices=[0, 1])
    run.measure([shard.shard_id for shard in shards])
    assert on["r0"] == on["s1"] != on["s0"] == on["r1"]
