"""The state of a campaign from its store alone, and how it is printed."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from collector.environment import Environment, use_environment
from collector.model import keys
from collector.model.manifest import NO_USAGE, Usage
from collector.model.measurement import Outcome
from collector.store.in_memory import MemoryStore
from jobs.objects.site import load_site
from jobs.status.follower import Follower
from jobs.status.lines import (
    duration,
    efficiency_lines,
    failure_lines,
    head_line,
    hours_line,
    kernel_lines,
    shard_lines,
    share_lines,
)
from jobs.status.plan_status import OutcomeKind, PlanStatus, ShardStatus, devices_measuring
from jobs.status.summary import plan_usage
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    add_record,
    answered,
    measurement_of,
    part_bytes,
    plan_of,
    write_campaign,
)
from tests.unit.jobs.printed import missing, numbers

FAST, SLOW, MUL = add_record(1), add_record(2), add_record(3, kernel="Mul")
MADE = MadePlan(
    [
        MadeShard("done", [FAST, SLOW], [{FAST.case_id: Tried(5.0), SLOW.case_id: Tried()}]),
        MadeShard("open", [MUL, add_record(4)], is_committed=False),
    ]
)


FULL = "#" * 20


class Counting(MemoryStore):
    """Remembers what was read."""

    def __init__(self):
        super().__init__()
        self.read, self.listed = Counter(), []

    def get(self, key):
        self.read[key] += 1
        return super().get(key)

    def list(self, prefix):
        self.listed.append(prefix)
        return super().list(prefix)


class Simulated(Environment):
    """Does concurrent work sequentially, and records how much that was."""

    def __init__(self):
        self.done = []

    def map_concurrently(self, call, items, threads):
        results = [call(item) for item in items]
        self.done.append(len(results))
        return results


def looked(store, made=MADE):
    (status,) = Follower(store).read(made.campaign)
    return status


def bar(line):
    """Return the kernel type, the bar and the numbers of a line."""
    name, drawn, rest = line.split(maxsplit=2)
    return name, drawn, numbers(rest)


def written(made=MADE):
    store = Counting()
    write_campaign(store, made)
    return store


def test_kernel_types_are_counted_over_committed_shards_and_parts_of_open_ones():
    store = written()
    part = [measurement_of(MADE, plan_of(MADE), "open", 0, MUL.case_id, "Mul", Tried(3.0))]
    store.create(keys.part("made", "open", "a-1", 0), part_bytes(part))
    store.create(keys.progress("made", "open", "a-1"), b'{"done": 1, "cases": 2, "case": "Add x"}')
    status = looked(store)
    assert list(map(bar, kernel_lines(status))) == [
        ("Add", "#############.......", ["2", "3", "1"]),
        ("Mul", "####################", ["1", "1"]),
    ]
    (open_shard,) = shard_lines(status)
    assert missing(open_shard, ["open", "Add x"]) == [] and numbers(open_shard) == ["1", "2"]
    assert head_line(status).startswith("made ")
    assert numbers(head_line(status))[:5] == ["1", "1", "2", "3", "4"]


def test_repeated_cases_are_counted_separately():
    status = looked(written())
    first, once_more = status.shards
    forecast = replace(status.plan.forecast, repeats=once_more.cases)
    failed = Counter([OutcomeKind("Add", Outcome.FAILED, "no")])
    again = replace(once_more, done=1, outcomes=failed)
    status = PlanStatus(replace(status.plan, forecast=forecast), (first, again))
    assert numbers(head_line(status))[3:7] == ["2", "2", "1", "2"]
    assert list(map(bar, kernel_lines(status))) == [("Add", FULL, ["2", "2", "1"])]
    assert len(list(failure_lines(status))) == 1


def test_failure_is_shown_with_its_reason_before_the_merge():
    status = looked(written())
    (line,) = failure_lines(status)
    assert line.split()[0] == Outcome.FAILED and "Add" in line and numbers(line) == ["1"]
    assert line.endswith('it said "no", and nothing else')


def test_reason_is_printed_completely():
    reason = "the rule that " + "it broke " * 100 + "at last"
    made = MadePlan([MadeShard("done", [FAST], [{FAST.case_id: Tried(reason=reason)}])])
    (line,) = failure_lines(looked(written(made), made))
    assert line.endswith(reason)


def test_only_the_last_try_of_a_case_counts():
    sessions = [{FAST.case_id: Tried()}, answered([FAST], 5.0)]
    made = MadePlan([MadeShard("done", [FAST], sessions)])
    status = looked(written(made), made)
    assert list(map(bar, kernel_lines(status))) == [("Add", FULL, ["1", "1"])]
    assert list(failure_lines(status)) == []


def test_kernel_that_ran_instead_is_not_counted_twice():
    made = MadePlan([MadeShard("done", [FAST], [{FAST.case_id: Tried(4.0, ran="AddV2")}])])
    (line,) = kernel_lines(looked(written(made), made))
    assert bar(line) == ("Add", FULL, ["1", "1", "1"])


def test_committed_shard_is_read_once_by_repeated_status_reads():
    store = written()
    follower = Follower(store)
    for _ in range(3):
        follower.read("made")
    settled = [key for key in store.read if "/done/" in key or key.endswith("/done.json")]
    settled += [key for key in store.read if "/shards/" in key]
    assert len(settled) >= 4
    assert {store.read[key] for key in settled} == {1}


def test_shallow_read_opens_neither_shards_nor_parts():
    store = written()
    (status,) = Follower(store).read("made", deep=False)
    assert status.committed == 1
    assert not [key for key in store.read if "/shards/" in key or "part-" in key]


def many(number, *, open_ones):
    """A campaign of this many shards, the last of which are open and started."""
    records = [add_record(n) for n in range(1, number + 1)]
    at = number - open_ones
    shards = [MadeShard(f"s{n}", [record], is_committed=False) for n, record in enumerate(records)]
    store = Counting()
    write_campaign(store, MadePlan(shards))
    for shard in shards[:at]:
        store.create(keys.committed("made", shard.name), b"{}")
    for shard in shards[at:]:
        store.create(
            keys.progress("made", shard.name, "a"), b'{"done": 1, "cases": 1, "case": "x"}'
        )
    store.listed.clear()
    return store


def test_many_open_shards_are_read_with_one_listing_and_few_one_by_one():
    store = many(40, open_ones=40)
    (status,) = Follower(store).read("made", deep=False)
    assert [shard.done for shard in status.shards] == [1] * 40
    assert store.listed.count(keys.all_attempts("made")) == 1 and len(store.listed) == 3
    store = many(100, open_ones=3)  # each of the others may have left eight keys
    (status,) = Follower(store).read("made", deep=False)
    assert sum(shard.done for shard in status.shards[-3:]) == 3
    assert keys.all_attempts("made") not in store.listed and len(store.listed) == 5


def test_only_the_newest_plan_is_read_in_detail():
    store = many(3, open_ones=3)
    later = replace(MADE, number=2, shards=[MadeShard("new", [MUL], is_committed=False)])
    write_campaign(store, later)
    store.create(keys.progress("made", "new", "a"), b'{"done": 1, "cases": 1, "case": "x"}')
    older, newest = Follower(store).read("made")
    assert [shard.done for shard in older.shards] == [0, 0, 0]
    assert [shard.done for shard in newest.shards] == [1]
    assert not [key for key in store.read if "/s0/" in key]


def test_plans_and_parts_of_open_shards_are_read_once():
    store = written()
    part = [measurement_of(MADE, plan_of(MADE), "open", 0, MUL.case_id, "Mul", Tried(3.0))]
    store.create(keys.part("made", "open", "a-1", 0), part_bytes(part))
    follower = Follower(store)
    reconciliations = [follower.read("made")[0].shards[1] for _ in range(3)]
    assert reconciliations[0] == reconciliations[2] and reconciliations[0].done == 1
    assert store.read[keys.part("made", "open", "a-1", 0)] == 1
    assert store.read[keys.plan("made", 1)] == 1


def test_pods_of_several_devices_count_as_many_as_measure_at_once():
    a2 = load_site("a2-800t")
    whole = replace(a2, shape="node")
    assert devices_measuring(3, a2) == 3
    assert devices_measuring(3, replace(whole, measure_concurrency=8)) == 24
    assert devices_measuring(3, replace(whole, measure_concurrency=2)) == 6
    assert devices_measuring(0, whole) == 0


def status_of(*shards, devices=1, backend="npu"):
    plan = replace(plan_of(MADE), devices=devices, backend=backend, shards=shards)
    return PlanStatus(plan, shards)


def shard(name, *, committed, done=0, predicted_s=100.0, wall_s=0.0):
    usage = replace(NO_USAGE, wall_s=wall_s)
    return ShardStatus(name, committed, done, 10, "", predicted_s, usage)


def test_eta_follows_from_the_pace_and_the_devices_at_work():
    done = shard("a", committed=True, done=10, wall_s=200.0)
    half, fresh = shard("b", committed=False, done=5), shard("c", committed=False)
    status = status_of(done, half, fresh)
    assert status.pace == 2.0
    assert status.remaining_s() == 2.0 * 150.0
    assert status.remaining_s(devices=2) == 2.0 * 100.0  # no less than the longest shard
    assert status_of(half, fresh).pace == 1.0
    assert "5 min" in head_line(status)


def test_eta_follows_from_the_pace_of_running_shards():
    """Forecast for 100 s, a half of it took 150 s: 150 s are left, before anything is committed."""
    half = replace(shard("b", committed=False, done=5), new=5, took_s=150.0)
    status = status_of(half)
    assert status.pace == 3.0 and status.remaining_s() == 150.0
    done = shard("a", committed=True, done=10, wall_s=100.0)
    assert status_of(done, half).pace == (100.0 + 150.0) / (100.0 + 50.0)
    # Results of an earlier attempt took this one no time.
    again = replace(half, done=9, new=5)
    assert status_of(again).pace == 3.0
    # A session starts for a while: its first case says little about the others.
    begun = replace(shard("c", committed=False, done=1), new=1, took_s=30.0)
    assert status_of(begun).pace == 2.0  # and not 3
    assert status_of(replace(begun, new=0)).pace == status_of(replace(begun, took_s=0)).pace == 1.0


def test_pace_of_a_running_shard_is_read_from_its_progress():
    store, plan = written(), plan_of(MADE)
    left = {"done": 1, "cases": 2, "case": "", "took_s": 9.0}
    store.create(keys.progress("made", "open", "a-1"), json.dumps(left).encode())
    later = {"done": 2, "cases": 2, "case": "", "before": 1, "took_s": 3.0}
    store.create(keys.progress("made", "open", "a-2"), json.dumps(later).encode())
    status = Follower(store).read("made", deep=False)[0].shards[1]
    assert (status.done, status.new, status.took_s) == (2, 1, 3.0)
    assert status.predicted_s == plan.shards[1].predicted_s


def test_hours_are_npu_hours_on_npus():
    status = status_of(shard("a", committed=True, wall_s=7200.0, predicted_s=3600.0))
    assert "NPU-hours" in hours_line(status)
    assert numbers(hours_line(status)) == ["2.00", "1.00"]
    assert "device-hours" in hours_line(replace(status, plan=replace(status.plan, backend="cpu")))


def test_share_of_measurable_time_is_shown_with_its_total():
    status = status_of(shard("a", committed=False))
    assert list(share_lines(status)) == []  # its sources contain no time
    reported = replace(status.plan.forecast, compute_us=80.0, measurable_us=60.0, unknown_us=8.0)
    [line] = share_lines(replace(status, plan=replace(status.plan, forecast=reported)))
    assert numbers(line) == ["75.0", "10.0"]


def test_efficiency_is_shown_after_the_first_commit():
    assert list(efficiency_lines(status_of(shard("a", committed=False)))) == []
    used = replace(shard("a", committed=True), usage=Usage(50e6, 25e6, 100.0, 10.0))
    (line,) = efficiency_lines(status_of(used))
    assert numbers(line) == ["50.0", "25.0", "100", "10", "1.0"]


def test_kernels_with_the_most_open_cases_are_first_and_the_rest_counted():
    one = replace(
        shard("a", committed=False),
        planned=Counter({"A": 2, "B": 9, "C": 5}),
        outcomes=Counter({OutcomeKind("B", Outcome.OK, ""): 2}),
    )
    found = list(kernel_lines(status_of(one), most=2))
    assert [line.split()[0] for line in found] == ["B", "C", "..."]
    assert numbers(found[2]) == ["1"]


def test_durations_are_formatted_with_a_fitting_unit():
    assert [duration(s) for s in (7, 119, 600, 9000)] == ["7 s", "119 s", "10 min", "2.5 h"]


@pytest.mark.parametrize(
    "rot", [b"", b"x", b"[]", b"[" * 50_000, b'{"done": 1e999, "cases": 1, "case": ""}']
)
@pytest.mark.parametrize("what", ["progress.json", "part-0.csv"])
def test_unreadable_object_of_an_open_shard_is_ignored(what, rot):
    store = written()
    store.create(f"campaigns/made/attempts/open/a-1/{what}", rot)
    status = looked(store)
    assert (status.shards[1].done, status.shards[1].measuring) == (0, "")
    assert status.shards[1].damage is None


def test_status_is_read_with_the_threads_of_its_environment():
    store, simulated = written(), Simulated()
    with use_environment(simulated):
        looked(store)
        assert len(MADE.shards) in simulated.done
        simulated.done.clear()
        plan_usage(store, plan_of(MADE))
    assert simulated.done == [len(MADE.shards)]
