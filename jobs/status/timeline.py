"""What the page of a campaign shows: its plans, and when each device worked on it, read from the
sessions that workers have stored.

A part never changes, so each is read once, however often a campaign is read. A session whose worker
ended before it could store a part has no times: it is counted, and its time is in the usage of the
next session of its attempt.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from math import fsum

from collector.codec.errors import BadInput, NotFound
from collector.codec.text import printable
from collector.database.shard_commits import committed_manifest
from collector.environment import map_concurrently
from collector.model import keys
from collector.model.manifest import NO_USAGE, Usage, entry_from_json
from collector.model.plan import Plan
from collector.model.row import value_of
from collector.quality.canaries import (
    DeviceFactor,
    SessionReadings,
    compared_device,
    device_factors,
    session_factors,
)
from collector.quality.variance_prior import prior_of
from collector.report.campaign_pages import (
    CampaignCase,
    CampaignSource,
    PlanForecast,
    ReportedShard,
    StoredSession,
)
from collector.store.base import Store
from collector.worker.attempt import part_rows
from jobs.planning.stored_plans import committed_shards, known_node_failures
from jobs.status.follower import READERS, stored_logs
from jobs.status.picture import CampaignStatus
from jobs.status.plan_status import PlanStatus
from jobs.status.why import ClusterView

_LOG_LINES, _LOGS = 400, 4  # of each log, and logs of a shard: the newest
_Numbered = tuple[str, str, int]  # shard, attempt and number of a session


@dataclass(frozen=True, slots=True)
class Timeline:
    """The stored sessions of a campaign, earliest first, with the readings of their canaries.

    `without_part` counts the sessions of each shard that began and left no part: they are lost, or
    still run. `unreadable` are the keys of parts that cannot be read, with the reason."""

    sessions: tuple[StoredSession, ...]
    canaries: tuple[SessionReadings, ...]
    without_part: Mapping[str, int]
    unreadable: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    session: StoredSession
    canaries: SessionReadings | None


class TimelineReader:
    """Reads the timeline of a campaign repeatedly."""

    def __init__(self, store: Store, campaign: str):
        self._store, self._campaign = store, campaign
        self._parts: dict[str, _Part | BadInput] = {}
        self._counted: dict[str, Mapping[str, Usage]] = {}  # of committed shards, by part

    def read(self) -> Timeline:
        parts, begun = self._listed()
        new = [key for key in parts if key not in self._parts]
        read = map_concurrently(lambda key: self._part(key, parts[key]), new, READERS)
        self._parts |= zip(new, read, strict=True)
        # A shard may be committed after the listing: its parts are then counted the next time.
        shards = {shard for shard, _, _ in parts.values()}
        done = committed_shards(self._store, self._campaign) & shards
        open_shards = [shard for shard in done if shard not in self._counted]
        found = map_concurrently(self._usages, open_shards, READERS)
        self._counted |= {s: one for s, one in zip(open_shards, found, strict=True) if one}
        known = {key: part for key in parts if isinstance(part := self._parts[key], _Part)}
        stored = frozenset(parts.values())
        lost = _lost_before(stored, begun)
        without = Counter(shard for shard, _, _ in begun - stored)
        return Timeline(
            tuple(sorted(self._sessions(known, lost), key=lambda one: one.first_s)),
            tuple(part.canaries for part in known.values() if part.canaries is not None),
            without,
            tuple(str(part) for key in parts if isinstance(part := self._parts[key], BadInput)),
        )

    def _listed(self) -> tuple[dict[str, _Numbered], set[_Numbered]]:
        """Return the session of each part, by its key, and the sessions that began."""
        prefix = keys.all_attempts(self._campaign)
        parts: dict[str, _Numbered] = {}
        begun: set[_Numbered] = set()
        for info in self._store.list(prefix):
            shard = info.key.removeprefix(prefix).partition("/")[0]
            found = keys.session_object(info.key, self._campaign, shard)
            if found is not None and found.kind in ("session", "part"):
                one = shard, found.attempt, found.session
                begun.add(one)
                if found.kind == "part":
                    parts[info.key] = one
        return parts, begun

    def _usages(self, shard: str) -> Mapping[str, Usage]:
        """Return the usage of each part that a committed shard counts; none if the commit cannot be
        read, which a merge reports."""
        manifest = committed_manifest(self._store, self._campaign, shard)
        return {entry.part.key: entry.usage for entry in manifest.parts} if manifest else {}

    def _part(self, key: str, one: _Numbered) -> _Part | BadInput:
        entry = keys.part_entry(self._campaign, *one)
        try:
            usage = entry_from_json(self._store.get(entry), key=entry).usage
        except (BadInput, NotFound):
            usage = NO_USAGE
        try:
            return _part_of(self._store.get(key), key, one, usage)
        except NotFound:
            return BadInput("was removed while the campaign was read", path=key)
        except BadInput as error:
            return error
        except ValueError as error:
            return BadInput(f"expected a part: {error}", path=key)

    def _sessions(
        self, known: Mapping[str, _Part], lost: Mapping[_Numbered, int]
    ) -> Iterable[StoredSession]:
        for key, part in known.items():
            one = part.session
            counted = self._counted.get(one.shard)
            usage = one.usage if counted is None else counted.get(key)
            yield replace(
                one,
                counts=usage is not None,
                usage=usage or one.usage,
                lost_sessions=lost.get((one.shard, one.attempt, one.session), 0),
            )


def _lost_before(stored: Collection[_Numbered], begun: Iterable[_Numbered]) -> dict[_Numbered, int]:
    """Return for each session with a part how many sessions of its attempt began after the one with
    a part before it: they left none."""
    lost: dict[_Numbered, int] = {}
    waiting: Counter[tuple[str, str]] = Counter()
    for shard, attempt, session in sorted(begun):
        if (shard, attempt, session) in stored:
            lost[shard, attempt, session] = waiting.pop((shard, attempt), 0)
        else:
            waiting[shard, attempt] += 1
    return lost


def _part_of(data: bytes, key: str, one: _Numbered, usage: Usage) -> _Part:
    """Return the session of a part. Its cells are checked as far as the page uses them: a merge
    checks each part in full, which takes 50 times as long."""
    rows = [row for _, row in part_rows(data, key=key)]
    cases = tuple(
        CampaignCase(
            kernel_type=row["kernel_type"],
            case_id=row["case"],
            outcome=row["outcome"],
            reason=row["reason"],
            mean_us=float(row["mean_us"]) if row["mean_us"] else None,
            begin_s=_epoch_s(row["started_at"]),
            end_s=_epoch_s(row["ended_at"]),
            has_warning=bool(row["warnings"]),
        )
        for row in rows
        if not row["asked"]  # what ran instead of a case is not a case of the shard
    )
    first = rows[0] if rows else defaultdict(str)
    node, serial = printable(first["node"]), printable(first["device_serial"])
    session = StoredSession(int(first["plan"] or 0), *one, node, serial, usage, cases)
    readings = next(filter(None, (row["canaries"] for row in rows)), "")
    canaries = None
    if readings:
        device = compared_device(node, serial, first["rank"])
        name = "/".join(map(str, one))
        began = min(filter(None, (row["started_at"] for row in rows)), default="")
        try:
            read = value_of("canaries", readings)
        except BadInput as error:
            raise BadInput(str(error), path=key) from error
        canaries = SessionReadings(name, device, first["cache"], began, read)
    return _Part(session, canaries)


def _epoch_s(text: str) -> float | None:
    """Return a time of a part in seconds since 1970; None if it has none."""
    return datetime.fromisoformat(text).timestamp() if text else None


class CampaignReader:
    """Reads all that the page of a campaign shows, repeatedly."""

    def __init__(self, store: Store, campaign: str, view: ClusterView):
        self._store, self._campaign = store, campaign
        self._status = CampaignStatus(store, campaign, view)
        self._timeline = TimelineReader(store, campaign)
        self._logs: dict[str, list[str]] = {}

    def read(self) -> CampaignSource:
        lines = list(self._status.lines(deep=False))
        plans, timeline = self._status.plans, self._timeline.read()
        failures = known_node_failures(self._store, self._campaign)
        nodes = {one.node for one in failures.seen} | {one.node for one in timeline.sessions}
        return CampaignSource(
            self._campaign,
            self._store.url,
            [_forecast(one.plan) for one in plans],
            [
                ReportedShard(one.plan.number, s.shard, s.cases, s.committed, s.predicted_s)
                for one in plans
                for s in one.shards
            ],
            timeline.sessions,
            timeline.without_part,
            _factors(timeline.canaries, plans),
            {node: len(shards) for node, shards in failures.against().items()},
            failures.quarantined(sorted(nodes)),
            timeline.unreadable,
            lines,
            plans[-1].remaining_s() if plans else 0.0,
            self._status.is_finished,
            self._log_of,
        )

    def _log_of(self, shard: str) -> list[str]:
        """Return the last lines of the logs of a shard. A log is stored when an attempt ends."""
        if not self._logs.get(shard):
            logs = [
                [f"== {key}", *deque(text, maxlen=_LOG_LINES)]
                for key, text in stored_logs(self._store, self._campaign, shard)
            ]
            self._logs[shard] = [printable(line) for log in logs[-_LOGS:] for line in log]
        return self._logs[shard]


def _forecast(plan: Plan) -> PlanForecast:
    found = plan.forecast
    device_s = fsum(shard.predicted_s for shard in plan.shards)
    return PlanForecast(
        plan.number, plan.stack.version_path, plan.devices, found.wall_s, found.floor_s, device_s
    )


def _factors(
    readings: Sequence[SessionReadings], plans: Sequence[PlanStatus]
) -> Sequence[DeviceFactor]:
    """Return how fast each device was by the canaries of its sessions."""
    if not readings or not plans:
        return ()
    prior = prior_of(plans[-1].plan.stack.device)
    return device_factors(session_factors(readings, prior), prior)
