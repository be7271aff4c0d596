"""The faults of a cluster of our own; `with` ends by repairing it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.cluster.namespace import Namespace
from tests.cluster.testbed.testbed import Testbed


@dataclass(frozen=True)
class Faults:
    """The faults of one cluster."""

    testbed: Testbed

    def kill_container(self, namespace: Namespace, pod: str) -> None:
        """SIGKILL the first process of a pod's first container, without the API server."""
        found = namespace.get("pods", pod)
        identity = found["status"]["containerStatuses"][0]["containerID"]
        node = self.testbed.node(found["spec"]["nodeName"])
        node.kill_container(identity.removeprefix("containerd://"))

    @contextmanager
    def kubelet_stopped(self, node: str) -> Iterator[None]:
        """The cluster loses the node, whose containers continue."""
        lost = self.testbed.node(node)
        lost.kubelet.kill()
        try:
            yield
        finally:
            lost.start_kubelet()
            self._wait_ready(node)

    @contextmanager
    def node_dead(self, node: str) -> Iterator[None]:
        """The node loses power: its containers end without a message."""
        lost = self.testbed.node(node)
        lost.remove()
        try:
            yield
        finally:
            lost.start_runtime()
            lost.start_kubelet()
            self._wait_ready(node)

    @contextmanager
    def drained(self, node: str) -> Iterator[None]:
        """An administrator drains the node."""
        flags = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=180s")
        try:
            self.testbed.kubectl("drain", node, *flags)
            yield
        finally:
            self.testbed.kubectl("uncordon", node)

    @contextmanager
    def unhealthy(self, node: str, *devices: int) -> Iterator[None]:
        """The device plugin reports devices as unhealthy."""
        self.testbed.node(node).set_unhealthy(*devices)
        try:
            yield
        finally:
            self.testbed.node(node).set_unhealthy()

    @contextmanager
    def api_server_down(self) -> Iterator[None]:
        """The API server's address is unreachable."""
        self.testbed.control_plane.api_server.kill()
        try:
            yield
        finally:
            self.testbed.control_plane.start_api_server()

    @contextmanager
    def store_down(self) -> Iterator[None]:
        """The object store's address is unreachable."""
        self.testbed.store.server.kill()
        try:
            yield
        finally:
            self.testbed.store.start()

    def _wait_ready(self, node: str) -> None:
        self.testbed.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=120s")
