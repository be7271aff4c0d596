"""The adapter to the package kubernetes, and the only module that imports it: single requests.

Objects are plain values: reading typed models takes eight times as long.
"""

import contextlib
import json
from pathlib import Path
from typing import TypeAlias

import urllib3
from kubernetes import client, config
from kubernetes.config.config_exception import ConfigException

from collector.codec.errors import BadInput
from jobs.kube.errors import ClusterAway, ClusterError, cluster_error
from jobs.kube.requests import Body, Query, Response

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

Client: TypeAlias = client.ApiClient


class KubernetesConnection:
    """Sends requests with a client of the package; see `requests.Send`."""

    def __init__(self, api: Client):
        self._api = api

    def send(
        self,
        method: str,
        path: str,
        body: Body,
        query: Query,
        content_type: str,
        timeout_s: tuple[float, float],
        streamed: bool,
    ) -> Response:
        """Send one request, without retries.

        Raises:
            ClusterError: depends on the server's reply."""
        headers = {"Accept": "application/json", "Content-Type": content_type or "application/json"}
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
                _ = response.data  # a truncated reply is requested again
        except client.ApiException as error:
            raise _as_cluster_error(error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterAway(f"the API server does not respond: {error}") from error
        return response


def own_client() -> Client:
    """Return a client with the pod's own token or with KUBECONFIG.

    Raises:
        BadInput: there is neither."""
    try:
        config.load_incluster_config()
    except ConfigException:
        try:
            config.load_kube_config()
        except ConfigException as error:
            raise BadInput(f"no cluster: set KUBECONFIG ({error})") from error
    settings = client.Configuration.get_default_copy()
    settings.retries = False  # retries are decided in one place, `requests.Requests`
    return Client(settings)


def own_namespace() -> str:
    """Return the namespace of the pod, or of the current context."""
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
