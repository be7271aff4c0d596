"""What is known of a campaign from its store: its plans, their commits, and their progress.

What is committed never changes, so it is read once, however often somebody looks.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from collector import keys
from collector.errors import NotFound
from collector.manifest import NO_USAGE, Usage, manifest_from_json
from collector.measurement import Measurement, Outcome
from collector.plan import Plan, PlannedShard
from collector.shard import read_shard
from collector.store.base import Store
from collector.worker.attempt import read_commit, read_part
from jobs.attempts import READERS, keys_of_attempts
from jobs.pace import remaining_s
from jobs.rounds import committed_shards, plan_numbers, read_plan


@dataclass(frozen=True, slots=True)
class Answer:
    """How cases of one kernel type were answered; `reason` is the first line of it."""

    kernel_type: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """`done` of `cases` are answered; `measuring` is the case in hand, where a worker said so.
    `planned` counts cases by kernel type, `answers` those that parts hold already."""

    shard: str
    committed: bool
    done: int
    cases: int
    measuring: str
    predicted_s: float = 0.0
    usage: Usage = NO_USAGE
    planned: Counter[str] = field(default_factory=Counter)
    answers: Counter[Answer] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class PlanStatus:
    plan: Plan
    shards: tuple[ShardStatus, ...]

    @property
    def committed(self) -> int:
        return sum(shard.committed for shard in self.shards)

    @property
    def left_s(self) -> list[float]:
        """Device time still to come, a number for each open shard, by forecast."""
        open_shards = (shard for shard in self.shards if not shard.committed)
        return [s.predicted_s * (1 - s.done / max(1, s.cases)) for s in open_shards]

    @property
    def usage(self) -> Usage:
        """What sessions took whose parts are stored."""
        total = NO_USAGE
        for shard in self.shards:
            total = total.plus(shard.usage)
        return total

    @property
    def pace(self) -> float:
        """What committed shards took over what was forecast of them; 1 while there are none."""
        done = [shard for shard in self.shards if shard.committed]
        predicted_s = sum(shard.predicted_s for shard in done)
        took_s = sum(shard.usage.wall_s for shard in done)
        return took_s / predicted_s if predicted_s > 0 and took_s > 0 else 1.0

    def remaining_s(self, devices: int = 0) -> float:
        """Wall time still to come at the pace so far, on so many devices  [the plan's]."""
        return remaining_s(self.left_s, devices or self.plan.devices, self.pace)


class Follower:
    """Looks at campaigns again and again, and remembers what never changes."""

    def __init__(self, store: Store):
        self._store = store
        self._plans: dict[str, Plan] = {}
        self._settled: dict[str, ShardStatus] = {}
        self._planned: dict[str, Counter[str]] = {}
        # Of open shards: shard -> part -> case -> how it is answered.
        self._answered: dict[str, dict[str, dict[str, Answer]]] = {}

    def look(self, campaign: str, *, deep: bool = True) -> list[PlanStatus]:
        """How far each plan of a campaign is, oldest first. Only the newest is measured, so that
        only its open shards are looked into; `deep` also reads its shards and parts: which kernel
        types, how answered, in what time."""
        done = committed_shards(self._store, campaign)
        plans = [self._plan(campaign, n) for n in plan_numbers(self._store, campaign)]
        found = [PlanStatus(plan, tuple(_counted(plan, done))) for plan in plans[:-1]]
        newest = [PlanStatus(plan, self._shards(plan, done, deep=deep)) for plan in plans[-1:]]
        return found + newest

    def _plan(self, campaign: str, number: int) -> Plan:
        key = keys.plan(campaign, number)
        if key not in self._plans:
            self._plans[key] = read_plan(self._store, campaign, number)
        return self._plans[key]

    def _shards(self, plan: Plan, done: frozenset[str], *, deep: bool) -> tuple[ShardStatus, ...]:
        left = [shard.shard_id for shard in plan.shards if shard.shard_id not in done]
        attempts = keys_of_attempts(self._store, plan.campaign, left, len({*done, *left}))

        def one(shard: PlannedShard) -> ShardStatus:
            if shard.shard_id not in done:
                left_behind = attempts.get(shard.shard_id, [])
                return self._open(plan.campaign, shard, left_behind, deep=deep)
            return self._done(plan.campaign, shard) if deep else _finished(shard)

        with ThreadPoolExecutor(READERS) as pool:
            return tuple(pool.map(one, plan.shards))

    def _done(self, campaign: str, shard: PlannedShard) -> ShardStatus:
        if shard.shard_id not in self._settled:
            self._settled[shard.shard_id] = self._committed(campaign, shard)
            self._answered.pop(shard.shard_id, None)
        return self._settled[shard.shard_id]

    def _committed(self, campaign: str, shard: PlannedShard) -> ShardStatus:
        commit = read_commit(self._store, campaign, shard.shard_id)
        if commit is None:  # it was there a moment ago
            return _finished(shard)
        key = commit.manifest.key
        manifest = manifest_from_json(self._store.get(key), key=key)
        final = frozenset(manifest.final.values())
        parts = (self._part(entry.part.key) for entry in manifest.parts)
        counted = (m for part in parts for m in part if m.measurement_id in final)
        return _finished(shard, manifest.usage, self._plan_of(campaign, shard), _answers(counted))

    def _open(
        self, campaign: str, shard: PlannedShard, attempts: Sequence[str], *, deep: bool
    ) -> ShardStatus:
        progress, answers = [(0, "")], dict[str, Answer]()
        for key in attempts:
            name = key.rsplit("/", 1)[1]
            if name == "progress.json":
                progress += _progress(self._store, key)
            elif deep and name.startswith("part-"):
                answers |= self._answers_in(shard.shard_id, key)
        answered, measuring = max(progress)
        return ShardStatus(
            shard.shard_id,
            False,
            max(answered, len(answers)),
            shard.cases,
            measuring,
            shard.predicted_s,
            planned=self._plan_of(campaign, shard) if deep else Counter(),
            answers=Counter(answers.values()),
        )

    def _answers_in(self, shard: str, part: str) -> dict[str, Answer]:
        """How a part answers its cases. A part never changes."""
        parts = self._answered.setdefault(shard, {})
        if part not in parts:
            parts[part] = {m.case_id: _answer(m) for m in self._part(part) if not m.is_filed}
        return parts[part]

    def _plan_of(self, campaign: str, shard: PlannedShard) -> Counter[str]:
        """The shard's cases by kernel type."""
        if shard.shard_id not in self._planned:
            key = keys.shard(campaign, shard.shard_id)
            cases = read_shard(self._store.get(key), path=key)
            found = Counter(case.record.case.kernel_type for case in cases)
            self._planned[shard.shard_id] = found
        return self._planned[shard.shard_id]

    def _part(self, key: str) -> tuple[Measurement, ...]:
        return read_part(self._store.get(key), key=key)


def has_plans(store: Store, campaign: str) -> bool:
    """Whether a campaign has a plan in the store."""
    return any(True for _ in store.list(keys.plans(campaign)))


def campaigns(store: Store) -> list[str]:
    """Every campaign that has a plan in the store: of a large one a long listing."""
    found = (info.key.split("/") for info in store.list("campaigns/"))
    return sorted({parts[1] for parts in found if len(parts) > 3 and parts[2] == "plans"})


def _finished(
    shard: PlannedShard,
    usage: Usage = NO_USAGE,
    planned: Counter[str] | None = None,
    answers: Counter[Answer] | None = None,
) -> ShardStatus:
    return ShardStatus(
        shard.shard_id,
        True,
        shard.cases,
        shard.cases,
        "",
        shard.predicted_s,
        usage,
        planned or Counter(),
        answers or Counter(),
    )


def _counted(plan: Plan, done: frozenset[str]) -> Iterator[ShardStatus]:
    """The shards of a plan that is measured no more: committed, or not."""
    for shard in plan.shards:
        if shard.shard_id in done:
            yield _finished(shard)
        else:
            yield ShardStatus(shard.shard_id, False, 0, shard.cases, "", shard.predicted_s)


def _answers(measurements: Iterable[Measurement]) -> Counter[Answer]:
    return Counter(_answer(m) for m in measurements if not m.is_filed)


def _answer(m: Measurement) -> Answer:
    return Answer(m.kernel_type, m.outcome, (m.reason.strip().splitlines() or [""])[0])


def _progress(store: Store, key: str) -> Iterator[tuple[int, str]]:
    """What an attempt says it has done: a picture, rewritten while we look."""
    try:
        value = json.loads(store.get(key))
        yield int(value["done"]), str(value["case"])
    except (NotFound, ValueError, KeyError):
        return
