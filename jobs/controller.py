"""The controller: looks at campaigns, decides, acts, and forgets.

Its state is the store and the live objects; what it keeps in memory only saves it a second look.
It may be killed at any line, and another may go on from anywhere.
"""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from collector import keys
from collector.database.commits import find_head
from collector.database.merge import Guard
from collector.database.query import held_shards
from collector.database.snapshot import load_state
from collector.errors import BadInput, NotFound, OpmeterError, StoreError
from collector.plan import Plan
from collector.stack import Stack
from collector.store.base import Store, create_once
from collector.worker.assignment import Assignment, abandon
from jobs.actions import (
    Action,
    Announce,
    Delete,
    Finish,
    GiveUp,
    Launch,
    Merge,
    Remember,
    Scale,
    Suspend,
)
from jobs.advancing import Wish, advance
from jobs.applied import SELECTOR, Applied, applied_from, check_sources
from jobs.cluster import Cluster
from jobs.cluster_errors import ClusterError
from jobs.decide import Desired, decide
from jobs.live import PodWatch, job_view, node_views
from jobs.metrics import Metrics
from jobs.nodes import Strikes, strikes_from_json, strikes_to_json
from jobs.observed import JobView, Observed
from jobs.podspec import merge_job, worker_job
from jobs.preparing import survey
from jobs.probing import stack_of_workers
from jobs.rounds import committed_shards
from jobs.waves import Wave, wave_from_json, wave_to_json

logger = logging.getLogger(__name__)

OpenStore = Callable[[Applied], Store]


@dataclass
class _Memory:
    """What was read once of a campaign, and cannot change: its plan while the ConfigMap is the
    same, and its waves."""

    version: str = ""
    plan: Plan | None = None
    waves: dict[str, Wave] = field(default_factory=dict)
    pods: PodWatch = field(default_factory=PodWatch)
    merged_at: tuple[int, int] = (-1, -1)  # number of the head, commits of shards


