"""A Job is suspended for a quarter of an hour when its pods make no progress.

The conditions are: a pod does not start, and no pod of the Job runs or has succeeded; pods of a
gang wait for a pod that does not start, or run and cannot reach each other; workers on most of
the Job's nodes cannot reach the store; or more indexes fail because of their nodes than succeed.
A single failing pod does not suspend a Job: that is a problem of its node. Only failures since
the last start of the Job count; otherwise an old failure would suspend it forever."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from collector.worker.exit_codes import NOT_THE_SHARDS, ExitCode
from jobs.decide.observed import JobView, PodView
from jobs.decide.pod_problems import STUCK_S, not_starting, runs_anywhere
from jobs.objects.waves import Wave

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
