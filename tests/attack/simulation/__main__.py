"""Run one seed of the simulation again, exactly: `python -m tests.attack.simulation --seed N
[--trace]`."""

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict

import pyarrow as pa

from tests.attack.simulation.mutants import MUTANTS, planted
from tests.attack.simulation.remembered import remembering
from tests.attack.simulation.simulation import simulate_seed

_COLLECTED_EVERY = 50  # simulations: each leaves half a megabyte of reference cycles


def _tracer(options: argparse.Namespace, digest: "hashlib._Hash") -> Callable[[str], None] | None:
    if options.trace:
        return print
    return (lambda line: digest.update(line.encode())) if options.digest else None


def _collecting(seeds: Sequence[int]) -> Iterator[int]:
    """Run the seeds; garbage is collected between simulations and not a thousand times in each: a
    tenth of the time."""
    gc.freeze()
    gc.disable()
    for number, seed in enumerate(seeds, 1):
        yield seed
        if number % _COLLECTED_EVERY == 0:
            gc.collect()


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.attack.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, action="append", help="simulate this seed")
    parser.add_argument("--seeds", help="simulate FIRST:END, without END; - reads numbers")
    parser.add_argument("--trace", action="store_true", help="print every step")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each seed")
    parser.add_argument("--digest", action="store_true", help="with --json: hash the trace")
    parser.add_argument("--fault", action="append", default=[], help="NAME=VALUE, as in faults.py")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), help="plant this defect")
    options = parser.parse_args()
    seeds = list(options.seed or ())
    if options.seeds == "-":
        seeds += map(int, sys.stdin.read().split())
    elif options.seeds:
        first, _, end = options.seeds.partition(":")
        seeds += range(int(first), int(end))
    pa.set_cpu_count(1)  # its threads are not simulated, and save no time with tables so small
    failed, totals = 0, Counter()
    for seed in _collecting(seeds):
        began = time.monotonic()
        digest = hashlib.sha256()
        with remembering(), planted(options.mutant) if options.mutant else nullcontext():
            simulated = simulate_seed(seed, _tracer(options, digest), options.fault)
        failed += bool(simulated.broken)
        totals.update(steps=simulated.steps, calls=simulated.calls, commits=simulated.commits)
        if options.json:
            print(json.dumps(asdict(simulated) | {"digest": digest.hexdigest()}), flush=True)
            if options.mutant and simulated.broken:
                break
        elif simulated.broken or len(seeds) == 1:
            took_s = time.monotonic() - began
            print(f"seed {seed}: {simulated.broken or 'no invariant was broken'}")
            print(f"  {simulated.scene}, {simulated.faults}, {took_s:.2f} s", flush=True)
    if not options.json and len(seeds) > 1:
        print(f"{len(seeds)} seeds, {failed} broken, {dict(totals)}")
    return 1 if failed else 0


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is random too
        arguments = [sys.executable, "-m", "tests.attack.simulation", *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | {"PYTHONHASHSEED": "0"})
    code = main()
    sys.stdout.flush()
    # pyarrow was seen to abort while the interpreter shuts down, and then a simulation without a
    # violation ends with -6.
    os._exit(code)
