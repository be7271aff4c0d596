"""The kernels of a trace, each with the shapes with which it was launched.

A device's event has no shapes. They are those of the operator of the host that launched it: in a
trace of torch.profiler both have one External id, in a trace of torch_npu an arrow (`async_npu`)
leads from it to the kernel. A simulation has the shapes in the event.
"""

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.codec.canonical import short_hash
from collector.codec.errors import BadInput
from collector.profiles.trace_events import (
    HOST_COLUMNS,
    TraceKind,
    duration_us_of,
    events_of,
    inputs_of,
    is_host_operator,
    nanoseconds_of,
)

KERNEL_COLUMNS = (
    *("kernel", "input_shapes", "input_types", "launches", "mean_us", "min_us", "max_us"),
    "total_us",
)
_ARROW = "async_npu"
_Shapes = tuple[str, str]  # and dtypes, as in a row
_NO_SHAPES: _Shapes = ("", "")
_Thread = tuple[str, str]  # process and thread, as texts
_Reference = tuple[str, object]  # a rank of a merged trace, and an id that its host counts
_Place = tuple[_Thread, str]  # with the start
_RANK = re.compile(r"\[[^\]]*\] ")  # "[TP00] 800", as SGLang names the processes of merged traces
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST = 80
_MOST_OVERLAP_NS = 1000  # of operators of one thread: times of the day as floats are rounded


@dataclass(slots=True)
class KernelShape:
    """The launches of a kernel with one combination of input shapes and dtypes."""

    kernel: str
    shapes: _Shapes
    launches: int = 0
    total_us: float = 0.0
    min_us: float = float("inf")
    max_us: float = 0.0

    def add(self, took_us: float) -> None:
        self.launches += 1
        self.total_us += took_us
        self.min_us, self.max_us = min(self.min_us, took_us), max(self.max_us, took_us)

    @property
    def cells(self) -> tuple[str, ...]:
        """Return the row of KERNEL_COLUMNS."""
        times_us = (self.total_us / self.launches, self.min_us, self.max_us, self.total_us)
        return (
            *(self.kernel, *self.shapes, str(self.launches)),
            *(f"{us:.6f}".rstrip("0").rstrip(".") for us in times_us),
        )


@dataclass(frozen=True, slots=True)
class TraceKernels:
    """The kernels of a trace by name, most time first. `without_shapes` events have none."""

    kernels: Mapping[str, tuple[KernelShape, ...]]
    launches: int
    without_shapes: int


def read_trace_kernels(path: Path, kind: TraceKind) -> TraceKernels:
    """Return the kernels of a trace whose shapes are known.

    Raises BadInput if no event has shapes, or for a duration that is no number."""
    launched = None if kind.is_simulation or kind.columns == HOST_COLUMNS else _Launched(path, kind)
    found: dict[str, dict[_Shapes, KernelShape]] = defaultdict(dict)
    without = 0
    for place, event in enumerate(events_of(path)):
        if event.get("ph") != "X" or not kind.is_row(event) or kind.is_message(event):
            continue
        if place in kind.impossible:
            continue
        if launched is not None:
            kernel, shapes = str(event.get("name", "")), launched.shapes_of(event)
        elif kind.is_simulation:
            kernel, shapes = _simulated(event)
        else:
            kernel, shapes = str(event.get("name", "")), inputs_of(event)
        if not shapes[0].strip(";"):
            without += 1
            continue
        known = found[kernel]
        one = known.get(shapes) or known.setdefault(shapes, KernelShape(kernel, shapes))
        one.add(duration_us_of(event) or 0.0)  # `trace_kind` has refused what is no number
    if not found:
        what = "expected events with shapes, got none: capture with record_shapes=True"
        raise BadInput(f"{what}; kernel_details.csv has the shapes of NPU kernels", path=path)
    rows = {
        name: tuple(sorted(of.values(), key=lambda one: (-one.total_us, one.shapes)))
        for name, of in sorted(found.items())
    }
    launches = sum(one.launches for of in rows.values() for one in of)
    return TraceKernels(rows, launches, without)


