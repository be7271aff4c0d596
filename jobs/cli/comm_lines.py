"""Output lines of `opmeter comm`: the plan, the results, and the lines fitted through them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from collector.codec.text import counted

if TYPE_CHECKING:
    from collector.comm.bench_plan import BenchPlan, LeftOut
    from collector.comm.check import CheckedRow
    from collector.comm.comm_table import FileChange
    from collector.comm.measured import BenchOutcome
    from collector.comm.profiled import Profiled
    from collector.ranks.collective import Collective

_LISTED, _SIZES_LISTED = 20, 8


def plan_lines(plan: BenchPlan) -> Iterator[str]:
    """Yield a line for each operation, group and mode, and one for the cost of all."""
    for _, group in groupby(
        plan.collectives,
        key=lambda one: (
            *(one.operation, one.group_size, one.tier, one.together),
            plan.mode_of(one),
        ),
    ):
        cases = list(group)
        one, groups = cases[0], plan.groups(cases[0])
        at_once = " at once" if one.together else ""
        ranks = ", ".join(map(str, groups[0][:4])) + (" ..." if len(groups[0]) > 4 else "")
        yield (
            f"{one.operation} over {one.group_size} ranks of tier {one.tier}: "
            f"{counted(len(groups), 'group')}{at_once}, ranks {ranks}; "
            f"{counted(len(cases), 'size')}, {one.message_bytes} to {cases[-1].message_bytes} "
            f"bytes, mode {plan.mode_of(one)}"
        )
    rounds = counted(plan.rounds, "round")
    yield (
        f"{counted(len(plan.collectives), 'case')}, {rounds}, {plan.budget_s:g} s for each case "
        f"and round: about {plan.expected_s:.0f} s on {plan.world} ranks, "
        f"{plan.expected_s * plan.world:.0f} s of device time"
    )


def profile_lines(found: Sequence[Profiled]) -> Iterator[str]:
    """Yield the collectives of a profile, longest first, and the share of their time that cases
    cover."""
    from collector.comm.profiled import share

    for one in found:
        what = one.reason or f"{'about ' if one.is_derived else ''}{one.collective}"
        what += ", tier assumed" if one.tier_assumed else ""
        times = counted(one.count, "time")
        yield f"{one.kernel_type} {times}, {one.total_us / 1e3:.3f} ms: {what}"
    total_ms = sum(one.total_us for one in found) / 1e3
    cases = counted(sum(one.collective is not None for one in found), "case")
    yield f"{total_ms:.3f} ms of communication, {share(found):.1%} of it in {cases}"


def found_lines(found: BenchOutcome) -> Iterator[str]:
    """Yield what was left out, wrong results, jumps, fitted lines and the spread of rounds."""
    from collector.comm.check import point_of

    yield from left_out_lines("not measured", found.left_out)
    yield from left_out_lines("wrong", found.wrong)
    yield from (f"jump: {one.collective}: {one.jump}" for one in found.measured if one.jump)
    yield from fit_lines([point_of(one) for one in found.measured if not one.collective.together])
    if found.measured and len(found.measured[0].timings) > 1:
        yield (
            f"rounds differ from the median of their case by less than {found.round_p95:.1%} in "
            "95 % of the cases"
        )


def fit_lines(points: Iterable[CheckedRow]) -> Iterator[str]:
    """Yield alpha and beta of each operation, group size and tier, with the error of the fit."""
    from collector.comm.check import series_of

    for series in series_of(points):
        one, line = series.points[0], series.line
        name = f"{one.operation} over {one.group_size} ranks of tier {one.tier or '?'}"
        if line is None:
            yield f"{name}: {counted(len(series.points), 'size')}, too few for a fit"
            continue
        yield (
            f"{name}: {line.alpha_us:.1f} us + bytes / {line.bandwidth_gbps:.3f} GB/s; "
            f"error {line.typical:.0%} (median), {line.worst:.0%} at {line.worst_bytes} bytes"
        )


def change_line(change: FileChange) -> str:
    """Return the changes of a file in a line."""
    twice = f"; {counted(change.twice, 'key')} occurred more than once" if change.twice else ""
    return f"{change.path}: {counted(change.added, 'row')} added, {change.changed} changed{twice}"


def left_out_lines(what: str, cases: Sequence[LeftOut]) -> Iterator[str]:
    """Yield a line for the cases of each group and reason, up to a maximum of lines."""
    alike: dict[tuple[str, Collective], list[Collective]] = {}
    for one in cases:
        group = replace(one.collective, operation="", message_bytes=0)
        alike.setdefault((one.reason, group), []).append(one.collective)
    for (reason, _), found in list(alike.items())[:_LISTED]:
        yield f"{what}: {_together(found)}: {reason}"
    if rest := sum(map(len, list(alike.values())[_LISTED:])):
        yield f"{what}: {counted(rest, 'more case')}"


def _together(cases: Sequence[Collective]) -> str:
    """Return the cases of one group in a line: each size, or the range of many."""
    if len(cases) == 1:
        return str(cases[0])
    operations = ", ".join(dict.fromkeys(one.operation for one in cases))
    sizes = sorted({one.message_bytes for one in cases})
    recorded = ", ".join(map(str, sizes))
    if len(sizes) > _SIZES_LISTED:
        recorded = f"{counted(len(sizes), 'size')} from {sizes[0]} to {sizes[-1]}"
    one = cases[0]
    at_once = ", all groups at once" if one.together else ""
    where = f"over {one.group_size} ranks of tier {one.tier}{at_once}"
    return f"{operations} of {recorded} bytes of {one.dtype} {where} ({len(cases)} cases)"
