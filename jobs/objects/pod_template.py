"""The pod of a Job: its container, its user, and its placement. Pure.

No access to the API, no root, no writable root file system: the `restricted` pod security level if
the Ascend runtime mounts drivers itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collector.model.stack import COLLECTIVE_LIBRARIES
from jobs.objects.deployment import LABEL, Deployment, Manifest
from jobs.objects.object_values import quantity
from jobs.objects.site import DEFAULT_USER, Site

# The mounts of a pod: one writable volume, the store's credentials, and drivers.
#
# The root file system is read-only. Variables of the image redirect all files that tools write by
# default to the work volume.

WORK = "/work"
STORE = "/store"
_CREDENTIALS = "/etc/opmeter/store"
_STORE_CA = "/etc/opmeter/ca"
_SITE_PACKAGES = "/site-packages"
# The paths that the Ascend runtime would mount itself (documentation of MindCluster and
# vLLM-Ascend).
_DRIVER_PATHS = (
    "/usr/local/Ascend/driver/lib64",
    "/usr/local/Ascend/driver/version.info",
    "/etc/ascend_install.info",
    "/usr/local/dcmi",
    "/usr/local/bin/npu-smi",
)
_DRIVER_LIBRARIES = ":".join(
    f"/usr/local/Ascend/driver/lib64{part}" for part in ("", "/driver", "/common")
)


@dataclass(frozen=True, slots=True)
class Mounts:
    """Volumes, their mount paths, and the related environment variables."""

    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]
    environment: dict[str, str]


def mounts(
    deployment: Deployment, site: Site | None = None, *, work: str, shared: str = ""
) -> Mounts:
    """Return the volumes of a pod.

    `work` and `shared` are the sizes of the writable volumes. A pod of a `site` is a worker, or a
    probe for one, and has workers' credentials."""
    found = Mounts([], [], {})
    # A pod over the limit is evicted, and its file system shows the node's whole disk.
    found.environment["OPMETER_VOLUME_BYTES"] = f"{quantity(work):.0f}"
    _add(found, "work", {"emptyDir": {"sizeLimit": work}}, WORK)
    if shared:
        memory = {"emptyDir": {"medium": "Memory", "sizeLimit": shared}}
        _add(found, "shm", memory, "/dev/shm")
    of_workers = deployment.worker_secret if site is not None else ""
    if name := of_workers or deployment.store_secret:
        # Files, not variables: a running pod receives a rotated Secret only as files.
        secret = {"secret": {"secretName": name, "defaultMode": 0o440}}
        _add(found, "credentials", secret, _CREDENTIALS, read_only=True)
        found.environment["AWS_SHARED_CREDENTIALS_FILE"] = f"{_CREDENTIALS}/credentials"
        found.environment["AWS_CONFIG_FILE"] = f"{_CREDENTIALS}/config"
    if deployment.store_claim:
        claim = {"persistentVolumeClaim": {"claimName": deployment.store_claim}}
        _add(found, "store", claim, STORE)
    if site is not None:
        _add_of_site(found, deployment, site)
    return found


def _add_of_site(found: Mounts, deployment: Deployment, site: Site) -> None:
    if deployment.site_packages:
        claim = {"claimName": deployment.site_packages, "readOnly": True}
        volume = {"persistentVolumeClaim": claim}
        _add(found, "site-packages", volume, _SITE_PACKAGES, read_only=True)
        found.environment["PYTHONPATH"] = _SITE_PACKAGES
    has_driver = site.backend == "npu" and site.runtime == "hostpath"
    paths = (*_DRIVER_PATHS, *site.host_paths) if has_driver else site.host_paths
    for number, path in enumerate(dict.fromkeys(paths)):
        _add(found, f"host-{number}", {"hostPath": {"path": path}}, path, read_only=True)
    if has_driver:
        # A separate variable: LD_LIBRARY_PATH of the image contains CANN and would be replaced
        # here.
        found.environment["OPMETER_DRIVER_LIBRARIES"] = _DRIVER_LIBRARIES
    if site.run_as_user != DEFAULT_USER:
        annotation = {"fieldPath": f"metadata.annotations['{_PASSWD}']"}
        items = [{"path": "passwd", "fieldRef": annotation}]
        _add(found, "passwd", {"downwardAPI": {"items": items}}, "/etc/passwd", read_only=True)
        found.mounts[-1]["subPath"] = "passwd"
    found.environment.update(_network(site))


def _network(site: Site) -> dict[str, str]:
    """Return the variables by which the library of collectives finds the pods of a gang.

    They are described in CANN's list of environment variables (9.1), NCCL's and torch's. HCCL and
    NCCL take a name as a prefix unless `=` comes first. Of several addresses of a host, HCCL must
    be given one (MindCluster's documentation of host networks, 2026-08); with an interface, the
    ranks set it themselves."""
    found: dict[str, str] = {}
    if interface := site.host_ip_interface:
        library = COLLECTIVE_LIBRARIES[site.backend].upper()
        found[f"{library}_SOCKET_IFNAME"] = f"={interface}"
        found["GLOO_SOCKET_IFNAME"] = interface
    if site.backend == "npu":
        found["HCCL_CONNECT_TIMEOUT"] = str(site.hccl_connect_timeout_s)
        if site.network == "host" and not interface:
            found["HCCL_IF_IP"] = "$(HOST_IP)"
        if site.is_of_super_pod:
            found["OPMETER_SUPER_POD"] = "1"
    return found


