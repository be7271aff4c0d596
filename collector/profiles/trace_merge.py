"""Device kernels of a backend that has events only, placed into the trace of its host.

A device without a tracing interface has no records of its kernels. Its events still time each
operator: torch's profiler asks the backend for an event before and after it. So a trace of
torch.profiler has the operators of the host, and a second file has their device times. From both
follows where the kernels are, for one queue that runs them in the order of their launches:

    launched at   0  4  9           microseconds, on the host
    device time   6  2  3
    placed at     0  6  9           each when it is launched and the one before it has ended

Durations are measured, places are derived: each kernel says so in its arguments.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from collector.codec.canonical import json_object
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, read_small_file
from collector.profiles.trace_events import events_of, nanoseconds_of

# Operators that launch no kernel: their events measure only the events themselves. Without them
# an operator that makes its output and then computes it is a leaf.
_WITHOUT_KERNEL = frozenset(
    f"aten::{name}"
    for name in (
        *("view", "_unsafe_view", "_reshape_alias", "reshape", "view_as", "alias", "detach"),
        *("t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "select", "slice"),
        *("narrow", "split", "chunk", "unbind", "as_strided", "resolve_conj", "resolve_neg"),
        *("empty", "empty_strided", "empty_like", "new_empty", "result_type"),
        *("item", "_local_scalar_dense", "lift_fresh"),
    )
)
_DEVICE_TYPE = 20  # PrivateUse1 of c10::DeviceType, by which torch's memory events name the device
_MOST_US = 1e12  # of one kernel
_LAUNCH = {"cat": "launch", "name": "launch"}  # of flows; the trace has none of this category


@dataclass(frozen=True, slots=True)
class DeviceTime:
    """What the events of one operator measured, its children included."""

    duration_us: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Operator:
    """An operator of the host's trace that has a device time."""

    key: tuple[str, int]  # its name and its External id
    thread: tuple[object, object]
    start_ns: int
    end_ns: int
    time: DeviceTime


@dataclass(frozen=True, slots=True)
class PlacedKernel:
    """A kernel on the device's queue, and the operator that launched it."""

    operator: _Operator
    start_ns: int


@dataclass(frozen=True, slots=True)
class MergedTrace:
    """A trace with its kernels. `parents` operators only contain others, `left_out` launch no
    kernel, and `unknown` device times have no operator in the trace."""

    kernels: tuple[PlacedKernel, ...]
    parents: int
    left_out: int
    unknown: int
    pid: int  # of the device's process, which no process of the trace has


def read_device_times(path: Path) -> dict[tuple[str, int], DeviceTime]:
    """Return the device times of a file that `write_device_times` wrote, by name and External id.

    Its keys are `{name}_{id}_{thread}`, its values have `kernel_time` (us) and may have
    `device_memory_usage` (bytes). Raises BadInput with the key that is wrong."""
    with file_errors(path):
        data = read_small_file(path, MOST_TABLE_BYTES)
    found: dict[tuple[str, int], DeviceTime] = {}
    for key, value in json_object(data, what="device times", key=str(path)).items():
        name, _, rest = key.rpartition("_")[0].rpartition("_")
        if not name or not rest.isdecimal() or len(rest) > 19:
            raise BadInput(f"expected a key NAME_ID_THREAD, got {key!r}", path=path)
        if (name, int(rest)) in found:
            raise BadInput(f"{key!r}: expected one operator of this name and id", path=path)
        found[name, int(rest)] = _device_time(value, key, path)
    return found


def _device_time(value: object, key: str, path: Path) -> DeviceTime:
    members: dict[str, Any] = value if isinstance(value, dict) else {}
    duration: Any = members.get("kernel_time")
    memory: Any = members.get("device_memory_usage", 0)
    if not _is_number(duration) or not 0 <= duration <= _MOST_US:
        what = f"{key!r}: kernel_time: expected microseconds, got {duration!r}"
        raise BadInput(what, path=path)
    if not _is_number(memory) or abs(memory) > _MOST_US * 1e3:
        raise BadInput(f"{key!r}: device_memory_usage: expected bytes, got {memory!r}", path=path)
    return DeviceTime(float(duration), int(memory))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def merge_trace(
    trace: Path,
    times: Mapping[tuple[str, int], DeviceTime],
    *,
    least_us: float = 0.0,
    launch_latency_us: float = 0.0,
) -> MergedTrace:
    """Place the kernels of the operators that have a device time above `least_us`, each at least
    `launch_latency_us` after its operator began.

    Raises BadInput if the trace has none of these operators, or one of them twice."""
    processes: set[int] = set()
    found: dict[tuple[str, int], _Operator] = {}
    left_out = 0
    for event in events_of(trace):
        if type(pid := event.get("pid")) is int:
            processes.add(pid)
        operator = _timed_operator(event, times, trace)
        if operator is None:
            continue
        if operator.key in found:
            name, number = operator.key
            what = f"External id {number}: expected one operator {name}, got two"
            raise BadInput(f"{what}; merge the trace of one process at a time", path=trace)
        found[operator.key] = operator
    if not found:
        what = f"expected operators with the names and External ids of {len(times)} device times"
        raise BadInput(f"{what}, got none: are both files of one run?", path=trace)
    timed = [one for one in found.values() if one.time.duration_us > least_us]
    able = [one for one in timed if one.key[0] not in _WITHOUT_KERNEL]
    left_out = len(found) - len(able)
    leaves = leaves_of(able)
    return MergedTrace(
        placed(leaves, round(launch_latency_us * 1000)),
        parents=len(able) - len(leaves),
        left_out=left_out,
        unknown=len(times.keys() - found.keys()),
        pid=max(processes, default=0) + 1,
    )


