"""Who records the launches of a session: torch's profiler in its process, or msprof outside it.

To the loop both are the same: something that is started, and hears of every case.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch

from collector.record import CaseRecord
from collector.replay.devices import Device, KinetoDevice, open_kineto_device
from collector.replay.journal import JournalWriter
from collector.replay.kineto import Filing
from collector.replay.spec import SessionSpec
from collector.replay.windows import ProfilerWindow, start_profiler, stop_profiler

# msprof's window is the whole process, and its head is the lossy one.
_SACRIFICES = 16
SACRIFICES_OF_A_WINDOW = 4
_IDLE_LAUNCHES = 32  # a window, whose durations tell the profiler's own


class Launching(Protocol):
    """A device as far as something can be launched on it and waited for."""

    name: str  # torch's

    def synchronize(self) -> None: ...


class Recorder(Protocol):
    """Records what is launched between `before_case` and `after_case`."""

    def start(self) -> float:
        """Once, before the first case: the seconds that the profiler takes to start."""

    def before_case(self) -> None: ...

    def measured(self, ordinal: int, record: CaseRecord, before: Sequence[CaseRecord]) -> None:
        """All launches of a case were issued, each behind those before it."""

    def after_case(self) -> None:
        """A case is through, whether it was measured or not."""

    def close(self) -> None:
        """Once, after the last case."""


class KinetoRecorder:
    """torch.profiler in windows: each becomes a slice of the session's op_summary."""

    def __init__(self, device: KinetoDevice, directory: Path, journal: JournalWriter):
        self._device = device
        self._directory = directory
        self._journal = journal
        self._window: ProfilerWindow | None = None
        self._slices = 0

    def start(self) -> float:
        started = time.perf_counter()
        stop_profiler(start_profiler(self._device))
        return time.perf_counter() - started

    def before_case(self) -> None:
        if self._window is None:
            self._window = ProfilerWindow(self._device)
            sacrifice(self._device, SACRIFICES_OF_A_WINDOW)
            _idle(self._device)

    def measured(self, ordinal: int, record: CaseRecord, before: Sequence[CaseRecord]) -> None:
        if self._window is not None:
            neighbours = tuple(Filing(one.kernel_type, one.cells) for one in before)
            filing = Filing(record.kernel_type, record.cells, neighbours)
            self._window.filings[ordinal] = filing

    def after_case(self) -> None:
        if self._window is not None and self._window.is_full:
            self.close()

    def close(self) -> None:
        if self._window is not None:
            name = f"slice-{self._slices:03d}.op_summary.csv"
            self._slices += 1
            self._window.close(self._directory / name, self._journal)
            self._window = None


class OutsideRecorder:
    """msprof records the whole process from outside: there is nothing to do in it."""

    def start(self) -> float:
        return 0.0

    def before_case(self) -> None:
        """msprof is told nothing."""

    def measured(self, ordinal: int, record: CaseRecord, before: Sequence[CaseRecord]) -> None:
        """The rows carry their own kernel's name."""

    def after_case(self) -> None:
        """msprof is told nothing."""

    def close(self) -> None:
        """msprof ends after the process."""


def open_recorded_device(
    spec: SessionSpec, directory: Path, journal: JournalWriter
) -> tuple[Device, Recorder]:
    """The device of a session and what records it. BadInput where it is not there."""
    if spec.backend == "npu":
        from collector.replay.npu import NpuDevice

        return NpuDevice(spec), OutsideRecorder()
    device = open_kineto_device(spec)
    return device, KinetoRecorder(device, directory, journal)


def sacrifice(device: Launching, launches: int = _SACRIFICES) -> None:
    """Launches for the lossy head of a recording: nothing is lost with them."""
    tensor = torch.zeros(1, device=device.name)
    for _ in range(launches):
        torch.neg(tensor)
    device.synchronize()


def _idle(device: Launching) -> None:
    """Operators that do nothing; on a gpu they launch no kernel, and marks stand for them."""
    tensor = torch.zeros(1, device=device.name)
    for _ in range(_IDLE_LAUNCHES):
        torch.is_same_size(tensor, tensor)
