"""Kueue's objects as the API server has them, in whatever version it prefers.

Nothing depends on them but words and what is given up: a cluster without Kueue, and an account that
may not read this, have none.
"""

from urllib.parse import quote

from jobs.kube.errors import unless_refused
from jobs.kube.requests import Requests
from jobs.objects.deployment import Manifest
from jobs.objects.kueue import GROUP


class KueueObjects:
    """Reads them, by the requests of a cluster, for one namespace."""

    def __init__(self, requests: Requests, namespace: str):
        self._requests, self._namespace = requests, namespace

    def workloads(self) -> list[Manifest]:
        """Kueue's side of Jobs, one for each that it has."""
        with unless_refused("Workloads"):
            return list(self._requests.items(f"{self._root()}/{self._here}/workloads", {}))
        return []

    def local_queue(self, name: str) -> Manifest:
        """One of the namespace. Raises ClusterError where there is none, or it may not be read."""
        path = f"{self._root()}/{self._here}/localqueues/{quote(name)}"
        found: Manifest = self._requests.json("GET", path)
        return found

    def cluster_queue(self, name: str) -> Manifest:
        """One of the cluster. Raises ClusterError likewise."""
        path = f"{self._root()}/clusterqueues/{quote(name)}"
        found: Manifest = self._requests.json("GET", path)
        return found

    @property
    def _here(self) -> str:
        return f"namespaces/{self._namespace}"

    def _root(self) -> str:
        """Raises ObjectMissing where Kueue is not installed."""
        group = self._requests.json("GET", f"/apis/{GROUP}")
        return f"/apis/{group['preferredVersion']['groupVersion']}"
