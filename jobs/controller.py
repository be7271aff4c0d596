"""The controller: looks at campaigns, decides, acts, and forgets.

Its state is the store and the live objects; what it keeps in memory only saves it a second look.
It may be killed at any line, and another may go on from anywhere.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial

from collector.database.merge import Guard
from collector.errors import BadInput, OpmeterError
from collector.stack import Stack
from collector.store.base import Store
from collector.store.probe import Probe, probe
from jobs.actions import Finish
from jobs.advancing import Wish, advance
from jobs.applied import LEASED, SELECTOR, Applied, applied_from, check_sources
from jobs.cluster import Cluster
from jobs.decide import decide
from jobs.deployment import Manifest
from jobs.desired import Desired
from jobs.fleet import room
from jobs.live import launched_by
from jobs.memory import KnownPlan, Memory
from jobs.metrics import Metrics
from jobs.observed import Observed
from jobs.observing import observe
from jobs.performing import PART_MERGED, Performer, announce
from jobs.podspec import made_of
from jobs.preparing import Situation, survey
from jobs.probing import stack_at_work, stack_of_workers
from jobs.rounds import plan_numbers, read_plan
from jobs.target import resolve_stack_of
from jobs.wishes import SERVED_BY, open_wish, promise

logger = logging.getLogger(__name__)

OpenStore = Callable[[Applied], Store]
GuardOf = Callable[[Applied], AbstractContextManager[Guard]]


class Controller:
    """Moves every campaign of a namespace on. `open_store` opens the store of one, as this
    process reaches it; `guard_of` keeps a merge into it apart from others; `may_act` is asked
    before every act: another may lead by then; `clock` never goes back."""

    def __init__(
        self,
        cluster: Cluster,
        open_store: OpenStore,
        guard_of: GuardOf,
        metrics: Metrics | None = None,
        may_act: Callable[[], bool] = lambda: True,
        ask_store: Callable[[Store], Probe] = probe,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._cluster = cluster
        self._open_store = open_store
        self._guard_of = guard_of
        self._metrics = metrics or Metrics()
        self._may_act = may_act
        self._ask_store = ask_store
        self._clock = clock
        self._memories: dict[str, Memory] = {}

    def look(self) -> dict[str, bool]:
        """One look at each campaign that is applied, by name: whether it is finished."""
        there = {one["metadata"]["labels"][SELECTOR]: one for one in self._config_maps()}
        found = dict.fromkeys(there, False)
        for name, config_map in there.items():
            if not self._may_act():
                break
            memory = self._memories.setdefault(name, Memory(self._clock))
            started = time.monotonic()
            try:
                found[name] = self._one(applied_from(config_map), memory)
            except BadInput as error:
                announce(self._cluster, config_map, memory, "BadInput", str(error))
            except (OpmeterError, OSError) as error:
                logger.warning("campaign %s: %s", name, error)
            except Exception as error:  # a mistake of ours in one campaign ends no other
                logger.exception("campaign %s", name)
                announce(self._cluster, config_map, memory, "Mistake", repr(error))
            self._metrics.looked(name, time.monotonic() - started, self._cluster.requests)
        self._forget(found)
        return found

    def follow(self, only: str) -> dict[str, bool]:
        """The same by the word of whoever leads; nothing is done."""
        found = map(applied_from, self._config_maps(only))
        return {one.campaign.name: one.is_merged or is_part_merged(one) for one in found}

    def _config_maps(self, only: str = "") -> list[Manifest]:
        """Those of campaigns, in order of names, without those that are being deleted."""
        found = self._cluster.config_maps(f"{SELECTOR}={only}" if only else SELECTOR)
        there = (one for one in found if "deletionTimestamp" not in one["metadata"])
        return sorted(there, key=lambda one: str(one["metadata"]["name"]))

    def _forget(self, found: dict[str, bool]) -> None:
        for name in set(self._memories) - set(found):
            del self._memories[name]
            self._metrics.forget(name)

    def _one(self, applied: Applied, memory: Memory) -> bool:
        if applied.is_merged:
            return True
        applied = self._asked(applied, memory)
        store = self._store(applied, memory)
        known = self._plan(applied, store, memory)
        if known is None:
            return False
        observed = observe(self._cluster, applied, known, store, memory)
        actions = decide(_desired(applied, known, observed), observed)
        self._metrics.campaign(applied.campaign.name, known.plan, observed, applied.site)
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
        words = f"{found.message}; merges take turns by a Lease of this namespace instead"
        announce(self._cluster, applied.object, memory, "NoCreateOnly", words)
        return replace(applied, deployment=replace(deployment, leased=True))

    def _store(self, applied: Applied, memory: Memory) -> Store:
        """Opened once: a client of a store is costly, and reads its credentials again by itself."""
        deployment = applied.deployment
        store_of = f"{deployment.root} {deployment.single_writer} {deployment.leased}"
        if memory.store is None or memory.store_of != store_of:
            memory.store, memory.store_of = self._open_store(applied), store_of
        return memory.store

    def _plan(self, applied: Applied, store: Store, memory: Memory) -> KnownPlan | None:
        """The campaign's plan, made where there is none; None while its stack is being found."""
        if memory.plan is not None and memory.made_for == applied.fingerprint:
            return memory.plan
        check_sources(applied.campaign)
        stack = resolve_stack_of(applied.campaign, lambda: self._stack(applied, store))
        if stack is None:
            return None
        situation = survey(applied.campaign, store, stack, applied.op_mapping)
        wish = self._wish(applied, situation)
        with ExitStack() as merging:  # what older plans left, if anything
            of_merge = partial(merging.enter_context, self._guard_of(applied))
            advanced = advance(situation, store, of_merge, wish, logger.info)
        known = KnownPlan(advanced.plan, advanced.plan.plan_hash)
        if memory.plan is None or memory.plan.plan_hash != known.plan_hash:
            memory.forget_plan()
            announce(self._cluster, applied.object, memory, "Planned", advanced.news)
        memory.plan, memory.made_for = known, applied.fingerprint
        return known

    def _stack(self, applied: Applied, store: Store) -> Stack | None:
        name = applied.campaign.name
        plans = (read_plan(store, name, number) for number in reversed(plan_numbers(store, name)))
        found = stack_at_work(self._cluster, applied, plans)
        return found or stack_of_workers(self._cluster, applied)

    def _wish(self, applied: Applied, situation: Situation) -> Wish:
        """What is wished for beyond the campaign, and not yet served."""
        metadata, numbers = applied.object["metadata"], [p.number for p in situation.plans]
        notes = dict(metadata.get("annotations") or {})
        if (promised := promise(notes, numbers)) is not None:
            self._cluster.annotate_config_map(metadata["name"], {SERVED_BY: promised})
            notes[SERVED_BY] = promised
        return open_wish(notes, numbers)


def is_part_merged(applied: Applied) -> bool:
    """Whether what could be merged is, and nothing runs until somebody acts."""
    notes = applied.object["metadata"].get("annotations") or {}
    return applied.allow_missing and notes.get(PART_MERGED) == applied.fingerprint


def _desired(applied: Applied, known: KnownPlan, observed: Observed) -> Desired:
    site = applied.site
    wanted = max(1, applied.campaign.devices // site.devices_per_worker)
    kueue = bool(site.kueue_queue)
    return Desired(
        plan=known.plan,
        plan_hash=known.plan_hash,
        # What is free now says nothing of what Kueue will give, and a cap stays as it was made.
        workers=wanted if kueue else room(wanted, site, observed.nodes, observed.pods),
        per_index=site.devices_per_worker,
        paused=applied.paused,
        allow_missing=applied.allow_missing,
        kueue=kueue,
        made_of=made_of(site, applied.deployment),
        launched=launched_by(applied.object),
    )
