"""The interface of the program to a Kubernetes cluster: one method per kind of request."""

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from collector.codec.canonical import short_hash
from collector.environment import utc_now
from jobs.kube.connection import Client, KubernetesConnection, own_client, own_namespace
from jobs.kube.errors import ObjectConflict, ObjectMissing, unless_refused
from jobs.kube.requests import PATIENCE_S, Body, Query, RateLimit, Requests
from jobs.objects.deployment import Manifest
from jobs.objects.job_manifest import is_same
from jobs.objects.kueue import GROUP

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LOCAL_REVIEWS = "/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"


# Events on a campaign's ConfigMap, which `kubectl describe` and `opmeter status` show.

COMPONENT = "opmeter"
_LONGEST = 1000  # Kubernetes accepts 1,024


# Kueue's objects, in the API version that the server prefers.
#
# Only messages and the given-up state depend on them: a cluster without Kueue, and an account that
# may not read them, have none.


class KueueObjects:
    """Reads Kueue's objects of one namespace with the requests of a cluster."""

    def __init__(self, requests: Requests, namespace: str):
        self._requests, self._namespace = requests, namespace

    def workloads(self) -> list[Manifest]:
        """Return the Workloads, one for each Job that Kueue manages."""
        with unless_refused("Workloads"):
            return list(self._requests.items(f"{self._root()}/{self._here}/workloads", {}))
        return []

    def local_queue(self, name: str) -> Manifest:
        """Return a LocalQueue of the namespace.

        Raises:
            ClusterError: there is none, or it may not be read."""
        path = f"{self._root()}/{self._here}/localqueues/{quote(name)}"
        return self._requests.json("GET", path)

    def cluster_queue(self, name: str) -> Manifest:
        """Return a ClusterQueue.

        Raises:
            ClusterError: there is none, or it may not be read."""
        path = f"{self._root()}/clusterqueues/{quote(name)}"
        return self._requests.json("GET", path)

    @property
    def _here(self) -> str:
        return f"namespaces/{self._namespace}"

    def _root(self) -> str:
        """Return the path of Kueue's API.

        Raises:
            ObjectMissing: Kueue is not installed."""
        group = self._requests.json("GET", f"/apis/{GROUP}")
        return f"/apis/{group['preferredVersion']['groupVersion']}"


logger = logging.getLogger(__name__)

_JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
_CORE = "/api/v1/namespaces/{namespace}/{kind}"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRICT = {"fieldValidation": "Strict", "fieldManager": COMPONENT}


