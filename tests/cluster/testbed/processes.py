"""Processes that outlive the command that starts them, and are never mistaken for others.

A process is identified by its number and start time, in a file: the number alone may have been
reused since.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.testbed.settings import NoCluster

_LOOK_S = 0.1
_LOG_TAIL = 2000


@dataclass(frozen=True)
class Daemon:
    """A program of the cluster; made stopped or running. `command` is a function if it depends on
    other running programs."""

    name: str
    run: Path
    command: Callable[[], Sequence[str | Path]]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.run / "log" / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """Return the process's number while it runs."""
        try:
            pid, started = map(int, self._file.read_text().split())
        except (OSError, ValueError):
            return None
        return pid if _start_of(pid) == started else None

    def start(self) -> bool:
        """Start it if it is stopped; return whether it was."""
        if self.pid is not None:
            return False
        for folder in (self._file.parent, self.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        command = [str(word) for word in self.command()]
        out = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        pid = os.posix_spawnp(
            command[0],
            command,
            {**os.environ, **self.environment},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log), out, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,  # an interrupt at the terminal is not for it
        )
        self._file.write_text(f"{pid} {_start_of(pid)}\n")
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """End it with SIGTERM, and kill it after the limit."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while self.pid is not None and time.monotonic() < deadline:
            time.sleep(_LOOK_S)
        self.kill()

    def kill(self) -> None:
        """End it as a power cut would."""
        self.signal(signal.SIGKILL)
        while self.pid is not None:
            time.sleep(0.01)
        self._file.unlink(missing_ok=True)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal if it runs."""
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)

    def tail(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-_LOG_TAIL:] if self.log.exists() else ""

    @property
    def _file(self) -> Path:
        return self.run / "pids" / self.name


def wait_until(what: str, holds: Callable[[], bool], limit_s: float, *logs: Daemon) -> None:
    """Return once a condition holds; NoCluster with the ends of the logs after the limit."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            message = "\n".join(f"{log.log}:\n{log.tail()}" for log in logs)
            raise NoCluster(f"{what}: not within {limit_s:.0f} s\n{message}")
        time.sleep(_LOOK_S)


def kill_members(belongs: Callable[[int], bool], limit_s: float = 20.0) -> None:
    """Kill every process for which `belongs` is true, and those they start in the meantime."""
    deadline = time.monotonic() + limit_s
    while members := [pid for pid in _all_pids() if belongs(pid)]:
        for pid in members:
            _kill(pid)
        if time.monotonic() > deadline:
            raise RuntimeError(f"these processes do not end: {members}")
        time.sleep(_LOOK_S)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _all_pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]


def _start_of(pid: int) -> int | None:
    """Return when a process started, in ticks since boot; None if it has ended or is a zombie."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return None
    except ChildProcessError:
        pass  # started by another command, whose process reaps it
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
