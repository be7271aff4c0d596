"""A Job is suspended for a quarter of an hour when its pods get nowhere. Pure.

That is so when a pod does not start, and none runs or has ended well; when pods of a gang wait for
one that does not begin, or run and do not reach each other; when workers on most of its nodes do
not reach the store; or when more indexes fail by the fault of their nodes than go well. One pod
that fares worse than the others stops nobody: that is its node's matter. Only what happened since
the Job last began counts: otherwise what stopped it once would stop it for ever.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from collector.worker.exit_codes import NOT_THE_SHARDS, ExitCode
from jobs.decide.observed import JobView, PodView
from jobs.decide.pod_problems import STUCK_S, not_starting, runs_anywhere
from jobs.objects.waves import Wave

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
