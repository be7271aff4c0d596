"""Jobs as Kubernetes wants them, as plain values: what `--dry-run` prints and `kubectl` accepts.

Pure. The fields and their reasons: Indexed Jobs with a retry budget for each index (Kubernetes
1.29 and newer), failures judged by exit code, nothing of the API inside a pod, and the `restricted`
pod security level wherever the Ascend runtime mounts drivers itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from collector import __version__
from collector.canonical import canonical_json as _json
from collector.canonical import sha256_hex, short_hash
from collector.plan import Plan
from collector.worker.exit_codes import ExitCode
from jobs.podvolumes import WORK, Mounts, mounts
from jobs.site import Site
from jobs.waves import Wave, parallelism

Manifest = dict[str, Any]

LABEL = "opmeter.io/"
PART_OF = "app.kubernetes.io/part-of"
SPEC_HASH = LABEL + "spec-sha256"
_USER = 1000  # HwHiAiUser: /dev/davinci* belong to it
_GRACE_S = 120
_RETRIES = 3
_KEEP_S = 86400
_DEADLINE_FACTOR, _DEADLINE_EXTRA_S = 3, 1800
_TOLERATED_S = 300


@dataclass(frozen=True, slots=True)
class Deployment:
    """A cluster's side of a campaign: what is neither plan nor machine type.

    `root` is the store as pods reach it; `store_secret` names a Secret of AWS's files
    (`credentials`, `config`), `store_claim` a volume for a `file://` store under /store.
    `site_packages` names a read-only claim that holds torch, for images that have none. `owner`
    is the ConfigMap (name, uid) with which everything goes.
    """

    namespace: str
    image: str
    controller_image: str
    root: str
    store_secret: str = ""
    store_claim: str = ""
    site_packages: str = ""
    owner: tuple[str, str] | None = None
    single_writer: bool = False
    pull_policy: str = "IfNotPresent"


def worker_job(
    wave: Wave, plan: Plan, site: Site, deployment: Deployment, *, cap: int, suspend: bool = False
) -> Manifest:
    """The Indexed Job of a wave. With a Kueue queue it is created suspended: Kueue admits it."""
    count = len(wave.indexes)
    labels = _labels(wave.campaign, "worker") | {
        LABEL + "plan": wave.plan_hash,
        LABEL + "wave": wave.wave_hash,
    }
    job = _job(wave.job_name, labels, deployment)
    if site.kueue_queue:
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = site.kueue_queue
    if site.scheduler == "volcano":
        # One PodGroup holds the Job's pods: it must not wait for more than one of them.
        job["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] = "1"
    job["spec"] = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": parallelism(count, cap),
        "suspend": suspend or bool(site.kueue_queue),
        "backoffLimitPerIndex": _RETRIES,
        "maxFailedIndexes": count,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": _KEEP_S,
        "podFailurePolicy": {"rules": _failure_rules()},
        "template": {
            "metadata": {
                "labels": labels | dict(site.pod_labels),
                "annotations": _pod_annotations(site),
            },
            "spec": _worker_pod(wave, plan, site, deployment),
        },
    }
    return _sealed(job)


def merge_job(
    campaign: str, plan: Plan, committed: frozenset[str], deployment: Deployment
) -> Manifest:
    """The Job that merges what is committed: its name says what, so that one input is one Job."""
    key = short_hash([plan.plan_hash, sorted(committed)], 12)
    labels = _labels(campaign, "merge") | {LABEL + "plan": plan.plan_hash}
    job = _job(f"opmeter-{campaign[:27].strip('-')}-merge-{key}", labels, deployment)
    arguments = ["merge", campaign, "--plan", str(plan.number), "--root", deployment.root]
    arguments += ["--allow-missing"] + (["--single-writer"] if deployment.single_writer else [])
    job["spec"] = {
        "backoffLimit": 4,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": _KEEP_S,
        "template": {
            "metadata": {"labels": labels, "annotations": {}},
            "spec": _pod(
                "merge",
                deployment.controller_image,
                ["opmeter", *arguments],
                deployment,
                mounts(deployment, work="4Gi"),
                {"cpu": "1", "memory": "2Gi"},
            ),
        },
    }
    return _sealed(job)


def probe_job(site: Site, deployment: Deployment, name: str) -> Manifest:
    """The Job whose log is the stack of a worker's node, as `opmeter stack` prints it."""
    labels = _labels("", "probe")
    job = _job(name, labels, deployment)
    pod = _pod(
        "probe",
        deployment.image,
        ["opmeter", "stack", "--backend", site.backend, "--root", deployment.root],
        deployment,
        mounts(deployment, site, work="1Gi"),
        _resources(site, devices=min(1, site.devices_per_worker)),
    )
    _place(pod, site, ())
    job["spec"] = {
        "backoffLimit": 2,
        "activeDeadlineSeconds": 600,
        "ttlSecondsAfterFinished": 3600,
        "template": {
            "metadata": {
                "labels": labels | dict(site.pod_labels),
                "annotations": _pod_annotations(site),
            },
            "spec": pod,
        },
    }
    return _sealed(job)


