"""Passes of small decoders on a CPU: `python -m tools passes FOLDER`.

It captures the operators of each pass, measures passes and operators in sessions, with one thread
and with all, predicts each pass with context factors of the other programs alone, and writes
docs/evaluation/passes.md. What FOLDER has already is not done again, so that the threads may be
measured one after the other (`--threads 1`), each while the machine is quiet; the page has those
that are measured.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean, median
from typing import Any

from collector.codec.errors import BadInput
from collector.host.machine import this_cpu
from collector.quality.statistics import percentile
from tools.command import run_opmeter

PAGE = Path(__file__).parents[1] / "docs" / "evaluation" / "passes.md"
_HEAD, _VOCABULARY, _CONTEXT, _PROMPT = 64, 4096, 128, 64
_BATCHES = (1, 4, 16)
_OPERATORS = "decoder.py"
# Passes in many sessions; operators alone; and operators behind those before them in a pass.
_CAMPAIGNS = {
    "passes": ("misses: {0}/pass.jsonl", f"[{_OPERATORS}]", "warm", "sessions: 4"),
    "operators": ("profile: {0}", "all", "warm", "sessions: 2"),
    "context": ("profile: {0}", "all", "context", "repeat_share: 0"),
}
_CAMPAIGN = """campaign: {name}
sources: [{sources}]
operators: {operators}
backend: cpu
measure: {{budget_s: 0.02, cache: {cache}}}
quality: {{{sessions}}}
"""
_GOALS = (0.10, 0.15)  # of the median error, and of 90 % of the errors


@dataclass(frozen=True, slots=True)
class Program:
    """The layout of a decoder; `experts` is 0 for a dense one."""

    what: str
    layers: int
    heads: int
    hidden: int
    experts: int = 0

    @property
    def width(self) -> int:
        return _HEAD * self.heads

    def case(self, batch: int, new: int, context: int) -> str:
        cache = f"{self.layers},{batch},{self.heads},{context},{_HEAD}"
        experts = f",{self.experts}" if self.experts else ""
        up = f"{self.layers}{experts},{self.width},{self.hidden}"
        shapes = f"{batch},{new};{cache};{cache};{_VOCABULARY},{self.width};{up}"
        kernel = "MixtureDecoder" if self.experts else "Decoder"
        return f"{kernel} {shapes} i64;f32;f32;f32;f32"


PROGRAMS = {
    "narrow": Program("4 layers of width 256", 4, 4, 1024),
    "middle": Program("6 layers of width 512", 6, 8, 1536),
    "wide": Program("3 layers of width 1,024", 3, 16, 2816),
    "mixture": Program("4 layers of width 384, 2 of 8 experts", 4, 6, 768, 8),
}
LOADS = {
    **{f"decode-{batch}": (batch, 1, _CONTEXT) for batch in _BATCHES},
    "prefill-1": (1, _PROMPT, _PROMPT),
}


@dataclass(frozen=True, slots=True)
class Point:
    """A pass with its measured and its predicted time."""

    program: str
    load: str
    threads: int
    found: Mapping[str, Any]

    @property
    def measured_us(self) -> float:
        return float(self.found["measured"]["mean_us"])

    @property
    def error(self) -> float:
        return float(self.found["time_us"]) / self.measured_us - 1

    @property
    def is_covered(self) -> bool:
        return bool(self.found["low_us"] <= self.measured_us <= self.found["high_us"])


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="captures and databases")
    parser.add_argument("--threads", type=int, help="measure with these threads alone")


def make(options: argparse.Namespace) -> int:
    """Capture and measure what is missing, and write the page."""
    folder, every = options.folder.absolute(), _thread_counts()
    if options.threads not in (None, *every):
        raise BadInput(f"--threads: expected one of {every}, got {options.threads}")
    folder.mkdir(parents=True, exist_ok=True)
    _capture(folder)
    for threads in every if options.threads is None else [options.threads]:
        _measure(folder, threads)
    measured = [threads for threads in every if (folder / _root(threads)).exists()]
    points = [_point(folder, *one) for one in _places(measured)]
    PAGE.write_text("".join(_page(points, _factors(folder, measured))), "utf-8")
    print(PAGE)
    return 0


def _capture(folder: Path) -> None:
    for name, program in PROGRAMS.items():
        for load, sizes in LOADS.items():
            place = f"{name}/{load}"
            if not (folder / place).exists():
                words = ("--operators", _OPERATORS, "--output", place)
                _opmeter(folder, "capture", "pass", program.case(*sizes), *words)


def _thread_counts() -> list[int]:
    return sorted({1, this_cpu().threads})


def _places(every: Sequence[int]) -> Iterator[tuple[str, str, int]]:
    return ((name, load, threads) for threads in every for name in PROGRAMS for load in LOADS)


def _measure(folder: Path, threads: int) -> None:
    """Measure the passes and their operators on the first cores of this machine."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(cores)[:threads])
    try:
        for name, (source, operators, cache, sessions) in _CAMPAIGNS.items():
            sources = (
                f"{{{source.format(f'{one}/{load}')}}}" for one in PROGRAMS for load in LOADS
            )
            listed = ", ".join(sources)
            text = _CAMPAIGN.format(
                name=f"{name}-{threads}",
                sources=listed,
                operators=operators,
                cache=cache,
                sessions=sessions,
            )
            campaign = f"{name}-{threads}.yaml"
            (folder / campaign).write_text(text, "utf-8")
            _opmeter(folder, "run", campaign, "--root", _root(threads))
    finally:
        os.sched_setaffinity(0, cores)


