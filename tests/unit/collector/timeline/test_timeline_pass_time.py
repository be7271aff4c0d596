"""The time of a pass: calls of a host, streams, events, graphs, messages."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.timeline.call_graph import HOST, CallGraph, Cause, Quantity, TimedCall, scaled
from collector.timeline.pass_time import Span, simulate, spans, widths
from collector.workloads.call_order import CallKind, PassCall

pytestmark = pytest.mark.fast


def quantity(us, cause=Cause.COMPUTING, low=None, high=None, group="", samples=()):
    low, high = us if low is None else low, us if high is None else high
    return Quantity(f"{cause} of {us}", cause, us, low, high, group or str(us), samples)


def launch(stream, us, host=0.0, **ends):
    issued = quantity(host, Cause.HOST) if host else None
    return TimedCall(PassCall(CallKind.LAUNCH, stream, 0), issued, quantity(us, **ends))


def message(stream, us, wait=None, host=0.0):
    issued = quantity(host, Cause.HOST) if host else None
    work = quantity(us, Cause.COMMUNICATION)
    return TimedCall(PassCall(CallKind.MESSAGE, stream, 0), issued, work, wait)


def other(kind, stream=0, subject=0, host=0.0):
    issued = quantity(host, Cause.HOST) if host else None
    return TimedCall(PassCall(kind, stream, subject), issued)


def record(stream, event):
    return other(CallKind.RECORD, stream, event)


def wait(stream, event):
    return other(CallKind.WAIT, stream, event)


def time_of(*calls):
    return simulate(CallGraph.of(calls))


def parts_of(found):
    return {cause: us for cause, us in found.parts.items() if us}


def test_launches_of_a_stream_run_one_after_the_other():
    found = time_of(*[launch(0, 100)] * 69)
    assert found.value_us == found.low_us == found.high_us == 6900
    assert parts_of(found) == {Cause.COMPUTING: 6900}


def test_pass_is_bound_by_its_host():
    found = time_of(*[launch(0, 3, host=10)] * 50)
    assert found.value_us == 503
    assert parts_of(found) == {Cause.HOST: 500, Cause.COMPUTING: 3}
    assert found.hidden_us == 49 * 3


def test_library_of_the_device_is_a_time_of_the_host():
    call = PassCall(CallKind.LAUNCH, 0, 0)
    host, library = quantity(10, Cause.HOST), quantity(4, Cause.HOST)
    found = time_of(*[TimedCall(call, host, quantity(3), library=library)] * 50)
    assert found.value_us == 50 * 14 + 3
    longer = scaled(library, 2.5)
    assert (longer.value_us, longer.group) == (10, library.group)
    assert scaled(library, 1) is library


def test_pass_is_bound_by_its_device():
    found = time_of(*[launch(0, 10, host=3)] * 50)
    assert found.value_us == 503
    assert parts_of(found) == {Cause.HOST: 3, Cause.COMPUTING: 500}
    assert found.hidden_us == 0


def test_streams_fork_and_join():
    calls = (
        *(launch(0, 10), record(0, 1), wait(1, 1), launch(1, 50), record(1, 2), launch(0, 20)),
        *(wait(0, 2), launch(0, 5)),
    )
    found = time_of(*calls)
    assert found.value_us == 65
    assert found.hidden_us == 20
    starts = {(span.lane, span.start_us, span.end_us) for span in spans(CallGraph.of(calls))}
    assert starts == {(0, 0, 10), (1, 10, 60), (0, 10, 30), (0, 60, 65)}


def test_stream_does_not_wait_for_work_after_the_event():
    calls = (launch(0, 10), record(0, 1), launch(0, 100), wait(1, 1), launch(1, 20))
    assert time_of(*calls).value_us == 110


def test_event_is_recorded_when_the_host_has_issued_it():
    late = other(CallKind.RECORD, 0, 1, host=40)
    assert time_of(launch(0, 10), late, wait(1, 1), launch(1, 5)).value_us == 45


def test_event_of_an_earlier_pass_holds_nothing():
    assert time_of(wait(0, 0), launch(0, 7)).value_us == 7


@pytest.mark.parametrize(
    "kind, stream, subject, expected",
    [
        (CallKind.SYNCHRONIZE_STREAM, 0, 0, 30 + 4 + 1),
        (CallKind.SYNCHRONIZE_STREAM, 1, 0, 70 + 4 + 1),
        (CallKind.SYNCHRONIZE_DEVICE, 0, 0, 70 + 4 + 1),
        (CallKind.SYNCHRONIZE_EVENT, 0, 1, 30 + 4 + 1),
    ],
)
def test_host_is_held_by_a_synchronisation(kind, stream, subject, expected):
    calls = (
        *(launch(0, 30), record(0, 1), launch(1, 70)),
        *(other(kind, stream, subject), launch(2, 1, host=4)),
    )
    (last,) = (span for span in spans(CallGraph.of(calls)) if span.lane == 2)
    assert last.end_us == expected


def test_blocking_copy_holds_the_host():
    copy = TimedCall(PassCall(CallKind.COPY, 0, 0), None, quantity(50, Cause.UNKNOWN), None, True)
    found = time_of(copy, launch(1, 2, host=10))
    assert found.value_us == 62
    assert parts_of(found) == {Cause.UNKNOWN: 50, Cause.HOST: 10, Cause.COMPUTING: 2}


def test_graph_is_issued_by_one_call():
    inside = (
        *(launch(5, 10, host=1000), record(5, 1), wait(6, 1), launch(6, 30), launch(5, 20)),
        *(record(6, 2), wait(5, 2)),
    )
    calls = (
        launch(0, 100, host=5),
        other(CallKind.REPLAY, 0, host=7),
        *inside,
        other(CallKind.REPLAY_END, 0),
        launch(0, 1),
        launch(1, 1),
    )
    found = time_of(*calls)
    assert found.value_us == 5 + 100 + 10 + 30 + 1
    work = spans(CallGraph.of(calls))
    assert [span.end_us for span in work if span.lane == HOST] == [5, 12]
    assert [span.start_us for span in work if span.lane == 1] == [12]  # not of the graph


def test_graphs_of_a_stream_follow_each_other():
    graph = (other(CallKind.REPLAY, 0), launch(5, 10), other(CallKind.REPLAY_END, 0))
    assert time_of(*graph, *graph).value_us == 20


def test_graph_waits_for_the_updates_of_the_host():
    graph = (
        *(other(CallKind.REPLAY, 0, host=5), launch(5, 10), other(CallKind.AWAIT_UPDATE, 5)),
        *(launch(5, 20), other(CallKind.AWAIT_UPDATE, 5), launch(5, 30)),
        other(CallKind.REPLAY_END, 0),
    )
    slow = [other(CallKind.UPDATE, host=25)] * 2
    found = time_of(*graph, *slow, launch(0, 1))
    assert found.value_us == 5 + 25 + 25 + 30 + 1
    assert parts_of(found) == {Cause.HOST: 55, Cause.COMPUTING: 31}
    fast = [other(CallKind.UPDATE, host=1)] * 2
    assert time_of(*graph, *fast, launch(0, 1)).value_us == 5 + 10 + 20 + 30 + 1


def test_host_that_waits_for_a_graph_before_its_update_is_refused():
    calls = (
        *(other(CallKind.REPLAY, 0, host=5), other(CallKind.AWAIT_UPDATE, 5)),
        *(other(CallKind.REPLAY_END, 0), other(CallKind.SYNCHRONIZE_DEVICE)),
        other(CallKind.UPDATE, host=1),
    )
    with pytest.raises(ValueError):
        time_of(*calls)


def test_calls_that_are_captured_do_not_run():
    calls = (
        *(other(CallKind.CAPTURE), launch(0, 100, host=9), other(CallKind.CAPTURE_END)),
        launch(0, 3),
    )
    assert time_of(*calls).value_us == 3


def test_rank_waits_for_the_slower_rank_in_each_message():
    """69 launches of 100 us, and those of the other rank take 150 us."""
    skew = quantity(50, Cause.WAITING)
    calls = [one for _ in range(69) for one in (launch(0, 100), message(0, 20, wait=skew))]
    found = time_of(*calls)
    assert found.value_us == 69 * 170
    assert parts_of(found) == {
        Cause.COMPUTING: 6900,
        Cause.COMMUNICATION: 1380,
        Cause.WAITING: 3450,
    }


def test_waits_are_drawn_from_their_distribution():
    samples = (0.0, 10.0, 20.0, 130.0)
    skew = quantity(40, Cause.WAITING, samples=samples)
    graph = CallGraph.of([message(0, 20, wait=skew)] * 100)
    found = simulate(graph)
    assert found.value_us == 100 * 60
    deviation = float(np.std(samples)) * 10  # of the sum of a hundred
    assert found.low_us == pytest.approx(6000 - 1.96 * deviation, rel=0.1)
    assert found.high_us == pytest.approx(6000 + 1.96 * deviation, rel=0.1)
    assert widths(graph)[skew] == pytest.approx(2 * 1.96 * deviation)


def test_interval_of_one_group_is_that_of_its_sum():
    found = time_of(*(launch(0, us, low=0.9 * us, high=1.2 * us, group="a") for us in (10, 20, 30)))
    assert (found.low_us, found.high_us) == (pytest.approx(54, rel=0.01), pytest.approx(72, 0.01))


def test_errors_of_many_groups_cancel():
    calls = [launch(0, 10, low=9, high=11, group=str(at)) for at in range(100)]
    found = time_of(*calls)
    assert found.high_us - found.value_us == pytest.approx(10, rel=0.3)
    assert found.value_us - found.low_us == pytest.approx(10, rel=0.3)


def test_interval_depends_on_nothing_but_the_seed():
    graph = CallGraph.of([launch(0, us, low=us / 2, high=us * 2) for us in range(1, 30)])
    one, same, differs = simulate(graph), simulate(graph), simulate(graph, 1)
    assert (one.low_us, one.high_us) == (same.low_us, same.high_us)
    assert one.value_us == differs.value_us
    assert one.low_us != differs.low_us


def test_range_from_zero_is_drawn():
    found = time_of(launch(0, 10, low=0, high=40))
    assert (found.low_us, found.high_us) == (pytest.approx(0, abs=1), pytest.approx(40, rel=0.02))


def test_pass_without_calls_takes_no_time():
    found = time_of()
    assert (found.value_us, found.high_us, found.path) == (0, 0, ())


def test_widths_follow_the_critical_path():
    narrow, wide = quantity(100, low=99, high=101), quantity(10, low=5, high=60)
    calls = [
        TimedCall(PassCall(CallKind.LAUNCH, 0, 0), None, narrow),
        *[TimedCall(PassCall(CallKind.LAUNCH, 1, 0), None, wide)] * 2,
    ]
    found = widths(CallGraph.of(calls))
    assert found == {narrow: 2, wide: 20}  # two of 60 us are 20 us longer than the other stream
    assert [one.quantity for one in simulate(CallGraph.of(calls)).path] == [narrow]


# Random programs.

_STREAMS, _EVENTS = 3, 3


@st.composite
def programs(draw):
    """Return calls with whole durations, so that sums are exact."""
    kinds = ["launch", "launch", "launch", "record", "wait", "stream", "event", "device"]
    calls = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=40)):
        stream, event = draw(st.integers(0, _STREAMS - 1)), draw(st.integers(1, _EVENTS))
        host, us = float(draw(st.integers(0, 9))), float(draw(st.integers(1, 30)))
        calls.append(
            {
                "launch": lambda s=stream, u=us, h=host: launch(s, u, host=h),
                "record": lambda s=stream, e=event, h=host: other(CallKind.RECORD, s, e, h),
                "wait": lambda s=stream, e=event, h=host: other(CallKind.WAIT, s, e, h),
                "stream": lambda s=stream: other(CallKind.SYNCHRONIZE_STREAM, s),
                "event": lambda e=event: other(CallKind.SYNCHRONIZE_EVENT, 0, e),
                "device": lambda: other(CallKind.SYNCHRONIZE_DEVICE),
            }[kind]()
        )
    return calls


def longest_path(calls):
    """Return the time of a program by the relaxation of all constraints between two times.

    Call k is issued at (k, 0), and its stream has passed it at (k, 1)."""
    edges = []  # earlier, later, at least so much later
    for at, one in enumerate(calls):
        host = one.host.value_us if one.host else 0.0
        took = one.work.value_us if one.work else 0.0
        edges.append(((at - 1, 0), (at, 0), host))
        call = one.call
        if call.kind in (CallKind.LAUNCH, CallKind.RECORD, CallKind.WAIT):
            edges.append(((at, 0), (at, 1), took))
        for before, earlier in enumerate(calls[:at]):
            is_work = earlier.call.kind in (CallKind.LAUNCH, CallKind.RECORD, CallKind.WAIT)
            same = earlier.call.stream == call.stream
            if not is_work:
                continue
            if call.kind in (CallKind.LAUNCH, CallKind.RECORD, CallKind.WAIT) and same:
                edges.append(((before, 1), (at, 1), took))
            if (call.kind is CallKind.SYNCHRONIZE_STREAM and same) or (
                call.kind is CallKind.SYNCHRONIZE_DEVICE
            ):
                edges.append(((before, 1), (at, 0), 0.0))
        if call.kind in (CallKind.WAIT, CallKind.SYNCHRONIZE_EVENT):
            recorded = [
                before
                for before, earlier in enumerate(calls[:at])
                if earlier.call.kind is CallKind.RECORD and earlier.call.subject == call.subject
            ]
            if recorded:
                held = 1 if call.kind is CallKind.WAIT else 0
                edges.append(((recorded[-1], 1), (at, held), 0.0))
    times = {(-1, 0): 0.0} | {(at, what): 0.0 for at in range(len(calls)) for what in (0, 1)}
    has_changed = True
    while has_changed:
        has_changed = False
        for earlier, later, least in edges:
            if times[earlier] + least > times[later]:
                times[later] = times[earlier] + least
                has_changed = True
    return max(times.values())


@given(programs())
def test_time_is_the_longest_path(calls):
    graph = CallGraph.of(calls)
    found = simulate(graph)
    assert found.value_us == longest_path(calls)
    assert sum(found.parts.values()) == found.value_us
    assert all(one.end_us == following.start_us for one, following in pairwise(found.path))
    lanes: dict[int, list[Span]] = {}
    for span in spans(graph):
        lanes.setdefault(span.lane, []).append(span)
    busy = {lane: sum(map(length, of)) for lane, of in lanes.items()}
    assert max(busy.values(), default=0) <= found.value_us <= sum(busy.values())
    for of in lanes.values():
        assert all(one.end_us <= following.start_us for one, following in pairwise(of))
    critical = [one for one in spans(graph) if one.is_critical]
    assert critical == list(found.path)
    beside = [one for one in spans(graph) if one.lane != HOST and not one.is_critical]
    assert found.hidden_us == sum(map(length, beside))


def length(span):
    return span.end_us - span.start_us


@pytest.mark.parametrize("seed", range(5))
def test_intervals_contain_the_pass_and_are_within_its_ends(seed):
    chance = random.Random(seed)
    calls = []
    for _ in range(60):
        us = chance.randrange(1, 50)
        ends = {"low": us * chance.uniform(0.3, 1), "high": us * chance.uniform(1, 4)}
        calls.append(launch(chance.randrange(3), us, group=str(us % 7), **ends))
        event = chance.randrange(1, 4)
        calls.append(record(chance.randrange(3), event))
        calls.append(wait(chance.randrange(3), event))
    found = time_of(*calls)
    ends = [
        time_of(
            *(
                TimedCall(one.call, None, one.work and quantity(getattr(one.work, end)))
                for one in calls
            )
        ).value_us
        for end in ("low_us", "high_us")
    ]
    assert ends[0] <= found.low_us < found.value_us < found.high_us <= ends[1]
