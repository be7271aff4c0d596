"""Lines of text about a plan, a summary and the quality of durations, for the terminal. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from collector.codec.text import (
    counted,
    half_width_text,
    share_of,
    three_digits,
    time_text,
    whole_in_one_line,
)
from collector.database.commits import Commit
from collector.database.version_quality import WIDTHS, Need, SuspectCase, Verdict, VersionQuality
from collector.model.manifest import Usage
from collector.model.measurement import UNMEASURABLE, Outcome, Proof
from collector.model.plan import Plan
from collector.quality.canaries import DeviceFactor
from collector.quality.gates import DISTURBED
from collector.quality.pooled import SessionDifferences
from collector.store.opening import DEFAULT_ROOT, command_on
from jobs.planning.gaps import communication_of, planned_shares, share_line
from jobs.status.plan_status import OutcomeKind, PlanStatus, ShardStatus
from jobs.status.summary import NEVER_TRIED, NewMeasurements, Summary
from opmeter.accuracy import KernelAccuracy

# The output of `opmeter status` for a plan: bars, hours, pace, and cases without a result. Pure.

_BAR = 20
_SHARDS, _FAILURES = 20, 25


def head_line(status: PlanStatus, devices: int = 0) -> str:
    """Return one line for a plan: shards, cases, cases measured a second time, and the time left.

    `devices` is the number of devices at work."""
    plan = status.plan
    done, cases = _done(status.of_cases)
    done_again, repeats = _done(status.of_repeats)
    how = "imported" if plan.stack.is_imported else "measured"
    again = f", {done_again:,} of {repeats:,} a second time" if repeats else ""
    left = ""
    if status.committed < len(plan.shards):
        left = f", about {duration(status.remaining_s(devices))} left"
    return (
        f"{plan.campaign} plan {plan.number}: {status.committed:,} of "
        f"{counted(len(plan.shards), 'shard')} committed, {done:,} of {counted(cases, 'case')} "
        f"{how}{again}{left}"
    )


def _done(shards: Iterable[ShardStatus]) -> tuple[int, int]:
    """Return how many cases of the shards have a result, and how many there are."""
    texts = list(shards)
    return sum(shard.done for shard in texts), sum(shard.cases for shard in texts)


def shard_lines(status: PlanStatus) -> Iterator[str]:
    """Yield the started open shards, most cases done first, and the number not started."""
    left = [shard for shard in status.shards if not shard.committed]
    begun = sorted((s for s in left if s.done or s.measuring), key=lambda s: -s.done)
    for shard in begun[:_SHARDS]:
        measuring = f", measuring {shard.measuring}" if shard.measuring else ""
        yield f"  shard {shard.shard}: {shard.done:,} of {counted(shard.cases, 'case')}{measuring}"
    if len(begun) > _SHARDS:
        yield f"  ... and {counted(len(begun) - _SHARDS, 'more is', 'more are')} begun"
    if waiting := len(left) - len(begun):
        yield f"  {counted(waiting, 'shard is', 'shards are')} not begun"


def kernel_lines(status: PlanStatus, most: int = 0) -> Iterator[str]:
    """Yield a bar for each kernel type, with the cases that stored parts have results for.

    Kernel types with the most cases left come first; `most` limits their number (default: all)."""
    planned, measured, failed = Counter[str](), Counter[str](), Counter[str]()
    for shard in status.of_cases:
        planned.update(shard.planned)
        for kind, count in shard.outcomes.items():
            measured[kind.kernel_type] += count
            failed[kind.kernel_type] += count * (kind.outcome != Outcome.OK)
    names = sorted(planned, key=lambda name: (measured[name] - planned[name], name))
    width = max(map(len, names), default=0)
    for name in names[: most or len(names)]:
        done, cases = min(measured[name], planned[name]), planned[name]
        bar = "#" * (_BAR * done // max(1, cases))
        bad = f", {failed[name]} not measured" if failed[name] else ""
        yield f"  {name:<{width}}  {bar:.<{_BAR}}  {done} of {cases}{bad}"
    if most and len(names) > most:
        yield f"  ... and {counted(len(names) - most, 'more kernel type')}"


def share_lines(status: PlanStatus) -> Iterator[str]:
    """Yield the shares of the sources' time, if the sources report any."""
    if texts := share_line(planned_shares(status.plan), status.plan.sources):
        yield f"share       {texts}"


