"""A Kubernetes cluster on this machine, from Go modules and Debian packages, for tests.

    python -m tests.cluster.testbed build    servers, the project's images and Kueue (minutes, once)
    python -m tests.cluster.testbed up       build, start, and print how to reach it
    python -m tests.cluster.testbed status   what runs, with its memory
    python -m tests.cluster.testbed down     end everything and leave nothing behind

Its number (OPMETER_CLUSTER, 1 to 9) distinguishes clusters on one machine.
"""

import argparse
import sys
import time
from pathlib import Path

from tests.cluster.testbed.images import COLLECTORS, build_archives, podman_with
from tests.cluster.testbed.kueue import build_kueue
from tests.cluster.testbed.processes import Daemon
from tests.cluster.testbed.settings import NoCluster, from_environment
from tests.cluster.testbed.testbed import Testbed, open_testbed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("build", "up", "down", "status"))
    verb = parser.parse_args().verb
    try:
        _VERBS[verb](open_testbed(from_environment()))
    except NoCluster as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _build(testbed: Testbed) -> None:
    print(testbed.built.folder)
    cache = testbed.settings.cache
    archives = build_archives(cache)
    testbed.preload(archives)
    for archive in archives:
        print(archive)
    for target in COLLECTORS.values():
        with podman_with(cache, target) as podman:
            print(podman.image)
    try:
        print(build_kueue(cache).folder)
    except NoCluster as error:
        print(f"{error}; the cluster starts without it", file=sys.stderr)


def _up(testbed: Testbed) -> None:
    started = time.monotonic()
    testbed.up()
    print(f"ready in {time.monotonic() - started:.0f} s; store at {testbed.store.endpoint}")
    print(f"export KUBECONFIG={testbed.settings.kubeconfig}")
    print(f"export PATH={testbed.built.folder}/bin:$PATH")


def _down(testbed: Testbed) -> None:
    testbed.down()


def _status(testbed: Testbed) -> None:
    for daemon in testbed.daemons():
        print(f"{daemon.name:26} {_state(daemon)}")


def _state(daemon: Daemon) -> str:
    pid = daemon.pid
    if pid is None:
        return "-"
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    resident = next((line.split()[1] for line in lines if line.startswith("VmRSS")), "0")
    return f"{pid:>8}  {int(resident) // 1024} MiB"


_VERBS = {"build": _build, "up": _up, "down": _down, "status": _status}

if __name__ == "__main__":
    sys.exit(main())
