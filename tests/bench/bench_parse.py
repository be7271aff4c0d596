"""The time to parse a profile, compared with a bare pandas.read_csv of the same columns.

    python tests/bench/bench_parse.py [--rows 400000] [--memory]

Writes a file of 47 columns from a fixed random mix into a temporary folder, times both in turn, and
exits with 1 if parsing takes more than 1.5 times as long. The shortest time of each is compared:
other programs only make times longer, so rounds are added while the ratio is above the limit, up to
a number. `--memory` parses a file of about 2 GB instead, and exits with 1 if the peak memory
exceeds 700 MB.
"""

import argparse
import csv
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from math import inf
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))  # this checkout, installed or not

from collector.model.vocabulary import COUNTERS
from collector.profiles.bundled import COLUMNS
from collector.profiles.headers import DURATION, EVENT_COLUMNS, KEY_COLUMNS
from collector.profiles.kernel_details import read_profile

LIMIT = 1.5
MEMORY_LIMIT_MB = 700
MEMORY_BYTES = 2_000_000_000
ROUNDS, MOST_ROUNDS = 5, 20
CASES = 150
CORES = ("AI_CORE", "AI_VECTOR_CORE", "MIX_AIC")
LEADING = 15


def main() -> int:
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--rows", type=int, default=400_000)
    options.add_argument("--memory", action="store_true", help="a file of about 2 GB")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="opmeter-bench-") as folder:
        path = Path(folder) / "kernel_details.csv"
        write_profile(path, chosen.rows)
        if chosen.memory:
            repeat_rows(path, MEMORY_BYTES)
            return measure_memory(path)
        return measure_time(path)


def measure_time(path: Path) -> int:
    with path.open() as file:
        header = next(csv.reader(file))
    read = {*KEY_COLUMNS, *EVENT_COLUMNS, DURATION, *COUNTERS}
    columns = [column for column in header if column in read]  # no file has all of them
    read_profile([path])
    peak_mb = peak_memory_mb()
    import pandas  # after the peak was read, which is of parsing alone

    parse, baseline = (
        Times(lambda: read_profile([path])),
        Times(lambda: pandas.read_csv(path, usecols=columns)),
    )
    rounds, ratio = 0, LIMIT
    while rounds < ROUNDS or (ratio > LIMIT and rounds < MOST_ROUNDS):
        baseline.add()  # in turn, so that both run on the same machine load
        parse.add()
        rounds, ratio = rounds + 1, parse.wall_s / baseline.wall_s
    print(
        f"parse: {parse.wall_s:.2f} s, pandas.read_csv: {baseline.wall_s:.2f} s, "
        f"ratio {ratio:.2f} (limit {LIMIT}, {rounds} rounds)"
    )
    print(f"processor time: ratio {parse.cpu_s / baseline.cpu_s:.2f}, over all threads")
    print(f"peak memory of parse: {peak_mb:.0f} MB")
    return 0 if ratio <= LIMIT else 1


def measure_memory(path: Path) -> int:
    parse = Times(lambda: read_profile([path]))
    parse.add()
    peak_mb = peak_memory_mb()
    print(
        f"parse of {path.stat().st_size / 1e9:.2f} GB: {parse.wall_s:.1f} s, "
        f"peak memory {peak_mb:.0f} MB (limit {MEMORY_LIMIT_MB} MB)"
    )
    return 0 if peak_mb <= MEMORY_LIMIT_MB else 1


class Times:
    """The shortest times of some work so far, each of one round."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._work = work
        self.wall_s = self.cpu_s = inf

    def add(self) -> None:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        self._work()
        self.wall_s = min(self.wall_s, time.perf_counter() - wall_s)
        self.cpu_s = min(self.cpu_s, time.process_time() - cpu_s)


def peak_memory_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def write_profile(path: Path, rows: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(mixed_rows(rows))


def repeat_rows(path: Path, size_bytes: int) -> None:
    """Append the file's own rows, launched later, to it until it has the size."""
    rows = path.read_bytes().split(b"\n", 1)[1]
    with path.open("ab") as file:
        for later in count(1):
            if file.tell() >= size_bytes:
                break
            file.write(rows.replace(b",176424", b",%d" % (176424 + later)))


def mixed_rows(rows: int) -> Iterator[list[str]]:
    """Rows of CASES cases in random order; one in a hundred is a collective."""
    rng = random.Random(1)
    cases = [random_case(rng, number) for number in range(CASES)]
    start_ns = 1_764_246_877_000_000_000
    for task in range(rows):
        duration_ns = rng.randrange(1_000, 2_000_000)
        times = [f"{microseconds(start_ns)}\t", microseconds(duration_ns), "1.000000"]
        start_ns += duration_ns + 1_000
        if rng.random() < 0.01:
            name = f"hcom_allReduce__097_{task}_1"
            row = ["13", "0", "4294967295", "N/A", "N/A", name, "hcom_allReduce_", "N/A"]
            row += ["COMMUNICATION", *times, "0", "N/A", "N/A"]
            yield row + ["N/A"] * (len(COLUMNS) - LEADING)
        else:
            kernel, core, tensors = rng.choice(cases)
            name = f"aclnn{kernel}_{kernel}AiCore_{kernel}"
            row = ["13", "0", "4294967295", str(task), "2", name, kernel, "dynamic"]
            row += [core, *times, "40", "0", "NO", *tensors, "N/A"]
            yield row + [f"{rng.random() * 1000:.3f}" for _ in COUNTERS]


def random_case(rng: random.Random, number: int) -> tuple[str, str, list[str]]:
    shapes = [
        f"{rng.choice((1, 16, 136, 4096))},{rng.choice((128, 1024, 7168))}"
        for _ in range(rng.choice((1, 2, 2, 3)))
    ]
    tensors = [
        f'"{";".join(shapes)}"',
        ";".join(["DT_BF16"] * len(shapes)),
        ";".join(["ND"] * len(shapes)),
        f'"{shapes[0]}"',
        "DT_BF16",
        "ND",
    ]
    return f"Kernel{number % 40}", rng.choice(CORES), tensors


def microseconds(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


if __name__ == "__main__":
    sys.exit(main())
