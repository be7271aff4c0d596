"""Passes as events of a Chrome trace, which Perfetto opens.

A pass is a process; its host and each of its streams have a track."""

from collections.abc import Iterable, Iterator
from typing import Any

from collector.timeline.call_graph import HOST
from collector.timeline.pass_time import Span


def trace_events(name: str, number: int, work: Iterable[Span]) -> Iterator[dict[str, Any]]:
    """Yield the events of a pass, the process `number` of its trace."""
    listed = list(work)
    yield _named("process_name", number, 0, name)
    for lane in sorted({one.lane for one in listed} | {HOST}):
        text = "host" if lane == HOST else f"stream {lane}"
        yield _named("thread_name", number, _track(lane), text)
    for one in listed:
        start_ns, end_ns = round(1000 * one.start_us), round(1000 * one.end_us)
        yield {
            "ph": "X",
            "name": one.quantity.name,
            "cat": one.quantity.cause.value,
            "pid": number,
            "tid": _track(one.lane),
            "ts": start_ns / 1000,
            "dur": (end_ns - start_ns) / 1000,
            "args": {
                "critical path": one.is_critical,
                "interval_us": [one.quantity.low_us, one.quantity.high_us],
            },
        }


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _track(lane: int) -> int:
    return lane - HOST
