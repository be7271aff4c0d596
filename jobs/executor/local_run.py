"""The embedded executor: the same workers as in a cluster, as processes of this machine.

Each device gets one worker at a time and one shard a worker. A gang has all devices: gangs come
first, one after the other, since what they measure is the way between devices. The parent decides
who does which shard; a shard that nobody can finish is committed by the parent, its missing cases
`crashed`.
"""

import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from collector import environment as surroundings
from collector.codec.errors import HostFault, OpmeterError
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.plan import Plan, place_name
from collector.store.base import Store
from collector.worker.assignment import Assignment, abandon, keep_log
from collector.worker.attempt import read_progress
from collector.worker.blame import exit_code
from collector.worker.exit_codes import ExitCode
from collector.worker.machine import ThisMachine

# Which shard a device of this machine does next: the first that nobody has, and of those that
# measure cases a second time the one that suits the device.
#
# What sessions differ by, and what devices do, is told by such shards alone. Two in three go to
# another device than their cases were measured on, one in three stays there, as far as there is a
# choice: no device waits for a better one. What a doubtful session measured goes to another device
# wherever there is one: that one is waited for.

_STAYS = 3  # every third


def place_here(plan: Plan, device: int) -> str:
    """The name of the place that a device of this machine is; empty where it does not tell."""
    machine = ThisMachine()
    with suppress(HostFault):
        return place_name(machine.node, machine.serial(plan, device) or "")
    return ""


class Todo:
    """The shards of a plan that are to be done by these devices of this machine, and who has which.
    `place_of` names the place that a device is."""

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[str],
        devices: Sequence[int],
        place_of: Callable[[Plan, int], str] = place_here,
    ):
        self._left = list(shards)
        own = (one for one in plan.shards if one.not_on and one.shard_id in self._left)
        not_on = {one.shard_id: one.not_on for one in own}
        places = {device: place_of(plan, device) for device in devices} if not_on else {}
        self._barred = {
            shard: {device for device, place in places.items() if place == barred}
            for shard, barred in not_on.items()
            if set(places.values()) - {barred}
        }
        self._again_of = {one.shard_id: one.again_of for one in plan.shards if one.again_of}
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, device: int) -> str | None:
        """The shard that a device does next; None where none is left that it may do."""
        with self._lock:
            left = [s for s in self._left if device not in self._barred.get(s, ())]
            if not left:
                return None
            shard = next_shard(left, device, self._again_of, self._taken)
            self._left.remove(shard)
            self._taken[shard] = device
            return shard


def next_shard(
    left: Sequence[str],
    device: int,
    again_of: Mapping[str, Sequence[str]],
    taken: Mapping[str, int],
) -> str:
    """The one of the shards `left` that a device does next. `again_of` are the shards in which the
    cases of one stand for the first time, in the plan's order, and `taken` says which device had
    which.

    Example: device 0 had s0 and device 1 had s1, and r0 measures cases of s0 again, r1 of s1. The
    first that is free, device 0, takes r1.
    """
    if left[0] not in again_of:
        return left[0]
    stays = {shard for at, shard in enumerate(again_of) if at % _STAYS == _STAYS - 1}

    def unfit(shard: str) -> float:
        of = again_of[shard]
        own = sum(taken.get(first) == device for first in of) / len(of)
        return 1 - own if shard in stays else own

    return min((shard for shard in left if shard in again_of), key=unfit)


logger = logging.getLogger(__name__)

_ATTEMPTS = 3
_OF_ALL_SHARDS = (ExitCode.IMAGE, ExitCode.STORE, ExitCode.SPACE)
# A worker that ends by itself stores its log. One that was killed, by anyone, cannot.
_KEEP_THEIR_LOG = frozenset(ExitCode) - {ExitCode.HANG, ExitCode.FAILED}
_LOG_BYTES = 1 << 20
_LOOK_S = 0.5
_GRACE_S = 30.0  # beyond the case in hand, for what a stopped worker still uploads


