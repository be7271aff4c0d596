"""The one door to Kubernetes, and the only module that imports its client.

Objects pass as plain values: typed models take eight times as long to read. Every request has a
timeout and takes a token from a budget, so that an API server never suffers from us; what may be
asked again is, since names are deterministic and patches are applied, not merged.
"""

import contextlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from collector.canonical import short_hash
from collector.errors import BadInput
from jobs.budget import Budget
from jobs.cluster_errors import ClusterAway, ClusterError, ObjectConflict, ObjectMissing
from jobs.podspec import Manifest, is_same

logger = logging.getLogger(__name__)

_TIMEOUT_S = (5.0, 30.0)
_TRIES = 5
_LONGEST_PAUSE_S = 10.0
_PAGE = 500
_MANAGER = "opmeter"
_JOBS = "/apis/batch/v1/namespaces/{namespace}/jobs"
_CORE = "/api/v1/namespaces/{namespace}/{kind}"
_LEASES = "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_STRICT = {"fieldValidation": "Strict", "fieldManager": _MANAGER}
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Cluster:
    """The objects of one namespace, and the nodes. Threads may share it."""

    def __init__(self, api: client.ApiClient, namespace: str, budget: Budget | None = None):
        self.namespace = namespace
        self.requests = 0
        self._api = api
        self._budget = budget or Budget()

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
        return cls(client.ApiClient(), namespace or _own_namespace())

    def version(self) -> str:
        return str(self._call("GET", "/version")["gitVersion"])

    def has_api(self, group: str) -> bool:
        """Whether the cluster serves a group, as kueue.x-k8s.io."""
        try:
            self._call("GET", f"/apis/{group}")
        except ObjectMissing:
            return False
        return True

    def jobs(self, selector: str) -> list[Manifest]:
        return self._list(_JOBS.format(namespace=self.namespace), selector)

    def pods(self, selector: str) -> list[Manifest]:
        return self._list(self._core("pods"), selector)

    def config_maps(self, selector: str) -> list[Manifest]:
        return self._list(self._core("configmaps"), selector)

    def nodes(self, selector: str = "") -> list[Manifest]:
        """Nodes that match; none where this account may not list them."""
        try:
            return self._list("/api/v1/nodes", selector)
        except ClusterAway:
            raise
        except ClusterError as error:
            logger.warning("nodes cannot be listed: %s", error)
            return []

    def events_of(self, name: str) -> list[Manifest]:
        """What the cluster says of one object."""
        query = {"fieldSelector": f"involvedObject.name={name}"}
        answer = self._call("GET", self._core("events"), query=query)
        return list(answer.get("items") or [])

    def log(self, pod: str) -> str:
        """What a pod printed."""
        return self._call_text("GET", f"{self._core('pods')}/{quote(pod)}/log")

    def create_or_adopt(self, job: Manifest) -> bool:
        """Create a Job; one of its name that was made from the same manifest is ours. Says whether
        it is new. Raises ObjectConflict for another."""
        path = _JOBS.format(namespace=self.namespace)
        name = job["metadata"]["name"]
        try:
            self._call("POST", path, job, query=_STRICT)
        except ObjectConflict as error:
            live = self._call("GET", f"{path}/{name}")
            if not is_same(job, live):
                raise ObjectConflict(f"Job {name} exists and is another one") from error
            return False
        return True

    def dry_run(self, job: Manifest) -> Manifest:
        """What the server would make of a Job: a field it drops is a feature it lacks."""
        path = _JOBS.format(namespace=self.namespace)
        answer: Manifest = self._call("POST", path, job, query=_STRICT | {"dryRun": "All"})
        return answer

    def patch_job(self, name: str, spec: Mapping[str, Any]) -> None:
        """Apply what changes while a Job lives: parallelism, suspend."""
        body = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": dict(spec),
        }
        path = f"{_JOBS.format(namespace=self.namespace)}/{name}"
        self._call("PATCH", path, body, query=_STRICT | {"force": "true"})

    def delete_job(self, name: str) -> None:
        """Delete a Job and, in the background, its pods; silent where it is gone."""
        body = {"propagationPolicy": "Background"}
        try:
            self._call("DELETE", f"{_JOBS.format(namespace=self.namespace)}/{name}", body)
        except ObjectMissing:
            return

    def apply_config_map(self, manifest: Manifest) -> Manifest:
        """Create or change a ConfigMap; what others say of it stays."""
        name = manifest["metadata"]["name"]
        path = f"{self._core('configmaps')}/{name}"
        answer: Manifest = self._call("PATCH", path, manifest, query=_STRICT | {"force": "true"})
        return answer

    def annotate_config_map(self, name: str, notes: Mapping[str, str | None]) -> None:
        """Change annotations of a ConfigMap; None takes one away."""
        body = {"metadata": {"annotations": dict(notes)}}
        self._call("PATCH", f"{self._core('configmaps')}/{name}", body, content_type=_MERGE)

    def delete_config_map(self, name: str) -> None:
        """Delete a ConfigMap, and with it everything that it owns."""
        body = {"propagationPolicy": "Background"}
        self._call("DELETE", f"{self._core('configmaps')}/{name}", body)

    def announce(self, owner: Manifest, reason: str, message: str, *, warning: bool) -> None:
        """An Event on a campaign's ConfigMap. Its name tells its content: it is there once."""
        metadata = owner["metadata"]
        name = f"{metadata['name'][:200]}.{reason.lower()}.{_short(message)}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "name": metadata["name"],
                "namespace": self.namespace,
                "uid": metadata["uid"],
            },
            "reason": reason,
            "message": message[:1000],
            "type": "Warning" if warning else "Normal",
            "source": {"component": _MANAGER},
            "count": 1,
        }
        try:
            self._call("POST", self._core("events"), event)
        except ObjectConflict:
            return

    def lease(self, name: str) -> Manifest | None:
        try:
            answer: Manifest = self._call("GET", f"{self._leases()}/{name}")
        except ObjectMissing:
            return None
        return answer

    def create_lease(self, lease: Manifest) -> Manifest:
        answer: Manifest = self._call("POST", self._leases(), lease)
        return answer

    def replace_lease(self, lease: Manifest) -> Manifest:
        """Raises ObjectConflict where somebody else was faster."""
        answer: Manifest = self._call("PUT", f"{self._leases()}/{lease['metadata']['name']}", lease)
        return answer

    def may(self, verb: str, group: str, resource: str) -> bool:
        """Whether this account may do that in the namespace."""
        attributes = {
            "namespace": self.namespace,
            "verb": verb,
            "group": group,
            "resource": resource,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        return bool(self._call("POST", _REVIEWS, review)["status"]["allowed"])

    def watch_jobs(self, selector: str, seconds: int) -> Iterator[str]:
        """The names of Jobs that change, for about so long; ends early where the watch breaks, so
        that the caller looks at everything anew."""
        path = _JOBS.format(namespace=self.namespace)
        query = {"watch": "true", "timeoutSeconds": str(seconds), "labelSelector": selector}
        self._budget.take()
        try:
            answer = self._send("GET", path, None, query, (5.0, seconds + 10.0))
            for line in _lines(answer):
                event = json.loads(line)
                if event.get("type") in ("ERROR", "BOOKMARK"):
                    return
                yield str(event["object"]["metadata"]["name"])
        except (ClusterError, urllib3.exceptions.HTTPError, ValueError) as error:
            logger.info("the watch of Jobs ended: %s", error)

    def _core(self, kind: str) -> str:
        return _CORE.format(namespace=self.namespace, kind=kind)

    def _leases(self) -> str:
        return _LEASES.format(namespace=self.namespace)

    def _list(self, path: str, selector: str) -> list[Manifest]:
        items: list[Manifest] = []
        token = ""
        while True:
            query = {"limit": str(_PAGE), "labelSelector": selector}
            answer = self._call("GET", path, query=query | ({"continue": token} if token else {}))
            items += answer.get("items") or []
            token = answer["metadata"].get("continue") or ""
            if not token:
                return items

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> Any:
        text = self._call_text(method, path, body, query=query, content_type=content_type)
        return json.loads(text) if text else {}

    def _call_text(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content_type: str = "",
    ) -> str:
        """One request, asked again while the server is away or overloaded."""
        for attempt in range(1, _TRIES + 1):
            self._budget.take()
            try:
                answer = self._send(
                    method, path, body, query or {}, _TIMEOUT_S, content_type=content_type
                )
                return str(answer.data.decode())
            except ClusterAway as error:
                if attempt == _TRIES:
                    raise
                logger.info("%s %s: %s; asked again", method, path, error)
                time.sleep(min(_LONGEST_PAUSE_S, 0.5 * 2**attempt))
        raise AssertionError("unreachable")

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        timeout_s: tuple[float, float],
        *,
        content_type: str = "",
    ) -> Any:
        self.requests += 1
        headers = {
            "Accept": "application/json",
            "Content-Type": content_type or (_APPLY if method == "PATCH" else "application/json"),
        }
        try:
            return self._api.call_api(
                path,
                method,
                query_params=list(query.items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _request_timeout=timeout_s,
            )
        except client.ApiException as error:
            raise _cluster_error(error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterAway(f"the API server does not answer: {error}") from error


def _lines(answer: Any) -> Iterator[str]:
    """The lines of a streamed answer."""
    rest = b""
    for chunk in answer.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line.decode() for line in lines if line.strip())


def _own_namespace() -> str:
    """That of the pod, or of the current context."""
    with contextlib.suppress(OSError):
        return _NAMESPACE_FILE.read_text().strip()
    with contextlib.suppress(ConfigException):
        _, current = config.list_kube_config_contexts()
        return str(current["context"].get("namespace") or "default")
    return "default"


def _short(text: str) -> str:
    return short_hash(text, 10)


def _cluster_error(error: client.ApiException) -> ClusterError:
    words = error.reason or ""
    with contextlib.suppress(TypeError, ValueError, KeyError):
        words = json.loads(error.body)["message"]
    message = f"{error.status}: {words}"
    status = int(error.status or 0)
    if status == HTTPStatus.NOT_FOUND:
        return ObjectMissing(message)
    if status == HTTPStatus.CONFLICT:
        return ObjectConflict(message)
    if status in (0, HTTPStatus.TOO_MANY_REQUESTS) or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return ClusterAway(message)
    return ClusterError(message)
