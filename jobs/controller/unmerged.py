"""What a campaign has committed and the head does not hold: yet to be merged, or damaged."""

from collections.abc import Iterator
from dataclasses import replace

from collector.database.commits import find_head
from collector.database.committed import fetch
from collector.database.plan_state import damage_in
from collector.database.published import HeldShards
from collector.plan import Plan, PlannedShard
from collector.store.base import Store
from jobs.controller.remembered import KnownPlan, Memory
from jobs.decide.merge_jobs import has_merged, merge_key
from jobs.decide.observed import Observed
from jobs.planning.damage import outside


def with_unmerged(
    observed: Observed, store: Store, known: KnownPlan, memory: Memory, *, partial: bool
) -> Observed:
    """The same, with what is merged and what is not. Asked where all of the plan is committed, or
    where a part is to be merged too; the head is read again only where anything is new, and a
    shard only where a merge has left it out: one at a time, whatever the database holds."""
    plan, committed = known.plan, memory.committed
    done = _committed(plan, committed)
    if len(done) < len(plan.shards) and not (partial and done):
        return observed
    of_others = frozenset(s for other in known.others for s in _committed(other, committed))
    left_out = list(_outside(store, known, memory))
    if has_merged(observed.jobs, merge_key(known.plan_hash, {*done, *of_others})):
        for of, shard in left_out:
            _look_into(store, of, shard, memory)
    left = [(of, s) for of, s in left_out if not memory.unmerged.get(s.shard_id)]
    bad = ((s.shard_id, memory.unmerged.get(s.shard_id)) for of, s in left_out if of is plan)
    return replace(
        observed,
        merged=not left,
        damaged=tuple((shard, why) for shard, why in bad if why),
        late=tuple(sorted({of.number for of, _ in left if of is not plan})),
        of_others=of_others,
    )


def _committed(plan: Plan, committed: frozenset[str]) -> list[str]:
    return [shard.shard_id for shard in plan.shards if shard.shard_id in committed]


def _outside(store: Store, known: KnownPlan, memory: Memory) -> Iterator[tuple[Plan, PlannedShard]]:
    """The committed shards that the head lacks, with a plan that has them."""
    if memory.held is None or memory.held.store is not store:
        memory.held = HeldShards(store, known.plan.campaign)
    held = memory.held.at(find_head(store))
    return outside((known.plan, *known.others), memory.committed, held)


def _look_into(store: Store, plan: Plan, shard: PlannedShard, memory: Memory) -> None:
    """Find out why a merge has left a shard out. What is stored never changes by itself."""
    if shard.shard_id not in memory.unmerged:
        damage = damage_in(plan, fetch(store, plan, shard, with_answer=True))
        memory.unmerged[shard.shard_id] = damage.reason if damage else ""
