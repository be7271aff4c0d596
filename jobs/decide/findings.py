"""The results of all rules for one reconciliation, before any action is performed. Pure.

The rules are in the other modules of this package. This module evaluates them in the order of their
dependencies and counts the combined results: the shards that no Job has, and the workers that are
in use.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.codec.text import counted
from collector.model.measurement import Outcome
from collector.worker.exit_codes import NOT_THE_SHARDS, ExitCode
from jobs.decide import job_rules, job_shares, suspensions
from jobs.decide.actions import Announce, Finish, GiveUp, Merge, Replan
from jobs.decide.observed import WORKER, Desired, JobView, Observed, PodView
from jobs.decide.pod_problems import lost_indexes, node_failures, stuck_while_others_run
from jobs.decide.remaining_work import has_no_usable_node, left_of
from jobs.decide.wave_choice import gang_capacity, incomplete_gangs, is_managed_elsewhere, reserved
from jobs.objects.waves import Wave
from jobs.planning.damage import may_remeasure

# A campaign is merged when every shard is committed, and finished when everything is merged.
#
# If shards may be missing, it is merged partially as soon as there is no more progress. Damaged
# shards are measured again, a few times, before the campaign ends without them.

# Longer than the grace period of any pod (120 s), and than a store takes to list the last commits.
_LEAVING_S = 300.0


def ending(
    desired: Desired,
    observed: Observed,
    live: Sequence[JobView],
    left: Sequence[str],
    *,
    is_moving: bool,
    can_progress: bool,
) -> Iterator[Announce | Finish | Merge | Replan]:
    """Yield the merge, and after it the end.

    Args:
        left: the shards that are not committed.
        live: the Jobs that may still commit some of them.
        is_moving: this reconciliation has started something.
        may_go_on: the campaign can progress without a user.

    Example: of 10 shards 9 are committed, and nothing runs. Nothing is merged; if shards may be
    missing, the 9 are merged as a partial merge. With the tenth committed all 10 are merged,
    whether shards may be missing or not."""
    working = any(job.active or not job.suspended for job in live)
    if left and (not desired.allow_missing or is_moving or working):
        return
    if observed.merged:
        yield from _merged(desired, observed, left, can_progress=can_progress)
        return
    plan = desired.plan
    done = [s.shard_id for s in plan.shards if s.shard_id in observed.committed]
    if is_moving or not (done or observed.late):
        return
    key = job_rules.merge_key(desired.plan_hash, {*done, *observed.committed_of_earlier_plans})
    # An earlier plan is no longer measured: its missing cases stay missing.
    partial = bool(left or observed.late)
    plans = tuple(sorted({plan.number, *observed.late}))
    yield from job_rules.merging(observed.jobs, key, plans, partial=partial)


def _merged(
    desired: Desired, observed: Observed, left: Sequence[str], *, can_progress: bool
) -> Iterator[Announce | Finish | Replan]:
    """Yield what follows when everything publishable is merged.

    Damaged shards are measured again while that may help. Then the next round starts if surfaces
    are learned or sessions may be suspect; otherwise the campaign is finished."""
    for shard, reason in observed.damaged:
        yield Announce("Damaged", f"shard {shard}: {reason}; it is not published", shard)
    if left:
        if not can_progress:
            yield Finish(partial=True)
        return
    if observed.damaged and may_remeasure(desired.plan):
        yield Replan(tuple(shard for shard, _ in observed.damaged))
    elif not any(job.component == WORKER for job in observed.jobs) and not _leaving(observed):
        # Permanent damage ends the campaign: no round follows on cases that cannot be published.
        # The database contains the canary readings of its sessions; the planner reads them once.
        plan = desired.plan
        may_repeat = plan.may_have_canaries and not desired.is_last
        # The planner finds out which of their cases have no result.
        may_repeat |= bool(observed.damaged_of_earlier_plans) and may_remeasure(plan)
        goes_on = (plan.forecast.learning or may_repeat) and not observed.damaged
        yield Replan() if goes_on else Finish()


def _leaving(observed: Observed) -> bool:
    """Return whether a pod without a Job may still commit in its grace period.

    A pod that takes longer is on a lost node and is not waited for."""
    alive = (pod for pod in observed.pods if not pod.has_ended)
    return any(pod.in_state_s < _LEAVING_S for pod in alive)


# A shard is given up when workers that ran it reported failures in two waves.
#
# A pod that its node refused did not run a shard and proves nothing. A worker that blames its node,
# or cannot name a cause (exit 44 or 1), counts against its shard only while few indexes of its Job
# end that way. If many do, the environment has changed: those shards are retried every quarter of
# an hour, without a time limit.

# A shard must fail in this many waves. A wave already tries an index several times; the second wave
# is another Job, on the nodes available then.
_LEAST_FAILED_WAVES = 2
# After this many waves one failed wave is enough: Kubernetes does not keep ended Jobs, and the
# other failures may be forgotten.
_MOST_TRIED_WAVES = 5
# Up to this many indexes of a Job may blame their nodes while their shards still count as the
# cause, whatever the others do: a plan has a few shards that break a device.
_FEW_INDEXES = 3
# Additional such indexes per index that succeeds: in a Job of a thousand, a hundred bad shards are
# few.
_FEW_SHARE_OF_WELL = 0.1
# In a wave that contains only shards that failed before, no index is expected to succeed: the limit
# is this share of the indexes of the whole plan.
_FEW_SHARE_OF_PLAN = 0.01
# Time until unproven shards are retried: the same as for a suspended Job.
_REST_S = 900.0
# These exit codes say nothing against the shard.
_NO_FAULT = (ExitCode.DONE, ExitCode.STORE, ExitCode.PEERS, ExitCode.TEMPORARY)

JobIndex = tuple[str, int]  # the name of a Job and an index


@dataclass(frozen=True, slots=True)
class FailureDecision:
    given_up: tuple[GiveUp, ...] = ()  # they failed in two waves because of the shard
    unproven: tuple[str, ...] = ()  # they failed in two waves, perhaps for another cause
    resting: frozenset[str] = frozenset()  # the unproven shards that failed a moment ago
    words: str = ""  # the message of a pod of an unproven shard

    def warnings(self) -> Iterable[Announce]:
        if self.unproven:
            shards = counted(len(self.unproven), "shard")
            yield Announce(
                "ShardsFailEverywhere",
                f"{shards} (such as {self.unproven[0]}) failed "
                "on every node, so the nodes are suspect: "
                f"{self.words or 'their pods report no reason'}. They are not given up but retried "
                "every 15 minutes: compare driver, firmware and device plugin with the "
                "plan's stack (opmeter doctor --cluster)",
                "shards",
            )


def judge(
    observed: Observed,
    jobs: Sequence[JobView],
    avoid: Collection[str],
    left: Sequence[str],
    indexes: int,
) -> FailureDecision:
    """Return which of the shards `left` are given up.

    `indexes` is the number of indexes of the whole plan. A failure that occurred only on
    quarantined nodes (`avoid`) does not count against its shard.

    Example: 3 indexes fail with exit 44, 40 pass, and the 3 fail again in the next wave: their
    shards are given up. If 5 fail, 40 pass, and the 5 fail again, no shard is given up: 5 is more
    than 3, and more than a tenth of 40. The 5 are unproven and are retried."""
    pods = _by_index(pod for job in jobs for pod in observed.pods_of(job))
    failed_at: dict[str, list[JobIndex]] = defaultdict(list)
    suspect_indexes: set[JobIndex] = set()
    for failure in _failures(observed, jobs, avoid, pods):
        by_nodes = {place for place in failure.places if _blames_no_shard(pods[place])}
        few = max(_few(failure, failed_at, indexes), _FEW_SHARE_OF_WELL * failure.well)
        suspect_indexes |= by_nodes if len(by_nodes) > few else set()
        for place in failure.places:
            # An index that blames its node waits for the other indexes of its Job: their results
            # decide whether it counts.
            if failure.is_settled or place not in by_nodes:
                for shard in failure.wave.indexes[place[1]]:
                    failed_at[shard].append(place)
    tries = Counter(s for wave in observed.waves for s in wave.shards if s in failed_at)
    given_up, unproven = [], []
    for shard in left:
        places = failed_at.get(shard, [])
        proofs = [p for p in places if p not in suspect_indexes and _has_report(pods[p])]
        is_old = tries[shard] >= _MOST_TRIED_WAVES
        if len(proofs) >= _LEAST_FAILED_WAVES or (proofs and is_old):
            given_up.append(
                GiveUp(shard, *_outcome_and_reason([pod for p in proofs for pod in pods[p]]))
            )
        elif len(places) >= _LEAST_FAILED_WAVES:
            unproven.append(shard)
    found = {shard: [pod for p in failed_at[shard] for pod in pods[p]] for shard in unproven}
    return FailureDecision(
        tuple(given_up),
        tuple(unproven),
        frozenset(s for s, of in found.items() if any(p.in_state_s < _REST_S for p in of)),
        next((pod.words or pod.reason for of in found.values() for pod in of), ""),
    )


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failed indexes of a Job."""

    wave: Wave
    places: tuple[JobIndex, ...]  # without those whose pods all ended on quarantined nodes
    well: int  # the indexes that succeeded, without empty ones
    is_settled: bool  # the result of every index of the Job is final


