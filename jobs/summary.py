"""What a run ends by saying: where the database is, what it covers, and what failed and why."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import fsum

from collector.database.commits import Commit
from collector.database.query import best_rows
from collector.database.state import State
from collector.manifest import NO_USAGE, Usage, manifest_from_json
from collector.plan import Plan
from collector.record import CaseRecord
from collector.store.base import Store
from collector.worker.attempt import read_commit

_READERS = 8
_LISTED = 25


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
    """`rows` and `time_us` count the sources' invocations; `measured_*` those with a duration."""

    cases: int
    measured_cases: int
    rows: int
    measured_rows: int
    time_us: float
    measured_time_us: float
    usage: Usage
    failures: tuple[Failure, ...]


def summarise(
    state: State, plan: Plan, sources: Sequence[Sequence[CaseRecord]], usage: Usage
) -> Summary:
    """What the head says of the cases of a plan's sources, on the plan's stack."""
    weights = _weights(sources)
    answers = _answers(state, plan)
    good = {case for case in weights if answers.get(case, ("", "", "", False))[3]}
    failures: dict[tuple[str, str, str], list[_Weight]] = defaultdict(list)
    for case, weight in weights.items():
        if case not in good:
            _, outcome, reason, _ = answers.get(case, ("", "", "not measured", False))
            failures[weight.kernel_type, outcome or "missing", _short(reason)].append(weight)
    return Summary(
        cases=len(weights),
        measured_cases=len(good),
        rows=sum(w.rows for w in weights.values()),
        measured_rows=sum(weights[case].rows for case in good),
        time_us=fsum(w.time_us for w in weights.values()),
        measured_time_us=fsum(weights[case].time_us for case in good),
        usage=usage,
        failures=tuple(
            sorted(
                (_failure(key, found) for key, found in failures.items()),
                key=lambda f: (-f.time_us, -f.rows, f.kernel_type, f.reason),
            )
        ),
    )


def plan_usage(store: Store, plan: Plan) -> Usage:
    """Device and wall time of a plan's committed attempts."""
    with ThreadPoolExecutor(_READERS) as pool:
        usages = pool.map(lambda shard: _shard_usage(store, plan, shard.shard_id), plan.shards)
        total = NO_USAGE
        for usage in usages:
            total = total.plus(usage)
    return total


def describe(summary: Summary, plan: Plan, head: Commit | None, url: str) -> list[str]:
    """The lines that end a run."""
    version = f"version {head.number}" if head else "no version yet"
    lines = [
        f"database    {url}, {version}",
        f"stack       {plan.stack.version_path}",
        f"coverage    {summary.measured_cases} of {summary.cases} cases, "
        f"{_share(summary.measured_rows, summary.rows)} of the rows, "
        f"{_share(summary.measured_time_us, summary.time_us)} of the profile's time",
    ]
    usage = summary.usage
    if usage.wall_s > 0:
        lines.append(
            f"efficiency  device busy {_share(usage.busy_us / 1e6, usage.wall_s)}, "
            f"useful {_share(usage.useful_us / 1e6, usage.wall_s)} of {usage.wall_s:.0f} s in "
            f"sessions; {usage.startup_s:.0f} s went into starting them"
        )
        lines.append(
            f"forecast    {plan.forecast.wall_s:.0f} s, of which the floor is "
            f"{plan.forecast.floor_s:.0f} s: {_share(plan.forecast.floor_s, usage.wall_s)} of "
            "what it took"
        )
    for failure in summary.failures[:_LISTED]:
        lines.append(
            f"{failure.outcome:<11} {failure.kernel_type}: {failure.cases} cases, "
            f"{failure.rows} rows, {failure.time_us / 1000:.2f} ms of the profile: {failure.reason}"
        )
    if len(summary.failures) > _LISTED:
        lines.append(f"... and {len(summary.failures) - _LISTED} more reasons")
    return lines


@dataclass(frozen=True, slots=True)
class _Weight:
    kernel_type: str
    rows: int
    time_us: float


def _weights(sources: Sequence[Sequence[CaseRecord]]) -> Mapping[str, _Weight]:
    kernel_types: dict[str, str] = {}
    rows: Counter[str] = Counter()
    times_us: dict[str, list[float]] = defaultdict(list)
    for records in sources:
        for record in records:
            kernel_types.setdefault(record.case_id, record.case.kernel_type)
            rows[record.case_id] += record.profile.count if record.profile else 1
            times_us[record.case_id].append(record.profile.total_us if record.profile else 0.0)
    return {
        case: _Weight(kernel_type, rows[case], fsum(times_us[case]))
        for case, kernel_type in kernel_types.items()
    }


def _answers(state: State, plan: Plan) -> dict[str, tuple[str, str, str, bool]]:
    """Case -> (case, outcome, reason, whether it is good)."""
    if plan.stack.version_path not in state.versions:
        return {}
    best = best_rows(state, plan.stack.version_path, cache=plan.measure.cache)
    columns = (best[name].to_pylist() for name in ("case", "outcome", "reason", "good"))
    return {row[0]: row for row in zip(*columns, strict=True)}


def _failure(key: tuple[str, str, str], found: Sequence[_Weight]) -> Failure:
    kernel_type, outcome, reason = key
    return Failure(
        kernel_type,
        str(outcome),
        reason,
        len(found),
        sum(w.rows for w in found),
        fsum(w.time_us for w in found),
    )


def _shard_usage(store: Store, plan: Plan, shard: str) -> Usage:
    commit = read_commit(store, plan.campaign, shard)
    if commit is None:
        return NO_USAGE
    key = commit.manifest.key
    return manifest_from_json(store.get(key), key=key).usage


def _short(reason: str) -> str:
    first = reason.strip().splitlines()[0] if reason.strip() else ""
    return first if len(first) <= 160 else first[:157] + "..."


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"
