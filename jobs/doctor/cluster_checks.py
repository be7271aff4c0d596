"""Checks of a cluster over the objects that were read, each with a fix. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from collector.codec.text import counted
from collector.model.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    ShardSettings,
)
from collector.model.stack import Stack
from jobs.doctor.machine import Check
from jobs.kube.leader_election import LEASE
from jobs.objects.applied_campaign import Applied
from jobs.objects.deployment import Deployment, Manifest
from jobs.objects.gangs import largest_gang, pods_of
from jobs.objects.job_manifest import merge_requests, worker_job
from jobs.objects.kueue import Room, room, uncovered, why_held
from jobs.objects.pod_template import resources
from jobs.objects.site import ACCELERATOR_LABEL, Site
from jobs.objects.waves import Wave

RECOMMENDED_VERSION, OLDEST = (1, 29), (1, 26)
KUEUE, VOLCANO = "kueue.x-k8s.io", "batch.volcano.sh"
APIS = (KUEUE, VOLCANO)
# Verb, API group, resource; and a name if only that object may be accessed.
Permission = tuple[str, str, str] | tuple[str, str, str, str]
NEEDED: tuple[Permission, ...] = (
    *((verb, "batch", "jobs") for verb in ("get", "list", "watch", "create", "patch", "delete")),
    ("list", "", "pods"),
    ("get", "", "pods/log"),
    *((verb, "", "configmaps") for verb in ("list", "patch")),
    *((verb, "", "events") for verb in ("list", "create")),
    ("create", "coordination.k8s.io", "leases"),
    *((verb, "coordination.k8s.io", "leases", LEASE) for verb in ("get", "update")),
    ("list", "kueue.x-k8s.io", "workloads"),
)
_VERSION = re.compile(r"v?(\d+)\.(\d+)")
_LISTED = 8
_NO_IMAGE = "no-image-is-known-yet"
# Of a cluster in which no campaign is applied.
NO_DEPLOYMENT = Deployment("default", _NO_IMAGE, _NO_IMAGE, "s3://bucket/prefix")


def check_version(version: str) -> Check:
    """Check whether the API server supports Jobs with a retry budget for each index."""
    found = _VERSION.match(version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number >= RECOMMENDED_VERSION:
        return Check("version", True, version)
    upgrade = "upgrade Kubernetes to 1.29 or newer"
    if number >= OLDEST:
        lost = (
            "below 1.29 an index has no retry budget of its own: a shard that keeps killing its "
            "worker is given up by the worker, and a wave retries three times its indexes in all"
        )
        return Check("version", True, f"{version}: {lost}", upgrade)
    return Check("version", False, f"{version}: Jobs have no podFailurePolicy", upgrade)


def check_apis(served: Mapping[str, bool], site: Site) -> Iterator[Check]:
    """Check Kueue and Volcano, if the site uses them."""
    required = {
        KUEUE: (bool(site.kueue_queue), "install Kueue, or remove kueue_queue from the profile"),
        VOLCANO: (
            site.scheduler == "volcano",
            "install Volcano, or set scheduler: default in the profile",
        ),
    }
    for group, (is_required, fix) in required.items():
        name = group.partition(".")[0] if group != VOLCANO else "volcano"
        there = served.get(group, False)
        words = "installed" if there else f"not installed (no {group})"
        if not is_required:
            words += "; this site does not use it"
        yield Check(name, there or not is_required, words, fix)


def check_permissions(allowed: Mapping[Permission, bool], who: str) -> Check:
    """Check whether this account has the permissions of a controller."""
    missing = [permission for permission in NEEDED if not allowed.get(permission, False)]
    if not missing:
        return Check("rights", True, f"{who} may do all that a controller does")
    words = ", ".join(f"{verb} {' '.join(what)}" for verb, _, *what in missing[:_LISTED])
    more = f" and {len(missing) - _LISTED} more" if len(missing) > _LISTED else ""
    fix = (
        "request the Role of manifests/base/roles.yaml; without it let the controller in the "
        "cluster do the work: kubectl apply -k"
    )
    return Check("rights", False, f"{who} may not: {words}{more}", fix)


def check_account(allowed: Mapping[Permission, bool] | None, account: str) -> Check:
    """Check the permissions of the controller in the cluster; None if they may not be reviewed."""
    if allowed is None:
        words = f"permissions of {account} are unknown: this account may not review them"
        return Check("controller", True, words, skipped=True)
    if not any(allowed.values()):
        words = f"{account} may do nothing here: no controller is installed in this namespace"
        return Check("controller", True, words, skipped=True)
    check = check_permissions(allowed, account)
    fix = "apply manifests/base again, whose Role gives them: kubectl apply -k"
    return Check("controller", check.ok, check.found, fix)


def not_probed(namespace: str) -> Check:
    """Return the skipped check for a probe without a known image."""
    words = (
        "whether a pod reaches the store was not checked: no campaign is applied in "
        f"{namespace}, which would name image and store; run again after applying one"
    )
    return Check("pod", True, words, skipped=True)


def not_admitted() -> Check:
    """Return the skipped check for a probe that the queue would not start."""
    words = "whether a pod reaches the store was not checked: the queue does not start it"
    return Check("pod", True, words, skipped=True)


def check_nodes(nodes: Iterable[Manifest], site: Site) -> Iterator[Check]:
    """Check whether nodes match the profile's selector, and have devices."""
    known = list(nodes)
    if not known:
        words = "unknown: this account may not list nodes; labels were not compared"
        yield Check("nodes", True, words, skipped=True)
        return
    chosen = [node for node in known if _missing_labels(node, site) == []]
    if not chosen:
        yield Check("nodes", False, _unlike(known, site), "correct node_selector in the profile")
        return
    usable = [node for node in chosen if _is_usable(node)]
    selector = ", ".join(f"{key}={value}" for key, value in site.node_selector) or "any"
    yield Check(
        "nodes",
        bool(usable),
        f"{len(usable)} of {len(chosen)} ready and schedulable ({selector})",
        "kubectl get nodes; kubectl describe node NAME shows what is wrong",
    )
    yield from _check_types(chosen, site)
    if site.resource:
        yield _check_devices(chosen, site)
    if site.super_pod_label:
        yield _check_super_pods(usable, site.super_pod_label)