def _root(threads: int) -> str:
    return f"database-{threads}"


def _point(folder: Path, name: str, load: str, threads: int) -> Point:
    """Predict a pass with the factors of the other programs."""
    fit = [word for other in PROGRAMS if other != name for word in ("--fit", other)]
    words = ("step", f"{name}/{load}", *fit, "--against", "--json", "--root", _root(threads))
    return Point(name, load, threads, json.loads(_opmeter(folder, *words)))


def _factors(folder: Path, every: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """Return what all programs together give, by the number of threads."""
    named = [word for name in PROGRAMS for word in ("--fit", name)]
    words = ("mixture/decode-4", *named, "--json")
    return {
        threads: json.loads(_opmeter(folder, "step", *words, "--root", _root(threads)))
        for threads in every
    }


def _opmeter(folder: Path, *words: str) -> str:
    done = run_opmeter(folder, *words)
    if done.returncode not in (0, 1):  # 1: a case failed, which the page has as unknown
        done.check_returncode()
    return done.stdout


def _page(points: Sequence[Point], factors: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    yield "# Passes on a CPU\n\n"
    yield "<!-- Generated by `python -m tools passes`: do not edit. -->\n\n"
    yield (
        "Passes of small decoders in torch, each [measured as a whole](../how-to/predict-a-step.md"
        "#5-explain-a-pass-of-your-own) by the clock, and predicted from its operators, measured "
        "alone and behind the launches before them. The context factors and the time of the host "
        "are fitted to the passes of the three other programs alone. "
        f"{datetime.now(UTC):%Y-%m-%d}, {this_cpu().device}, torch "
        f"{version('torch')}; 4 sessions of each pass, 2 of each operator alone and 1 behind those "
        "before it, a budget of 0.02 s.\n\n"
    )
    errors = [abs(one.error) for one in points]
    within = sum(error <= _GOALS[1] for error in errors) / len(errors)
    covered = sum(one.is_covered for one in points) / len(points)
    yield "|Goal|Here|Met|\n|---|---|---|\n"
    middle = median(errors)
    for goal, here, is_met in (
        ("median error at most 10 %", f"{100 * middle:.1f} %", middle <= _GOALS[0]),
        ("90 % of the errors within 15 %", f"{100 * within:.0f} %", within >= 0.9),
        ("intervals contain 85 to 97 %", f"{100 * covered:.0f} %", 0.85 <= covered <= 0.97),
    ):
        yield f"|{goal}|{here}|{'yes' if is_met else 'no'}|\n"
    if missing := sorted({*_thread_counts()} - {one.threads for one in points}):
        listed = ", ".join(map(str, missing))
        yield f"\nNot measured yet: passes with threads: {listed}.\n"
    yield from _why(points)
    yield "\n## Every point\n\nThe worst is first, and none is left out.\n\n"
    header = (
        *("Program", "Load", "Threads", "Measured, ms", "95 % interval", "Predicted, ms"),
        *("95 % interval", "Error", "Operators alone", "Neighbours", "Factors", "Host"),
        "Warnings",
    )
    yield f"|{'|'.join(header)}|\n{'|---' * len(header)}|\n"
    for one in sorted(points, key=lambda one: -abs(one.error)):
        known, parts = one.found["measured"], one.found["parts_us"]
        cells = (
            *(one.program, one.load, str(one.threads)),
            *(_ms(one.measured_us), _range_ms(known)),
            *(_ms(one.found["time_us"]), _range_ms(one.found)),
            f"{100 * one.error:+.1f} %{'' if one.is_covered else ', outside'}",
            _ms(parts["operators, alone"] + parts["operators, unknown"]),
            *(_ms(parts["neighbours, measured"]), _ms(parts["context factors"])),
            _ms(parts["host"]),
            known["warnings"].replace(";", ", "),
        )
        yield f"|{'|'.join(cells)}|\n"
    yield (
        "\n`Operators alone` is the sum of their times alone, `Neighbours` what they take "
        "more behind the launches before them (`cache: context`), `Factors` what they take more in "
        "a pass by the factors below, `Host` the time between them. They add up to the prediction; "
        "the error is the residual.\n"
    )
    yield "\n## Programs\n\n"
    yield "|Program|Layout|Mean error|Largest|Within 15 %|\n|---|---|---|---|---|\n"
    for name, program in PROGRAMS.items():
        own = [one.error for one in points if one.program == name]
        near = sum(abs(error) <= _GOALS[1] for error in own)
        texts = (
            f"{100 * fmean(own):+.0f} %",
            f"{100 * max(own, key=lambda error: abs(error)):+.0f} %",
        )
        about = f"{program.what}, {_VOCABULARY:,} tokens"
        yield f"|`{name}`|{about}|{'|'.join(texts)}|{near} of {len(own)}|\n"
    yield (
        f"\n`decode-N` decodes one token for each of N requests with {_CONTEXT} tokens, "
        f"`prefill-1` a prompt of {_PROMPT}.\n"
    )
    yield from _factor_lines(factors)
    yield "\n## Make it again\n\n```sh\npython -m tools passes FOLDER\n```\n"


def _why(points: Sequence[Point]) -> Iterator[str]:
    """Yield what the sessions themselves differ by, and how much is disturbed."""
    known = [one.found["measured"] for one in points]
    widths = sorted(
        (one["high_us"] / one["low_us"]) ** 0.5 - 1
        for one in known
        if one["low_us"] and one["high_us"]
    )
    disturbed = sum("disturbed" in one["warnings"] for one in known)
    alone = [
        abs(sum(one.found["parts_us"][name] for name in _ALONE) / one.measured_us - 1)
        for one in points
    ]
    if widths:
        yield (
            "\nThe measured times themselves have a median half-width of "
            f"{100 * median(widths):.0f} %, and {100 * percentile(widths, 0.9):.0f} % at the 90th "
            f"percentile; {disturbed} of {len(points)} are disturbed by other programs.\n"
        )
    if disturbed > len(points) / 2:
        yield (
            "The machine was busy: most passes have the warning `disturbed`, and their intervals "
            "over sessions are wider than the goals. These figures do not show how exact a "
            "prediction is: make the page again on a quiet machine.\n"
        )
    yield (
        f"The sum of the operators alone, without factors and host, misses by "
        f"{100 * median(alone):.0f} % at the median.\n"
    )


_ALONE = ("operators, alone", "operators, unknown")


def _factor_lines(factors: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    yield "\n## Context factors\n\n"
    yield (
        "The time of a kernel type in a pass in relation to its time behind the launches before "
        "it, fitted to all programs, with 95 % intervals. The prior is 1 (0.41 to 1.59): where a "
        "row has these numbers, the passes say nothing. Kernel types of the mixture.\n\n"
    )
    threads = sorted(factors)
    header = ("Kernel type", *(f"{count} thread{'s' if count > 1 else ''}" for count in threads))
    yield f"|{'|'.join(header)}|\n{'|---' * len(header)}|\n"
    by_kernel = {
        count: {one["kernel_type"]: one["factor"] for one in factors[count]["kernels"]}
        for count in threads
    }
    for kernel in sorted(set().union(*by_kernel.values())):
        cells = (_factor_text(by_kernel[count].get(kernel)) for count in threads)
        yield f"|`{kernel}`|{'|'.join(cells)}|\n"
    hosts = (_factor_text(factors[count]["host_call"]) + " us" for count in threads)
    yield f"|host, each call|{'|'.join(hosts)}|\n"


def _factor_text(found: Mapping[str, float] | None) -> str:
    if found is None:
        return "-"
    return f"{found['value']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def _ms(us: float) -> str:
    return f"{us / 1000:.3g}"


def _range_ms(found: Mapping[str, Any]) -> str:
    if found["low_us"] is None or found["high_us"] is None:
        return "-"
    return f"{_ms(found['low_us'])} to {_ms(found['high_us'])}"
