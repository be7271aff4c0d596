"""Reader of a campaign in its store: its plans, their commits, and their progress.

Committed objects never change, so each is read once, however often the campaign is read.
"""

import io
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import zstandard

from collector.codec.errors import BadInput, NotFound
from collector.codec.text import counted
from collector.database.plan_state import damage_in
from collector.database.plans import Damage, MergedPlan, plan_reader
from collector.database.shard_commits import fetch
from collector.environment import map_concurrently
from collector.model import keys
from collector.model.measurement import Measurement
from collector.model.plan import Plan, PlannedShard, read_shard
from collector.store.base import Info, Store
from collector.worker.attempt import Progress, read_part, read_progress
from jobs.planning import stored_plans
from jobs.planning.damage import DamageReport, outside
from jobs.status.plan_status import OutcomeKind, PlanStatus, ShardStatus

# Objects that attempts at open shards left in a store, listed with as few requests as possible.

READERS = 16
_KEYS_A_SHARD = 8  # of a finished attempt: parts, raw files, log, manifest
_PAGE = 1000  # keys that a store returns per page


def keys_of_attempts(
    store: Store, campaign: str, shards: Collection[str], known: int
) -> Mapping[str, list[str]]:
    """Return, for each of these shards, the keys below its attempts.

    `known` is the number of shards that the campaign has. A few shards are listed one by one; many
    are read from one listing of all, whose pages are sequential."""
    pages = known * _KEYS_A_SHARD / _PAGE
    if len(shards) / READERS > pages:
        return _of_all(store, campaign, frozenset(shards))

    def one(shard: str) -> list[str]:
        return [info.key for info in store.list(keys.attempts(campaign, shard))]

    return dict(zip(shards, map_concurrently(one, shards, READERS), strict=True))


def _of_all(store: Store, campaign: str, shards: frozenset[str]) -> dict[str, list[str]]:
    prefix = keys.all_attempts(campaign)
    found: dict[str, list[str]] = {}
    for info in store.list(prefix):
        shard = info.key.removeprefix(prefix).partition("/")[0]
        if shard in shards:
            found.setdefault(shard, []).append(info.key)
    return found


