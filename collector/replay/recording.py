"""Recorders of a session's launches: torch's profiler or events in its process, or msprof outside.

All have the same interface for the loop: they are started, and notified of every case.
"""

import time
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.autograd.profiler import profile

from collector.codec.errors import CaseRejected
from collector.model.case import Case
from collector.model.record import CaseRecord
from collector.model.stack import EVENTS
from collector.ops.context import OVER_CACHE
from collector.quality.reconcile import CONTEXT_MARK, FLUSH, TICK, Mark, Sentinel, sentinel_of
from collector.replay.devices import (
    Device,
    HostClock,
    KinetoDevice,
    NpuDevice,
    open_kineto_device,
)
from collector.replay.event_device import EventDevice
from collector.replay.journal import JournalWriter
from collector.replay.kineto import Event, Filing, summary_rows
from collector.replay.msprof import write_summary
from collector.replay.spec import SessionSpec

# Limits of a profiler window. The launches before a case are recorded too, and each counts as a
# case.
MAX_CASES = 64
MAX_WORK_S = 10.0


def start_profiler(device: KinetoDevice) -> Any:
    """Return a running profiler that records shapes, since sentinels are recognized by theirs.

    It uses the class that torch.profiler wraps: the wrapper's `start` first imports the whole of
    torch.compile, which takes longer than the rest of a small session."""
    profiler = profile(use_device=device.recorded, record_shapes=True, use_kineto=True)
    profiler.__enter__()
    return profiler


# The window of msprof is the whole process; records at its start may be lost.
_SACRIFICES = 16
SACRIFICES_OF_A_WINDOW = 4
_IDLE_LAUNCHES = 32  # per window; their durations show the profiler's own


class Launching(Protocol):
    """A device on which something can be launched and waited for."""

    name: str  # torch's

    def synchronize(self) -> None: ...


class Recorder:
    """Records the launches between `before_case` and `after_case`. By itself it does nothing:
    msprof records a whole process from outside, and its rows have their own kernel's name."""

    def start(self) -> float:
        """Start, once before the first case, and return the seconds that the profiler takes to
        start."""
        return 0.0

    def before_case(self, *, is_pass: bool = False) -> None:
        """Record that a case begins; the launches of a pass are timed as a whole."""

    def measured(self, ordinal: int, record: CaseRecord, before: Sequence[CaseRecord]) -> None:
        """Record that all launches of a case were issued, each after those before it."""

    def after_case(self) -> None:
        """Record that a case has ended, whether it was measured or not."""

    def close(self) -> None:
        """Close, once after the last case."""


class WindowRecorder(Recorder):
    """Records in windows: each holds a few cases, and becomes a slice of the session's
    op_summary."""

    def __init__(self, directory: Path, journal: JournalWriter):
        self._directory, self._journal = directory, journal
        self._is_open = False
        self._filings: dict[int, Filing] = {}  # of the cases of the open window
        self._began_s = 0.0
        self._slices = 0

    def _open(self) -> None:
        """Open a window."""
        raise NotImplementedError

    def _stop(self) -> None:
        """End the window, after the device has run everything."""
        raise NotImplementedError

    def _events(self) -> list[Event]:
        """Return what ran in the window that has ended, in the device's order."""
        raise NotImplementedError

    def before_case(self, *, is_pass: bool = False) -> None:
        if not self._is_open:
            self._is_open, self._began_s = True, time.monotonic()
            self._open()

    def measured(self, ordinal: int, record: CaseRecord, before: Sequence[CaseRecord]) -> None:
        neighbours = tuple(Filing(one.kernel_type, one.cells) for one in before)
        self._filings[ordinal] = Filing(record.kernel_type, record.cells, neighbours)

    def after_case(self) -> None:
        launched = sum(1 + len(filing.before) for filing in self._filings.values())
        if launched >= MAX_CASES or time.monotonic() - self._began_s >= MAX_WORK_S:
            self.close()

    def close(self) -> None:
        """End the window, write the slice, and then record it in the journal."""
        if not self._is_open:
            return
        path = self._directory / f"slice-{self._slices:03d}.op_summary.csv"
        times = [time.perf_counter()]
        self._stop()
        times.append(time.perf_counter())
        rows = summary_rows(self._events(), self._filings)
        times.append(time.perf_counter())
        sha256 = write_summary(rows, path)
        times.append(time.perf_counter())
        stop_s, read_s, write_s = (b - a for a, b in zip(times, times[1:], strict=False))
        self._journal.write(
            "window",
            slice=path.name,
            sha256=sha256,
            ordinals=sorted(self._filings),
            stop_s=stop_s,
            read_s=read_s,
            write_s=write_s,
        )
        self._is_open, self._filings = False, {}
        self._slices += 1


