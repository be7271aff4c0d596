"""Checks of a cluster, over what was fetched of it, each with what to do about it. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from collector.counting import counted
from collector.plan import (
    Forecast,
    Limits,
    MeasureSettings,
    Plan,
    PlannedShard,
    ShardSettings,
)
from collector.stack import Stack
from jobs.doctor.machine import Check
from jobs.kube.leader_election import LEASE
from jobs.objects.deployment import Deployment, Manifest
from jobs.objects.job_manifest import worker_job
from jobs.objects.site import Site
from jobs.objects.waves import Wave

FLOOR, OLDEST = (1, 29), (1, 26)
KUEUE, VOLCANO = "kueue.x-k8s.io", "batch.volcano.sh"
APIS = (KUEUE, VOLCANO)
# Verb, group, resource; and a name where that object alone may be touched.
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


def check_version(version: str) -> Check:
    """Whether the API server has Jobs with a retry budget for each index."""
    found = _VERSION.match(version)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number >= FLOOR:
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
    """Kueue and Volcano, where the site wants them."""
    wanted = {
        KUEUE: (bool(site.kueue_queue), "install Kueue, or take kueue_queue out of the profile"),
        VOLCANO: (
            site.scheduler == "volcano",
            "install Volcano, or set scheduler: default in the profile",
        ),
    }
    for group, (is_wanted, fix) in wanted.items():
        name = group.partition(".")[0] if group != VOLCANO else "volcano"
        there = served.get(group, False)
        words = "installed" if there else f"not installed (no {group})"
        if not is_wanted:
            words += "; this site does not need it"
        yield Check(name, there or not is_wanted, words, fix)


def check_permissions(allowed: Mapping[Permission, bool], who: str) -> Check:
    """Whether this account may do what a controller does."""
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
    """Whether the controller in the cluster may do what it does; None where nobody may ask."""
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
    """What stands for a probe where no image is known."""
    words = (
        "whether a pod reaches the store was not checked: no campaign is applied in "
        f"{namespace}, which would name image and store; run again once one is"
    )
    return Check("pod", True, words, skipped=True)


def check_nodes(nodes: Iterable[Manifest], site: Site) -> Iterator[Check]:
    """Whether there are nodes that the profile selects, and devices on them."""
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
    if site.resource:
        yield _check_devices(chosen, site)
    if site.super_pod_label:
        yield _check_super_pods(usable, site.super_pod_label)


def _check_super_pods(nodes: Sequence[Manifest], label: str) -> Check:
    """How many nodes a gang may have, which stays within one super-pod."""
    told = (n["metadata"].get("labels") or {} for n in nodes)
    sizes = Counter(labels[label] for labels in told if labels.get(label))
    words = f"{label}: {counted(len(sizes), 'super-pod')} on {sizes.total()} of {len(nodes)} nodes"
    if sizes:
        words += f"; a gang finds at most {counted(max(sizes.values()), 'node')} in one"
    fix = "nodes without the label get no gang: correct super_pod_label, or label the nodes"
    return Check("super-pods", bool(sizes), words, fix)


def check_features(sent: Mapping[str, Any], kept: Mapping[str, Any]) -> Check:
    """From a worker Job and what a strict dry run made of it: a field that the server drops is a
    feature that it lacks."""
    dropped = sorted(_dropped(sent.get("spec") or {}, kept.get("spec") or {}, "spec"))
    if not dropped:
        return Check("features", True, "a strict dry run of a worker's Job keeps every field")
    fix = "turn the feature gates on, or upgrade Kubernetes; opmeter does without, as far as it can"
    return Check("features", False, f"the server drops {', '.join(dropped[:_LISTED])}", fix)


def refused_job(words: str) -> Check:
    """The strict dry run was refused."""
    fix = (
        "the message above is the API server's: a quota, a policy, or the pod security level of "
        "the namespace (drivers from the host want `privileged`)"
    )
    return Check("features", False, f"a worker's Job is refused: {words}", fix)


def check_probe(stack: str, error: str, events: Iterable[Manifest] = ()) -> Check:
    """What a pod of the worker's image found: the store and the stack."""
    if stack:
        return Check("pod", True, f"a worker's pod reaches the store and finds {stack}")
    said = [str(event.get("message", "")) for event in events if event.get("type") == "Warning"]
    words = "; ".join(dict.fromkeys([error, *said[-3:]]))
    fix = (
        "an address that only this machine can reach, a NetworkPolicy, a Secret that is missing, "
        "or an image that the nodes cannot pull"
    )
    return Check("pod", False, words, fix)


def sample_job(site: Site, deployment: Deployment) -> Manifest:
    """A worker's Job as a campaign would have it: for dry runs, nothing else."""
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
    """Which labels the profile wants, and what the nodes have in their place."""
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
    """What a node offers beyond what every node does."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {key: str(value) for key, value in allocatable.items() if "/" in key}


def _devices(node: Manifest, resource: str) -> int:
    text = _resources(node).get(resource, "0")
    return int(text) if text.isdigit() else 0


def _dropped(sent: Any, kept: Any, path: str) -> Iterator[str]:
    """The paths of what was sent and is not there any more."""
    if isinstance(sent, Mapping) and isinstance(kept, Mapping):
        for key, value in sent.items():
            if key not in kept and value not in (None, {}, [], "", False, 0):
                yield f"{path}.{key}"
            elif key in kept:
                yield from _dropped(value, kept[key], f"{path}.{key}")
    elif isinstance(sent, list) and isinstance(kept, list):
        for index, (one, other) in enumerate(zip(sent, kept, strict=False)):
            yield from _dropped(one, other, f"{path}[{index}]")
