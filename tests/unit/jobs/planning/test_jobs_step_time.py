"""The time of a pass of a model: recorded orders, assumed orders, and what narrows the interval."""

from pathlib import Path

import pytest

from collector.codec.errors import BadInput
from collector.model.record import CaseRecord
from collector.model.stack import Stack
from collector.ranks.collective import Collective, CollectiveCase
from collector.ranks.topology import Grid
from collector.report.model_pages import PredictedLaunch
from collector.timeline.call_graph import HOST, Cause, Quantity
from collector.timeline.pass_time import spans
from collector.workloads.call_order import CallKind, CallOrder, PassCall
from collector.workloads.recorded_step import RecordedCopy, RecordedPass, read_recording
from jobs.planning.forecast import peaks_of
from jobs.planning.predicted_passes import LaunchedPass, ModelLaunch, launches_of
from jobs.planning.step_time import (
    EAGER,
    GRAPH,
    AssumedTime,
    BudgetRow,
    KnownLaunch,
    PassTimer,
    StepAssumptions,
    error_budget,
    narrowing,
    range_over_links,
)

pytestmark = pytest.mark.fast

# `opmeter model record qwen3-32b --layout tp=8 --tokens 2048 --context 1024`, on 2026-11-30, and
# the same with `--layout tp=4 --graph full-decode --phase decode`.
RECORDINGS = Path(__file__).parents[3] / "fixtures" / "recordings"
NO_TIME = StepAssumptions(
    *(AssumedTime(name, Cause.HOST, 0, 0, 0) for name in ("call", "step")),
    AssumedTime("wait", Cause.WAITING, 0, 0, 0),
)


def assumed(call=0.0, step=0.0, wait=0.0):
    return StepAssumptions(
        AssumedTime("call", Cause.HOST, call, call, call),
        AssumedTime("step", Cause.HOST, step, step, step),
        AssumedTime("wait", Cause.WAITING, wait, wait, wait),
    )


def known(us, low=None, high=None, channel="measured"):
    """Return a prediction of launches that all take the same."""

    def predict(one):
        ends = (us, low or us, high or us)
        plain = (one.layer, one.kernel_type, one.times, one.size, "BF16")
        return PredictedLaunch(*plain, *ends, channel)

    return predict


def timer(predict, times=NO_TIME, over_links=None):
    return PassTimer(predict, lambda case: over_links, 1.0, times)


def launch(name, times=1, layer="dense", is_message=False, case=None):
    return ModelLaunch(layer, name, times, "16,5120", case, is_message)


def call(kind, stream=0, subject=0, host_ns=0):
    return PassCall(kind, stream, subject, host_ns)


def recorded(calls, copies=()):
    return RecordedPass("decode", 4, 1, 128, None, (), (), copies, (), CallOrder.of(calls))


LAYER = (
    *(call(CallKind.LAUNCH, 0, 0, 900), call(CallKind.RECORD, 0, 1, 5), call(CallKind.WAIT, 1, 1)),
    call(CallKind.MESSAGE, 1, 0, 40),
    *(call(CallKind.RECORD, 1, 1, 5), call(CallKind.WAIT, 0, 1)),
)


def test_recorded_layers_run_one_after_the_other():
    tables = ((launch("Add", 64),), (launch("hcom", 64, is_message=True),))
    found = timer(known(100), assumed(call=1, wait=50)).of_recording(recorded(LAYER * 64), tables)
    assert (found.mode, found.metric) == (EAGER, "TPOT")
    assert found.time.value_us == 1 + 64 * (100 + 50 + 100)
    assert found.time.parts == {
        Cause.COMPUTING: 6400,
        Cause.COMMUNICATION: 6400,
        Cause.WAITING: 3200,
        Cause.HOST: 1,
        Cause.UNKNOWN: 0,
    }


def test_further_kernels_of_a_call_have_no_host_time():
    calls = [call(CallKind.LAUNCH, 0, 0, 900), call(CallKind.LAUNCH, 0, 1)] * 10
    tables = ((launch("Cast"), launch("Mul")), ())
    found = timer(known(1), assumed(call=20)).of_recording(recorded(calls), tables)
    assert found.time.value_us == 10 * 20 + 2


def test_recorded_graph_is_one_call_of_the_host():
    inside = (call(CallKind.REPLAY, 0, 0, 700), *LAYER * 64, call(CallKind.REPLAY_END))
    tables = ((launch("Add", 64),), (launch("hcom", 64, is_message=True),))
    found = timer(known(10), assumed(call=30)).of_recording(recorded(inside), tables)
    assert found.mode == GRAPH
    assert found.time.value_us == 30 + 64 * 20


