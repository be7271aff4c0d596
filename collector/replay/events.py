"""Reading torch.profiler's raw events: the fast way, and only what counts.

`profile.events()` builds a tree in Python, seconds for ten thousand events; the raw list behind
it takes a tenth of that. On a cpu an event that counts is an operator that no other operator
called; on cuda it is a kernel, in the order the device ran them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

SENTINEL_OPERATOR = "aten::bitwise_not"
IDLE_OPERATOR = "aten::is_same_size"  # it compares two lists of lengths, and makes no tensor


@dataclass(frozen=True, slots=True)
class Event:
    """One top-level operator or one kernel. `shape` is that of the first input where the
    operator (or the one that launched the kernel) is what sentinels are made of."""

    name: str
    start_ns: int
    duration_ns: int
    shape: tuple[int, ...] | None = None


def operator_events(raw: Iterable[Any]) -> list[Event]:
    """The operators that no other operator called, of all threads, by their start."""
    spans = sorted(
        ((e.start_ns(), -e.duration_ns(), i, e) for i, e in enumerate(raw) if _is_operator(e)),
        key=lambda span: span[:3],
    )
    ends: dict[int, int] = {}
    found = []
    for start, negative_duration, _, event in spans:
        thread = event.start_thread_id()
        if start < ends.get(thread, 0):
            continue  # inside the operator that called it
        ends[thread] = start - negative_duration
        name = event.name()
        found.append(Event(name, start, -negative_duration, _sentinel_shape(name, event)))
    return found


def kernel_events(raw: Sequence[Any], on_device: Any) -> list[Event]:
    """What ran on the device, by its start; `on_device` is the device type of its events.

    A kernel has no shapes: they are those of the operator that launched it.
    """
    launched_by = {
        event.correlation_id(): shape
        for event in raw
        if event.device_type() != on_device
        and (shape := _sentinel_shape(event.name(), event)) is not None
    }
    kernels = [
        Event(
            event.name(),
            event.start_ns(),
            event.duration_ns(),
            launched_by.get(event.linked_correlation_id()),
        )
        for event in raw
        if event.device_type() == on_device and event.activity_type() in _DEVICE_WORK
    ]
    return sorted(kernels, key=lambda kernel: kernel.start_ns)


_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def _is_operator(event: Any) -> bool:
    return bool(event.activity_type() == "cpu_op")


def _sentinel_shape(name: str, event: Any) -> tuple[int, ...] | None:
    if name != SENTINEL_OPERATOR:
        return None
    shapes = event.shapes()
    return tuple(shapes[0]) if shapes else None
