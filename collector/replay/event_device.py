"""A device that is timed by its own events: any accelerator of torch whose module has `Event`.

Two events enclose each launch. Their distance is the device's time of the launch, and what the
events and the launch themselves take. Launches without work show the latter: their median is
subtracted from each duration (`collector/replay/results.py`); the recorded rows have the distances
as they are.

`python -m collector.replay.event_device` prints the devices that torch has here.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from collector.codec.errors import BadInput
from collector.codec.text import MIB
from collector.host.event_devices import EventDevices, event_device_name
from collector.model.case import Case
from collector.model.stack import EVENTS
from collector.ops.spec import OpSpec
from collector.replay.calls import Launcher, ReferenceCalls
from collector.replay.devices import Accelerator
from collector.replay.kineto import EMPTY_LAUNCH, SENTINEL_OPERATOR, Event
from collector.replay.spec import SessionSpec

_EMPTY_LAUNCHES = 64  # of a window
_CACHE_BYTES = 192 * MIB  # of a device that does not report its cache


@dataclass(slots=True)
class _Timed:
    """A launch between two events, or a mark, which is no launch and has a shape."""

    name: str
    begin: Any = None
    end: Any = None
    shape: tuple[int, ...] | None = None


class EventDevice(Accelerator):
    """Torch's current accelerator. Its operators are the references in plain torch."""

    backend = EVENTS

    def __init__(self, spec: SessionSpec):
        self._kind, module = open_accelerator()
        super().__init__(module, spec.device)
        self.name = f"{self._kind}:{spec.device}"
        here = event_device_name(self._kind, _name_of(module, spec.device))
        if spec.stack and spec.stack.device != here:
            what = f"expected {spec.stack.device}, but torch reports {here}"
            raise BadInput(f"events device {spec.device}: {what}")
        if hasattr(module, "set_device"):
            module.set_device(spec.device)
        self.calls = _TimedCalls(self)
        self.cache_bytes = self._reported_cache_bytes() or _CACHE_BYTES
        self._nothing = torch.zeros(1, device=self.name)
        self._timed: list[_Timed] = []
        # The event from which the times of a window count, and the host's time of it.
        self._first: Any = None
        self._first_ns = 0

    def mark(self, tensor: Any) -> None:
        """Note a mark. Nothing is launched, since this device records what it launches itself."""
        self._timed.append(_Timed(SENTINEL_OPERATOR, shape=tuple(tensor.shape)))

    def begin_window(self) -> None:
        """Begin to record launches, with some that have no work."""
        self._timed = []
        self.synchronize()
        self._first, self._first_ns = self._recorded(), time.time_ns()
        for _ in range(_EMPTY_LAUNCHES):
            self.timed(EMPTY_LAUNCH, self._nothing.neg_)

    def timed(self, name: str, launch: Callable[[], Any]) -> Any:
        """Launch between two events."""
        begin = self._recorded()
        result = launch()
        self._timed.append(_Timed(name, begin, self._recorded()))
        return result

    def events(self) -> list[Event]:
        """Return the launches and marks of the window, after the device has run them."""
        found, last_ns = [], self._first_ns
        for one in self._timed:
            start_ns, took_ns = last_ns + 1, 0
            if one.begin is not None:
                # A 32-bit number of milliseconds: not exact enough to order short launches.
                since_ns = round(self._first.elapsed_time(one.begin) * 1e6)
                start_ns = max(start_ns, self._first_ns + since_ns)
                took_ns = max(0, round(one.begin.elapsed_time(one.end) * 1e6))
            found.append(Event(one.name, start_ns, took_ns, one.shape))
            last_ns = start_ns
        self._timed = []
        return found

    def free_bytes(self) -> int | None:
        known = all(
            hasattr(self._module, name)
            for name in ("mem_get_info", "memory_reserved", "memory_allocated")
        )
        return super().free_bytes() if known else None

    def release(self) -> None:
        if hasattr(self._module, "empty_cache"):
            self._module.empty_cache()

    def _recorded(self) -> Any:
        event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def _reported_cache_bytes(self) -> int:
        if not hasattr(self._module, "get_device_properties"):
            return 0
        properties = self._module.get_device_properties(self._index)
        return int(getattr(properties, "L2_cache_size", 0))


class _TimedCalls(ReferenceCalls):
    """Launches of references in plain torch, each between two events of the device."""

    def __init__(self, device: EventDevice):
        self._device = device

    def of(self, op: OpSpec, case: Case) -> Launcher:
        launcher, timed = super().of(op, case), self._device.timed

        def run(*args: Any, **kwargs: Any) -> Any:
            return timed(case.kernel_type, partial(launcher.run, *args, **kwargs))

        return Launcher(launcher.build, run, launcher.library)


def open_accelerator() -> tuple[str, Any]:
    """Return the type of torch's accelerator and its module. Raises BadInput if there is none, or
    if its events cannot time."""
    if not hasattr(torch, "accelerator"):
        raise BadInput(
            f"torch {torch.__version__} cannot name its accelerator: install 2.6 or later"
        )
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if found is None:
        raise BadInput("torch has no accelerator here: install the extension of its device")
    module = torch.get_device_module(found.type)
    event = getattr(module, "Event", None)
    lacking = [name for name in ("record", "elapsed_time") if not hasattr(event, name)]
    if event is None or lacking:
        raise BadInput(f"torch.{found.type} has no Event with a time: it cannot be measured")
    return found.type, module


def _name_of(module: Any, index: int) -> str:
    return str(module.get_device_name(index)) if hasattr(module, "get_device_name") else "device"


def main() -> int:
    """Print the devices as JSON, or the reason why there are none."""
    try:
        kind, module = open_accelerator()
        count = int(module.device_count())
        if not count:
            raise BadInput(f"torch.{kind} has no device")
        found = EventDevices(kind, _name_of(module, 0), count)
    except BadInput as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(json.dumps(asdict(found)) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
