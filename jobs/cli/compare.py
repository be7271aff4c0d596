"""`opmeter compare`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import fsum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from collector.codec.errors import BadInput
from collector.codec.text import counted, percent, time_text
from collector.model.measurement import CONTEXT
from collector.model.stack import backend_of
from jobs.cli.look_up import open_version, profiled_records
from jobs.cli.options import ComparisonOptions, check_cache
from jobs.cli.recordings import compare_with_recording
from jobs.cli.terminal import print_json, say_lines

if TYPE_CHECKING:
    from collector.profiles.step_trace import StepTrace
    from collector.report.comparison import ComparedCase, StaticGain, StepSum
    from collector.report.step_pages import ComparedStep

_LISTED = 10
_KERNEL_WIDTH = 32
_QUANTILES = ("p10", "p50", "p90")
_MEANINGS = {
    "isolated": "isolated time of the kernels",
    "neighbours": "additional time of the same kernels in context, as measured",
    "context": "remaining additional time of the same kernels in the run",
    "unknown": "kernels without an isolated time",
    "overlap": "computing time minus the time of the kernels: some ran concurrently",
    "messages": "isolated time of the collectives",
    "waiting": "other exposed communication: waiting, contention, unknown messages",
    "host": "idle device",
}


def compare_command(
    profile: Annotated[Path, typer.Argument(help="profile, or a folder of profiles")],
    where: ComparisonOptions,
    *,
    recording: Annotated[
        Path | None,
        typer.Option(help="recording of `opmeter model record` to compare with, not a version"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print every case as JSON")] = False,
) -> None:
    """Compare a profile with a version of the database, or with the cases of a recording.

    The times of the run (in situ) are compared with the isolated times, by kernel type and by case.
    The step of the run is rebuilt from the isolated times; the difference is listed by cause. A
    version of another kind of device than the profile's is refused without --force.

    \b
    Examples:
      opmeter compare PROF_000001
      opmeter compare PROF_000001 --grid 48,8,2 --json
      opmeter compare PROF_000001 --recording qwen3-32b.json.gz
    """
    if recording is not None:
        if where != ComparisonOptions(where.root):
            raise BadInput("--recording excludes the options of a version")
        compare_with_recording(profile, recording, as_json=as_json)
        return
    found = compared_step(profile, where)
    if as_json:
        _print_json(found)
        return
    say_lines(_lines(found))


def compared_step(profile: Path, where: ComparisonOptions) -> ComparedStep:
    """Return a profile next to the durations of a version directory. Raises BadInput for one of
    another kind of device than the profile's, without `force`."""
    from collector.capture.verdict import captured_on
    from collector.profiles.discovery import find_profiles
    from collector.profiles.step_trace import read_step_trace
    from collector.report.comparison import (
        compare_cases,
        isolated_times,
        m6,
        static_gains,
        step_sum,
    )
    from collector.report.step_pages import ComparedStep
    from jobs.planning.forecast import peaks_of
    from jobs.planning.workload import roofline_us

    check_cache(where.cache)
    if where.cache == CONTEXT:
        raise BadInput("--cache: expected warm or cold, got context, which compare always includes")
    find_profiles([profile])
    shown = open_version(where.root, where.version, where.directory)
    backend = captured_on(profile)
    if backend_of(shown.stack.device) != backend and not where.force:
        raise BadInput(
            f"{shown.place}: expected durations of the profile's backend, {backend}, got those of "
            f"{shown.stack.device}; name another --directory, or compare anyway with --force"
        )
    peaks = peaks_of(shown.stack)
    records = profiled_records(profile, where.grid, shown)
    apart, why = isolated_times(shown.state, shown.place, cache=where.cache)
    in_context, _ = isolated_times(shown.state, shown.place, cache=CONTEXT)
    found = compare_cases(records, apart, why, in_context)
    trace = read_step_trace(profile)
    known = m6(found, trace, lambda record: roofline_us(record.case, peaks)) if trace else None
    parts = step_sum(found, trace) if trace else None
    gains = static_gains(records, apart)
    other = ""
    if backend_of(shown.stack.device) != backend:
        other = f"profile of {backend}, durations of {shown.stack.device}"
    return ComparedStep(
        *(profile.name, shown.place, found, trace, parts, known), gains=gains, other_device=other
    )


def _lines(step: ComparedStep) -> Iterator[str]:
    from collector.report.comparison import by_kernel

    found, known = step.cases, step.known
    yield f"version     {step.place}"
    exact = sum(one.isolated is not None for one in found)
    behind = sum(one.in_context is not None for one in found)
    more = f", {behind:,} also a time in context" if behind else ""
    yield f"cases       {exact:,} of {counted(len(found), 'case')} have an isolated time{more}"
    yield from _warning_lines(found)
    yield from _step_lines(step.trace, step.parts)
    if known is not None:
        yield (
            f"M6          {known.covered:.2f} covered in situ, {known.forecast:.2f} forecast with "
            f"rooflines, {known.isolated:.2f} isolated; of the computing and exposed communication "
            "time"
        )
    over = ", then to the time in context" if behind else ""
    yield f"ratio of the time in situ to the isolated time{over}: percentiles over launches"
    names = "".join(f"{name:>9}" for name in _QUANTILES * (2 if behind else 1))
    yield f"  {'kernel type':<{_KERNEL_WIDTH}} {'in situ':>14} {'compared':>9}{names}"
    for row in by_kernel(found):
        spread = _spread_text(row.ratios)
        if row.context_ratios:
            spread += _spread_text(row.context_ratios)
        share = row.compared_us / row.in_situ_us if row.in_situ_us else 0.0
        yield (
            f"  {row.kernel_type:<{_KERNEL_WIDTH}} {time_text(row.in_situ_us):>14} "
            f"{percent(share, 0):>10}{spread}"
        )
    yield from _gain_lines(step.gains)
    yield from _largest(found)


