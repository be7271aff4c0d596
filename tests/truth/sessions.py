"""Coverage of the intervals of one run by other runs on this machine.

    python -m tests.truth.sessions [--runs 10] [--campaign quickstart] [--keep FOLDER]
    python -m tests.truth.sessions --judge FOLDER FOLDER ...

Runs a campaign several times, each into a separate database, with as many sessions of each case as
the campaign requests. The intervals of each database are compared with the mean of the other
runs' means, case by case. `--judge` uses existing databases. Prints one JSON line: the share of
covered cases, over all runs and of the worst and the best run, the median half-width, the origins
of the variance, the differences of two runs, the prior of this kind of device that all runs
together give, and of each run its seconds and the load of the machine before it. Exits with 1 if
the limit is missed: 92 to 98 %. The result is valid only on an idle machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean, median

import numpy as np

from collector.database.commits import find_head
from collector.database.intervals import CaseInterval, evidence_of_versions, intervals_of
from collector.database.query import best_rows
from collector.database.snapshot import load_state
from collector.database.state import State, join_all
from collector.quality.variance import learn
from collector.quality.variance_prior import VariancePrior
from collector.store.opening import open_store

BAR = (0.92, 0.98)
WITHIN = 0.10

# A prior with nearly no weight, so that the measurements decide.
_UNKNOWING = VariancePrior(1.0, 3.0, repeat_spread=0.02, device_spread=0.02, weight=0.5)

Session = Mapping[str, CaseInterval]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--campaign", default="quickstart")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--keep", type=Path, metavar="FOLDER")
    parser.add_argument("--judge", type=Path, nargs="+", metavar="FOLDER")
    expected = parser.parse_args()
    runs: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as name:
        folders = expected.judge
        if not folders:
            root = expected.keep or Path(name)
            folders = [(root / f"run-{n}").absolute() for n in range(expected.runs)]
            runs = [run(expected.campaign, folder) for folder in folders]
        states = [state_of(folder) for folder in folders]
        found = judge([read(state) for state in states])
    print(json.dumps({**found, "told": reported(states), "runs": runs}))
    return 0 if found["is_met"] else 1


def run(campaign: str, folder: Path) -> dict[str, float]:
    """Run the campaign; return its duration, and the load of the machine before it."""
    load, started = os.getloadavg()[0], time.monotonic()
    command = [sys.executable, "-m", "jobs.cli", "run", campaign, "--root", folder.as_uri()]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=sys.stderr)
    return {"seconds": round(time.monotonic() - started, 1), "load": load}


def state_of(folder: Path) -> State:
    store = open_store(folder.absolute().as_uri())
    return load_state(store, find_head(store))


def reported(states: Sequence[State]) -> dict[str, float]:
    """Return the numbers of `data/variance.yaml` from the pairs of all runs' sessions."""
    (found,) = evidence_of_versions(join_all(states)).values()
    learnt = learn([found.evidence.pairs], _UNKNOWING)
    return {
        "pairs": len(found.evidence.pairs),
        "ratio": round(learnt.ratio, 3),
        "tail_degrees": learnt.tail_degrees,
        "repeat_spread": round(float(median(found.evidence.group_spread)), 4),
    }


def read(state: State) -> Session:
    """Return what a database shows of each case that has an interval."""
    ((version, reported),) = intervals_of(state).items()
    best = best_rows(state, version, suspects=reported.suspects)
    rows = zip(*(best[name].to_pylist() for name in ("case", "measurement", "good")), strict=True)
    return {case: reported.of[one] for case, one, is_good in rows if is_good and one in reported.of}


def judge(sessions: Sequence[Session]) -> dict[str, object]:
    """Return how many intervals of each session cover the mean of the others' means."""
    cases = sorted(set.intersection(*(set(session) for session in sessions)))
    held = np.array([_held(cases, session, _others(sessions, session)) for session in sessions])
    shares = held.mean(axis=1)
    widths = [np.expm1(session[case].reach) for session in sessions for case in cases]
    origins = Counter(session[case].variance for session in sessions for case in cases)
    return {
        "sessions": len(sessions),
        "cases": len(cases),
        "stated": 0.95,
        "held": round(float(held.mean()), 4),
        "held_least": round(float(shares.min()), 4),
        "held_most": round(float(shares.max()), 4),
        "half_width": round(median(widths), 4),
        "variance": {name: origins[name] for name in sorted(origins)},
        "two_runs": _repeatability(cases, sessions),
        "is_met": bool(BAR[0] <= held.mean() <= BAR[1]),
    }


def _others(sessions: Sequence[Session], one: Session) -> list[Session]:
    return [other for other in sessions if other is not one]


def _held(cases: Sequence[str], session: Session, others: Sequence[Session]) -> list[bool]:
    return [
        session[case].low_us
        <= fmean(other[case].mean_us for other in others)
        <= session[case].high_us
        for case in cases
    ]


def _repeatability(cases: Sequence[str], sessions: Sequence[Session]) -> dict[str, float]:
    """Return, over all pairs of runs, the share of cases within 10 % of each other, and their
    differences."""
    means = np.array([[session[case].mean_us for case in cases] for session in sessions])
    apart = np.concatenate(
        [np.abs(np.log(means[a] / means[b])) for a, b in combinations(range(len(means)), 2)]
    )
    ratio = np.exp(apart)
    p50, p90, p99 = np.quantile(ratio, [0.5, 0.9, 0.99])
    return {
        "within": round(float(np.mean(ratio <= 1 + WITHIN)), 3),
        "p50": round(float(p50), 3),
        "p90": round(float(p90), 3),
        "p99": round(float(p99), 3),
    }


if __name__ == "__main__":
    sys.exit(main())
