"""The observation of the store and the cluster: everything that a decision needs."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from collector.codec.errors import StoreError
from collector.database.commits import find_head
from collector.database.head_content import HeldShards
from collector.database.plan_state import damage_in
from collector.database.shard_commits import fetch
from collector.model.plan import Plan, PlannedShard
from collector.store.base import Store
from jobs.controller.remembered import KnownPlan, Memory
from jobs.decide.job_rules import has_merged, merge_key
from jobs.decide.live_objects import aged, job_views, node_views, pod_view, requested
from jobs.decide.observed import WORKER, JobView, Observed, PodView
from jobs.decide.pod_problems import STUCK_S, is_being_made
from jobs.kube.cluster import Cluster
from jobs.kube.errors import unless_refused
from jobs.objects.applied_campaign import SELECTOR, Applied
from jobs.objects.deployment import COMPONENT_LABEL
from jobs.objects.events import event_message, last_seen_at
from jobs.objects.kueue import by_job, is_given_up
from jobs.objects.waves import Wave
from jobs.planning.damage import outside
from jobs.planning.stored_plans import committed_shards, find_waves, known_node_failures

# Commits of a campaign that the head does not have: not yet merged, or damaged.


def with_unmerged(
    observed: Observed, store: Store, known: KnownPlan, memory: Memory, *, partial: bool
) -> Observed:
    """Return the observed state with the merged and unmerged commits.

    This is determined when the whole plan is committed, or when a partial merge is allowed. The
    head is read again only if something is new, and a shard only if a merge left it out: one at a
    time, whatever the size of the database."""
    plan, committed = known.plan, memory.committed
    done = _committed(plan, committed)
    if len(done) < len(plan.shards) and not (partial and done):
        return observed
    of_others = frozenset(s for other in known.others for s in _committed(other, committed))
    left_out = list(_outside(store, known, memory))
    if has_merged(observed.jobs, merge_key(known.plan.plan_hash, {*done, *of_others})):
        for of, shard in left_out:
            _record_damage(store, of, shard, memory)
    left = [(of, s) for of, s in left_out if not memory.unmerged.get(s.shard_id)]
    bad = ((s.shard_id, memory.unmerged.get(s.shard_id)) for of, s in left_out if of is plan)
    older = {s.shard_id for of, s in left_out if of is not plan and memory.unmerged.get(s.shard_id)}
    return replace(
        observed,
        merged=not left,
        damaged=tuple((shard, damage.reason) for shard, damage in bad if damage),
        damaged_of_earlier_plans=frozenset(older) - known.damaged,
        late=tuple(sorted({of.number for of, _ in left if of is not plan})),
        committed_of_earlier_plans=of_others,
    )


def _committed(plan: Plan, committed: frozenset[str]) -> list[str]:
    return [shard.shard_id for shard in plan.shards if shard.shard_id in committed]


def _outside(store: Store, known: KnownPlan, memory: Memory) -> Iterator[tuple[Plan, PlannedShard]]:
    """Yield the committed shards that the head lacks, with a plan that has them."""
    if memory.held is None or memory.held.store is not store:
        memory.held = HeldShards(store, known.plan.campaign)
    held = memory.held.at(find_head(store))
    return outside((known.plan, *known.others), memory.committed, held)


def _record_damage(store: Store, plan: Plan, shard: PlannedShard, memory: Memory) -> None:
    """Record why a merge left a shard out; read it once, because stored objects never change."""
    if shard.shard_id not in memory.unmerged:
        stored = fetch(store, plan, shard, with_attempt=True)
        memory.unmerged[shard.shard_id] = damage_in(plan, stored)


logger = logging.getLogger(__name__)

_AT_WORK = "status.phase!=Succeeded"  # the Jobs report everything about the others
_MAX_PODS_WITH_EVENTS = 3  # the number of pods whose Events are read
_SETTLE_S = 15.0
_HOLDING = "status.phase!=Succeeded,status.phase!=Failed"


def observe(
    cluster: Cluster, applied: Applied, known: KnownPlan, store: Store, memory: Memory
) -> Observed:
    """Return the state at one moment; an unreachable store is reported in it, not raised."""
    live = _live(cluster, applied, memory)
    memory.store_error = None
    try:
        memory.committed = committed_shards(store, applied.campaign.name)
        waves = tuple(_waves(store, known, memory))
        node_failures = known_node_failures(store, applied.campaign.name)
        found = replace(live, committed=memory.committed, waves=waves, node_failures=node_failures)
        found = with_unmerged(found, store, known, memory, partial=applied.allow_missing)
    except StoreError as error:
        logger.warning("campaign %s: %s", applied.campaign.name, error)
        memory.store_error = error
        waves = tuple(w for w in memory.waves.values() if w and w.plan_hash == known.plan.plan_hash)
        return replace(live, committed=memory.committed, waves=waves, store_works=False)
    return replace(found, settling=_settling(found, memory))


def _settling(observed: Observed, memory: Memory) -> frozenset[tuple[str, int]]:
    """Return the indexes that just succeeded and whose commits are not all listed yet.

    Some stores list an object shortly after they accept it. To launch those indexes again would
    measure them twice."""
    unlisted = [
        (job.name, index)
        for job in observed.jobs
        if (wave := observed.by_hash.get(job.wave)) and not wave.shards <= observed.committed
        for index in job.succeeded
        if index < len(wave.indexes) and not observed.committed.issuperset(wave.indexes[index])
    ]
    ages = memory.unlisted.ages(dict.fromkeys(unlisted))
    return frozenset(place for place in unlisted if ages[place] < _SETTLE_S)


def _live(cluster: Cluster, applied: Applied, memory: Memory) -> Observed:
    selector = f"{SELECTOR}={applied.campaign.name}"
    workers = f"{selector},{COMPONENT_LABEL}={WORKER}"
    jobs = _with_queue(cluster, job_views(cluster.jobs(selector), memory.jobs), memory)
    # The failures that a Job reports are judged by its pods: the pods must not be older.
    failures = tuple(
        (job.uid, job.failed, job.state) for job in jobs if job.failed or job.state == "Failed"
    )

    def fetch_pods() -> list[PodView]:
        return [pod_view(pod) for pod in cluster.pods(workers, _AT_WORK)]

    works = any(job.wave for job in jobs)
    found = memory.workers.get(fetch_pods, about=failures) if works or memory.leaving else []
    memory.leaving = works or any(not pod.has_ended for pod in found)
    pods = _with_warnings(cluster, aged(found, memory.pods), memory)
    nodes = memory.nodes.get(cluster.nodes)
    others = memory.others.get(lambda: _of_others(cluster, applied)) if nodes else {}
    views = node_views(nodes, pods, applied.site, others)
    return Observed(frozenset(), (), jobs, pods, views)


def _with_queue(cluster: Cluster, jobs: tuple[JobView, ...], memory: Memory) -> tuple[JobView, ...]:
    """Return the Jobs with the status that Kueue reports for those that wait in its queues."""
    if not any(job.queue and job.suspended and job.is_live for job in jobs):
        memory.workloads.at = None
        return jobs
    found = by_job(memory.workloads.get(cluster.kueue.workloads))
    over = {uid for uid, workload in found.items() if is_given_up(workload)}
    return tuple(replace(job, given_up=job.suspended and job.uid in over) for job in jobs)


def _with_warnings(
    cluster: Cluster, pods: tuple[PodView, ...], memory: Memory
) -> tuple[PodView, ...]:
    """Return the pods with the last warning about those that have a node and do not start.

    Events are read for a few pods only, because pods usually wait for the same cause."""
    hang = [pod for pod in pods if is_being_made(pod) and pod.in_state_s > STUCK_S]
    if not hang:
        memory.warnings.at = None
        return pods
    reported = memory.warnings.get(
        lambda: {p.uid: _last_warning(cluster, p) for p in hang[:_MAX_PODS_WITH_EVENTS]}
    )
    return tuple(
        replace(pod, event=reported[pod.uid]) if pod.uid in reported else pod for pod in pods
    )


def _last_warning(cluster: Cluster, pod: PodView) -> str:
    """Return the last warning about a pod; empty if this account may not read Events."""
    with unless_refused(f"Events of {pod.name}"):
        found = cluster.events(f"involvedObject.name={pod.name},type=Warning")
        last = max(found, key=last_seen_at, default=None)
        return event_message(last) if last else ""
    return ""


def _of_others(cluster: Cluster, applied: Applied) -> dict[str, float]:
    """Return the devices that other pods hold on each node, if those pods may be listed."""
    here = cluster.pods(f"{SELECTOR}!={applied.campaign.name}", _HOLDING)
    elsewhere = cluster.pods_everywhere(f"{_HOLDING},metadata.namespace!={cluster.namespace}")
    return requested(chain(here, elsewhere), applied.site)


def _waves(store: Store, known: KnownPlan, memory: Memory) -> Iterator[Wave]:
    found = find_waves(store, known.plan.campaign, memory.waves)
    return (wave for wave in found if wave.plan_hash == known.plan.plan_hash)
