"""Kernels of a device with events only are placed into the trace of its host."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from collector.codec.errors import BadInput
from jobs.cli.trace import merge_trace_command

pytestmark = pytest.mark.fast

PID, TID = 41, 42


def operator(name: str, number: int, start: float, dur: float, tid: int = TID) -> dict[str, Any]:
    args = {"External id": number, "Input Dims": [[2, 3]]}
    event = {"ph": "X", "cat": "cpu_op", "name": name, "pid": PID, "tid": tid}
    return {**event, "ts": start, "dur": dur, "args": args}


def memory(at: float, total: int, device_type: int) -> dict[str, Any]:
    args = {"Total Allocated": total, "Bytes": 64, "Device Type": device_type}
    event = {"ph": "i", "s": "t", "name": "[memory]", "pid": PID, "tid": TID}
    return {**event, "ts": at, "args": args}


# linear contains mm, which makes its output first; the kernels of 3 and 5 wait for the queue.
TRACE = [
    {"ph": "M", "name": "process_name", "pid": PID, "tid": 0, "ts": 0, "args": {"name": "python"}},
    operator("aten::linear", 1, 100.0, 10.0),
    operator("aten::mm", 2, 101.5, 8.0),
    operator("aten::empty", 7, 102.0, 1.0),
    operator("aten::add", 3, 112.25, 4.0),
    operator("aten::relu", 4, 200.0, 4.0),
    operator("aten::relu", 5, 201.0, 4.0, TID + 1),  # of another thread: not in the previous one
    operator("aten::unseen", 6, 300.0, 4.0),
    memory(102.5, 640, 20),
    memory(103.5, 128, 0),
]
TIMES = {
    "aten::linear_1_1": {"kernel_time": 60, "device_memory_usage": 256},
    "aten::mm_2_1": {"kernel_time": 50, "device_memory_usage": 256},
    "aten::empty_7_1": {"kernel_time": 2, "device_memory_usage": 256},
    "aten::add_3_1": {"kernel_time": 7.5, "device_memory_usage": 0},
    "aten::relu_4_1": {"kernel_time": 3},
    "aten::relu_5_2": {"kernel_time": 5},
    "aten::lost_99_1": {"kernel_time": 5},
}


def merge(tmp_path: Path, trace: object = TRACE, times: object = TIMES, **options: Any) -> Any:
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    (tmp_path / "times.json").write_text(json.dumps(times))
    output = tmp_path / "merged.json"
    merge_trace_command(tmp_path / "trace.json", tmp_path / "times.json", output=output, **options)
    return json.loads(output.read_text())


def kernels(merged: Any) -> list[tuple[str, float, float]]:
    events = merged["traceEvents"]
    return [(e["name"], e["ts"], e["dur"]) for e in events if e.get("cat") == "kernel"]


def check_trace_event_format(merged: Any) -> None:
    """Check what the Trace Event Format requires of the phases that are used."""
    required = {
        "X": {"name", "ts", "dur", "pid", "tid"},
        "M": {"name", "pid", "args"},
        "C": {"name", "ts", "pid", "args"},
        "i": {"name", "ts", "pid", "tid"},
        "s": {"name", "cat", "id", "ts", "pid", "tid"},
        "f": {"name", "cat", "id", "ts", "pid", "tid"},
    }
    spans, starts, ends = [], {}, {}
    for event in merged["traceEvents"]:
        assert required[event["ph"]] <= event.keys(), event
        assert event["ph"] == "M" or float(event["ts"]) >= 0
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans.append(event)
        if event["ph"] in "sf":
            side = starts if event["ph"] == "s" else ends
            assert event["id"] not in side  # one arrow has one start and one end
            side[event["id"]] = event
            inside = [
                one
                for one in spans
                if (one["pid"], one["tid"]) == (event["pid"], event["tid"])
                and one["ts"] <= event["ts"] <= one["ts"] + one["dur"]
            ]
            assert inside, event  # an end of an arrow needs a span
    assert starts.keys() == ends.keys()
    assert all(starts[number]["ts"] <= ends[number]["ts"] for number in starts)


def test_kernels_follow_launch_time_queue_order_and_duration(tmp_path: Path) -> None:
    merged = merge(tmp_path)
    assert kernels(merged) == [
        ("aten::mm", 101.5, 50.0),  # of linear and mm the innermost; empty launches none
        ("aten::add", 151.5, 7.5),  # launched at 112.25, while mm runs
        ("aten::relu", 200.0, 3.0),
        ("aten::relu", 203.0, 5.0),
    ]
    check_trace_event_format(merged)
    events = merged["traceEvents"]
    assert [event for event in events if event in TRACE] == TRACE
    assert Counter(event["ph"] for event in events)["s"] == 4
    (device,) = {event["pid"] for event in events if event.get("cat") == "kernel"}
    assert device not in {event["pid"] for event in TRACE}
    counters = [
        (event["name"], event["ts"], *event["args"].values())
        for event in events
        if event["ph"] == "C"
    ]
    assert counters == [
        ("device memory", 102.5, 640),  # not that of the host
        ("memory of the operator", 101.5, 256),
        ("memory of the operator", 109.5, 0),
    ]


def test_latency_and_least_time_change_the_places(tmp_path: Path) -> None:
    merged = merge(tmp_path, least_us=4.0, launch_latency_us=6.0)
    assert kernels(merged) == [
        ("aten::mm", 107.5, 50.0),
        ("aten::add", 157.5, 7.5),
        ("aten::relu", 207.0, 5.0),
    ]
    check_trace_event_format(merged)


def test_members_and_exact_times_of_the_trace_are_kept(tmp_path: Path) -> None:
    late = operator("aten::mm", 2, 0, 0) | {"ts": "1736408883674584.732", "dur": "8.125"}
    trace = {"schemaVersion": 1, "traceEvents": [late], "baseTimeNanoseconds": 7}
    merged = merge(tmp_path, trace, launch_latency_us=1)
    assert merged["schemaVersion"] == 1
    assert merged["baseTimeNanoseconds"] == 7
    assert kernels(merged) == [("aten::mm", "1736408883674585.732", 50.0)]


@pytest.mark.parametrize(
    ("trace", "times", "file"),
    [
        (TRACE, {"mm": {"kernel_time": 1}}, "times.json"),
        (TRACE, {"aten::mm_2_1": {"kernel_time": "1"}}, "times.json"),
        (TRACE, {"aten::mm_2_1": {"kernel_time": -1}}, "times.json"),
        (TRACE, {"aten::mm_2_1": {"kernel_time": float("nan")}}, "times.json"),
        (TRACE, {"aten::mm_2_1": {"kernel_time": 1, "device_memory_usage": []}}, "times.json"),
        (TRACE, {"aten::mm_2_1": {"kernel_time": 1}, "aten::mm_2_3": {}}, "times.json"),
        (TRACE, [], "times.json"),
        (TRACE, {"aten::mm_3_1": {"kernel_time": 1}}, "trace.json"),  # of another run
        ([*TRACE, TRACE[2]], TIMES, "trace.json"),
        ([operator("aten::mm", 2, float("inf"), 1)], TIMES, "trace.json"),
        ([*TRACE, {"ph": "X", "ts": float("nan")}], TIMES, "trace.json"),
    ],
)
def test_mismatched_files_are_named_and_nothing_is_written(
    tmp_path: Path, trace: object, times: object, file: str
) -> None:
    with pytest.raises(BadInput) as error:
        merge(tmp_path, trace, times)
    assert error.value.path == tmp_path / file or str(tmp_path / file) in str(error.value)
    assert not (tmp_path / "merged.json").exists()


def test_an_input_is_not_overwritten(tmp_path: Path) -> None:
    merge(tmp_path)
    with pytest.raises(BadInput):
        merge_trace_command(
            tmp_path / "trace.json", tmp_path / "times.json", output=tmp_path / "times.json"
        )
    assert json.loads((tmp_path / "times.json").read_text()) == TIMES
