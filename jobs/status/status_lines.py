"""What `opmeter status` prints of a plan: bars, hours, pace, and what was not measured. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator

from collector.counting import counted, share_of
from collector.measurement import Outcome
from collector.printable import in_one_line
from jobs.planning.gaps import planned_shares, share_line
from jobs.status.plan_status import AnswerKind, PlanStatus, ShardStatus

_BAR = 20
_SHARDS, _FAILURES = 20, 25


def head_line(status: PlanStatus, devices: int = 0) -> str:
    """One line a plan: shards, cases, those that are measured a second time, and the time left
    with so many devices at work."""
    plan = status.plan
    done, cases = _done(status.of_cases)
    done_again, repeats = _done(status.of_repeats)
    again = f", {done_again:,} of {repeats:,} a second time" if repeats else ""
    left = ""
    if status.committed < len(plan.shards):
        left = f", about {duration(status.remaining_s(devices))} left"
    return (
        f"{plan.campaign} plan {plan.number}: {status.committed:,} of "
        f"{counted(len(plan.shards), 'shard')} committed, {done:,} of {counted(cases, 'case')} "
        f"measured{again}{left}"
    )


def _done(shards: Iterable[ShardStatus]) -> tuple[int, int]:
    """How many cases of shards are answered, and how many there are."""
    told = list(shards)
    return sum(shard.done for shard in told), sum(shard.cases for shard in told)


def shard_lines(status: PlanStatus) -> Iterator[str]:
    """The open shards that somebody has begun, the furthest first, and how many nobody has."""
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
    """A bar for each kernel type, of the cases that stored parts answer; those with the most left
    first, and at most so many of them  [all]."""
    planned, answered, failed = Counter[str](), Counter[str](), Counter[str]()
    for shard in status.of_cases:
        planned.update(shard.planned)
        for answer, count in shard.answers.items():
            answered[answer.kernel_type] += count
            failed[answer.kernel_type] += count * (answer.outcome != Outcome.OK)
    names = sorted(planned, key=lambda name: (answered[name] - planned[name], name))
    width = max(map(len, names), default=0)
    for name in names[: most or len(names)]:
        done, cases = min(answered[name], planned[name]), planned[name]
        bar = "#" * (_BAR * done // max(1, cases))
        bad = f", {failed[name]} not measured" if failed[name] else ""
        yield f"  {name:<{width}}  {bar:.<{_BAR}}  {done} of {cases}{bad}"
    if most and len(names) > most:
        yield f"  ... and {counted(len(names) - most, 'more kernel type')}"


def share_lines(status: PlanStatus) -> Iterator[str]:
    """Of what the sources' time is, where they tell any."""
    if told := share_line(planned_shares(status.plan)):
        yield f"share       {told}"


def hours_line(status: PlanStatus) -> str:
    """Device-hours used, planned, and still to come at the pace so far."""
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
    """How well the devices were used so far; nothing while nothing is committed."""
    usage = status.usage
    if usage.wall_s > 0:
        yield (
            f"efficiency  device busy {share_of(usage.busy_us / 1e6, usage.wall_s)}, useful "
            f"{share_of(usage.useful_us / 1e6, usage.wall_s)} of {duration(usage.wall_s)} in "
            f"sessions, {usage.startup_s:.0f} s of it to start them; "
            f"{status.pace:.1f} times the forecast"
        )


def failure_lines(status: PlanStatus) -> Iterator[str]:
    """What was not measured so far and why, the most cases first."""
    found: Counter[AnswerKind] = Counter()
    for shard in status.of_cases:
        found.update(shard.answers)
    bad = [(answer, count) for answer, count in found.items() if answer.outcome != Outcome.OK]
    bad.sort(key=lambda entry: (-entry[1], entry[0].kernel_type, entry[0].reason))
    for answer, count in bad[:_FAILURES]:
        reason = in_one_line(answer.reason)
        yield f"{answer.outcome:<11} {answer.kernel_type}: {counted(count, 'case')}: {reason}"
    if len(bad) > _FAILURES:
        yield f"... and {counted(len(bad) - _FAILURES, 'more reason')}"


def duration(seconds: float) -> str:
    """A length of time as people say it."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