@pytest.mark.parametrize(
    ("phase", "queries", "keys", "metric"),
    [
        *(("decode", 1, 128, "TPOT"), ("decode", 3, 128, "pass"), ("mixed", 1, 128, "pass")),
        *(("prefill", 128, 128, "TTFT"), ("prefill", 64, 128, "pass")),
    ],
)
def test_only_a_pass_with_one_token_of_each_request_has_its_time(phase, queries, keys, metric):
    order = CallOrder.of(LAYER)
    one = RecordedPass(phase, 4, queries, keys, None, (), (), (), (), order)
    tables = ((launch("Add"),), (launch("hcom", is_message=True),))
    assert timer(known(1)).of_recording(one, tables).metric == metric


@pytest.mark.parametrize(
    "calls",
    [
        [call(CallKind.LAUNCH, 0, 0, 9)] * 100_001,
        [
            *(call(CallKind.REPLAY, 0, 0, 9), call(CallKind.AWAIT_UPDATE)),
            *(call(CallKind.REPLAY_END), call(CallKind.SYNCHRONIZE_DEVICE)),
            call(CallKind.UPDATE, 0, 0, 9),
        ],
    ],
)
def test_order_that_is_no_pass_is_refused(calls):
    with pytest.raises(BadInput):
        timer(known(1)).of_recording(recorded(calls), ((launch("Add"),), ()))


def test_copies_hold_the_host_where_they_block():
    copies = (
        RecordedCopy("device to host", 0, True),
        RecordedCopy("host to host", 10**9, True),
    )
    calls = [call(CallKind.COPY, 0, 0, 9), call(CallKind.COPY, 0, 1, 9)]
    calls.append(call(CallKind.LAUNCH, 1, 0, 9))
    one = recorded(calls, copies)
    found = timer(known(1), assumed(call=20)).of_recording(one, ((launch("Add"),), ()))
    copy_us = found.time.parts[Cause.UNKNOWN]
    assert found.time.value_us == 3 * 20 + 1 + copy_us
    count, (low, value, high) = found.unknown()
    assert count == 1 and low < value == copy_us < high


def test_assumed_order_is_layer_by_layer():
    launches = (launch("Embedding", 1, "embedding"), launch("Norm", 6), launch("MatMul", 3))
    launches += (launch("hcom", 3, is_message=True),)
    one = LaunchedPass("decode", "a decode", launches)
    eager = timer(known(10), assumed(call=20, step=500, wait=5)).of_model(one, EAGER)
    assert eager.time.value_us == 13 * 20 + 15
    names = [span.quantity.name.split()[0] for span in spans(eager.graph) if span.lane != HOST]
    layer = ["Norm", "Norm", "MatMul", "wait", "hcom"]
    assert names == ["Embedding", *layer * 3]
    graph = timer(known(10), assumed(call=20, step=500, wait=5)).of_model(one, GRAPH)
    assert graph.time.value_us == 500 + 13 * 10 + 3 * 5


def test_duration_without_data_is_a_named_range():
    def predict(one):
        plain = (one.layer, one.kernel_type, one.times, one.size, "BF16")
        return PredictedLaunch(*plain, reason="no kernel", estimate_us=8, least_us=2)

    one = LaunchedPass("decode", "a decode", (launch("Secret", 10),))
    found = timer(predict).of_model(one, EAGER)
    assert found.time.parts[Cause.UNKNOWN] == found.time.value_us == 80
    assert found.unknown() == (10, (20, 80, 400))
    assert (found.time.low_us, found.time.high_us) == (
        pytest.approx(20, rel=0.2),
        pytest.approx(400, rel=0.2),
    )
    assert found.time.low_us >= 20 and found.time.high_us <= 400


def test_messages_without_data_are_ranges_of_their_links():
    def predict(one):
        return PredictedLaunch("", "hcom", 1, "", "")

    record = CaseRecord("hcom", {}, {})
    for case, expected in ((record, (1, 25, 90)), (None, (1, 10, 100))):
        message = launch("hcom", 1, is_message=True, case=case)
        one = LaunchedPass("decode", "a decode", (message,))
        found = timer(predict, over_links=(25, 0.5, 90)).of_model(one, EAGER)
        assert found.unknown() == (1, expected)


def test_range_over_links_contains_what_was_published():
    """An all-reduce of 160 KB between 16 ranks of A3 takes 20.1 us alone."""
    peaks = peaks_of(Stack(device="ATLAS_800_A3_752T_128G_DIE", torch=""))
    message = Collective("all_reduce", 163_840, "bfloat16", 16, 1)
    case = CollectiveCase(message, Grid((48, 8, 2)), 16, "alternating", "").record().case
    value_us, low_us, high_us = range_over_links(case, peaks)
    assert low_us < 20.1 < high_us and low_us < value_us < high_us
    assert range_over_links(CaseRecord("Add", {"Input Shapes": "8,8;8,8"}, {}).case, peaks) is None


def decode_of(name):
    """Return the decode of Qwen3-32B as vLLM-Ascend 0.18 launches it, with its tables."""
    recording = read_recording(RECORDINGS / name)
    (one,) = (found for found in recording.passes if found.phase == "decode")
    return one, launches_of(recording, one, None, "npu")