class WorkerProcess(Protocol):
    """A worker as its parent has it: what of a Popen is used."""

    stdin: IO[bytes] | None

    def wait(self, timeout: float | None = None) -> int: ...

    def poll(self) -> int | None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def start_worker(command: Sequence[str], err: IO[bytes]) -> WorkerProcess:
    """A worker as a process of this machine, whose standard input is its life line: it ends when
    this process does. What it says goes to `err`."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=err)


class LocalRunFailed(OpmeterError):
    """A worker says that no further worker could do better; the message holds its last words.
    `shard` is the one it failed in."""

    def __init__(self, message: str, code: int = ExitCode.FAILED, shard: str = ""):
        super().__init__(message)
        self.code = code
        self.shard = shard


@dataclass(frozen=True, slots=True)
class ShardProgress:
    """Where a shard stands, as its worker last said."""

    shard: str
    done: int
    cases: int


@dataclass(frozen=True, slots=True)
class FirstPod:
    """What the first pod of a gang is told: how many pods have its ranks between them, at which
    address the others reach it, and by the name of which wave they meet."""

    pods: int
    host: str
    wave: str

    def as_arguments(self) -> list[str]:
        return ["--pods", str(self.pods), "--host", self.host, "--wave", self.wave]


@dataclass(frozen=True, slots=True)
class LocalRun:
    """How a plan is measured here: which store, which devices, where workers may write.

    `watched` is the same store, not waited for: pictures of the progress are read there. Without
    `gives_up` a shard whose worker dies is left to whoever started this run. With `tries_all` a
    failure that may be the shard's own does not keep the other shards from being tried. `prefix`
    begins the names of attempts; `progress_s` lies between two pictures of its progress that a
    worker writes, and between two that are read: a thousand pods have one store. `start` begins a
    worker by its command. `first_of` is told where the ranks of gangs are those of several pods;
    `place_of` names the place that a device is.
    """

    store: Store
    watched: Store
    plan: Plan
    scratch: Path
    devices: Sequence[int]
    stop: threading.Event
    on_progress: Callable[[ShardProgress], None]
    on_finished: Callable[[str], None]
    single_writer: bool = False
    gives_up: bool = True
    tries_all: bool = False
    prefix: str = ""
    progress_s: float = 2.0
    start: Callable[[Sequence[str], IO[bytes]], WorkerProcess] = start_worker
    first_of: FirstPod | None = None
    place_of: Callable[[Plan, int], str] = place_here

    def measure(self, shards: Sequence[str]) -> None:
        """Have every shard committed, or return early once `stop` is set.

        Raises LocalRunFailed, the first, where a worker blames the machine or the store.
        """
        of_gangs = self.plan.gangs
        failures: list[OpmeterError] = []
        self._serve_all([s for s in shards if s in of_gangs], self.devices[:1], failures)
        self._serve_all([s for s in shards if s not in of_gangs], self.devices, failures)
        if failures:
            raise failures[0]

    def _serve_all(
        self, shards: Sequence[str], devices: Sequence[int], failures: list[OpmeterError]
    ) -> None:
        """Have shards done on devices, each by the first that is free."""
        if not any(one.not_on for one in self.plan.shards if one.shard_id in shards):
            devices = devices[: len(shards)]  # else not any device will do
        todo = Todo(self.plan, shards, devices, self.place_of)
        threads = [
            surroundings.begin(partial(self._serve, device, todo, failures), f"device {device}")
            for device in devices
        ]
        for thread in threads:
            while thread.is_alive():
                thread.join(_LOOK_S)

    def _serve(self, device: int, todo: Todo, failures: list[OpmeterError]) -> None:
        while not self.stop.is_set() and not any(map(self._ends_all, failures)):
            shard = todo.take(device)
            if shard is None:
                return
            try:
                self._finish(shard, device)
            except OpmeterError as error:
                failures.append(error)
            except OSError as error:  # a full disk, no more processes
                failures.append(LocalRunFailed(f"shard {shard}: {error}", ExitCode.SPACE, shard))

    def _ends_all(self, failure: OpmeterError) -> bool:
        """Whether no other shard could fare better."""
        code = failure.code if isinstance(failure, LocalRunFailed) else exit_code(failure)
        return not self.tries_all or code in _OF_ALL_SHARDS

    def _finish(self, shard: str, device: int) -> None:
        died = 0
        while died < _ATTEMPTS:
            code, words = self.attempt(self._assignment(shard, device))
            if code == ExitCode.DONE:
                self.on_finished(shard)
                return
            if self.stop.is_set():
                return
            logger.warning("shard %s: worker ended with %d: %s", shard, code, words)
            if _has_died(code) and self.gives_up:
                died += 1
            elif code != ExitCode.TEMPORARY:
                words = words or f"a worker ended with exit code {code}"
                raise LocalRunFailed(words, code, shard)
        self._abandon(shard, device)

    def _abandon(self, shard: str, device: int) -> None:
        """An attempt of its own: the last worker may have stored parts under its id."""
        reason = f"{_ATTEMPTS} workers died in its shard"
        abandon(self.store, self._assignment(shard, device), Outcome.CRASHED, reason)
        self.on_finished(shard)

    def _assignment(self, shard: str, device: int) -> Assignment:
        return Assignment(
            campaign=self.plan.campaign,
            plan=self.plan.number,
            plan_hash=self.plan.plan_hash,
            shard=shard,
            attempt=self.prefix + surroundings.token(12),
            device=device,
        )

    def attempt(self, assignment: Assignment) -> tuple[int, str]:
        """Run one worker to its end: its exit code and its last words."""
        scratch = self.scratch / assignment.attempt
        scratch.mkdir(parents=True)
        words = scratch / "worker.err"
        # -P: else the folder one happens to be in comes before Python's own modules.
        command = [sys.executable, "-P", "-m", "collector.worker", *assignment.as_arguments()]
        command += ["--root", self.store.url, "--scratch", str(scratch)]
        command += ["--single-writer"] if self.single_writer else []
        command += self.first_of.as_arguments() if self.first_of else []
        command += ["--parent", str(os.getpid()), "--progress-s", str(self.progress_s)]
        with words.open("wb") as err:
            worker = self.start(command, err)
        try:
            code = self._watch(worker, assignment)
        finally:
            if worker.poll() is None:
                worker.kill()
                worker.wait()
            if worker.stdin is not None:
                worker.stdin.close()
        if code not in _KEEP_THEIR_LOG:
            keep_log(self.watched, assignment, words, _LOG_BYTES)
        last = _last_line(words)
        if code == ExitCode.DONE:  # the next shard has to find room in the same volume
            shutil.rmtree(scratch, ignore_errors=True)
        return code, last

    def _watch(self, worker: WorkerProcess, assignment: Assignment) -> int:
        asked_to_stop, next_look = False, 0.0
        while True:
            try:
                return worker.wait(self._patience_s if asked_to_stop else _LOOK_S)
            except subprocess.TimeoutExpired:
                if asked_to_stop:
                    return ExitCode.HANG
            if self.stop.is_set():
                worker.terminate()
                asked_to_stop = True
            elif surroundings.monotonic() >= next_look:
                self._report(assignment)
                next_look = surroundings.monotonic() + self.progress_s

    @property
    def _patience_s(self) -> float:
        return self.plan.limits.case_s + _GRACE_S

    def _report(self, assignment: Assignment) -> None:
        key = keys.progress(assignment.campaign, assignment.shard, assignment.attempt)
        said = read_progress(self.watched, key)
        if said is not None:
            self.on_progress(ShardProgress(assignment.shard, said.done, said.cases))


def _has_died(code: int) -> bool:
    """Whether the shard itself may be to blame: its worker was killed, or hung."""
    return code < 0 or code == ExitCode.HANG


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


# What a run on this machine tells whoever watches it.


class View(AbstractContextManager["View"], Protocol):
    """Told what happens; shows it, and decides nothing."""

    def say(self, text: str) -> None:
        """One line that stays."""

    def measure(self, done: int, cases: int) -> None:
        """So many of all cases are measured."""
