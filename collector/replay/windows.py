"""Profiler windows: each holds a few cases, and becomes one slice of the session's op_summary. What
runs before a case is recorded as well, and counts as if it were one."""

import time
from pathlib import Path
from typing import Any

from torch.autograd.profiler import profile

from collector.replay.devices import KinetoDevice
from collector.replay.journal import JournalWriter
from collector.replay.kineto import Filing, summary_rows
from collector.replay.summary_files import write_summary

MAX_CASES = 64
MAX_WORK_S = 10.0


class ProfilerWindow:
    """One window, from the profiler's start to its slice on disk."""

    def __init__(self, device: KinetoDevice):
        self.filings: dict[int, Filing] = {}
        self._device = device
        self._profiler = start_profiler(device)
        self._started = time.monotonic()

    @property
    def is_full(self) -> bool:
        launched = sum(1 + len(filing.before) for filing in self.filings.values())
        return launched >= MAX_CASES or time.monotonic() - self._started >= MAX_WORK_S

    def close(self, path: Path, journal: JournalWriter) -> None:
        """Stop the profiler, write the slice, and only then say so in the journal."""
        times = [time.perf_counter()]
        self._device.synchronize()
        stop_profiler(self._profiler)
        times.append(time.perf_counter())
        rows = summary_rows(self._device.events(_raw_events(self._profiler)), self.filings)
        times.append(time.perf_counter())
        sha256 = write_summary(rows, path)
        times.append(time.perf_counter())
        stop_s, read_s, write_s = (b - a for a, b in zip(times, times[1:], strict=False))
        journal.write(
            "window",
            slice=path.name,
            sha256=sha256,
            ordinals=sorted(self.filings),
            stop_s=stop_s,
            read_s=read_s,
            write_s=write_s,
        )


def start_profiler(device: KinetoDevice) -> Any:
    """A running profiler that records shapes, since sentinels are told by theirs.

    What torch.profiler wraps: its own `start` imports the whole of torch.compile first, which takes
    longer than all the rest of a small session.
    """
    profiler = profile(use_device=device.recorded, record_shapes=True, use_kineto=True)
    profiler.__enter__()
    return profiler


def stop_profiler(profiler: Any) -> None:
    """End what was started."""
    profiler.__exit__(None, None, None)


def _raw_events(profiler: Any) -> Any:
    return profiler.kineto_results.events()
