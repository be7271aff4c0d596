"""Additions to the cluster for some tests: JobSet's controller, and kwok's simulated nodes."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.testbed.build import Built
from tests.cluster.testbed.kubectl import Kubectl, Manifest
from tests.cluster.testbed.processes import Daemon
from tests.cluster.testbed.settings import Settings

_FAKE = {"kwok.x-k8s.io/node": "fake"}


@dataclass(frozen=True)
class Kwok:
    """Simulates the kubelets of nodes whose pods run and complete at once."""

    settings: Settings
    built: Built
    kubectl: Kubectl

    @property
    def daemon(self) -> Daemon:
        words: list[str | Path] = [
            self.built.tool("kwok"),
            f"--kubeconfig={self.settings.kubeconfig}",
            f"--config={self.built.kwok_stages}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            "--node-lease-duration-seconds=40",
            f"--server-address={self.settings.loopback}:10247",
        ]
        return Daemon("kwok", self.settings.run, lambda: words)

    def add_nodes(self, count: int, devices: int) -> None:
        """Make simulated nodes with NPUs; they repel pods without the toleration."""
        self.daemon.start()
        self.kubectl.apply(*(_fake_node(number, devices) for number in range(count)))

    def stop(self) -> None:
        """End kwok, and remove its nodes."""
        self.daemon.stop()
        self.kubectl("delete", "nodes", "-l", "type=kwok", "--wait=false")


def install_jobset(built: Built, kubectl: Kubectl) -> None:
    """Run JobSet's controller with its own manifests, its image built here and loaded on the
    nodes."""
    written = kubectl("kustomize", built.jobset_manifests / "default")
    # The registry of its authors is not used: the manager runs from our own image.
    image = re.compile(r"^(\s*image: ).*$", re.MULTILINE)
    ours = image.sub(r"\1local/jobset:1", written)
    kubectl("apply", "--server-side", "-f", "-", text=ours)
    rollout = ("rollout", "status", "deployment/jobset-controller-manager", "--timeout=120s")
    kubectl("-n", "jobset-system", *rollout)


def _fake_node(number: int, devices: int) -> Manifest:
    name = f"fake-{number}"
    capacity = {
        "cpu": "192",
        "memory": "1536Gi",
        "ephemeral-storage": "2Ti",
        "pods": "110",
        "huawei.com/Ascend910": str(devices),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": _FAKE,
            "labels": {"type": "kwok", "kubernetes.io/hostname": name},
        },
        "spec": {
            "taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]
        },
        "status": {"capacity": capacity, "allocatable": capacity},
    }
