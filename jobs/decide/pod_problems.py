"""The problems that pods report about nodes: the node is at fault, or lost, or starts no pod. Pure.

A pod counts as a failure against its node when a worker reports the node (exit 44 or 46), when the
node refused the pod, or when the pod does not start while others of its Job do. A pod is lost when
it should have ended and its node does not respond. A pod does not start when its node has had ten
minutes for it and reports a problem.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from collector.codec.text import counted
from collector.worker.exit_codes import ExitCode
from jobs.decide.actions import Announce
from jobs.decide.observed import JobView, Observed, PodView
from jobs.objects.pod_template import POD_GRACE_S
from jobs.objects.waves import NodeFailure

# Advice on the messages of a scheduler or a kubelet.

# The first match applies; the messages are those of Kubernetes, Volcano and Kueue.
_ADVICE = (
    (
        r"not get valid pod",
        "the device plugin runs with volcanoType=true and gives devices only to pods that Volcano "
        "placed: set site.scheduler: volcano (component volcano, overlay a2-volcano), or run the "
        "plugin with -volcanoType=false",
    ),
    (
        r"unexpectedadmissionerror",
        "read the log of the device plugin on that node, and npu-smi info: a device may be broken "
        "or held by another container",
    ),
    (
        r"violates podsecurity",
        "host_paths, runtime: hostpath and network: host require the pod security level "
        "`privileged` of the namespace (components hostpath-driver, hostnetwork): set it, or "
        "remove these keys",
    ),
    (
        r"image ?pull|errimage|invalidimage|pull(ing)? image",
        "correct the image's name or digest, or its pull secret (site.image_pull_secrets); load it "
        "into a single-machine cluster (kind load, minikube image load)",
    ),
    (
        r"deactivated",
        "fix the reported problem, then activate it: kubectl patch workloads.kueue.x-k8s.io NAME "
        '--type=merge -p \'{"spec":{"active":true}}\'',
    ),
    (
        r"localqueue  doesn't exist|names no queue",
        "name a LocalQueue of the namespace in the profile (site.kueue_queue)",
    ),
    (
        r"localqueue \S+ doesn't exist",
        "create that LocalQueue in the namespace, or correct site.kueue_queue: kubectl get "
        "localqueues.kueue.x-k8s.io",
    ),
    (
        r"clusterqueue \S+ doesn't exist",
        "create that ClusterQueue, or name another one in the LocalQueue",
    ),
    (
        r"(queue \S+|it) is (stopped|inactive)",
        "the queue is on hold (stopPolicy), or it lacks a flavor or a check: kubectl describe "
        "localqueues.kueue.x-k8s.io, clusterqueues.kueue.x-k8s.io",
    ),
    (
        r"unavailable in clusterqueue",
        "add that resource to coveredResources of the ClusterQueue, with a quota: opmeter doctor "
        "--cluster lists all resources that workers request",
    ),
    (
        r"podsready",
        "its pods did not start within Kueue's waitForPodsReady timeout: check what delays them, "
        "or set a timeout longer than the image pull",
    ),
    (
        r"maximum capacity|exceedsmaxquota",
        "one pod (of a gang: all of its pods) needs more than the queue has: raise nominalQuota of "
        "the ClusterQueue, or request less (site.cpu, site.memory, site.shape; of a merge: "
        "merge_memory)",
    ),
    (
        r"\bpreempted\b|pending the preemption",
        "nothing: it goes on by itself when the queue has room again",
    ),
    (
        r"insufficient unused quota",
        "nothing: it starts when other Jobs of the queue end; more quota, or fewer devices in the "
        "campaign, shorten the wait",
    ),
    (r"quota", "request more quota, or fewer devices in the campaign"),
    (
        r"(secret|configmap) \"[^\"]*\" not found|object .* not registered|non-existent .* key",
        "create that Secret or ConfigMap in the namespace, or correct the key that names it "
        "(store_secret, worker_secret, site.store_ca)",
    ),
    (
        r"runtimeclass|runtime handler|no runtime",
        "correct site.runtime_class, or install the runtime on the node",
    ),
    (
        r"persistentvolumeclaim|volume|mount",
        "kubectl get pvc: the claim is missing, unbound, or in use on another node (ReadWriteOnce)",
    ),
    (r"sandbox|cni|network", "check the node's network plugin and its kubelet's log"),
    (r"taint", "tolerate it (site.tolerations), or remove it from the node"),
    (
        r"insufficient|too many pods|not enough|npu|gang",
        "wait for devices, request less (site.cpu, site.memory, site.shape), or find the pods that "
        "hold them: kubectl describe node",
    ),
    (
        r"affinity|selector|didn't match",
        "compare site.node_selector with kubectl get nodes --show-labels",
    ),
)
_ELSE = "compare the profile with the cluster: opmeter doctor --cluster"


def advice_on(words: str) -> str:
    """Return what the user can do about a message; at least, where to check."""
    found = (what for pattern, what in _ADVICE if re.search(pattern, words, re.IGNORECASE))
    return next(found, _ELSE)


# Time that a pod may wait or be prepared before users are informed: a node that pulls a large image
# for the first time needs minutes.
STUCK_S = 600.0
# Time that a node may prepare a pod without a message: three times the limit with a message.
_SILENT_S = 1800.0
# After its grace period a pod is killed; the node gets this much longer to report it.
REPORT_S = 60.0
_KUBELET = "whether it is Ready, and its kubelet's log"
# A scheduler's message contains node counts, which change; with other numbers it is the same
# message.
_NUMBER = re.compile(r"\d+")


def node_failures(observed: Observed, stuck: Iterable[PodView]) -> Iterator[NodeFailure]:
    """Yield the failures that count against nodes; one per pod, for any number of shards.

    `stuck` are the pods of `stuck_while_others_run`.

    Example: a pod with the shards s1 and s2 ends on n1 with exit 44, and s1 is committed: that is
    one failure of s2, counted against n1. A pod that ends with exit 48 (memory) blames no node."""
    stuck_uids = {pod.uid for pod in stuck}
    for pod in observed.pods:
        ill = pod.refused or pod.exit_code in (ExitCode.NODE, ExitCode.HANG)
        if pod.node and (ill or pod.uid in stuck_uids) and (shard := failed_shard(pod, observed)):
            yield NodeFailure(pod.node, shard)


def failed_shard(pod: PodView, observed: Observed) -> str:
    """Return the shard that a pod's failure refers to; empty if all of its shards are committed.

    It is the shard that the pod names, or else the first one of its index that is not committed."""
    job = next((job for job in observed.jobs if job.name == pod.job), None)
    wave = observed.by_hash.get(job.wave) if job else None
    shards = wave.indexes[pod.index] if wave and pod.index < len(wave.indexes) else ()
    left = [shard for shard in shards if shard not in observed.committed]
    return pod.shard if pod.shard in left else next(iter(left), "")


def lost_indexes(observed: Observed) -> frozenset[tuple[str, int]]:
    """Return the indexes (a Job's name and a number) whose pod is lost.

    Kubernetes waits for the node of such a pod; the controller does not. If nodes may not be
    listed, no index is lost: a pod that ends slowly looks the same.

    Example: a pod was deleted, and its node is not Ready. After 180 s (120 s of grace and 60 s to
    report) it is still waited for; after 181 s it is lost, and its shards go elsewhere."""
    ready = _ready(observed)
    return frozenset(
        (job.name, pod.index)
        for job in observed.jobs
        for pod in observed.pods_of(job)
        if _is_lost(pod, ready)
    )


def _ready(observed: Observed) -> set[str] | None:
    """Return the nodes that are Ready; None if nodes may not be listed."""
    return {node.name for node in observed.nodes if node.ready} if observed.nodes else None


def _is_lost(pod: PodView, ready: set[str] | None) -> bool:
    away = bool(pod.node) and ready is not None and pod.node not in ready
    return pod.deleting and away and not pod.has_ended and pod.in_state_s > POD_GRACE_S + REPORT_S


def not_starting(pod: PodView) -> str:
    """Return why a pod that has a node does not start, as the cluster reports it.

    Empty if it may still start, for example while a large image is pulled.

    Example: a pod with the reason ImagePullBackOff does not start after 601 s. A pod without a
    message may still start then; after 1801 s it does not either."""
    if not is_being_made(pod) or pod.in_state_s <= STUCK_S:
        return ""
    if pod.waiting or pod.event:
        return pod.waiting or pod.event
    words = f"{pod.node} has been preparing it for {_SILENT_S / 60:.0f} minutes without a message"
    return words if pod.in_state_s > _SILENT_S else ""


def is_being_made(pod: PodView) -> bool:
    """Return whether a pod has a node and none of its containers has started."""
    return pod.phase == "Pending" and bool(pod.node) and not pod.deleting


def runs_anywhere(job: JobView, pods: Iterable[PodView]) -> bool:
    """Return whether a pod of a Job runs or has succeeded: then each of its pods could."""
    running = any(pod.phase == "Running" and not pod.deleting for pod in pods)
    return running or bool(job.succeeded)


def stuck_while_others_run(observed: Observed) -> Iterator[PodView]:
    """Yield the pods that do not start while others of their Job do: their nodes are the cause."""
    for job in observed.jobs:
        pods = observed.pods_of(job)
        stuck = [pod for pod in pods if not_starting(pod)]
        if stuck and runs_anywhere(job, pods):
            yield from stuck


def warnings(observed: Observed) -> Iterator[Announce]:
    ready = _ready(observed)
    lost = sorted({p.node for p in observed.pods if _is_lost(p, ready)})
    for node in lost:
        yield Announce(
            "NodeLost",
            f"{node} does not respond; its shards are measured elsewhere, and its pods are removed "
            f"when it is back, or by: kubectl delete node {node}",
            node,
        )
    refused = defaultdict[str, list[PodView]](list)
    for pod in observed.pods:
        if pod.refused:
            refused[pod.node].append(pod)
    for node, pods in refused.items():
        why = f"{pods[0].reason}: {pods[0].words}"
        yield Announce(
            "PodRefused",
            f"{node} refused {counted(len(pods), 'pod')} (such as {pods[0].name}): {why}. To do: "
            f"{advice_on(why)}",
            f"{node}: {why}",
        )
    for pod in observed.pods:
        if pod.in_state_s <= STUCK_S or pod.has_ended:
            continue
        if pod.deleting and pod.node not in lost:
            yield Announce(
                "Terminating",
                f"{pod.name} on {pod.node} is still terminating after its deletion. To do: check "
                f"the node ({_KUBELET}) and the pod's finalizers; if the node is gone for "
                f"good, kubectl delete node {pod.node}",
                pod.name,
            )
    stuck = defaultdict[tuple[str, str], list[PodView]](list)
    for pod in observed.pods:
        if not_starting(pod):
            stuck[pod.job, pod.node].append(pod)
    for (job, node), pods in stuck.items():
        why = not_starting(pods[0])
        yield Announce(
            "NotStarting",
            f"{counted(len(pods), 'pod does', 'pods do')} not start on {node} (such as "
            f"{pods[0].name}): {why}. To do: {advice_on(why)}",
            f"{job} {node}",
        )
    waiting = [p for p in observed.pods if p.unschedulable and p.in_state_s > STUCK_S]
    for pod in waiting[:1]:
        yield Announce(
            "Unschedulable",
            f"{counted(len(waiting), 'pod waits', 'pods wait')} for a node: {pod.unschedulable}. "
            f"To do: {advice_on(pod.unschedulable)}",
            f"{pod.job}: {_NUMBER.sub('', pod.unschedulable)}",
        )
