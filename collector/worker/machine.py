"""What a worker asks of the machine that it runs on: its stack, its room, its instrument."""

import os
import platform
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from collector.comm.gang import StartRanks
from collector.host.machine import free_bytes
from collector.host.peaks_file import kept_peaks
from collector.host.stack import device_serial, local_stack
from collector.measuring.instrument import (
    Instrument,
    OnProgress,
    ReplayInstrument,
    SessionSettings,
)
from collector.model.plan import Plan
from collector.model.stack import Stack
from collector.worker.gang_instrument import GangInstrument


class Machine(Protocol):
    """What a worker asks of its machine."""

    @property
    def node(self) -> str:
        """Its name, as provenance has it."""

    def free_bytes(self, folder: Path) -> int:
        """What can still be written below a folder."""

    def stack(self, plan: Plan) -> Stack:
        """What the plan's device and software are here."""

    def serial(self, plan: Plan, device: int) -> str | None:
        """The number that the device's maker gave it, where it tells one."""

    def instrument(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
    ) -> Instrument:
        """What measures on the device; it may write below `scratch`."""

    def gang(
        self,
        plan: Plan,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks,
    ) -> Instrument:
        """The same of as many ranks at once, on the first devices or on the cores of a cpu, and on
        those of other machines where `start` says so."""


class ThisMachine:
    """The one that this process runs on."""

    @property
    def node(self) -> str:
        return this_node(os.environ)

    def free_bytes(self, folder: Path) -> int:
        return free_bytes(folder)

    def stack(self, plan: Plan) -> Stack:
        return local_stack(plan.backend, plan.stack.device)

    def serial(self, plan: Plan, device: int) -> str | None:
        return device_serial(plan.backend, device)

    def instrument(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
    ) -> Instrument:
        settings = SessionSettings(
            plan.backend,
            plan.stack,
            plan.measure,
            plan.limits,
            device,
            peaks=kept_peaks(plan.stack),
        )
        return ReplayInstrument(settings, scratch, stop, on_progress)

    def gang(
        self,
        plan: Plan,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks,
    ) -> Instrument:
        settings = SessionSettings(plan.backend, plan.stack, plan.measure, plan.limits)
        return GangInstrument(settings, ranks, scratch, stop, on_progress, start)


def this_node(environment: Mapping[str, str]) -> str:
    """The machine's name. A pod's own hostname is the pod's: there Kubernetes says which node it is
    on, in NODE_NAME."""
    return environment.get("NODE_NAME") or platform.node()