def _timed_operator(
    event: Mapping[str, Any], times: Mapping[tuple[str, int], DeviceTime], trace: Path
) -> _Operator | None:
    arguments, name = event.get("args"), event.get("name")
    if event.get("ph") != "X" or not isinstance(arguments, dict) or not isinstance(name, str):
        return None
    number = arguments.get("External id")
    if type(number) is not int or (time := times.get((name, number))) is None:
        return None
    start_ns, length_ns = (nanoseconds_of(event.get(what, 0)) for what in ("ts", "dur"))
    if start_ns is None or length_ns is None or length_ns < 0:
        what = f"{name}: expected ts and dur in microseconds"
        raise BadInput(f"{what}, got {event.get('ts')!r} and {event.get('dur')!r}", path=trace)
    thread = (_hashable(event.get("pid")), _hashable(event.get("tid")))
    return _Operator((name, number), thread, start_ns, start_ns + length_ns, time)


def leaves_of(operators: Iterable[_Operator]) -> list[_Operator]:
    """Return the operators that contain no other one on their thread, by the time of their launch.

    An operator's events also time the operators that it calls; only the innermost launch."""
    threads: dict[tuple[object, object], list[_Operator]] = defaultdict(list)
    for one in operators:
        threads[one.thread].append(one)
    leaves: list[_Operator] = []
    for on_thread in threads.values():
        on_thread.sort(key=lambda one: (one.start_ns, -one.end_ns, one.key[1]))
        # The next operator of a thread is the first that an operator can contain.
        following: Sequence[_Operator | None] = [*on_thread[1:], None]
        for one, after in zip(on_thread, following, strict=True):
            if after is None or after.start_ns >= one.end_ns or after.end_ns > one.end_ns:
                leaves.append(one)
    return sorted(leaves, key=lambda one: (one.start_ns, one.key[1]))


def placed(leaves: Iterable[_Operator], latency_ns: int) -> tuple[PlacedKernel, ...]:
    """Return the kernels on one queue, in the order of their launches: each starts when it has
    arrived and the kernel before it has ended."""
    kernels, free_ns = [], None
    for one in leaves:
        arrives_ns = one.start_ns + latency_ns
        start_ns = arrives_ns if free_ns is None else max(arrives_ns, free_ns)
        free_ns = start_ns + round(one.time.duration_us * 1000)
        kernels.append(PlacedKernel(one, start_ns))
    return tuple(kernels)


def write_merged(trace: Path, merged: MergedTrace, file: IO[str]) -> None:
    """Write a trace with the events of its kernels, event by event, as a JSON object."""
    others: dict[str, Any] = {}
    file.write('{"traceEvents": [\n')
    for event in events_of(trace, others):
        file.write(_json(event, trace) + ",\n")
        if (counter := _memory_counter(event, merged.pid)) is not None:
            file.write(_json(counter, trace) + ",\n")
    for event in _events(merged):
        file.write(_json(event, trace) + ",\n")
    last = {"ph": "M", "name": "process_sort_index", "pid": merged.pid, "tid": 0, "ts": 0}
    file.write(_json({**last, "args": {"sort_index": 1 << 20}}, trace) + "\n]")
    for name, value in others.items():
        file.write(f",\n{_json(name, trace)}: {_json(value, trace)}")
    file.write("}\n")


def _events(merged: MergedTrace) -> Iterator[dict[str, Any]]:
    """Yield the device's process with its queue, and of each kernel its span, the arrow from its
    operator, and the memory that the operator allocated."""
    device = {"pid": merged.pid, "tid": 0}
    for kind, name in (
        ("process_name", "Device, placed from events"),
        ("thread_name", "queue, in launch order"),
    ):
        yield {"ph": "M", "name": kind, **device, "ts": 0, "args": {"name": name}}
    for number, kernel in enumerate(merged.kernels):
        launch, start = kernel.operator, _microseconds(kernel.start_ns)
        pid, tid = launch.thread
        began = _microseconds(launch.start_ns)
        arguments = {
            "External id": launch.key[1],
            "launched": began,
            "placed": "when launched and the queue is free; only the duration is measured",
        }
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": launch.key[0],
            **device,
            "ts": start,
            "dur": launch.time.duration_us,
            "args": arguments,
        }
        flow = {**_LAUNCH, "id": number}
        yield {"ph": "s", **flow, "pid": pid, "tid": tid, "ts": began}
        yield {"ph": "f", "bp": "e", **flow, **device, "ts": start}
        if launch.time.memory_bytes:
            counter = {"ph": "C", "name": "memory of the operator", **device}
            value = {"bytes": launch.time.memory_bytes}
            yield {**counter, "ts": began, "args": value}
            yield {**counter, "ts": _microseconds(launch.end_ns), "args": {"bytes": 0}}


def _memory_counter(event: Mapping[str, Any], pid: int) -> dict[str, Any] | None:
    """Return the counter of a memory event of the device, which torch writes with
    `profile_memory`; None for another event."""
    arguments = event.get("args")
    if event.get("name") != "[memory]" or not isinstance(arguments, dict):
        return None
    allocated = arguments.get("Total Allocated")
    if arguments.get("Device Type") != _DEVICE_TYPE or not _is_number(allocated):
        return None
    counter = {"ph": "C", "name": "device memory", "pid": pid, "tid": 0, "ts": event.get("ts", 0)}
    return {**counter, "args": {"allocated bytes": allocated}}


def _json(value: object, trace: Path) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise BadInput(f"expected finite numbers: {error}", path=trace) from error


def _microseconds(ns: int) -> float | str:
    """Return a time as a number if a float has all its digits, else as a text."""
    number = ns / 1000
    return number if round(number * 1000) == ns else f"{ns // 1000}.{ns % 1000:03d}"


def _hashable(value: object) -> object:
    return value if isinstance(value, int | str) else repr(value)
