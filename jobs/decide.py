"""What a controller does next: from what is wanted and what is seen to a list of actions. Pure.

Nothing is remembered between two calls. What was tried is told by the waves in the store, what
is under way by live Jobs, what is done by commits; so a controller may be killed at any line and
started again anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from collector.measurement import Outcome
from collector.plan import Plan
from collector.worker.exit_codes import ExitCode
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
from jobs.nodes import Strike
from jobs.observed import MERGE, WORKER, JobView, Observed, PodView
from jobs.waves import Wave, cut, parallelism, wave_size

_WAVES = 2  # that may fail a shard before it is given up
_LOST_S = 60.0  # beyond its grace, for a pod that nobody reports the end of
_GRACE_S = 120.0
_STUCK_S = 600.0
_REFUSALS = 3  # pods of one Job that could not reach the store, before it is paused


@dataclass(frozen=True, slots=True)
class Desired:
    """What is wanted of a plan. `workers` is how many pods may run at once; with `kueue` both
    parallelism and suspend belong to Kueue."""

    plan: Plan
    workers: int
    per_index: int  # shards that one pod gets
    paused: bool = False
    cancelled: bool = False
    allow_missing: bool = False
    kueue: bool = False


def decide(desired: Desired, observed: Observed) -> tuple[Action, ...]:
    """The actions that bring what is seen closer to what is wanted, in order."""
    if desired.cancelled:
        jobs = (job for job in observed.jobs if job.component == WORKER and not job.deleting)
        return tuple(Delete(job.name, "the campaign is cancelled") for job in jobs)
    return tuple(_Round(desired, observed).actions())


class _Round:
    """One look at everything."""

    def __init__(self, desired: Desired, observed: Observed):
        self._desired = desired
        self._observed = observed
        self._jobs = [
            job
            for job in observed.jobs
            if job.component == WORKER and job.plan_hash == desired.plan.plan_hash
        ]
        self._live = [job for job in self._jobs if job.is_live and job.wave in observed.by_hash]
        self._strikes = observed.strikes.plus(_strikes(observed))
        nodes = [node.name for node in observed.nodes]
        self._avoid = self._strikes.quarantined(nodes)
        self._lost = frozenset(_lost_indexes(observed))

    def actions(self) -> Iterator[Action]:
        if self._strikes != self._observed.strikes:
            yield Remember(self._strikes)
        yield from self._obsolete()
        for node in sorted(self._avoid - self._observed.strikes.quarantined(self._nodes())):
            shards = len(self._strikes.against()[node])
            yield Announce("NodeQuarantined", f"{node}: {shards} shards failed there alone")
        failure = next((job for job in self._jobs if job.reason == "PodFailurePolicy"), None)
        if failure is not None:
            yield Announce("WrongImage", f"{failure.name}: {failure.message}")
            return
        given_up = list(self._given_up())
        yield from given_up
        handled = {action.shard for action in given_up}
        yield from self._retired()
        yield from self._launches(handled)
        yield from self._steering()
        if not self._open(handled):
            yield from self._ending()

    def _nodes(self) -> list[str]:
        return [node.name for node in self._observed.nodes]

    def _obsolete(self) -> Iterator[Action]:
        """Jobs of older plans: what they committed was merged before this plan was made."""
        for job in self._observed.jobs:
            of_plan = job.plan_hash == self._desired.plan.plan_hash
            if job.component == WORKER and not of_plan and not job.deleting:
                yield Delete(job.name, "its plan is no longer the campaign's")

    def _open(self, handled: Iterable[str] = ()) -> list[str]:
        """The shards that nobody has committed, in the plan's order."""
        done = self._observed.committed | frozenset(handled)
        return [s.shard_id for s in self._desired.plan.shards if s.shard_id not in done]

    def _open_indexes(self, job: JobView) -> list[int]:
        """The indexes of a live Job that can still bring something."""
        wave = self._observed.by_hash[job.wave]
        ended = job.succeeded | job.failed
        return [
            index
            for index, shards in enumerate(wave.indexes)
            if index not in ended
            and (job.name, index) not in self._lost
            and not self._observed.committed.issuperset(shards)
        ]

    def _is_retired(self, job: JobView) -> bool:
        """A Job whose pods may still go to a node that is quarantined since."""
        return not self._keeps_away(self._observed.by_hash[job.wave])

    def _keeps_away(self, wave: Wave) -> bool:
        return self._avoid <= frozenset(wave.avoid)

    def _in_hand(self) -> frozenset[str]:
        return frozenset(
            shard
            for job in self._live
            if not self._is_retired(job)
            for index in self._open_indexes(job)
            for shard in self._observed.by_hash[job.wave].indexes[index]
        )

    def _given_up(self) -> Iterator[GiveUp]:
        """Shards that failed in as many waves as may be; a quarantined node's failures are not
        the shard's."""
        tries = Counter(shard for wave in self._observed.waves for shard in wave.shards)
        still = set(self._open())
        for job in self._jobs:
            wave = self._observed.by_hash.get(job.wave)
            if wave is None:
                continue
            for index in sorted(job.failed):
                for shard in wave.indexes[index]:
                    if shard in still and tries[shard] >= _WAVES:
                        still.discard(shard)
                        yield GiveUp(shard, *self._blame(job.name, index))

    def _blame(self, job: str, index: int) -> tuple[Outcome, str]:
        pods = [p for p in self._observed.pods if p.job == job and p.index == index]
        hung = any(pod.exit_code == ExitCode.HANG for pod in pods)
        ends = sorted({f"{p.reason or 'exit'} {p.exit_code}" for p in pods if p.exit_code})
        reason = f"workers of {_WAVES} waves ended in it ({', '.join(ends) or 'no word'})"
        return (Outcome.HUNG if hung else Outcome.CRASHED), reason

    def _retired(self) -> Iterator[Action]:
        """Jobs that nothing is to be expected of: ended, stuck with nothing left to commit, or
        drawn to a node that is quarantined since. Nothing is force-deleted."""
        for job in self._jobs:
            wave = self._observed.by_hash.get(job.wave)
            if job.deleting or wave is None:
                continue
            done = wave.shards <= self._observed.committed
            if done and (job.state or any(name == job.name for name, _ in self._lost)):
                yield Delete(job.name, "its shards are committed")
            elif not done and job.is_live and self._is_retired(job):
                yield Delete(job.name, f"it may use {', '.join(sorted(self._avoid))}")

    def _launches(self, handled: set[str]) -> Iterator[Action]:
        desired = self._desired
        if desired.paused or not self._observed.store_works:
            return
        in_hand = self._in_hand()
        todo = [shard for shard in self._open(handled) if shard not in in_hand]
        waiting = sum(len(self._open_indexes(j)) for j in self._live if not self._is_retired(j))
        if not todo or waiting >= desired.workers:
            return
        cap = max(1, desired.workers - waiting)
        if (wave := self._half_made()) is not None:
            yield Launch(wave, parallelism(len(wave.indexes), cap))
            return
        indexes = cut(todo, desired.per_index, wave_size(desired.workers))
        plan = desired.plan
        yield Launch(
            Wave(
                campaign=plan.campaign,
                plan=plan.number,
                plan_hash=plan.plan_hash,
                serial=len(self._observed.waves),
                indexes=indexes,
                avoid=tuple(sorted(self._avoid)),
            ),
            parallelism(len(indexes), cap),
        )

    def _half_made(self) -> Wave | None:
        """The newest wave, where nobody came as far as its Job, or somebody took it away."""
        waves = self._observed.waves
        newest = max(waves, key=lambda wave: wave.serial, default=None)
        if newest is None or newest.wave_hash in {job.wave for job in self._observed.jobs}:
            return None
        is_open = not newest.shards <= self._observed.committed
        return newest if is_open and self._keeps_away(newest) else None

    def _steering(self) -> Iterator[Action]:
        """Who runs, and how many at once; all of it is Kueue's where Kueue has the Jobs."""
        if self._desired.kueue:
            return
        left = self._desired.workers
        for job in sorted(self._live, key=self._serial):
            if self._is_retired(job):
                continue
            why = self._why_suspended(job)
            if why and not job.suspended:
                yield Suspend(job.name, True, why)
                yield Announce("Suspended", f"{job.name}: {why}")
            elif not why and job.suspended:
                yield Suspend(job.name, False, "nothing stands against it any more")
            wanted = parallelism(job.completions, left)
            # Never lowered below what runs: the Job controller would kill pods at work.
            wanted = max(wanted, parallelism(job.completions, job.active))
            if not why and wanted != job.parallelism:
                yield Scale(job.name, wanted)
            left = max(0, left - min(len(self._open_indexes(job)), wanted))

    def _serial(self, job: JobView) -> int:
        return self._observed.by_hash[job.wave].serial

    def _why_suspended(self, job: JobView) -> str:
        if self._desired.paused:
            return "the campaign is paused"
        pods = [pod for pod in self._observed.pods if pod.job == job.name]
        if not self._observed.store_works:
            refused = sum(pod.exit_code == ExitCode.STORE for pod in pods)
            if refused >= _REFUSALS or job.suspended:
                return f"the store cannot be reached: {refused} workers waited in vain"
        stuck = [p for p in pods if p.waiting and p.in_state_s > _STUCK_S and not p.deleting]
        if stuck:
            return f"{stuck[0].name} does not start: {stuck[0].waiting}"
        return ""

    def _ending(self) -> Iterator[Action]:
        if self._observed.merged:
            yield Finish()
            return
        merges = [job for job in self._observed.jobs if job.component == MERGE]
        if any(job.is_live for job in merges):
            return
        yield Merge()


def _strikes(observed: Observed) -> Iterator[Strike]:
    """What pods that ended say against the nodes they ran on."""
    waves = {job.name: observed.by_hash.get(job.wave) for job in observed.jobs}
    for pod in observed.pods:
        wave = waves.get(pod.job)
        if wave is None or pod.exit_code not in (ExitCode.NODE, ExitCode.HANG) or not pod.node:
            continue
        for shard in wave.indexes[pod.index]:
            if shard not in observed.committed:
                yield Strike(pod.node, shard)


def _lost_indexes(observed: Observed) -> Iterator[tuple[str, int]]:
    """The indexes whose pod stands on a node that does not answer: Kubernetes waits for it."""
    ready = {node.name for node in observed.nodes if node.ready}
    for pod in observed.pods:
        if _is_lost(pod, ready):
            yield pod.job, pod.index


def _is_lost(pod: PodView, ready: set[str]) -> bool:
    ended = pod.phase in ("Succeeded", "Failed")
    away = bool(pod.node) and pod.node not in ready
    return pod.deleting and away and not ended and pod.in_state_s > _GRACE_S + _LOST_S
