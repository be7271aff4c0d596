"""Whether sessions of an NPU stay within their caps and their forecast: a thousand short cases with
a million launches, on the recording runtime under the fake msprof.

    python tests/bench/bench_npu_forecast.py [--cases 1000] [--repeats 1000] [--processor-time]

The cases are measured session by session, as a worker does. The overheads are learned from the
first three sessions, and the others are forecast with them. Exits 1 where a session has more than
100,000 launches, where this process takes more than 500 MB, where a session takes more disk than
the free space that it requires, or where the others took 20 % more or less than their forecast.
With `--processor-time`, for a machine that others use, all times are those of processors.
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

from collector.host.space import used_bytes  # noqa: E402
from collector.measuring import instrument  # noqa: E402
from collector.measuring.batches import Batches, SessionSize  # noqa: E402
from collector.model.manifest import Usage  # noqa: E402
from collector.model.measurement import Provenance  # noqa: E402
from collector.model.plan import MOST_LAUNCHES, Limits, MeasureSettings, ShardCase  # noqa: E402
from collector.model.stack import Runtime, Stack  # noqa: E402
from collector.ops.registry import find_operator  # noqa: E402
from jobs.planning.forecast import (  # noqa: E402
    peaks_of,
    predict,
    session_cost,
    with_overheads,
)
from tests.bench.bench_npu_session import _add as add  # noqa: E402
from tests.npu.fakecann.build import build_fake_cann, environment  # noqa: E402

MEMORY_LIMIT_MB, TOLERANCE, LEARNED = 500, 0.2, 3
REQUIRED_BYTES = 20 * 2048  # of free space, a launch
STACK = Stack("ATLAS_800_A3_752T_128G_DIE", "2.13.0", torch_npu="2.13.0", cann="8.5.0")
_PROVENANCE = Provenance(
    "bench", 1, "", 0, "bench", "0", 0, "", "here", None, 0, Runtime.FAKE, None, "", None
)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--cases", type=int, default=1000)
    options.add_argument("--repeats", type=int, default=1000)
    options.add_argument("--processor-time", action="store_true")
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
            settings, scratch, threading.Event(), lambda ended, case: disk.reconcile(scratch)
        )
        while todo:
            batch = batches.next(todo)
            began_s = processor_s()
            found = device.measure(batch, replace(_PROVENANCE, session=len(usages) + 1))
            used_s = processor_s() - began_s
            disk.reconcile(scratch)
            good = sum(m.is_good for m in found.measurements)
            if good != len(batch):
                _say(f"{good} of {len(batch)} cases measured: {found.reason}, {found.unread}")
                return 1
            factor = used_s / found.usage.wall_s if chosen.processor_time else 1.0
            usages.append(usage := scaled(found.usage, factor))
            times = f"start {usage.startup_s:.1f} s, export {usage.export_s:.1f} s"
            counts = f"{len(batch)} cases, {usage.launches:,} launches"
            _say(f"session {len(usages)}: {counts}, {usage.wall_s:.1f} s: {times}")
            todo = todo[len(batch) :]
    peaks = with_overheads(peaks_of(STACK), usages[:LEARNED])
    rest = records[sum(one.cases for one in usages[:LEARNED]) :]
    work_s = sum(_cost_s(record, peaks, measure) for record in rest)
    # A plan does not know the disk of a node, which may end sessions earlier.
    most = max(one.cases for one in usages[:LEARNED])
    cost = replace(session_cost("npu", find_operator, peaks, measure), most_cases=most)
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


def processor_s() -> float:
    """Return the processor time of this process and of its sessions that have ended."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in (own, children))


def scaled(usage: Usage, factor: float) -> Usage:
    """Return a usage with all times of the host multiplied. Kernels of the recording runtime take
    no time, whatever the fake msprof reports."""
    times = {name: factor * getattr(usage, name) for name in ("wall_s", "startup_s", "export_s")}
    return replace(usage, busy_us=0.0, **times)


class Disk:
    """The largest size of a folder so far, read at most once a second."""

    def __init__(self) -> None:
        self.most, self._read_s = 0, 0.0

    def reconcile(self, folder: Path) -> None:
        if time.monotonic() - self._read_s > 1:
            self._read_s = time.monotonic()
            self.most = max(self.most, used_bytes(folder))


def _cost_s(record, peaks, measure) -> float:  # type: ignore[no-untyped-def]
    op = find_operator(record.kernel_type)
    return predict(record.case, op, peaks, measure, None).total_s


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