def _warning_lines(found: Sequence[ComparedCase]) -> Iterator[str]:
    """Yield how many of the durations have warnings, and how much of the isolated time."""
    warned = [one for one in found if one.warnings]
    if not warned:
        return
    names = Counter(name for one in warned for name in one.warnings.split(";"))
    known_us = fsum(one.isolated_us for one in found)
    share = fsum(one.isolated_us for one in warned) / known_us if known_us else 0.0
    by_name = ", ".join(f"{count:,} by {name}" for name, count in names.most_common())
    durations = counted(len(warned), "duration")
    yield f"warnings    {durations}, {percent(share, 0)} of the isolated time: {by_name}"


def _gain_lines(gains: Sequence[StaticGain]) -> Iterator[str]:
    if not gains:
        return
    yield "static kernels next to dynamic ones: isolated time of the launches in the profile"
    yield f"  {'kernel type':<{_KERNEL_WIDTH}} {'dynamic':>14} {'static':>14} {'gain':>9}"
    for one in gains:
        times = f"{time_text(one.dynamic_us):>14} {time_text(one.static_us):>14}"
        yield f"  {one.kernel_type:<{_KERNEL_WIDTH}} {times} {percent(one.gain):>10}"


def _spread_text(ratios: Sequence[float] | None) -> str:
    return "".join(f"{ratio:9.3g}" for ratio in ratios) if ratios else f"{'-':>9}" * 3


def _step_lines(trace: StepTrace | None, parts: StepSum | None) -> Iterator[str]:
    if trace is None or parts is None:
        yield "step        unknown: the profile has no step_trace_time.csv"
        return
    yield f"step        {time_text(parts.measured_us)} of {counted(trace.steps, 'step')}"
    for name, part_us in parts.parts:
        share = part_us / parts.measured_us if parts.measured_us else 0.0
        took = time_text(round(part_us, 3))
        yield f"  {name:<10} {took:>15} {percent(share):>8}  {_MEANINGS[name]}"


def _largest(found: Sequence[ComparedCase]) -> Iterator[str]:
    unknown = sorted((one for one in found if not one.isolated), key=_unexplained_us)
    if unknown:
        yield "without an isolated time; a campaign with this profile as a source measures them"
    for one in reversed(unknown[-_LISTED:]):
        time = time_text(one.in_situ.total_us)
        yield f"  {time:>14} {one.why:<12} {one.record.case.describe()}"
    apart = sorted((one for one in found if one.isolated), key=_unexplained_us)
    if apart:
        yield "largest differences from the isolated time, over all launches of a case"
    for one in reversed(apart[-_LISTED:]):
        yield f"  {time_text(_unexplained_us(one)):>14} {_isolated_text(one)}"


def _unexplained_us(one: ComparedCase) -> float:
    return abs(one.in_situ.total_us - one.isolated_us)


def _isolated_text(one: ComparedCase) -> str:
    assert one.isolated is not None
    known = one.isolated
    bounds = f" ({known.low_us:.4g} to {known.high_us:.4g})" if known.low_us else ""
    twin = f" as {one.kernel_type}" if one.kernel_type != one.record.case.kernel_type else ""
    times = f"{one.in_situ.mean_us:.4g} us in situ, {known.mean_us:.4g}{bounds} isolated{twin}"
    if one.in_context:
        times += f", {one.in_context.mean_us:.4g} in context"
    times += f", warnings {one.warnings}" if one.warnings else ""
    return f"{times}: {one.record.case.describe()}"


def _print_json(step: ComparedStep) -> None:
    from collector.report.comparison import by_kernel

    cases = [
        {
            "case_id": one.record.case_id,
            "kernel_type": one.record.case.kernel_type,
            "case": one.record.case.describe(),
            "in_situ": {
                "launches": one.in_situ.count,
                "mean_us": one.in_situ.mean_us,
                "std_us": one.in_situ.std_us,
            },
            "isolated": one.isolated,
            "measured_as": one.kernel_type if one.isolated else None,
            "in_context": one.in_context,
            "ratio": one.ratio,
            "context_ratio": one.context_ratio,
            "why": one.why,
            "warnings": one.warnings,
        }
        for one in step.cases
    ]
    print_json(
        {
            "version": step.place,
            "steps": step.trace,
            "sum": step.parts,
            "m6": step.known,
            "kernels": by_kernel(step.cases),
            "static": [{**asdict(one), "gain": one.gain} for one in step.gains],
            "cases": cases,
        }
    )
