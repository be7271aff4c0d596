"""Fixture rows replayed on the fake NPU by separate processes, and their results.

torch_npu is never imported in the process that runs the tests.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collector.engine.calls import Recorded, parse_call
from collector.model.case import Case
from collector.ops.refusals import requires_950
from collector.ops.registry import all_ops
from collector.ranks.distribution import DISTRIBUTE_KERNELS
from tests.fixtures.op_rows import rows_alone
from tests.npu.fakecann.build import FakeCann, environment

_ROOT = Path(__file__).parents[2]
_LIMIT_S = 600
ASCEND_950 = "Ascend950PR_9579"  # a name of it that torch_npu knows


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of one row. `launches` has the recorded calls of each of its launches; `library`
    is that of their kernel, if it was chosen as sessions choose it."""

    case: Case
    error: str
    launches: tuple[tuple[Recorded, ...], ...] = ()
    outputs: tuple[Any, ...] = ()
    library: str = ""

    @property
    def calls(self) -> tuple[Recorded, ...]:
        """Return the calls of the last launch: the first may make what it keeps."""
        return self.launches[-1] if self.launches else ()


def kernels_with_rows() -> list[str]:
    """Return the kernel types with a separate fixture table that one NPU can launch."""
    names = (op.kernel for op in all_ops() if op.kernel not in DISTRIBUTE_KERNELS)
    return [kernel for kernel in names if rows_alone(kernel)]


def replay(fake: FakeCann, kernels: Iterable[str]) -> dict[str, list[Replayed]]:
    """Launch every fixture row of these kernels; a row that kills its process costs only itself.

    Rows of Ascend 950 are launched by a process on that device."""
    rows = [f"{k}:{i}" for k in kernels for i in range(len(rows_alone(k)))]
    found = dict.fromkeys(rows, Replayed(_case(rows[0]), "")) if rows else {}
    for soc in (None, ASCEND_950):
        waiting = [row for row in rows if requires_950(_case(row)) == (soc is not None)]
        while waiting:
            answers, status = _run(fake, waiting, soc)
            for row in waiting[: len(answers)]:
                found[row] = _replayed(_case(row), answers[row], status)
            if not answers and soc is not None:  # an older torch_npu
                error = f"this torch_npu does not start on {soc}"
                found |= {row: Replayed(_case(row), error) for row in waiting}
                break
            if not answers:
                raise RuntimeError(f"no row was started, the process ended with {status}")
            waiting = waiting[len(answers) :]
    by_kernel: dict[str, list[Replayed]] = {}
    for row, replayed in found.items():
        by_kernel.setdefault(row.partition(":")[0], []).append(replayed)
    return by_kernel


def _case(row: str) -> Case:
    kernel, _, number = row.partition(":")
    return rows_alone(kernel)[int(number)].case


def _run(
    fake: FakeCann, rows: Sequence[str], soc: str | None
) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the last line about each started row, and how the process ended."""
    chip = {"FAKE_NPU_SOC": soc} if soc else {}
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder, "out"), Path(folder, "log")
        command = [sys.executable, "-m", "tests.npu.replay_rows", str(out), *rows]
        done = subprocess.run(
            command,
            cwd=_ROOT,
            env=environment(fake, log=log) | chip,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
        lines = out.read_text().splitlines() if out.exists() else []
    answers = {answer["row"]: answer for answer in map(json.loads, lines)}
    return answers, f"status {done.returncode}: {done.stderr[-1500:]}"


def _replayed(case: Case, answer: dict[str, Any], status: str) -> Replayed:
    if "begins" in answer:
        return Replayed(case, f"the process ended, {status}")
    if answer["error"]:
        return Replayed(case, answer["error"])
    launches = tuple(tuple(map(parse_call, launch)) for launch in answer["launches"])
    return Replayed(case, "", launches, tuple(answer["outputs"]), answer["library"])
