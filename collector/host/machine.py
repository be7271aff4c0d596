"""The processor of this machine, and the control groups around this process."""

import os
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

# The control groups of this process, which have a container's limits.

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def group_folders(
    controller: str, membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS
) -> Iterator[tuple[int, Path]]:
    """Yield the folders of this process's groups for a controller (`cpu`, `memory`), from its own
    outwards, each with the version of its files: 2, or the older 1."""
    for line in read_text(membership).splitlines():
        number, controllers, group = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            yield from ((2, folder) for folder in _branch(cgroups, group))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _branch(cgroups / controller, group))


def _branch(root: Path, group: str) -> Iterator[Path]:
    # A container mounts its own group as the root, where the group's name has no meaning.
    path = root / group.strip("/")
    return (folder for folder in (path, *path.parents) if folder.is_relative_to(root))


def read_text(path: Path) -> str:
    """Return the text of a file; empty if the file is missing."""
    try:
        return path.read_text("utf-8", errors="replace")
    except OSError:
        return ""


# The processor of this machine, read from the kernel's own files.

# The instruction sets that select another kernel in torch or its libraries.
_FLAGS_THAT_MATTER = frozenset(
    {
        *("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512vl", "avx512_vnni"),
        *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2"),
    }
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """A processor as a device: all cores this process may use, within its container's quota."""

    model: str
    threads: int
    flags: tuple[str, ...]

    @property
    def device(self) -> str:
        """Return `CPU_{model}_{threads}t`, in characters that a folder name may have."""
        name = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*", " ", self.model, flags=re.IGNORECASE)
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "unknown"
        return f"CPU_{name}_{self.threads}t"


def this_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> Cpu:
    """Return the processor of this machine, without fields that the kernel does not report."""
    lines = (line.partition(":") for line in read_text(cpuinfo).split("\n\n", 1)[0].splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    parts = (platform.machine(), fields.get("CPU implementer"), fields.get("CPU part"))
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return Cpu(
        model=fields.get("model name") or "-".join(filter(None, parts)),
        threads=usable_threads(),
        flags=tuple(sorted(_FLAGS_THAT_MATTER.intersection(flags))),
    )


def usable_threads(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> int:
    """Return how many cores this process may use at once and all the time: a container may see
    every core of its machine, and have a quota of one of them."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # Only whole cores: with one more thread, the quota would interrupt every operator.
    whole = (int(quota) for quota in _quotas(membership, cgroups))
    return max(1, min([cores, *whole]))


def _quotas(membership: Path, cgroups: Path) -> Iterator[float]:
    """Yield the quota, in cores, of each limited control group of this process."""
    for version, folder in group_folders("cpu", membership, cgroups):
        if version == 2:
            allowed, _, period = read_text(folder / "cpu.max").strip().partition(" ")
        else:
            allowed = read_text(folder / "cpu.cfs_quota_us").strip()
            period = read_text(folder / "cpu.cfs_period_us").strip()
        if allowed.isdigit() and period.isdigit() and int(period):
            yield int(allowed) / int(period)


def this_node(environment: Mapping[str, str] = os.environ) -> str:
    """Return the machine's name. In a pod, the hostname is the pod's, so Kubernetes gives the name
    of the node in NODE_NAME."""
    return environment.get("NODE_NAME") or platform.node()
