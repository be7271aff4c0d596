"""Rules about live Jobs: scaling, suspension, deletion, and the merge Job. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collector.codec.canonical import short_hash
from collector.worker.exit_codes import NOT_THE_SHARDS, ExitCode
from jobs.decide.actions import Announce, Delete, Merge, Scale, Suspend
from jobs.decide.observed import MERGE, WORKER, Desired, JobView, Observed, PodView
from jobs.decide.pod_problems import STUCK_S, not_starting, runs_anywhere
from jobs.decide.remaining_work import Remaining
from jobs.objects.waves import Wave, parallelism

# A Job is suspended for a quarter of an hour when its pods make no progress.
#
# The conditions are: a pod does not start, and no pod of the Job runs or has succeeded; pods of a
# gang wait for a pod that does not start, or run and cannot reach each other; workers on most of
# the Job's nodes cannot reach the store; or more indexes fail because of their nodes than succeed.
# A single failing pod does not suspend a Job: that is a problem of its node. Only failures since
# the last start of the Job count; otherwise an old failure would suspend it forever.

# Time until a suspended Job is retried: short enough for problems that resolve themselves, and long
# enough that a Job that fails again does not overload the cluster.
HOLD_S = 900.0
# A pod that ended earlier than this says nothing about the present.
_RECENT_S = 3600.0
# This many pods of a Job must fail to reach the store, each after ten minutes of trying: one or two
# may be chance.
_LEAST_REFUSED_PODS = 3
# Up to this many indexes may fail because of their nodes, whatever the others do: that may be
# chance.
_MOST_CHANCE_INDEXES = 3
_ADVICE = {
    "NodesFail": "compare driver, firmware and device plugin with the plan's stack (opmeter doctor "
    "--cluster); after an upgrade, launch with a target of the new stack",
    "GangIncomplete": "check what that pod waits for; its Job is retried after 15 minutes",
    "GangApart": "check the network policy opmeter-gang, which lets workers connect on any port; "
    "the network between these nodes, and the interface of ranks (site.host_ip_interface)",
}
# Number of other pods of a gang that a message lists: more would make it too long to read.
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Suspension:
    # reason of an Event: NotStarting, GangIncomplete, GangApart, StoreRefusesWorkers ...
    reason: str
    why: str  # one sentence for the user

    @property
    def holds_nodes_idle(self) -> bool:
        """Return whether pods of a gang occupy nodes while they wait for another pod."""
        return self.reason == "GangIncomplete"

    @property
    def advice(self) -> str:
        """Return what the user can do about it; empty if another Event contains it."""
        return _ADVICE.get(self.reason, "")


def suspension(
    job: JobView, wave: Wave, pods: Sequence[PodView], avoid: Collection[str]
) -> Suspension | None:
    """Return why a running Job must be suspended; None if it may continue.

    `pods` are the Job's own pods."""
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
    """Return which pod of a gang the others wait for while they occupy their nodes."""
    for pod in pods:
        waits = pod.phase == "Pending" and bool(pod.unschedulable) and pod.in_state_s > STUCK_S
        if why := not_starting(pod) or (pod.unschedulable if waits else ""):
            return f"the other pods of its gang wait for {pod.name}: {why}"
    return ""


def _apart(job: JobView, pods: Sequence[PodView]) -> str:
    """Return which pods of a gang cannot reach each other, if all run or ended for that reason.

    Example: in a gang of two, pod 0 on n1 ended with exit 47, and pod 1 runs on n2: no pod is
    absent, but they cannot reach each other. As long as pod 1 has not started, the network is not
    blamed."""
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
    """Return whether a suspended Job must stay suspended, whatever is observed now."""
    return job.suspended and job.held and job.in_state_s < HOLD_S


def refused_by_store(job: JobView, pods: Sequence[PodView]) -> Sequence[PodView]:
    """Return the pods that recently timed out waiting for the store; empty if fewer than three."""
    found = [pod for pod in _recent(job, pods) if pod.exit_code == ExitCode.STORE]
    return found if len(found) >= _LEAST_REFUSED_PODS else ()


def _recent(job: JobView, pods: Sequence[PodView]) -> Sequence[PodView]:
    since_s = min(job.in_state_s, _RECENT_S)
    return [pod for pod in pods if pod.phase == "Failed" and pod.in_state_s < since_s]


