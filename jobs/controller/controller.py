"""The controller: looks at campaigns, decides, acts, and forgets.

Its state is the store and the live objects; what it keeps in memory only saves it a second look.
It may be killed at any line, and another may go on from anywhere.
"""

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from collector import environment
from collector.codec.errors import BadInput, DamagedObject, OpmeterError
from collector.store.base import Store
from collector.store.probe import Probe, probe_store
from jobs.controller.current_plan import PlanFinder
from jobs.controller.metrics import Metrics
from jobs.controller.observation import observe
from jobs.controller.performer import PART_MERGED, Performer, announce
from jobs.controller.remembered import KnownPlan, Memory, Rounds
from jobs.decide.actions import Finish
from jobs.decide.decision import decide
from jobs.decide.live_objects import launched_by, room_for
from jobs.decide.observed import Desired, Observed
from jobs.kube.cluster import Cluster
from jobs.kube.errors import ClusterError, is_refusal
from jobs.objects.applied_campaign import (
    LEASED,
    SELECTOR,
    Applied,
    applied_from,
    is_named,
    known_as,
)
from jobs.objects.deployment import Manifest
from jobs.objects.gangs import wide_gangs
from jobs.objects.job_manifest import made_of

logger = logging.getLogger(__name__)

OpenStore = Callable[[Applied], Store]


class Controller:
    """Moves every campaign of a namespace on. `open_store` opens the store of one, as this
    process reaches it; `may_act` is asked before every act: another may lead by then; `clock`
    never goes back; `folders` are those from which a campaign may name files; `rounds` are those
    that are made beside the looks."""

    def __init__(
        self,
        cluster: Cluster,
        open_store: OpenStore,
        metrics: Metrics | None = None,
        may_act: Callable[[], bool] = lambda: True,
        ask_store: Callable[[Store], Probe] = probe_store,
        clock: Callable[[], float] = environment.monotonic,
        folders: Sequence[Path] = (),
        rounds: Rounds | None = None,
    ):
        self._cluster = cluster
        self._open_store = open_store
        self._metrics = metrics or Metrics()
        self._may_act = may_act
        self._ask_store = ask_store
        self._clock = clock
        self._folders = folders
        self._rounds = rounds or Rounds()
        self._memories: dict[str, Memory] = {}

    def look(self) -> dict[str, bool]:
        """One look at each campaign that is applied, by name: whether it is finished."""
        there = {known_as(one): one for one in self._config_maps()}
        found = dict.fromkeys(there, False)
        for name, config_map in there.items():
            if not self._may_act():
                break
            memory = self._memories.setdefault(name, Memory(self._clock))
            started = environment.monotonic()
            try:
                found[name] = self._one(self._applied(config_map, memory), memory)
            except DamagedObject as error:
                announce(self._cluster, config_map, memory, "Damaged", error.advice)
            except BadInput as error:
                announce(self._cluster, config_map, memory, "BadInput", str(error))
            except (OpmeterError, OSError) as error:
                if isinstance(error, ClusterError) and is_refusal(error):
                    announce(self._cluster, config_map, memory, "Refused", str(error))
                else:
                    logger.warning("campaign %s: %s", name, error)
            except Exception as error:  # a mistake of ours in one campaign ends no other
                logger.error("campaign %s: %s", name, frames_of(error))
                words = (
                    f"{type(error).__name__}: unexpected error; "
                    "see the traceback in the controller's log"
                )
                announce(self._cluster, config_map, memory, "Mistake", words)
            self._metrics.looked(name, self._clock() - started, self._cluster.requests)
        self._forget(found)
        return found

    def follow(self, only: str) -> dict[str, bool]:
        """The same by the word of whoever leads; nothing is done."""
        found = map(applied_from, filter(is_named, self._config_maps(only)))
        return {one.campaign.name: one.is_merged or is_part_merged(one) for one in found}

    def _applied(self, config_map: Manifest, memory: Memory) -> Applied:
        """Read once for each version of its ConfigMap: most looks find what the last one found."""
        version = config_map["metadata"]["resourceVersion"]
        if memory.applied is None or memory.applied_at != version:
            memory.applied, memory.applied_at = applied_from(config_map), version
        return memory.applied

    def _config_maps(self, only: str = "") -> list[Manifest]:
        """Those of campaigns, in order of names, without those that are being deleted."""
        found = self._cluster.config_maps(f"{SELECTOR}={only}" if only else SELECTOR)
        there = (one for one in found if "deletionTimestamp" not in one["metadata"])
        return sorted(there, key=lambda one: str(one["metadata"]["name"]))

    def _forget(self, found: dict[str, bool]) -> None:
        for name in set(self._memories) - set(found):
            del self._memories[name]
            self._rounds.forget(name)
            self._metrics.forget(name)

    def _one(self, applied: Applied, memory: Memory) -> bool:
        """One look at one campaign; whether it is finished."""
        if applied.is_merged:
            return True
        # Phase 1: its store and its plan, both known after the first look.
        applied = self._asked(applied, memory)
        store = self._store(applied, memory)
        given = (self._may_act, self._folders, self._rounds)
        known = PlanFinder(self._cluster, applied, store, memory, *given).find()
        if known is None:
            return False
        # Phase 2: look at everything once.
        observed = observe(self._cluster, applied, known, store, memory)
        # The first look asks by a dry run whether a queue takes Jobs; one may come later.
        memory.queued |= any(job.queue for job in observed.jobs if job.is_live)
        # Phase 3: decide, without another look.
        actions = decide(_desired(applied, known, observed, memory), observed)
        self._metrics.campaign(applied.campaign.name, known.plan, observed, applied.site)
        # Phase 4: act, as long as this process leads.
        performer = Performer(self._cluster, applied, known, store, memory)
        for action in actions:
            if not self._may_act():
                return False
            performer.perform(action, observed)
        finished = any(isinstance(action, Finish) for action in actions)
        if not finished and is_part_merged(applied):
            name = applied.object["metadata"]["name"]
            self._cluster.annotate_config_map(name, {PART_MERGED: None})
        return finished

    def _asked(self, applied: Applied, memory: Memory) -> Applied:
        """The same, with what its store says of create-only writes: before anything stands on them,
        and where it honours none, once for ever."""
        deployment = applied.deployment
        if deployment.looks_first or memory.honest == deployment.root:
            return applied
        found = self._ask_store(self._store(applied, memory))
        if found.create_only:
            memory.honest = deployment.root
            return applied
        name = applied.object["metadata"]["name"]
        self._cluster.annotate_config_map(name, {LEASED: deployment.root})
        words = (
            f"{found.message}; merges use a Lease of this namespace for mutual exclusion instead"
        )
        announce(self._cluster, applied.object, memory, "NoCreateOnly", words)
        return replace(applied, deployment=replace(deployment, leased=True))

    def _store(self, applied: Applied, memory: Memory) -> Store:
        """Opened once: a client of a store is costly, and reads its credentials again by itself."""
        deployment = applied.deployment
        store_of = f"{deployment.root} {deployment.single_writer} {deployment.leased}"
        if memory.store is None or memory.store_of != store_of:
            memory.store, memory.store_of = self._open_store(applied), store_of
        return memory.store


