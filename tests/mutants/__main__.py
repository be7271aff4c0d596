"""Plant faults drawn by a seed, one at a time, and run the tests of each fault's package.

    python -m tests.mutants --seed 1 --count 150 --results mutants.jsonl
    python -m tests.mutants --from mutants.jsonl --only survived     # the same faults again

A fault is killed if a test of `tests/unit/PACKAGE` fails, or does not end in five times what these
tests take without it. Each result is one line of JSON; faults already in the file of results are
not tried again, so an interrupted run continues.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from queue import Queue

from tests.mutants.faults import Mutant, draw

PACKAGES = (
    "collector/comm",
    "collector/database",
    "collector/measuring",
    "collector/ops",
    "collector/profiles",
    "collector/quality",
    "collector/replay",
    "collector/workloads",
    "collector/worker",
    "jobs/campaign",
    "jobs/controller",
    "jobs/decide",
    "jobs/executor",
    "jobs/planning",
    "jobs/status",
)
_PYTEST = [sys.executable, "-m", "pytest", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]


def main() -> None:
    options = _options()
    root = Path(options.root).resolve()
    results = Path(options.results)
    known = _results(results)
    if options.source:
        earlier = _results(Path(options.source))
        mutants = [
            _mutant(line)
            for line in earlier.values()
            if not options.only or line["outcome"] == options.only
        ]
    else:
        mutants = draw(root, PACKAGES, seed=options.seed, count=options.count)
    if options.list:
        print("\n".join(mutant.name for mutant in mutants))
        return
    todo = [mutant for mutant in mutants if mutant.name not in known]
    todo.sort(key=lambda mutant: mutant.path)
    copies: Queue[Path] = Queue()
    with tempfile.TemporaryDirectory(prefix="opmeter-mutants-") as scratch:
        for number in range(options.jobs):
            copies.put(_copy(root, Path(scratch, str(number), "project")))
        folders = {_tests(mutant.path) for mutant in todo}
        limits = _limits(copies, folders, options.jobs)

        def tried(mutant: Mutant) -> None:
            copy = copies.get()
            line = {**asdict(mutant), **_tried(copy, mutant, limits[_tests(mutant.path)])}
            copies.put(copy)
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{line['outcome']:9} {line['seconds']:6.1f} s  {mutant.name}", flush=True)

        with ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(tried, todo))
    names = {mutant.name for mutant in mutants}
    outcomes = [line["outcome"] for name, line in _results(results).items() if name in names]
    print(f"{outcomes.count('killed')} of {len(outcomes)} faults killed")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--jobs", type=int, default=2, help="faults tried concurrently")
    parser.add_argument("--results", default="mutants.jsonl", help="file of results, continued")
    parser.add_argument("--from", dest="source", help="try the faults of an earlier file")
    parser.add_argument("--only", choices=("killed", "survived"), help="only this outcome")
    parser.add_argument("--root", default=".", help="checkout whose product and tests are used")
    parser.add_argument("--list", action="store_true", help="print the faults, run nothing")
    return parser.parse_args()


def _results(file: Path) -> dict[str, dict]:  # type: ignore[type-arg]
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return {_mutant(line).name: line for line in lines}


def _mutant(line: dict) -> Mutant:  # type: ignore[type-arg]
    return Mutant(**{field: line[field] for field in Mutant.__slots__})


def _copy(root: Path, copy: Path) -> Path:
    """Copy the tracked files, and the untracked ones that git does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (root / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    return copy


def _tests(path: str) -> str:
    """Return the folder of a package's tests: tests/unit/jobs/decide of jobs/decide/actions.py."""
    return "tests/unit/" + "/".join(path.split("/")[:2])


def _limits(copies: "Queue[Path]", folders: set[str], jobs: int) -> dict[str, float]:
    """Return the seconds after which a fault counts as a hang; the tests have to pass without
    any."""

    def limit(folder: str) -> float:
        copy = copies.get()
        began = time.monotonic()
        passed = _run(copy, [folder], 3600.0)
        seconds = time.monotonic() - began
        copies.put(copy)
        if passed != 0:
            sys.exit(f"{folder}: expected tests that pass without a fault; pytest ended {passed}")
        print(f"{folder}: {seconds:.0f} s without a fault", flush=True)
        return 5 * seconds + 60

    with ThreadPoolExecutor(jobs) as pool:
        ordered = sorted(folders)
        return dict(zip(ordered, pool.map(limit, ordered), strict=True))


def _tried(copy: Path, mutant: Mutant, limit: float) -> dict[str, object]:
    """Plant a fault in a copy, run its tests, those that name its module first, and restore."""
    file = copy / mutant.path
    source = file.read_bytes()
    began = time.monotonic()
    try:
        file.write_bytes(mutant.applied(source))
        first, rest = _ordered(copy, mutant.path)
        killed = any(_run(copy, files, limit) != 0 for files in (first, rest) if files)
    finally:
        file.write_bytes(source)
    outcome = "killed" if killed else "survived"
    return {"outcome": outcome, "seconds": round(time.monotonic() - began, 1)}


def _ordered(copy: Path, path: str) -> tuple[list[str], list[str]]:
    module = path.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    naming = (f"{module} ", f"{module}\n", f"from {package} import", f"import {module}")
    first, rest = [], []
    for file in sorted((copy / _tests(path)).rglob("test_*.py")):
        text = file.read_text()
        near = any(words in text for words in naming) and name in text
        (first if near else rest).append(str(file.relative_to(copy)))
    return first, rest


def _run(copy: Path, files: list[str], limit: float) -> int:
    """Return the exit status of pytest, or -1 if it did not end in time."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONHASHSEED": "0"}
    with subprocess.Popen(
        [*_PYTEST, *files],
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return -1
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
