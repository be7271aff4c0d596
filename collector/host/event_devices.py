"""Devices that torch has by an extension, found by a process that imports torch and reports them.

An extension declares the entry point `torch.backends`, by which torch loads it. Its device has
no tool of a driver that lists it, so that torch is queried.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from collector.codec.canonical import decode_value, json_object
from collector.codec.errors import BadInput, HostFault, NoDevice
from collector.model.stack import EVENTS

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"  # 1: torch loads the extensions that are installed
_PROBE = "collector.replay.event_device"
_LIMIT_S = 300.0  # torch from a cold disk, and the start of a driver


@dataclass(frozen=True, slots=True)
class EventDevices:
    """The devices of torch's current accelerator: its type (`cuda`, or the name of an extension's
    device), the name of the first device, and how many there are."""

    kind: str
    name: str
    count: int

    @property
    def device(self) -> str:
        return event_device_name(self.kind, self.name)

    @property
    def extensions(self) -> str:
        """Return the extensions of torch that are installed, with their versions."""
        found = {
            f"{point.dist.name} {point.dist.version}"
            for point in entry_points(group="torch.backends")
            if point.dist is not None
        }
        return ", ".join(sorted(found))


def autoload_of(backend: str) -> str:
    """Return the value of AUTOLOAD for a session: only `events` needs an extension, and an
    installed torch_npu would load itself, which requires CANN."""
    return "1" if backend == EVENTS else "0"


def event_device_name(kind: str, name: str) -> str:
    """Return `EVENTS_{kind}_{name}`, in characters that a folder name may have: the device of a
    stack."""
    text = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{kind}_{name}").strip("_.")
    return f"EVENTS_{text}"[:100].rstrip("_.")


@cache
def find_event_devices() -> EventDevices:
    """Return the devices of torch's accelerator. Raises NoDevice, with the reason, if it has none
    or if its events have no time, HostFault if it cannot be queried."""
    command = [sys.executable, "-P", "-m", _PROBE]
    environment = {**os.environ, AUTOLOAD: "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            stdin=subprocess.DEVNULL,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostFault(
            f"backend {EVENTS}: torch cannot be asked for its devices: {error}"
        ) from error
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason"])[-1]
        raise NoDevice(f"backend {EVENTS}: {reason}")
    try:
        last = (done.stdout.strip().splitlines() or [""])[-1]
        value = json_object(last.encode(), what="devices of torch", key=_PROBE)
        return decode_value(EventDevices, value, what="devices of torch", key=_PROBE)
    except BadInput as error:
        raise HostFault(f"backend {EVENTS}: {error}") from error