class Controller:
    """Moves every campaign of a namespace on. `open_store` opens the store of one, as this
    process reaches it."""

    def __init__(
        self,
        cluster: Cluster,
        open_store: OpenStore,
        guard_of: Callable[[Applied, Store], Guard],
        metrics: Metrics | None = None,
    ):
        self._cluster = cluster
        self._open_store = open_store
        self._guard_of = guard_of
        self._metrics = metrics or Metrics()
        self._memories: dict[str, _Memory] = {}

    def look(self, only: str = "") -> dict[str, bool]:
        """One look at each campaign (or one of them): name -> whether it is finished."""
        selector = f"{SELECTOR}={only}" if only else SELECTOR
        found = {}
        for config_map in self._cluster.config_maps(selector):
            name = config_map["metadata"]["labels"][SELECTOR]
            if "deletionTimestamp" in config_map["metadata"]:
                continue
            started = time.monotonic()
            try:
                found[name] = self._one(applied_from(config_map))
            except BadInput as error:
                self._announce(config_map, "BadInput", str(error))
                found[name] = False
            except (OpmeterError, OSError) as error:
                logger.warning("campaign %s: %s", name, error)
                found[name] = False
            self._metrics.looked(name, time.monotonic() - started, self._cluster.requests)
        return found

    def _one(self, applied: Applied) -> bool:
        name = applied.campaign.name
        memory = self._memories.setdefault(name, _Memory())
        store = self._open_store(applied)
        plan = self._plan(applied, store, memory)
        if plan is None:
            return False
        observed = self._observe(applied, plan, store, memory)
        desired = Desired(
            plan=plan,
            workers=_workers(applied, observed),
            per_index=applied.site.devices_per_worker,
            paused=applied.paused,
            allow_missing=applied.allow_missing,
            kueue=bool(applied.site.kueue_queue),
        )
        actions = decide(desired, observed)
        self._metrics.campaign(name, plan, observed)
        for action in actions:
            logger.info("campaign %s: %s", name, action)
            self._perform(action, applied, plan, observed, store)
        return any(isinstance(action, Finish) for action in actions)

    def _plan(self, applied: Applied, store: Store, memory: _Memory) -> Plan | None:
        """The campaign's plan, made where there is none; None while its stack is being found."""
        version = applied.object["metadata"].get("resourceVersion", "")
        if memory.plan is not None and memory.version == version:
            return memory.plan
        check_sources(applied.campaign)
        stack = self._stack(applied)
        if stack is None:
            return None
        situation = survey(applied.campaign, store, stack)
        guard = self._guard_of
        advanced = advance(situation, store, lambda: guard(applied, store), Wish(), logger.info)
        if memory.plan is None or memory.plan.plan_hash != advanced.plan.plan_hash:
            memory.waves.clear()
            self._announce(applied.object, "Planned", advanced.news, warning=False)
        memory.plan, memory.version = advanced.plan, version
        return advanced.plan

    def _stack(self, applied: Applied) -> Stack | None:
        target = applied.campaign.target
        if target is not None and applied.campaign.backend == "npu":
            return None if target.device is None else _named_stack(applied)
        return stack_of_workers(self._cluster, applied)

    def _observe(self, applied: Applied, plan: Plan, store: Store, memory: _Memory) -> Observed:
        name = applied.campaign.name
        selector = f"{SELECTOR}={name}"
        jobs = tuple(job_view(job) for job in self._cluster.jobs(selector))
        pods = memory.pods.views(
            self._cluster.pods(f"{selector},app.kubernetes.io/component=worker")
        )
        nodes = node_views(self._cluster.nodes(), pods, applied.site)
        try:
            committed = committed_shards(store, name)
            waves = tuple(self._waves(store, plan, memory))
            strikes = _strikes(store, name)
        except StoreError as error:
            logger.warning("campaign %s: %s", name, error)
            waves = tuple(w for w in memory.waves.values() if w.plan_hash == plan.plan_hash)
            return Observed(frozenset(), waves, jobs, pods, nodes, store_works=False)
        left = any(shard.shard_id not in committed for shard in plan.shards)
        merged = not left and self._is_merged(store, plan, committed, memory, jobs)
        return Observed(committed, waves, jobs, pods, nodes, strikes, merged)

    def _waves(self, store: Store, plan: Plan, memory: _Memory) -> Iterator[Wave]:
        """The plan's waves; each is read once."""
        for info in store.list(keys.waves(plan.campaign)):
            if info.key not in memory.waves:
                memory.waves[info.key] = wave_from_json(store.get(info.key), key=info.key)
            if memory.waves[info.key].plan_hash == plan.plan_hash:
                yield memory.waves[info.key]

    def _is_merged(
        self,
        store: Store,
        plan: Plan,
        committed: frozenset[str],
        memory: _Memory,
        jobs: tuple[JobView, ...],
    ) -> bool:
        """Whether the database's head holds every shard; it is read again only where it is new."""
        head = find_head(store)
        if head is None:
            return not plan.shards
        at = (head.number, len(committed))
        if memory.merged_at == at:
            return True
        held = held_shards(load_state(store, head))
        wanted = {(plan.campaign, shard.shard_id) for shard in plan.shards}
        if wanted <= held:
            memory.merged_at = at
            return True
        return False

    def _perform(
        self, action: Action, applied: Applied, plan: Plan, observed: Observed, store: Store
    ) -> None:
        name, cluster = applied.campaign.name, self._cluster
        match action:
            case Launch(wave, cap):
                create_once(store, keys.wave(name, wave.wave_hash), wave_to_json(wave))
                job = worker_job(wave, plan, applied.site, applied.deployment, cap=cap)
                if cluster.create_or_adopt(job):
                    news = f"{wave.job_name}: {len(wave.indexes)} indexes"
                    self._announce(applied.object, "WaveCreated", news, warning=False)
            case Scale(job_name, number):
                live = _job(observed, job_name)
                cluster.patch_job(
                    job_name, {"parallelism": number, "suspend": bool(live and live.suspended)}
                )
            case Suspend(job_name, on, _):
                live = _job(observed, job_name)
                number = live.parallelism if live else 1
                cluster.patch_job(job_name, {"parallelism": number, "suspend": on})
            case Delete(job_name, _):
                cluster.delete_job(job_name)
            case GiveUp(shard, outcome, reason):
                attempt = f"controller-{uuid.uuid4().hex[:12]}"
                assignment = Assignment(name, plan.number, plan.plan_hash, shard, attempt, 0)
                abandon(store, assignment, outcome, reason)
                self._announce(applied.object, "ShardFailed", f"{shard}: {reason}")
            case Remember(strikes):
                store.put(keys.nodes(name), strikes_to_json(strikes))
            case Announce(reason, message):
                self._announce(applied.object, reason, message)
            case Merge():
                job = merge_job(name, plan, observed.committed, applied.deployment)
                cluster.create_or_adopt(job)
            case Finish():
                self._announce(applied.object, "Merged", f"plan {plan.number}", warning=False)

    def _announce(
        self, config_map: dict[str, object], reason: str, message: str, *, warning: bool = True
    ) -> None:
        """An Event, where this account may write one; people read it, nothing depends on it."""
        try:
            self._cluster.announce(config_map, reason, message, warning=warning)
        except ClusterError as error:
            logger.warning("%s: %s (no Event: %s)", reason, message, error)


def run_forever(
    controller: Controller,
    leads: Callable[[], bool],
    stop: threading.Event,
    *,
    only: str = "",
    interval_s: float = 5.0,
    until_finished: bool = False,
) -> bool:
    """Look again and again, at most once an interval. Says whether the campaign `only` is
    finished."""
    while not stop.is_set():
        started = time.monotonic()
        if leads():
            try:
                finished = controller.look(only)
            except ClusterError as error:
                logger.warning("%s", error)
                finished = {}
            if until_finished and finished.get(only):
                return True
        stop.wait(max(0.0, started + interval_s - time.monotonic()))
    return False


def _workers(applied: Applied, observed: Observed) -> int:
    """How many pods may run: as many as the campaign wants, and devices are there for."""
    wanted = max(1, applied.campaign.devices // applied.site.devices_per_worker)
    if not observed.nodes:
        return wanted
    usable = [node for node in observed.nodes if node.ready and node.schedulable]
    running = sum(job.active for job in observed.jobs if job.is_live)
    free = sum(node.free_devices // applied.site.devices_per_worker for node in usable)
    return max(1, min(wanted, running + free))


def _named_stack(applied: Applied) -> Stack | None:
    from jobs.target import resolve_stack

    return resolve_stack(applied.campaign)


def _strikes(store: Store, campaign: str) -> Strikes:
    key = keys.nodes(campaign)
    try:
        return strikes_from_json(store.get(key), key=key)
    except NotFound:
        return Strikes()


def _job(observed: Observed, name: str) -> JobView | None:
    return next((job for job in observed.jobs if job.name == name), None)
