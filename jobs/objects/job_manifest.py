"""Manifests of Jobs as plain values: `--dry-run` prints them and `kubectl` accepts them.

Pure. The fields and their reasons: Indexed Jobs with a retry budget for each index (Kubernetes 1.29
and newer), failures judged by exit code, no access to the API in a worker, and the `restricted` pod
security level if the Ascend runtime mounts drivers itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from collector import __version__
from collector.codec.canonical import canonical_json as _json
from collector.codec.canonical import sha256_hex, short_hash
from collector.codec.errors import BadInput
from collector.model import keys
from collector.model.plan import Plan
from collector.worker.exit_codes import ExitCode
from jobs.objects import pod_template
from jobs.objects.deployment import COMPONENT_LABEL, LABEL, PART_OF, Deployment, Manifest
from jobs.objects.kueue import QUEUE, queue_of
from jobs.objects.site import Site
from jobs.objects.waves import Wave, index_s

# The features of this cluster's Jobs: detected by a strict dry run of the real Job, not by version.
#
# A disabled feature gate silently drops its field, and an older server refuses an unknown field.
# Pure: the reply is compared with the request.

_NEEDED = ("completionMode", "podFailurePolicy")


@dataclass(frozen=True, slots=True)
class Features:
    """The supported features of Jobs.

    `per_index`: an index has its own retry budget (1.29 and newer). Without it a worker commits a
    shard that repeatedly kills it, because the Job cannot determine which index to give up."""

    per_index: bool = True
    replacement: bool = True  # a pod is replaced only when the previous one has ended
    queued: bool = False  # a queue takes Jobs when they are created, and starts them


ALL_FEATURES = Features()
DEGRADED = Features(per_index=False, replacement=False)


def features_of(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> Features:
    """Return the features from a Job and the result of its dry run.

    Raises:
        BadInput: Kubernetes is older than the minimum version 1.26."""
    spec = kept.get("spec") or {}
    if missing := [name for name in _NEEDED if name in sent["spec"] and name not in spec]:
        raise BadInput(
            "Jobs of this cluster do not support "
            f"{', '.join(missing)}; expected Kubernetes 1.26 or newer"
        )
    return Features(
        per_index="backoffLimitPerIndex" in spec,
        replacement="podReplacementPolicy" in spec,
        queued=bool(queue_of(kept) or (spec.get("suspend") and not sent["spec"].get("suspend"))),
    )


def unknown_fields(refusal: str) -> Features | None:
    """Return the features from a server's refusal of the Job; None for another cause."""
    known = ("backoffLimitPerIndex", "maxFailedIndexes", "podReplacementPolicy")
    if "unknown field" not in refusal or not any(name in refusal for name in known):
        return None
    return DEGRADED


SPEC_HASH = LABEL + "spec-sha256"
MADE_OF = LABEL + "made-of"
MERGE_INPUT = LABEL + "merge"
KIND, GANG, _SINGLE = LABEL + "kind", "gang", "single"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE = "kubernetes.io/hostname"
_RETRIES = 3
_KEEP_S = 86400
# A failed merge is retried when its Job is gone.
_KEEP_MERGE_S = 1800
# A probe is also retried when its Job is gone; the controller polls its result every few seconds.
_KEEP_PROBE_S = 300
_PROBE_S = 600
# A worker gives up at its own deadline and reports why. The kubelet's deadline is later, for a
# worker that hangs completely: it includes the pull of the image, and its signal has no message.
_DEADLINE_FACTOR, _DEADLINE_EXTRA_S, _DEADLINE_MARGIN_S = 3, 1800, 900


def worker_job(
    wave: Wave,
    plan: Plan,
    site: Site,
    deployment: Deployment,
    *,
    cap: int,
    suspend: bool = False,
    features: Features = ALL_FEATURES,
) -> Manifest:
    count = len(wave.indexes)
    # Ascend's plugins read the site's labels on the Job and on its pods.
    labels = dict(site.pod_labels) | {
        **_labels(wave.campaign, "worker"),
        LABEL + "plan": wave.plan_hash,
        LABEL + "wave": wave.wave_hash,
        KIND: GANG if wave.is_gang else _SINGLE,
    }
    job = _job(wave.job_name, labels, deployment)
    job["metadata"]["annotations"] = {
        MADE_OF: made_of(site, deployment),
        # For users and other programs: the plan that this Job belongs to, and its hash.
        LABEL + "plan-uri": f"{deployment.root}/{keys.plan(wave.campaign, wave.plan)}",
        LABEL + "plan-sha256": plan.sha256,
    }
    if site.scheduler == "volcano":
        # One PodGroup holds the Job's pods: for a gang it waits for all pods, otherwise for one.
        job["metadata"]["annotations"]["scheduling.volcano.sh/group-min-member"] = str(wave.pods)
    job["spec"] = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": wave.at_once(cap),
        "suspend": suspend,
        **_retry_budget(wave, features),
        "ttlSecondsAfterFinished": _KEEP_S,
        "podFailurePolicy": {"rules": _failure_rules()},
        "template": {
            "metadata": {
                "labels": labels,
                "annotations": pod_template.pod_annotations(site, wave.pods),
            },
            "spec": _worker_pod(wave, plan, site, deployment, features),
        },
    }
    return _queued(_sealed(job), site.kueue_queue)