def _add(
    found: Mounts, name: str, volume: dict[str, Any], path: str, *, read_only: bool = False
) -> None:
    found.volumes.append({"name": name, **volume})
    mount: dict[str, Any] = {"name": name, "mountPath": path}
    found.mounts.append(mount | ({"readOnly": True} if read_only else {}))


# The annotation with /etc/passwd of a pod whose user the image does not have. HCCL cannot begin as
# a user without a name (vLLM-Ascend issue 9490: "error code 19").
_PASSWD = LABEL + "passwd"
POD_GRACE_S = 120  # from the deletion until the kernel kills it
_TOLERATED_S = 300


def pod_spec(
    name: str,
    image: str,
    command: list[str],
    deployment: Deployment,
    mounted: Mounts,
    requests: Mapping[str, str],
    site: Site | None = None,
) -> Manifest:
    """Return a pod of one container; it may write only to the volumes in `mounted`.

    All pods share the group of their volumes: workers, merges and the controller write to the same
    ones."""
    user, group = (site.run_as_user, site.run_as_group) if site else (DEFAULT_USER, DEFAULT_USER)
    groups = {"supplementalGroups": list(site.supplemental_groups)} if site else {}
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": deployment.pull_policy,
        "workingDir": WORK,
        "command": command,
        "env": [*_node_names(), *texts(**mounted.environment)],
        "resources": {"requests": dict(requests), "limits": dict(requests)},
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
            "runAsUser": user,
            "runAsGroup": group,
            **{name: ids for name, ids in groups.items() if ids},
            "fsGroup": DEFAULT_USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": mounted.volumes,
    }


def add_access(pod: Manifest, site: Site) -> None:
    """Add what every pod of a site needs, merges too: its image and its store."""
    if site.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in site.image_pull_secrets]
    if ca := site.store_ca:
        items = [{"key": ca.key, "path": "ca.crt"}]
        held: Manifest = {"configMap": {"name": ca.name, "items": items}}
        if ca.kind == "secret":
            held = {"secret": {"secretName": ca.name, "items": items, "defaultMode": 0o440}}
        (container,) = pod["containers"]
        pod["volumes"].append({"name": "store-ca", **held})
        # The folder, since a file mounted alone would not follow a change of the object.
        container["volumeMounts"].append(
            {"name": "store-ca", "mountPath": _STORE_CA, "readOnly": True}
        )
        container["env"] += texts(AWS_CA_BUNDLE=f"{_STORE_CA}/ca.crt")


def node_selection(pod: Manifest, site: Site, avoid: tuple[str, ...]) -> None:
    """Set where the pod may run, and its scheduler."""
    if site.node_selector:
        pod["nodeSelector"] = dict(site.node_selector)
    if avoid:
        # By the name itself: the label kubernetes.io/hostname can differ from the node's name.
        # Kubernetes accepts only one name per requirement here, and all requirements must hold.
        others = [{"key": "metadata.name", "operator": "NotIn", "values": [n]} for n in avoid]
        terms = {"nodeSelectorTerms": [{"matchFields": others}]}
        pod["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}
        }
    # Kubernetes uses the first matching toleration: a site's own toleration replaces the default.
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
    """Return the resource requests of one worker, or of a pod in its place."""
    requests = {"cpu": site.cpu, "memory": site.memory}
    requests["ephemeral-storage"] = site.ephemeral_storage
    return requests | ({site.resource: str(site.devices_per_worker)} if site.resource else {})


def pod_annotations(site: Site, pods: int = 1) -> dict[str, str]:
    """Return the annotations for schedulers of Ascend clusters; `pods` is the size of the gang."""
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    if site.schedule_policy:
        annotations["huawei.com/schedule_policy"] = site.schedule_policy
    if site.machine_type.endswith("super-pod"):
        # Refused for a single pod, unless it equals the request in `resources`; a gang must be in
        # one super-pod.
        annotations["sp-block"] = str(site.devices_per_worker * pods)
    if site.volcano_queue:
        annotations["scheduling.volcano.sh/queue-name"] = site.volcano_queue
    if site.run_as_user != DEFAULT_USER:
        user = f"HwHiAiUser:x:{site.run_as_user}:{site.run_as_group}::{WORK}:/bin/sh"
        annotations[_PASSWD] = f"root:x:0:0:root:/root:/bin/sh\n{user}\n"
    return annotations


def _toleration(pairs: tuple[tuple[str, str], ...]) -> Manifest:
    toleration: Manifest = dict(pairs)
    if "tolerationSeconds" in toleration:
        toleration["tolerationSeconds"] = int(toleration["tolerationSeconds"])
    return toleration


def _node_names() -> list[Manifest]:
    fields = {
        "NODE_NAME": "spec.nodeName",
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
        "HOST_IP": "status.hostIP",
    }
    return [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in fields.items()]


def texts(**values: str) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]
