"""A site profile: what one kind of cluster node wants of a pod that measures on it.

Nothing about a cluster is guessed from names: the resource, the labels and the scheduler's own
annotations differ from site to site, so they are data. What schedulers and device plugins would
refuse of it stands here too; `site_profile` reads it.
"""

import re
from dataclasses import dataclass

# What MindCluster's device plugin calls devices, where nobody has given them other names.
_MINDCLUSTER = frozenset(f"huawei.com/{n}" for n in ("Ascend910", "Ascend310", "Ascend310P", "npu"))


@dataclass(frozen=True, slots=True)
class Site:
    """`resource` is what a device is called in this cluster, empty for a cpu; quantities are of
    one worker, in Kubernetes' spelling. `measure_concurrency` is how many sessions may measure at
    once in one pod, whose every device has a worker: with the shape `node`, on a node. On A3 two
    dies of one chip measure together only where it allows all dies. `ranks_per_pod` is how many
    ranks of a gang a pod without devices holds; 0 for all of them. `super_pod_label` is the label
    of nodes by whose value they are of one super-pod: a gang stays within one."""

    name: str
    backend: str
    devices_per_node: int
    shape: str
    cpu: str
    memory: str
    resource: str = ""
    accelerator_type: str = ""
    scheduler: str = "default"
    volcano_queue: str = ""
    kueue_queue: str = ""
    schedule_policy: str = ""
    priority_class: str = ""
    node_selector: tuple[tuple[str, str], ...] = ()
    pod_labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[tuple[tuple[str, str], ...], ...] = ()
    runtime: str = "none"
    runtime_class: str = ""
    network: str = "pod"
    measure_concurrency: int = 1
    ephemeral_storage: str = "40Gi"
    shared_memory: str = "4Gi"
    ranks_per_pod: int = 0
    super_pod_label: str = ""

    @property
    def devices_per_worker(self) -> int:
        """How many devices one pod asks for."""
        return {"device": 1, "pair": 2, "node": self.devices_per_node}[self.shape]

    @property
    def at_once(self) -> int:
        """How many of them measure at a time."""
        return max(1, min(self.devices_per_worker, self.measure_concurrency))


def concurrency_complaint(site: Site) -> str:
    """Why fewer sessions at once on a node than it has devices cannot be had; empty where they
    can."""
    if site.shape == "node" or site.measure_concurrency >= site.devices_per_node:
        return ""
    return (
        f"{site.measure_concurrency} of {site.devices_per_node} devices may measure concurrently, "
        f"but pods of shape {site.shape} share a node without coordination; set shape: node, or "
        "remove this key"
    )


def resource_complaint(site: Site) -> str:
    """Why that is no name of a whole device; empty where it is."""
    if site.backend == "npu" and not site.resource:
        return "an NPU site requires `resource`, such as huawei.com/Ascend910"
    if re.search(r"Ascend\d+\w*-\d+c", site.resource):
        return (
            f"{site.resource} is a slice of a device and "
            "would not give the numbers of the whole device"
        )
    return ""


def shape_complaint(site: Site) -> str:
    """Why this cluster's scheduler or device plugin would refuse the worker's shape, or measure
    something else by it; empty where neither is so. The rules are those of MindCluster's Volcano
    plugin and device plugin and of HAMi's (2026-08): one PodGroup holds all pods of a batch Job, so
    that a wave always counts as several tasks."""
    if site.shape == "pair" and site.devices_per_node % 2:
        return f"shape pair requires an even devices_per_node, got {site.devices_per_node}"
    if site.backend != "npu":
        return ""
    if site.resource.endswith("/Ascend910C") and site.devices_per_worker % 2:
        return (
            f"HAMi allocates {site.resource} in whole chips of two: a pod would not get "
            f"{site.devices_per_worker}, because the number is rounded up; expected pair, or node "
            "with an even number of devices"
        )
    if site.accelerator_type.startswith("module-a3") and site.shape == "device":
        return f"{_why_not_one_die(site)}: expected pair or node"
    return _volcano_complaint(site) if site.scheduler == "volcano" else ""


def super_pod_complaint(site: Site) -> str:
    """Why a gang cannot be kept in a super-pod by that label; empty where it can."""
    if site.scheduler == "volcano" and site.accelerator_type.endswith("super-pod"):
        return (
            "Volcano's Ascend plugin already keeps a gang in one super-pod, and this label could "
            "conflict with it; remove this key"
        )
    return ""


def _why_not_one_die(site: Site) -> str:
    if site.scheduler == "volcano":
        return (
            "Volcano's Ascend plugin refuses one NPU per pod on A3 in a Job of several pods "
            '("only single task job can request single npu")'
        )
    return (
        "an A3 chip has two dies that share power and memory, and another workload could run on "
        "the second die while a pod measures on one"
    )


def _volcano_complaint(site: Site) -> str:
    if site.accelerator_type.endswith("super-pod") and site.shape != "node":
        return (
            "Volcano's Ascend plugin requires whole nodes of a super-pod in a Job of several pods "
            '("should be equal to node npu"): expected node'
        )
    is_typed = site.schedule_policy or "accelerator-type" in dict(site.node_selector)
    if not is_typed and (site.resource in _MINDCLUSTER or not site.accelerator_type):
        return (
            "Volcano's Ascend plugin schedules a Job without a machine type as one of the "
            "first Atlas 800; set schedule_policy, such as chip8-node8, or accelerator-type in "
            "node_selector"
        )
    return ""
