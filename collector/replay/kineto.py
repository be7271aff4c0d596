"""Conversion of a window's events to rows of op_summary, one row for each launch of the reference.

Pure functions. A CPU and a GPU have no kernel of the requested name, so a launch is filed under
that name. Its duration is the sum of the time of its operators (or kernels), without gaps. The
sequence of operators that a case's launches have in common is their signature. Everything outside
the signature is a row of its own. A launch that cannot be identified with certainty is not written,
so that the case does not reconcile.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from collector.model.vocabulary import INPUT_DTYPES, INPUT_FORMATS, INPUT_SHAPES
from collector.quality import reconcile
from collector.quality.reconcile import Mark, Sentinel
from collector.replay.msprof import SummaryRow

# Fast reading of torch.profiler's raw events, restricted to those that count.
#
# `profile.events()` builds a tree in Python, which takes seconds for ten thousand events; reading
# the raw list behind it takes a tenth of that. On a CPU an event that counts is an operator that no
# other operator called; on CUDA it is a kernel, in the order in which the device ran them.

SENTINEL_OPERATOR = "aten::bitwise_not"
EMPTY_LAUNCH = "OpmeterEmptyLaunch"  # the type of launches without work between two events
IDLE_OPERATOR = "aten::is_same_size"  # compares two lists of lengths, and makes no tensor


@dataclass(frozen=True, slots=True)
class Event:
    """One top-level operator or one kernel. `shape` is that of the first input, if the operator
    (or the one that launched the kernel) is the operator of sentinels."""

    name: str
    start_ns: int
    duration_ns: int
    shape: tuple[int, ...] | None = None


def operator_events(raw: Iterable[Any]) -> list[Event]:
    """Return the operators that no other operator called, of all threads, by start time."""
    operators = (event for event in raw if _is_work(event, _HOST_WORK))
    spans = sorted(
        ((e.start_ns(), -e.duration_ns(), i, e) for i, e in enumerate(operators)),
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
    """Return what ran on the device, by start time; `on_device` is the device type of its events.

    A kernel has no shapes: they are those of the operator that launched it."""
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
        if event.device_type() == on_device and _is_work(event, _DEVICE_WORK)
    ]
    return sorted(kernels, key=lambda kernel: kernel.start_ns)


_HOST_WORK = frozenset({"cpu_op"})
_DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})


def _is_work(event: Any, kinds: frozenset[str]) -> bool:
    """Return whether an event is of one of these kinds. Torch 2.9 and 2.10 do not report the kind:
    with the activities that a session records, all other events are annotations."""
    if hasattr(event, "activity_type"):
        return event.activity_type() in kinds
    return not event.is_user_annotation()


def _sentinel_shape(name: str, event: Any) -> tuple[int, ...] | None:
    if name != SENTINEL_OPERATOR:
        return None
    shapes = event.shapes()
    return tuple(shapes[0]) if shapes else None


_MORE = re.compile(r" and ([0-9]+) more$")


@dataclass(frozen=True, slots=True)
class Filing:
    """Kernel type and cells that a case's launches are filed under, and those of the launches
    before each, in order."""

    kernel_type: str
    cells: Mapping[str, str]
    before: tuple["Filing", ...] = ()


Marked = tuple[Event, Sentinel | None]


def summary_rows(events: Sequence[Event], filings: Mapping[int, Filing]) -> list[SummaryRow]:
    """Return the rows of a window's events, in the device's order. `filings` is by ordinal."""
    shapes = [event.shape for event in events]
    marks = [None if shape is None else reconcile.sentinel_of(shape) for shape in shapes]
    windows = reconcile.find_windows((i, mark) for i, mark in enumerate(marks) if mark is not None)
    known = [window for window in windows.good if window.ordinal in filings]
    marked = list(zip(events, marks, strict=True))
    rows, position = [], 0
    for window in known:
        upto = window.opened + 1
        rows += _strays(marked[position:upto])
        rows += _case_rows(marked[window.opened + 1 : window.closed], filings[window.ordinal])
        position = window.closed
    return rows + _strays(marked[position:])


def _case_rows(marked: Sequence[Marked], filing: Filing) -> list[SummaryRow]:
    launches, rest = _cut(marked)
    rows = _strays(rest)
    for place, filed in enumerate((*filing.before, filing)):
        own = [launch for at, launch in launches if at == place]
        # The signature: the first of the most frequent ones. A tick without events is no launch.
        sequences = Counter(tuple(event.name for event in launch) for launch in own if launch)
        signature = sequences.most_common(1)[0][0] if sequences else ()
        for launch in own:
            matched, extra = _match(launch, signature)
            rows += [_operator_row(event) for event in extra]
            if matched:
                more = f" and {len(matched) - 1} more" if len(matched) > 1 else ""
                name, took_ns = matched[0].name + more, sum(one.duration_ns for one in matched)
                start_ns = matched[0].start_ns
                rows.append(SummaryRow(name, filed.kernel_type, filed.cells, start_ns, took_ns))
    return sorted(rows, key=lambda row: row.start_ns)


def _cut(marked: Iterable[Marked]) -> tuple[list[tuple[int, list[Event]]], list[Marked]]:
    """Return the launches between ticks, each with its index after the mark of its context, and
    the events that belong to no launch; flushes are dropped."""
    launches: list[tuple[int, list[Event]]] = []
    rest: list[Marked] = []
    flushing, is_open = False, False
    place, step = 0, 0
    for event, mark in marked:
        if mark is None:
            if flushing:
                continue
            if is_open:
                launches[-1][1].append(event)
            else:
                rest.append((event, mark))
        elif mark.mark is Mark.TICK:
            launches.append((place, []))
            flushing, is_open = False, True
            place += step
        elif mark.mark is Mark.FLUSH:
            flushing = True
        else:
            rest.append((event, mark))
            if mark.mark is Mark.CONTEXT:
                is_open, place, step = False, 0, 1
    return launches, rest


def _match(launch: Sequence[Event], signature: tuple[str, ...]) -> tuple[list[Event], list[Event]]:
    """Return the launch's own events, and the others. There are no own events if one of the
    signature is missing, or occurs more often, since it cannot be decided which one is the
    launch's."""
    matched: list[Event] = []
    extra: list[Event] = []
    for event in launch:
        expects = len(matched) < len(signature) and signature[len(matched)] == event.name
        (matched if expects else extra).append(event)
    names = set(signature)
    foreign = [event for event in extra if event.name not in names]
    if len(matched) < len(signature) or len(foreign) < len(extra):
        return [], foreign
    return matched, foreign


def _strays(marked: Iterable[Marked]) -> list[SummaryRow]:
    """Return the rows of events that are part of no launch; ticks and flush marks have none."""
    rows = []
    for event, mark in marked:
        if mark is None:
            rows.append(_operator_row(event))
        elif mark.mark not in (Mark.TICK, Mark.FLUSH):
            shape = ",".join(map(str, mark.shape))
            cells = {INPUT_SHAPES: f'"{shape}"', INPUT_DTYPES: "UINT8", INPUT_FORMATS: "ND"}
            times = (event.start_ns, event.duration_ns)
            rows.append(SummaryRow(event.name, reconcile.SENTINEL_TYPE, cells, *times))
    return rows


def _operator_row(event: Event) -> SummaryRow:
    return SummaryRow(event.name, event.name, {}, event.start_ns, event.duration_ns)


def operator_count(name: str) -> int:
    """Return the number of operators (or kernels) that a launch of this name consists of."""
    more = _MORE.search(name)
    return 1 + int(more[1]) if more else 1
