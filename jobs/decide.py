"""What a controller does next: from what is wanted and what is seen to a list of actions. Pure.

Nothing is remembered between two calls. What was tried is told by the waves in the store, what
is under way by live Jobs, what is done by commits; so a controller may be killed at any line and
started again anywhere.
"""

from collections.abc import Iterable, Iterator

from jobs.actions import Action, Announce, Delete, Launch, Remember
from jobs.brakes import Brake, brake, refused_by_store
from jobs.desired import Desired
from jobs.ending import ending
from jobs.failures import judge
from jobs.images import refusal
from jobs.launching import half_made, next_wave
from jobs.observed import WORKER, JobView, Observed, PodView
from jobs.retiring import drained, kept_indexes
from jobs.steering import steering
from jobs.troubles import lost_indexes, strikes, stuck_beside, warnings
from jobs.waves import parallelism

_KEPT_S = 600.0


def decide(desired: Desired, observed: Observed) -> tuple[Action, ...]:
    """The actions that bring what is seen closer to what is wanted, in order."""
    return tuple(_Round(desired, observed).actions())


class _Round:
    """One look at everything."""

    def __init__(self, desired: Desired, observed: Observed):
        self._desired = desired
        self._observed = observed
        self._plan_shards = [shard.shard_id for shard in desired.plan.shards]
        self._jobs = [
            job
            for job in observed.jobs
            if job.component == WORKER and not _why_obsolete(job, desired)
        ]
        self._live = [job for job in self._jobs if job.is_live and job.wave in observed.by_hash]
        self._strikes = observed.strikes.plus(strikes(observed))
        # Of nodes that may not be listed nobody knows which there are, nor how many.
        self._avoid = self._strikes.quarantined([node.name for node in observed.nodes])
        self._refusal = refusal(self._jobs, observed, self._avoid)
        self._stuck = tuple(stuck_beside(observed))
        self._unfit = self._avoid | self._unfit_nodes()
        self._lost = lost_indexes(observed) | {
            (pod.job, pod.index) for pod in self._stuck if pod.node in self._unfit
        }
        indexes = -(-len(desired.plan.shards) // desired.per_index)
        self._verdict = judge(observed, self._jobs, self._avoid, self._open(), indexes)
        self._brakes = dict(self._braked())

    def actions(self) -> Iterator[Action]:
        if not self._observed.store_works:
            # What is committed cannot be seen, so nothing else can be judged.
            yield from self._steering()
            return
        if self._strikes != self._observed.strikes:
            yield Remember(self._strikes)
        yield from self._warnings()
        yield from self._obsolete()
        yield from self._retired()
        done: set[str] = set()
        launches: list[Launch] = []
        if self._refusal is None or not self._refusal.is_proved:
            for action in self._verdict.given_up:
                done.add(action.shard)
                yield action
            launches = list(self._launches(done))
            yield from launches
            yield from self._steering()
        moving = bool(launches or done or self._observed.settling)
        left = self._open(done)
        live, more = self._live, self._may_go_on()
        yield from ending(
            self._desired, self._observed, live, left, is_moving=moving, may_go_on=more
        )

    def _warnings(self) -> Iterator[Announce]:
        for node in sorted(self._avoid):
            shards = len(self._strikes.against()[node])
            yield Announce(
                "NodeQuarantined", f"{node}: {shards} shards failed there and nowhere else", node
            )
        yield from warnings(self._observed)
        if self._refusal is not None:
            yield from self._refusal.warnings()
        yield from self._verdict.warnings()
        for job in self._live:
            if refused := refused_by_store(job, self._pods(job)):
                nodes = ", ".join(sorted({pod.node for pod in refused}))
                yield Announce(
                    "StoreRefusesWorkers",
                    f"{len(refused)} pods of {job.name} on {nodes} waited for the store in vain, "
                    "and this controller reaches it: look at their Secret and at network policies",
                    job.name,
                )
            if (stops := self._brakes.get(job.name)) and stops.reason == "NodesFail":
                yield Announce(
                    stops.reason,
                    f"{job.name}: {stops.why}. What helps: compare driver, firmware and device "
                    "plugin with the plan's stack (opmeter doctor --cluster); after an upgrade "
                    "launch with a target of the new stack",
                    job.name,
                )

    def _may_go_on(self) -> bool:
        """Whether anything will happen by itself: what is suspended is tried again, or admitted by
        Kueue, and what rests is launched again."""
        if self._desired.paused or (self._refusal is not None and self._refusal.is_proved):
            return bool(self._live) and self._desired.kueue
        return bool(self._live or self._open())

    def _pods(self, job: JobView) -> list[PodView]:
        return [pod for pod in self._observed.pods if pod.job == job.name]

    def _braked(self) -> Iterator[tuple[str, Brake]]:
        for job in self._live:
            wave = self._observed.by_hash[job.wave]
            if stops := brake(job, wave, self._pods(job), self._avoid):
                yield job.name, stops

    def _unfit_nodes(self) -> frozenset[str]:
        """Those that the next wave keeps away from though nothing is proved against them: one that
        found another image's software, and, never more than half of all, those where pods do not
        start though others of their Job run."""
        differing = self._refusal.nodes if self._refusal else frozenset()
        stuck = {pod.node for pod in self._stuck} - self._avoid - differing
        most = len(self._observed.nodes) // 2 - len(self._avoid | differing)
        return differing | frozenset(sorted(stuck)[: max(0, most)])

    def _obsolete(self) -> Iterator[Action]:
        """Jobs of older plans: what they committed was merged before this plan was made. And Jobs
        of another image or site than the campaign's now, or that somebody else made before there
        was a wave: they are made anew."""
        for job in self._observed.jobs:
            if job.component != WORKER or job.deleting:
                continue
            if why := _why_obsolete(job, self._desired):
                yield Delete(job.name, why)
            elif job.state and job.wave not in self._observed.by_hash:
                yield Delete(job.name, "its wave is not in the store")

    def _open(self, handled: Iterable[str] = ()) -> list[str]:
        """The shards that nobody has committed, in the plan's order."""
        committed, done = self._observed.committed, frozenset(handled)
        return [s for s in self._plan_shards if s not in committed and s not in done]

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

    def _settling(self) -> set[str]:
        """The shards that a worker says are done, and that the store may list any moment."""
        waves = {job.name: self._observed.by_hash.get(job.wave) for job in self._jobs}
        found = ((waves.get(job), index) for job, index in self._observed.settling)
        return {shard for wave, index in found if wave for shard in wave.indexes[index]}

    def _is_retired(self, job: JobView) -> bool:
        """A Job whose pods may still go to a node that is quarantined since."""
        return not self._avoid <= frozenset(self._observed.by_hash[job.wave].avoid)

    def _awaited(self, job: JobView) -> list[int]:
        """The indexes of a live Job that are waited for: nobody else is given their shards."""
        found = self._open_indexes(job)
        if not self._is_retired(job):
            return found
        stops = self._desired.paused or self._desired.kueue or job.suspended
        return [] if stops else kept_indexes(job, found, self._observed, self._avoid)

    def _retired(self) -> Iterator[Action]:
        """Jobs that nothing is to be expected of: ended, stuck with nothing left to commit, or
        drawn to a node that is quarantined since. Nothing is force-deleted, and what has ended well
        stays a while beside those at work: to read its pods' logs, and because a thousand pods are
        as much work to delete as to make."""
        is_over = not self._open()
        for job in self._jobs:
            wave = self._observed.by_hash.get(job.wave)
            if job.deleting or wave is None:
                continue
            done = wave.shards <= self._observed.committed
            has_ended = bool(job.state) and (is_over or job.in_state_s >= _KEPT_S)
            if done and (has_ended or any(name == job.name for name, _ in self._lost)):
                yield Delete(job.name, "its shards are committed")
            elif not done and job.is_live and self._is_retired(job):
                yield from drained(job, len(self._awaited(job)), self._avoid)

    def _launches(self, handled: set[str]) -> Iterator[Launch]:
        desired = self._desired
        if desired.paused:
            return
        at_work = [(self._observed.by_hash[job.wave], self._awaited(job)) for job in self._live]
        in_hand = {s for wave, indexes in at_work for i in indexes for s in wave.indexes[i]}
        rest = in_hand | self._settling() | self._verdict.resting
        todo = [shard for shard in self._open(handled) if shard not in rest]
        waiting = sum(len(indexes) for _, indexes in at_work)
        if not todo or waiting >= desired.workers:
            return
        # Kueue gives what it has; a cap set now could not be raised later.
        cap = desired.workers if desired.kueue else max(1, desired.workers - waiting)
        wave = half_made(self._observed, self._avoid) or next_wave(
            desired, self._observed, todo, self._unfit
        )
        yield Launch(wave, parallelism(len(wave.indexes), cap))

    def _steering(self) -> Iterator[Action]:
        """Who runs, and how many at once; all of it is Kueue's where Kueue has the Jobs."""
        desired, observed = self._desired, self._observed
        jobs = [
            (job, len(self._open_indexes(job)))
            for job in sorted(self._live, key=lambda job: observed.by_hash[job.wave].serial)
            if not self._is_retired(job)
        ]
        if not desired.kueue:
            kept = sum(len(self._awaited(job)) for job in self._live if self._is_retired(job))
            left = max(0, desired.workers - kept)
            yield from steering(jobs, self._brakes, observed, left, paused=desired.paused)
        elif desired.paused and jobs:
            yield Announce(
                "Paused",
                "no wave is added; what runs belongs to Kueue: to stop it, set `active: false` in "
                "its Workloads",
            )


def _why_obsolete(job: JobView, desired: Desired) -> str:
    """Why a Job is of no more use, whatever became of it; empty where it may be."""
    if job.plan_hash != desired.plan_hash:
        return "its plan is no longer the campaign's"
    if job.made_of != desired.made_of:
        return "the campaign's image, store or site has changed"
    # It ended for its image's sake, and somebody may have mended that.
    if job.reason == "PodFailurePolicy" and job.launched != desired.launched:
        return "the campaign was launched again"
    return ""
