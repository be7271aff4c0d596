"""The repeatability of durations next to a program that occupies a core intermittently.

    python -m tests.bench.burner [--campaign FILE] [--on-s 2] [--off-s 2]

Runs a campaign on this machine three times, each into a separate database: twice alone, and once
next to a process that burns a core for `on` seconds and rests for `off`. Two runs are compared case
by case. Prints one JSON line: for both pairs the share of cases whose durations differ by at most
10 %, the median and the 90th percentile of their ratio, and how many of the others have a warning;
for each run its seconds, the load of the machine before it, and the share of disturbed repeats.
Exits with 1 if a limit is missed: 95 % within 10 % for either pair, and 1.6 times the seconds next
to the burner. The result is valid only on an idle machine: see `load` and `disturbed` of the first
two.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from collector.database.commits import find_head
from collector.database.query import best_rows
from collector.database.snapshot import load_state
from collector.model.row import value_of
from collector.quality.statistics import percentile
from collector.ranks.collective import is_collective
from collector.store.opening import open_store

WITHIN, LEAST_SHARE, MOST_TIME = 0.10, 0.95, 1.6
_BURN = """
import sys, time
on_s, off_s = map(float, sys.argv[1:])
while True:
    until = time.monotonic() + on_s
    while time.monotonic() < until:
        pass
    time.sleep(off_s)
"""


@dataclass(frozen=True)
class Run:
    """One run: the durations of its cases, those with a warning, and its load."""

    mean_us: Mapping[str, float]
    warned: frozenset[str]
    seconds: float
    load: float
    disturbed: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--campaign", default="quickstart")
    parser.add_argument("--on-s", type=float, default=2.0)
    parser.add_argument("--off-s", type=float, default=2.0)
    expected = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        quiet, again = (run(expected.campaign, Path(name) / part) for part in ("quiet", "again"))
        with burning(expected.on_s, expected.off_s):
            beside = run(expected.campaign, Path(name) / "beside")
    pairs = {"quiet": compared(quiet, again), "burner": compared(quiet, beside)}
    ratio = beside.seconds / quiet.seconds
    runs = [
        {"seconds": round(r.seconds, 1), "load": r.load, "disturbed": round(r.disturbed, 3)}
        for r in (quiet, again, beside)
    ]
    print(json.dumps({**pairs, "time_ratio": round(ratio, 2), "runs": runs}))
    held = all(pair["within"] >= LEAST_SHARE for pair in pairs.values())
    return 0 if held and ratio <= MOST_TIME else 1


def run(campaign: str, folder: Path) -> Run:
    """Run the campaign, and read what it published. Collectives are left out of the comparison."""
    load, started = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, "-m", "jobs.cli", "run", campaign, "--root", folder.as_uri()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    seconds = time.monotonic() - started
    store = open_store(folder.as_uri())
    state = load_state(store, find_head(store))
    (version,) = state.versions
    rows = [row for row in best_rows(state, version).to_pylist() if row["good"]]
    kernels = dict(zip(*(state.cases[n].to_pylist() for n in ("case", "kernel_type")), strict=True))
    rows = [row for row in rows if not is_collective(kernels[row["case"]])]
    cells = [row["disturbance"] for row in rows]
    reported = [found for cell in cells if (found := value_of("disturbance", cell)) is not None]
    watched = sum(found.watched for found in reported)
    return Run(
        {row["case"]: float(row["mean_us"]) for row in rows},
        frozenset(row["case"] for row in rows if row["warnings"]),
        seconds,
        load,
        1 - sum(found.clean for found in reported) / watched if watched else 0.0,
    )


def compared(one: Run, other: Run) -> dict[str, float]:
    """Return the differences of two runs, over the cases of both."""
    ratios = {
        case: max(us / one.mean_us[case], one.mean_us[case] / us)
        for case, us in other.mean_us.items()
        if case in one.mean_us
    }
    ordered = sorted(ratios.values())
    beyond = {case for case, ratio in ratios.items() if ratio > 1 + WITHIN}
    return {
        "cases": len(ratios),
        "within": round(1 - len(beyond) / len(ratios), 3),
        "median": round(median(ordered), 3),
        "p90": round(percentile(ordered, 0.9), 3),
        "beyond_with_a_warning": len(beyond & (one.warned | other.warned)),
        "beyond": len(beyond),
    }


@contextmanager
def burning(on_s: float, off_s: float) -> Iterator[None]:
    command = [sys.executable, "-c", _BURN, str(on_s), str(off_s)]
    with subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