@pytest.mark.parametrize(
    ("name", "launches", "mode"),
    [("qwen3-32b_tp=8.json.gz", 998, EAGER), ("qwen3-32b_tp=4_graph.json.gz", 809, GRAPH)],
)
def test_recorded_pass_of_a_whole_model_is_exact(name, launches, mode):
    """Each kernel and each message takes 100 us, and nothing else takes time. Seven launches of
    the sampler are beside others."""
    one, tables = decode_of(name)
    assert sum(times for _, times in one.launched()) == launches
    assert sum(times for _, times in one.sent()) == 130
    found = timer(known(100)).of_recording(one, tables)
    parts = found.time.parts
    assert found.mode == mode
    assert parts[Cause.COMPUTING] == pytest.approx(100 * (launches - 7))
    assert parts[Cause.COMMUNICATION] == pytest.approx(100 * 130)
    assert found.time.value_us == pytest.approx(sum(parts.values()))
    skewed = timer(known(100), assumed(wait=50)).of_recording(one, tables)
    assert skewed.time.value_us - found.time.value_us == pytest.approx(50 * 130)


def test_host_bounds_an_eager_pass_by_its_calls_and_a_graph_by_its_updates():
    bound = {}
    for name in ("qwen3-32b_tp=8.json.gz", "qwen3-32b_tp=4_graph.json.gz"):
        one, tables = decode_of(name)
        found = timer(known(1), assumed(call=1000)).of_recording(one, tables)
        assert found.time.parts[Cause.HOST] / found.time.value_us > 0.98
        bound[found.mode] = round(found.time.parts[Cause.HOST] / 1000)
    assert 1000 < bound[EAGER] < 998 + 130 + 10
    assert 64 < bound[GRAPH] < 120  # 64 updates, and what is outside of the graph


# What makes an interval wide.


def row(name, share, width, half_share, case="", channel="interpolated"):
    quantity = Quantity(
        name, Cause.COMPUTING, 10, 10 * (1 - half_share), 10 * (1 + half_share), name
    )
    record = CaseRecord(name, {"Input Shapes": case or "1"}, {})
    found = PredictedLaunch("", name, 1, "", "", 10, 9, 11, channel)
    return BudgetRow(
        quantity, 1, width, share, KnownLaunch(launch(name, case=record), found, quantity)
    )


def test_error_budget_divides_the_variance():
    wide, narrow = launch("Wide", 4), launch("Narrow", 4)

    def predict(one):
        return known(10, 5, 20)(one) if one is wide else known(10, 9.9, 10.1)(one)

    found = timer(predict, assumed(call=1)).of_model(LaunchedPass("", "", (wide, narrow)), EAGER)
    rows = error_budget(found)
    assert [one.quantity.name.split()[0] for one in rows] == ["Wide", "Narrow"]
    assert (rows[0].width_us, rows[1].width_us) == (pytest.approx(60), pytest.approx(0.8))
    assert sum(one.share for one in rows) == pytest.approx(1)
    assert rows[0].times == 4
    assert rows[0].record is None  # it is measured


def test_cases_of_one_group_add_up():
    """Two cases with one error have four times the variance of one, and not twice."""
    launches = (launch("Same", 1), ModelLaunch("dense", "Same", 1, "8,8", None))
    found = timer(known(10, 5, 20)).of_model(LaunchedPass("", "", launches), EAGER)
    assert [one.share for one in error_budget(found)] == [pytest.approx(0.5)] * 2
    low, high = found.time.low_us, found.time.high_us
    assert (low, high) == (pytest.approx(10, rel=0.1), pytest.approx(40, rel=0.1))


def test_halving_takes_the_most_variance_per_device_second():
    rows = [row("Dear", 0.45, 9, 0.5), row("Cheap", 0.44, 8.9, 0.5), row("Small", 0.11, 4.4, 0.5)]
    costs = {"Dear": 100.0, "Cheap": 2.0, "Small": 1.0}
    found = narrowing(rows, lambda record: costs[record.kernel_type], 10.0)
    assert [one.kernel_type for one in found.cases] == ["Cheap", "Small", "Dear"]
    assert found.device_s == 113 and found.is_half
    assert found.left == pytest.approx(found.least) == pytest.approx(0.12)


def test_halving_stops_when_the_width_is_half():
    rows = [row("Wide", 0.99, 100, 0.5), row("Small", 0.01, 10, 0.5)]
    found = narrowing(rows, lambda record: 1.0, 0.0)
    assert [one.kernel_type for one in found.cases] == ["Wide"]
    assert found.left < 0.5 and found.least < found.left


def test_nothing_is_measured_for_what_no_device_narrows():
    rows = [
        BudgetRow(Quantity("host", Cause.HOST, 70, 35, 140, "host"), 9, 90, 0.9, None),
        row("Measured", 0.05, 5, 0.5, channel="measured"),
        row("Refused", 0.05, 5, 0.5),
    ]
    found = narrowing(rows, lambda record: None, 10.0)
    assert (found.cases, found.device_s, found.left, found.least) == ((), 0.0, 1.0, 1.0)
    assert not found.is_half