def merge_job(
    campaign: str,
    plans: Sequence[int],
    key: str,
    site: Site,
    deployment: Deployment,
    *,
    partial: bool,
) -> Manifest:
    """Return the Job that merges the commits of these plans.

    `key` identifies the commits, so that one input is one Job. Damaged shards do not fail the Job:
    the controller plans them again."""
    labels = _labels(campaign, "merge") | {MERGE_INPUT: key}
    job = _job(f"opmeter-{campaign[:27].strip('-')}-merge-{key}", labels, deployment)
    arguments = ["db", "merge", campaign]
    for plan in plans:
        arguments += ["--plan", str(plan)]
    arguments += ["--root", deployment.root, "--allow-damaged"]
    arguments += ["--allow-missing"] if partial else []
    arguments += ["--single-writer"] if deployment.single_writer else []
    arguments += ["--lease", deployment.namespace] if deployment.leased else []
    mounted = pod_template.mounts(deployment, work="4Gi")
    command = ["opmeter", *arguments]
    requests = merge_requests(deployment)
    pod = pod_template.pod_spec(
        "merge", deployment.controller_image, command, deployment, mounted, requests
    )
    pod_template.add_access(pod, site)
    # The only pod with a token, and only if it needs one: for mutual exclusion with a Lease.
    pod["automountServiceAccountToken"] = deployment.leased
    job["spec"] = {
        "backoffLimit": 4,
        "activeDeadlineSeconds": 3600,
        "ttlSecondsAfterFinished": _KEEP_MERGE_S,
        "template": {"metadata": {"labels": labels, "annotations": {}}, "spec": pod},
    }
    return _queued(_sealed(job), site.kueue_queue)


def merge_requests(deployment: Deployment) -> dict[str, str]:
    """Return the resource requests of a merge."""
    return {"cpu": "1", "memory": deployment.merge_memory}


def probe_job(site: Site, deployment: Deployment, name: str, device: str = "") -> Manifest:
    """Return the Job whose log is the stack of a worker's node, as `opmeter stack` prints it.

    `device` is the name that the campaign gives its NPUs, if several are possible."""
    labels = dict(site.pod_labels) | _labels("", "probe")
    job = _job(name, labels, deployment)
    command = ["opmeter", "stack", "--backend", site.backend, "--root", deployment.root]
    command += ["--device", device] if device and site.backend == "npu" else []
    command += ["--limit", str(_PROBE_S)]
    pod = pod_template.pod_spec(
        "probe",
        deployment.image,
        command,
        deployment,
        pod_template.mounts(deployment, site, work="1Gi"),
        # All resources of a worker: a probe that passes the rules of schedulers and queues shows
        # that workers pass them.
        pod_template.resources(site),
        site,
    )
    pod_template.add_access(pod, site)
    pod_template.node_selection(pod, site, ())
    # No deadline of the Job or the pod: both would include the queue and the pull of the image.
    job["spec"] = {
        "backoffLimit": 2,
        "ttlSecondsAfterFinished": _KEEP_PROBE_S,
        "template": {
            "metadata": {"labels": labels, "annotations": pod_template.pod_annotations(site)},
            "spec": pod,
        },
    }
    return _queued(_sealed(job), site.kueue_queue)


def is_same(job: Mapping[str, Any], live: Mapping[str, Any]) -> bool:
    """Return whether a live Job was created from this manifest."""
    annotations = live.get("metadata", {}).get("annotations") or {}
    return bool(annotations.get(SPEC_HASH) == job["metadata"]["annotations"][SPEC_HASH])


def made_of(site: Site, deployment: Deployment) -> str:
    """Return a short hash of the settings that determine how workers run.

    If it changes, Jobs are created again."""
    fields = asdict(deployment)
    for name in ("namespace", "owner", "controller_image", "merge_memory", "allow_unpinned"):
        del fields[name]
    return short_hash([asdict(site), fields], 12)


