"""The memory and the disk that this process can still get: from the machine, and from its container
or volume."""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from collector.codec.errors import BadInput
from collector.host.machine import CGROUPS, MEMBERSHIP, group_folders, read_text

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