def frames_of(error: BaseException) -> str:
    """What a log may tell of an error that nobody foresaw: where, and of which kind. The chain of
    errors, the one that was raised first at the top: the frames and the kind of each. Not its
    words: they may hold what was being read, and a file that a campaign named is nobody's to be
    told of."""
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    before = f"{frames_of(earlier)}\nthen\n" if earlier else ""
    frames = "".join(traceback.format_tb(error.__traceback__))
    return f"{before}{frames}{type(error).__name__}"


def is_part_merged(applied: Applied) -> bool:
    """Whether what could be merged is, and nothing runs until somebody acts."""
    notes = applied.object["metadata"].get("annotations") or {}
    return applied.allow_missing and notes.get(PART_MERGED) == applied.fingerprint


def _desired(applied: Applied, known: KnownPlan, observed: Observed, memory: Memory) -> Desired:
    site = applied.site
    wanted = max(1, applied.campaign.devices // site.devices_per_worker)
    kueue = bool(site.kueue_queue) or memory.queued
    return Desired(
        plan=known.plan,
        # What is free now says nothing of what Kueue will give.
        workers=wanted if kueue else room_for(wanted, site, observed.nodes, observed.pods),
        per_index=site.devices_per_worker,
        paused=applied.paused,
        allow_missing=applied.allow_missing,
        queue=site.kueue_queue,
        kueue=kueue,
        at_once=site.at_once,
        made_of=made_of(site, applied.deployment),
        launched=launched_by(applied.object),
        wide=wide_gangs(known.plan, site),
        is_last=known.is_last,
    )
