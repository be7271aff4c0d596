"""The nodes of a simulated cluster: what their kubelets start, end and report, and what happens to
the pods of a lost one."""

from collections.abc import Callable

from tests.attack.simulation.api import ApiServer, Object
from tests.attack.simulation.device import Node
from tests.attack.simulation.jobcontroller import has_ended
from tests.attack.simulation.process import Process

_GRACE_S = 120.0
_SILENT_S, _EVICTED_S = 40.0, 300.0

# A pod and its node -> a process, and the function that returns its exit code and last message.
Start = Callable[[Object, Node], tuple[Process, Callable[[], tuple[int, str]]]]


class Kubelet:
    """One node. While it is down its pods are not reported; `start` begins a container."""

    def __init__(self, server: ApiServer, node: Node, start: Start, cpu: int):
        self.node, self.is_up = node, True
        self._server, self._start = server, start
        self._begun: set[str] = set()  # uids of pods
        self._running: dict[str, tuple[str, Process]] = {}  # uid -> name, process
        server.put(
            "nodes",
            {
                "metadata": {"name": node.name, "labels": {}},
                "spec": {},
                "status": {"allocatable": {"cpu": str(cpu)}, "conditions": [_ready("True")]},
            },
        )
        server.changed.append(self._wake)

    def lose(self, *, power: bool) -> None:
        """Lose the node; without power its containers end too."""
        self.is_up = False
        if power:
            for _, process in self._running.values():
                process.kill()
        self._server.world.after(_SILENT_S, self._notice)

    def come_back(self) -> None:
        if self.is_up:
            return
        self.is_up = True
        self._server.change("nodes", self.node.name, status={"conditions": [_ready("True")]})
        self._server.world.after(1.0, lambda: self._wake("pods"))  # requests in the meantime
        for name, pod in list(self._server.kinds["pods"].items()):
            if pod["spec"].get("nodeName") == self.node.name and not has_ended(pod):
                self._server.world.after(1.0, lambda name=name: self._reconcile(name))

    def drain(self) -> None:
        """Accept no pods, and end the existing ones."""
        self._server.change("nodes", self.node.name, spec={"unschedulable": True})
        for name, pod in list(self._server.kinds["pods"].items()):
            if pod["spec"].get("nodeName") == self.node.name:
                self._server.delete_pod(name, disrupted=True)

    def uncordon(self) -> None:
        self._server.change("nodes", self.node.name, spec={"unschedulable": False})

    def _notice(self) -> None:
        """The cluster misses the heartbeat of the node, and later gives its pods up."""
        if not self.is_up:
            lost = {"conditions": [_ready("Unknown")]}
            self._server.change("nodes", self.node.name, status=lost)
            self._server.world.after(_EVICTED_S, self._evict)

    def _evict(self) -> None:
        if self.is_up:
            return
        for name, pod in list(self._server.kinds["pods"].items()):
            if pod["spec"].get("nodeName") == self.node.name:
                self._server.delete_pod(name, disrupted=True)

    def _wake(self, kind: str) -> None:
        if kind != "pods" or not self.is_up:
            return
        for name, pod in self._server.kinds["pods"].items():
            if pod["spec"].get("nodeName") != self.node.name or has_ended(pod):
                continue
            uid, world = pod["metadata"]["uid"], self._server.world
            if uid not in self._begun:
                self._begun.add(uid)
                world.after(world.chance.uniform(0.5, 15.0), lambda name=name: self._begin(name))
            elif "deletionTimestamp" in pod["metadata"]:
                world.after(0.1, lambda name=name: self._reconcile(name))

    def _begin(self, name: str) -> None:
        pod = self._server.kinds["pods"].get(name)
        if pod is None or not self.is_up or has_ended(pod):
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._report_end(name, 137, "")
            return
        uid = pod["metadata"]["uid"]
        process, result = self._start(pod, self.node)
        self._running[uid] = (name, process)
        process.at_end = lambda: self._server.world.after(
            self._server.world.chance.uniform(0.1, 2.0), lambda: self._over(uid, result)
        )
        running = {"name": "worker", "state": {"running": {}}}
        self._server.change(
            "pods", name, status={"phase": "Running", "containerStatuses": [running]}
        )

    def _reconcile(self, name: str) -> None:
        """End all pods that should end, and report those that ended while the node was down."""
        pod = self._server.kinds["pods"].get(name)
        if pod is None or not self.is_up or has_ended(pod):
            return
        held = self._running.get(pod["metadata"]["uid"])
        if held is None:
            if pod["metadata"]["uid"] in self._begun and pod["status"]["phase"] == "Pending":
                if "deletionTimestamp" in pod["metadata"]:
                    self._report_end(name, 137, "")
                else:
                    self._begun.discard(pod["metadata"]["uid"])
                    self._wake("pods")
            return
        process = held[1]
        if process.over.is_set():
            self._over(pod["metadata"]["uid"], lambda: (137, ""))
        elif "deletionTimestamp" in pod["metadata"] and not process.stop.is_set():
            process.stop.set()
            self._server.world.after(_GRACE_S, process.kill)

    def _over(self, uid: str, result: Callable[[], tuple[int, str]]) -> None:
        if not self.is_up or uid not in self._running:
            return
        name, _ = self._running.pop(uid)
        self._report_end(name, *result())

    def _report_end(self, name: str, code: int, words: str) -> None:
        """Return how a container ended."""
        ended: Object = {"exitCode": code, "reason": "Error" if code else "Completed"}
        ended |= {"message": words} if words else {}
        status = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"name": "worker", "state": {"terminated": ended}}],
        }
        self._server.change("pods", name, status=status)


def _ready(status: str) -> Object:
    return {"type": "Ready", "status": status}
