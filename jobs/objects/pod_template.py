"""The pod that a Job of ours makes: its one container, who it is, and where it may run. Pure.

Nothing of the API inside, no root, no writable root file system: the `restricted` pod security
level wherever the Ascend runtime mounts drivers itself.
"""

from collections.abc import Mapping

from jobs.objects.deployment import Deployment, Manifest
from jobs.objects.pod_volumes import WORK, Mounts
from jobs.objects.site import Site

_USER = 1000  # HwHiAiUser: /dev/davinci* belong to it
POD_GRACE_S = 120  # from being told to end until the kernel kills it
_TOLERATED_S = 300


def pod_spec(
    name: str,
    image: str,
    command: list[str],
    deployment: Deployment,
    mounted: Mounts,
    wanted: Mapping[str, str],
) -> Manifest:
    """A pod of one container; what it may write is what `mounted` says."""
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": deployment.pull_policy,
        "workingDir": WORK,
        "command": command,
        "env": [*_place_names(), *texts(**mounted.environment)],
        "resources": {"requests": dict(wanted), "limits": dict(wanted)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounted.mounts,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": POD_GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "serviceAccountName": "opmeter-merge" if name == "merge" else "opmeter-worker",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": mounted.volumes,
    }


def place(pod: Manifest, site: Site, avoid: tuple[str, ...]) -> None:
    """Where the pod may run, and by whose scheduler."""
    if site.node_selector:
        pod["nodeSelector"] = dict(site.node_selector)
    if avoid:
        # By the name itself: the label kubernetes.io/hostname need not be the node's name. One
        # name a requirement is all that Kubernetes takes here, and all of them must hold.
        others = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in avoid]
        terms = {"nodeSelectorTerms": [{"matchFields": others}]}
        pod["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        }
    # Of several that fit a taint Kubernetes takes the first: a site's own word replaces ours.
    named = {value for pairs in site.tolerations for key, value in pairs if key == "key"}
    lost = {f"node.kubernetes.io/{state}" for state in ("unreachable", "not-ready")} - named
    pod["tolerations"] = [
        *(
            {
                "key": k,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _TOLERATED_S,
            }
            for k in sorted(lost, reverse=True)
        ),
        *(_toleration(pairs) for pairs in site.tolerations),
    ]
    if site.scheduler == "volcano":
        pod["schedulerName"] = "volcano"
    if site.priority_class:
        pod["priorityClassName"] = site.priority_class
    if site.runtime_class:
        pod["runtimeClassName"] = site.runtime_class
    if site.network == "host":
        pod["hostNetwork"] = True
        pod["dnsPolicy"] = "ClusterFirstWithHostNet"


def resources(site: Site) -> dict[str, str]:
    """What one worker asks for, and whoever asks in its place."""
    wanted = {"cpu": site.cpu, "memory": site.memory}
    wanted["ephemeral-storage"] = site.ephemeral_storage
    return wanted | ({site.resource: str(site.devices_per_worker)} if site.resource else {})


def pod_annotations(site: Site, pods: int = 1) -> dict[str, str]:
    """What the schedulers of Ascend clusters read on a pod, which is one of so many of a gang."""
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    if site.schedule_policy:
        annotations["huawei.com/schedule_policy"] = site.schedule_policy
    if site.accelerator_type.endswith("super-pod"):
        # Refused for a single pod, unless it is what `resources` asks for; a gang is to lie in one
        # super-pod.
        annotations["sp-block"] = str(site.devices_per_worker * pods)
    if site.volcano_queue:
        annotations["scheduling.volcano.sh/queue-name"] = site.volcano_queue
    return annotations


def _toleration(pairs: tuple[tuple[str, str], ...]) -> Manifest:
    toleration: Manifest = dict(pairs)
    if "tolerationSeconds" in toleration:
        toleration["tolerationSeconds"] = int(toleration["tolerationSeconds"])
    return toleration


def _place_names() -> list[Manifest]:
    fields = {
        "NODE_NAME": "spec.nodeName",
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
        "HOST_IP": "status.hostIP",
    }
    return [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in fields.items()]


def texts(**values: str) -> list[Manifest]:
    """Environment variables."""
    return [{"name": name, "value": value} for name, value in values.items()]
