"""The share of the sources' device time that can be measured, and the rest with its reasons.

    share  99.2 % of the compute time can be measured; computing is 35.5 % of the device time, ...
    gap    MemSet: 1 case, 26 rows, 1.76 ms of compute time: its inputs are unknown (N/A in ...

All cases of the sources count, whether or not a plan selects them.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from collector.codec.text import counted, share_of
from collector.model.plan import AGAIN_SHARE, MORE_REPEATS_SHARE, Forecast, Plan, PlannedSource
from collector.ops.refusals import FindOperator, Refusal
from jobs.planning.candidates import Candidate, refusal_in_plan


@dataclass(frozen=True, slots=True)
class RefusedCase:
    """A case that no device of the plan runs."""

    candidate: Candidate
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class RefusedCases:
    """The refused cases of one kernel type under one rule, longest total time first."""

    kernel_type: str
    cases: tuple[RefusedCase, ...]

    @property
    def reason(self) -> str:
        """Return the full reason of the first case: the rule, and the case for a shape rule."""
        return self.cases[0].refusal.reason

    @property
    def rows(self) -> int:
        return sum(case.candidate.weight.rows for case in self.cases)

    @property
    def time_us(self) -> float:
        return fsum(case.candidate.weight.time_us for case in self.cases)


@dataclass(frozen=True, slots=True)
class Shares:
    """Compute time of the campaign's cases in the sources, if these report any.

    `measurable_us` and `unknown_us` are parts of `compute_us`; `unknown_us` is the time of rows
    whose inputs no profiler reported."""

    compute_us: float
    measurable_us: float
    unknown_us: float


def refused_cases(
    candidates: Iterable[Candidate],
    find: FindOperator,
    backend: str,
    devices: int,
    cache: str,
    device: str,
) -> list[RefusedCase]:
    """Return the candidates that get their outcome without a device."""
    found = []
    for candidate in candidates:
        place = (backend, devices, cache, device)
        no = refusal_in_plan(candidate.record.case, find, *place)
        if no is not None:
            found.append(RefusedCase(candidate, no))
    return found


def find_gaps(refused: Iterable[RefusedCase]) -> tuple[RefusedCases, ...]:
    """Return the refused cases by kernel type and rule, longest total time first."""
    alike: dict[tuple[str, str], list[RefusedCase]] = defaultdict(list)
    for case in refused:
        alike[case.candidate.record.case.kernel_type, case.refusal.why].append(case)
    listed = [
        RefusedCases(kernel_type, tuple(sorted(cases, key=_most_time)))
        for (kernel_type, _), cases in alike.items()
    ]
    return tuple(sorted(listed, key=lambda gap: (-gap.time_us, -gap.rows, gap.kernel_type)))


def shares(candidates: Sequence[Candidate], refused: Sequence[Candidate]) -> Shares:
    """Return how the compute time of the candidates divides."""
    compute_us = fsum(candidate.weight.time_us for candidate in candidates)
    refused_us = fsum(one.weight.time_us for one in refused)
    unknown = (one.weight.time_us for one in refused if one.record.case.inputs is None)
    return Shares(compute_us, compute_us - refused_us, fsum(unknown))


def planned_shares(plan: Plan) -> Shares:
    lines = plan.forecast
    return Shares(lines.compute_us, lines.measurable_us, lines.unknown_us)


def communication_of(sources: Iterable[PlannedSource]) -> str:
    """Return how the device time of whole sources divides into computing and communication, also if
    a campaign has some of their operators only; empty if they report no communication."""
    times = [(source.compute_us, source.communication_us) for source in sources]
    compute_us, communication_us = map(fsum, zip(*times, strict=True)) if times else (0.0, 0.0)
    total_us = compute_us + communication_us
    if communication_us <= 0:
        return ""
    return (
        f"computing is {share_of(compute_us, total_us)} of the device time, communication "
        f"{share_of(communication_us, total_us)} (`opmeter comm` measures it)"
    )


def share_line(lines: Shares, sources: Iterable[PlannedSource]) -> str:
    """Return the shares as a sentence; empty if the sources report no time."""
    if lines.compute_us <= 0:
        return ""
    line = f"{share_of(lines.measurable_us, lines.compute_us)} of the compute time can be measured"
    if lines.unknown_us > 0:
        line += f", {share_of(lines.unknown_us, lines.compute_us)} has unknown inputs (N/A)"
    return "; ".join(filter(None, (line, communication_of(sources))))


def _most_time(case: RefusedCase) -> tuple[float, int, str]:
    weight = case.candidate.weight
    return (-weight.time_us, -weight.rows, case.candidate.record.case_id)


# The forecast of a plan as text, printed before anything starts.


def describe_forecast(plan: Plan) -> list[str]:
    """Return the lines to print before anything starts, one fact per line."""
    forecast, devices = plan.forecast, counted(plan.devices, "device")
    hours = forecast.device_s / 3600
    return [
        f"cases      {forecast.cases:,} in {counted(len(plan.shards), 'shard')}; "
        f"{forecast.unsupported:,} unsupported, {forecast.answered:,} measured before"
        + (f"; {forecast.narrowed:,} of them are measured again" if forecast.narrowed else "")
        + (
            f"; {forecast.doubtful:,} of suspect sessions are measured again"
            if forecast.doubtful
            else ""
        )
        + _repeats(forecast),
        f"device     {forecast.device_s:,.0f} device-seconds ({hours:,.2f} device-hours)",
        *_left_out_lines(plan),
        f"wall time  {_duration(forecast.wall_s)} on {devices}; "
        f"the lower bound is {_duration(forecast.floor_s)}",
        *([_again_line(plan)] if forecast.doubtful else []),
        _busy_line(plan.backend),
        # The name of a source includes the rows that it could not give as cases.
        *(f"source     {source.name}" for source in plan.sources if "(" in source.name),
    ]


def _repeats(forecast: Forecast) -> str:
    """Return how many cases have further sessions, as the end of a line."""
    more, cases = forecast.repeats, forecast.cases
    if more > cases > 0 and more % cases == 0:
        return f"; each is measured in {1 + more // cases} sessions"
    return f"; {more:,} are measured twice" if more else ""


def _left_out_lines(plan: Plan) -> list[str]:
    forecast, old = plan.forecast, plan.upgrade_from
    more = "; another round follows" if forecast.learning else ""
    if old is not None and not forecast.left_out:
        return [
            f"upgrade    no case is reused from {old.version_path}: kernels differ by more than "
            f"{old.margin:.3g}, have too few cases, or their intervals are too wide to tell"
        ]
    if old is not None:
        reused = counted(forecast.left_out - forecast.unsure, "case is", "cases are")
        waiting = f", {forecast.unsure:,} wait for a sample of {forecast.learning:,}"
        return [
            f"upgrade    {reused} reused from {old.version_path}, equal within "
            f"{old.margin:.3g}{waiting if forecast.unsure else ''}{more}"
        ]
    if not forecast.left_out:
        return []
    return [
        f"sampling   {forecast.left_out:,} cases are omitted, {forecast.unsure:,} of them not "
        f"known within the tolerance{more}"
    ]


def _again_line(plan: Plan) -> str:
    if plan.devices > 1:
        return "again      on another device or node if one is available"
    return "again      on the same device, or on another node if one is available"


def _busy_line(backend: str) -> str:
    """Return the extra time if another process uses the device; a CPU also adds repeats."""
    if backend != "cpu":
        return f"disturbed  up to {AGAIN_SHARE * 100:.0f} % more for cases that are measured again"
    most = (1 + MORE_REPEATS_SHARE) * (1 + AGAIN_SHARE) - 1
    return f"disturbed  up to {most * 100:.0f} % more for repeats that waited for a CPU core"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.1f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
