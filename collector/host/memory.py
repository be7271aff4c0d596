"""How much memory a process here can still have: of the machine, and of the container around it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collector.host.cgroups import CGROUPS, MEMBERSHIP, group_folders, text_of

_MEMINFO = Path("/proc/meminfo")
# Limit, usage and statistics of a control group, by version; what caches files can be had back.
_FILES = {
    2: ("memory.max", "memory.current", ""),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
}
# How the older groups say that there is none.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The limit of a control group, what is used of it, and how much of that caches files: those
    that nobody has read lately, and those that somebody has."""

    limit: int
    used: int
    inactive_file: int
    active_file: int

    @property
    def left(self) -> int:
        """Bytes that can be had at little cost."""
        return max(0, self.limit - self.used + self.inactive_file)

    @property
    def held(self) -> int:
        """Bytes that the kernel cannot take back: over the limit, it kills for them."""
        return max(0, self.used - self.inactive_file - self.active_file)


def available_memory_bytes(
    meminfo: Path = _MEMINFO, membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS
) -> int | None:
    """Memory that can be had without swapping, and without being killed for it; None where the
    kernel does not tell. A container sees the machine's meminfo, and dies at its own limit."""
    left = [_of_machine(meminfo), *(group.left for group in _limited(membership, cgroups))]
    return min((size for size in left if size is not None), default=None)


def container_memory(membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS) -> GroupMemory | None:
    """The group around this process that is nearest to its limit; None where there is no limit."""
    groups = _limited(membership, cgroups)
    return min(groups, key=lambda group: group.limit - group.held, default=None)


def _of_machine(meminfo: Path) -> int | None:
    match = re.search(r"MemAvailable:\s+(\d+) kB", text_of(meminfo))
    return int(match[1]) * 1024 if match else None


def _limited(membership: Path, cgroups: Path) -> Iterator[GroupMemory]:
    """The groups above this process that have a limit."""
    for version, folder in group_folders("memory", membership, cgroups):
        limit, usage, prefix = _FILES[version]
        allowed, used = text_of(folder / limit).strip(), text_of(folder / usage).strip()
        if allowed.isdigit() and used.isdigit() and int(allowed) < _NO_LIMIT:
            statistics = text_of(folder / "memory.stat")
            cached = (_counted(statistics, f"{prefix}{n}_file") for n in ("inactive", "active"))
            yield GroupMemory(int(allowed), int(used), *cached)


def _counted(statistics: str, name: str) -> int:
    match = re.search(rf"^{name} (\d+)$", statistics, flags=re.MULTILINE)
    return int(match[1]) if match else 0