class Follower:
    """Reads campaigns repeatedly, and remembers what never changes."""

    def __init__(self, store: Store):
        self._store = store
        self._plans: dict[str, Plan | Damage] = {}
        self._readers = cache(partial(plan_reader, store))  # of the other plans of a campaign
        self._seen: dict[str, tuple[stored_plans.StoredPlans, frozenset[str]]] = {}
        self._settled: dict[str, ShardStatus] = {}
        self._planned: dict[str, Counter[str]] = {}
        # For open shards: shard -> part -> case -> the kind of its result.
        self._measured: dict[str, dict[str, dict[str, OutcomeKind]]] = {}

    def read(
        self,
        campaign: str,
        *,
        deep: bool = True,
        merged: Collection[MergedPlan] = (),
        held: Collection[str] = (),
    ) -> list[PlanStatus]:
        """Return the status of each readable plan of a campaign, oldest first.

        Only the newest plan is being measured, so only its open shards are inspected. `deep` also
        reads its shards and parts: kernel types, results and times. `merged` and `held` are the
        campaign's plans and shards that the database's head has."""
        done = stored_plans.committed_shards(self._store, campaign)
        there = stored_plans.find_plans(self._store, campaign, self._plans)
        stored = stored_plans.unchanged(there, merged, lambda: held)
        self._seen[campaign] = (stored, done)
        plans = stored.plans
        found = [PlanStatus(plan, tuple(_counted(plan, done))) for plan in plans[:-1]]
        newest = [PlanStatus(plan, self._shards(plan, done, deep=deep)) for plan in plans[-1:]]
        return found + newest

    def unreadable(self, campaign: str) -> DamageReport:
        """Return the damage found in place of plans of a campaign at the last `read`, if any."""
        if campaign not in self._seen:  # the store was away
            return DamageReport((), ())
        stored, _ = self._seen[campaign]
        return DamageReport.of(stored.damaged, stored.newest)

    def damage(self, campaign: str, held: Collection[str]) -> DamageReport:
        """Return the damage at the last `read` of objects that the head does not hold."""
        stored, done = self._seen[campaign]
        shards = outside(reversed(stored.plans), done, held)
        found = map_concurrently(lambda one: self._done(*one).damage, list(shards), READERS)
        return DamageReport.of(
            [*stored.damaged, *(d for d in found if d is not None)], stored.newest
        )

    def _shards(self, plan: Plan, done: frozenset[str], *, deep: bool) -> tuple[ShardStatus, ...]:
        left = [shard.shard_id for shard in plan.beyond(done)]
        attempts = keys_of_attempts(self._store, plan.campaign, left, len({*done, *left}))

        def one(shard: PlannedShard) -> ShardStatus:
            if shard.shard_id not in done:
                left_behind = attempts.get(shard.shard_id, [])
                return self._open(plan.campaign, shard, left_behind, deep=deep)
            return self._done(plan, shard) if deep else _finished(shard)

        return tuple(map_concurrently(one, plan.shards, READERS))

    def _done(self, plan: Plan, shard: PlannedShard) -> ShardStatus:
        if shard.shard_id not in self._settled:
            self._settled[shard.shard_id] = self._committed(plan, shard)
            self._measured.pop(shard.shard_id, None)
        return self._settled[shard.shard_id]

    def _committed(self, plan: Plan, shard: PlannedShard) -> ShardStatus:
        """Return the status of a shard as a merge finds it."""
        others = self._readers(plan.campaign)
        stored = fetch(self._store, plan, shard, with_attempt=True, plan_of=others)
        if damage := damage_in(plan, stored):
            return replace(_finished(shard), damage=damage)
        if stored.attempt is None or stored.table is None:  # it was there a moment ago
            return _finished(shard)
        manifest = stored.attempt.manifest
        final = frozenset(manifest.final.values())
        parts = (read_part(data, key=key) for key, data in stored.attempt.parts)
        counted = (m for part in parts for m in part if m.measurement_id in final)
        outcomes = Counter(_kind_of_outcome(m) for m in counted if not m.is_filed)
        planned = _kernels(stored.table, keys.shard(plan.campaign, shard.shard_id))
        return replace(_finished(shard), usage=manifest.usage, planned=planned, outcomes=outcomes)

    def _open(
        self, campaign: str, shard: PlannedShard, attempts: Sequence[str], *, deep: bool
    ) -> ShardStatus:
        furthest, outcomes = Progress(0, 0, ""), dict[str, OutcomeKind]()
        for key in attempts:
            left = keys.session_object(key, campaign, shard.shard_id)
            if key.endswith("/progress.json"):
                reported = read_progress(self._store, key)
                if reported is not None and reported.done >= furthest.done:
                    furthest = reported
            elif deep and left is not None and left.kind == "part":
                outcomes |= self._outcomes_in(shard.shard_id, key)
        return ShardStatus(
            shard.shard_id,
            False,
            max(furthest.done, len(outcomes)),
            shard.cases,
            furthest.case,
            shard.predicted_s,
            new=max(0, furthest.done - furthest.before),
            took_s=furthest.took_s,
            planned=self._plan_of(campaign, shard) if deep else Counter(),
            outcomes=Counter(outcomes.values()),
        )

    def _outcomes_in(self, shard: str, part: str) -> dict[str, OutcomeKind]:
        """Return how a part reports its cases. A part never changes."""
        parts = self._measured.setdefault(shard, {})
        if part not in parts:
            parts[part] = {
                m.case_id: _kind_of_outcome(m) for m in self._part(part) if not m.is_filed
            }
        return parts[part]

    def _plan_of(self, campaign: str, shard: PlannedShard) -> Counter[str]:
        if shard.shard_id not in self._planned:
            key = keys.shard(campaign, shard.shard_id)
            try:
                self._planned[shard.shard_id] = _kernels(self._store.get(key), key)
            except (BadInput, NotFound):  # its worker reports it, and then the merge
                self._planned[shard.shard_id] = Counter()
        return self._planned[shard.shard_id]

    def _part(self, key: str) -> tuple[Measurement, ...]:
        """Return the measurements of a part, or none if it cannot be read.

        The part belongs to an open shard, so its cases are measured again."""
        try:
            return read_part(self._store.get(key), key=key)
        except (BadInput, NotFound):
            return ()


def _kernels(table: bytes, key: str) -> Counter[str]:
    return Counter(case.record.case.kernel_type for case in read_shard(table, path=key))


def _finished(shard: PlannedShard) -> ShardStatus:
    return ShardStatus(shard.shard_id, True, shard.cases, shard.cases, "", shard.predicted_s)


