"""Launches the marks that cut the device's stream, and flushes its cache between two of them."""

from math import prod
from typing import Any

import torch

from collector.case import Case
from collector.errors import CaseRejected
from collector.ops.context import OVER_CACHE
from collector.quality.sentinels import CONTEXT_MARK, FLUSH, TICK, Mark, Sentinel, sentinel_of
from collector.replay.devices import Device


class Marks:
    """The sentinels of one session. Every tensor is made at once, so that a mark is one launch
    and nothing else."""

    def __init__(self, device: Device, cases: int, *, cold: bool):
        sentinels = [Sentinel(mark, i) for mark in (Mark.OPEN, Mark.CLOSE) for i in range(cases)]
        largest = max(prod(s.shape) for s in (*sentinels, TICK, FLUSH, CONTEXT_MARK))
        self._mark = device.mark
        self._buffer = torch.zeros(largest, dtype=device.mark_dtype, device=device.name)
        self._tensors = {s: self._view(s) for s in sentinels}
        self._tick, self._flush = self._view(TICK), self._view(FLUSH)
        self._context = self._view(CONTEXT_MARK)
        self._cache_filler = _filler(device) if cold else None
        self._ticks = cold or device.ticks

    def open(self, ordinal: int) -> None:
        self._mark(self._tensors[Sentinel(Mark.OPEN, ordinal)])

    def close(self, ordinal: int) -> None:
        self._mark(self._tensors[Sentinel(Mark.CLOSE, ordinal)])

    def begin_context(self) -> None:
        """The next launches are those before one of the case, up to that."""
        self._mark(self._context)

    def next_launch(self) -> None:
        """Open one launch of the case; where caches are to be cold, flush them before. On an NPU
        nothing comes between warm launches: each is a row of its own, by its name."""
        if self._cache_filler is not None:
            self._mark(self._flush)
            # Read and written: the C library's memset goes past the cache for large buffers.
            self._cache_filler.add_(1)
        if self._ticks:
            self._mark(self._tick)

    def _view(self, sentinel: Sentinel) -> Any:
        return self._buffer[: prod(sentinel.shape)].view(sentinel.shape)


def check_no_mark(case: Case) -> None:
    """Marks are known by their shapes alone: no tensor of a case may look like one."""
    for slot in (*(case.inputs or ()), *(case.outputs or ())):
        if slot.shape is not None and sentinel_of(slot.shape) is not None:
            raise CaseRejected(f"shape {slot.shape} is reserved for marks: {case.describe()}")


def _filler(device: Device) -> Any:
    return torch.zeros(
        int(device.cache_bytes * OVER_CACHE) // 4, dtype=torch.int32, device=device.name
    )
