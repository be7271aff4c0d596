"""A device of torch, `eventful`, whose memory and arithmetic are the CPU's.

It has the minimum of an extension of PyTorch: tensors, operators, a device module with `Event`, and
the entry point by which torch loads it. It has no profiler, no streams, no generator.
"""

import ctypes
import time
from pathlib import Path
from typing import Any

from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "eventful"
# The cost of an event on this device: spent by `record`, so that it is part of each timing.
RECORD_S = 20e-6


class Event:
    """A time of the host's clock: the device runs in step with its host."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._is_timing = enable_timing
        self._at_s: float | None = None

    def record(self, stream: Any = None) -> None:
        end_s = time.perf_counter() + RECORD_S
        while time.perf_counter() < end_s:
            pass
        self._at_s = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return self._at_s is not None

    def elapsed_time(self, end: "Event") -> float:
        if self._at_s is None or end._at_s is None or not self._is_timing:
            raise RuntimeError("both events must be recorded, with enable_timing")
        return (end._at_s - self._at_s) * 1000


class Module:
    """The device module: torch.eventful."""

    Event = Event

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, index: int) -> None:
        pass

    def get_device_name(self, index: int = 0) -> str:
        return "Eventful 1"

    def synchronize(self, index: int = 0) -> None:
        pass

    def manual_seed_all(self, seed: int) -> None:
        pass

    def _is_in_bad_fork(self) -> bool:
        return False


def _autoload() -> None:
    """Register the device; torch calls this by the entry point `torch.backends`."""
    _setup_privateuseone_for_python_backend(NAME, Module())
    ctypes.CDLL(str(Path(__file__).with_name("libeventful.so")))