def hours_line(status: PlanStatus) -> str:
    """Return the device-hours used, planned, and left at the pace so far."""
    plan, usage = status.plan, status.usage
    unit = "NPU-hours" if plan.backend == "npu" else "device-hours"
    planned_s = sum(shard.predicted_s for shard in plan.shards)
    left_s = status.pace * sum(status.left_s)
    left = f"; about {left_s / 3600:.2f} left" if left_s else ""
    return (
        f"hours       {usage.wall_s / 3600:.2f} {unit} used by committed shards; "
        f"{planned_s / 3600:.2f} planned{left}"
    )


def efficiency_lines(status: PlanStatus) -> Iterator[str]:
    """Yield how well the devices were used so far; nothing before the first commit."""
    usage = status.usage
    if usage.wall_s > 0:
        yield (
            f"efficiency  device busy {share_of(usage.busy_us / 1e6, usage.wall_s)}, useful "
            f"{share_of(usage.useful_us / 1e6, usage.wall_s)} of {duration(usage.wall_s)} in "
            f"sessions, {usage.startup_s:.0f} s of it to start them; "
            f"{status.pace:.1f} times the forecast"
        )


def failure_lines(status: PlanStatus) -> Iterator[str]:
    """Yield the cases without a duration so far and the reasons, most cases first."""
    found: Counter[OutcomeKind] = Counter()
    for shard in status.of_cases:
        found.update(shard.outcomes)
    bad = [(kind, count) for kind, count in found.items() if kind.outcome != Outcome.OK]
    bad.sort(key=lambda entry: (-entry[1], entry[0].kernel_type, entry[0].reason))
    for kind, count in bad[:_FAILURES]:
        reason = whole_in_one_line(kind.reason)
        yield f"{kind.outcome:<11} {kind.kernel_type}: {counted(count, 'case')}: {reason}"
    if len(bad) > _FAILURES:
        yield f"... and {counted(len(bad) - _FAILURES, 'more reason')}"


def duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def version_quality_lines(
    quality: VersionQuality, verdict: Verdict, url: str = DEFAULT_ROOT
) -> Iterator[str]:
    """Yield all facts about a version directory, one per line, the verdict first."""
    yield f"version     {quality.version_path}"
    if quality.refused:
        yield f"refused     {_by_gate(quality.refused, 'case')}"
    if not quality.durations:
        yield "durations   none"
        return
    ranks = f", {quality.collectives:,} of them of collectives" if quality.collectives else ""
    imported = f"; {quality.imported:,} imported" if quality.imported else ""
    yield (
        f"durations   {quality.durations:,}{ranks}; {quality.of_several_sessions:,} of several "
        f"sessions{imported}"
    )
    yield from _verdict_lines(verdict, url)
    yield from _warning_lines(quality.warned, quality.durations, quality.suspect, url)
    yield from identity_lines(quality)
    yield from brief_lines(quality)
    if quality.devices is not None:
        yield f"devices     {_apart(quality.devices)}"
    yield from _canary_lines(quality.canaries)
    texts = ", ".join(f"{count:,} {origin}" for origin, count in sorted(quality.origins.items()))
    yield f"variance    source: {texts}"


_REMEDIES = {
    Need.MEASUREMENT: "imported from another tool; measure them with a campaign",
    Need.UNDISTURBED: "close other programs, cool the device, run with --again",
    Need.STEADY: "a larger budget_s or a quieter machine, run with --again",
    Need.ALONE: "cache: warm or cold",
    Need.SECOND_SESSION: "run with --again; the variance between sessions is assumed",
}


def _listing(url: str) -> str:
    """Return the command that lists the durations with a warning."""
    return command_on(url, "opmeter db quality --list")


def _verdict_lines(verdict: Verdict, url: str) -> Iterator[str]:
    """Yield how many durations are usable, and a line for each need of the others, the most
    frequent first."""
    yield (
        f"usable      {verdict.usable:,} of {counted(verdict.durations, 'duration')} at a "
        f"tolerance of {_percent(verdict.tolerance)}"
    )
    for need, count in sorted(verdict.needs.items(), key=lambda item: -item[1]):
        remedy = _REMEDIES.get(need) or _sessions_text(verdict)
        remedy = _listing(url) if need is Need.CHECK else remedy
        yield f"others      {counted(count, 'needs', 'need')} {need}: {remedy}"


def _sessions_text(verdict: Verdict) -> str:
    """Return how many sessions the duration in the middle needs."""
    here = verdict.more_sessions_here
    same = "no number is enough" if here is None else f"{here:,}"
    more = verdict.more_sessions
    if more is None:
        return "over 1,000 in the median"
    return f"in the median {more:,} on other devices; on the same device {same}"