def _few(failure: _Failure, failed_at: Collection[str], indexes: int) -> int:
    """Return how many failed indexes count as few, however many succeeded.

    A wave that contains only shards that failed before says less about the nodes.

    Example: of a plan of 1000 indexes 10 fail again, in a wave of their own: that is one in a
    hundred, and their shards are to blame. 11 would not be."""
    is_known = all(shard in failed_at for shard in failure.wave.shards)
    return max(_FEW_INDEXES, int(_FEW_SHARE_OF_PLAN * indexes)) if is_known else _FEW_INDEXES


def _by_index(pods: Iterable[PodView]) -> Mapping[JobIndex, list[PodView]]:
    found: dict[JobIndex, list[PodView]] = defaultdict(list)
    for pod in pods:
        found[pod.job, pod.index].append(pod)
    return found


def _failures(
    observed: Observed,
    jobs: Iterable[JobView],
    avoid: Collection[str],
    pods: Mapping[JobIndex, list[PodView]],
) -> Iterator[_Failure]:
    """Yield the failures of each Job, oldest first, so that a wave knows the earlier failures."""
    known = [job for job in jobs if job.wave in observed.by_hash]
    for job in sorted(known, key=lambda job: observed.by_hash[job.wave].serial):
        wave = observed.by_hash[job.wave]
        failed = [i for i in sorted(_failed(job, pods)) if i < len(wave.indexes)]
        # A gang fails as a whole, whichever of its nodes is the cause.
        places = [(job.name, i) for i in (failed[:1] if wave.is_gang else failed)]
        ended = job.succeeded | job.failed
        yield _Failure(
            wave,
            tuple(place for place in places if not _is_nodes_fault(pods[place], avoid)),
            sum(bool(wave.indexes[i]) for i in job.succeeded if i < len(wave.indexes)),
            bool(job.state)
            or all(
                i in ended or observed.committed.issuperset(shards)
                for i, shards in enumerate(wave.indexes)
            ),
        )


