"""The page of a campaign: what each device did and when, how the forecast held, and what failed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum, inf
from typing import Any

from collector.model.manifest import Usage, total_usage
from collector.model.measurement import Outcome
from collector.quality.canaries import DeviceFactor, compared_device
from collector.report.pages import Folder, Page, Table, file_stem

_MOST_POINTS, _MOST_FAILURES, _MOST_LOGS = 400, 500, 40
_SESSIONS = (
    *("node", "device", "plan", "shard", "attempt", "session", "began_s", "ended_s"),
    *("starting_s", "export_s", "lost_s", "wall_s", "busy_s", "useful_s"),
    *("cases", "measured", "counts"),
)
_DEVICES = (
    *("node", "device", "sessions", "lost_sessions", "cases", "without_duration", "in_sessions_s"),
    *("busy_s", "useful_s", "duration_ratio", "ratio_low", "ratio_high", "suspect_sessions"),
)
_FAILURES = (
    *("outcome", "kernel_type", "reason", "cases", "measured_elsewhere", "nodes", "shard"),
)
_PROGRESS = ("plan", "time_s", "measured_forecast_s")
_YEAR_S = 366 * 86400.0
_SHARDS = ("plan", "shard", "cases", "measured", "committed", "forecast_s", "took_s")


@dataclass(frozen=True, slots=True)
class CampaignCase:
    """A case of a session. Times are in seconds since 1970, None for a case that was not run."""

    kernel_type: str
    case_id: str
    outcome: str
    reason: str
    mean_us: float | None
    begin_s: float | None
    end_s: float | None
    has_warning: bool = False

    @property
    def is_measured(self) -> bool:
        return self.outcome == Outcome.OK


@dataclass(frozen=True)  # without slots: its times are cached in the instance
class StoredSession:
    """A session whose part is stored. `usage` includes the `lost_sessions` of the attempt before it
    that left no part. `counts` is unset if another attempt committed the shard without this part.
    """

    plan: int
    shard: str
    attempt: str
    session: int
    node: str
    serial: str
    usage: Usage
    cases: tuple[CampaignCase, ...]
    counts: bool = True
    lost_sessions: int = 0

    @cached_property
    def first_s(self) -> float:
        """Begin of the first case; infinite if no case ran."""
        return min((one.begin_s for one in self.cases if one.begin_s is not None), default=inf)

    @cached_property
    def last_s(self) -> float:
        return max((one.end_s for one in self.cases if one.end_s is not None), default=-inf)

    @property
    def has_times(self) -> bool:
        return self.first_s <= self.last_s

    @property
    def starting_s(self) -> float:
        """Duration from the start of the session to its first case; an equal part of all starts
        where sessions were lost."""
        return self.usage.startup_s / (1 + self.lost_sessions)

    @property
    def lost_s(self) -> float:
        """Duration of the lost sessions before it, 0 if there are none."""
        if not self.lost_sessions:
            return 0.0
        return max(0.0, self.usage.wall_s - self._own_s)

    @property
    def begin_s(self) -> float:
        """Begin of the session, or of the lost ones before it."""
        return self.first_s - self.starting_s - self.lost_s

    @property
    def close_s(self) -> float:
        """End of the session: its records are written, and those of further passes over its cases
        with other counters."""
        own_s = self._own_s if self.lost_sessions else max(self._own_s, self.usage.wall_s)
        return self.first_s - self.starting_s + own_s

    @property
    def _own_s(self) -> float:
        return self.starting_s + self.last_s - self.first_s + self.usage.export_s

    @property
    def measured(self) -> int:
        return sum(one.is_measured for one in self.cases)


@dataclass(frozen=True, slots=True)
class PlanForecast:
    """A plan and its forecast. `wall_s` is for all its devices, `device_s` the sum over them."""

    number: int
    stack: str
    devices: int
    wall_s: float
    floor_s: float
    device_s: float


@dataclass(frozen=True, slots=True)
class ReportedShard:
    plan: int
    shard: str
    cases: int
    is_committed: bool
    predicted_s: float


@dataclass(frozen=True, slots=True)
class CampaignSource:
    """What a campaign has in its store. `lines` are those of `opmeter status`. `node_failures`
    counts the shards that failed on a node and nowhere else. `log_of` returns the last lines of the
    stored logs of a shard."""

    name: str
    store: str
    plans: Sequence[PlanForecast]
    shards: Sequence[ReportedShard]
    sessions: Sequence[StoredSession]
    without_part: Mapping[str, int]
    factors: Sequence[DeviceFactor] = ()
    node_failures: Mapping[str, int] = field(default_factory=dict)
    quarantined: frozenset[str] = frozenset()
    unreadable: Sequence[str] = ()
    lines: Sequence[str] = ()
    remaining_s: float = 0.0
    is_finished: bool = True
    log_of: Callable[[str], Sequence[str]] = lambda shard: ()


def write_campaign(folder: Folder, source: CampaignSource, reload_s: int = 0) -> int:
    """Write the page of a campaign and the cases of its sessions; return the number of sessions.
    With `reload_s`, the page loads itself again after that time."""
    timed, strange = _timed(source.sessions)
    origin_s = min((one.begin_s for one in timed), default=0.0)
    placed = _placed(timed)
    devices = sorted({row for _, row in placed})
    place = {row: at for at, row in enumerate(devices)}
    nodes = sorted({row[0] for row in devices})
    stems = {node: f"sessions/{file_stem(node)}" for node in nodes}
    numbered: dict[str, dict[str, Any]] = defaultdict(dict)
    sessions = []
    for one, row in placed:
        sessions.append(_session(one, place[row], origin_s))
        numbered[stems[one.node]] |= _details(one, origin_s)
    for stem, details in numbered.items():
        folder.write_data(stem, details)
    measured = _measured(source.sessions)
    failures, efficiency = _failures(source.sessions), _efficiency(source.sessions)
    plans = [_plan(plan, source, placed, measured) for plan in source.plans]
    shard_rows, device_rows = _shard_rows(source, measured), _device_rows(source, placed)
    per_node = Counter(one.node for one in timed)
    progress = _progress(timed, source.shards, origin_s)
    data = {
        "name": source.name,
        "store": source.store,
        "origin_s": origin_s,
        "finished": source.is_finished,
        "remaining_s": source.remaining_s,
        "plans": plans,
        "nodes": [_node(node, per_node[node], source) | {"file": stems[node]} for node in nodes],
        "devices": [_device_name(row) for row in devices],
        "device_nodes": [nodes.index(row[0]) for row in devices],
        "sessions": sessions,
        "progress": progress,
        "shards": _thinned([_shard_point(one) for one in shard_rows], 4000),
        "efficiency": efficiency,
        "failures": _with_logs(folder, failures[:_MOST_FAILURES], source),
        "failure_count": len(failures),
        "device_rows": device_rows,
        "lost_sessions": sum(source.without_part.values()),
        "without_duration": len(_without(source.sessions)),
        "unreadable": [*source.unreadable, *strange],
        "lines": list(source.lines),
    }
    tables = {
        "index": Table(_SESSIONS, (_session_row(one) for one in source.sessions)),
        "devices": Table(_DEVICES, device_rows),
        "failures": Table(_FAILURES, failures),
        "shards": Table(_SHARDS, shard_rows),
        "plans": Table(list(plans[0]) if plans else [], [list(one.values()) for one in plans]),
        "efficiency": Table(list(efficiency), [list(efficiency.values())]),
        "progress": Table(_PROGRESS, _progress_rows(progress)),
    }
    folder.write(Page("index", "campaign", source.name, data, tables, reload_s=reload_s))
    return len(timed)


def _timed(sessions: Sequence[StoredSession]) -> tuple[list[StoredSession], list[str]]:
    """Return the sessions with times, in their order, and a line for each whose clock was a year or
    more away from the others."""
    found = sorted((one for one in sessions if one.has_times), key=lambda one: one.first_s)
    if not found:
        return [], []
    middle_s = found[len(found) // 2].first_s
    strange = [one for one in found if abs(one.first_s - middle_s) > _YEAR_S]
    lines = [
        f"shard {one.shard}, attempt {one.attempt}: the clock of {one.node} was over a year away "
        "from that of most sessions"
        for one in strange
    ]
    return [one for one in found if abs(one.first_s - middle_s) <= _YEAR_S], lines


_ShardCase = tuple[str, str]  # the names of a shard and of a case of it
Row = tuple[str, str, int]  # node, serial number, and lane where sessions ran concurrently


Placed = Sequence[tuple[StoredSession, Row]]


def _placed(timed: Sequence[StoredSession]) -> Placed:
    """Return the sessions, which are in order of time, with their rows of the timeline. Without
    serial numbers, concurrent sessions of a node ran on different devices of it."""
    ends: dict[tuple[str, str], list[float]] = defaultdict(list)
    found = []
    for one in timed:
        lanes = ends[one.node, one.serial]
        lane = next((at for at, end_s in enumerate(lanes) if end_s <= one.first_s), len(lanes))
        lanes[lane : lane + 1] = [one.last_s]
        found.append((one, (one.node, one.serial, lane)))
    return found


def _device_name(row: Row) -> str:
    node, serial, lane = row
    name = f"{node} {serial}".strip()
    return f"{name} · {lane + 1}" if lane else name


def _session(one: StoredSession, device: int, origin_s: float) -> list[Any]:
    """Return a session as the page draws it: device, plan, begin, begin of cases, end of cases,
    end, lost time before, cases, measured, busy and useful shares, counts, name in its file."""
    usage, begin_s = one.usage, one.first_s - origin_s
    wall_s = usage.wall_s or 1.0
    return [
        device,
        one.plan,
        *(round(value, 2) for value in (begin_s - one.starting_s, begin_s)),
        *(round(value, 2) for value in (one.last_s - origin_s, one.close_s - origin_s, one.lost_s)),
        len(one.cases),
        one.measured,
        round(usage.busy_us / 1e6 / wall_s, 4),
        round(usage.useful_us / 1e6 / wall_s, 4),
        int(one.counts),
        _name(one),
    ]


def _name(one: StoredSession) -> str:
    return f"{one.shard} {one.attempt} {one.session}"


def _details(one: StoredSession, origin_s: float) -> dict[str, Any]:
    cases = [
        [
            *(case.kernel_type, case.case_id, case.outcome, case.reason[:300]),
            None if case.mean_us is None else float(f"{case.mean_us:.6g}"),
            None if case.begin_s is None else round(case.begin_s - origin_s, 3),
            None if case.end_s is None else round(case.end_s - origin_s, 3),
            int(case.has_warning),
        ]
        for case in one.cases
    ]
    return {_name(one): [one.shard, one.attempt, one.session, cases]}


def _session_row(one: StoredSession) -> list[Any]:
    usage, times = one.usage, [one.first_s, one.last_s] if one.has_times else [None, None]
    return [
        *(one.node, one.serial, one.plan, one.shard, one.attempt, one.session, *times),
        *(one.starting_s, usage.export_s, one.lost_s if one.has_times else 0.0, usage.wall_s),
        *(usage.busy_us / 1e6, usage.useful_us / 1e6, len(one.cases), one.measured),
        int(one.counts),
    ]


def _plan(
    plan: PlanForecast, source: CampaignSource, placed: Placed, measured: Collection[_ShardCase]
) -> dict[str, Any]:
    """Return a plan with its progress, and the wall time from its first session to its last."""
    shards = [one for one in source.shards if one.plan == plan.number]
    own = [one for one in source.sessions if one.plan == plan.number]
    timed = [(one, row) for one, row in placed if one.plan == plan.number]
    begin_s = min((one.begin_s for one, _ in timed), default=0.0)
    end_s = max((one.close_s for one, _ in timed), default=0.0)
    names = {shard.shard for shard in shards}
    return {
        "number": plan.number,
        "stack": plan.stack,
        "devices": plan.devices,
        "forecast_wall_s": plan.wall_s,
        "lower_bound_s": plan.floor_s,
        "forecast_device_s": plan.device_s,
        "wall_s": end_s - begin_s,
        "device_s": fsum(one.usage.wall_s for one in own),
        "devices_seen": len({row for _, row in timed}),
        "shards": len(shards),
        "committed": sum(one.is_committed for one in shards),
        "cases": sum(one.cases for one in shards),
        "measured": sum(shard in names for shard, _ in measured),
    }


def _measured(sessions: Iterable[StoredSession]) -> set[_ShardCase]:
    """Return the measured cases of sessions, with their shard: a case may be measured in two."""
    return {
        (own.shard, one.case_id)
        for own in sessions
        if own.counts
        for one in own.cases
        if one.is_measured
    }


def _node(name: str, sessions: int, source: CampaignSource) -> dict[str, Any]:
    return {
        "node": name,
        "sessions": sessions,
        "failures": source.node_failures.get(name, 0),
        "quarantined": name in source.quarantined,
    }


def _device_rows(source: CampaignSource, placed: Placed) -> list[list[Any]]:
    """Return the devices by _DEVICES, those with most cases without a duration first."""
    factors = {one.device: one for one in source.factors}
    by_device: dict[Row, list[StoredSession]] = defaultdict(list)
    for one, row in placed:
        by_device[row].append(one)
    found = []
    for row, own in by_device.items():
        node, serial, lane = row
        usage = total_usage(one.usage for one in own)
        factor = factors.get(compared_device(node, serial, lane))
        ratio = (
            [None] * 3
            if factor is None
            else [factor.factor.factor, factor.factor.low, factor.factor.high]
        )
        cases = sum(len(one.cases) for one in own)
        found.append(
            [
                *(node, serial or f"{lane + 1}", len(own), sum(one.lost_sessions for one in own)),
                *(cases, cases - sum(one.measured for one in own)),
                *(usage.wall_s, usage.busy_us / 1e6, usage.useful_us / 1e6),
                *ratio,
                factor.flagged if factor else None,
            ]
        )
    return sorted(found, key=lambda row: (-row[5], row[0], row[1]))


def _efficiency(sessions: Sequence[StoredSession]) -> dict[str, float]:
    """Return what the device time in sessions was used for, in seconds: the parts add up to
    `whole`. What is not measured is host work between launches."""
    counted = [one for one in sessions if one.counts]
    usage, whole_s = (
        total_usage(one.usage for one in counted),
        fsum(one.usage.wall_s for one in sessions),
    )
    left_s, parts = whole_s, dict[str, float]()
    for name, seconds in (
        ("useful", usage.useful_us / 1e6),
        ("other_launches", (usage.busy_us - usage.useful_us) / 1e6),
        ("not_counted", whole_s - usage.wall_s),
        ("export", usage.export_s),
        ("starting", fsum(one.starting_s for one in counted)),
        ("lost", fsum(one.lost_s for one in counted if one.has_times)),
    ):
        parts[name] = min(left_s, max(0.0, seconds))
        left_s -= parts[name]
    return parts | {"host": left_s, "whole": whole_s}


def _without(sessions: Sequence[StoredSession]) -> set[str]:
    """Return the cases that were tried, and have no duration in any session."""
    every = [one for own in sessions for one in own.cases]
    return {one.case_id for one in every if not one.is_measured} - {
        one.case_id for one in every if one.is_measured
    }


def _failures(sessions: Sequence[StoredSession]) -> list[list[Any]]:
    """Return the reasons for which cases have no duration by _FAILURES, most cases first."""
    measured = {one.case_id for own in sessions for one in own.cases if one.is_measured}
    cases: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    nodes: dict[tuple[str, str, str], Counter[str]] = defaultdict(Counter)
    shards: dict[tuple[str, str, str], str] = {}
    for own in sessions:
        for one in own.cases:
            if not one.is_measured:
                kind = (one.outcome, one.kernel_type, one.reason[:1000])
                cases[kind].add(one.case_id)
                nodes[kind][own.node] += 1
                shards.setdefault(kind, own.shard)
    found = [
        [*kind, len(of), len(of & measured), len(nodes[kind]), shards[kind]]
        for kind, of in cases.items()
    ]
    return sorted(found, key=lambda row: (-row[3], row[:3]))


def _with_logs(
    folder: Folder, failures: Sequence[list[Any]], source: CampaignSource
) -> list[list[Any]]:
    """Return the failures with the data file of their shard's log, where one is stored."""
    stems: dict[str, str] = {}
    for row in failures:
        shard = row[-1]
        if shard not in stems and len(stems) < _MOST_LOGS:
            lines = list(source.log_of(shard))
            stems[shard] = f"logs/{file_stem(shard)}" if lines else ""
            if lines:
                folder.write_data(stems[shard], lines)
    return [[*row, stems.get(row[-1], "")] for row in failures]