def _store_suspension(job: JobView, pods: Sequence[PodView]) -> Suspension | None:
    """Return a suspension if most nodes of a Job cannot reach the store.

    Example: two pods on n1 and one on n2 time out waiting for the store, and a pod runs on n3: that
    is 2 of 3 nodes, and the Job is suspended. With another pod that runs on n4 it is 2 of 4, which
    is not a majority, and the Job continues."""
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
    """Return a suspension if most indexes fail on several nodes: the environment has changed.

    Example: 4 indexes fail with exit 44, and 3 run: 4 is more than 3, and the Job is suspended. If
    4 run, it continues; and if 3 fail it continues, even if none runs."""
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


# The live Jobs share one number of workers; the oldest Job is served first.
#
# A Job is never narrowed below its running pods: Kubernetes would kill them. So an older Job that
# is resumed, because its nodes are no longer quarantined, waits until pods of younger Jobs end. A
# paused campaign suspends all of its Jobs.


@dataclass(frozen=True, slots=True)
class JobShare:
    job: JobView
    left: Remaining

    @property
    def widest(self) -> int:
        """Return how many concurrent pods have work, whichever indexes Kubernetes starts.

        If a younger wave has taken some indexes, each additional pod could start one of those."""
        return len(self.left.open_indexes) if self.left.taken_indexes else self.job.completions


def scaling(
    claims: Sequence[JobShare],
    suspensions: Mapping[str, Suspension],
    observed: Observed,
    workers: int,
    *,
    paused: bool,
) -> Iterator[Scale | Suspend | Announce]:
    """Yield the changes to live Jobs, oldest first; `suspensions` are for the Jobs to suspend.

    Example: there are 10 workers. The older of two Jobs, with 9 indexes, 8 of them open, gets 8;
    the younger gets the remaining 2. If the younger runs 6 pods already, it keeps those 6, and the
    older gets 4."""
    left, younger = workers, sum(claim.job.active for claim in claims)
    for claim in claims:
        job = claim.job
        younger -= job.active
        stops = suspensions.get(job.name)
        why = _why_suspended(job, stops, observed, paused=paused)
        if why and not job.suspended:
            # A Job suspended while the store is unreachable resumes as soon as the store is
            # reachable; a Job of a paused campaign resumes when the user resumes the campaign. Any
            # other Job is retried after a fixed time.
            hold = not paused and observed.store_works
            yield Suspend(job.name, True, why, hold=hold)
            later = "; it is retried in 15 minutes" if hold else ""
            yield Announce("Suspended", f"{job.name}: {why}{later}", f"{job.name}: {why}")
        target = _share(claim, left - younger)
        if not why and job.suspended:
            # The same action sets the parallelism: otherwise the Job starts as many pods as before.
            most = target if target < job.parallelism else None
            yield Suspend(
                job.name, False, "the reason for its suspension no longer holds", most=most
            )
        elif not why and target != job.parallelism:
            yield Scale(job.name, target)
        if job.gang and job.suspended and why:
            # it occupies nothing, and resumes only when there is capacity for all of its pods
            continue
        todo = claim.left
        left -= min(len(todo.open_indexes), _share(claim, left)) + todo.other_pods
        left = max(0, left)


def _share(claim: JobShare, left: int) -> int:
    """Return how many of the remaining workers a Job gets, never fewer than its running pods.

    If no worker is left, a Job without running pods gets none. A gang gets all of its pods or is
    suspended."""
    if claim.job.gang:
        return claim.job.completions
    most, active = min(left, claim.widest), claim.job.active
    target = parallelism(claim.job.completions, most) if most > 0 else 0
    return max(target, parallelism(claim.job.completions, active) if active else 0)


def _why_suspended(
    job: JobView, stops: Suspension | None, observed: Observed, *, paused: bool
) -> str:
    """Return why a Job must be or stay suspended; empty if it must run.

    While the store is unreachable no Job is resumed, and none is suspended for failures of its
    nodes."""
    if paused:
        return "the campaign is paused"
    if job.suspended and not observed.store_works:
        return "the store cannot be reached"
    if is_held(job):
        return "none of its pods made progress; it is retried later"
    if stops is None or (stops.reason == "NodesFail" and not observed.store_works):
        return ""
    return stops.why


def obsolete(desired: Desired, observed: Observed) -> Iterator[Delete]:
    """Yield the deletion of obsolete worker Jobs.

    These are Jobs of older plans, whose commits were merged before this plan was made; Jobs of
    another image or site than the campaign has now; and ended Jobs whose wave is not in the store.
    """
    for job in observed.jobs:
        if job.component != WORKER or job.deleting:
            continue
        if why := why_obsolete(job, desired):
            yield Delete(job.name, why)
        elif job.state and job.wave not in observed.by_hash:
            yield Delete(job.name, "its wave is not in the store")


