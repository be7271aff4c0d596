"""The controller: reconciles the campaigns of a namespace.

Its state is in the store and in the live objects; memory only saves repeated reads. It may be
killed at any point, and another controller may continue.
"""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collector import environment
from collector.codec.errors import (
    BadInput,
    DamagedObject,
    OpmeterError,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from collector.store.base import Store
from collector.store.probe import Probe, probe_store
from jobs.controller.current_plan import PlanFinder
from jobs.controller.metrics import Metrics
from jobs.controller.observation import observe
from jobs.controller.performer import PART_MERGED, Performer, announce
from jobs.controller.remembered import KnownPlan, Memory, Rounds
from jobs.decide.actions import Finish
from jobs.decide.decision import decide
from jobs.decide.job_rules import waiting_merge
from jobs.decide.live_objects import available_workers, launch_token
from jobs.decide.observed import Desired, Observed
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterError, is_refusal
from jobs.objects import applied_campaign
from jobs.objects.applied_campaign import STORE_AWAY, Applied
from jobs.objects.deployment import Manifest
from jobs.objects.events import MAX_MESSAGE_CHARACTERS
from jobs.objects.gangs import wide_gangs
from jobs.objects.job_manifest import made_of

logger = logging.getLogger(__name__)

OpenStore = Callable[[Applied], Store]


class Controller:
    """Reconciles every campaign of a namespace.

    Args:
        open_store: opens the store of a campaign, as this process reaches it.
        may_act: is called before every action: another process may be the leader by then.
        clock: a monotonic clock.
        folders: the folders from which a campaign may name files.
        rounds: the rounds that are planned concurrently with reconciliations."""

    def __init__(
        self,
        cluster: Cluster,
        open_store: OpenStore,
        metrics: Metrics | None = None,
        may_perform: Callable[[], bool] = lambda: True,
        probe_store: Callable[[Store], Probe] = probe_store,
        clock: Callable[[], float] = environment.monotonic,
        folders: Sequence[Path] = (),
        rounds: Rounds | None = None,
    ):
        self._cluster = cluster
        self._open_store = open_store
        self._metrics = metrics or Metrics()
        self._may_perform = may_perform
        self._probe_store = probe_store
        self._clock = clock
        self._folders = folders
        self._rounds = rounds or Rounds()
        self._memories: dict[str, Memory] = {}

    def reconcile(self) -> dict[str, bool]:
        """Reconcile each applied campaign once; return for each name whether it is finished."""
        there = {applied_campaign.known_as(one): one for one in self._config_maps()}
        found = dict.fromkeys(there, False)
        for name, config_map in there.items():
            if not self._may_perform():
                break
            memory = self._memories.setdefault(name, Memory(self._clock))
            started = environment.monotonic()
            try:
                found[name] = self._reconcile_campaign(self._applied(config_map, memory), memory)
            except DamagedObject as error:
                announce(self._cluster, config_map, memory, "Damaged", error.advice)
            except BadInput as error:
                announce(self._cluster, config_map, memory, "BadInput", str(error))
            except (StoreRefused, StoreUnavailable) as error:
                self._show_store(config_map, memory, error)
            except (OpmeterError, OSError) as error:
                if isinstance(error, ClusterError) and is_refusal(error):
                    announce(self._cluster, config_map, memory, "Refused", str(error))
                else:
                    logger.warning("campaign %s: %s", name, error)
            except Exception as error:  # a bug in one campaign must not stop the others
                logger.error("campaign %s: %s", name, frames_of(error))
                words = (
                    f"{type(error).__name__}: unexpected error; "
                    "see the traceback in the controller's log"
                )
                announce(self._cluster, config_map, memory, "InternalError", words)
            self._metrics.reconciled(name, self._clock() - started, self._cluster.requests)
        self._forget(found)
        return found

    def read_state(self, only: str) -> dict[str, bool]:
        """Return the same from the state that the leader records; perform no action."""
        found = map(
            applied_campaign.applied_from,
            filter(applied_campaign.is_named, self._config_maps(only)),
        )
        return {one.campaign.name: one.is_merged or is_part_merged(one) for one in found}

    def _applied(self, config_map: Manifest, memory: Memory) -> Applied:
        """Return the campaign; parse its ConfigMap only when its version has changed."""
        version = config_map["metadata"]["resourceVersion"]
        if memory.applied is None or memory.applied_at != version:
            memory.applied, memory.applied_at = applied_campaign.applied_from(config_map), version
        return memory.applied

    def _config_maps(self, only: str = "") -> list[Manifest]:
        """Return the ConfigMaps of campaigns by name, without those that are being deleted."""
        found = self._cluster.config_maps(
            f"{applied_campaign.SELECTOR}={only}" if only else applied_campaign.SELECTOR
        )
        there = (one for one in found if "deletionTimestamp" not in one["metadata"])
        return sorted(there, key=lambda one: str(one["metadata"]["name"]))

    def _forget(self, found: dict[str, bool]) -> None:
        for name in set(self._memories) - set(found):
            del self._memories[name]
            self._rounds.forget(name)
            self._metrics.forget(name)

    def _reconcile_campaign(self, applied: Applied, memory: Memory) -> bool:
        memory.merge = None
        if applied.is_merged:
            return True
        # Phase 1: its store and its plan, both known after the first reconciliation.
        applied = self._with_probe_result(applied, memory)
        store = self._store(applied, memory)
        settings = (self._may_perform, self._folders, self._rounds)
        known = PlanFinder(self._cluster, applied, store, memory, *settings).find()
        if known is None:
            self._show_store(applied.object, memory, None)
            return False
        # Phase 2: observe everything once.
        observed = observe(self._cluster, applied, known, store, memory)
        self._show_store(applied.object, memory, memory.store_error)
        # The first reconciliation tests by a dry run whether a queue takes Jobs; a queue may be
        # added later.
        memory.queued |= any(job.queue for job in observed.jobs if job.is_live)
        memory.merge = waiting_merge(observed.jobs)
        # Phase 3: decide, without another read.
        desired = _desired(applied, known, observed, memory)
        desired = replace(desired, merge_first=self._merge_first(desired, memory))
        actions = decide(desired, observed)
        self._metrics.campaign(applied.campaign.name, known.plan, observed, applied.site)
        # Phase 4: perform the actions, as long as this process is the leader.
        performer = Performer(self._cluster, applied, known, store, memory)
        for action in actions:
            if not self._may_perform():
                return False
            performer.perform(action, observed)
        finished = any(isinstance(action, Finish) for action in actions)
        if not finished and is_part_merged(applied):
            name = applied.object["metadata"]["name"]
            self._cluster.annotate_config_map(name, {PART_MERGED: None})
        return finished

    def _show_store(self, config_map: Manifest, memory: Memory, error: StoreError | None) -> None:
        """Show in an Event and an annotation of a campaign that its store is not reached, until it
        is."""
        metadata, note = config_map["metadata"], None
        if error is not None:
            where = (self._cluster, config_map, memory)
            if isinstance(error, StoreRefused):
                announce(*where, "StoreRefused", str(error), "store")
            else:
                announce(*where, "StoreUnavailable", str(error), "store")
            note = f"since {environment.utc_now():%Y-%m-%dT%H:%M:%SZ}: {error}"
        if (STORE_AWAY in (metadata.get("annotations") or {})) is (note is not None):
            return
        try:
            note = note and note[:MAX_MESSAGE_CHARACTERS]
            self._cluster.annotate_config_map(metadata["name"], {STORE_AWAY: note})
        except ClusterError as refusal:
            logger.warning("cannot annotate the campaign: %s", refusal)

    def _merge_first(self, desired: Desired, memory: Memory) -> str:
        """Return the merge of another campaign that waits in the queue of this one, if this
        controller has seen one."""
        if not desired.kueue:
            return ""
        others = (one.merge for one in self._memories.values() if one is not memory)
        found = (job.name for job in others if job and desired.queue in ("", job.queue))
        return next(found, "")

    def _with_probe_result(self, applied: Applied, memory: Memory) -> Applied:
        """Return the campaign with the result of the store's probe for create-only writes.

        The probe runs before anything depends on these writes. If the store ignores create-only,
        that is recorded permanently."""
        deployment = applied.deployment
        if deployment.checks_before_write or memory.create_only_root == deployment.root:
            return applied
        found = self._probe_store(self._store(applied, memory))
        if found.create_only:
            memory.create_only_root = deployment.root
            return applied
        name = applied.object["metadata"]["name"]
        self._cluster.annotate_config_map(name, {applied_campaign.LEASED: deployment.root})
        words = (
            f"{found.message}; merges use a Lease of this namespace for mutual exclusion instead"
        )
        announce(self._cluster, applied.object, memory, "NoCreateOnly", words)
        return replace(applied, deployment=replace(deployment, leased=True))

    def _store(self, applied: Applied, memory: Memory) -> Store:
        """Return the store, opened once: a client is costly and reloads its credentials."""
        deployment = applied.deployment
        store_of = f"{deployment.root} {deployment.single_writer} {deployment.leased}"
        if memory.store is None or memory.store_of != store_of:
            memory.store, memory.store_of = self._open_store(applied), store_of
        return memory.store


def frames_of(error: BaseException) -> str:
    """Return where an unexpected error was raised and its class, for the log.

    The chain of errors starts with the error that was raised first. The messages are left out: they
    may contain the data being read, and the contents of a file that a campaign named must not be
    disclosed."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{frames_of(earlier)}\nthen\n" if earlier else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{before}{frames}{type(error).__name__}"


def is_part_merged(applied: Applied) -> bool:
    """Return whether everything mergeable is merged and nothing runs until a user intervenes."""
    notes = applied.object["metadata"].get("annotations") or {}
    return applied.allow_missing and notes.get(PART_MERGED) == applied.fingerprint


def _desired(applied: Applied, known: KnownPlan, observed: Observed, memory: Memory) -> Desired:
    site = applied.site
    workers = max(1, applied.campaign.devices // site.devices_per_worker)
    kueue = bool(site.kueue_queue) or memory.queued
    return Desired(
        plan=known.plan,
        # The devices that are free now do not show how many Kueue will admit.
        workers=workers
        if kueue
        else available_workers(workers, site, observed.nodes, observed.pods),
        per_index=site.devices_per_worker,
        paused=applied.paused,
        allow_missing=applied.allow_missing,
        queue=site.kueue_queue,
        kueue=kueue,
        at_once=site.at_once,
        made_of=made_of(site, applied.deployment),
        launched=launch_token(applied.object),
        wide=wide_gangs(known.plan, site),
        is_last=known.is_last,
    )
