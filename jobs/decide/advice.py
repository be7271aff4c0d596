"""What to do about the words of a scheduler or a kubelet. Pure."""

import re

# The first that fits; the words are those of Kubernetes, Volcano and Kueue.
_ADVICE = (
    (
        r"imagepull|errimage|invalidimage|pull(ing)? image",
        "correct the image's name or digest, or its pull secret; load it into a single-machine "
        "cluster (kind load, minikube image load)",
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
    (r"quota", "request more quota, or fewer devices in the campaign"),
    (
        r"(secret|configmap) \"[^\"]*\" not found|object .* not registered",
        "create that Secret or ConfigMap in the namespace, or correct the key that names it "
        "(store_secret, worker_secret)",
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
