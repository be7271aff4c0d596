"""Analysis of captures that were only collected, one card after the other, each in a process of its
own: the analysis of torch_npu may take longer than the capture, and may fail on one card."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.host.version_pairs import known_pairs, npu_versions
from collector.profiles.discovery import unanalysed_captures

_PROGRAM = "import sys; from torch_npu.profiler.profiler import analyse; analyse(sys.argv[1])"
_TAIL = 3  # lines of its output that explain a failure


@dataclass(frozen=True, slots=True)
class Analysed:
    """The result of one card; `fault` is empty if a table of kernels was written."""

    folder: Path
    fault: str
    took_s: float

    def __str__(self) -> str:
        return f"{self.folder}: {self.fault or f'analysed in {self.took_s:.0f} s'}"


def analyse_captures(folder: Path, limit_s: float) -> Iterator[Analysed]:
    """Analyse the captures of torch_npu below a folder that were not analysed; yield each result.

    The raw data remain, whatever happens. torch_npu writes `analyse.done` and exits with 0 also if
    its analysis failed, so that only the table counts."""
    for raw in sorted({Path(one.folder) for one in unanalysed_captures([folder])}):
        began_s = time.monotonic()
        fault = _analyse(raw, limit_s)
        yield Analysed(raw, fault, time.monotonic() - began_s)


def _analyse(raw: Path, limit_s: float) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(raw)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
    except subprocess.TimeoutExpired:
        return f"not analysed within {limit_s:g} s; the raw data remain"
    if not unanalysed_captures([raw]):  # it has a table or a database of kernels
        return ""
    said = (done.stdout + done.stderr).strip().splitlines()[-_TAIL:]
    versions = npu_versions()
    named = ", ".join(f"{name} {version}" for name, version in versions.items()) or "none found"
    known = [str(one) for one in known_pairs(versions, ["analyse"]) if not one.works]
    return (
        f"torch_npu's analysis (exit {done.returncode}) wrote no kernels; the raw data remain. "
        f"{'; '.join([f'Versions: {named}', *known])}. It ended with: {' | '.join(said)}"
    )
