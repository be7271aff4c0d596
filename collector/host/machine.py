"""Processor, memory and disk of this machine, and the limits of the container around it."""

import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import BadInput

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


# The memory that this process can still get: from the machine, and from its container.

_MEMINFO = Path("/proc/meminfo")
# Limit, usage and statistics of a control group, by version; file caches can be reclaimed.
_FILES = {
    2: ("memory.max", "memory.current", ""),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
# Groups of version 1 report a larger number if they have no limit.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The limit and the usage of a control group, and the part of it that caches files, not used
    recently (inactive) and used recently (active)."""

    limit: int
    used: int
    inactive_file: int
    active_file: int

    @property
    def left(self) -> int:
        """Return the bytes that are available at little cost."""
        return max(0, self.limit - self.used + self.inactive_file)

    @property
    def held(self) -> int:
        """Return the bytes that the kernel cannot reclaim: over the limit, it kills a process."""
        return max(0, self.used - self.inactive_file - self.active_file)


def available_memory_bytes(
    meminfo: Path = _MEMINFO, membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS
) -> int | None:
    """Return the memory that is available without swapping, and without being killed; None if the
    kernel does not report it. A container sees the machine's meminfo, but its own limit kills
    it."""
    of_machine = re.findall(r"MemAvailable:\s+(\d+) kB", read_text(meminfo))[:1]
    of_groups = (group.left for group in _limited(membership, cgroups))
    return min((*(int(kib) * 1024 for kib in of_machine), *of_groups), default=None)


def container_memory(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> GroupMemory | None:
    """Return the group of this process that is nearest to its limit; None if there is no limit."""
    groups = _limited(membership, cgroups)
    return min(groups, key=lambda group: group.limit - group.held, default=None)


def _limited(membership: Path, cgroups: Path) -> Iterator[GroupMemory]:
    """Yield the groups of this process that have a limit."""
    for version, folder in group_folders("memory", membership, cgroups):
        limit, usage, prefix = _FILES[version]
        allowed, used = read_text(folder / limit).strip(), read_text(folder / usage).strip()
        if allowed.isdigit() and used.isdigit() and int(allowed) < _NO_LIMIT:
            statistics = dict(re.findall(r"(?m)^(\w+) (\d+)$", read_text(folder / "memory.stat")))
            cached = (statistics.get(f"{prefix}{n}_file", 0) for n in ("inactive", "active"))
            yield GroupMemory(int(allowed), int(used), *map(int, cached))


# The free space of a folder: on its disk, and in a pod's volume with its own limit.
#
# Kubernetes measures a volume on the node's disk from time to time, and evicts a pod that is above
# its limit; the disk does not show that limit, OPMETER_VOLUME_BYTES does.

_LIMIT = "OPMETER_VOLUME_BYTES"
_BLOCK = 512  # the unit of st_blocks in every file system


def free_bytes(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes that can still be written below a folder. Raises BadInput for an invalid
    limit."""
    free = shutil.disk_usage(folder).free
    limit = environment.get(_LIMIT, "").strip()
    if not limit:
        return free
    if not limit.isdigit():
        raise BadInput(f"{_LIMIT}: expected a number of bytes, got {limit!r}")
    return min(free, max(0, int(limit) - used_bytes(volume_of(folder))))


def volume_of(folder: Path) -> Path:
    """Return the volume of a folder: the nearest mount above it, or the folder itself if that mount
    is the root."""
    found = folder.resolve()
    for place in (found, *found.parents):
        if os.path.ismount(place) and place != Path(place.anchor):
            return place
    return found


def used_bytes(folder: Path) -> int:
    """Return the bytes that the files below a folder take on disk; files that disappear in the
    meantime are skipped."""
    blocks: dict[tuple[int, int], int] = {}  # files with several names count once
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                status = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            blocks[status.st_dev, status.st_ino] = status.st_blocks
    return sum(blocks.values()) * _BLOCK


def this_node(environment: Mapping[str, str] = os.environ) -> str:
    """Return the machine's name. In a pod, the hostname is the pod's, so Kubernetes gives the name
    of the node in NODE_NAME."""
    return environment.get("NODE_NAME") or platform.node()