def _failed(job: JobView, pods: Mapping[JobIndex, list[PodView]]) -> frozenset[int]:
    """Return the failed indexes of a Job.

    Before Kubernetes 1.29 a Job reports only that it failed: then the indexes with a failed pod
    count as failed."""
    if job.state != "Failed" or job.reason != "BackoffLimitExceeded" or job.failed:
        return job.failed
    return frozenset(
        index
        for (name, index), found in pods.items()
        if name == job.name
        and index not in job.succeeded
        and any(pod.phase == "Failed" and pod.exit_code not in _NO_FAULT for pod in found)
    )


def _is_nodes_fault(pods: Sequence[PodView], avoid: Collection[str]) -> bool:
    """Return whether every failed pod of an index failed on a quarantined node."""
    ended = [pod for pod in pods if pod.phase == "Failed" and pod.node]
    return bool(ended) and all(pod.node in avoid for pod in ended)


def _has_report(pods: Iterable[PodView]) -> bool:
    return any(pod.exit_code is not None and pod.exit_code not in _NO_FAULT for pod in pods)


def _blames_no_shard(pods: Sequence[PodView]) -> bool:
    """Return whether an index reports only exit 44 (its node), 1 (unknown), or refused pods."""
    codes = {pod.exit_code for pod in pods} - {None, *_NO_FAULT}
    return codes <= NOT_THE_SHARDS and any(p.refused or p.exit_code for p in pods)


