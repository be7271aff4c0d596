"""Very many plays, for hours: `nice python -m tests.attack.long.simulation [--plays 100000]`.

Prints its figures after each thousand, and every seed that broke a promise.
"""

import argparse
import os
import sys
import time
from collections import Counter

from tests.attack.simulation.fleet import played

_AT_ONCE = 1_000
_FIGURES = ("virtual_s", "steps", "calls", "shards", "commits")


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.attack.long.simulation", description=__doc__)
    parser.add_argument("--plays", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    began, broken = time.monotonic(), 0
    figures: Counter[str] = Counter()
    scenes: Counter[str] = Counter()
    end = options.first + options.plays
    for first in range(options.first, end, _AT_ONCE):
        for one in played(range(first, min(first + _AT_ONCE, end)), options.processes):
            scenes[one["scene"]] += 1
            figures.update({name: one[name] for name in _FIGURES})
            if one["broken"]:
                broken += 1
                print(f"seed {one['seed']} ({one['scene']}): {one['broken']}", flush=True)
        print(_line(figures, scenes, broken, time.monotonic() - began), flush=True)
    return 1 if broken else 0


def _line(figures: Counter[str], scenes: Counter[str], broken: int, took_s: float) -> str:
    return (
        f"{scenes.total():,} plays {dict(scenes)} in {took_s:,.0f} s: "
        f"{figures['virtual_s'] / 3600:,.0f} virtual hours, {figures['steps']:,} steps, "
        f"{figures['calls']:,} calls of the store, {figures['shards']:,} shards, "
        f"{figures['commits']:,} versions; {broken} broken"
    )


if __name__ == "__main__":
    sys.exit(main())
