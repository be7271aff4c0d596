"""The time until the first output of the command: `opmeter --help` and the bare imports.

Baseline: the interpreter alone, in the same run.
"""

import statistics
import subprocess
import sys
import time
from pathlib import Path

_CHECKOUT = Path(__file__).parents[2]
_LIMIT_S = 0.5
_RUNS = 7


def main() -> int:
    bare_s = _median_s("-c", "pass")
    slow = 0
    for name, arguments in {
        "import collector, jobs": ("-c", "import collector, jobs"),
        "opmeter --help": ("-m", "jobs.cli", "--help"),
    }.items():
        took_s = _median_s(*arguments)
        print(
            f"startup: {name} {took_s:.3f} s, python alone {bare_s:.3f} s, "
            f"ratio {took_s / bare_s:.1f} (limit {_LIMIT_S} s)"
        )
        slow += took_s > _LIMIT_S
    return int(slow > 0)


def _median_s(*arguments: str) -> float:
    return statistics.median(_once_s(arguments) for _ in range(_RUNS))


def _once_s(arguments: tuple[str, ...]) -> float:
    started = time.perf_counter()
    command = [sys.executable, *arguments]
    subprocess.run(command, cwd=_CHECKOUT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
