"""Run many seeds in several processes of this machine; the hash seed is fixed, as in a replay."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).parents[3]


def simulated(seeds: Sequence[int], processes: int, *more: str) -> Iterator[dict[str, Any]]:
    """Yield the result of each seed as `python -m tests.attack.simulation --json` prints it, in any
    order. Raises RuntimeError if a process crashes."""
    with ExitStack() as ends:
        running = []
        for first in range(min(processes, len(seeds))):
            reported = ends.enter_context(tempfile.TemporaryFile("w+"))
            process = _begin([str(s) for s in seeds[first::processes]], more, reported)
            ends.callback(_end, process)
            running.append((process, reported))
        for process, reported in running:
            code = process.wait()
            reported.seek(0)
            lines = list(reported)
            if code not in (0, 1) or any(not line.endswith("\n") for line in lines):
                raise RuntimeError(f"seeds ended with {code} in line {len(lines)}: {lines[-1:]}")
            results = [json.loads(line) for line in lines]
            if code != any(one["broken"] for one in results):  # a crash has code 1, too
                raise RuntimeError(f"seeds ended with {code} after {len(results)} results")
            yield from results


def _end(process: "subprocess.Popen[str]") -> None:
    """A caller that has seen enough does not wait for the rest."""
    process.kill()
    process.wait()


def _begin(seeds: Sequence[str], more: Sequence[str], reported: IO[str]) -> "subprocess.Popen[str]":
    """Seeds are passed on standard input: a command line is too short for them."""
    command = [sys.executable, "-m", "tests.attack.simulation", "--json", "--seeds", "-", *more]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(_ROOT)}
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=reported, text=True, cwd=_ROOT, env=environment
    )
    assert process.stdin is not None
    with process.stdin as requested:
        requested.write(" ".join(seeds))
    return process