def _outcome_and_reason(pods: Sequence[PodView]) -> tuple[Outcome, str]:
    """Return the outcome and the reason for the missing cases of a shard.

    The outcome is hung if one worker reported it."""
    hung = any(pod.exit_code == ExitCode.HANG for pod in pods)
    ends = sorted({f"{pod.reason or 'exit'} {pod.exit_code}" for pod in pods if pod.exit_code})
    reason = f"its workers failed in it in consecutive waves ({', '.join(ends)})"
    return (Outcome.HUNG if hung else Outcome.CRASHED), reason


# An image is wrong when workers on two nodes found another plan or software in it (exit 43).
#
# A Job ends with the first pod that reports it, and all other pods end with it. A broken node can
# look like a wrong image, so a second node is tried if there is one.


@dataclass(frozen=True, slots=True)
class ImageRefusal:
    """The reports of workers against their image."""

    jobs: tuple[JobView, ...]  # those that ended with such a worker
    nodes: frozenset[str]  # where the worker ran
    is_proved: bool  # the image is the cause, not a node

    def warnings(self) -> Iterator[Announce]:
        last = self.jobs[-1]
        if self.is_proved:
            yield Announce(
                "WrongImage",
                f"{last.name}: {last.message}. No further "
                "wave is created. To do: use the image that "
                "matches the stack (kubectl logs of that pod lists the differences), then launch "
                "the campaign again",
                last.name,
            )
            return
        for node in sorted(self.nodes):
            yield Announce(
                "NodeDiffers",
                f"{node}: the software there differs from the plan's, and the Job of that worker "
                f"ended ({last.message}); other nodes are used. To do: delete the image from the "
                "node, and check its driver and mounts",
                node,
            )


def refusal(
    jobs: Sequence[JobView], observed: Observed, avoid: Collection[str]
) -> ImageRefusal | None:
    """Return the reports of Jobs whose waves are known; the findings of other pods are unknown.

    Example: a worker on n1 ends with exit 43. With the nodes n1 and n2 that proves nothing, and the
    next wave goes to n2. If n2 reports it too, or is quarantined or absent, it is proved."""
    ended = tuple(j for j in jobs if j.reason == "PodFailurePolicy" and j.wave in observed.by_hash)
    if not ended:
        return None
    names = {job.name for job in ended}
    reporting_nodes = {
        p.node for p in observed.pods if p.job in names and p.exit_code == ExitCode.IMAGE
    }
    others = {node.name for node in observed.nodes} - reporting_nodes - frozenset(avoid)
    return ImageRefusal(ended, frozenset(reporting_nodes), len(reporting_nodes) != 1 or not others)


