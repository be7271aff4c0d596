"""`down` leaves nothing behind, even after killed pods and a killed command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.namespace import Namespace
from tests.cluster.pods import pod
from tests.cluster.testbed import network
from tests.cluster.testbed.images import PROJECT
from tests.cluster.testbed.settings import NoCluster, Settings, process_of_tests
from tests.cluster.testbed.testbed import Testbed, open_testbed

_NUMBER = 9 - process_of_tests()  # unlike any that a user would choose

pytestmark = [pytest.mark.cluster, pytest.mark.slow]


def _traces() -> set[str]:
    """Return what a cluster would leave on this machine: everything with its name or folder."""
    name, folder = f"opmeter{_NUMBER}", f"opmeter-cluster-{_NUMBER}"
    found = {f"link {link}" for link in os.listdir("/sys/class/net") if link.startswith(name)}
    found |= {f"group {p}" for p in Path("/sys/fs/cgroup").glob(f"*/{name}*")}
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    found |= {f"mount {line}" for line in mounts if folder in line}
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        words = _read(process)
        if folder in words or "opmeter-leaves-nothing" in words:
            found.add(f"process {words}")
    return found


def _read(file: Path) -> str:
    try:
        return file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""  # it has ended


def _network_homes(testbed: Testbed) -> list[Path]:
    """Return where the network namespaces of pods are mounted: in other places they would
    remain."""
    node = testbed.nodes[0]
    containers = node.ctr("containers", "list", "-q").split()
    details = [json.loads(node.ctr("containers", "info", name)) for name in containers]
    spaces = [space for one in details for space in one["Spec"]["linux"]["namespaces"]]
    homes = [Path(space["path"]) for space in spaces if space["type"] == "network"]
    named = [home for home in homes if not home.is_relative_to("/proc")]
    assert len(named) >= len(containers) / 2, "every pod has a network"
    return named


@pytest.fixture
def another(cluster: Cluster, tmp_path: Path) -> Iterator[Testbed]:
    """A cluster of one node next to that of the other tests; made stopped."""
    settings = cluster.own.settings
    run = settings.run.with_name(f"opmeter-cluster-{_NUMBER}")
    made = open_testbed(Settings(_NUMBER, nodes=1, devices=2, run=run, cache=settings.cache))
    yield made
    made.down()


def test_cluster_leaves_nothing_after_killed_and_running_pods(another: Testbed):
    before = _traces()
    assert not any(f"opmeter{_NUMBER}" in trace for trace in before)
    another.up()
    names = Namespace("default", another.kubectl)
    for name in ("killed", "left"):
        made = pod(name, "local/pause:1", ["/pause", "opmeter-leaves-nothing"])
        made["spec"]["securityContext"]["runAsUser"] = 1000
        names.create(made)
        names.wait_running(name)
    assert all(home.is_relative_to(another.settings.run) for home in _network_homes(another))
    names("delete", "pod", "killed", "--grace-period=0", "--force")
    assert _traces() > before
    another.down()
    assert _traces() == before
    assert not another.settings.run.exists()


def test_link_may_disappear_with_its_namespace_during_removal(tmp_path: Path):
    settings = Settings(_NUMBER, nodes=9, devices=2, run=tmp_path, cache=tmp_path)
    link = f"{settings.name}n9"
    for _ in range(40):
        with subprocess.Popen(["unshare", "--net", "sleep", "60"]) as node:
            network_of = f"/proc/{node.pid}/ns/net"
            while os.readlink(network_of) == os.readlink("/proc/self/ns/net"):
                time.sleep(0.001)
            made = ["ip", "link", "add", link, "type", "veth", "peer", "eth0"]
            subprocess.run([*made, "netns", str(node.pid)], check=True)
            node.kill()
        network.leave(settings, 9)
        assert link not in os.listdir("/sys/class/net")


def test_next_command_continues_a_killed_one(another: Testbed):
    environment = {
        **os.environ,
        "OPMETER_CLUSTER": str(_NUMBER),
        "OPMETER_CLUSTER_NODES": "1",
        "OPMETER_CLUSTER_DEVICES": "2",
    }
    command = [sys.executable, "-m", "tests.cluster.testbed", "up"]
    with subprocess.Popen(command, cwd=PROJECT, env=environment) as up:
        time.sleep(4)
        up.send_signal(signal.SIGKILL)
    another.up()
    assert another.is_up()


def test_two_clusters_of_one_number_are_not_mixed_up(cluster: Cluster, tmp_path: Path):
    settings = replace(cluster.own.settings, run=tmp_path)
    second = Testbed(settings, cluster.own.built)
    with pytest.raises(NoCluster, match=f"another cluster has the number {settings.number} "):
        second.up()
    second.down()
    assert cluster.own.is_up()
