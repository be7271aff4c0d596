"""What a run ends by saying: where the database is, what it covers, and what failed and why."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from math import fsum

from collector.case import normal_kernel_type
from collector.counting import counted
from collector.database.commits import Commit
from collector.database.committed import read_commit
from collector.database.query import best_rows
from collector.database.state import State
from collector.database.version_quality import VersionQuality, quality_of
from collector.errors import BadInput, NotFound
from collector.manifest import NO_USAGE, Usage, manifest_from_json
from collector.measurement import Disturbance, Outcome
from collector.plan import Plan
from collector.printable import in_one_line
from collector.record import CaseRecord
from collector.row import disturbance_of
from collector.store.base import Store
from collector.surroundings import side_by_side
from jobs.planning.weight import Weight, weigh
from jobs.status.envelope import AboveEnvelope, above_envelope
from jobs.status.quality_lines import brief_lines

_READERS = 8
_LISTED = 25
# Of the repeats of all cases, and of the cases: from there on it is the machine that is busy.
_BUSY = 0.5
_MANY_DISTURBED = 0.1
_NOBODY = "missing"
# What measuring once more would not change, or what the plain command does by itself.
_FOR_GOOD = (Outcome.UNSUPPORTED, Outcome.REJECTED, _NOBODY)


@dataclass(frozen=True, slots=True)
class Failure:
    """What was not measured of one kernel type, and what it stands for in the sources."""

    kernel_type: str
    outcome: str
    reason: str
    cases: int
    rows: int
    time_us: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Over the cases that the plan is about: `rows` and `time_us` count the sources' invocations,
    `measured_*` those with a duration. `in_tree` cases were not asked for: their tree has one.
    `communication` is the share of all the sources' time that made no cases; None without any."""

    cases: int
    measured_cases: int
    in_tree: int
    noisy: int  # measured, with a warning in the certificate
    disturbed: int  # measured, and something else had the device in every repeat
    busy: float  # the share of all repeats in which it had, where that is told
    rows: int
    measured_rows: int
    time_us: float
    measured_time_us: float
    communication: float | None
    usage: Usage
    failures: tuple[Failure, ...]
    above: tuple[AboveEnvelope, ...]  # measured, and slower than larger cases
    quality: VersionQuality | None = None  # of the stack, where anything is measured on it


def summarise(
    state: State, plan: Plan, sources: Sequence[Sequence[CaseRecord]], usage: Usage
) -> Summary:
    """What the head says of the cases of a plan's sources, on the plan's stack."""
    answers = _answers(state, plan)
    found = _records(sources, plan.operators)
    weights = {case: weigh(records) for case, records in found.items()}
    in_tree = {case for case, w in weights.items() if w.in_tree and case not in answers}
    if plan.update == "missing-only":
        weights = {case: w for case, w in weights.items() if case not in in_tree}
    good = {case for case in weights if case in answers and answers[case].is_good}
    told = (answers[case].disturbance for case in good)
    disturbances = [disturbance for disturbance in told if disturbance is not None]
    failures: dict[tuple[str, str, str], list[Weight]] = defaultdict(list)
    for case, weight in weights.items():
        if case not in good:
            answer = answers.get(case, _NOT_MEASURED)
            kernel_type = normal_kernel_type(found[case][0].kernel_type)
            failures[kernel_type, answer.outcome, answer.reason].append(weight)
    return Summary(
        cases=len(weights),
        measured_cases=len(good),
        in_tree=len(in_tree),
        noisy=sum(answers[case].is_noisy for case in good),
        disturbed=sum(not disturbance.clean for disturbance in disturbances),
        busy=_busy(disturbances),
        rows=sum(w.rows for w in weights.values()),
        measured_rows=sum(weights[case].rows for case in good),
        time_us=fsum(w.time_us for w in weights.values()),
        measured_time_us=fsum(weights[case].time_us for case in good),
        communication=_communication(plan, sources),
        usage=usage,
        failures=tuple(
            sorted(
                (_failure(key, alike) for key, alike in failures.items()),
                key=lambda f: (-f.time_us, -f.rows, f.kernel_type, f.reason),
            )
        ),
        above=tuple(
            above_envelope(
                ((found[case][0], answers[case].mean_us) for case in sorted(good)),
                plan.stack.device,
            )
        ),
        quality=quality_of(state, plan.stack.version_path, cache=plan.measure.cache)
        if state.shows(plan.stack)
        else None,
    )


def plan_usage(store: Store, plan: Plan) -> Usage:
    """Device and wall time of a plan's committed attempts."""
    shards = [shard.shard_id for shard in plan.shards]
    return reduce(
        Usage.plus, side_by_side(partial(_shard_usage, store, plan), shards, _READERS), NO_USAGE
    )


def describe(summary: Summary, plan: Plan, head: Commit | None, url: str) -> list[str]:
    """The lines that end a run."""
    version = f"version {head.number}" if head else "no version yet"
    more = counted(summary.in_tree, "more has one in its tree", "more have one in their tree")
    in_tree = f"; {more}" if summary.in_tree else ""
    share = summary.communication
    communication = "" if share is None else f"; communication was {100 * share:.1f} % of all time"
    lines = [
        *(_disturbed(summary) if _is_busy(summary) else []),
        f"database    {url}, {version}",
        f"stack       {plan.stack.version_path}",
        f"coverage    {summary.measured_cases:,} of {counted(summary.cases, 'case')}, "
        f"{_share(summary.measured_rows, summary.rows)} of the rows, "
        f"{_share(summary.measured_time_us, summary.time_us)} of its compute time"
        f"{communication}{in_tree}",
    ]
    if head is not None and head.runtime != "real":
        lines.append(f"runtime     {head.runtime}: none of these numbers is a device's")
    if not _is_busy(summary):
        lines += _disturbed(summary)
    if summary.noisy:
        lines.append(
            f"noisy       {summary.noisy:,} of {counted(summary.measured_cases, 'duration')}, by a "
            "warning in the certificate (a wide spread, few repeats); close other programs, --again"
        )
    lines += _above(summary)
    if summary.quality is not None and summary.quality.durations:
        lines += brief_lines(summary.quality)
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
        lines.append("again       a failure stays the answer; --retry-failed measures it once more")
    return lines