def _retry_budget(wave: Wave, features: Features) -> Manifest:
    """Return the retry budget: per index or, before 1.29, for all indexes together.

    A gang fails with its first index that fails finally."""
    count = len(wave.indexes)
    found: Manifest = {"backoffLimit": _RETRIES * count}
    if features.per_index:
        most = 0 if wave.is_gang else count
        found = {"backoffLimitPerIndex": _RETRIES, "maxFailedIndexes": most}
    return found | ({"podReplacementPolicy": "Failed"} if features.replacement else {})


def _worker_pod(
    wave: Wave, plan: Plan, site: Site, deployment: Deployment, features: Features
) -> Manifest:
    mounted = pod_template.mounts(
        deployment, site, work=site.ephemeral_storage, shared=site.shared_memory
    )
    command = ["opmeter", "work"]
    pod = pod_template.pod_spec(
        "worker", deployment.image, command, deployment, mounted, pod_template.resources(site), site
    )
    deadline_s = _deadline_s(wave, plan, site)
    digest = deployment.image.partition("@")[2]
    pod["containers"][0]["env"] += pod_template.texts(
        OPMETER_ROOT=deployment.root,
        OPMETER_CAMPAIGN=wave.campaign,
        OPMETER_WAVE=wave.wave_hash,
        OPMETER_PLAN_HASH=wave.plan_hash,
        OPMETER_DEVICES=str(site.devices_per_worker),
        OPMETER_MEASURE_CONCURRENCY=str(site.measure_concurrency),
        **({"OPMETER_SINGLE_WRITER": "1"} if deployment.checks_before_write else {}),
        **({} if features.per_index else {"OPMETER_GIVES_UP": "1"}),
        OPMETER_DEADLINE_S=str(deadline_s),
        **({"OPMETER_IMAGE_DIGEST": digest} if digest else {}),
        **({"OPMETER_OPERATORS": ",".join(allowed)} if (allowed := deployment.operators) else {}),
    )
    pod["activeDeadlineSeconds"] = deadline_s + _DEADLINE_MARGIN_S
    pod_template.add_access(pod, site)
    pod_template.node_selection(pod, site, wave.avoid)
    if wave.is_gang:
        _add_gang_placement(pod, wave.wave_hash, site.super_pod_label)
    return pod


def _add_gang_placement(pod: Manifest, wave: str, super_pod: str) -> None:
    """Add the scheduling rules of a gang to its pod.

    Each pod runs on a node without a pod of any gang. All pods of a wave run on nodes with the same
    value of the label `super_pod`. Each pod knows its own address, because the other pods connect
    to it."""
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    pod["containers"][0]["env"].append(address)
    affinity = pod.setdefault("affinity", {})
    for kind, label, by in (
        ("podAntiAffinity", {KIND: GANG}, _NODE),
        ("podAffinity", {LABEL + "wave": wave}, super_pod),
    ):
        if by:
            alike = {"labelSelector": {"matchLabels": label}}
            affinity[kind] = {_REQUIRED: [{**alike, "topologyKey": by}]}


def _failure_rules() -> list[Manifest]:
    """Return the rules for what a pod's end means for its index; the first match applies."""
    no_fault = [int(ExitCode.STORE), int(ExitCode.PEERS), int(ExitCode.TEMPORARY)]
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
    shards = wave.shards
    planned = {shard.shard_id: shard for shard in plan.shards if shard.shard_id in shards}
    longest_s = max(index_s(shards, planned, site.at_once) for shards in wave.indexes)
    return int(_DEADLINE_FACTOR * longest_s) + _DEADLINE_EXTRA_S


def _labels(campaign: str, component: str) -> dict[str, str]:
    labels = {
        "app.kubernetes.io/name": "opmeter",
        COMPONENT_LABEL: component,
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


def _queued(job: Manifest, queue: str) -> Manifest:
    """Return the Job, managed by Kueue if there is a queue: it is suspended until admitted.

    A namespace may be configured so that Kueue starts no Job that names no queue."""
    if queue:
        job["metadata"]["labels"][QUEUE] = queue
        job["spec"]["suspend"] = True
    return job


def _sealed(job: Manifest) -> Manifest:
    """Return the Job with the hash of its specification, without the fields that change later."""
    spec = {k: v for k, v in job["spec"].items() if k not in ("parallelism", "suspend")}
    job["metadata"]["annotations"][SPEC_HASH] = sha256_hex(_json(spec))
    return job