def _counted(plan: Plan, done: frozenset[str]) -> Iterator[ShardStatus]:
    """Yield the status of the shards of a plan that is no longer measured: committed, or not."""
    for shard in plan.shards:
        if shard.shard_id in done:
            yield _finished(shard)
        else:
            yield ShardStatus(shard.shard_id, False, 0, shard.cases, "", shard.predicted_s)


def _kind_of_outcome(m: Measurement) -> OutcomeKind:
    return OutcomeKind(m.kernel_type, m.outcome, m.reason)


# The logs of the attempts at a shard, as stored.
#
# A log is untrusted: its frame may claim any size, and its text may contain terminal control codes.
# It is read as a stream of bounded lines up to a bounded size, and shown in printable form.

Log = tuple[str, Iterable[str]]  # name, and the text in pieces
_NAMED = 10  # number of candidate shards that an error lists
_MOST_BYTES = 64 << 20  # of one log: stored, and shown
_PIECE_CHARACTERS = 1 << 16
_WINDOW_BYTES = 8 << 20  # window that a decompressor has to support, by RFC 8878


def stored_logs(store: Store, campaign: str, shard: str) -> Iterator[Log]:
    for info in store.list(keys.attempts(campaign, shard)):
        if info.key.endswith("/log.zst"):
            yield info.key, _pieces(store, info)


def job_indexes(store: Store, campaign: str, shard: str) -> dict[str, int]:
    """Return, for each Job, the index that has the shard."""
    waves = stored_plans.find_waves(store, campaign, {})
    return {
        wave.job_name: next(at for at, shards in enumerate(wave.indexes) if shard in shards)
        for wave in waves
        if shard in wave.shards
    }


def plans_of(store: Store, campaign: str | None) -> list[Plan]:
    """Return the plans of one campaign, or of all, oldest first."""
    if campaign is not None and not stored_plans.has_plans(store, campaign):
        raise stored_plans.no_campaign(store, campaign)
    names = [campaign] if campaign else stored_plans.campaigns(store)
    return [plan for name in names for plan in stored_plans.read_plans(store, name)]


def shard_list_lines(store: Store, plans: Sequence[Plan]) -> Iterator[str]:
    """Yield a line for each shard, whether or not its campaign is being measured."""
    if not plans:
        yield f"no campaigns at {store.url}"
    for campaign in dict.fromkeys(plan.campaign for plan in plans):
        done = stored_plans.committed_shards(store, campaign)
        for plan in plans:
            for shard in plan.shards if plan.campaign == campaign else ():
                state = "committed" if shard.shard_id in done else "open"
                size = counted(shard.cases, "case")
                yield f"{shard.shard_id}  {campaign} plan {plan.number}, {size}, {state}"


def find_shard(store: Store, plans: Sequence[Plan], beginning: str) -> tuple[str, str]:
    """Return the campaign and id of the only shard whose id starts with `beginning`."""
    known = dict.fromkeys((plan.campaign, s.shard_id) for plan in plans for s in plan.shards)
    found = [(name, shard) for name, shard in known if shard.startswith(beginning)]
    if len(found) != 1:
        begin = counted(len(found), "shard begins", "shards begin")
        there = ", ".join(shard for _, shard in (found or list(known))[:_NAMED]) or "none"
        raise BadInput(
            f"shard: expected a prefix of one shard at {store.url}, got "
            f"{beginning!r}: {begin} with it; shards: {there} "
            "(`opmeter logs` without a shard lists them all)"
        )
    return found[0]


def _pieces(store: Store, info: Info) -> Iterator[str]:
    """Yield the lines of a stored log, or a note if it is not a log or is too long."""
    if info.size_bytes > _MOST_BYTES:
        yield f"(not shown: {info.size_bytes >> 20} MiB are stored)"
        return
    # Each read decompresses one block of the frame, whatever size the frame declares.
    stored = io.BytesIO(store.get(info.key))
    inflated = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES).stream_reader(stored)
    text = io.TextIOWrapper(inflated, encoding="utf-8", errors="replace", newline="\n")
    shown = 0
    try:
        while shown < _MOST_BYTES and (piece := text.readline(_PIECE_CHARACTERS)):
            shown += len(piece)
            yield piece.removesuffix("\n").removesuffix("\r")
    except zstandard.ZstdError:
        yield "(the rest cannot be read: it is not a worker's compressed log)"
    if shown >= _MOST_BYTES:
        yield f"(the rest is not shown: it is over {_MOST_BYTES >> 20} MiB)"
