"""Drills: faults of single workers. Each ends with a complete, verified database."""

import subprocess

import pytest

from collector.worker.exit_codes import ExitCode
from tests.cluster.drill import GOOD, Drill
from tests.cluster.faults import Faults

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.torch]


# Like the kernel when a container exceeds its limit, and the first process is the largest.
_EAT = """
import pathlib
pathlib.Path("/proc/1/oom_score_adj").write_text("1000")
eaten = []
while True:
    eaten.append(b"x" * (32 << 20))
"""


def name_of(pod: dict) -> str:
    return str(pod["metadata"]["name"])


def ended(drill: Drill, pod: str) -> dict:
    """Return how the container of a pod ended; empty while it runs."""
    status = drill.namespace.get("pods", pod)["status"]["containerStatuses"][0]["state"]
    return dict(status.get("terminated", {}))


def test_killed_worker_pods_are_replaced(drill: Drill, faults: Faults):
    drill.launch()
    for least in range(3):
        drill.wait_committed(least)
        pod = name_of(drill.catch_worker())
        faults.kill_container(drill.namespace, pod)
        drill.wait(f"{pod} has ended", lambda pod=pod: bool(ended(drill, pod)))
        assert ended(drill, pod)["exitCode"] == 137
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def test_pod_that_runs_out_of_memory_is_replaced(drill: Drill):
    drill.launch()
    drill.wait_committed(1)
    pod = name_of(drill.catch_worker())
    with pytest.raises(RuntimeError):  # the pod may end during the request
        drill.namespace("exec", pod, "--", "python3", "-c", _EAT)
    drill.wait(f"{pod} has ended", lambda: bool(ended(drill, pod)))
    assert (ended(drill, pod)["reason"], ended(drill, pod)["exitCode"]) == ("OOMKilled", 137)
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def test_worker_with_a_full_volume_is_replaced(drill: Drill):
    drill.launch()
    drill.wait_committed(1)
    pod = drill.catch_worker()
    fill_work_volume(drill, pod)
    drill.wait("it has ended", lambda: bool(ended(drill, name_of(pod))))
    assert ended(drill, name_of(pod))["exitCode"] == ExitCode.SPACE
    drill.finish()
    assert set(drill.outcomes().values()) <= GOOD
    assert len(drill.waves()) == 1


def fill_work_volume(drill: Drill, pod: dict) -> None:
    """Fill the volume at /work of a running pod."""
    container = pod["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
    node = drill.cluster.own.node(pod["spec"]["nodeName"])
    tasks = [line.split() for line in node.ctr("task", "ls").splitlines()]
    pid = next(words[1] for words in tasks if words[0] == container)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=1777", "tmpfs", "/work"]
    subprocess.run(["nsenter", "-t", pid, "-m", "--", *mount], check=True)
