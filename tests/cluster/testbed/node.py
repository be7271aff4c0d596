"""A node: namespaces with a container runtime, a kubelet and pretend NPUs in them.

A private mount namespace separates the hard-coded paths of those programs: /var/log/pods, which two
kubelets would clean up for each other, the folder of device plugins, and /run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.cluster.testbed import cgroups, network, nodefiles, preloaded
from tests.cluster.testbed.build import Built
from tests.cluster.testbed.machine import command
from tests.cluster.testbed.processes import Daemon, kill_members, wait_until
from tests.cluster.testbed.settings import Settings

_OWN = ("/run", "/var/lib", "/var/log")  # the node's own; settings.py refuses to use that folder
_LOST_WITH_POWER = ("own/run", "containerd/state", "addresses")
_START_S = 60.0


@dataclass(frozen=True)
class Node:
    """Node `number` of a cluster, running or not."""

    settings: Settings
    built: Built
    number: int

    @property
    def name(self) -> str:
        return f"node{self.number}"

    @property
    def folder(self) -> Path:
        return self.settings.node_folder(self.number)

    @property
    def namespaces(self) -> Daemon:
        """Return the process whose network and mount namespaces are the node's."""
        mounts = " && ".join(
            f"mkdir -p {self.folder}/own{path} && mount --bind {self.folder}/own{path} {path}"
            for path in _OWN
        )
        message = f"readlink /proc/self/ns/mnt > {self._mount_namespace}"
        script = f"{mounts} && {message} && exec sleep infinity"
        private = ["unshare", "--net", "--mount", "--propagation", "private"]
        return self._daemon("namespaces", lambda: [*private, "sh", "-c", script])

    @property
    def containerd(self) -> Daemon:
        config = self.folder / "containerd.toml"
        return self._daemon("containerd", lambda: self._inside(["containerd", "-c", str(config)]))

    @property
    def kubelet(self) -> Daemon:
        words = nodefiles.kubelet_command(self.settings, self.built, self.number)
        return self._daemon("kubelet", lambda: self._inside(words))

    @property
    def device_plugin(self) -> Daemon:
        plugin = self.built.tool("npu-device-plugin")
        words: list[str | Path] = [plugin, "--count", str(self.settings.devices)]
        words += ["--directory", self._plugins, "--unhealthy", self._unhealthy]
        return self._daemon("device-plugin", lambda: self._inside(words))

    def start_runtime(self) -> None:
        """Start the namespaces and containerd, and load the pause image."""
        if self.namespaces.pid is None:
            self.remove()  # leftovers of a node that lost power
            cgroups.make(self._group)
            self.folder.mkdir(parents=True, exist_ok=True)
            preloaded.give(self.settings.cache, self.folder)
            nodefiles.write(self.settings, self.number)
            self.namespaces.start()
            wait_until(self.name, self._mount_namespace.exists, _START_S, self.namespaces)
            network.join(self.settings, self.number, self._pid)
        self.containerd.start()
        wait_until(f"{self.name}: containerd", self._answers, _START_S, self.containerd)
        self.load(self.built.pause)

    def start_kubelet(self) -> None:
        """Start the kubelet and the device plugin if they are stopped."""
        self.kubelet.start()
        socket = self.folder / "own/var/lib/kubelet/device-plugins/kubelet.sock"
        wait_until(f"{self.name}: kubelet", socket.exists, _START_S, self.kubelet)
        self.device_plugin.start()

    def load(self, archive: Path) -> None:
        """Import the images of an archive, whose name changes with its content, once."""
        marker = preloaded.marker(self.folder, archive)
        if not marker.exists():
            self.ctr("images", "import", archive)
            marker.parent.mkdir(exist_ok=True)
            marker.touch()

    def ctr(self, *words: str | Path) -> str:
        """Return the output of containerd's client about the containers of pods."""
        return command(["ctr", "-a", self._socket, "-n", "k8s.io", *words])

    def kill_container(self, container: str) -> None:
        """SIGKILL the first process of a container, as the kernel does when memory is short."""
        self.ctr("task", "kill", "-s", "SIGKILL", container)

    def set_unhealthy(self, *devices: int) -> None:
        """Let the device plugin report these devices as unhealthy, and the others as healthy."""
        self._unhealthy.write_text("".join(f"Ascend910-{device}\n" for device in devices))

    def remove(self) -> None:
        """Lose power: everything on the node ends at once, and its links are removed."""
        for daemon in (self.device_plugin, self.kubelet, self.containerd):
            daemon.kill()
        kill_members(partial(self._is_home_of, self._known_mount_namespace()))
        self.namespaces.kill()
        self._mount_namespace.unlink(missing_ok=True)
        network.leave(self.settings, self.number)
        cgroups.remove(self._group)
        for part in _LOST_WITH_POWER:
            command(["rm", "-rf", "--one-file-system", self.folder / part])

    @property
    def _pid(self) -> int:
        pid = self.namespaces.pid
        if pid is None:
            raise RuntimeError(f"{self.name} has no namespaces: {self.namespaces.tail()}")
        return pid

    @property
    def _group(self) -> str:
        return nodefiles.group(self.settings, self.number)

    @property
    def _socket(self) -> Path:
        return nodefiles.runtime_socket(self.settings, self.number)

    @property
    def _mount_namespace(self) -> Path:
        return self.folder / "mount-namespace"

    @property
    def _plugins(self) -> str:
        return "/var/lib/kubelet/device-plugins"

    @property
    def _unhealthy(self) -> Path:
        return self.folder / "unhealthy"

    def _daemon(self, name: str, words: Callable[[], Sequence[str | Path]]) -> Daemon:
        return Daemon(f"{self.name}-{name}", self.settings.run, words)

    def _inside(self, words: Sequence[str | Path]) -> list[str | Path]:
        # Not `ip netns exec`: that mounts /sys again, and hides the control groups.
        return ["nsenter", "-t", str(self._pid), "-m", "-n", "--", *words]

    def _answers(self) -> bool:
        try:
            self.ctr("version")
        except RuntimeError:
            return False
        return True

    def _known_mount_namespace(self) -> str:
        return self._mount_namespace.read_text().strip() if self._mount_namespace.exists() else ""

    def _is_home_of(self, mount_namespace: str, pid: int) -> bool:
        """Return whether a process belongs to the node: to a container, or to its runtime."""
        if cgroups.holds(self._group, pid):
            return True
        try:
            return str(Path(f"/proc/{pid}/ns/mnt").readlink()) == mount_namespace
        except OSError:
            return False
