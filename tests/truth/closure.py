"""Whether isolated durations add up to the step of a run, on this CPU.

    python -m tests.truth.closure [--requests 1 8 32] [--rounds 5] [--steps 50] [--cache warm]

A small decoder is profiled and timed, its kernels are measured by `opmeter run` in a separate
store, alone and after the launches that precede them in the run, and `opmeter compare` explains its
step. The decoder has the allocator of a session. Prints one JSON line for each number of requests:
the timed step, its parts by cause, the difference of kernels from the run by kernel type, and the
error of the sum of isolated times and host time (`apart`), and of those after other launches and
host time (`in_context`). Processes differ by their memory layout, both the decoder's and a
session's: so each line is the median round of several, and has the errors of every round
(`rounds`). Exits with 1 if the median exceeds a tenth. Steps and repeats during which a thread
waited for a core are excluded; the machine should be quiet all the same.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median_low

from collector.host.stack import CPU_ALLOCATOR
from collector.profiles.bundled import bundled_kernel_details
from collector.profiles.step_trace import FILE
from tests.truth.small_decoder import SmallDecoder, profiled_steps

_BAR = 0.10
_PROFILED = 3
_CAMPAIGN = """\
campaign: closure-{cache}
sources: [{{profile: run_ascend_pt}}]
target: here
backend: cpu
measure: {{cache: {cache}{repeats}}}
"""
_ONCE = "quality: {repeat_share: 0}\n"  # in one session, not some of the kernels in a second
_PROGRAM = "import sys; from jobs.cli import main; sys.exit(main())"


def closed(
    folder: Path, requests: int, steps: int, cache: str = "warm", repeats: int | None = None
) -> dict[str, object]:
    """Return the sum of a decoder's step, in microseconds, and the unexplained rest. Each kernel is
    repeated so often, once, or as the budget and the load of the machine determine."""
    output = folder / "run_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    ran = profiled_steps(SmallDecoder(requests), steps)
    # With several steps each launch is preceded by those of the step before it.
    (output / "kernel_details.csv").write_bytes(bundled_kernel_details(ran.launches * _PROFILED))
    kernels_us = sum(one.profile.total_us for one in ran.launches if one.profile)
    step_us = ran.step_s * 1e6
    # The watched kernels may take longer than the unwatched step.
    computing_us = min(step_us, kernels_us)
    lines = [f"{n},{computing_us},0,{step_us - computing_us}" for n in range(_PROFILED)]
    header = "Step,Computing,Communication(Not Overlapped),Free"
    (output / FILE).write_text("\n".join((header, *lines)) + "\n")
    fixed = f", repeats: {repeats}" if repeats else ""
    for state in (cache, "context"):
        text = _CAMPAIGN.format(cache=state, repeats=fixed)
        (folder / "campaign.yaml").write_text(text + _ONCE * bool(repeats))
        _opmeter(folder, "run", "campaign.yaml", "--root", "data")
    words = ("run_ascend_pt", "--root", "data", "--json", "--cache", cache, "--force")
    reported = json.loads(_opmeter(folder, "compare", *words))
    parts = {name: value / _PROFILED for name, value in reported["sum"].items()}
    isolated_us = parts["isolated_us"] + parts["host_us"]
    return {
        "requests": requests,
        "cache": cache,
        "steps": [ran.alone, ran.profiled],
        "unknown_cases": [one["case"] for one in reported["cases"] if one["isolated"] is None],
        "without_context": [one["case"] for one in reported["cases"] if one["in_context"] is None],
        "profiled_us": round(ran.profiled_s * 1e6, 1),
        **{name: round(value, 1) for name, value in parts.items()},
        "ratios": {
            row["kernel_type"]: [
                round(ratios[1], 3) if ratios else None
                for ratios in (row["ratios"], row["context_ratios"])
            ]
            for row in reported["kernels"]
        },
        "apart": round((isolated_us - step_us) / step_us, 4),
        "in_context": round((isolated_us + parts["neighbours_us"] - step_us) / step_us, 4),
    }


def _opmeter(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"opmeter {words[0]} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def main(words: list[str]) -> int:
    if not CPU_ALLOCATOR.items() <= os.environ.items():  # it is read when a process starts
        command = [sys.executable, "-m", "tests.truth.closure", *words]
        os.execve(sys.executable, command, os.environ | CPU_ALLOCATOR)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cache", choices=("warm", "cold"), default="warm")
    requested = parser.parse_args(words)
    is_closed = True
    for requests in requested.requests:
        rounds = []
        for _ in range(requested.rounds):
            with tempfile.TemporaryDirectory(prefix="opmeter-closure-") as folder:
                rounds.append(closed(Path(folder), requests, requested.steps, requested.cache))
        missed = [float(str(one["in_context"])) for one in rounds]
        middle = rounds[missed.index(median_low(missed))]
        print(json.dumps(middle | {"rounds": missed}), flush=True)
        is_closed &= abs(median_low(missed)) <= _BAR
    return 0 if is_closed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
