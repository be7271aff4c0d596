"""What to do about the words of a scheduler or a kubelet. Pure."""

import re

# The first that fits; the words are those of Kubernetes, Volcano and Kueue.
_REMEDIES = (
    (
        r"imagepull|errimage|invalidimage|pull(ing)? image",
        "correct the image's name or digest, or its pull secret; a cluster on one machine wants it "
        "loaded (kind load, minikube image load)",
    ),
    (r"quota", "ask for more quota, or for fewer devices in the campaign"),
    (
        r"(secret|configmap) \"[^\"]*\" not found|object .* not registered",
        "create that Secret or ConfigMap in the namespace, or correct the key that names it "
        "(store_secret)",
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


def remedy(words: str) -> str:
    """What a person can do about it; at worst, where to look."""
    found = (what for pattern, what in _REMEDIES if re.search(pattern, words, re.IGNORECASE))
    return next(found, _ELSE)