def why_obsolete(job: JobView, desired: Desired) -> str:
    """Return why a Job is no longer useful, however it ended; empty if it may be useful."""
    if job.plan_hash != desired.plan_hash:
        return "its plan is not the current plan of the campaign"
    if job.made_of != desired.made_of:
        return "the campaign's image, store or site has changed"
    if desired.queue and not job.queue:
        return "it lacks the label of the site's queue, so Kueue would not start it"
    # Its image was wrong, and the user who launched the campaign again may have corrected it.
    if job.reason == "PodFailurePolicy" and job.launched != desired.launched:
        return "the campaign was launched again"
    return ""


# When a node is quarantined, older Jobs keep their pods on other nodes and lose the rest.
#
# Kubernetes cannot exclude a node from an existing Job. So the Job is narrowed to the number of
# pods that run on other nodes, and its other shards go into a new wave that avoids the node.
# Narrowing does not end a pod that should stay: Kubernetes first ends the youngest pod, which is
# the replacement of the pod that ended.


def kept_indexes(
    job: JobView, open_indexes: Sequence[int], observed: Observed, avoid: Collection[str]
) -> list[int]:
    """Return the open indexes that run on trusted nodes and that no younger wave has taken.

    Example: of 8 indexes, 0 and 1 run on n2, 2 runs on n1, and the others wait. n1 is quarantined:
    the Job keeps 0 and 1, and runs 2 pods at once; the other 6 go into a wave that avoids n1."""
    wave = observed.by_hash[job.wave]
    taken = {s for w in observed.waves if w.serial > wave.serial for s in w.shards}
    running = {
        pod.index
        for pod in observed.pods_of(job)
        if pod.phase == "Running" and not pod.deleting and pod.node not in avoid
    }
    return [i for i in open_indexes if i in running and taken.isdisjoint(wave.indexes[i])]


def unfit_nodes(
    observed: Observed, avoid: Collection[str], differing: Collection[str], stuck: Iterable[PodView]
) -> frozenset[str]:
    """Return the nodes that the next wave avoids.

    These are the quarantined nodes (`avoid`), the nodes that reported software of another image
    (`differing`), and the nodes where pods do not start while others of their Job run (`stuck`).
    Nodes of the last kind are added only up to half of all nodes.

    Example: of 4 nodes n1 is quarantined, and pods do not start on n2 and n3. The next wave avoids
    n1 and n2."""
    known = frozenset(avoid) | frozenset(differing)
    more = {pod.node for pod in stuck} - known
    most = len(observed.nodes) // 2 - len(known)
    return known | frozenset(sorted(more)[: max(0, most)])


def drained(job: JobView, kept: int, avoid: Collection[str]) -> Iterator[Delete | Scale]:
    """Narrow a Job to the indexes that it keeps; delete it if it keeps none."""
    if not kept:
        yield Delete(job.name, f"it may use {', '.join(sorted(avoid))}")
    elif (target := parallelism(job.completions, kept)) != job.parallelism:
        yield Scale(job.name, target)


def merge_key(plan_hash: str, committed: Collection[str]) -> str:
    """Return a short hash of all commits of a plan and of earlier plans.

    Merging does not change the key; new commits do."""
    return short_hash([plan_hash, sorted(committed)], 12)


def merging(
    jobs: Sequence[JobView], key: str, plans: tuple[int, ...], *, partial: bool
) -> Iterator[Announce | Merge]:
    """Yield the merge Job of this key, once; nothing while another merge runs."""
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


# A queue admits whatever fits. Small Jobs of workers that are added all the time would overtake the
# larger request of a merge for ever, whatever its priority.

# Jobs of workers in a queue end within a quarter of an hour, and about as many wait as run. A merge
# that has not started after four times as long waits for something else.
_MERGE_FIRST_S = 3600.0


def waiting_merge(jobs: Sequence[JobView]) -> JobView | None:
    """Return the merge that a queue has not started yet, if it is worth waiting for.

    Example: a merge was created 59 minutes ago and is suspended: it is returned. After an hour it
    is not: for example, the queue is smaller than its request."""
    for job in jobs:
        waits = job.suspended and bool(job.queue) and job.in_state_s < _MERGE_FIRST_S
        if job.component == MERGE and job.is_live and waits:
            return job
    return None


def has_merged(jobs: Sequence[JobView], key: str) -> bool:
    """Return whether the merge Job of this key completed.

    The commits are then in the head, or damaged."""
    ended = (job for job in jobs if job.component == MERGE and job.state == "Complete")
    return any(job.merges == key for job in ended)
