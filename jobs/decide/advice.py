"""What to do about the words of a scheduler or a kubelet. Pure."""

import re

# The first that fits; the words are those of Kubernetes, Volcano and Kueue.
_ADVICE = (
    (
        r"imagepull|errimage|invalidimage|pull(ing)? image",
        "correct the image's name or digest, or its pull secret; a cluster on one machine wants it "
        "loaded (kind load, minikube image load)",
    ),
    (
        r"deactivated",
        "mend what is said of it, then switch it on: kubectl patch workloads.kueue.x-k8s.io NAME "
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
        "create that ClusterQueue, or have the LocalQueue name another",
    ),
    (
        r"(queue \S+|it) is (stopped|inactive)",
        "somebody holds the queue (stopPolicy), or it lacks a flavor or a check: kubectl describe "
        "localqueues.kueue.x-k8s.io, clusterqueues.kueue.x-k8s.io",
    ),
    (
        r"unavailable in clusterqueue",
        "add that resource to coveredResources of the ClusterQueue, with a quota: opmeter doctor "
        "--cluster names all that workers ask for",
    ),
    (
        r"podsready",
        "its pods did not start in Kueue's time (waitForPodsReady): see what holds them up, or "
        "have the time be longer than the pull of the image",
    ),
    (r"quota", "ask for more quota, or for fewer devices in the campaign"),
    (
        r"(secret|configmap) \"[^\"]*\" not found|object .* not registered",
        "create that Secret or ConfigMap in the namespace, or correct the key that names it "
        "(store_secret, worker_secret)",
    ),
    (
        r"runtimeclass|runtime handler|no runtime",
        "correct site.runtime_class, or have the runtime installed on the node",
    ),
    (
        r"persistentvolumeclaim|volume|mount",
        "kubectl get pvc: the claim is missing, unbound, or held by another node (ReadWriteOnce)",
    ),
    (r"sandbox|cni|network", "look at the node's network plugin and its kubelet's log"),
    (r"taint", "tolerate it (site.tolerations), or take it off the node"),
    (
        r"insufficient|too many pods|not enough|npu|gang",
        "wait for devices, ask for less (site.cpu, site.memory, site.shape), or see who holds "
        "them: kubectl describe node",
    ),
    (
        r"affinity|selector|didn't match",
        "compare site.node_selector with kubectl get nodes --show-labels",
    ),
)
_ELSE = "compare the profile with the cluster: opmeter doctor --cluster"


def advice_on(words: str) -> str:
    """What a person can do about it; at worst, where to look."""
    found = (what for pattern, what in _ADVICE if re.search(pattern, words, re.IGNORECASE))
    return next(found, _ELSE)