class KinetoRecorder(WindowRecorder):
    """torch.profiler in windows."""

    def __init__(self, device: KinetoDevice, directory: Path, journal: JournalWriter):
        super().__init__(directory, journal)
        self._device = device
        self._profiler: Any = None
        self._clock: HostClock | None = None  # of a window of passes, instead of the profiler

    def before_case(self, *, is_pass: bool = False) -> None:
        clock = self._device.clock if is_pass else None
        if clock is not self._clock:
            self.close()
            self._clock = clock
        super().before_case()

    def start(self) -> float:
        started = time.perf_counter()
        self._profiler = start_profiler(self._device)
        torch.zeros(1)
        self._stop()
        took_s = time.perf_counter() - started
        self._events()  # a torch whose events cannot be read ends the session before its first case
        return took_s

    def _open(self) -> None:
        if self._clock is not None:
            self._clock.start()
            return
        self._profiler = start_profiler(self._device)
        sacrifice(self._device, SACRIFICES_OF_A_WINDOW)
        # Operators that do nothing. On a GPU they launch no kernel, and marks are used instead.
        tensor = torch.zeros(1, device=self._device.name)
        for _ in range(_IDLE_LAUNCHES):
            torch.is_same_size(tensor, tensor)

    def _stop(self) -> None:
        self._device.synchronize()
        if self._clock is None:
            self._profiler.__exit__(None, None, None)

    def _events(self) -> list[Event]:
        if self._clock is not None:
            return self._clock.stop()
        raw = self._profiler.kineto_results.events()
        self._profiler = None
        return self._device.events(raw)


class EventRecorder(WindowRecorder):
    """The events that a device records itself, read at the end of a window."""

    def __init__(self, device: EventDevice, directory: Path, journal: JournalWriter):
        super().__init__(directory, journal)
        self._device = device

    def _open(self) -> None:
        self._device.begin_window()

    def _stop(self) -> None:
        self._device.synchronize()

    def _events(self) -> list[Event]:
        return self._device.events()


def open_recorded_device(
    spec: SessionSpec, directory: Path, journal: JournalWriter
) -> tuple[Device, Recorder]:
    """Open the device of a session, and its recorder. Raises BadInput if the device does not
    exist."""
    if spec.backend == "npu":
        return NpuDevice(spec), Recorder()
    if spec.backend == EVENTS:
        timed = EventDevice(spec)
        return timed, EventRecorder(timed, directory, journal)
    device = open_kineto_device(spec)
    return device, KinetoRecorder(device, directory, journal)


def sacrifice(device: Launching, launches: int = _SACRIFICES) -> None:
    """Issue launches at the start of a recording, where records may be lost."""
    tensor = torch.zeros(1, device=device.name)
    for _ in range(launches):
        torch.neg(tensor)
    device.synchronize()


class Marks:
    """The sentinels of one session. Every tensor is made in advance, so that a mark is exactly
    one launch."""

    def __init__(self, device: Device, cases: int, *, cold: bool):
        sentinels = [Sentinel(mark, i) for mark in (Mark.OPEN, Mark.CLOSE) for i in range(cases)]
        largest = max(prod(s.shape) for s in (*sentinels, TICK, FLUSH, CONTEXT_MARK))
        self._mark = device.mark
        self._buffer = torch.zeros(largest, dtype=device.mark_dtype, device=device.name)
        self._tensors = {s: self._view(s) for s in sentinels}
        self._tick, self._flush = self._view(TICK), self._view(FLUSH)
        self._context = self._view(CONTEXT_MARK)
        filler = (int(device.cache_bytes * OVER_CACHE) // 4,)
        self._cache_filler = (
            torch.zeros(filler, dtype=torch.int32, device=device.name) if cold else None
        )
        self._ticks = cold or device.ticks

    def open(self, ordinal: int) -> None:
        self._mark(self._tensors[Sentinel(Mark.OPEN, ordinal)])

    def close(self, ordinal: int) -> None:
        self._mark(self._tensors[Sentinel(Mark.CLOSE, ordinal)])

    def begin_context(self) -> None:
        """Mark the start of the launches that precede one launch of the case, and of that
        launch."""
        self._mark(self._context)

    def next_launch(self) -> None:
        """Open one launch of the case; for cold caches, flush them before. On an NPU no mark
        separates warm launches: each is a row of its own, with its name."""
        if self._cache_filler is not None:
            self._mark(self._flush)
            # Read and write: the C library's memset bypasses the cache for large buffers.
            self._cache_filler.add_(1)
        if self._ticks:
            self._mark(self._tick)

    def _view(self, sentinel: Sentinel) -> Any:
        return self._buffer[: prod(sentinel.shape)].view(sentinel.shape)


def check_no_mark(case: Case) -> None:
    """Raise CaseRejected if a tensor of the case has the shape of a mark, since marks are
    recognized by their shapes alone."""
    for slot in (*(case.inputs or ()), *(case.outputs or ())):
        if slot.shape is not None and sentinel_of(slot.shape) is not None:
            raise CaseRejected(f"shape {slot.shape} is reserved for marks: {case.describe()}")
