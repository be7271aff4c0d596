"""The host's cost of a case on an NPU besides its launches: milliseconds, at most 5 at the median.

    python tests/bench/bench_npu_session.py

200 cases of Add, 10 repeats each, in one session under the fake msprof. Counted: building inputs,
marks, launches, the journal, attribution and certificates, including the fake runtime's own time.
Not counted: warm-ups, and the first case, which loads the kernels. Start-up occurs once a session,
and is printed separately.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from collector.model.measurement import Provenance  # noqa: E402
from collector.model.plan import Limits, MeasureSettings  # noqa: E402
from collector.model.record import CaseRecord  # noqa: E402
from collector.model.stack import Runtime  # noqa: E402
from collector.replay.results import collect_session  # noqa: E402
from collector.replay.spec import SessionCase, SessionSpec  # noqa: E402
from collector.replay.supervisor import Ending, run_session  # noqa: E402
from tests.npu.fakecann.build import build_fake_cann, environment  # noqa: E402

CASES, REPEATS, LIMIT_MS = 200, 10, 5.0
_PROVENANCE = Provenance(
    "bench", 1, "", 0, "bench", "0", 0, "", "here", None, 0, Runtime.REAL, None, "", None
)


def main() -> int:
    os.environ.update(environment(build_fake_cann()))
    os.environ["PYTHONPATH"] += f":{ROOT}"
    spec = SessionSpec(
        backend="npu",
        device=0,
        cases=tuple(SessionCase(_add(rows), 0.01, 60.0) for rows in range(1, CASES + 1)),
        measure=MeasureSettings(repeat_count=REPEATS),
        limits=Limits(),
    )
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        report = run_session(spec, directory)
        if report.ending is not Ending.COMPLETE:
            _say(f"the session ended {report.ending}: {report.reason}\n{report.log_tail}")
            return 1
        started = time.perf_counter()
        result = collect_session(spec, directory, report, _PROVENANCE)
        collect_ms = 1000 * (time.perf_counter() - started) / CASES
        good = sum(m.is_good and m.n_observed == REPEATS for m in result.measurements)
        lines = [json.loads(line) for line in result.journal.read_text().splitlines()]
    cost_ms = _median_cost_ms(lines) + collect_ms
    _say(f"{good} of {CASES} cases measured, {REPEATS} repeats each")
    _say(f"host time per case: {cost_ms:.2f} ms at the median (limit {LIMIT_MS:g})")
    _say(f"of that after the session: {collect_ms:.2f} ms")
    _say(f"start-up, once a session: {report.startup_s:.2f} s of {report.wall_s:.2f} s")
    return 0 if good == CASES and cost_ms <= LIMIT_MS else 1


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _add(rows: int) -> CaseRecord:
    cells = {
        "OP State": "dynamic",
        "Accelerator Core": "AI_VECTOR_CORE",
        "Input Shapes": f'"{rows},64;{rows},64"',
        "Input Data Types": "FLOAT;FLOAT",
        "Input Formats": "ND;ND",
        "Output Shapes": f'"{rows},64"',
        "Output Data Types": "FLOAT",
        "Output Formats": "ND",
    }
    return CaseRecord("Add", cells, {})


def _median_cost_ms(lines: Sequence[dict[str, Any]]) -> float:
    """Return the time from the start of one case to the start of the next, without its warm-ups."""
    began = {line["ordinal"]: line["at_s"] for line in lines if line["event"] == "begin"}
    ended = {line["ordinal"]: line for line in lines if line["event"] == "end"}
    finish_s = next(line["at_s"] for line in lines if line["event"] == "finish")
    nexts = [*(began[i] for i in sorted(began)[1:]), finish_s]
    costs = [
        after - began[i] - ended[i]["warm_up_s"]
        for i, after in zip(sorted(began), nexts, strict=True)
    ]
    return 1000 * median(costs[1:])


if __name__ == "__main__":
    sys.exit(main())
