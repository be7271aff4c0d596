"""The machine that a worker runs on: its stack, its free space, its instruments."""

import threading
from pathlib import Path
from typing import Protocol

from collector.comm.gang import StartRanks
from collector.host.machine import this_node
from collector.host.peaks_file import stored_peaks
from collector.host.space import free_bytes
from collector.host.stack import device_serial, local_stack
from collector.measuring.instrument import (
    Instrument,
    Keep,
    OnProgress,
    ReplayInstrument,
    SessionSettings,
)
from collector.model.plan import Plan
from collector.model.stack import Stack
from collector.ops.own import OperatorFile
from collector.worker.attempt import Attempt
from collector.worker.gang_instrument import GangInstrument
from collector.worker.rehearsal import rehearse


class Machine(Protocol):
    """The properties of a machine that a worker needs."""

    @property
    def node(self) -> str:
        """Return the name of the machine, as in provenance."""

    def free_bytes(self, folder: Path) -> int:
        """Return how many bytes can still be written below a folder."""

    def stack(self, plan: Plan) -> Stack:
        """Return the stack of this machine for the plan's device."""

    def serial(self, plan: Plan, device: int) -> str | None:
        """Return the serial number of the device; None if the device does not report one."""

    def rehearse(self, attempt: Attempt, scratch: Path) -> None:
        """Raise an error if results cannot be read and stored here."""

    def instrument(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        keep: Keep,
        operators: tuple[OperatorFile, ...],
    ) -> Instrument:
        """Return the instrument that measures on the device; it may write below `scratch`. `keep`
        stores the records of a session before they are read; sessions execute `operators`."""

    def gang(
        self,
        plan: Plan,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks,
        keep: Keep,
    ) -> Instrument:
        """Return the instrument of `ranks` ranks at once, on the first devices or on the cores of a
        CPU, and on those of other machines if `start` starts them there."""


class ThisMachine:
    """The machine that this process runs on."""

    @property
    def node(self) -> str:
        return this_node()

    def free_bytes(self, folder: Path) -> int:
        return free_bytes(folder)

    def stack(self, plan: Plan) -> Stack:
        return local_stack(plan.backend, plan.stack.device)

    def serial(self, plan: Plan, device: int) -> str | None:
        return device_serial(plan.backend, device)

    def rehearse(self, attempt: Attempt, scratch: Path) -> None:
        rehearse(attempt, scratch)

    def instrument(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        keep: Keep,
        operators: tuple[OperatorFile, ...],
    ) -> Instrument:
        settings = SessionSettings(
            plan.backend,
            plan.stack,
            plan.measure,
            plan.limits,
            device,
            peaks=stored_peaks(plan.stack),
            operators=operators,
        )
        return ReplayInstrument(settings, scratch, stop, on_progress, keep=keep)

    def gang(
        self,
        plan: Plan,
        ranks: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        start: StartRanks,
        keep: Keep,
    ) -> Instrument:
        settings = SessionSettings(plan.backend, plan.stack, plan.measure, plan.limits)
        return GangInstrument(settings, ranks, scratch, stop, on_progress, start, keep=keep)
