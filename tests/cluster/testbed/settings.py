"""The settings of a test cluster: its folders, names and addresses, all derived from one number.

Two clusters of different numbers share a machine without conflicts.
"""

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")
_HIDDEN_FROM_NODES = ("/run", "/var/lib", "/var/log")  # a node has its own of these


class NoCluster(Exception):
    """This machine cannot run a test cluster; the message has the reason, and what would help."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`devices` is the number of pretend NPUs on each of `nodes`; `run` is removed by `down`, and
    `cache` is kept."""

    number: int
    nodes: int
    devices: int
    run: Path
    cache: Path

    @property
    def name(self) -> str:
        """Return the name of the bridge, and the prefix of every other name on this machine."""
        return f"opmeter{self.number}"

    @property
    def gateway(self) -> str:
        """Return the host's address on the bridge: what pods reach besides each other."""
        return f"10.{200 + self.number}.0.1"

    @property
    def nodes_network(self) -> str:
        return f"10.{200 + self.number}.0.0/24"

    def node_address(self, node: int) -> str:
        return f"10.{200 + self.number}.0.{10 + node}"

    def pods_network(self, node: int) -> str:
        return f"10.{220 + self.number}.{node}.0/24"

    @property
    def services_network(self) -> str:
        return f"10.{96 + self.number}.0.0/24"

    @property
    def api_address(self) -> str:
        """Return the address of the `kubernetes` Service. The API server itself listens there, on
        the bridge: pods reach it without kube-proxy."""
        return f"10.{96 + self.number}.0.1"

    @property
    def dns_address(self) -> str:
        return f"10.{96 + self.number}.0.10"

    @property
    def loopback(self) -> str:
        """Return where the parts of the control plane listen that no pod may reach."""
        return f"127.{200 + self.number}.0.1"

    @property
    def api(self) -> str:
        return f"https://{self.api_address}"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def etcd(self) -> Path:
        """The data of etcd, in memory where the machine has such a folder: where other tests write
        gigabytes, a write to the disk waits for theirs, and requests to the API server expire."""
        return (_IN_MEMORY if _IN_MEMORY.is_dir() else self.run) / f"{self.name}-etcd"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.pki / "admin.kubeconfig"

    def node_folder(self, node: int) -> Path:
        return self.run / f"node{node}"


def from_environment(beside: int = 0) -> Settings:
    """Read OPMETER_CLUSTER (the number), OPMETER_CLUSTER_NODES, _DEVICES and _RUN, and
    OPMETER_CACHE. `beside` is added to the number: concurrent test processes have separate
    clusters."""
    number = _integer("OPMETER_CLUSTER", 1, 1, 9) + beside
    default = Path(tempfile.gettempdir()) / f"opmeter-cluster-{number}"
    run = Path(os.environ.get("OPMETER_CLUSTER_RUN") or default).resolve()
    if any(run.is_relative_to(hidden) for hidden in _HIDDEN_FROM_NODES):
        raise NoCluster(f"OPMETER_CLUSTER_RUN: nodes do not see {run}; choose another folder")
    cache = Path(os.environ.get("OPMETER_CACHE") or Path.home() / ".cache" / "opmeter")
    return Settings(
        number=number,
        nodes=_integer("OPMETER_CLUSTER_NODES", 2, 0, 9),
        devices=_integer("OPMETER_CLUSTER_DEVICES", 8, 0, 64),
        run=run,
        cache=cache,
    )


def process_of_tests() -> int:
    """Return which of several processes of pytest-xdist this is, from 0: each has separate
    clusters."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def _integer(name: str, default: int, least: int, most: int) -> int:
    text = os.environ.get(name) or str(default)
    if not text.isdecimal() or not least <= int(text) <= most:
        raise NoCluster(f"{name}={text}: expected a number from {least} to {most}")
    return int(text)
