"""What tells that the launches of a case were disturbed, from a session's journal and records."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from collector.measurement import DeviceState, Disturbance
from collector.profiles.op_summary import KernelLaunch
from collector.quality.device_condition import around, idle_clocks, states, told_by
from collector.quality.launch_gaps import gap_share
from collector.replay.journal import CaseEntry, Journal
from collector.replay.spec import SessionSpec

_START = attrgetter("start_ns")


class CaseWindows:
    """Those of a session; `launches` are all that were recorded, in order of their start."""

    def __init__(self, spec: SessionSpec, journal: Journal, launches: Sequence[KernelLaunch]):
        self._launches = launches
        self._readings = journal.readings
        self._idle_mhz = idle_clocks(journal.readings)
        self._is_cpu = spec.backend == "cpu"
        self._has_gaps = spec.backend == "npu" or spec.measure.cache == "warm"

    def states(self, entry: CaseEntry) -> tuple[DeviceState, DeviceState]:
        """Clock and temperature before and behind the launches of a case."""
        return states(self._readings, entry.launching_s, entry.looking_s)

    def disturbance(self, entry: CaseEntry, repeats: Sequence[KernelLaunch]) -> Disturbance | None:
        """What disturbed the repeats: threads of a cpu tell launch by launch, other devices before
        and behind all of them."""
        if self._is_cpu:
            return entry.watch.disturbance
        return told_by(
            around(self._readings, entry.launching_s, entry.looking_s),
            len(repeats),
            idle_mhz=self._idle_mhz,
            gap_share=self._gap_share(repeats) if self._has_gaps else None,
        )

    def _gap_share(self, repeats: Sequence[KernelLaunch]) -> float | None:
        """How much of the time between repeats nothing ran that was recorded. On a gpu the mark of
        a launch, a microsecond or two, is a part of the gap before it, and what flushes its caches
        would be: nothing is told of cold ones."""
        first = bisect_left(self._launches, repeats[0].start_ns, key=_START)
        last = bisect_right(self._launches, repeats[-1].start_ns, key=_START)
        return gap_share((one.start_ns, one.duration_us) for one in self._launches[first:last])