def _busy(disturbances: Sequence[Disturbance]) -> float:
    watched = sum(told.watched for told in disturbances)
    return 1 - sum(told.clean for told in disturbances) / watched if watched else 0.0


def _is_busy(summary: Summary) -> bool:
    """Whether it is the machine that is busy, and not some cases that were unlucky."""
    return summary.busy >= _BUSY or summary.disturbed > _MANY_DISTURBED * summary.measured_cases


def _disturbed(summary: Summary) -> list[str]:
    """Said before anything else where the machine is busy."""
    if not (summary.disturbed or _is_busy(summary)):
        return []
    return [
        f"{'busy' if _is_busy(summary) else 'disturbed':<11} something else had the device in "
        f"{100 * summary.busy:.0f} % of all repeats; {summary.disturbed:,} of "
        f"{counted(summary.measured_cases, 'duration')} are of such repeats alone, and may be "
        "several times too long; close other programs, --again"
    ]


def _above(summary: Summary) -> list[str]:
    if not summary.above:
        return []
    worst = summary.above[0]
    return [
        f"envelope    {len(summary.above):,} of {counted(summary.measured_cases, 'duration')} "
        "are more than twice that of a case at least as large in every shape; either may be odd: "
        f"{in_one_line(worst.case.describe())} took {worst.mean_us:.1f} us, "
        f"{in_one_line(worst.larger.describe())} {worst.larger_us:.1f} us"
    ]


def _efficiency(usage: Usage, plan: Plan) -> list[str]:
    """How well the devices were used: `busy` with any operator, `useful` with repeats that count;
    and what the newest plan took beside its forecast and the forecast's floor."""
    if usage.wall_s <= 0:
        return []
    forecast, wall_s = plan.forecast, usage.wall_s / plan.devices
    return [
        f"efficiency  device busy {_share(usage.busy_us / 1e6, usage.wall_s)}, useful "
        f"{_share(usage.useful_us / 1e6, usage.wall_s)} of {usage.wall_s:.0f} s in sessions; "
        f"{usage.startup_s:.0f} s went into starting them",
        f"time        plan {plan.number} took {wall_s:.0f} s in sessions; forecast "
        f"{forecast.wall_s:.0f} s, floor {forecast.floor_s:.0f} s "
        f"({_share(forecast.floor_s, wall_s)})",
    ]


@dataclass(frozen=True, slots=True)
class _Answer:
    outcome: str
    reason: str
    is_good: bool
    is_noisy: bool
    disturbance: Disturbance | None = None
    mean_us: float = 0.0  # of a good one


_NOT_MEASURED = _Answer(_NOBODY, "not measured", False, False)


def _records(
    sources: Sequence[Sequence[CaseRecord]], operators: Collection[str] | None
) -> dict[str, list[CaseRecord]]:
    """What the sources say of each case that a plan is about, by id."""
    found: dict[str, list[CaseRecord]] = defaultdict(list)
    for records in sources:
        for record in records:
            if operators is None or record.case.kernel_type in operators:
                found[record.case_id].append(record)
    return found


def _answers(state: State, plan: Plan) -> dict[str, _Answer]:
    """What the head answers on the plan's stack, by case."""
    if not state.shows(plan.stack):
        return {}
    best = best_rows(state, plan.stack.version_path, cache=plan.measure.cache)
    names = ("case", "outcome", "reason", "good", "warnings", "disturbance", "mean_us")
    columns = (best[name].to_pylist() for name in names)
    return {
        case: _Answer(
            outcome,
            in_one_line(reason),
            good,
            bool(warnings),
            disturbance_of(told),
            float(mean_us) if good else 0.0,
        )
        for case, outcome, reason, good, warnings, told, mean_us in zip(*columns, strict=True)
    }


def _failure(key: tuple[str, str, str], found: Sequence[Weight]) -> Failure:
    kernel_type, outcome, reason = key
    return Failure(
        kernel_type,
        outcome,
        reason,
        len(found),
        sum(w.rows for w in found),
        fsum(w.time_us for w in found),
    )


def _shard_usage(store: Store, plan: Plan, shard: str) -> Usage:
    """What a shard took; nothing where that cannot be read, which the merge has told."""
    try:
        commit = read_commit(store, plan.campaign, shard)
        if commit is None:
            return NO_USAGE
        key = commit.manifest.key
        return manifest_from_json(store.get(key), key=key).usage
    except (BadInput, NotFound):
        return NO_USAGE


def _communication(plan: Plan, sources: Sequence[Sequence[CaseRecord]]) -> float | None:
    """The share of communication in all that the sources' profiles took."""
    profiles = (record.profile for records in sources for record in records)
    compute_us = fsum(profile.total_us for profile in profiles if profile is not None)
    communication_us = fsum(source.communication_us for source in plan.sources)
    total_us = compute_us + communication_us
    return communication_us / total_us if total_us else None


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
