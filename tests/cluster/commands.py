"""`opmeter` as a process of this machine, which a test may end at any time.

It is started as users start it, not by a fork of a server (tests/forkserver.py): a controller's
memory is measured.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests import forkserver
from tests.cluster.testbed.images import PROJECT

_STOP_S = 60.0


@dataclass
class Opmeter:
    """The command with its own environment; `folder` has the output of processes."""

    folder: Path
    environment: Mapping[str, str]
    _started: list["Process"] = field(default_factory=list)

    def __call__(self, *words: str, code: int = 0, limit_s: float = 300.0) -> str:
        """Run it to its end; AssertionError if the exit code is not `code`."""
        with forkserver.real_starts():
            done = subprocess.run(
                self._command(words),
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        assert done.returncode == code, f"{' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *words: str) -> "Process":
        """Start it without waiting."""
        log = self.folder / f"{len(self._started):02}-{words[0]}.log"
        with log.open("wb") as out, forkserver.real_starts():
            process = subprocess.Popen(
                self._command(words),
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._started.append(Process(process, log))
        return self._started[-1]

    def end(self) -> None:
        """Kill the running processes."""
        for process in self._started:
            process.kill()

    def _command(self, words: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-P", "-m", "jobs.cli", *words]

    @property
    def _environment(self) -> dict[str, str]:
        ours = {"PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        return {**os.environ, **ours, **self.environment}


@dataclass(frozen=True)
class Process:
    """A started process."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """SIGKILL it; do nothing if it has ended."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """End it with SIGTERM and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_STOP_S)

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def message(self) -> str:
        return self.log.read_text(errors="replace")
