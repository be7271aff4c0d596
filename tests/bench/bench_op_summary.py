"""The cost of reading the op_summary of a session, compared with a reader with one object per row.

    python tests/bench/bench_op_summary.py [--rows 1000000]

Writes an op_summary of 47 columns with 1,000 cases into a temporary folder, and reads it in a
separate process for each reader: ours, with the attribution of every launch to its case, and the
baseline, which holds each row as an object with a dict of its counters. Exits with 1 if a process
of ours takes more than 500 MB, or 0.4 of the processor time of the baseline for a row. The baseline
reads a tenth of the rows, since its memory is 2.7 KB a row.
"""

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # this checkout, installed or not

from collector.profiles.headers import DURATION, NAME, START, TYPE, read_header
from collector.profiles.launches import read_op_summary
from collector.profiles.row_values import counter_of, parse_duration_us, start_ns_of
from collector.profiles.rows import open_rows
from collector.quality.identity import Expectation
from collector.quality.reconcile import Mark, Sentinel, attribute

MEMORY_LIMIT_MB, RATIO_LIMIT = 500, 0.4
CASES = 1000
SENTINEL = "Abs"


@dataclass(frozen=True, slots=True)
class Launch:
    """A row of the baseline."""

    op_type: str
    name: str
    start_ns: int
    duration_us: float
    cells: dict[str, str]
    counters: dict[str, float | None]


def baseline(path: Path) -> int:
    """Read with the csv module and hold an object for each row; return the number of rows."""
    names, rows = open_rows(path)
    header = read_header(names, path=path)
    launches = [
        Launch(
            header.cell(row, TYPE),
            header.cell(row, NAME),
            start_ns_of(header.cell(row, START)),
            parse_duration_us(header.cell(row, DURATION)),
            header.base_cells(row),
            {name: counter_of(name, row[header.positions[name]]) for name in header.counters},
        )
        for _, row in rows
    ]
    return len(sorted(launches, key=attrgetter("start_ns")))


def ours(path: Path) -> int:
    """Read, and attribute every launch; return the number of repeats with their counters."""
    launches = read_op_summary(path)
    repeats = len(launches) // CASES - 2
    cases = [Expectation(i, f"Kernel{i}", repeats, repeats) for i in range(CASES)]
    found = attribute(launches, cases)
    assert all(len(found[i].repeats) == repeats for i in range(CASES))
    return len(launches)


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", type=int, default=1_000_000)
    rows = options.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="opmeter-bench-") as folder:
        whole, tenth = Path(folder, "op_summary.csv"), Path(folder, "tenth.csv")
        write_session(whole, rows)
        with whole.open() as source, tenth.open("w") as part:
            part.writelines(islice(source, 1 + rows // 10))
        mine, theirs = measured(ours, whole), measured(baseline, tenth)
    for name, one in (("op_summary", mine), ("an object a row", theirs)):
        sys.stdout.write(
            f"{name}: {one.rows:,} rows, {one.us_a_row:.1f} us a row of wall time, "
            f"{one.cpu_us_a_row:.1f} us of processor time, peak {one.peak_mb:.0f} MB\n"
        )
    ratio = mine.cpu_us_a_row / theirs.cpu_us_a_row
    sys.stdout.write(
        f"ratio of processor time {ratio:.3f}; limits {RATIO_LIMIT} and {MEMORY_LIMIT_MB} MB\n"
    )
    return 0 if ratio <= RATIO_LIMIT and mine.peak_mb <= MEMORY_LIMIT_MB else 1


@dataclass(frozen=True, slots=True)
class Cost:
    rows: int
    wall_s: float
    cpu_s: float
    peak_mb: float

    @property
    def us_a_row(self) -> float:
        return self.wall_s / self.rows * 1e6

    @property
    def cpu_us_a_row(self) -> float:
        return self.cpu_s / self.rows * 1e6


def measured(read: Callable[[Path], int], path: Path) -> Cost:
    """Return the cost of reading in a new process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_report, args=(theirs, read, path))
    process.start()
    found = json.loads(ours.recv_bytes())
    process.join()
    return Cost(**found)


def _report(pipe, read: Callable[[Path], int], path: Path) -> None:  # type: ignore[no-untyped-def]
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    rows = read(path)
    found = {
        "rows": rows,
        "wall_s": time.perf_counter() - wall_s,
        "cpu_s": time.process_time() - cpu_s,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }
    pipe.send_bytes(json.dumps(found).encode())


def write_session(path: Path, rows: int) -> None:
    """Write the rows of CASES cases in order, each between its marks."""
    from collector.model.vocabulary import COUNTERS
    from collector.profiles.bundled import COLUMNS

    counters = ",".join(f"{1.25 * at:.3f}" for at in range(len(COUNTERS)))
    start_ns = 1_764_246_877_000_000_000

    def line(kernel: str, shape: tuple[int, ...]) -> str:
        nonlocal start_ns
        start_ns += 21_000
        start = f"{start_ns // 1000}.{start_ns % 1000:03d}\t"
        tensors = f'"""{",".join(map(str, shape))}""",DT_BF16,ND,' * 2
        return (
            f"13,0,4294967295,1,2,{kernel}_{kernel},{kernel},dynamic,AI_CORE,{start},10.125,1.0,"
            f"40,0,NO,{tensors}N/A,{counters}\n"
        )

    with path.open("w") as file:
        file.write(",".join(COLUMNS) + "\n")
        for case in range(CASES):
            file.write(line(SENTINEL, Sentinel(Mark.OPEN, case).shape))
            file.writelines(line(f"Kernel{case}", (16, 7168)) for _ in range(rows // CASES - 2))
            file.write(line(SENTINEL, Sentinel(Mark.CLOSE, case).shape))


if __name__ == "__main__":
    sys.exit(main())
