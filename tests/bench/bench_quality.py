"""The cost of quality: device time of a plan, and processor time of a merge.

    python tests/bench/bench_quality.py [MEASUREMENTS]

Device time, by forecast: the quickstart's plan on this machine, and one of 100,000 cases on 64
NPUs, with their blind repeats and canaries, over the same plans without; gates take no device time.
Processor time: a merge of this many measurements (the limit applies to 100,000) of operators with
declared work into a database that holds as many, half of the cases new and half measured again,
over the same merge without gates, canary factors and intervals.

Exits with 1 if a share exceeds its limit.
"""

import gc
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # the campaigns are made by the tests' own maker

from collector.database import merge, plan_state, query
from collector.database.intervals import VersionIntervals
from collector.database.lent import LentPairs
from collector.database.merge import CREATE, merge_plans
from collector.model.measurement import CanaryReading
from collector.model.plan import CANARY_PLACES, Plan, PlannedSource
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.model.vocabulary import COUNTERS
from collector.ops.registry import find_operator
from collector.store.in_memory import MemoryStore
from jobs.campaign.campaign_file import Campaign, RunOptions
from jobs.cli.opening import open_campaign
from jobs.planning import plan_making
from jobs.planning.lifecycle import NewPlan, make_next, read_state
from jobs.planning.plan_cases import PlanRequest
from jobs.planning.plan_making import make_plan
from tests.bench.bench_plan import (
    CASES,
    fresh,
    synthetic_campaign,
    synthetic_operators,
    synthetic_records,
)
from tests.bench.synthetic_database import NONE
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    record_of_shapes,
    write_campaign,
)

DEVICE_LIMIT, MERGE_LIMIT = 0.05, 0.20
MEASUREMENTS = 20_000  # 100,000 take minutes to make; a merge of fewer spends more on curves
NPU = Stack(device="ATLAS_800_A3_752T_128G_DIE", torch="2.9.0", cann="8.5")

_DEVICES = 64
_LONG_BUDGET_S = 0.2
_SHARDS = 10
_COUNTERS = tuple((name, 1.25) for name in COUNTERS)
_PRODUCTS = ("MatMulV2", "MatMulV3", "MatMulCommon")
_PAIRS = ("Add", "Mul", "Sub", "RealDiv")
_SINGLES = ("Exp", "Tanh", "Sqrt")
_KERNELS = (*_PRODUCTS, *_PAIRS, *_SINGLES)


def main(measurements: int) -> int:
    """Print one line per figure; return 1 if one exceeds its limit."""
    shares = [
        ("quickstart", *device_s(_quickstart), DEVICE_LIMIT),
        (f"plan of {CASES:,} cases", *device_s(_planned), DEVICE_LIMIT),
        (f"merge of {measurements:,}", *merge_s(measurements), MERGE_LIMIT),
    ]
    for name, with_s, without_s, limit in shares:
        share = with_s / without_s - 1
        print(
            f"{name}: {with_s:,.2f} s, {without_s:,.2f} s without: {share:.1%} (limit {limit:.0%})"
        )
    return int(any(with_s / without_s - 1 > limit for _, with_s, without_s, limit in shares))


def device_s(planned: Callable[[bool], Plan]) -> tuple[float, float]:
    """Return the device-seconds of a plan by forecast, and of the same without repeats and
    canaries."""
    whole = planned(True).forecast.device_s
    with _in_place_of(plan_making, "session_cost", _without_canaries):
        return whole, planned(False).forecast.device_s


def _quickstart(repeats: bool) -> Plan:
    """Return a plan of the quickstart's cases with one session each, long enough for repeats."""
    campaign = open_campaign("quickstart")
    long = replace(
        campaign,
        measure=replace(campaign.measure, budget_s=_LONG_BUDGET_S),
        quality=replace(campaign.quality, sessions=1),
    )
    state = read_state(_with_repeats(long, repeats), MemoryStore())
    return make_next(state, NewPlan(1, ()), RunOptions()).plan


def _planned(repeats: bool) -> Plan:
    """Return a plan of operators without declared work, next to the real canaries."""
    records = fresh(synthetic_records(random.Random(7), CASES))
    request = PlanRequest(
        campaign=_with_repeats(synthetic_campaign(_DEVICES), repeats),
        number=1,
        head_commit=0,
        round="",
        stack=NPU,
        sources=((PlannedSource("synthetic", "0" * 64, len(records), False), records),),
        head_results={},
        op_mapping=None,
        retry_failed=False,
    )
    made = synthetic_operators()
    return make_plan(request, find=lambda kernel: made.get(kernel) or find_operator(kernel)).plan