class _Launched:
    """The shapes with which the kernels of a trace were launched, found in two readings: first
    what its kernels refer to, then those operators.

    An arrow starts at the inner operator that calls CANN, which has no inputs: the inputs are those
    of the innermost operator around it that has some. Each process counts its ids by itself; in a
    merged trace of SGLang the names of processes begin with their rank. Raises BadInput if two
    operators of a rank have an id that a kernel refers to, or overlap on one thread: containers and
    hosts count their processes and threads alike. Kernels of several devices with one id, of which
    one operator is known, have no shapes: another one may have launched some of them."""

    def __init__(self, path: Path, kind: TraceKind) -> None:
        numbers: dict[_Reference, object] = {}  # with the process of the device
        shared: set[_Reference] = set()
        starts: dict[_Reference, tuple[_Thread, int]] = {}
        ends: list[tuple[_Reference, _Place]] = []
        for event in events_of(path):
            if event.get("ph") == "X" and kind.is_device(event):
                number, device = _external_id(event), _thread(event)[0]
                if numbers.setdefault(number, device) != device:
                    shared.add(number)
            elif event.get("cat") == _ARROW and event.get("ph") == "f":
                ends.append((_arrow(event), _place(event)))
            elif event.get("cat") == _ARROW and event.get("ph") == "s":
                start = (_thread(event), nanoseconds_of(event.get("ts")) or 0)
                if starts.setdefault(_arrow(event), start) != start:
                    raise _ambiguous(f"arrow {event.get('id')}", path)
        devices: dict[_Reference, str] = {}
        elsewhere = {
            arrow for arrow, ((device, _), _) in ends if devices.setdefault(arrow, device) != device
        }
        self._starts = {
            place: starts[arrow]
            for arrow, place in ends
            if arrow in starts and arrow not in elsewhere
        }
        self._by_number: dict[_Reference, _Shapes] = {}
        self._by_start: dict[tuple[_Thread, int], tuple[int, _Shapes]] = {}  # with the length
        spans: dict[_Thread, list[tuple[int, int]]] = defaultdict(list)  # of operators
        times: dict[_Thread, list[int]] = defaultdict(list)
        for thread, at_ns in sorted(set(self._starts.values())):
            times[thread].append(at_ns)
        operators: dict[_Reference, object] = {}
        for event in events_of(path):
            if not is_host_operator(event):
                continue
            shapes, number = inputs_of(event), _external_id(event)
            if number in numbers and number[1] is not None:  # also where no shapes were recorded
                operator = (_place(event), event.get("name"), shapes)
                if operators.setdefault(number, operator) != operator:
                    raise _ambiguous(f"External id {number[1]}", path)
                if shapes[0] and number not in shared:
                    self._by_number[number] = shapes
            if shapes[0]:
                self._enclose(event, shapes, times, spans)
        for thread, of_thread in spans.items():
            if _overlap(of_thread):
                raise _ambiguous(f"thread {thread[1]} of process {thread[0]}", path)

    def _enclose(
        self,
        event: Mapping[str, Any],
        shapes: _Shapes,
        times: Mapping[_Thread, list[int]],
        spans: Mapping[_Thread, list[tuple[int, int]]],
    ) -> None:
        """Give the starts of arrows in an operator its shapes, if it is the innermost so far, and
        add an operator with such starts to `spans`."""
        thread = _thread(event)
        began_ns, took_ns = (nanoseconds_of(event.get(name)) for name in ("ts", "dur"))
        if began_ns is None or took_ns is None or thread not in times:
            return
        own = times[thread]
        enclosed = own[bisect_left(own, began_ns) : bisect_right(own, began_ns + took_ns)]
        if enclosed:
            spans[thread].append((began_ns, began_ns + took_ns))
        for at_ns in enclosed:
            known = self._by_start.get((thread, at_ns))
            if known is None or took_ns < known[0]:
                self._by_start[thread, at_ns] = (took_ns, shapes)

    def shapes_of(self, event: Mapping[str, Any]) -> _Shapes:
        """Return the shapes of the operator that launched a kernel; empty if it is unknown."""
        if (shapes := self._by_number.get(_external_id(event))) is not None:
            return shapes
        start = self._starts.get(_place(event))
        _, shapes = self._by_start.get(start, (0, _NO_SHAPES)) if start else (0, _NO_SHAPES)
        return shapes


def file_names(kernels: Iterable[str]) -> dict[str, str]:
    """Return a file name for each kernel: its name, or its beginning and a hash if it has other
    characters than a name may have, or differs from another only in case."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for kernel in kernels:
        name = _UNSAFE.sub("_", kernel)[:_LONGEST].strip(".") or "kernel"
        if name != kernel or name.casefold() in taken:
            name = f"{name}-{short_hash(kernel, 8)}"
        taken.add(name.casefold())
        names[kernel] = f"{name}.csv"
    return names


def _simulated(event: Mapping[str, Any]) -> tuple[str, _Shapes]:
    found = event.get("args")
    arguments: Mapping[str, Any] = found if isinstance(found, dict) else {}
    kernel = arguments.get("kernel_type") or event.get("name", "")
    shapes = arguments.get("kernel_shapes") or arguments.get("simulation_shapes") or ""
    return str(kernel), inputs_of({"args": {"Input Dims": shapes}})


def _external_id(event: Mapping[str, Any]) -> _Reference:
    arguments = event.get("args")
    number = arguments.get("External id") if isinstance(arguments, dict) else None
    return _rank_of(event), number if isinstance(number, int | str) else None


def _arrow(event: Mapping[str, Any]) -> _Reference:
    return _rank_of(event), str(event.get("id"))


def _rank_of(event: Mapping[str, Any]) -> str:
    found = _RANK.match(str(event.get("pid")))
    return found[0] if found else ""


def _ambiguous(reference: str, path: Path) -> BadInput:
    what = f"{reference}: expected one operator at a time, got two"
    hint = "is this the merged trace of several ranks? Give the trace of one rank at a time"
    return BadInput(f"{what}: {hint}", path=path)


def _overlap(spans: Iterable[tuple[int, int]]) -> bool:
    """Return whether one of some spans begins within another and ends after it."""
    ends: list[int] = []  # of those that contain the next one, the innermost last
    for began_ns, ended_ns in sorted(spans, key=lambda one: (one[0], -one[1])):
        while ends and ends[-1] <= began_ns + _MOST_OVERLAP_NS:
            ends.pop()
        if ends and ended_ns > ends[-1] + _MOST_OVERLAP_NS:
            return True
        ends.append(ended_ns)
    return False


def _thread(event: Mapping[str, Any]) -> _Thread:
    return str(event.get("pid")), str(event.get("tid"))


def _place(event: Mapping[str, Any]) -> _Place:
    return _thread(event), str(event.get("ts"))