def is_same(job: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Whether a live Job was created from this manifest."""
    annotations = live.get("metadata", {}).get("annotations") or {}
    return bool(annotations.get(SPEC_HASH) == job["metadata"]["annotations"][SPEC_HASH])


def _worker_pod(wave: Wave, plan: Plan, site: Site, deployment: Deployment) -> Manifest:
    mounted = mounts(deployment, site, work=site.ephemeral_storage, shared=site.shared_memory)
    resources = _resources(site, devices=site.devices_per_worker)
    resources["ephemeral-storage"] = site.ephemeral_storage
    pod = _pod("worker", deployment.image, ["opmeter", "work"], deployment, mounted, resources)
    pod["containers"][0]["env"] += _texts(
        OPMETER_ROOT=deployment.root,
        OPMETER_CAMPAIGN=wave.campaign,
        OPMETER_WAVE=wave.wave_hash,
        OPMETER_PLAN_HASH=wave.plan_hash,
        OPMETER_DEVICES=str(site.devices_per_worker),
        OPMETER_MEASURE_CONCURRENCY=str(site.measure_concurrency),
        **({"OPMETER_SINGLE_WRITER": "1"} if deployment.single_writer else {}),
    )
    pod["activeDeadlineSeconds"] = _deadline_s(wave, plan, site)
    _place(pod, site, wave.avoid)
    return pod


def _place(pod: Manifest, site: Site, avoid: tuple[str, ...]) -> None:
    """Where the pod may run, and by whose scheduler."""
    if site.node_selector:
        pod["nodeSelector"] = dict(site.node_selector)
    if avoid:
        expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(avoid)}
        pod["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [expression]}]
                }
            }
        }
    lost = [f"node.kubernetes.io/{state}" for state in ("unreachable", "not-ready")]
    pod["tolerations"] = [
        *(
            {
                "key": k,
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": _TOLERATED_S,
            }
            for k in lost
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


def _pod(
    name: str,
    image: str,
    command: list[str],
    deployment: Deployment,
    mounted: Mounts,
    resources: Mapping[str, str],
) -> Manifest:
    container = {
        "name": name,
        "image": image,
        "imagePullPolicy": deployment.pull_policy,
        "workingDir": WORK,
        "command": command,
        "env": [*_place_names(), *_texts(**mounted.environment)],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
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
        "terminationGracePeriodSeconds": _GRACE_S,
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


def _failure_rules() -> list[Manifest]:
    """What a pod's end means for its index; the first rule that fits."""
    no_fault = [int(ExitCode.STORE), int(ExitCode.TEMPORARY)]
    for_all = [int(ExitCode.IMAGE)]

    def codes(operator: str, values: list[int]) -> Manifest:
        return {"containerName": "worker", "operator": operator, "values": sorted(values)}

    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": codes("In", for_all)},
        {"action": "Ignore", "onExitCodes": codes("In", no_fault)},
        {"action": "Count", "onExitCodes": codes("NotIn", [*for_all, *no_fault])},
    ]


def _deadline_s(wave: Wave, plan: Plan, site: Site) -> int:
    """When a pod is given up: shards of an index share its devices."""
    predicted = {shard.shard_id: shard.predicted_s for shard in plan.shards}
    at_once = max(1, min(site.devices_per_worker, site.measure_concurrency))
    longest = max(sum(predicted.get(s, 0.0) for s in shards) for shards in wave.indexes)
    return int(_DEADLINE_FACTOR * longest / at_once) + _DEADLINE_EXTRA_S


def _resources(site: Site, devices: int) -> dict[str, str]:
    wanted = {"cpu": site.cpu, "memory": site.memory}
    return wanted | ({site.resource: str(devices)} if site.resource else {})


def _pod_annotations(site: Site) -> dict[str, str]:
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    if site.schedule_policy:
        annotations["huawei.com/schedule_policy"] = site.schedule_policy
    if site.accelerator_type.endswith("super-pod"):
        annotations["sp-block"] = str(site.devices_per_worker)
    if site.volcano_queue:
        annotations["scheduling.volcano.sh/queue-name"] = site.volcano_queue
    return annotations


def _toleration(pairs: tuple[tuple[str, str], ...]) -> Manifest:
    toleration: Manifest = dict(pairs)
    if "tolerationSeconds" in toleration:
        toleration["tolerationSeconds"] = int(toleration["tolerationSeconds"])
    return toleration


def _labels(campaign: str, component: str) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "opmeter",
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": __version__,
        PART_OF: "opmeter",
        "app.kubernetes.io/managed-by": "opmeter",
    }
    if campaign:
        labels |= {"app.kubernetes.io/instance": campaign, LABEL + "campaign": campaign}
    return labels


def _job(name: str, labels: Mapping[str, str], deployment: Deployment) -> Manifest:
    metadata: Manifest = {
        "name": name,
        "namespace": deployment.namespace,
        "labels": dict(labels),
        "annotations": {},
    }
    if deployment.owner:
        owner, uid = deployment.owner
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": uid}
        metadata["ownerReferences"] = [
            reference | {"controller": True, "blockOwnerDeletion": False}
        ]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}


def _sealed(job: Manifest) -> Manifest:
    """The Job with the hash of what it was made from; what is changed while it lives, left out."""
    spec = {k: v for k, v in job["spec"].items() if k not in ("parallelism", "suspend")}
    job["metadata"]["annotations"][SPEC_HASH] = sha256_hex(_json(spec))
    return job


def _place_names() -> list[Manifest]:
    fields = {
        "NODE_NAME": "spec.nodeName",
        "POD_NAME": "metadata.name",
        "POD_UID": "metadata.uid",
        "HOST_IP": "status.hostIP",
    }
    return [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in fields.items()]


def _texts(**values: str) -> list[Manifest]:
    return [{"name": name, "value": value} for name, value in values.items()]
