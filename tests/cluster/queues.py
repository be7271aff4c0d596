"""Queues of a real Kueue: its settings, and a ClusterQueue of a drill."""

import re
from typing import Any

from tests.cluster.drill import WORKERS, Drill
from tests.cluster.testbed.kueue import MANAGED

READY_S = 40
# Half a dozen shards: only their start is tested.
OPERATORS, FEW = re.compile(r"operators: \[[^]]*\]"), "[NotEqual, Sub, Abs, Greater, Sin, SwiGlu]"
SETTINGS: dict[str, Any] = {
    "manageJobsWithoutQueueName": True,
    "waitForPodsReady": {
        "timeout": f"{READY_S}s",
        "requeuingStrategy": {"backoffLimitCount": 1, "backoffBaseSeconds": 5},
    },
}


class Queue:
    """A ClusterQueue of a drill, and the LocalQueue of its namespace."""

    def __init__(self, drill: Drill):
        self.drill = drill
        self.name = drill.namespace.name
        labels = [f"{key}={value}" for key, value in MANAGED.items()]
        drill.namespace.kubectl("label", "namespace", self.name, *labels)
        drill.text = OPERATORS.sub(f"operators: {FEW}", drill.text)

    def make(self, local: str, cpus: float, hold: str = "None") -> None:
        """`cpus` is its quota; a worker takes 0.8 and a merge 1."""
        flavor = {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ResourceFlavor",
            "metadata": {"name": self.name},
        }
        self.drill.namespace.kubectl.apply(flavor, self._cluster_queue(cpus, hold))
        self.drill.namespace.kubectl.apply(
            {
                "apiVersion": "kueue.x-k8s.io/v1beta2",
                "kind": "LocalQueue",
                "metadata": {"name": local, "namespace": self.name},
                "spec": {"clusterQueue": self.name},
            }
        )

    def change(self, cpus: float, hold: str = "None") -> None:
        self.drill.namespace.kubectl.apply(self._cluster_queue(cpus, hold))

    def jobs(self) -> list[Any]:
        """Return the Jobs of workers that have not ended."""
        found = self.drill.namespace.find("jobs", WORKERS)
        return [job for job in found if not job["status"].get("completionTime")]

    def evictions(self) -> list[str]:
        """Return why Kueue reclaimed quota."""
        events = self.drill.namespace.find("events")
        return [e["message"] for e in events if e["reason"].startswith("Evicted")]

    def remove(self) -> None:
        for kind in ("clusterqueue", "resourceflavor"):
            name = f"{kind}s.kueue.x-k8s.io"
            self.drill.namespace.kubectl("delete", name, self.name, "--wait=false")

    def _cluster_queue(self, cpus: float, hold: str) -> dict[str, Any]:
        quotas = {"cpu": str(cpus), "memory": "1Ti", "ephemeral-storage": "1Ti"}
        resources = [{"name": k, "nominalQuota": v} for k, v in quotas.items()]
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": "ClusterQueue",
            "metadata": {"name": self.name},
            "spec": {
                "namespaceSelector": {},
                "stopPolicy": hold,
                "resourceGroups": [
                    {
                        "coveredResources": list(quotas),
                        "flavors": [{"name": self.name, "resources": resources}],
                    }
                ],
            },
        }
