"""Reads of a cluster's objects, and dry runs of others, by one persistent connection: a test polls
a thousand times, and each process of kubectl takes a twentieth of a second of a core."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kubernetes import config

from jobs.kube.connection import KubernetesConnection
from jobs.kube.errors import ClusterAway, ClusterError
from jobs.kube.requests import Query, RateLimit, Requests
from jobs.objects.deployment import Manifest

# The plural of a kind -> its path on the API server.
_APIS = {
    "configmaps": "api/v1",
    "events": "api/v1",
    "nodes": "api/v1",
    "pods": "api/v1",
    "jobs": "apis/batch/v1",
    "leases": "apis/coordination.k8s.io/v1",
    "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
    "podgroups": "apis/scheduling.k8s.io/v1alpha2",
}
_RATE = 100.0  # a test needs no rate limit: the cluster is its own


@dataclass(frozen=True)
class Objects:
    """The cluster as the account of a kubeconfig sees it. RuntimeError with the API server's
    message."""

    kubeconfig: Path

    def get(self, kind: str, name: str, namespace: str = "") -> Any:
        """Return one object, by the plural of its kind."""
        return self._get(f"{_path(kind, namespace)}/{name}", {})

    def find(self, kind: str, namespace: str = "", selector: str = "") -> list[Any]:
        """Return the objects that a label selector selects, sorted by name."""
        query = {"labelSelector": selector} if selector else {}
        items: list[Any] = self._get(_path(kind, namespace), query)["items"]
        return sorted(items, key=lambda item: str(item["metadata"]["name"]))

    def refusal(self, manifest: Manifest, namespace: str) -> str:
        """Return the error of the API server for an object, strictly and without creating it; empty
        if it would accept it."""
        path = _path(f"{manifest['kind'].lower()}s", namespace)
        strictly = {"dryRun": "All", "fieldValidation": "Strict"}
        try:
            self._requests.json("POST", path, manifest, query=strictly)
        except ClusterAway as error:
            raise RuntimeError(f"{path}: {error}") from error
        except ClusterError as error:
            return str(error)
        return ""

    @cached_property
    def _requests(self) -> Requests:
        client = config.new_client_from_config(config_file=str(self.kubeconfig))
        client.configuration.retries = False
        return Requests(KubernetesConnection(client).send, RateLimit(_RATE, _RATE))

    def _get(self, path: str, query: Query) -> Any:
        try:
            return self._requests.json("GET", path, query=query)
        except ClusterError as error:
            raise RuntimeError(f"{path}: {error}") from error


def _path(kind: str, namespace: str) -> str:
    within = f"/namespaces/{namespace}" if namespace else ""
    return f"/{_APIS[kind]}{within}/{kind}"
