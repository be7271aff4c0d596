"""One round of the controller: what is wanted and what is seen make a list of actions. Pure.

Nothing is remembered between two rounds. The waves in the store tell what was tried, live Jobs tell
what is under way, commits tell what is done; so a controller may be killed at any line and started
again anywhere. The rules themselves stand in the modules beside this one: here is their order.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

from collector.counting import counted
from jobs.decide.actions import Action, Announce, Delete, Launch, Remember
from jobs.decide.completion import ending
from jobs.decide.desired import Desired
from jobs.decide.elsewhere import is_shut_out, same_node
from jobs.decide.failed_shards import judge
from jobs.decide.image_refusal import refusal
from jobs.decide.job_scaling import Claim, scaling
from jobs.decide.job_suspension import Suspension, is_held, refused_by_store, suspension
from jobs.decide.observed import WORKER, JobView, Observed
from jobs.decide.obsolete_jobs import obsolete, why_obsolete
from jobs.decide.pod_problems import lost_indexes, strikes, stuck_beside, warnings
from jobs.decide.quarantine import drained, kept_indexes, unfit_nodes
from jobs.decide.queued_waves import is_others, queued_launches, queueing
from jobs.decide.remaining_work import left_of
from jobs.decide.wave_choice import (
    gang_room,
    gangs_without_room,
    gathering,
    half_made,
    may_begin,
    next_gang_wave,
    next_wave,
    reserved,
)
from jobs.objects.waves import Wave

# A Job that ended well stays so long, for whoever wants to read the logs of its pods.
_KEPT_S = 600.0


def decide(desired: Desired, observed: Observed) -> tuple[Action, ...]:
    """The actions that bring what is seen closer to what is wanted, in order."""
    return tuple(_Round(desired, observed).actions())


class _Round:
    """All that one round knows: first what each rule says of what is seen, then the actions."""

    def __init__(self, desired: Desired, observed: Observed):
        self._desired = desired
        self._observed = observed
        self._plan_shards = [shard.shard_id for shard in desired.plan.shards]
        # The campaign's own Jobs: all of this plan, and those that may still commit.
        self._jobs = [
            job
            for job in observed.jobs
            if job.component == WORKER and not why_obsolete(job, desired)
        ]
        self._live = [job for job in self._jobs if job.is_live and job.wave in observed.by_hash]
        # The nodes: which are quarantined, and which the next wave avoids as well. Where nodes may
        # not be listed none is quarantined: nobody knows how many there are.
        self._stuck = tuple(stuck_beside(observed))
        self._strikes = observed.strikes.plus(strikes(observed, self._stuck))
        self._avoid = self._strikes.quarantined([node.name for node in observed.nodes])
        self._refusal = refusal(self._jobs, observed, self._avoid)
        differing = self._refusal.nodes if self._refusal else frozenset()
        self._unfit = unfit_nodes(observed, self._avoid, differing, self._stuck)
        # The indexes that nobody waits for, what is left of live Jobs, the shards that nobody can
        # finish, the Jobs to stop.
        self._lost = lost_indexes(observed) | {
            (pod.job, pod.index) for pod in self._stuck if pod.node in self._unfit
        }
        self._remaining = left_of(self._live, observed, self._lost)
        indexes = -(-len(desired.plan.shards) // desired.per_index)
        self._awaited = {job.name: self._to_await(job) for job in self._live}
        self._verdict = judge(observed, self._jobs, self._avoid, self._open(), indexes)
        self._next_gang: JobView | None = None  # it rests until workers are free, and for no more
        self._suspensions = dict(self._to_suspend())

    def actions(self) -> Iterator[Action]:
        """Remember and tell, clear away, give up, launch, scale, and end: in this order."""
        if not self._observed.store_works:
            # Nobody sees what is committed: Jobs may be stopped and let go, and nothing else.
            yield from self._scaling()
            return
        if self._strikes != self._observed.strikes:
            yield Remember(self._strikes)
        yield from self._warnings()
        yield from obsolete(self._desired, self._observed)
        retired = list(self._retired())
        yield from retired
        gone = {action.job for action in retired if isinstance(action, Delete)}
        done: set[str] = set()  # the shards that are given up in this round
        launches: list[Launch] = []
        # A wrong image fails whatever is launched with it.
        if self._refusal is None or not self._refusal.is_proved:
            for action in self._verdict.given_up:
                done.add(action.shard)
                yield action
            launches = list(self._launches(done))
            yield from launches
            yield from self._scaling(gone, [launch.wave for launch in launches])
        moving = bool(launches or done or self._observed.settling)
        left = self._open(done)
        live, more = self._live, self._may_go_on()
        yield from ending(
            self._desired, self._observed, live, left, is_moving=moving, may_go_on=more
        )

    def _warnings(self) -> Iterator[Announce]:
        """What people should know of nodes, pods, the image, shards and Jobs."""
        for node in sorted(self._avoid):
            shards = len(self._strikes.against()[node])
            yield Announce(
                "NodeQuarantined",
                f"{node}: {counted(shards, 'shard')} failed there and nowhere else",
                node,
            )
        yield from warnings(self._observed)
        if self._refusal is not None:
            yield from self._refusal.warnings()
        yield from self._verdict.warnings()
        yield from gangs_without_room(self._desired, self._observed, self._open(), self._unfit)
        if self._desired.plan.kept_from:
            yield from same_node(self._desired, self._observed, self._todo(), self._unfit)
        for job in self._live:
            if refused := refused_by_store(job, self._observed.pods_of(job)):
                nodes = ", ".join(sorted({pod.node for pod in refused}))
                yield Announce(
                    "StoreRefusesWorkers",
                    f"{counted(len(refused), 'pod')} of {job.name} on {nodes} waited for the store "
                    "in vain, and this controller reaches it: look at their Secret and at network "
                    "policies",
                    job.name,
                )
            if (stops := self._suspensions.get(job.name)) and (helps := stops.advice):
                yield Announce(
                    stops.reason, f"{job.name}: {stops.why}. What helps: {helps}", job.name
                )

    def _may_go_on(self) -> bool:
        """Whether anything will happen though nobody acts: a suspended Job is tried again, or Kueue
        admits it, and shards that rest are launched again."""
        if self._desired.paused or (self._refusal is not None and self._refusal.is_proved):
            return any(is_others(job, self._desired) and not job.suspended for job in self._live)
        return bool(self._live or self._open())

    def _to_suspend(self) -> Iterator[tuple[str, Suspension]]:
        half = gathering(self._observed)
        busy = bool(half)
        for job in self._live:
            if job.gang and job.suspended:
                why = self._why_gang_rests(job, busy=busy)
                if why:
                    yield job.name, Suspension("GangWaits", why)
                busy |= not why and not is_held(job)
                continue
            # One of them was whole, and lost a pod while the other began.
            if job in half[1:]:
                why = f"{half[0].name} waits for its pods as well"
                yield job.name, Suspension("GangWaits", why)
                continue
            wave = self._observed.by_hash[job.wave]
            if stops := suspension(job, wave, self._observed.pods_of(job), self._avoid):
                yield job.name, stops

    def _why_gang_rests(self, job: JobView, *, busy: bool) -> str:
        """Why a gang that is suspended cannot be let go, whatever it was suspended for."""
        if busy:
            return "another gang waits for its pods, or is let go first"
        avoid = self._unfit | frozenset(self._observed.by_hash[job.wave].avoid)
        room, needs = gang_room(self._desired, self._observed, avoid, free=True), job.completions
        if room < needs:
            return f"it takes {needs} nodes, and {room} have room for it"
        free = self._desired.workers - self._waiting(only_begun=True)
        if free >= needs or self._desired.kueue:
            return ""
        if needs <= self._desired.workers and not (self._desired.paused or is_held(job)):
            self._next_gang = self._next_gang or job
        return f"it takes {needs} workers, and {max(0, free)} are free"

    def _let_go(self) -> list[JobView]:
        """The gangs that this round lets go: at most one, and it is not whole yet."""
        return [
            job
            for job in self._live
            if job.gang
            and job.suspended
            and job.name not in self._suspensions
            and not (self._desired.paused or is_held(job) or is_others(job, self._desired))
        ]

    def _reserved(self, todo: Sequence[str], launched: Sequence[Wave] = ()) -> int:
        """How many workers are left to the next of the gangs that are to do."""
        if self._desired.kueue:
            return 0
        begins = {shard for wave in launched for shard in wave.shards}
        left = [shard for shard in todo if shard not in begins]
        at_work = [job for job in self._live if job.gang and not job.suspended]
        pods = sum(len(self._awaited[job.name]) for job in (*at_work, *self._let_go()))
        pods += sum(wave.pods for wave in launched if wave.is_gang)
        return reserved(self._desired, self._observed, left, pods, self._unfit)

    def _todo(self, handled: Iterable[str] = ()) -> list[str]:
        """The open shards that nobody has in hand."""
        at_work = [
            (self._observed.by_hash[job.wave], self._awaited[job.name]) for job in self._live
        ]
        in_hand = {s for wave, indexes in at_work for i in indexes for s in wave.indexes[i]}
        rest = in_hand | self._settling() | self._verdict.resting
        return [shard for shard in self._open(handled) if shard not in rest]

    def _open(self, handled: Iterable[str] = ()) -> list[str]:
        """The shards that nobody has committed, in the plan's order."""
        committed, done = self._observed.committed, frozenset(handled)
        return [s for s in self._plan_shards if s not in committed and s not in done]

    def _settling(self) -> set[str]:
        """The shards of indexes that ended well a moment ago: the store may list them late."""
        waves = {job.name: self._observed.by_hash.get(job.wave) for job in self._jobs}
        found = ((waves.get(job), index) for job, index in self._observed.settling)
        return {shard for wave, index in found if wave for shard in wave.indexes[index]}

    def _is_retired(self, job: JobView) -> bool:
        """Whether a Job may use a node that is quarantined since the Job was made."""
        return not self._avoid <= frozenset(self._observed.by_hash[job.wave].avoid)

    def _is_broken(self, job: JobView) -> bool:
        """Whether a gang waits for a pod that is lost: nobody takes its place in that Job."""
        return job.gang and any(name == job.name for name, _ in self._lost)

    def _is_shut_out(self, job: JobView) -> bool:
        """Whether a Job waits for nodes that are not there any more."""
        wave = self._observed.by_hash[job.wave]
        return is_shut_out(self._desired, self._observed, job, wave, self._unfit)

    def _to_await(self, job: JobView) -> list[int]:
        """The indexes of a live Job whose shards go to no other wave."""
        if self._is_broken(job) or self._is_shut_out(job):
            return []
        found = list(self._remaining[job.name].open_indexes)
        if not self._is_retired(job):
            return found
        if self._desired.paused or job.suspended:
            return []
        kept = kept_indexes(job, found, self._observed, self._avoid)
        # A queue's Job cannot be narrowed: it would go on with the indexes that it should lose.
        # And a gang is whole, or nothing.
        is_whole = job.gang or is_others(job, self._desired)
        return [] if is_whole and kept != found else kept

    def _retired(self) -> Iterator[Action]:
        """Delete Jobs whose shards are committed, if they have ended or a pod of theirs is lost or
        stuck, and those that no node is left for; narrow, or delete, those that may use a
        quarantined node. Nothing is force-deleted.

        A Job that ended well stays ten minutes while others work: deleting a thousand pods is as
        much work as making them. Example: one that ended 599 s ago stays, at 600 s it goes; once
        the last shard of the plan is committed it goes at once.
        """
        is_over = not self._open()
        for job in self._jobs:
            wave = self._observed.by_hash.get(job.wave)
            if job.deleting or wave is None:
                continue
            done = wave.shards <= self._observed.committed
            has_ended = bool(job.state) and (is_over or job.in_state_s >= _KEPT_S)
            if done and (has_ended or any(name == job.name for name, _ in self._lost)):
                yield Delete(job.name, "its shards are committed")
            elif not done and job.is_live and self._is_broken(job):
                yield Delete(job.name, "a node of its gang is lost, and the others wait for it")
            elif not done and job.is_live and self._is_shut_out(job):
                yield Delete(job.name, "the other nodes that it waits for are gone, or not free")
            elif not done and job.is_live and self._is_retired(job):
                kept = len(self._awaited[job.name])
                if not kept or not (job.gang or is_others(job, self._desired)):
                    yield from drained(job, kept, self._avoid)

    def _launches(self, handled: set[str]) -> Iterator[Launch]:
        """The next wave, of the shards that nobody has in hand, as soon as there are more workers
        than indexes to wait for."""
        desired = self._desired
        if desired.paused:
            return
        todo = self._todo(handled)
        if desired.kueue:
            yield from queued_launches(desired, self._observed, self._live, todo, self._unfit)
            return
        if not todo:
            return
        free = desired.workers - self._waiting() - self._coming_back()
        # In a gang's way stands what runs: what waits behind it in the same Jobs can wait longer.
        begun_pods = self._waiting(only_begun=True) + self._coming_back()
        free_for_gang = 0 if self._is_gang_moving() else desired.workers - begun_pods
        # A gang that was deleted a moment ago went because of a node: not there again.
        begun = half_made(desired, self._observed, self._avoid)
        single = begun if begun is not None and not begun.is_gang else None
        if (
            begun is None
            or begun is single
            or not may_begin(begun, desired, self._observed, free_for_gang, self._unfit)
        ):
            begun = next_gang_wave(desired, self._observed, todo, self._unfit, free_for_gang)
        if begun is not None:
            yield Launch(begun, begun.pods)
            return
        free -= self._reserved(todo)
        if free < 1:
            return
        wave = single or next_wave(desired, self._observed, todo, self._unfit)
        if wave is not None:
            yield Launch(wave, wave.at_once(free))

    def _is_gang_moving(self) -> bool:
        """Whether a gang is let go in this round, or ends and has not given back its nodes."""
        ends = (
            job.gang and not job.suspended and not self._awaited[job.name] for job in self._live
        )
        return bool(self._let_go()) or any(ends)

    def _waiting(self, *, only_begun: bool = False) -> int:
        """How many workers the indexes take that are waited for; `only_begun`: of the Jobs of
        single pods only as many as they run at once. A gang that rests holds nothing, and it is
        let go only where there is room for all of it."""
        found = 0
        for job in self._live:
            if job.gang and job.suspended:
                continue
            indexes = len(self._awaited[job.name])
            narrow = only_begun and not job.gang
            found += min(indexes, max(job.parallelism, job.active)) if narrow else indexes
            found += 0 if self._is_retired(job) else self._remaining[job.name].other_pods
        return found

    def _coming_back(self) -> int:
        """How many workers the gangs take that rested: what this round lets go, and the one that is
        let go as soon as so many are free."""
        waits = [self._next_gang] if self._next_gang else []
        return sum(job.completions for job in (*self._let_go(), *waits))

    def _scaling(
        self, gone: Collection[str] = (), launched: Sequence[Wave] = ()
    ) -> Iterator[Action]:
        """Suspend, let go, widen and narrow our Jobs, oldest first. Jobs that somebody else starts,
        and those that may use a quarantined node, have their workers before that. What a wave that
        is launched in this round takes of an older Job, that Job must not start again."""
        desired, observed = self._desired, self._observed
        remaining = left_of(self._live, observed, self._lost, launched)
        jobs = sorted(
            (job for job in self._live if job.name not in gone and not self._is_retired(job)),
            key=lambda job: observed.by_hash[job.wave].serial,
        )
        theirs = [job for job in jobs if is_others(job, desired)]
        ours = [Claim(job, remaining[job.name]) for job in jobs if not is_others(job, desired)]
        taken = sum(len(self._awaited[job.name]) for job in self._live if self._is_retired(job))
        taken += sum(job.parallelism for job in theirs if not job.suspended)
        # Gangs have their pods whatever is left: the others share what that is.
        ours.sort(key=lambda claim: not claim.job.gang)
        taken += sum(wave.pods for wave in launched if wave.is_gang)
        taken += self._reserved(self._todo(), launched)
        taken += self._next_gang.completions if self._next_gang else 0
        left = max(0, desired.workers - taken)
        yield from scaling(ours, self._suspensions, observed, left, paused=desired.paused)
        half = {
            name: stops.why
            for name, stops in self._suspensions.items()
            if stops.holds_nodes_in_vain
        }
        yield from queueing(desired, self._live, theirs, half)