class Cluster:
    """The objects of one namespace, and the nodes. Thread-safe."""

    def __init__(
        self,
        api: Client,
        namespace: str,
        budget: RateLimit | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ):
        self.namespace = namespace
        send = KubernetesConnection(api).send
        self._requests = Requests(send, budget or RateLimit(), patience_s=patience_s)
        self._jobs = _JOBS.format(namespace=namespace)
        self._leases = _LEASES.format(namespace=namespace)
        self.kueue = KueueObjects(self._requests, namespace)

    @classmethod
    def connect(cls, namespace: str | None = None, *, patience_s: float = PATIENCE_S) -> "Cluster":
        """Connect with the pod's own token or with KUBECONFIG.

        A request is repeated for `patience_s` while the server is away.

        Raises:
            BadInput: there is neither."""
        return cls(own_client(), namespace or own_namespace(), patience_s=patience_s)

    @property
    def requests(self) -> int:
        return self._requests.count

    def version(self) -> str:
        return str(self._requests.json("GET", "/version")["gitVersion"])

    def may(
        self, verb: str, group: str, resource: str, name: str = "", *, account: str = ""
    ) -> bool:
        """Return whether this account, or a ServiceAccount, has a permission in the namespace.

        A permission is an API verb, a group, a resource, and optionally the name of one object.

        Raises:
            ClusterError: this account may not check that of another one."""
        attributes = {"namespace": self.namespace, "verb": verb, "group": group}
        attributes |= {"resource": resource} | ({"name": name} if name else {})
        spec: dict[str, Any] = {"resourceAttributes": attributes}
        kind, path, metadata = "SelfSubjectAccessReview", _REVIEWS, {}
        if account:
            kind, path = "LocalSubjectAccessReview", _LOCAL_REVIEWS.format(namespace=self.namespace)
            metadata = {"namespace": self.namespace}
            spec["user"] = f"system:serviceaccount:{self.namespace}:{account}"
            groups = ("serviceaccounts", f"serviceaccounts:{self.namespace}", "authenticated")
            spec["groups"] = [f"system:{group}" for group in groups]
        version = "authorization.k8s.io/v1"
        review = {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}
        return bool(self._requests.json("POST", path, review)["status"]["allowed"])

    def has_api(self, group: str) -> bool:
        """Return whether the cluster serves an API group, such as kueue.x-k8s.io."""
        try:
            self._requests.json("GET", f"/apis/{group}")
        except ObjectMissing:
            return False
        return True

    def jobs(self, selector: str) -> list[Manifest]:
        return self._list(self._jobs, {"labelSelector": selector})

    def pods(self, selector: str, fields: str = "") -> list[Manifest]:
        """Return the matching pods; `fields` has the form `status.phase!=Succeeded`."""
        query = {"labelSelector": selector} | ({"fieldSelector": fields} if fields else {})
        return self._list(self._core("pods"), query)

    def config_maps(self, selector: str) -> list[Manifest]:
        return self._list(self._core("configmaps"), {"labelSelector": selector})

    def nodes(self) -> list[Manifest]:
        """Return the nodes of the cluster; empty if this account may not list them."""
        with unless_refused("nodes"):
            return self._list("/api/v1/nodes", {})
        return []

    def pods_everywhere(self, fields: str) -> Iterator[Manifest]:
        """Yield the pods of all namespaces by page; none if this account may not list them."""
        with unless_refused("pods of all namespaces"):
            yield from self._requests.items("/api/v1/pods", {"fieldSelector": fields})

    def events(self, fields: str) -> list[Manifest]:
        """Return the Events; `fields` has the form `involvedObject.name=NAME`."""
        return self._list(self._core("events"), {"fieldSelector": fields})

    def log(self, pod: str) -> str:
        return self._requests.text("GET", f"{self._core('pods')}/{quote(pod)}/log")

    def create_or_adopt(self, job: Manifest) -> bool:
        """Create a Job, or adopt the one of its name made from the same manifest.

        Returns:
            True if the Job is new.

        Raises:
            ObjectConflict: a Job of this name with other content exists."""
        name = job["metadata"]["name"]
        try:
            self._requests.json("POST", self._jobs, job, query=_STRICT)
        except ObjectConflict as error:
            live = self._requests.json("GET", f"{self._jobs}/{name}")
            if not is_same(job, live):
                raise ObjectConflict(f"Job {name} exists with other content") from error
            return False
        return True

    def dry_run(self, job: Manifest) -> Manifest:
        """Return a Job as the server would create it: a dropped field is an unsupported feature."""
        query = _STRICT | {"dryRun": "All"}
        return self._requests.json("POST", self._jobs, job, query=query)

    def patch_job(
        self, name: str, spec: Mapping[str, Any], notes: Mapping[str, str] | None = None
    ) -> None:
        """Apply the fields that change while a Job lives: parallelism, suspend, and annotations.

        Fields that an earlier call set and this one omits are removed."""
        metadata = {"name": name, "namespace": self.namespace, "annotations": dict(notes or {})}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": dict(spec)}
        self._apply(f"{self._jobs}/{name}", body)

    def delete_job(self, name: str) -> None:
        """Delete a Job and, in the background, its pods; ignore an absent Job."""
        with contextlib.suppress(ObjectMissing):
            self._delete(f"{self._jobs}/{name}")

    def apply_config_map(self, manifest: Manifest) -> Manifest:
        """Create or change a ConfigMap; fields that other clients set are kept."""
        return self._apply(f"{self._core('configmaps')}/{manifest['metadata']['name']}", manifest)

    def annotate_config_map(self, name: str, notes: Mapping[str, str | None]) -> None:
        """Change annotations of a ConfigMap; None removes one."""
        body = {"metadata": {"annotations": dict(notes)}}
        path = f"{self._core('configmaps')}/{name}"
        self._requests.json("PATCH", path, body, content_type=_MERGE)

    def delete_config_map(self, name: str) -> None:
        """Delete a ConfigMap and everything that it owns."""
        self._delete(f"{self._core('configmaps')}/{name}")

    def announce(
        self, owner: Manifest, reason: str, message: str, *, about: str = "", warning: bool
    ) -> None:
        """Write an Event on a campaign's ConfigMap, once for its subject."""
        metadata = owner["metadata"]
        now = utc_now().strftime("%Y-%m-%dT%H:%M:%SZ")  # for users
        # The name is derived from the content, so that the Event exists only once.
        name = f"{metadata['name'][:200]}.{reason.lower()}.{short_hash(about or message, 10)}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata.get("uid", ""),
            },
            "reason": reason,
            "message": message[:_LONGEST],
            "type": "Warning" if warning else "Normal",
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with contextlib.suppress(ObjectConflict):
            self._requests.json("POST", self._core("events"), event)

    def lease(self, name: str) -> Manifest | None:
        try:
            reply: Manifest = self._requests.json("GET", f"{self._leases}/{name}")
        except ObjectMissing:
            return None
        return reply

    def create_lease(self, lease: Manifest) -> Manifest:
        return self._requests.json("POST", self._leases, lease)

    def replace_lease(self, lease: Manifest) -> Manifest:
        """Replace a Lease.

        Raises:
            ObjectConflict: another process changed it first."""
        path = f"{self._leases}/{lease['metadata']['name']}"
        return self._requests.json("PUT", path, lease)

    def daemon_sets(self) -> list[Manifest] | None:
        """Return the DaemonSets of all namespaces; None if this account may not list them."""
        with unless_refused("DaemonSets of all namespaces"):
            return list(self._requests.items("/apis/apps/v1/daemonsets", {}))
        return None

    def watch_jobs(self, selector: str, seconds: int) -> Iterator[str]:
        """Yield the names of Jobs that change from now on, for about this many seconds.

        End early if the watch breaks or expires, so that the caller reads everything again."""
        now = self._requests.json(
            "GET", self._jobs, query={"labelSelector": selector, "limit": "1"}
        )
        query = {
            "watch": "true",
            "timeoutSeconds": str(seconds),
            "labelSelector": selector,
            "resourceVersion": now["metadata"]["resourceVersion"],
        }
        for event in self._requests.lines(self._jobs, query, seconds):
            if event.get("type") == "ERROR":
                logger.info("the watch of Jobs ended: %s", event["object"].get("message"))
                return
            yield str(event["object"]["metadata"]["name"])

    def _core(self, kind: str) -> str:
        return _CORE.format(namespace=self.namespace, kind=kind)

    def _list(self, path: str, query: Query) -> list[Manifest]:
        """Return the listed objects, once per name: a page may be listed twice."""
        found = {one["metadata"]["name"]: one for one in self._requests.items(path, query)}
        return list(found.values())

    def _apply(self, path: str, body: Body) -> Manifest:
        return self._requests.json(
            "PATCH", path, body, query=_STRICT | {"force": "true"}, content_type=_APPLY
        )

    def _delete(self, path: str) -> None:
        self._requests.json("DELETE", path, {"propagationPolicy": "Background"})
