"""The one door to Kubernetes, and the only module that imports its client.

Objects pass as plain values: typed models take eight times as long to read.
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from collector.errors import BadInput
from jobs.kube.campaign_events import COMPONENT, campaign_event
from jobs.kube.errors import (
    ClusterAway,
    ClusterError,
    ObjectConflict,
    ObjectMissing,
    cluster_error,
)
from jobs.kube.kueue_objects import KueueObjects
from jobs.kube.request_budget import Budget
from jobs.kube.requests import Body, Calls, Query, Response
from jobs.objects.deployment import Manifest
from jobs.objects.job_manifest import is_same

logger = logging.getLogger(__name__)

_JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
_CORE = "/api/v1/namespaces/{namespace}/{kind}"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_LOCAL_REVIEWS = "/apis/authorization.k8s.io/v1/namespaces/{namespace}/localsubjectaccessreviews"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRICT = {"fieldValidation": "Strict", "fieldManager": COMPONENT}
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Cluster:
    """The objects of one namespace, and the nodes. Threads may share it."""

    def __init__(self, api: client.ApiClient, namespace: str, budget: Budget | None = None):
        self.namespace = namespace
        self._api = api
        self._calls = Calls(self._send, budget or Budget())
        self._jobs = _JOBS.format(namespace=namespace)
        self._leases = _LEASES.format(namespace=namespace)
        self.kueue = KueueObjects(self._calls, namespace)

    @classmethod
    def connect(cls, namespace: str | None = None) -> "Cluster":
        """By the pod's own token, or by KUBECONFIG. Raises BadInput where there is neither."""
        try:
            config.load_incluster_config()
        except ConfigException:
            try:
                config.load_kube_config()
            except ConfigException as error:
                raise BadInput(f"no cluster: set KUBECONFIG ({error})") from error
        settings = client.Configuration.get_default_copy()
        settings.retries = False  # who asks again, and how often, is decided in one place
        return cls(client.ApiClient(settings), namespace or _own_namespace())

    @property
    def requests(self) -> int:
        """How many there were."""
        return self._calls.count

    def version(self) -> str:
        return str(self._calls.json("GET", "/version")["gitVersion"])

    def has_api(self, group: str) -> bool:
        """Whether the cluster serves a group, as kueue.x-k8s.io."""
        try:
            self._calls.json("GET", f"/apis/{group}")
        except ObjectMissing:
            return False
        return True

    def jobs(self, selector: str) -> list[Manifest]:
        return self._list(self._jobs, {"labelSelector": selector})

    def pods(self, selector: str, fields: str = "") -> list[Manifest]:
        """Pods that match; `fields` as `status.phase!=Succeeded`."""
        query = {"labelSelector": selector} | ({"fieldSelector": fields} if fields else {})
        return self._list(self._core("pods"), query)

    def config_maps(self, selector: str) -> list[Manifest]:
        return self._list(self._core("configmaps"), {"labelSelector": selector})

    def nodes(self, selector: str = "") -> list[Manifest]:
        """Nodes that match; none where this account may not list them."""
        with _unless_refused("nodes"):
            return self._list("/api/v1/nodes", {"labelSelector": selector})
        return []

    def pods_everywhere(self, fields: str) -> Iterator[Manifest]:
        """Pods of all namespaces, page by page; none where this account may not list them."""
        with _unless_refused("pods of all namespaces"):
            for page in self._calls.pages("/api/v1/pods", {"fieldSelector": fields}):
                yield from page.get("items") or ()

    def events(self, fields: str) -> list[Manifest]:
        """What the cluster says; `fields` as `involvedObject.name=NAME`."""
        return self._list(self._core("events"), {"fieldSelector": fields})

    def log(self, pod: str) -> str:
        """What a pod printed."""
        return self._calls.text("GET", f"{self._core('pods')}/{quote(pod)}/log")

    def create_or_adopt(self, job: Manifest) -> bool:
        """Create a Job; one of its name that was made from the same manifest is ours. Says whether
        it is new. Raises ObjectConflict for another."""
        name = job["metadata"]["name"]
        try:
            self._calls.json("POST", self._jobs, job, query=_STRICT)
        except ObjectConflict as error:
            live = self._calls.json("GET", f"{self._jobs}/{name}")
            if not is_same(job, live):
                raise ObjectConflict(f"Job {name} exists and is another one") from error
            return False
        return True

    def dry_run(self, job: Manifest) -> Manifest:
        """What the server would make of a Job: a field it drops is a feature it lacks."""
        query = _STRICT | {"dryRun": "All"}
        answer: Manifest = self._calls.json("POST", self._jobs, job, query=query)
        return answer

    def patch_job(
        self, name: str, spec: Mapping[str, Any], notes: Mapping[str, str] | None = None
    ) -> None:
        """Apply what changes while a Job lives: parallelism, suspend, and annotations. What an
        earlier call said, and this one does not, goes."""
        metadata = {"name": name, "namespace": self.namespace, "annotations": dict(notes or {})}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": dict(spec)}
        self._apply(f"{self._jobs}/{name}", body)

    def delete_job(self, name: str) -> None:
        """Delete a Job and, in the background, its pods; silent where it is gone."""
        with contextlib.suppress(ObjectMissing):
            self._delete(f"{self._jobs}/{name}")

    def apply_config_map(self, manifest: Manifest) -> Manifest:
        """Create or change a ConfigMap; what others say of it stays."""
        return self._apply(f"{self._core('configmaps')}/{manifest['metadata']['name']}", manifest)

    def annotate_config_map(self, name: str, notes: Mapping[str, str | None]) -> None:
        """Change annotations of a ConfigMap; None takes one away."""
        body = {"metadata": {"annotations": dict(notes)}}
        path = f"{self._core('configmaps')}/{name}"
        self._calls.json("PATCH", path, body, content_type=_MERGE)

    def delete_config_map(self, name: str) -> None:
        """Delete a ConfigMap, and with it everything that it owns."""
        self._delete(f"{self._core('configmaps')}/{name}")

    def announce(
        self, owner: Manifest, reason: str, message: str, *, about: str = "", warning: bool
    ) -> None:
        """An Event on a campaign's ConfigMap, once for what it is about."""
        event = campaign_event(owner, reason, message, about=about, warning=warning)
        with contextlib.suppress(ObjectConflict):
            self._calls.json("POST", self._core("events"), event)

    def lease(self, name: str) -> Manifest | None:
        try:
            answer: Manifest = self._calls.json("GET", f"{self._leases}/{name}")
        except ObjectMissing:
            return None
        return answer

    def create_lease(self, lease: Manifest) -> Manifest:
        answer: Manifest = self._calls.json("POST", self._leases, lease)
        return answer

    def replace_lease(self, lease: Manifest) -> Manifest:
        """Raises ObjectConflict where somebody else was faster."""
        path = f"{self._leases}/{lease['metadata']['name']}"
        answer: Manifest = self._calls.json("PUT", path, lease)
        return answer

    def may(self, verb: str, group: str, resource: str, name: str = "") -> bool:
        """Whether this account may do that in the namespace, to one object where it is named."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": self._asked(verb, group, resource, name)},
        }
        return bool(self._calls.json("POST", _REVIEWS, review)["status"]["allowed"])

    def account_may(
        self, account: str, verb: str, group: str, resource: str, name: str = ""
    ) -> bool:
        """The same of a ServiceAccount of the namespace. Raises ClusterError where this account may
        not ask that."""
        namespace = self.namespace
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "LocalSubjectAccessReview",
            "metadata": {"namespace": namespace},
            "spec": {
                "user": f"system:serviceaccount:{namespace}:{account}",
                "groups": [
                    *("system:serviceaccounts", f"system:serviceaccounts:{namespace}"),
                    "system:authenticated",
                ],
                "resourceAttributes": self._asked(verb, group, resource, name),
            },
        }
        path = _LOCAL_REVIEWS.format(namespace=namespace)
        return bool(self._calls.json("POST", path, review)["status"]["allowed"])

    def _asked(self, verb: str, group: str, resource: str, name: str) -> dict[str, str]:
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        return asked | ({"name": name} if name else {})

    def daemon_sets(self) -> list[Manifest] | None:
        """Those of all namespaces; None where this account may not list them."""
        with _unless_refused("DaemonSets of all namespaces"):
            pages = self._calls.pages("/apis/apps/v1/daemonsets", {})
            return [item for page in pages for item in page.get("items") or ()]
        return None

    def watch_jobs(self, selector: str, seconds: int) -> Iterator[str]:
        """The names of Jobs that change, for about so long, from now on; ends early where the watch
        breaks or grew too old, so that the caller looks at everything anew."""
        now = self._calls.json("GET", self._jobs, query={"labelSelector": selector, "limit": "1"})
        query = {
            "watch": "true",
            "timeoutSeconds": str(seconds),
            "labelSelector": selector,
            "resourceVersion": now["metadata"]["resourceVersion"],
        }
        for event in self._calls.lines(self._jobs, query, seconds):
            if event.get("type") == "ERROR":
                logger.info("the watch of Jobs ended: %s", event["object"].get("message"))
                return
            yield str(event["object"]["metadata"]["name"])

    def _core(self, kind: str) -> str:
        return _CORE.format(namespace=self.namespace, kind=kind)

    def _list(self, path: str, query: Query) -> list[Manifest]:
        found = {}
        for page in self._calls.pages(path, query):
            for item in page.get("items") or ():
                found[item["metadata"]["name"]] = item
        return list(found.values())

    def _apply(self, path: str, body: Body) -> Manifest:
        answer: Manifest = self._calls.json(
            "PATCH", path, body, query=_STRICT | {"force": "true"}, content_type=_APPLY
        )
        return answer

    def _delete(self, path: str) -> None:
        self._calls.json("DELETE", path, {"propagationPolicy": "Background"})

    def _send(
        self,
        method: str,
        path: str,
        body: Body,
        query: Query,
        content_type: str,
        timeout_s: tuple[float, float],
        *,
        streamed: bool,
    ) -> Response:
        headers = {
            "Accept": "application/json",
            "Content-Type": content_type or "application/json",
        }
        try:
            response: Response = self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout_s,
            )
            if not streamed:
                _ = response.data  # what is cut off is asked again
        except client.ApiException as error:
            raise _as_cluster_error(error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterAway(f"the API server does not answer: {error}") from error
        return response


@contextlib.contextmanager
def _unless_refused(what: str) -> Iterator[None]:
    """Passes over a refusal: what this account may not see is not needed."""
    try:
        yield
    except ClusterAway:
        raise
    except ClusterError as error:
        logger.debug("%s cannot be listed: %s", what, error)


def _own_namespace() -> str:
    """That of the pod, or of the current context."""
    with contextlib.suppress(OSError):
        return _NAMESPACE_FILE.read_text().strip()
    with contextlib.suppress(ConfigException):
        _, current = config.list_kube_config_contexts()
        return str(current["context"].get("namespace") or "default")
    return "default"


def _as_cluster_error(error: client.ApiException) -> ClusterError:
    words = error.reason or ""
    with contextlib.suppress(TypeError, ValueError, KeyError):
        words = json.loads(error.body)["message"]
    headers = error.headers or {}
    return cluster_error(int(error.status or 0), words, headers.get("Retry-After") or "")
