"""Rules about live Jobs: scaling, suspension, deletion, and the Job that merges. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.codec.canonical import short_hash
from collector.worker.exit_codes import NOT_THE_SHARDS, ExitCode
from jobs.decide.actions import Announce, Delete, Merge, Scale, Suspend
from jobs.decide.observed import MERGE, WORKER, Desired, JobView, Observed, PodView
from jobs.decide.pod_problems import STUCK_S, not_starting, runs_anywhere
from jobs.decide.remaining_work import Remaining
from jobs.objects.waves import Wave, parallelism

# A Job is suspended for a quarter of an hour when its pods get nowhere. Pure.
#
# That is so when a pod does not start, and none runs or has ended well; when pods of a gang wait
# for one that does not begin, or run and do not reach each other; when workers on most of its nodes
# do not reach the store; or when more indexes fail by the fault of their nodes than go well. One
# pod that fares worse than the others stops nobody: that is its node's matter. Only what happened
# since the Job last began counts: otherwise what stopped it once would stop it for ever.

# A suspended Job is tried again after so long: often enough for what mends itself, and too seldom
# for a Job that fails again to wear down the cluster.
HOLD_S = 900.0
# A pod that ended longer ago tells nothing of now.
_RECENT_S = 3600.0
# So many pods of a Job must miss the store, each after ten minutes of trying: of one or two it may
# be chance.
_LEAST_REFUSED_PODS = 3
# So many indexes may fail by the fault of their nodes whatever the others do: that may be chance.
_MOST_CHANCE_INDEXES = 3
_ADVICE = {
    "NodesFail": "compare driver, firmware and device plugin with the plan's stack (opmeter doctor "
    "--cluster); after an upgrade, launch with a target of the new stack",
    "GangIncomplete": "check what that pod waits for; its Job is retried after 15 minutes",
    "GangApart": "check the network policy opmeter-gang, which lets workers connect on any port; "
    "the pod network between these nodes, and the variables for the interface of ranks "
    "(GLOO_SOCKET_IFNAME, HCCL_SOCKET_IFNAME)",
}
# Of the other pods of a gang: more than so many make a line that nobody reads.
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Suspension:
    """Why a Job is to be suspended."""

    reason: str  # of an Event: NotStarting, GangIncomplete, GangApart, StoreRefusesWorkers ...
    why: str  # one sentence for a person

    @property
    def holds_nodes_in_vain(self) -> bool:
        """Whether pods of a gang wait for another one, on nodes that nobody else may use."""
        return self.reason == "GangIncomplete"

    @property
    def advice(self) -> str:
        """What a person can do about it; empty where another Event says so."""
        return _ADVICE.get(self.reason, "")


def suspension(
    job: JobView, wave: Wave, pods: Sequence[PodView], avoid: Collection[str]
) -> Suspension | None:
    """Why a Job that runs is to be suspended, None where it may go on; `pods` are its own."""
    if job.suspended:
        return None
    stuck = [pod for pod in pods if not_starting(pod)]
    if stuck and not runs_anywhere(job, pods):
        why = f"{stuck[0].name} does not start: {not_starting(stuck[0])}"
        return Suspension("NotStarting", why)
    if job.gang and (absent := _absent(pods)):
        return Suspension("GangIncomplete", absent)
    if job.gang and (apart := _apart(job, pods)):
        return Suspension("GangApart", apart)
    return _store_suspension(job, pods) or _node_suspension(job, wave, pods, avoid)


def _absent(pods: Sequence[PodView]) -> str:
    """Return which pod of a gang the others wait for while they hold their nodes."""
    for pod in pods:
        waits = pod.phase == "Pending" and bool(pod.unschedulable) and pod.in_state_s > STUCK_S
        if why := not_starting(pod) or (pod.unschedulable if waits else ""):
            return f"the other pods of its gang wait for {pod.name}: {why}"
    return ""


def _apart(job: JobView, pods: Sequence[PodView]) -> str:
    """Return which pods of a gang cannot reach each other, where all run or ended by that.

    Example: of a gang of two, pod 0 on n1 ended with exit 47, and pod 1 runs on n2: no pod is
    absent, and still they do not meet. While pod 1 has not begun, nothing is said of the way to it.
    """
    ended = [pod for pod in _recent(job, pods) if pod.exit_code == ExitCode.PEERS]
    running = [pod for pod in pods if pod.phase == "Running" and not pod.deleting]
    if not ended or {pod.index for pod in (*ended, *running)} != set(range(job.completions)):
        return ""
    last = min(ended, key=lambda pod: pod.in_state_s)
    at = {pod.index: pod for pod in (*ended, *running) if pod.index != last.index}
    others = ", ".join(f"{i} on {pod.node}" for i, pod in sorted(at.items())[:_MOST_NAMED])
    return (
        f"its pods run but cannot reach each other: pod {last.index} on {last.node} (others: "
        f"{others}) reported: {last.words or 'exit 47'}"
    )


def is_held(job: JobView) -> bool:
    """Whether a suspended Job rests, whatever is seen now."""
    return job.suspended and job.held and job.in_state_s < HOLD_S


def refused_by_store(job: JobView, pods: Sequence[PodView]) -> Sequence[PodView]:
    """The pods that lately waited for the store in vain; none while there are fewer than three."""
    found = [pod for pod in _recent(job, pods) if pod.exit_code == ExitCode.STORE]
    return found if len(found) >= _LEAST_REFUSED_PODS else ()


def _recent(job: JobView, pods: Sequence[PodView]) -> Sequence[PodView]:
    since_s = min(job.in_state_s, _RECENT_S)
    return [pod for pod in pods if pod.phase == "Failed" and pod.in_state_s < since_s]


def _store_suspension(job: JobView, pods: Sequence[PodView]) -> Suspension | None:
    """Most nodes of a Job do not reach the store.

    Example: two pods on n1 and one on n2 wait for the store in vain, and a pod runs on n3: that is
    2 of 3 nodes, and the Job is suspended. With another pod that runs on n4 it is 2 of 4, which is
    not most, and the Job goes on.
    """
    refused = refused_by_store(job, pods)
    nodes = {pod.node for pod in refused}
    there = nodes | {pod.node for pod in pods if pod.phase == "Running"}
    if 2 * len(nodes) <= len(there):
        return None
    why = f"the store cannot be reached: {len(refused)} of its workers timed out waiting for it"
    return Suspension("StoreRefusesWorkers", why)


def _node_suspension(
    job: JobView, wave: Wave, pods: Sequence[PodView], avoid: Collection[str]
) -> Suspension | None:
    """Most indexes fail, on whatever node: something has changed under the campaign.

    Example: 4 indexes fail with exit 44, and 3 run: 4 is more than 3, and the Job is suspended. If
    4 run, it goes on; and if 3 fail it goes on, though none runs.
    """
    by_node = [
        pod
        for pod in _recent(job, pods)
        if (pod.refused or pod.exit_code in NOT_THE_SHARDS) and pod.node not in avoid
    ]
    blamed = {pod.index for pod in by_node}
    well = {index for index in job.succeeded if index < len(wave.indexes) and wave.indexes[index]}
    well |= {pod.index for pod in pods if pod.phase == "Running"} - blamed
    if len(blamed) <= max(_MOST_CHANCE_INDEXES, len(well)):
        return None
    last = min(by_node, key=lambda pod: pod.in_state_s)
    words = last.words or last.reason or f"exit {last.exit_code}"
    return Suspension(
        "NodesFail",
        f"most of its pods fail on different nodes, such as {last.name} on {last.node}: {words}",
    )


# The live Jobs share one number of workers, and the oldest is served first. Pure.
#
# No Job is narrowed below the pods that it runs: Kubernetes would kill pods at work. So an older
# Job that comes back, because its nodes are trusted again, waits for the pods of younger ones to
# end. A paused campaign suspends all of its Jobs.


@dataclass(frozen=True, slots=True)
class Claim:
    """A live Job, and what it still has to do."""

    job: JobView
    left: Remaining

    @property
    def widest(self) -> int:
        """How many pods at once find something to do, whichever indexes Kubernetes picks: where a
        younger wave has taken some, each pod more could begin one of those."""
        return len(self.left.open_indexes) if self.left.taken_indexes else self.job.completions


def scaling(
    claims: Sequence[Claim],
    suspensions: Mapping[str, Suspension],
    observed: Observed,
    workers: int,
    *,
    paused: bool,
) -> Iterator[Scale | Suspend | Announce]:
    """What to change in live Jobs, oldest first; `suspensions` are of those that are to stop.

    Example: of 10 workers the older of two Jobs, with 9 indexes of which 8 are open, gets 8; the
    younger gets the 2 that are left. If the younger runs 6 pods already it keeps those 6, and the
    older gets 4.
    """
    left, younger = workers, sum(claim.job.active for claim in claims)
    for claim in claims:
        job = claim.job
        younger -= job.active
        stops = suspensions.get(job.name)
        why = _why_suspended(job, stops, observed, paused=paused)
        if why and not job.suspended:
            # What we stop while the store is away goes on as soon as it is back, and what a person
            # has paused when that person says so. Everything else is tried again after a while.
            hold = not paused and observed.store_works
            yield Suspend(job.name, True, why, hold=hold)
            later = "; it is retried in 15 minutes" if hold else ""
            yield Announce("Suspended", f"{job.name}: {why}{later}", f"{job.name}: {why}")
        target = _share(claim, left - younger)
        if not why and job.suspended:
            # Narrowed by the same action: else it starts as many pods as it had.
            most = target if target < job.parallelism else None
            yield Suspend(
                job.name, False, "the reason for its suspension no longer holds", most=most
            )
        elif not why and target != job.parallelism:
            yield Scale(job.name, target)
        if job.gang and job.suspended and why:
            continue  # it holds nothing, and comes back only where there is room for all of it
        todo = claim.left
        left -= min(len(todo.open_indexes), _share(claim, left)) + todo.other_pods
        left = max(0, left)


def _share(claim: Claim, left: int) -> int:
    """How many pods a Job has of the workers that are left, never fewer than it runs. Where none
    is left a Job that runs none gets none. A gang has all of its pods, or it is suspended."""
    if claim.job.gang:
        return claim.job.completions
    most, active = min(left, claim.widest), claim.job.active
    wanted = parallelism(claim.job.completions, most) if most > 0 else 0
    return max(wanted, parallelism(claim.job.completions, active) if active else 0)


def _why_suspended(
    job: JobView, stops: Suspension | None, observed: Observed, *, paused: bool
) -> str:
    """Why a Job is to be, or to stay, suspended; empty where it is to run. While the store is away
    no Job is let go, and none is stopped for what its nodes do."""
    if paused:
        return "the campaign is paused"
    if job.suspended and not observed.store_works:
        return "the store cannot be reached"
    if is_held(job):
        return "none of its pods made progress; it is retried later"
    if stops is None or (stops.reason == "NodesFail" and not observed.store_works):
        return ""
    return stops.why


# Jobs of workers that are of no more use are deleted, with their pods. Pure.


def obsolete(desired: Desired, observed: Observed) -> Iterator[Delete]:
    """Delete those of older plans, whose commits were merged before this plan was made; those of
    another image or site than the campaign has now; and those that have ended, and whose wave is
    not in the store."""
    for job in observed.jobs:
        if job.component != WORKER or job.deleting:
            continue
        if why := why_obsolete(job, desired):
            yield Delete(job.name, why)
        elif job.state and job.wave not in observed.by_hash:
            yield Delete(job.name, "its wave is not in the store")


def why_obsolete(job: JobView, desired: Desired) -> str:
    """Why a Job is of no more use, whatever became of it; empty where it may be of use."""
    if job.plan_hash != desired.plan_hash:
        return "its plan is not the current plan of the campaign"
    if job.made_of != desired.made_of:
        return "the campaign's image, store or site has changed"
    if desired.queue and not job.queue:
        return "it lacks the label of the site's queue, so Kueue would not start it"
    # Its image was wrong, and whoever launched the campaign again may have mended that.
    if job.reason == "PodFailurePolicy" and job.launched != desired.launched:
        return "the campaign was launched again"
    return ""


# When a node is quarantined, older Jobs keep what runs on other nodes, and lose the rest. Pure.
#
# Kubernetes cannot keep the pods of a Job from a node once the Job is made. So the Job is narrowed
# to the number of pods that run elsewhere, and its other shards go into a new wave that avoids the
# node. Lowering the number ends no pod that should stay: Kubernetes first ends the youngest, which
# is the one that it has just put in the place of a pod that ended.


def kept_indexes(
    job: JobView, open_indexes: Sequence[int], observed: Observed, avoid: Collection[str]
) -> list[int]:
    """The open indexes of a Job that run on nodes we trust, and that no younger wave has taken.

    Example: of 8 indexes, 0 and 1 run on n2, 2 runs on n1, and the others wait. n1 is quarantined:
    the Job keeps 0 and 1, and runs 2 pods at once; the other 6 go into a wave that avoids n1.
    """
    wave = observed.by_hash[job.wave]
    taken = {s for w in observed.waves if w.serial > wave.serial for s in w.shards}
    running = {
        pod.index
        for pod in observed.pods_of(job)
        if pod.phase == "Running" and not pod.deleting and pod.node not in avoid
    }
    return [i for i in open_indexes if i in running and taken.isdisjoint(wave.indexes[i])]


def unfit_nodes(
    observed: Observed,
    avoid: Collection[str],
    differing: Collection[str],
    stuck: Iterable[PodView],
) -> frozenset[str]:
    """The nodes that the next wave keeps away from: the quarantined ones (`avoid`), those that
    found the software of another image (`differing`), and those where pods do not start while
    others of their Job run (`stuck`). With the latter at most half of all nodes are avoided.

    Example: of 4 nodes n1 is quarantined, and pods do not start on n2 and n3. The next wave avoids
    n1 and n2.
    """
    known = frozenset(avoid) | frozenset(differing)
    more = {pod.node for pod in stuck} - known
    most = len(observed.nodes) // 2 - len(known)
    return known | frozenset(sorted(more)[: max(0, most)])


def drained(job: JobView, kept: int, avoid: Collection[str]) -> Iterator[Delete | Scale]:
    """Narrow a Job to the indexes that it keeps; delete it where it keeps none."""
    if not kept:
        yield Delete(job.name, f"it may use {', '.join(sorted(avoid))}")
    elif (wanted := parallelism(job.completions, kept)) != job.parallelism:
        yield Scale(job.name, wanted)


# The Job that merges: one for each thing there is to merge, and one at a time. Pure.


def merge_key(plan_hash: str, committed: Collection[str]) -> str:
    """What a merge is for, in short: all that is committed of a plan and of those before it. What
    is merged meanwhile does not change it; what is committed does."""
    return short_hash([plan_hash, sorted(committed)], 12)


def merging(
    jobs: Sequence[JobView], key: str, plans: tuple[int, ...], *, partial: bool
) -> Iterator[Announce | Merge]:
    """The Job of this key, once; nothing while another merges."""
    merges = [job for job in jobs if job.component == MERGE]
    same = next((job for job in merges if job.merges == key), None)
    if any(job.is_live for job in merges) or (same is not None and same.deleting):
        return
    if same is None:
        yield Merge(key, plans, partial=partial)
    elif same.state == "Failed":
        yield Announce(
            "MergeFailed",
            f"{same.name}: {same.message}; it is retried when that Job is gone",
            same.name,
        )


def has_merged(jobs: Sequence[JobView], key: str) -> bool:
    """Whether the Job of this key has come to its end: what is committed then is in the head, or
    damaged."""
    ended = (job for job in jobs if job.component == MERGE and job.state == "Complete")
    return any(job.merges == key for job in ended)
