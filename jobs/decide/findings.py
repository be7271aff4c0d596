"""What the rules say of what is wanted and seen, before anything is done about it. Pure.

Each rule stands in a module beside this one; here they are asked, in the order in which one needs
the answer of another, and what they say together is counted: which shards nobody has in hand, which
workers are spoken for.
"""

from collections.abc import Iterable, Iterator, Sequence

from jobs.decide.desired import Desired
from jobs.decide.failed_shards import judge
from jobs.decide.image_refusal import refusal
from jobs.decide.job_suspension import Suspension, is_held, suspension
from jobs.decide.observed import WORKER, JobView, Observed
from jobs.decide.obsolete_jobs import why_obsolete
from jobs.decide.other_node import is_shut_out
from jobs.decide.pod_problems import lost_indexes, strikes, stuck_beside
from jobs.decide.quarantine import kept_indexes, unfit_nodes
from jobs.decide.queued_waves import is_others
from jobs.decide.remaining_work import left_of
from jobs.decide.wave_choice import gang_room, gathering, reserved
from jobs.objects.waves import Wave


class Findings:
    """All that one round knows."""

    def __init__(self, desired: Desired, observed: Observed):
        self.desired = desired
        self.observed = observed
        self._plan_shards = [shard.shard_id for shard in desired.plan.shards]
        # The campaign's own Jobs: all of this plan, and those that may still commit.
        self.jobs = [
            job
            for job in observed.jobs
            if job.component == WORKER and not why_obsolete(job, desired)
        ]
        self.live = [job for job in self.jobs if job.is_live and job.wave in observed.by_hash]
        # The nodes: which are quarantined, and which the next wave avoids as well. Where nodes may
        # not be listed none is quarantined: nobody knows how many there are.
        self._stuck = tuple(stuck_beside(observed))
        self.strikes = observed.strikes.plus(strikes(observed, self._stuck))
        self.avoid = self.strikes.quarantined([node.name for node in observed.nodes])
        self.refusal = refusal(self.jobs, observed, self.avoid)
        differing = self.refusal.nodes if self.refusal else frozenset()
        self.unfit = unfit_nodes(observed, self.avoid, differing, self._stuck)
        # The indexes that nobody waits for, what is left of live Jobs, the shards that nobody can
        # finish, the Jobs to stop.
        self.lost = lost_indexes(observed) | {
            (pod.job, pod.index) for pod in self._stuck if pod.node in self.unfit
        }
        self.remaining = left_of(self.live, observed, self.lost)
        indexes = -(-len(desired.plan.shards) // desired.per_index)
        self.awaited = {job.name: self._to_await(job) for job in self.live}
        self.verdict = judge(observed, self.jobs, self.avoid, self.open_shards(), indexes)
        self.next_gang: JobView | None = None  # it rests until workers are free, and for no more
        self.suspensions = dict(self._to_suspend())

    def may_go_on(self) -> bool:
        """Whether anything will happen though nobody acts: a suspended Job is tried again, or Kueue
        admits it, and shards that rest are launched again."""
        if self.desired.paused or (self.refusal is not None and self.refusal.is_proved):
            return any(is_others(job, self.desired) and not job.suspended for job in self.live)
        return bool(self.live or self.open_shards())

    def open_shards(self, handled: Iterable[str] = ()) -> list[str]:
        """The shards that nobody has committed, in the plan's order."""
        committed, done = self.observed.committed, frozenset(handled)
        return [s for s in self._plan_shards if s not in committed and s not in done]

    def todo(self, handled: Iterable[str] = ()) -> list[str]:
        """The open shards that nobody has in hand."""
        at_work = [(self.observed.by_hash[job.wave], self.awaited[job.name]) for job in self.live]
        in_hand = {s for wave, indexes in at_work for i in indexes for s in wave.indexes[i]}
        rest = in_hand | self._settling() | self.verdict.resting
        return [shard for shard in self.open_shards(handled) if shard not in rest]

    def is_retired(self, job: JobView) -> bool:
        """Whether a Job may use a node that is quarantined since the Job was made."""
        return not self.avoid <= frozenset(self.observed.by_hash[job.wave].avoid)

    def is_broken(self, job: JobView) -> bool:
        """Whether a gang waits for a pod that is lost: nobody takes its place in that Job."""
        return job.gang and any(name == job.name for name, _ in self.lost)

    def is_shut_out(self, job: JobView) -> bool:
        """Whether a Job waits for nodes that are not there any more."""
        wave = self.observed.by_hash[job.wave]
        return is_shut_out(self.desired, self.observed, job, wave, self.unfit)

    def waiting(self, *, only_begun: bool = False) -> int:
        """How many workers the indexes take that are waited for; `only_begun`: of the Jobs of
        single pods only as many as they run at once. A gang that rests holds nothing, and it is
        let go only where there is room for all of it."""
        found = 0
        for job in self.live:
            if job.gang and job.suspended:
                continue
            indexes = len(self.awaited[job.name])
            narrow = only_begun and not job.gang
            found += min(indexes, max(job.parallelism, job.active)) if narrow else indexes
            found += 0 if self.is_retired(job) else self.remaining[job.name].other_pods
        return found

    def coming_back(self) -> int:
        """How many workers the gangs take that rested: what this round lets go, and the one that is
        let go as soon as so many are free."""
        waits = [self.next_gang] if self.next_gang else []
        return sum(job.completions for job in (*self.let_go(), *waits))

    def let_go(self) -> list[JobView]:
        """The gangs that this round lets go: at most one, and it is not whole yet."""
        return [
            job
            for job in self.live
            if job.gang
            and job.suspended
            and job.name not in self.suspensions
            and not (self.desired.paused or is_held(job) or is_others(job, self.desired))
        ]

    def is_gang_moving(self) -> bool:
        """Whether a gang is let go in this round, or ends and has not given back its nodes."""
        ends = (job.gang and not job.suspended and not self.awaited[job.name] for job in self.live)
        return bool(self.let_go()) or any(ends)

    def reserved(self, todo: Sequence[str], launched: Sequence[Wave] = ()) -> int:
        """How many workers are left to the next of the gangs that are to do."""
        if self.desired.kueue:
            return 0
        begins = {shard for wave in launched for shard in wave.shards}
        left = [shard for shard in todo if shard not in begins]
        at_work = [job for job in self.live if job.gang and not job.suspended]
        pods = sum(len(self.awaited[job.name]) for job in (*at_work, *self.let_go()))
        pods += sum(wave.pods for wave in launched if wave.is_gang)
        return reserved(self.desired, self.observed, left, pods, self.unfit)

    def _to_await(self, job: JobView) -> list[int]:
        """The indexes of a live Job whose shards go to no other wave."""
        if self.is_broken(job) or self.is_shut_out(job):
            return []
        found = list(self.remaining[job.name].open_indexes)
        if not self.is_retired(job):
            return found
        if self.desired.paused or job.suspended:
            return []
        kept = kept_indexes(job, found, self.observed, self.avoid)
        # A queue's Job cannot be narrowed: it would go on with the indexes that it should lose.
        # And a gang is whole, or nothing.
        is_whole = job.gang or is_others(job, self.desired)
        return [] if is_whole and kept != found else kept

    def _to_suspend(self) -> Iterator[tuple[str, Suspension]]:
        half = gathering(self.observed)
        busy = bool(half)
        for job in self.live:
            if job.gang and job.suspended:
                why = self._why_gang_rests(job, busy=busy)
                if why:
                    yield job.name, Suspension("GangWaits", why)
                busy |= not why and not is_held(job)
                continue
            # One of them was whole, and lost a pod while the other began.
            if job in half[1:]:
                why = f"{half[0].name} also waits for its pods"
                yield job.name, Suspension("GangWaits", why)
                continue
            wave = self.observed.by_hash[job.wave]
            if stops := suspension(job, wave, self.observed.pods_of(job), self.avoid):
                yield job.name, stops

    def _why_gang_rests(self, job: JobView, *, busy: bool) -> str:
        """Return why a suspended gang cannot be resumed, whatever it was suspended for."""
        if busy:
            return "another gang waits for its pods, or is resumed first"
        avoid = self.unfit | frozenset(self.observed.by_hash[job.wave].avoid)
        room, needs = gang_room(self.desired, self.observed, avoid, free=True), job.completions
        if room < needs:
            return f"it needs {needs} nodes, and {room} have enough free devices"
        free = self.desired.workers - self.waiting(only_begun=True)
        if free >= needs or self.desired.kueue:
            return ""
        if needs <= self.desired.workers and not (self.desired.paused or is_held(job)):
            self.next_gang = self.next_gang or job
        return f"it needs {needs} workers, and {max(0, free)} are free"

    def _settling(self) -> set[str]:
        """The shards of indexes that ended well a moment ago: the store may list them late."""
        waves = {job.name: self.observed.by_hash.get(job.wave) for job in self.jobs}
        found = ((waves.get(job), index) for job, index in self.observed.settling)
        return {shard for wave, index in found if wave for shard in wave.indexes[index]}
