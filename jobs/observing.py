"""A look at the store and at the cluster: everything that a decision is made from."""

import logging
from collections.abc import Iterator
from dataclasses import replace

from collector import keys
from collector.database.commits import find_head
from collector.database.published import HeldShards
from collector.errors import NotFound, StoreError
from collector.plan import Plan
from collector.store.base import Store
from jobs.applied import SELECTOR, Applied
from jobs.cluster import Cluster
from jobs.fleet import node_views, requested
from jobs.live import job_views, pod_views
from jobs.memory import KnownPlan, Memory
from jobs.nodes import Strikes, strikes_from_json
from jobs.observed import Observed
from jobs.rounds import committed_shards
from jobs.waves import Wave, wave_from_json

logger = logging.getLogger(__name__)

_AT_WORK = "status.phase!=Succeeded"  # those tell nothing that their Job does not
_HOLDING = "status.phase!=Succeeded,status.phase!=Failed"


def observe(
    cluster: Cluster, applied: Applied, known: KnownPlan, store: Store, memory: Memory
) -> Observed:
    """Everything at one moment. A store that does not answer is told, not raised."""
    live = _live(cluster, applied, memory)
    try:
        memory.committed = committed_shards(store, applied.campaign.name)
        waves = tuple(_waves(store, known, memory))
        strikes = _strikes(store, applied.campaign.name)
        merged = _is_merged(store, known.plan, memory, partial=applied.allow_missing)
    except StoreError as error:
        logger.warning("campaign %s: %s", applied.campaign.name, error)
        waves = tuple(w for w in memory.waves.values() if w.plan_hash == known.plan_hash)
        return replace(live, committed=memory.committed, waves=waves, store_works=False)
    return replace(live, committed=memory.committed, waves=waves, strikes=strikes, merged=merged)


def _live(cluster: Cluster, applied: Applied, memory: Memory) -> Observed:
    selector = f"{SELECTOR}={applied.campaign.name}"
    workers = f"{selector},app.kubernetes.io/component=worker"
    jobs = job_views(cluster.jobs(selector), memory.jobs)
    found = cluster.pods(workers, _AT_WORK) if any(job.wave for job in jobs) else []
    pods = pod_views(found, memory.pods)
    nodes = memory.nodes.get(cluster.nodes)
    others = memory.others.get(lambda: _of_others(cluster, applied)) if nodes else {}
    views = node_views(nodes, pods, applied.site, others)
    return Observed(frozenset(), (), jobs, pods, views)


def _of_others(cluster: Cluster, applied: Applied) -> dict[str, float]:
    """What pods that are not this campaign's hold of its nodes, where they may be listed."""
    name, namespace = applied.campaign.name, cluster.namespace

    def is_ours(pod: dict[str, dict[str, object]]) -> bool:
        metadata = pod["metadata"]
        labels = metadata.get("labels") or {}
        assert isinstance(labels, dict)
        return metadata["namespace"] == namespace and labels.get(SELECTOR) == name

    pods = (pod for pod in cluster.pods_everywhere(_HOLDING) if not is_ours(pod))
    return requested(pods, applied.site)


def _waves(store: Store, known: KnownPlan, memory: Memory) -> Iterator[Wave]:
    """The plan's waves; each is read once."""
    for info in store.list(keys.waves(known.plan.campaign)):
        if info.key not in memory.waves:
            memory.waves[info.key] = wave_from_json(store.get(info.key), key=info.key)
        if memory.waves[info.key].plan_hash == known.plan_hash:
            yield memory.waves[info.key]


def _is_merged(store: Store, plan: Plan, memory: Memory, *, partial: bool) -> bool:
    """Whether the database's head holds all that is committed of the plan. Asked where all of it
    is, or where a part is to be merged too; the head is read again only where anything is new."""
    done = [shard.shard_id for shard in plan.shards if shard.shard_id in memory.committed]
    if len(done) < len(plan.shards) and not (partial and done):
        return False
    head = find_head(store)
    if head is None:
        return not plan.shards
    if memory.held is None or memory.held.store is not store:
        memory.held = HeldShards(store, plan.campaign)
    return memory.held.at(head).issuperset(done)


def _strikes(store: Store, campaign: str) -> Strikes:
    key = keys.nodes(campaign)
    try:
        return strikes_from_json(store.get(key), key=key)
    except NotFound:
        return Strikes()
