"""What is known of a campaign from its store: its plans, their commits, and their progress."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from collector import keys
from collector.errors import NotFound
from collector.plan import Plan
from collector.store.base import Store
from jobs.rounds import committed_shards, read_plans


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """`done` of `cases` are answered; `measuring` is the case in hand, where a worker said so."""

    shard: str
    committed: bool
    done: int
    cases: int
    measuring: str


@dataclass(frozen=True, slots=True)
class PlanStatus:
    plan: Plan
    shards: tuple[ShardStatus, ...]

    @property
    def committed(self) -> int:
        return sum(shard.committed for shard in self.shards)

    @property
    def remaining_s(self) -> float:
        """Wall time still to come by forecast, if every device is at work."""
        open_shards = {shard.shard: shard for shard in self.shards if not shard.committed}
        left_s = [
            p.predicted_s * (1 - open_shards[p.shard_id].done / max(1, p.cases))
            for p in self.plan.shards
            if p.shard_id in open_shards
        ]
        return max(sum(left_s) / self.plan.devices, max(left_s, default=0.0))


def campaigns(store: Store) -> list[str]:
    """Every campaign that has a plan in the store."""
    found = (info.key.split("/") for info in store.list("campaigns/"))
    return sorted({parts[1] for parts in found if len(parts) > 3 and parts[2] == "plans"})


def campaign_status(store: Store, campaign: str) -> list[PlanStatus]:
    """How far each plan of a campaign is, oldest first."""
    done = committed_shards(store, campaign)
    return [
        PlanStatus(plan, tuple(_shards(store, plan, done))) for plan in read_plans(store, campaign)
    ]


def _shards(store: Store, plan: Plan, done: frozenset[str]) -> Iterator[ShardStatus]:
    for shard in plan.shards:
        if shard.shard_id in done:
            yield ShardStatus(shard.shard_id, True, shard.cases, shard.cases, "")
        else:
            answered, measuring = _furthest(store, plan.campaign, shard.shard_id)
            yield ShardStatus(shard.shard_id, False, answered, shard.cases, measuring)


def _furthest(store: Store, campaign: str, shard: str) -> tuple[int, str]:
    """The most that any attempt at a shard says it has done."""
    said = [(0, "")]
    for info in store.list(keys.attempts(campaign, shard)):
        if info.key.endswith("/progress.json"):
            try:
                value = json.loads(store.get(info.key))
                said.append((int(value["done"]), str(value["case"])))
            except (NotFound, ValueError, KeyError):
                continue  # a picture of the progress, rewritten while we look
    return max(said)