class Findings:
    """Everything that one reconciliation derives from the desired and observed state."""

    def __init__(self, desired: Desired, observed: Observed):
        self.desired = desired
        self.observed = observed
        self._plan_shards = [shard.shard_id for shard in desired.plan.shards]
        # The campaign's own Jobs: all of this plan, and those that may still commit.
        self.jobs = [
            job
            for job in observed.jobs
            if job.component == WORKER and not job_shares.why_obsolete(job, desired)
        ]
        self.live = [job for job in self.jobs if job.is_live and job.wave in observed.by_hash]
        # The nodes: the quarantined ones, and those that the next wave also avoids. If nodes may
        # not be listed, none is quarantined: their number is unknown.
        self._stuck = tuple(stuck_while_others_run(observed))
        self.node_failures = observed.node_failures.plus(node_failures(observed, self._stuck))
        self.avoid = self.node_failures.quarantined([node.name for node in observed.nodes])
        self.refusal = refusal(self.jobs, observed, self.avoid)
        differing = self.refusal.nodes if self.refusal else frozenset()
        self.unfit = job_rules.unfit_nodes(observed, self.avoid, differing, self._stuck)
        # The indexes that are not waited for, the remaining work of live Jobs, the shards that no
        # worker can finish, and the Jobs to suspend.
        self.lost = lost_indexes(observed) | {
            (pod.job, pod.index) for pod in self._stuck if pod.node in self.unfit
        }
        self.remaining = left_of(self.live, observed, self.lost)
        indexes = -(-len(desired.plan.shards) // desired.per_index)
        self.awaited = {job.name: self._to_await(job) for job in self.live}
        self.verdict = judge(observed, self.jobs, self.avoid, self.open_shards(), indexes)
        self.next_gang: JobView | None = None  # it waits only for free workers
        self.suspensions = dict(self._to_suspend())

    def can_progress(self) -> bool:
        """Return whether the campaign can progress without a user.

        For example, a suspended Job is retried, Kueue admits a Job, or resting shards are launched
        again."""
        if self.desired.paused or (self.refusal is not None and self.refusal.is_proved):
            return any(
                is_managed_elsewhere(job, self.desired) and not job.suspended for job in self.live
            )
        return bool(self.live or self.open_shards())

    def open_shards(self, handled: Iterable[str] = ()) -> list[str]:
        """Return the shards that are not committed, in the plan's order."""
        committed, done = self.observed.committed, frozenset(handled)
        return [s for s in self._plan_shards if s not in committed and s not in done]

    def todo(self, handled: Iterable[str] = ()) -> list[str]:
        """Return the open shards that no Job has."""
        at_work = [(self.observed.by_hash[job.wave], self.awaited[job.name]) for job in self.live]
        in_hand = {s for wave, indexes in at_work for i in indexes for s in wave.indexes[i]}
        rest = in_hand | self._settling() | self.verdict.resting
        return [shard for shard in self.open_shards(handled) if shard not in rest]

    def is_retired(self, job: JobView) -> bool:
        """Return whether a Job may use a node that was quarantined after the Job was created."""
        return not self.avoid <= frozenset(self.observed.by_hash[job.wave].avoid)

    def is_broken(self, job: JobView) -> bool:
        """Return whether a gang waits for a lost pod, which that Job cannot replace."""
        return job.gang and any(name == job.name for name, _ in self.lost)

    def is_shut_out(self, job: JobView) -> bool:
        """Return whether a Job waits for nodes that no longer exist."""
        wave = self.observed.by_hash[job.wave]
        return has_no_usable_node(self.desired, self.observed, job, wave, self.unfit)

    def waiting(self, *, only_begun: bool = False) -> int:
        """Return how many workers the awaited indexes take.

        `only_begun`: Jobs of single pods count only with the pods that they run at once. A
        suspended gang occupies nothing and is resumed only if there is capacity for all of its
        pods."""
        found = 0
        for job in self.live:
            if job.gang and job.suspended:
                continue
            indexes = len(self.awaited[job.name])
            narrow = only_begun and not job.gang
            found += min(indexes, max(job.parallelism, job.active)) if narrow else indexes
            found += 0 if self.is_retired(job) else self.remaining[job.name].other_pods
        return found

    def resuming_workers(self) -> int:
        """Return how many workers the suspended gangs take that resume.

        These are the gangs that this reconciliation resumes, and the one that resumes as soon as
        enough workers are free."""
        waits = [self.next_gang] if self.next_gang else []
        return sum(job.completions for job in (*self.resuming_gangs(), *waits))

    def resuming_gangs(self) -> list[JobView]:
        """Return the gangs that this reconciliation resumes: at most one, not complete yet."""
        return [
            job
            for job in self.live
            if job.gang
            and job.suspended
            and job.name not in self.suspensions
            and not (
                self.desired.paused
                or suspensions.is_held(job)
                or is_managed_elsewhere(job, self.desired)
            )
        ]

    def is_gang_moving(self) -> bool:
        """Return whether a gang is resumed now, or is ending and has not released its nodes."""
        ends = (job.gang and not job.suspended and not self.awaited[job.name] for job in self.live)
        return bool(self.resuming_gangs()) or any(ends)

    def reserved(self, todo: Sequence[str], launched: Sequence[Wave] = ()) -> int:
        """Return how many workers are reserved for the next gang to launch."""
        if self.desired.kueue:
            return 0
        begins = {shard for wave in launched for shard in wave.shards}
        left = [shard for shard in todo if shard not in begins]
        at_work = [job for job in self.live if job.gang and not job.suspended]
        pods = sum(len(self.awaited[job.name]) for job in (*at_work, *self.resuming_gangs()))
        pods += sum(wave.pods for wave in launched if wave.is_gang)
        return reserved(self.desired, self.observed, left, pods, self.unfit)

    def _to_await(self, job: JobView) -> list[int]:
        """Return the indexes of a live Job whose shards go to no other wave."""
        if self.is_broken(job) or self.is_shut_out(job):
            return []
        found = list(self.remaining[job.name].open_indexes)
        if not self.is_retired(job):
            return found
        if self.desired.paused or job.suspended:
            return []
        kept = job_rules.kept_indexes(job, found, self.observed, self.avoid)
        # A Job managed by a queue cannot be narrowed: it would continue with the indexes that it
        # should lose. And a gang is complete or does not run.
        is_whole = job.gang or is_managed_elsewhere(job, self.desired)
        return [] if is_whole and kept != found else kept

    def _to_suspend(self) -> Iterator[tuple[str, suspensions.Suspension]]:
        half = incomplete_gangs(self.observed)
        busy = bool(half)
        for job in self.live:
            if job.gang and job.suspended:
                why = self._why_gang_rests(job, busy=busy)
                if why:
                    yield job.name, suspensions.Suspension("GangWaits", why)
                busy |= not why and not suspensions.is_held(job)
                continue
            # One of them was complete and lost a pod while the other started.
            if job in half[1:]:
                why = f"{half[0].name} also waits for its pods"
                yield job.name, suspensions.Suspension("GangWaits", why)
                continue
            wave = self.observed.by_hash[job.wave]
            if stops := suspensions.suspension(job, wave, self.observed.pods_of(job), self.avoid):
                yield job.name, stops

    def _why_gang_rests(self, job: JobView, *, busy: bool) -> str:
        """Return why a suspended gang cannot be resumed, whatever it was suspended for."""
        if busy:
            return "another gang waits for its pods, or is resumed first"
        avoid = self.unfit | frozenset(self.observed.by_hash[job.wave].avoid)
        capacity, needs = (
            gang_capacity(self.desired, self.observed, avoid, free=True),
            job.completions,
        )
        if capacity < needs:
            return f"it needs {needs} nodes, and {capacity} have enough free devices"
        free = self.desired.workers - self.waiting(only_begun=True)
        if free >= needs or self.desired.kueue:
            return ""
        if needs <= self.desired.workers and not (self.desired.paused or suspensions.is_held(job)):
            self.next_gang = self.next_gang or job
        return f"it needs {needs} workers, and {max(0, free)} are free"

    def _settling(self) -> set[str]:
        """Return the shards of indexes that just succeeded: their commits may be listed late."""
        waves = {job.name: self.observed.by_hash.get(job.wave) for job in self.jobs}
        found = ((waves.get(job), index) for job, index in self.observed.settling)
        return {shard for wave, index in found if wave for shard in wave.indexes[index]}