def accuracy_lines(found: Iterable[KernelAccuracy]) -> Iterator[str]:
    """Yield a line for each kernel type about rows that were left out and predicted."""
    for one in found:
        yield (
            f"between     {one.kernel}: median error {_percent(one.median_error)}, p90 "
            f"{_percent(one.p90_error)}; 95 % intervals of {half_width_text(one.half_width)} cover "
            f"{_percent(one.coverage)}, of {one.predicted:,} rows left out"
        )


def accuracy_table(found: Iterable[KernelAccuracy]) -> Iterator[str]:
    """Yield the lines of a Markdown table of the same."""
    yield "| kernel type | rows left out | median error | p90 error | 95 % intervals | coverage |"
    yield "|---|---|---|---|---|---|"
    for one in found:
        yield (
            f"| {one.kernel} | {one.predicted:,} | {_percent(one.median_error)} | "
            f"{_percent(one.p90_error)} | {half_width_text(one.half_width)} | "
            f"{_percent(one.coverage)} |"
        )


def identity_lines(quality: VersionQuality) -> Iterator[str]:
    """Yield one line about the proved identity of kernels, if a profiler reports it."""
    if quality.proofs:
        unverified = quality.proofs.get(Proof.UNVERIFIED, 0)
        yield (
            f"identity    {quality.proofs.get(Proof.PROVED, 0):,} proved by the recorded shapes, "
            f"dtypes and formats; {unverified:,} unverified, by type and count alone"
        )


def brief_lines(quality: VersionQuality) -> Iterator[str]:
    """Yield one line each for session differences, interval coverage and interval widths."""
    if quality.sessions is not None:
        yield f"sessions    {_apart(quality.sessions)}"
    if quality.reliability:
        texts = ", ".join(
            f"the {_percent(one.nominal)} interval covered {_percent(one.covered)}"
            for one in quality.reliability
        )
        what = "blind second session" if quality.is_blind else "second session"
        pairs = counted(quality.reliability[0].pairs, what)
        known = "" if quality.is_blind else ", none known to be blind"
        how = "other cases of its" if quality.reliability[0].knows_sessions else "other"
        yield f"intervals   {texts}, of {pairs}{known}, each compared with {how} sessions"
    elif quality.of_several_sessions:
        yield (
            "intervals   coverage not tested: no case of a kernel has two sessions without "
            "disturbance"
        )
    else:
        yield "intervals   from the prior of the device type: no case has a second session"
    beyond = ", ".join(
        f"{_percent(share)} beyond {_percent(width)}"
        for width, share in zip(WIDTHS, quality.wider, strict=True)
    )
    median = half_width_text(quality.median_reach)
    yield f"widths      median half-width {median}; {beyond}"


def _warning_lines(
    warned: int, durations: int, by_gate: Mapping[str, int], url: str
) -> Iterator[str]:
    """Yield the line about durations with a warning, which a run, a status and the quality of a
    version share."""
    if warned:
        yield (
            f"warnings    {warned:,} of {counted(durations, 'duration')}: {_by_gate(by_gate)}; "
            f"{_listing(url)}"
        )


def suspect_lines(path: str, durations: int, suspects: Sequence[SuspectCase]) -> Iterator[str]:
    """Yield a line for each case of a version directory with a warning, or that a gate withholds,
    and their numbers."""
    withheld = sum(one.mean_us is None for one in suspects)
    yield f"version     {path}"
    for one in suspects:
        mean = "withheld    " if one.mean_us is None else f"warning     {one.mean_us:.6g} us "
        width = "" if one.half_width is None else f"{half_width_text(one.half_width)} "
        reasons = whole_in_one_line("; ".join(one.reasons))
        yield f"{mean}{width}{one.description}: {';'.join(one.warnings)}: {reasons}"
    yield (
        f"{len(suspects) - withheld:,} of {counted(durations, 'duration')} with a warning; "
        f"{counted(withheld, 'case')} withheld"
    )


def _by_gate(found: Mapping[str, int], what: str = "") -> str:
    first, *others = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    texts = [f"{counted(first[1], what) if what else f'{first[1]:,}'} by {first[0]}"]
    return ", ".join(texts + [f"{count:,} by {gate}" for gate, count in others])


