"""Curves limited by a host, or in another unit: their measurements are stored and not shown, for
any order of merging."""

import csv
import io
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
import pytest

from collector.database.commits import history
from collector.database.intervals import intervals_of
from collector.database.layout import AVERAGE_DURATION
from collector.database.merge import CREATE, merge_plans
from collector.database.query import best_rows, case_results, faults_of
from collector.database.snapshot import load_state
from collector.database.state import TEXT, State, with_column
from collector.database.verify import find_problems
from collector.database.version_quality import quality_of, shown_version, verdict_of
from collector.database.view import render
from collector.model.measurement import Outcome
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.quality.gates import gate_of_outcome
from collector.store.in_memory import MemoryStore
from jobs.status.lines import version_quality_lines
from tests.unit.collector.database.campaign_maker import (
    MadePlan,
    MadeShard,
    Tried,
    record_of_shapes,
    state_of,
    write_campaign,
)
from tests.unit.collector.naming import names

pytestmark = pytest.mark.fast

NPU = Stack(device="ATLAS_800_A2_376T_64G", torch="2.9.0", details=())
CPU = Stack(device="CPU_test_2t", torch="2.13.0+cpu", details=(("flags", "avx2"),))
UNKNOWN = Stack(device="CUDA_Some_GPU", torch="2.13.0", details=())
_HALF = 140


def product(m: int, n: int, k: int) -> tuple[CaseRecord, float]:
    """Return a matrix product, and its time at half of a device's best rates after a launch of 5
    us."""
    record = record_of_shapes("MatMulV2", f'"{m},{k};{k},{n}"', f'"{m},{n}"')
    work_us = max(2 * m * n * k / 354e6, 2 * (m * k + k * n + m * n) / 1.7e6)
    return record, 5 + 2 * work_us


@cache
def products() -> tuple[tuple[CaseRecord, float], ...]:
    """Matrix products, each with its time."""
    draw, found = np.random.default_rng(2), {}
    while len(found) < 2 * _HALF:
        # Alternately nearly no work, and 10 to 100 us of it.
        is_small = len(found) % 2
        high = (5, 6, 6) if is_small else (4, 0, 0)
        m, n, k = (2 ** draw.uniform(0, high)).astype(int).tolist()
        m, n, k = (m, n, k) if is_small else (100 * m + len(found), 4096, 4096)
        record, us = product(m, n, k)
        found[record.case_id] = (record, us)
    return tuple(found.values())


def plan(
    number: int, timed: Callable[[float], float], *, stack: Stack = NPU, cache: str = "warm"
) -> MadePlan:
    """Plan 1 has one half of the products, plan 2 the other."""
    own = products()[(number - 1) * _HALF : number * _HALF]
    session = {record.case_id: Tried(timed(us)) for record, us in own}
    shard = MadeShard(f"shard-{number}-{cache}", [record for record, _ in own], [session])
    return MadePlan([shard], number=number, head_commit=0, stack=stack, cache=cache)


def shown(state: State, stack: Stack = NPU, **how: str) -> list[str]:
    """Return the durations that are shown."""
    data = render(state, **how)[f"{stack.version_path}/MatMulV2.csv"].data.decode()
    rows = csv.DictReader(io.StringIO(data, newline=""))
    return [row[AVERAGE_DURATION] for row in rows if row[AVERAGE_DURATION]]


def hosted(us: float) -> float:
    return max(us, 60.0)


def device(us: float) -> float:
    return us


@pytest.mark.thorough
def test_measurement_limited_by_the_host_is_stored_but_not_shown():
    state = state_of(plan(1, hosted), plan(2, hosted))
    assert shown(state) == []
    assert state.measurements.num_rows == 2 * _HALF
    assert set(state.measurements["outcome"].to_pylist()) == {Outcome.OK}
    for answer in case_results(state, NPU.version_path).values():
        assert (answer.outcome, answer.is_good) == (Outcome.IMPLAUSIBLE, False)


@pytest.mark.thorough
def test_quality_counts_withheld_cases_by_gate():
    state = state_of(plan(1, hosted), plan(2, hosted))
    version = shown_version(state, NPU.version_path)
    quality = quality_of(version)
    assert quality.refused == {"host time": 2 * _HALF}
    lines = version_quality_lines(quality, verdict_of(version))
    assert any(names(line, 280, "host time") for line in lines)
    version = shown_version(state_of(plan(1, device), plan(2, device)), NPU.version_path)
    clean = quality_of(version)
    assert clean.refused == {}
    lines = version_quality_lines(clean, verdict_of(version))
    assert not any("host time" in line for line in lines)


