"""The time of a pass with the measured time of a host."""

from math import fsum

import pytest

from collector.codec.errors import BadInput
from collector.store.in_memory import MemoryStore
from collector.timeline.call_graph import Cause
from collector.workloads.call_order import CallKind
from jobs.planning.host_costs import HostCosts, host_directories, ranks_text
from jobs.planning.predicted_passes import LaunchedPass
from jobs.planning.step_time import EAGER, GRAPH, AssumedTime, PassTimer, StepAssumptions, call_name
from opmeter.database import database_now
from tests.unit.collector.database.host_maker import DECODE, STACK, host_session, publish_sessions
from tests.unit.jobs.planning.test_jobs_step_time import NO_TIME, decode_of, known, launch

pytestmark = pytest.mark.fast


def costs_of(times, decode=DECODE):
    store = MemoryStore()
    publish_sessions(store, *(host_session(times, number, decode) for number in range(3)))
    found = HostCosts.find(database_now(store).directory(STACK.version_path), decode)
    assert found is not None
    return found


def cann(us):
    return StepAssumptions(
        NO_TIME.host_call,
        NO_TIME.host_step,
        NO_TIME.wait,
        AssumedTime("host, CANN for each launch", Cause.HOST, us, us, us),
    )


def timer(costs, assumed=NO_TIME, us=0.001):
    return PassTimer(known(us), lambda case: None, 0.0, assumed, lambda mode: costs)


def test_recorded_pass_that_its_host_bounds_is_the_sum_of_its_calls():
    one, tables = decode_of("qwen3-32b_tp=8.json.gz")
    timed = [call for call in one.order.calls if call.host_ns]
    names = [call_name(one, call) for call in timed]
    made = {name: 1.0 + at for at, name in enumerate(dict.fromkeys(names))}
    expected = fsum(made[name] for name in names)
    times = {"pass": expected, "launch": expected / 1128, **made}
    found = timer(costs_of(times), cann(0.0)).of_recording(one, tables)
    assert found.mode == EAGER
    assert found.time.value_us == pytest.approx(expected, rel=0.01)
    measured_us, whole_us = found.measured_host_us()
    assert measured_us == whole_us == pytest.approx(expected, rel=0.01)
    assert "3 sessions" in str(found.host)
    launched = sum(call.kind in (CallKind.LAUNCH, CallKind.MESSAGE) for call in timed)
    longer = timer(costs_of(times), cann(20.0)).of_recording(one, tables)
    assert longer.time.value_us == pytest.approx(expected + 20 * launched, rel=0.01)
    assert longer.measured_host_us()[0] < longer.measured_host_us()[1]


def test_call_that_was_not_measured_keeps_the_assumed_range():
    one, tables = decode_of("qwen3-32b_tp=8.json.gz")
    costs = costs_of({"pass": 50_000.0, "launch": 50.0})
    found = timer(costs, StepAssumptions()).of_recording(one, tables)
    measured_us, whole_us = found.measured_host_us()
    assert measured_us == 0 < whole_us


def test_assumed_order_has_the_host_of_the_whole_pass():
    launches = (launch("Add", 400), launch("Mul", 400))  # the host issues 200 more
    one = LaunchedPass("decode", "", launches)
    costs = costs_of({"pass": 50_000.0, "launch": 50.0})
    eager = timer(costs, cann(10.0)).of_model(one, EAGER)
    assert eager.time.value_us == pytest.approx(50_000 + 1000 * 10, rel=0.01)
    graph = timer(costs, cann(10.0)).of_model(one, GRAPH)
    assert graph.time.parts[Cause.HOST] == pytest.approx(50_000 + 1000 * 10, rel=0.01)


def test_directories_of_hosts_are_found_by_the_release():
    other = "ATLAS_800_A3_752T_128G_DIE/vllm_ascend/vllm0.18.0_torch2.9.0_cann8.5"
    there = [other, STACK.version_path]
    assert host_directories(there, "vllm-ascend-0.18") == [STACK.version_path]
    assert host_directories(there, "vllm-ascend-0.1") == []
    with pytest.raises(BadInput):
        host_directories(there, "vllm-ascend-0.18", other)
    assert ranks_text({"tp": 8, "dp": 1, "ep": 1}) == DECODE.layout
