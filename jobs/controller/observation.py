"""A look at the store and at the cluster: everything that a decision is made from."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from collector.errors import StoreError
from collector.store.base import Store
from jobs.controller.remembered import KnownPlan, Memory
from jobs.controller.unmerged import with_unmerged
from jobs.decide.capacity import node_views, requested
from jobs.decide.live_objects import aged, job_views, pod_view
from jobs.decide.observed import WORKER, JobView, Observed, PodView
from jobs.decide.pod_problems import STUCK_S, is_being_made
from jobs.kube.cluster import Cluster
from jobs.kube.errors import unless_refused
from jobs.objects.applied_campaign import SELECTOR, Applied
from jobs.objects.deployment import COMPONENT_LABEL
from jobs.objects.events import message_of, said_at
from jobs.objects.kueue import by_job, is_given_up
from jobs.objects.waves import Wave
from jobs.planning.stored_plans import committed_shards, known_strikes
from jobs.planning.stored_waves import find_waves

logger = logging.getLogger(__name__)

_AT_WORK = "status.phase!=Succeeded"  # those tell nothing that their Job does not
_ASKED = 3  # pods whose own Events are asked for
_SETTLE_S = 15.0
_HOLDING = "status.phase!=Succeeded,status.phase!=Failed"


def observe(
    cluster: Cluster, applied: Applied, known: KnownPlan, store: Store, memory: Memory
) -> Observed:
    """Everything at one moment. A store that does not answer is told, not raised."""
    live = _live(cluster, applied, memory)
    try:
        memory.committed = committed_shards(store, applied.campaign.name)
        waves = tuple(_waves(store, known, memory))
        strikes = known_strikes(store, applied.campaign.name)
        found = replace(live, committed=memory.committed, waves=waves, strikes=strikes)
        found = with_unmerged(found, store, known, memory, partial=applied.allow_missing)
    except StoreError as error:
        logger.warning("campaign %s: %s", applied.campaign.name, error)
        waves = tuple(w for w in memory.waves.values() if w and w.plan_hash == known.plan_hash)
        return replace(live, committed=memory.committed, waves=waves, store_works=False)
    return replace(found, settling=_settling(found, memory))


def _settling(observed: Observed, memory: Memory) -> frozenset[tuple[str, int]]:
    """The indexes that ended well a moment ago, and whose commits are not all listed: some stores
    list an object a little later than they take it. To launch those again would measure twice."""
    unlisted = [
        (job.name, index)
        for job in observed.jobs
        if (wave := observed.by_hash.get(job.wave)) and not wave.shards <= observed.committed
        for index in job.succeeded
        if index < len(wave.indexes) and not observed.committed.issuperset(wave.indexes[index])
    ]
    ages = memory.unlisted.look(dict.fromkeys(unlisted))
    return frozenset(place for place in unlisted if ages[place] < _SETTLE_S)


def _live(cluster: Cluster, applied: Applied, memory: Memory) -> Observed:
    selector = f"{SELECTOR}={applied.campaign.name}"
    workers = f"{selector},{COMPONENT_LABEL}={WORKER}"
    jobs = _with_queue(cluster, job_views(cluster.jobs(selector), memory.jobs), memory)
    # What a Job says of failures is judged by its pods: those must not be older.
    failures = tuple(
        (job.uid, job.failed, job.state) for job in jobs if job.failed or job.state == "Failed"
    )

    def ask() -> list[PodView]:
        return [pod_view(pod) for pod in cluster.pods(workers, _AT_WORK)]

    works = any(job.wave for job in jobs)
    found = memory.workers.get(ask, about=failures) if works or memory.leaving else []
    memory.leaving = works or any(not pod.has_ended for pod in found)
    pods = _with_warnings(cluster, aged(found, memory.pods), memory)
    nodes = memory.nodes.get(cluster.nodes)
    others = memory.others.get(lambda: _of_others(cluster, applied)) if nodes else {}
    views = node_views(nodes, pods, applied.site, others)
    return Observed(frozenset(), (), jobs, pods, views)


def _with_queue(cluster: Cluster, jobs: tuple[JobView, ...], memory: Memory) -> tuple[JobView, ...]:
    """The same, with what Kueue makes of those that wait in its queues."""
    if not any(job.queue and job.suspended and job.is_live for job in jobs):
        memory.workloads.at = None
        return jobs
    found = by_job(memory.workloads.get(cluster.kueue.workloads))
    over = {uid for uid, workload in found.items() if is_given_up(workload)}
    return tuple(replace(job, given_up=job.suspended and job.uid in over) for job in jobs)


def _with_warnings(
    cluster: Cluster, pods: tuple[PodView, ...], memory: Memory
) -> tuple[PodView, ...]:
    """The same, with what is said of those that have a node and do not begin. A few are asked
    after: what waits, waits for the same."""
    hang = [pod for pod in pods if is_being_made(pod) and pod.in_state_s > STUCK_S]
    if not hang:
        memory.warnings.at = None
        return pods
    said = memory.warnings.get(lambda: {p.uid: _last_warning(cluster, p) for p in hang[:_ASKED]})
    return tuple(replace(pod, event=said[pod.uid]) if pod.uid in said else pod for pod in pods)


def _last_warning(cluster: Cluster, pod: PodView) -> str:
    """What the cluster last held against a pod; empty where this account may not read that."""
    with unless_refused(f"Events of {pod.name}"):
        found = cluster.events(f"involvedObject.name={pod.name},type=Warning")
        last = max(found, key=said_at, default=None)
        return message_of(last) if last else ""
    return ""


def _of_others(cluster: Cluster, applied: Applied) -> dict[str, float]:
    """What pods that are not this campaign's hold of its nodes, where they may be listed."""
    here = cluster.pods(f"{SELECTOR}!={applied.campaign.name}", _HOLDING)
    elsewhere = cluster.pods_everywhere(f"{_HOLDING},metadata.namespace!={cluster.namespace}")
    return requested(chain(here, elsewhere), applied.site)


def _waves(store: Store, known: KnownPlan, memory: Memory) -> Iterator[Wave]:
    """The plan's waves; each is read once."""
    found = find_waves(store, known.plan.campaign, memory.waves)
    return (wave for wave in found if wave.plan_hash == known.plan_hash)