def _check_types(nodes: Sequence[Manifest], site: Site) -> Iterator[Check]:
    """Check whether the selected nodes are of the profile's accelerator type, if they have one."""
    labels = ((n["metadata"].get("labels") or {}).get(ACCELERATOR_LABEL, "") for n in nodes)
    found = sorted(set(labels) - {"", site.machine_type})
    if site.machine_type and found:
        words = f"expected nodes of {ACCELERATOR_LABEL} {site.machine_type}, got {', '.join(found)}"
        yield Check("type", False, words, "correct accelerator_type or node_selector")


def _check_super_pods(nodes: Sequence[Manifest], label: str) -> Check:
    """Check how many nodes a gang can use, which stays within one super-pod."""
    reported = (n["metadata"].get("labels") or {} for n in nodes)
    sizes = Counter(labels[label] for labels in reported if labels.get(label))
    words = f"{label}: {counted(len(sizes), 'super-pod')} on {sizes.total()} of {len(nodes)} nodes"
    if sizes:
        words += f"; a gang finds at most {counted(max(sizes.values()), 'node')} in one"
    fix = "nodes without the label get no gang: correct super_pod_label, or label the nodes"
    return Check("super-pods", bool(sizes), words, fix)


def check_features(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> Check:
    """Compare a worker Job with the result of its strict dry run.

    A field that the server drops belongs to a feature that the server lacks."""
    dropped = sorted(_dropped(sent.get("spec") or {}, kept.get("spec") or {}, "spec"))
    if not dropped:
        return Check("features", True, "a strict dry run of a worker's Job keeps every field")
    fix = "enable the feature gates, or upgrade Kubernetes; opmeter works without them if it can"
    return Check("features", False, f"the server drops {', '.join(dropped[:_LISTED])}", fix)


def refused_job(words: str) -> Check:
    """Return the check of a refused strict dry run."""
    fix = (
        "the message above is the API server's: a quota, a policy, or the pod security level of "
        "the namespace (drivers from the host require `privileged`)"
    )
    return Check("features", False, f"a worker's Job is refused: {words}", fix)


def check_probe(stack: str, error: str, events: Iterable[Manifest] = ()) -> Check:
    """Return the check of a pod of the worker's image: whether it found store and stack."""
    if stack:
        return Check("pod", True, f"a worker's pod reaches the store and finds {stack}")
    reported = [str(event.get("message", "")) for event in events if event.get("type") == "Warning"]
    words = "; ".join(dict.fromkeys([error, *reported[-3:]]))
    fix = (
        "an address that only this machine can reach, a NetworkPolicy, a Secret that is missing, "
        "or an image that the nodes cannot pull"
    )
    return Check("pod", False, words, fix)


def sample_job(site: Site, deployment: Deployment) -> Manifest:
    """Return a worker's Job like that of a campaign, only for dry runs."""
    shards = tuple(PlannedShard(f"sample-{n}", 1, 60.0, "0" * 64) for n in range(2))
    plan = Plan(
        campaign="doctor",
        number=1,
        head_commit=0,
        inputs_hash="",
        round="",
        stack=Stack(device="any", torch="0"),
        backend=site.backend,
        devices=2,
        operators=None,
        update="all",
        measure=MeasureSettings(),
        shard_settings=ShardSettings(),
        limits=Limits(),
        sources=(),
        op_mapping=None,
        forecast=Forecast(2, 0, 0, 60.0, 60.0, 60.0),
        shards=shards,
    )
    indexes = tuple((shard.shard_id,) for shard in shards)
    wave = Wave("doctor", 1, "sample", 0, indexes, avoid=("no-such-node",))
    return worker_job(wave, plan, site, deployment, cap=2, suspend=True)


def _check_devices(nodes: Iterable[Manifest], site: Site) -> Check:
    found = {node["metadata"]["name"]: _devices(node, site.resource) for node in nodes}
    short = {name: count for name, count in found.items() if count < site.devices_per_node}
    total = sum(found.values())
    if total == 0:
        others = sorted({key for node in nodes for key in _resources(node)})
        words = f"no node offers {site.resource}; they offer {', '.join(others) or 'no devices'}"
        fix = "install the device plugin, or correct resource in the profile"
        return Check("devices", False, words, fix)
    words = f"{total} {site.resource} on {counted(len(found), 'node')}"
    if short:
        few = ", ".join(f"{name}: {count}" for name, count in sorted(short.items())[:_LISTED])
        words += f"; expected {site.devices_per_node} per node as in the profile, got fewer: {few}"
    fix = "a device that is unhealthy is not offered: npu-smi info on the node, or correct "
    fix += "devices_per_node in the profile"
    needs = site.devices_per_worker
    return Check("devices", any(count >= needs for count in found.values()), words, fix)


def _missing_labels(node: Manifest, site: Site) -> list[str]:
    labels = node["metadata"].get("labels") or {}
    return [key for key, value in site.node_selector if labels.get(key) != value]


def _unlike(nodes: Iterable[Manifest], site: Site) -> str:
    """Return which labels the profile requires, and the labels of the nodes."""
    words = []
    for key, value in site.node_selector:
        values = sorted({(n["metadata"].get("labels") or {}).get(key, "") for n in nodes} - {""})
        here = f"the nodes have {', '.join(values)}" if values else "no node has this label"
        words.append(f"expected {key}={value}, but {here}")
    return "no node is selected: " + "; ".join(words)


def _is_usable(node: Manifest) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    return ready and not (node.get("spec") or {}).get("unschedulable", False)


def _resources(node: Manifest) -> dict[str, str]:
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {key: str(value) for key, value in allocatable.items() if "/" in key}


def _devices(node: Manifest, resource: str) -> int:
    text = _resources(node).get(resource, "0")
    return int(text) if text.isdigit() else 0


def _dropped(sent: Any, kept: Any, path: str) -> Iterator[str]:
    """Yield the paths of fields that were sent and dropped."""
    if isinstance(sent, Mapping) and isinstance(kept, Mapping):
        for key, value in sent.items():
            if key not in kept and value not in (None, {}, [], "", False, 0):
                yield f"{path}.{key}"
            elif key in kept:
                yield from _dropped(value, kept[key], f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list):
        for index, (one, other) in enumerate(zip(sent, kept, strict=False)):
            yield from _dropped(one, other, f"{path}[{index}]")


# The mode of an Ascend device plugin, and whether workers of a site get devices from it.
#
# The options are those of MindCluster's plugin (2026-08), in the arguments of its DaemonSet: with
# `volcanoType` it assigns only devices that Volcano has reserved for a pod. Pure.

_OPTION = re.compile(r"(?:^|[\s\"'])--?(volcanoType|shareDevCount)(?:[= ]([\w.]+))?")
_TRUE = ("", "true", "1", "t")
_NAME = "plugin"


def check_device_plugin(daemon_sets: Iterable[Manifest] | None, site: Site) -> Check:
    """Check whether the plugin's mode fits the site's scheduler and shape.

    `daemon_sets` are those of all namespaces, None if this account may not list them."""
    if not site.resource:
        return Check(_NAME, True, "this site requests no devices", skipped=True)
    if daemon_sets is None:
        words = (
            "this account may not list DaemonSets; an administrator can show the "
            "plugin's arguments with "
            "kubectl get daemonsets -A -o yaml | grep volcanoType"
        )
        return Check(_NAME, True, words, skipped=True)
    found = list(_plugins(daemon_sets))
    if not found:
        words = "no DaemonSet is a known Ascend device plugin"
        return Check(_NAME, True, words, skipped=True)
    checks = [_check(where, options, site) for where, options in found]
    return next((check for check in checks if not check.ok), checks[0])


def _plugins(daemon_sets: Iterable[Manifest]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the options of each plugin."""
    for daemon_set in daemon_sets:
        metadata = daemon_set["metadata"]
        for container in daemon_set["spec"]["template"]["spec"].get("containers") or ():
            command = _command(container)
            about = f"{metadata['name']} {container.get('image', '')} {command}".lower()
            is_ascend = "ascend" in about or "volcanotype" in about
            if is_ascend and re.search(r"device-?plugin", about) and "hami" not in about:
                where = f"{metadata.get('namespace', '')}/{metadata['name']}"
                yield where, {m[1]: (m[2] or "").lower() for m in _OPTION.finditer(command)}


def _command(container: Manifest) -> str:
    """Return the command line of the container; it is often one text for a shell."""
    words: list[Any] = [*(container.get("command") or ()), *(container.get("args") or ())]
    return " ".join(map(str, words))


def _check(where: str, options: dict[str, str], site: Site) -> Check:
    by_volcano = options.get("volcanoType", "false") in _TRUE
    shared = options.get("shareDevCount", "1")
    words = f"{where}: volcanoType={str(by_volcano).lower()}"
    if shared not in ("", "0", "1"):
        fix = "run the plugin with -shareDevCount=1: sharing a device distorts its durations"
        return Check(_NAME, False, f"{words}, and it offers each device {shared} times", fix)
    whole_nodes = site.devices_per_worker >= site.devices_per_node
    if by_volcano and site.scheduler != "volcano" and not whole_nodes:
        return Check(
            _NAME,
            False,
            f'{words}: it refuses pods that Volcano did not place ("not get valid pod"), unless '
            f"they take a whole node; site {site.name} has scheduler {site.scheduler}",
            "set scheduler: volcano or shape: node in the profile, or run the plugin with "
            "-volcanoType=false",
        )
    if not by_volcano and site.scheduler == "volcano":
        return Check(
            _NAME,
            False,
            f"{words}: pods get other devices than Volcano reserves for them",
            "run the plugin with -volcanoType=true, or set scheduler: default in the profile",
        )
    return Check(_NAME, True, words)


def check_local_queue(site: Site, queue: Manifest | None, error: str) -> Check:
    """Check whether the queue that the site names exists and admits workloads.

    `error` is the reason why it was not read."""
    name = site.kueue_queue
    if queue is None:
        fix = (
            "create it (manifests/components/kueue), or correct kueue_queue in the profile: "
            "kubectl get localqueues.kueue.x-k8s.io; reading it requires the Role opmeter-launcher"
        )
        return Check("queue", False, f"LocalQueue {name} cannot be read: {error}", fix)
    words = f"LocalQueue {name} of ClusterQueue {cluster_queue_of(queue)}"
    return _held("queue", words, queue, "localqueues")


def check_cluster_queue(
    site: Site,
    name: str,
    queue: Manifest | None,
    error: str,
    *,
    is_missing: bool,
    applied: Applied | None = None,
) -> Iterator[Check]:
    """Check whether the queue admits workloads, and has room for a worker, for the largest gang
    that the applied campaign names, and for a merge.

    A queue that may not be read can still exist: it belongs to the cluster."""
    if queue is None:
        words = f"ClusterQueue {name} cannot be read: {error}"
        fix = "create it, or set another one in the LocalQueue: kubectl get "
        fix += "clusterqueues.kueue.x-k8s.io"
        yield Check("cluster queue", not is_missing, words, fix, skipped=not is_missing)
        return
    yield _held("cluster queue", f"ClusterQueue {name}", queue, "clusterqueues")
    yield _check_quota(name, queue, site, applied)


def cluster_queue_of(local_queue: Manifest) -> str:
    return str((local_queue.get("spec") or {}).get("clusterQueue") or "")


def _held(check: str, words: str, queue: Manifest, kind: str) -> Check:
    if held := why_held(queue):
        fix = f"nothing is admitted until that is fixed: kubectl describe {kind}.kueue.x-k8s.io"
        return Check(check, False, f"{words}: {held}", fix)
    return Check(check, True, words)


def _check_quota(name: str, queue: Manifest, site: Site, applied: Applied | None) -> Check:
    """Check that a queue has room for each kind of pod: otherwise it never admits it."""
    gang = pods_of(largest_gang(applied.campaign), site) if applied else 1
    deployment = applied.deployment if applied else NO_DEPLOYMENT
    worker = resources(site)
    needed = [("a worker", worker, 1), ("a merge", merge_requests(deployment), 1)]
    if gang > 1:
        needed.insert(1, (f"each of the {gang} pods of a gang", worker, gang))
    found: dict[str, Room] = {}
    for what, requests, pods in needed:
        if missing := uncovered(queue, requests):
            words = ", ".join(f"{resource} ({requests[resource]})" for resource in missing)
            fix = (
                "add them to coveredResources of the ClusterQueue, with a quota in each flavor; or "
                "let Kueue ignore them: resources.excludeResourcePrefixes in its configuration, as "
                "for ephemeral-storage"
            )
            words = f"ClusterQueue {name} does not cover {words} of {what}"
            return Check("quota", False, words, fix)
        least = found[what] = room(queue, requests)
        if least.pods < pods:
            words = f"{what} requests {requests[least.resource]} of {least.resource}, and no flavor"
            words += f" of ClusterQueue {name} has more than {least.limit:,.15g} for a Job"
            fix = f"raise its nominalQuota; Kueue never starts {what} with it"
            return Check("quota", False, words, fix)
    held, of_workers = "as many pods as its cohort lends", found["a worker"]
    if isfinite(of_workers.pods):
        held = f"{counted(int(of_workers.pods), 'worker')} at once, by its {of_workers.resource}"
    return Check("quota", True, f"ClusterQueue {name} has room for {held}, and for a merge")