def _with_repeats(campaign: Campaign, repeats: bool) -> Campaign:
    requested = campaign.quality if repeats else replace(campaign.quality, repeat_share=0.0)
    return replace(campaign, quality=requested)


_session_cost = plan_making.session_cost


def _without_canaries(*arguments: Any) -> Any:
    return replace(_session_cost(*arguments), canaries_s=0.0)


def merge_s(measurements: int) -> tuple[float, float]:
    """Return the processor time of a merge, and of the same without its quality checks."""
    store = MemoryStore()
    first = made_plan(1, range(measurements))
    later = made_plan(2, range(measurements // 2, measurements // 2 + measurements))
    for made in (first, later):
        write_campaign(store, made)
    with unrequested():
        merge_plans(store, [first.name], guard=CREATE, author="bench")
        without_s = _merged_s(store, later, measurements)
    return _merged_s(store, later, measurements), without_s


def _merged_s(store: MemoryStore, made: MadePlan, measurements: int) -> float:
    """Time a merge into a copy of a store."""
    copied = MemoryStore()
    for info in store.list(""):
        copied.put(info.key, store.get(info.key))
    gc.collect()
    gc.freeze()  # the memory with which this script makes the campaigns is not part of the merge
    started = time.process_time()
    result = merge_plans(copied, [made.name], guard=CREATE, author="bench")
    took_s = time.process_time() - started
    assert result.added_measurements == measurements and not result.damaged
    return took_s


@contextmanager
def unrequested() -> Iterator[None]:
    """Let merges accept every duration unchecked, without intervals."""
    known = VersionIntervals({}, {}, {}, None, LentPairs.of(NONE, NONE), "")
    with (
        _in_place_of(plan_state, "most_lower_bounds_us", lambda *_: None),
        _in_place_of(plan_state, "with_implausible", lambda table, *_: table),
        _in_place_of(query, "faults_of", lambda *_: {}),
        _in_place_of(merge, "intervals_of", lambda state: dict.fromkeys(state.versions, known)),
    ):
        yield


@contextmanager
def _in_place_of(module: Any, name: str, other: Any) -> Iterator[None]:
    own = getattr(module, name)
    setattr(module, name, other)
    try:
        yield
    finally:
        setattr(module, name, own)


def made_plan(number: int, cases: range) -> MadePlan:
    """Return a plan that measured these cases, with all counters, in sessions with canaries."""
    records = {case: _record(case) for case in cases}
    noise = random.Random(number)
    shards = []
    for at in range(_SHARDS):
        factor = noise.lognormvariate(0, 0.01)
        canaries = tuple(_reading(place, factor) for place in CANARY_PLACES)
        session = {
            records[case].case_id: Tried(
                factor * noise.lognormvariate(0, 0.01) * _duration_us(case),
                counters=_COUNTERS,
                canaries=canaries,
            )
            for case in cases[at::_SHARDS]
        }
        own = [records[case] for case in cases[at::_SHARDS]]
        shards.append(MadeShard(f"shard-{number}-{at}", own, [session]))
    return MadePlan(shards, number=number, head_commit=number - 1, stack=NPU)


def _reading(place: str, factor: float) -> CanaryReading:
    return CanaryReading("MatMulV2 4096,4096;4096,4096", place, 1.0, 500 * factor, 0.01, 8)


def _record(case: int) -> CaseRecord:
    kernel, rows = _KERNELS[case % 10], case // 10 + 1
    one, square = f"{rows},4096", "4096,4096"
    inputs = {
        **dict.fromkeys(_PRODUCTS, f"{one};{square}"),
        **dict.fromkeys(_PAIRS, f"{one};{one}"),
    }
    return record_of_shapes(kernel, f'"{inputs.get(kernel, one)}"', f'"{one}"')


def _duration_us(case: int) -> float:
    """Return a duration of a launch and half of the device's peak rates."""
    return 5 + (0.2 if _KERNELS[case % 10] in _PRODUCTS else 0.03) * (case // 10 + 1)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else MEASUREMENTS))
