"""A rank's prober as its keeper sees it: a process that a try may end or hang, and that is started
again when it is needed.

It writes `joined`, `ready` and its answer, a line each. Each line has its own deadline. A rank that
hangs before the ranks exchange anything is not `ready`, and is ended sooner than the ranks that
wait for it in the exchange: those find it gone, report it, and stay.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from collector.replay.process import describe_end

STARTING_S = 240.0  # of python and torch in all ranks, on a busy machine
_DYING_S = 10.0
_READ_BYTES = 65536


class TryResult(StrEnum):
    """The result of a try in a rank. `not tried`: the ranks did not come together for it."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOT_TRIED = "not tried"


@dataclass(frozen=True, slots=True)
class TryAnswer:
    """A rank's answer. `has_left`: it is no longer joined with the others; `is_lost`: its process
    is gone."""

    verdict: TryResult
    reason: str = ""
    has_left: bool = False
    is_lost: bool = False

    def to_json(self) -> str:
        return json.dumps([self.verdict, self.reason, self.has_left, self.is_lost])

    @classmethod
    def from_json(cls, text: str) -> "TryAnswer":
        verdict, reason, has_left, is_lost = json.loads(text)
        return cls(TryResult(verdict), reason, has_left, is_lost)


class ProberProcess:
    """The prober process of one rank. `patience_s` is the limit for its own part of a try."""

    def __init__(self, program: str, folder: Path, patience_s: float) -> None:
        process = (sys.executable, "-P", "-m", "collector.comm.rank_process")
        self._command = [*process, program, str(folder)]
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._last_line = b""
        self._generation = -1

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def run_try(self, question: str, generation: int) -> TryAnswer:
        """Return the answer to a question; end the prober if it misses a deadline. All ranks join
        a new generation again."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, bufsize=0)
        process = self._process
        is_new, self._generation = generation != self._generation, generation
        try:
            assert process.stdin is not None
            process.stdin.write(question.encode() + b"\n")
            process.stdin.flush()
        except OSError:  # it ended after its last answer
            return self._lost(TryResult.NOT_TRIED, "the process ended before the try")
        waits = (
            ("joined", STARTING_S if is_new else self._patience_s, TryResult.NOT_TRIED),
            ("ready", self._patience_s, TryResult.REFUSED),
            ("", 2 * self._patience_s, TryResult.REFUSED),
        )
        for word, limit_s, verdict in waits:
            line = self._line(process, limit_s)
            if line is None:
                return self._lost(verdict, f"no response within {limit_s:g} s")
            if not line:
                return self._lost(verdict)
            if line != word:
                return TryAnswer.from_json(line)
        raise AssertionError("the last line is an answer")

    def end(self) -> None:
        """End the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
            self._process, self._last_line, self._generation = None, b"", -1

    def _line(self, process: "subprocess.Popen[bytes]", limit_s: float) -> str | None:
        """Return the next line; "" at the end of the output, None if it is late."""
        assert process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self._last_line:
            left_s = until - time.monotonic()
            if left_s <= 0 or not select.select([process.stdout], [], [], left_s)[0]:
                return None
            if not (read := os.read(process.stdout.fileno(), _READ_BYTES)):
                return ""
            self._last_line += read
        line, _, self._last_line = self._last_line.partition(b"\n")
        return line.decode()

    def _lost(self, verdict: TryResult, reason: str = "") -> TryAnswer:
        process = self._process
        assert process is not None
        if not reason:  # it has closed its output: it is ending, or has ended
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_DYING_S)
            code = process.returncode
            reason = "closed its output" if code is None else describe_end(code)
        self.end()
        return TryAnswer(verdict, reason, has_left=True, is_lost=True)
