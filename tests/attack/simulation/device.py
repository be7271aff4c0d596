"""The machines of a simulation and their instruments: the true durations are known, so that
published ones can be checked."""

import errno
import threading
from collections.abc import Sequence
from pathlib import Path

from collector.codec.canonical import sha256_hex
from collector.measuring.batches import RawRecords, SessionResults
from collector.measuring.instrument import Keep, OnProgress
from collector.model.manifest import Usage
from collector.model.measurement import Measurement, Outcome, Provenance, Timing
from collector.model.plan import Plan, ShardCase
from collector.model.stack import Stack
from collector.ops.own import OperatorFile
from collector.replay.disk_space import NoSpace
from collector.replay.process import SessionStuck
from collector.worker.attempt import Attempt
from tests.attack.simulation.faults import Faults
from tests.attack.simulation.process import Process
from tests.attack.simulation.world import Killed

STACK = Stack(device="CPU_played_2t", torch="2.13.0+cpu")
_ROOM = 1 << 40
# Defects of a case: it fails in this way on every machine.
_FATES = (
    Outcome.FAILED,
    Outcome.OOM,
    Outcome.CRASHED,
    Outcome.HUNG,
    Outcome.GATED,
    Outcome.PROFILER_LOST,
)
_POISON, _KILLER = "poison", "killer"


class Truth:
    """The measured durations by measurement id, and the outcome of each case by the seed."""

    def __init__(self, seed: int, faults: Faults):
        self.measured: dict[str, tuple[str, float]] = {}  # measurement -> case, mean
        self._seed, self._share = seed, faults.bad_cases

    def fate(self, case_id: str) -> str:
        """Return how a case ends on every machine; empty for a good one."""
        draw = int(sha256_hex(f"{self._seed} {case_id}".encode())[:12], 16)
        if draw % 10_000 >= self._share * 10_000:
            return ""
        fates = (*_FATES, _POISON, _KILLER)
        return str(fates[draw // 10_000 % len(fates)])

    def mean_us(self, case_id: str, again: int) -> float:
        """Return the true duration of this case in this measurement."""
        base = 1000 + int(sha256_hex(case_id.encode())[:6], 16) % 100_000
        return base + (again % 1000) / 1024

    def measure(self, case_id: str) -> float:
        return self.mean_us(case_id, len(self.measured))


class Node:
    """A machine. `trouble` is its defect: none, `device` (another one than that of the plan),
    `sessions` (none begins), `stuck` (a permanent hang)."""

    def __init__(self, name: str, truth: Truth, faults: Faults, trouble: str = ""):
        self.name, self.truth, self.faults, self.trouble = name, truth, faults, trouble
        self.image_torch = STACK.torch


class SimulatedMachine:
    """A node as its worker sees it."""

    def __init__(self, node: Node, process: Process):
        self._node, self._process = node, process

    @property
    def node(self) -> str:
        return self._node.name

    def free_bytes(self, folder: Path) -> int:
        full = self._process.chance.random() < self._node.faults.full_disk / 4
        return 0 if full else _ROOM

    def stack(self, plan: Plan) -> Stack:
        device = "CPU_other_2t" if self._node.trouble == "device" else STACK.device
        return Stack(device=device, torch=self._node.image_torch)

    def serial(self, plan: Plan, device: int) -> str | None:
        return f"serial-{self._node.name}-{device}"

    def rehearse(self, attempt: Attempt, scratch: Path) -> None:
        """The software of a simulated machine is this process's."""

    def instrument(
        self,
        plan: Plan,
        device: int,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
        keep: Keep,
        operators: tuple[OperatorFile, ...],
    ) -> "SimulatedInstrument":
        return SimulatedInstrument(self._node, self._process, scratch, stop, on_progress)


class SimulatedInstrument:
    """Sessions in virtual time that end in every way that real ones do."""

    def __init__(
        self,
        node: Node,
        process: Process,
        scratch: Path,
        stop: threading.Event,
        on_progress: OnProgress,
    ):
        self._node, self._process, self._scratch = node, process, scratch
        self._stop, self._on_progress = stop, on_progress

    def measure(self, cases: Sequence[ShardCase], provenance: Provenance) -> SessionResults:
        """Run one session: its complete cases get results, however it ends."""
        world, chance, faults = self._process.world, self._process.chance, self._node.faults
        world.pause(1.0 + chance.random() * 4.0)
        if self._node.trouble == "stuck":
            raise SessionStuck("its process does not end")
        if self._node.trouble == "sessions":
            return self._ended(provenance, (), "exit 1", began=False)
        if chance.random() < faults.full_disk:
            raise self._no_room()
        fates = {case.record.case_id: self._node.truth.fate(case.record.case_id) for case in cases}
        if chance.random() < faults.session_dies or _POISON in fates.values():
            return self._ended(provenance, (), "killed by SIGSEGV outside any case")
        found: list[Measurement] = []
        for number, case in enumerate(cases):
            if why := self._interrupted():
                return self._ended(provenance, found, why)
            self._on_progress(number, case.record.case.describe())
            world.pause(0.5 + chance.random() * 5.0)
            fate = fates[case.record.case_id]
            if fate == _KILLER:
                self._process.kill()  # the container's memory is exhausted
                raise Killed
            found.append(self._answer(case, provenance, fate))
            if fate in (Outcome.CRASHED, Outcome.HUNG):
                return self._ended(provenance, found, f"{fate} in a case")
        return self._ended(provenance, found, "")

    def _interrupted(self) -> str:
        return "stopped" if self._stop.is_set() else ""

    def _no_room(self) -> Exception:
        if self._process.chance.random() < 0.5:
            return OSError(errno.ENOSPC, "No space left on device", str(self._scratch))
        return NoSpace("the profile does not fit")

    def _answer(self, case: ShardCase, provenance: Provenance, fate: str) -> Measurement:
        record, faults, truth = case.record, self._node.faults, self._node.truth
        if not fate and self._process.chance.random() < faults.lost_records:
            fate = Outcome.PROFILER_LOST
        if fate:
            outcome = Outcome(fate)
            return Measurement(
                record.case_id, record.case.kernel_type, outcome, "played", provenance
            )
        mean_us = truth.measure(record.case_id)
        ends = (mean_us * 0.99, mean_us * 1.01)
        timing = Timing(mean_us, *ends, mean_us, ends[0], ends[0], ends[1], 0.01)
        found = Measurement(
            record.case_id,
            record.case.kernel_type,
            Outcome.OK,
            "",
            provenance,
            n_expected=10,
            n_observed=10,
            n_accepted=10,
            timing=timing,
        )
        truth.measured[found.measurement_id] = (record.case_id, mean_us)
        return found

    def _ended(
        self,
        provenance: Provenance,
        found: Sequence[Measurement],
        reason: str,
        *,
        began: bool = True,
    ) -> SessionResults:
        files = []
        for name in ("summary", "journal"):
            path = self._scratch / f"{name}-{provenance.session}"
            path.write_text(f"{provenance.attempt} {provenance.session} {len(found)}\n")
            files.append(path)
        usage = Usage(10.0 * len(found), 9.0 * len(found), 5.0, 1.0)
        raw = (RawRecords(*files),) if found else ()
        return SessionResults(tuple(found), raw, usage, began, reason)