def test_kernels_whose_duration_grows_with_the_work_are_shown():
    assert len(shown(state_of(plan(1, device), plan(2, device)))) == 2 * _HALF


@pytest.mark.thorough
@pytest.mark.parametrize(("timed", "count"), [(hosted, 0), (device, 2 * _HALF)])
def test_a_case_that_two_sessions_measured_is_on_its_curve_twice(timed, count):
    once = [plan(number, timed) for number in (1, 2)]
    shard = replace(once[0].shards[0], name="again")
    assert len(shown(state_of(*once, replace(once[0], number=3, shards=[shard])))) == count


def test_host_that_hides_part_of_the_work_is_detected_by_core_times():
    """Return a time for products of up to 600 us of work. A device takes twice their work; here a
    host delays the first 20 us, and each launch takes 25 us longer. A kernel on an AI CPU may do so
    by itself."""
    rows = [(16, 16, 16 + number) for number in range(60)]
    rows += [(int(100 * 2 ** (number / 40)), 4096, 4096) for number in range(240)]
    made = [product(*sizes) for sizes in rows]
    tried = {record.case_id: Tried(max(us, 20) + 25) for record, us in made}
    shard = MadeShard("shard", [record for record, _ in made], [tried])
    state = state_of(MadePlan([shard], stack=NPU))
    found = {}
    for core in ("", "AI_CORE", "AI_CPU"):
        named = pa.array([core] * state.measurements.num_rows, TEXT)
        cores = with_column(state.measurements, "core", named)
        faults = faults_of(replace(state, measurements=cores), NPU.version_path)
        found[core] = len(faults) / len(tried)
    assert found == {"": 1, "AI_CORE": 1, "AI_CPU": 0}


def test_launch_overhead_of_60_us_on_the_device_does_not_withhold_a_curve():
    later = state_of(*(plan(number, lambda us: us + 55) for number in (1, 2)))
    assert len(shown(later)) == 2 * _HALF


@pytest.mark.thorough
@pytest.mark.parametrize("times", [1e3, 1e-3])
def test_curve_in_another_unit_is_stored_but_not_shown(times):
    state = state_of(*(plan(number, lambda us: us * times) for number in (1, 2)))
    assert shown(state) == []
    assert state.measurements.num_rows == 2 * _HALF
    known = best_rows(state, NPU.version_path)
    gates = {gate_of_outcome(Outcome.IMPLAUSIBLE, reason) for reason in known["reason"].to_pylist()}
    assert gates == {"unit" if times > 1 else "floor"}


def test_undescribed_device_may_be_a_thousand_times_slower():
    slow = (plan(number, lambda us: us * 1e3, stack=UNKNOWN) for number in (1, 2))
    assert len(shown(state_of(*slow), UNKNOWN)) == 2 * _HALF


@pytest.mark.thorough
def test_withheld_curve_contributes_no_variance():
    both = state_of(plan(1, hosted), plan(2, hosted))
    assert intervals_of(both)[NPU.version_path].of == {}
    clean = state_of(plan(1, device), plan(2, device))
    assert len(intervals_of(clean)[NPU.version_path].of) == 2 * _HALF


def test_host_time_gate_ignores_cpu_devices():
    both = (plan(number, hosted, stack=CPU) for number in (1, 2))
    assert len(shown(state_of(*both), CPU)) == 2 * _HALF


@pytest.mark.thorough
def test_warm_and_cold_caches_have_separate_curves():
    """A case with a withheld warm curve shows its cold duration."""
    warm = [plan(number, hosted) for number in (1, 2)]
    cold = [plan(number, device, cache="cold") for number in (1, 2)]
    plans = enumerate((*warm, *cold), 1)
    state = state_of(*(replace(one, number=number) for number, one in plans))
    assert len(shown(state)) == 2 * _HALF
    assert shown(state, cache="warm") == []


@pytest.mark.thorough
def test_order_of_merging_changes_nothing_and_every_version_verifies():
    trees = []
    for order in ((1, 2), (2, 1)):
        store = MemoryStore()
        for number in (1, 2):
            write_campaign(store, plan(number, hosted))
        for number in order:
            merge_plans(store, [("made", number)], guard=CREATE, author="test")
        assert find_problems(store) == []
        head = [*history(store)][0]
        trees.append({path: file.data for path, file in render(load_state(store, head)).items()})
    assert trees[0] == trees[1]
    assert shown(load_state(store, head)) == []