def _progress(
    timed: Sequence[StoredSession], shards: Sequence[ReportedShard], origin_s: float
) -> dict[str, list[list[float]]]:
    """Return for each plan, over time, the forecast device time of the cases measured so far:
    points of seconds and seconds."""
    each_s = {one.shard: one.predicted_s / max(1, one.cases) for one in shards}
    found: dict[str, list[list[float]]] = {}
    for number in sorted({one.plan for one in timed}):
        own = sorted(
            (one for one in timed if one.plan == number and one.counts), key=lambda one: one.last_s
        )
        begin_s = min((one.begin_s for one in own), default=origin_s)
        points, done_s, seen = [[begin_s - origin_s, 0.0]], 0.0, set[tuple[str, str]]()
        for one in own:
            new = {(one.shard, case.case_id) for case in one.cases} - seen
            seen |= new
            done_s += len(new) * each_s.get(one.shard, 0.0)
            points.append([round(one.last_s - origin_s, 1), round(done_s, 2)])
        found[str(number)] = _thinned(points, _MOST_POINTS)
    return found


def _progress_rows(progress: Mapping[str, Sequence[Sequence[float]]]) -> list[list[Any]]:
    return [[number, *point] for number, points in progress.items() for point in points]


def _shard_rows(source: CampaignSource, measured: Collection[_ShardCase]) -> list[list[Any]]:
    took_s: dict[str, float] = defaultdict(float)
    for one in source.sessions:
        if one.counts:
            took_s[one.shard] += one.usage.wall_s
    counts = Counter(shard for shard, _ in measured)
    return [
        [
            *(one.plan, one.shard, one.cases, counts[one.shard], int(one.is_committed)),
            *(one.predicted_s, took_s.get(one.shard)),
        ]
        for one in source.shards
    ]


def _shard_point(row: Sequence[Any]) -> list[Any]:
    plan, _, cases, _, is_committed, predicted_s, took_s = row
    rounded = (None if value is None else float(f"{value:.4g}") for value in (predicted_s, took_s))
    return [plan, cases, is_committed, *rounded]


def _thinned(rows: list[Any], most: int) -> list[Any]:
    """Return at most about `most` of the rows, evenly, with the first and the last."""
    if len(rows) <= most:
        return rows
    step = (len(rows) - 1) / (most - 1)
    return [rows[round(at * step)] for at in range(most)]