def _canary_lines(devices: Sequence[DeviceFactor]) -> Iterator[str]:
    """Yield the speed of each device by its canaries: all suspect devices, else the extremes."""
    if not devices:
        return
    sessions = sum(device.sessions for device in devices)
    flagged = sum(device.flagged for device in devices)
    yield (
        f"canaries    {counted(sessions, 'session')} on {counted(len(devices), 'device')}, "
        f"{flagged:,} unlike the others"
    )
    odd = [device for device in devices if device.flagged or device.drift]
    for device in odd or dict.fromkeys((devices[0], devices[-1])):
        flags = f", {device.flagged:,} unlike the others" if device.flagged else ""
        yield (
            f"            {device.device}: {device.factor} times as long as usual in "
            f"{counted(device.sessions, 'session')}{flags}"
        )
        if device.drift:
            earlier, later = device.drift
            yield f"            {device.device}: from {earlier:.3f} to {later:.3f} over them"


def _apart(found: SessionDifferences) -> str:
    return (
        f"{counted(found.pairs, 'pair')}: 50 % differ by {_difference(found.median)} or less, 90 % "
        f"by {_difference(found.p90)}, 99 % by {_difference(found.p99)}"
    )


def _difference(share: float) -> str:
    return _percent(share) if share <= 1 else f"a factor of {three_digits(1 + share)}"


def _percent(share: float) -> str:
    """Return a share with three digits: `0.125 %`, `41.4 %`, `5,130 %`."""
    return f"{three_digits(100 * share)} %"


# The lines at the end of a run, made from its summary. Pure.

_LISTED = 25
# Shares of all repeats and of all cases from which the machine counts as busy.
_BUSY = 0.5
_MANY_DISTURBED = 0.1
# Outcomes that another measurement would not change, or that the plain command handles.
_FOR_GOOD = (*UNMEASURABLE, NEVER_TRIED)


def describe_summary(summary: Summary, plan: Plan, head: Commit | None, url: str) -> list[str]:
    version = f"version {head.number}" if head else "no version yet"
    more = counted(summary.in_tree, "more has one in its tree", "more have one in their tree")
    in_tree = f"; {more}" if summary.in_tree else ""
    of_time = ""
    if summary.time_us:
        share = share_of(summary.measured_time_us, summary.time_us)
        of_time = f", {share} of their compute time"
    communication = communication_of(plan.sources)
    lines = [
        *_unused(summary.new, plan),
        *(_disturbed(summary) if _is_busy(summary) else []),
        f"database    {url}, {version}",
        f"stack       {plan.stack.version_path}",
        f"coverage    {summary.measured_cases:,} of {counted(summary.cases, 'case')}, "
        f"{share_of(summary.measured_rows, summary.rows)} of the rows"
        f"{of_time}{communication and '; '}{communication}{in_tree}",
    ]
    if head is not None and head.runtime != "real":
        lines.append(f"runtime     {head.runtime}: none of these durations is from a device")
    if not _is_busy(summary):
        lines += _disturbed(summary)
    lines += _not_counted(summary.new, plan)
    lines += _warning_lines(summary.warned, summary.measured_cases, summary.suspect, url)
    lines += [*_precise(summary, plan), *_sampled(plan), *_above(summary)]
    if summary.quality is not None and summary.quality.durations:
        lines += [*identity_lines(summary.quality), *brief_lines(summary.quality)]
    lines += _efficiency(summary.usage, plan)
    for failure in summary.failures[:_LISTED]:
        lines.append(
            f"{failure.outcome:<11} {failure.kernel_type}: {counted(failure.cases, 'case')}, "
            f"{counted(failure.rows, 'row')}, {time_text(failure.time_us)} of compute time: "
            f"{failure.reason}"
        )
    if len(summary.failures) > _LISTED:
        lines.append(f"... and {counted(len(summary.failures) - _LISTED, 'more reason')}")
    if any(failure.outcome not in _FOR_GOOD for failure in summary.failures):
        lines.append("again       a failure remains recorded; --retry-failed measures it again")
    return lines


def _is_busy(summary: Summary) -> bool:
    """Return whether the machine is busy, and not only some cases were disturbed by chance: of a
    disturbed session every case has the warning."""
    disturbed = max(summary.disturbed, summary.suspect.get(DISTURBED, 0))
    return summary.busy >= _BUSY or disturbed > _MANY_DISTURBED * summary.measured_cases


