"""The lines that a run ends with, made of its summary. Pure."""

from collector.counting import counted, share_of
from collector.database.commits import Commit
from collector.manifest import Usage
from collector.measurement import Outcome
from collector.plan import Plan
from collector.printable import in_one_line
from jobs.status.quality_lines import brief_lines, identity_lines
from jobs.status.summary import NOBODY, Summary

_LISTED = 25
# Of the repeats of all cases, and of the cases: from there on it is the machine that is busy.
_BUSY = 0.5
_MANY_DISTURBED = 0.1
# What measuring once more would not change, or what the plain command does by itself.
_FOR_GOOD = (Outcome.UNSUPPORTED, Outcome.REJECTED, NOBODY)


def describe(summary: Summary, plan: Plan, head: Commit | None, url: str) -> list[str]:
    """The lines that end a run."""
    version = f"version {head.number}" if head else "no version yet"
    more = counted(summary.in_tree, "more has one in its tree", "more have one in their tree")
    in_tree = f"; {more}" if summary.in_tree else ""
    share = summary.communication
    communication = ""
    if share is not None:
        communication = (
            f", which is {100 * (1 - share):.1f} % of device time; communication "
            f"{100 * share:.1f} %: opmeter comm"
        )
    lines = [
        *(_disturbed(summary) if _is_busy(summary) else []),
        f"database    {url}, {version}",
        f"stack       {plan.stack.version_path}",
        f"coverage    {summary.measured_cases:,} of {counted(summary.cases, 'case')}, "
        f"{share_of(summary.measured_rows, summary.rows)} of the rows, "
        f"{share_of(summary.measured_time_us, summary.time_us)} of its compute time"
        f"{communication}{in_tree}",
    ]
    if head is not None and head.runtime != "real":
        lines.append(f"runtime     {head.runtime}: none of these durations is from a device")
    if not _is_busy(summary):
        lines += _disturbed(summary)
    if summary.noisy:
        lines.append(
            f"noisy       {summary.noisy:,} of {counted(summary.measured_cases, 'duration')}, by a "
            "warning in the certificate (a wide spread, few repeats); close other programs, --again"
        )
    lines += [*_precise(summary, plan), *_density(plan), *_above(summary)]
    if summary.quality is not None and summary.quality.durations:
        lines += [*identity_lines(summary.quality), *brief_lines(summary.quality)]
    lines += _efficiency(summary.usage, plan)
    for failure in summary.failures[:_LISTED]:
        lines.append(
            f"{failure.outcome:<11} {failure.kernel_type}: {counted(failure.cases, 'case')}, "
            f"{counted(failure.rows, 'row')}, {failure.time_us / 1000:.2f} ms of compute time: "
            f"{failure.reason}"
        )
    if len(summary.failures) > _LISTED:
        lines.append(f"... and {counted(len(summary.failures) - _LISTED, 'more reason')}")
    if any(failure.outcome not in _FOR_GOOD for failure in summary.failures):
        lines.append("again       a failure remains recorded; --retry-failed measures it again")
    return lines


def _is_busy(summary: Summary) -> bool:
    """Whether it is the machine that is busy, and not some cases that were unlucky."""
    return summary.busy >= _BUSY or summary.disturbed > _MANY_DISTURBED * summary.measured_cases


def _disturbed(summary: Summary) -> list[str]:
    """Said before anything else where the machine is busy."""
    if not (summary.disturbed or _is_busy(summary)):
        return []
    return [
        f"{'busy' if _is_busy(summary) else 'disturbed':<11} another process used the device, or "
        f"slowed it, in {100 * summary.busy:.0f} % of all repeats; {summary.disturbed:,} of "
        f"{counted(summary.measured_cases, 'duration')} have only such repeats, and may be "
        "several times too long; close other programs, --again"
    ]


def _precise(summary: Summary, plan: Plan) -> list[str]:
    """Said where a precision was requested. What ends the repeats is a host's clock; this is what
    the profiler has recorded."""
    asked = plan.measure.precision
    if asked is None or not summary.measured_cases:
        return []
    return [
        f"precision   {100 * asked:g} % was requested: the mean of {summary.precise:,} of "
        f"{counted(summary.measured_cases, 'duration')} has that precision within its session"
    ]


def _density(plan: Plan) -> list[str]:
    """Said of the cases that are left to the models of surfaces."""
    told = plan.forecast
    if not told.left_out:
        return []
    return [
        f"density     {counted(told.left_out, 'case is', 'cases are')} left out: the surfaces "
        f"measured so far predict all but {told.unsure:,} of them within the tolerance"
    ]


def _above(summary: Summary) -> list[str]:
    above = summary.envelope.above
    if not above:
        return []
    worst = above[0]
    return [
        f"envelope    {len(above):,} of {counted(summary.measured_cases, 'duration')} "
        "are more than twice that of a case at least as large in every shape; either is suspect: "
        f"{in_one_line(worst.case.describe())} took {worst.mean_us:.1f} us, "
        f"{in_one_line(worst.larger.describe())} {worst.larger_us:.1f} us",
        *(
            f"disorder    {one.kernel_type}: {one.above:,} of {counted(one.cases, 'duration')} "
            "are, more than shapes explain: a host delayed some launches, or records are mixed up"
            for one in summary.envelope.out_of_order
        ),
    ]


def _efficiency(usage: Usage, plan: Plan) -> list[str]:
    """How well the devices were used: `busy` with any operator, `useful` with repeats that count;
    and what the newest plan took compared with its forecast and the forecast's lower bound."""
    if usage.wall_s <= 0:
        return []
    forecast, wall_s = plan.forecast, usage.wall_s / plan.devices
    return [
        f"efficiency  device busy {share_of(usage.busy_us / 1e6, usage.wall_s)}, useful "
        f"{share_of(usage.useful_us / 1e6, usage.wall_s)} of {usage.wall_s:.0f} s in sessions; "
        f"{usage.startup_s:.0f} s went into starting them",
        f"time        plan {plan.number} took {wall_s:.0f} s in sessions; forecast "
        f"{forecast.wall_s:.0f} s, lower bound {forecast.floor_s:.0f} s "
        f"({share_of(forecast.floor_s, wall_s)})",
    ]
