"""The requirements of a test cluster on the machine, and short commands that must succeed."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.testbed.settings import NoCluster

# tool -> Debian's package; the plugins of CNI have no command of their own.
CLUSTER_TOOLS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}
IMAGE_TOOLS = {"podman": "podman", "runc": "runc", "mmdebstrap": "mmdebstrap"}
_CPUSET = Path("/sys/fs/cgroup/cpuset")


# Of each attempt to make a Debian, half a minute of an idle machine.
_DEBIAN_LIMITS_S = (300.0, 600.0, 900.0)


class CommandTimeout(RuntimeError):
    """A command did not end within its limit."""


def require_root() -> None:
    """NoCluster if this process cannot make namespaces and cgroups."""
    if os.geteuid() != 0:
        raise NoCluster("starting a cluster needs root; or set KUBECONFIG to another cluster")
    if not _CPUSET.is_dir():
        raise NoCluster(
            f"no {_CPUSET}: nodes need cgroups of version 1; set KUBECONFIG to another cluster"
        )


def require(tools: Mapping[str, str]) -> None:
    """Install what is missing on Debian; NoCluster if it is not available."""
    missing = sorted({package for tool, package in tools.items() if shutil.which(tool) is None})
    if not missing:
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NoCluster(f"not installed: {', '.join(missing)} (Debian's names)")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    command(["apt-get", "update", "-qq"], environment=quiet)
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    command(install, environment=quiet)


def command(
    words: Sequence[str | Path],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    text: str | None = None,
    limit_s: float = 600.0,
) -> str:
    """Run a command to its end; return its output. RuntimeError with its output if it fails, or
    with the limit if it does not end within it, and then its processes are ended."""
    with subprocess.Popen(
        [str(word) for word in words],
        env={**os.environ, **(environment or {})},
        cwd=folder,
        stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            output, errors = process.communicate(text, timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            _, errors = process.communicate()
            shown, last = " ".join(map(str, words)), errors.strip()[-1000:]
            raise CommandTimeout(f"{shown}\nno end within {limit_s:.0f} s: {last}") from error
    if process.returncode:
        message = (errors or output).strip()[-3000:]
        raise RuntimeError(f"{' '.join(map(str, words))}\nexit {process.returncode}: {message}")
    return output


def make_debian(suite: str, target: Path, options: Sequence[str]) -> None:
    """Write a Debian into an archive or a folder. A mirror may accept a connection and send
    nothing: several attempts, each with more time."""
    downloads = ('--aptopt=Acquire::Retries "5"', '--aptopt=Acquire::http::Timeout "30"')
    words = ("mmdebstrap", "--dpkgopt=force-unsafe-io", *downloads, *options, suite, target)
    *limits_s, last_s = _DEBIAN_LIMITS_S
    for limit_s in limits_s:
        try:
            command(words, limit_s=limit_s)
            return
        except CommandTimeout:
            shutil.rmtree(target, ignore_errors=True)
    command(words, limit_s=last_s)