def _disturbed(summary: Summary) -> list[str]:
    """Return the lines about disturbances, which come first if the machine is busy."""
    if not (summary.disturbed or _is_busy(summary)):
        return []
    return [
        f"{'busy' if _is_busy(summary) else 'disturbed':<11} another process used the device, or "
        f"slowed it, in {100 * summary.busy:.0f} % of all repeats; {summary.disturbed:,} of "
        f"{counted(summary.measured_cases, 'duration')} have only such repeats, and may be "
        "several times too long; close other programs, --again"
    ]


def _unused(new: NewMeasurements, plan: Plan) -> list[str]:
    """Return the line about disturbed measurements that replaced no duration: nothing else in the
    summary shows that the machine was busy."""
    if not new.unused:
        return []
    label = "busy" if new.disturbed > _MANY_DISTURBED * new.count else "disturbed"
    plans = _plans(new, plan)
    kept = counted(new.unused, "case keeps its", "cases keep their")
    return [
        f"{label:<11} another process used the device, or slowed it, in {new.disturbed:,} of "
        f"{counted(new.count, 'measurement')} of {plans}; {kept} earlier, undisturbed duration; "
        "close other programs, --again"
    ]


def _not_counted(new: NewMeasurements, plan: Plan) -> list[str]:
    """Return the line about measurements with another warning that replaced no duration."""
    if not new.warned:
        return []
    return [
        f"not counted {new.warned:,} of {counted(new.count, 'measurement')} of {_plans(new, plan)} "
        "have a warning: their cases keep earlier durations without one"
    ]


def _plans(new: NewMeasurements, plan: Plan) -> str:
    if new.since < plan.number:
        return f"plans {new.since} to {plan.number}"
    return f"plan {plan.number}"


def _precise(summary: Summary, plan: Plan) -> list[str]:
    """Return the line about precision, if a precision was requested.

    A host's clock decides when the repeats end; this is the precision that the profiler recorded.
    """
    requested = plan.measure.precision
    if requested is None or not summary.measured_cases:
        return []
    return [
        f"precision   {100 * requested:g} % was requested: the mean of {summary.precise:,} of "
        f"{counted(summary.measured_cases, 'duration')} meets that precision within its session"
    ]


def _sampled(plan: Plan) -> list[str]:
    texts = plan.forecast
    if not texts.left_out:
        return []
    predicted = texts.left_out - texts.unsure
    if (old := plan.upgrade_from) is not None:
        waiting = f"; {texts.unsure:,} wait for the results of a sample" if texts.unsure else ""
        return [
            f"upgrade     {counted(predicted, 'case is', 'cases are')} reused from "
            f"{old.version_path}: their kernels are equal within {old.margin:.3g}{waiting}"
        ]
    share = "all" if not texts.unsure else f"{predicted:,}" if predicted else "none"
    return [
        f"sampling    {counted(texts.left_out, 'case is', 'cases are')} left out: the surfaces "
        f"measured so far predict {share} of them within the tolerance"
    ]


def _above(summary: Summary) -> list[str]:
    above = summary.envelope.above
    if not above:
        return []
    worst = above[0]
    return [
        f"envelope    {len(above):,} of {counted(summary.measured_cases, 'duration')} "
        "take more than twice as long as a case at least as large in every shape; either is "
        "suspect: "
        f"{whole_in_one_line(worst.case.describe())} took {worst.mean_us:.1f} us, "
        f"{whole_in_one_line(worst.larger.describe())} {worst.larger_us:.1f} us",
        *(
            f"disorder    {one.kernel_type}: {one.above:,} of {counted(one.cases, 'duration')} do, "
            "more than shapes explain: the host delayed some launches, or records are mixed up"
            for one in summary.envelope.out_of_order
        ),
    ]


def _efficiency(usage: Usage, plan: Plan) -> list[str]:
    """Return how well the devices were used.

    `busy` is the share with any operator, `useful` the share with repeats that count. Also return
    the time of the newest plan compared with its forecast and the forecast's lower bound."""
    if usage.wall_s <= 0:
        return []
    forecast, wall_s = plan.forecast, usage.wall_s / plan.devices
    return [
        f"efficiency  device busy {share_of(usage.busy_us / 1e6, usage.wall_s)}, useful "
        f"{share_of(usage.useful_us / 1e6, usage.wall_s)} of {usage.wall_s:.0f} s in sessions; "
        f"{usage.startup_s:.0f} s went into starting them",
        f"time        plan {plan.number} took {wall_s:.0f} s in sessions; forecast "
        f"{forecast.wall_s:.0f} s, of which the cases alone {forecast.floor_s:.0f} s "
        f"({share_of(forecast.floor_s, wall_s)} of the time that it took)",
    ]
