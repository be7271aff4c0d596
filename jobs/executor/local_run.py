"""The embedded executor: the same workers as in a cluster, as processes of this machine.

Each device has one worker at a time, and each worker one shard. A gang uses all devices: gangs run
first, one after the other, because they measure the links between devices. The parent assigns the
shards; it commits a shard that no worker can finish, with the outcome `crashed` for its missing
cases.
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

from collector import environment
from collector.codec.errors import HostFault, OpmeterError
from collector.model import keys
from collector.model.measurement import Outcome
from collector.model.plan import Plan, device_or_node_name
from collector.store.base import Store
from collector.worker.assignment import Assignment, abandon, keep_log
from collector.worker.attempt import read_progress
from collector.worker.blame import exit_code
from collector.worker.exit_codes import ExitCode
from collector.worker.machine import ThisMachine

# The next shard of a device of this machine: the first one that is free; among shards that measure
# cases a second time, the one that suits the device best.
#
# Only such shards show the variation between sessions and between devices. Two in three go to
# another device than their cases were measured on, one in three stays there, as far as there is a
# choice: no device waits for a better shard. The cases of a suspect session go to another device if
# there is one; that device is waited for.

_STAYS = 3  # every third


def device_identity(plan: Plan, device: int) -> str:
    """Return the identity of a device of this machine (node and serial); empty if it is unknown."""
    machine = ThisMachine()
    with suppress(HostFault):
        return device_or_node_name(machine.node, machine.serial(plan, device) or "")
    return ""


class Todo:
    """The open shards of a plan for these devices of this machine, with their assignment.

    `place_of` returns the identity of a device."""

    def __init__(
        self,
        plan: Plan,
        shards: Sequence[str],
        devices: Sequence[int],
        identity_of: Callable[[Plan, int], str] = device_identity,
    ):
        self._left = list(shards)
        own = (one for one in plan.shards if one.not_on and one.shard_id in self._left)
        not_on = {one.shard_id: one.not_on for one in own}
        places = {device: identity_of(plan, device) for device in devices} if not_on else {}
        self._barred = {
            shard: {device for device, place in places.items() if place == barred}
            for shard, barred in not_on.items()
            if set(places.values()) - {barred}
        }
        self._again_of = {one.shard_id: one.again_of for one in plan.shards if one.again_of}
        self._taken: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, device: int) -> str | None:
        """Return the next shard of a device; None if none is left that it may run."""
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
    """Return which of the shards `left` a device runs next.

    `again_of` are the shards that measured the cases of a shard first, in the plan's order. `taken`
    maps a shard to its device.

    Example: device 0 had s0 and device 1 had s1, and r0 measures cases of s0 again, r1 of s1. The
    first free device, device 0, takes r1."""
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
# A worker that ends by itself stores its log. A killed worker cannot.
_KEEP_THEIR_LOG = frozenset(ExitCode) - {ExitCode.HANG, ExitCode.FAILED}
_LOG_BYTES = 1 << 20
_POLL_S = 0.5
_GRACE_S = 30.0  # besides the limit of a case, for the uploads of a stopped worker


class WorkerProcess(Protocol):
    """The part of Popen that the parent of a worker uses."""

    stdin: IO[bytes] | None

    def wait(self, timeout: float | None = None) -> int: ...
    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start_worker(command: Sequence[str], err: IO[bytes]) -> WorkerProcess:
    """Start a worker as a process of this machine; its output goes to `err`.

    The worker ends when its standard input closes, which happens when this process ends."""
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=err)


class LocalRunFailed(OpmeterError):
    """A worker reports that no other worker could succeed; the message is its last output.

    `shard` is the shard in which it failed."""

    def __init__(self, message: str, code: int = ExitCode.FAILED, shard: str = ""):
        super().__init__(message)
        self.code = code
        self.shard = shard


@dataclass(frozen=True, slots=True)
class FirstPod:
    """The parameters for the first pod of a gang.

    `pods` is the number of pods that share its ranks, `host` the address at which the others reach
    it, and `wave` the wave that names their meeting."""

    pods: int
    host: str
    wave: str

    def as_arguments(self) -> list[str]:
        return ["--pods", str(self.pods), "--host", self.host, "--wave", self.wave]


@dataclass(frozen=True, slots=True)
class LocalRun:
    """The settings for measuring a plan on this machine.

    Attributes:
        scratch: where workers may write.
        watched: the same store without waiting: progress is read there.
        on_progress: is called with a shard and how many of its cases are measured.
        waits_for_refusals: whether workers wait for a store that refuses, or is full, as pods do.
        gives_up: without it, a shard whose worker dies is left to the caller of this run.
        tries_all: a failure that may be caused by the shard does not stop the other shards.
        prefix: the start of the names of attempts.
        progress_s: the interval in which a worker writes its progress, and in which it is read: a
            thousand pods share one store.
        start: starts a worker by its command.
        first_of: set if several pods share the ranks of gangs.
        place_of: returns the identity of a device.
        operators: the hashes of files of operators that sessions may execute."""

    store: Store
    watched: Store
    plan: Plan
    scratch: Path
    devices: Sequence[int]
    stop: threading.Event
    on_progress: Callable[[str, int], None]
    on_finished: Callable[[str], None]
    single_writer: bool = False
    waits_for_refusals: bool = False
    gives_up: bool = True
    tries_all: bool = False
    prefix: str = ""
    progress_s: float = 2.0
    start: Callable[[Sequence[str], IO[bytes]], WorkerProcess] = start_worker
    first_of: FirstPod | None = None
    identity_of: Callable[[Plan, int], str] = device_identity
    operators: tuple[str, ...] = ()

    def measure(self, shards: Sequence[str]) -> None:
        """Measure and commit every shard, or return early once `stop` is set.

        Raises:
            LocalRunFailed: the first failure that a worker attributes to the machine or the store.
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
        if not any(one.not_on for one in self.plan.shards if one.shard_id in shards):
            devices = devices[: len(shards)]  # otherwise the choice of devices matters
        todo = Todo(self.plan, shards, devices, self.identity_of)
        threads = [
            environment.begin(partial(self._serve, device, todo, failures), f"device {device}")
            for device in devices
        ]
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_S)

    def _serve(self, device: int, todo: Todo, failures: list[OpmeterError]) -> None:
        while not self.stop.is_set() and not any(map(self._ends_all, failures)):
            shard = todo.take(device)
            if shard is None:
                return
            try:
                self._finish(shard, device)
            except OpmeterError as error:
                failures.append(error)
            except OSError as error:  # for example a full disk, or no more processes
                failures.append(LocalRunFailed(f"shard {shard}: {error}", ExitCode.SPACE, shard))

    def _ends_all(self, failure: OpmeterError) -> bool:
        """Return whether no other shard could succeed after this failure."""
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
            # The shard itself may be the cause if its worker was killed, or hung.
            if (code < 0 or code == ExitCode.HANG) and self.gives_up:
                died += 1
            elif code != ExitCode.TEMPORARY:
                words = words or f"a worker ended with exit code {code}"
                raise LocalRunFailed(words, code, shard)
        # Commit the shard in a new attempt: the last worker may have stored parts.
        reason = f"{_ATTEMPTS} workers died in its shard"
        abandon(self.store, self._assignment(shard, device), Outcome.CRASHED, reason)
        self.on_finished(shard)

    def _assignment(self, shard: str, device: int) -> Assignment:
        return Assignment(
            campaign=self.plan.campaign,
            plan=self.plan.number,
            plan_hash=self.plan.plan_hash,
            shard=shard,
            attempt=self.prefix + environment.token(12),
            device=device,
            operators=self.operators,
        )

    def attempt(self, assignment: Assignment) -> tuple[int, str]:
        """Run one worker to its end; return its exit code and its last output."""
        scratch = self.scratch / assignment.attempt
        scratch.mkdir(parents=True)
        words = scratch / "worker.err"
        # -P: otherwise the current folder precedes Python's own modules.
        command = [sys.executable, "-P", "-m", "collector.worker", *assignment.as_arguments()]
        command += ["--root", self.store.url, "--scratch", str(scratch)]
        command += ["--single-writer"] if self.single_writer else []
        command += ["--wait-for-refusals"] if self.waits_for_refusals else []
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
        if code == ExitCode.DONE:  # the next shard needs the space in the same volume
            shutil.rmtree(scratch, ignore_errors=True)
        return code, last

    def _watch(self, worker: WorkerProcess, assignment: Assignment) -> int:
        stop_requested, next_poll = False, 0.0
        while True:
            try:
                return worker.wait(self._patience_s if stop_requested else _POLL_S)
            except subprocess.TimeoutExpired:
                if stop_requested:
                    return ExitCode.HANG
            if self.stop.is_set():
                worker.terminate()
                stop_requested = True
            elif environment.monotonic() >= next_poll:
                self._report(assignment)
                next_poll = environment.monotonic() + self.progress_s

    @property
    def _patience_s(self) -> float:
        return self.plan.limits.case_s + _GRACE_S

    def _report(self, assignment: Assignment) -> None:
        key = keys.progress(assignment.campaign, assignment.shard, assignment.attempt)
        reported = read_progress(self.watched, key)
        if reported is not None:
            self.on_progress(assignment.shard, reported.done)


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


class RunView(AbstractContextManager["RunView"], Protocol):
    """Receives the progress of a run and displays it."""

    def say(self, text: str) -> None:
        """Print a permanent line."""

    def measure(self, done: int, cases: int) -> None:
        """Show how many of all cases are measured."""
