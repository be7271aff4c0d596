"""The steps of CI: what each costs, against its budget.

    python3 .ci/steps.py run FILE STEP COMMAND...   run a step; append its cost to FILE
    python3 .ci/steps.py report FILE                print the table; exit 1 above twice a budget

A budget is in CPU-seconds of the step and all that it started and waited for, on a machine on
which a Python loop of ten million additions takes one second (`.ci/budgets.csv`); the report runs
this loop, and raises the budgets on a slower machine. The table also has the least memory and disk
that were free during a step: a machine that has neither fails tests that have no fault. Its last
line adds up what the test runners counted.
"""

import csv
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_BUDGETS = Path(__file__).with_name("budgets.csv")
_SAMPLED_EVERY_S = 5.0
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|error)")


def main(arguments: list[str]) -> int:
    """Run a command of this module; return its exit status."""
    match arguments:
        case ["run", file, step, *command]:
            return _run(Path(file), step, command)
        case ["report", file]:
            return _report(Path(file))
    sys.exit(__doc__)


def _run(file: Path, step: str, command: list[str]) -> int:
    print(f"\n== {step}", flush=True)
    began, counts = time.monotonic(), ""
    least = {"memory": _free_memory_gb(), "disk": _free_disk_gb()}
    with _sampled(least), subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            text = line.decode(errors="replace")
            if _COUNT.search(text) and re.search(r" in \d+[.:]\d+", text):
                counts = " ".join("".join(found) for found in _COUNT.findall(text))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall_s, cpu_s = time.monotonic() - began, used.ru_utime + used.ru_stime
    with file.open("a") as rows:
        csv.writer(rows).writerow(
            [step, f"{wall_s:.0f}", f"{cpu_s:.0f}", *(f"{gb:.1f}" for gb in least.values()), counts]
        )
    return process.returncode


@contextmanager
def _sampled(least: dict[str, float]) -> Iterator[None]:
    """Lower the values of `least`, in GB, to what is free at any time before the end."""
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(_SAMPLED_EVERY_S):
            least["memory"] = min(least["memory"], _free_memory_gb())
            least["disk"] = min(least["disk"], _free_disk_gb())

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _free_memory_gb() -> float:
    """Return what programs can still take without swapping, as the kernel estimates it."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) / 1e6 if found else 0.0


def _free_disk_gb() -> float:
    """Return the space for files under the caches and of tests, whichever has less."""
    folders = (os.environ.get("OPMETER_CACHE") or ".", tempfile.gettempdir())
    return min(shutil.disk_usage(folder).free for folder in folders) / 1e9


def _report(file: Path) -> int:
    with _BUDGETS.open() as rows:
        budgets = {step: int(seconds) for step, seconds in csv.reader(rows)}
    with file.open() as rows:
        steps = list(csv.reader(rows))
    print(
        f"\n{'step':<36} {'wall s':>8} {'CPU s':>8} {'budget':>8} {'memory GB':>10} {'disk GB':>8}"
    )
    for step, wall_s, cpu_s, memory_gb, disk_gb, _ in steps:
        print(
            f"{step:<36} {wall_s:>8} {cpu_s:>8} {budgets.get(step, '-'):>8}"
            f" {memory_gb:>10} {disk_gb:>8}"
        )
    wall, cpu = (sum(int(row[column]) for row in steps) for column in (1, 2))
    print(f"{'sum':<36} {wall:>8} {cpu:>8}")
    slower = max(1.0, _loop_s())
    print(f"a loop takes {slower:.2f} times as long here as the budgets assume, at least 1")
    over = {
        step: int(cpu_s) / budgets[step] / slower for step, _, cpu_s, *_ in steps if step in budgets
    }
    for step, share in over.items():
        if share > 1:
            print(f"{step}: {share:.2f} of its budget of {budgets[step]} CPU-seconds")
    unknown = [step for step, *_ in steps if step not in budgets]
    if unknown:
        print(f"{_BUDGETS.name}: no budget for {', '.join(unknown)}")
    counted = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for *_, counts in steps:
        for number, outcome in re.findall(r"(\d+)(\w+)", counts):
            counted["failed" if outcome == "error" else outcome] += int(number)
    print("{passed} passed, {failed} failed, {skipped} skipped".format(**counted))
    return int(bool(unknown) or any(share > 2 for share in over.values()))


def _loop_s() -> float:
    """Return the CPU-seconds of ten million additions, on every core at once, as when tests run."""
    program = "x = 0\nfor i in range(10_000_000): x += i"
    loops = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(os.cpu_count() or 1)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for loop in loops:
        loop.wait()
    return (resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before) / len(loops)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
