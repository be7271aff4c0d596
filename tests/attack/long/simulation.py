"""Run very many simulations, for hours: `nice python -m tests.attack.long.simulation [--simulations
100000]`.

Prints its figures after every few hundred, and every seed that broke an invariant. With `--kept
FILE` they are stored there too, and the next run with that file continues after them.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.attack.simulation.fleet import simulated

_AT_ONCE = 500
_FIGURES = ("virtual_s", "steps", "calls", "shards", "commits")


@dataclass
class Tally:
    """The figures so far; `following` is the next seed."""

    following: int
    took_s: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)
    scenes: dict[str, int] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)

    def run_portion(self, end: int, processes: int) -> None:
        """Run the next portion."""
        began, seeds = time.monotonic(), range(self.following, min(self.following + _AT_ONCE, end))
        figures, scenes = Counter(self.figures), Counter(self.scenes)
        for one in simulated(seeds, processes):
            scenes[one["scene"]] += 1
            figures.update({name: one[name] for name in _FIGURES})
            if one["broken"]:
                self.broken.append(one["seed"])
                print(f"seed {one['seed']} ({one['scene']}): {one['broken']}", flush=True)
        self.figures, self.scenes = dict(figures), dict(scenes)
        self.following, self.took_s = seeds.stop, self.took_s + time.monotonic() - began

    def __str__(self) -> str:
        figures = self.figures
        return (
            f"{sum(self.scenes.values()):,} simulations {self.scenes} in {self.took_s:,.0f} s: "
            f"{figures['virtual_s'] / 3600:,.0f} virtual hours, {figures['steps']:,} steps, "
            f"{figures['calls']:,} calls of the store, {figures['shards']:,} shards, "
            f"{figures['commits']:,} versions; {len(self.broken)} broken"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.attack.long.simulation", description=__doc__)
    parser.add_argument("--simulations", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--kept", type=Path, help="file of figures to continue")
    options = parser.parse_args()
    tally, end = Tally(options.first), options.first + options.simulations
    if options.kept is not None and options.kept.exists():
        tally = Tally(**json.loads(options.kept.read_text()))
    while tally.following < end:
        tally.run_portion(end, options.processes)
        print(tally, flush=True)
        if options.kept is not None:
            _keep(options.kept, tally)
    return 1 if tally.broken else 0


def _keep(where: Path, tally: Tally) -> None:
    new = where.with_name(f"{where.name}.new")
    new.write_text(json.dumps(asdict(tally)))
    new.replace(where)


if __name__ == "__main__":
    sys.exit(main())
