"""The cost of a session besides its kernels: milliseconds per case, at most 5.

    python tests/bench/bench_session.py

100 cases of Add of a few KB, 10 repeats each, in one session. Counted: building inputs, checking
outputs, marks, stopping the profiler, reading its events, writing the CSV. Not counted: kernels and
warm-ups. Imports and the first start of the profiler occur once a session, and are printed
separately.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from collector.model.measurement import Provenance
from collector.model.plan import Limits, MeasureSettings
from collector.model.record import CaseRecord
from collector.model.stack import Runtime
from collector.replay.results import collect_session
from collector.replay.spec import SessionCase, SessionSpec
from collector.replay.supervisor import Ending, run_session

CASES, REPEATS, LIMIT_MS = 100, 10, 5.0
_PROVENANCE = Provenance(
    "bench", 1, "", 0, "bench", "0", 0, "", "here", None, 0, Runtime.REAL, None, "", None
)


def main() -> int:
    spec = SessionSpec(
        backend="cpu",
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
        result = collect_session(spec, directory, report, _PROVENANCE)
        good = sum(m.is_good and m.n_observed == REPEATS for m in result.measurements)
        lines = [json.loads(line) for line in result.journal.read_text().splitlines()]
        cost_ms = _median_cost_ms(lines, result.useful_us)
    _say(f"{good} of {CASES} cases measured, {REPEATS} repeats each")
    _say(f"framework cost per case: {cost_ms:.2f} ms at the median (limit {LIMIT_MS:g})")
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


def _median_cost_ms(lines: Sequence[dict[str, Any]], useful_us: float) -> float:
    """A case's own wall time without warm-ups and kernels, and its share of everything that
    happens between cases: opening and closing windows, reading events, writing slices."""
    at = {line["event"]: line["at_s"] for line in lines}
    began = {line["ordinal"]: line["at_s"] for line in lines if line["event"] == "begin"}
    ended = {line["ordinal"]: line for line in lines if line["event"] == "end"}
    walls = [ended[i]["at_s"] - began[i] for i in began]
    share_s = (at["finish"] - at["ready"] - sum(walls)) / len(walls)
    warm_ups = [ended[i]["warm_up_s"] for i in began]
    kernels_s = useful_us / 1e6 / len(walls)
    costs = [
        wall + share_s - warm_up - kernels_s for wall, warm_up in zip(walls, warm_ups, strict=True)
    ]
    return 1000 * median(costs)


if __name__ == "__main__":
    sys.exit(main())
