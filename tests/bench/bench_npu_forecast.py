"""Whether sessions of an NPU stay within their caps and their forecast: a thousand short cases with
a million launches, on the recording runtime under the fake msprof.

    python tests/bench/bench_npu_forecast.py [--cases 1000] [--repeats 1000]

The cases are measured session by session, as a worker does. The overheads are learned from the
first two sessions, and the others are forecast with them. Exits 1 where a session has more than
100,000 launches, where this process takes more than 500 MB, where a session takes more disk than
the free space that it requires, or where the others took 20 % more or less than their forecast.
"""

import argparse
import os
import resource
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from collector.host.machine import used_bytes  # noqa: E402
from collector.measuring import instrument  # noqa: E402
from collector.measuring.batches import Batches, SessionSize  # noqa: E402
from collector.model.measurement import Provenance  # noqa: E402
from collector.model.plan import MOST_LAUNCHES, Limits, MeasureSettings, ShardCase  # noqa: E402
from collector.model.stack import Runtime, Stack  # noqa: E402
from collector.ops.registry import find  # noqa: E402
from jobs.planning.forecast import (  # noqa: E402
    peaks_of,
    predict,
    session_cost,
    with_overheads,
)
from tests.bench.bench_npu_session import _add as add  # noqa: E402
from tests.npu.fakecann.build import build_fake_cann, environment  # noqa: E402

MEMORY_LIMIT_MB, TOLERANCE, LEARNED = 500, 0.2, 2
REQUIRED_BYTES = 20 * 2048  # of free space, a launch
STACK = Stack("ATLAS_800_A3_752T_128G_DIE", "2.13.0", torch_npu="2.13.0", cann="8.5.0")
_PROVENANCE = Provenance(
    "bench", 1, "", 0, "bench", "0", 0, "", "here", None, 0, Runtime.FAKE, None, "", None
)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cases", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=1000)
    chosen = options.parse_args()
    os.environ.update(environment(build_fake_cann()))
    os.environ["PYTHONPATH"] += f":{ROOT}"
    measure = MeasureSettings(repeat_count=chosen.repeats)
    records = [add(rows) for rows in range(1, chosen.cases + 1)]
    todo = [ShardCase(record, 0.1) for record in records]
    usages, disk = [], Disk()
    with tempfile.TemporaryDirectory(prefix="opmeter-bench-") as name:
        scratch = Path(name)
        batches = Batches(SessionSize(240.0, measure, scratch), backend="npu")
        settings = instrument.SessionSettings("npu", STACK, measure, Limits(case_s=600.0))
        device = instrument.ReplayInstrument(
            settings, scratch, threading.Event(), lambda ended, case: disk.look(scratch)
        )
        while todo:
            batch = batches.next(todo)
            found = device.measure(batch, replace(_PROVENANCE, session=len(usages) + 1))
            disk.look(scratch)
            good = sum(m.is_good for m in found.measurements)
            if good != len(batch):
                _say(f"{good} of {len(batch)} cases measured: {found.reason}, {found.unread}")
                return 1
            usages.append(found.usage)
            _say(
                f"session {len(usages)}: {len(batch)} cases, {found.usage.launches:,} launches, "
                f"{found.usage.wall_s:.1f} s: start {found.usage.startup_s:.1f} s, "
                f"export {found.usage.export_s:.1f} s"
            )
            todo = todo[len(batch) :]
    peaks = with_overheads(peaks_of(STACK), usages[:LEARNED])
    rest = records[sum(one.cases for one in usages[:LEARNED]) :]
    work_s = sum(_cost_s(record, peaks, measure) for record in rest)
    cost = session_cost("npu", find, peaks, measure)
    forecast_s = work_s + cost.of_sessions(work_s, 240.0, len(rest))
    took_s = sum(one.wall_s for one in usages[LEARNED:])
    most = max(one.launches for one in usages)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    _say(f"{sum(one.launches for one in usages):,} launches, at most {most:,} in a session")
    _say(f"peak memory {peak_mb:.0f} MB, peak disk {disk.most >> 20} MiB")
    _say(f"forecast {forecast_s:.1f} s, took {took_s:.1f} s, ratio {forecast_s / took_s:.3f}")
    is_near = abs(forecast_s / took_s - 1) <= TOLERANCE
    is_small = peak_mb <= MEMORY_LIMIT_MB and disk.most <= MOST_LAUNCHES * REQUIRED_BYTES
    return 0 if most <= MOST_LAUNCHES and is_small and is_near else 1


class Disk:
    """The largest size of a folder so far, read at most once a second."""

    def __init__(self) -> None:
        self.most, self._read_s = 0, 0.0

    def look(self, folder: Path) -> None:
        if time.monotonic() - self._read_s > 1:
            self._read_s = time.monotonic()
            self.most = max(self.most, used_bytes(folder))


def _cost_s(record, peaks, measure) -> float:  # type: ignore[no-untyped-def]
    op = find(record.kernel_type)
    return predict(record.case, op, peaks, measure, None).total_s


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
