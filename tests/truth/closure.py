"""Whether numbers that were measured apart add up to the step of a run, on this CPU.

    python -m tests.truth.closure [--requests 1 8 32] [--steps 50] [--cache warm]

A small decoder is profiled and timed, its kernels are measured apart by `opmeter run` in a store of
its own, and `opmeter compare` rebuilds its step. One JSON line for each number of requests: the
step as it was timed, its parts by cause, and `apart`, by how much of the step the isolated times
and the host miss it. Exit 1 where that is over a tenth. The machine wants to be quiet.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from collector.profiles.bundled import kernel_details
from collector.profiles.step_trace import FILE
from tests.truth.small_decoder import SmallDecoder, profiled_steps

_BAR = 0.10
_CAMPAIGN = """\
campaign: closure
sources: [{{profile: run_ascend_pt}}]
target: here
backend: cpu
measure: {{cache: {cache}}}
"""
_PROGRAM = "import sys; from jobs.cli import main; sys.exit(main())"


def closed(folder: Path, requests: int, steps: int, cache: str = "warm") -> dict[str, object]:
    """The sum of a decoder's step, in microseconds, and what its parts leave apart."""
    output = folder / "run_ascend_pt" / "ASCEND_PROFILER_OUTPUT"
    output.mkdir(parents=True)
    records, step_s = profiled_steps(SmallDecoder(requests), steps)
    (output / "kernel_details.csv").write_bytes(kernel_details(records))
    kernels_us = sum(one.profile.total_us for one in records if one.profile) / steps
    step_us = step_s * 1e6
    # The watched kernels may take longer than the step that nobody watched.
    computing_us = min(step_us, kernels_us)
    lines = [f"{n},{computing_us},0,{step_us - computing_us}" for n in range(steps)]
    header = "Step,Computing,Communication(Not Overlapped),Free"
    (output / FILE).write_text("\n".join((header, *lines)) + "\n")
    (folder / "campaign.yaml").write_text(_CAMPAIGN.format(cache=cache))
    _opmeter(folder, "run", "campaign.yaml", "--root", "data")
    told = json.loads(_opmeter(folder, "compare", "run_ascend_pt", "--root", "data", "--json"))
    parts = {name: value / steps for name, value in told["sum"].items()}
    rebuilt_us = parts["isolated_us"] + parts["host_us"]
    return {
        "requests": requests,
        "cache": cache,
        "steps": steps,
        "unknown_cases": [one["case"] for one in told["cases"] if one["isolated"] is None],
        **{name: round(value, 1) for name, value in parts.items()},
        "apart": round(abs(rebuilt_us - step_us) / step_us, 4),
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cache", choices=("warm", "cold"), default="warm")
    asked = parser.parse_args(words)
    is_closed = True
    for requests in asked.requests:
        with tempfile.TemporaryDirectory(prefix="opmeter-closure-") as folder:
            found = closed(Path(folder), requests, asked.steps, asked.cache)
        print(json.dumps(found))
        is_closed &= float(str(found["apart"])) <= _BAR
    return 0 if is_closed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
