"""A complete cluster on this machine: up, down, and its running parts."""

import fcntl
import functools
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.testbed import addons, machine, network, pki, preloaded
from tests.cluster.testbed.addons import Kwok
from tests.cluster.testbed.build import Built, build_servers
from tests.cluster.testbed.controlplane import ControlPlane
from tests.cluster.testbed.kubectl import Kubectl
from tests.cluster.testbed.node import Node
from tests.cluster.testbed.processes import Daemon, wait_until
from tests.cluster.testbed.settings import NoCluster, Settings
from tests.cluster.testbed.store import ObjectStore

_READY_S = 90.0
_CLAIM = "claimed"


@dataclass(frozen=True)
class Testbed:
    """A cluster, running or not; `open` builds its parts."""

    __test__ = False  # pytest would collect a class of this name

    settings: Settings
    built: Built

    @functools.cached_property
    def kubectl(self) -> Kubectl:
        run = self.settings.run
        return Kubectl(self.built.tool("kubectl"), self.settings.kubeconfig, run / "kubectl")

    @functools.cached_property
    def control_plane(self) -> ControlPlane:
        return ControlPlane(self.settings, self.built, self.kubectl)

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        numbers = range(1, self.settings.nodes + 1)
        return tuple(Node(self.settings, self.built, number) for number in numbers)

    @functools.cached_property
    def store(self) -> ObjectStore:
        return ObjectStore(self.settings)

    @functools.cached_property
    def kwok(self) -> Kwok:
        return Kwok(self.settings, self.built, self.kubectl)

    def node(self, name: str) -> Node:
        """Return the node that has this name in the cluster."""
        return next(node for node in self.nodes if node.name == name)

    def up(self) -> None:
        """Start the stopped parts, and wait until every node is ready."""
        with _lock(self.settings):
            _claim(self.settings)
            network.make_bridge(self.settings)
            pki.make(self.settings)
            with ThreadPoolExecutor(max_workers=4) as pool:
                started = [pool.submit(node.start_runtime) for node in self.nodes]
                self.control_plane.start()
                for future in started:
                    future.result()
            for node in self.nodes:
                node.start_kubelet()
            self.store.start()
            self._wait_until_ready()

    def down(self) -> None:
        """End everything, and leave nothing behind but the cache."""
        with _lock(self.settings):
            if not _is_ours(self.settings):
                return
            for daemon in (self.kwok.daemon, self.store.server, *self.control_plane.daemons()):
                daemon.kill()  # their output is not needed
            for node in self.nodes:
                node.remove()
            network.remove_bridge(self.settings)
            _remove(self.settings.etcd)
            _remove(self.settings.run)

    def daemons(self) -> Iterator[Daemon]:
        """Return every process that `up` starts, and kwok's."""
        yield from reversed(self.control_plane.daemons())
        for node in self.nodes:
            yield from (node.namespaces, node.containerd, node.kubelet, node.device_plugin)
        yield self.store.server
        yield self.kwok.daemon

    def is_up(self) -> bool:
        """Return whether everything that `up` starts runs, and the API server replies."""
        expected = [daemon for daemon in self.daemons() if daemon.name != self.kwok.daemon.name]
        return all(daemon.pid is not None for daemon in expected) and self.control_plane.answers()

    def load(self, archive: Path) -> None:
        """Load the images of an archive on every node."""
        with ThreadPoolExecutor(max_workers=len(self.nodes) or 1) as pool:
            list(pool.map(lambda node: node.load(archive), self.nodes))

    def preload(self, archives: Sequence[Path]) -> None:
        """Load the images of archives on nodes that start from now on."""
        preloaded.fill(self.settings.cache, [self.built.pause, *archives])

    def install_jobset(self) -> None:
        """Run JobSet's controller in the cluster."""
        self.load(self.built.jobset)
        addons.install_jobset(self.built, self.kubectl)

    def _wait_until_ready(self) -> None:
        controllers = self.control_plane.controllers
        kubectl = self.kubectl
        has_account = functools.partial(kubectl.succeeds, "get", "serviceaccount", "default")
        wait_until("the default ServiceAccount", has_account, _READY_S, controllers)
        for node in self.nodes:
            known = functools.partial(kubectl.succeeds, "get", "node", node.name)
            wait_until(node.name, known, _READY_S, node.kubelet)
            offers = functools.partial(self._offers_devices, node.name)
            wait_until(f"{node.name}: its devices", offers, _READY_S, node.device_plugin)
        if self.nodes:
            names = [f"node/{node.name}" for node in self.nodes]
            kubectl("wait", "--for=condition=Ready", *names, f"--timeout={_READY_S:.0f}s")

    def _offers_devices(self, node: str) -> bool:
        message = self.kubectl.objects.get("nodes", node)["status"].get("allocatable", {})
        return bool(message.get("huawei.com/Ascend910") == str(self.settings.devices))


def open_testbed(settings: Settings) -> Testbed:
    """Return a testbed of the built parts, building missing ones now. NoCluster if this machine
    cannot."""
    machine.require_root()
    machine.require(machine.CLUSTER_TOOLS)
    return Testbed(settings, build_servers(settings.cache))


@contextmanager
def _lock(settings: Settings) -> Iterator[None]:
    """Allow one `up` or `down` of a cluster at a time."""
    settings.cache.mkdir(parents=True, exist_ok=True)
    with (settings.cache / f"{settings.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _claim(settings: Settings) -> None:
    """Reserve the number; NoCluster if a cluster of another folder has it."""
    if not _is_ours(settings) and network.has_bridge(settings):
        raise NoCluster(
            f"another cluster has the number {settings.number} (or died without `down`: then "
            f"`ip link del {settings.name}`); set OPMETER_CLUSTER=2 ... 9"
        )
    if not _is_ours(settings):
        _remove(settings.etcd)  # of a cluster that died without `down`
    settings.run.mkdir(parents=True, exist_ok=True)
    (settings.run / _CLAIM).touch()


def _is_ours(settings: Settings) -> bool:
    """Return whether the cluster of that number was started from this folder. Names on the machine
    have only the number: those of another folder must not be ended."""
    return (settings.run / _CLAIM).exists()


def _remove(folder: Path) -> None:
    """Remove a folder, but never what is mounted below it."""
    if not folder.exists():
        return
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if held := [m.split()[1] for m in mounts if m.split()[1].startswith(f"{folder}{os.sep}")]:
        raise NoCluster(f"still mounted, so nothing is removed: {', '.join(held)}")
    machine.command(["rm", "-rf", "--one-file-system", folder])
