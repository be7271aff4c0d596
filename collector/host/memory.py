"""How much memory a process here can still have: of the machine, and of the container around it."""

import re
from collections.abc import Iterator
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_MEMBERSHIP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# Limit, usage and statistics of a control group, by version; what caches files can be had back.
_VERSION_2 = ("memory.max", "memory.current", "inactive_file")
_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
# How the older groups say that there is none.
_NO_LIMIT = 1 << 60


def available_memory_bytes(
    meminfo: Path = _MEMINFO, membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS
) -> int | None:
    """Memory that can be had without swapping, and without being killed for it; None where the
    kernel does not tell. A container sees the machine's meminfo, and dies at its own limit."""
    left = [_of_machine(meminfo), *_of_groups(membership, cgroups)]
    return min((size for size in left if size is not None), default=None)


def _of_machine(meminfo: Path) -> int | None:
    match = re.search(r"MemAvailable:\s+(\d+) kB", _text(meminfo))
    return int(match[1]) * 1024 if match else None


def _of_groups(membership: Path, cgroups: Path) -> Iterator[int]:
    """What each group above this process leaves, where it has a limit."""
    for line in _text(membership).splitlines():
        number, controllers, group = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            yield from _of_branch(cgroups, group, _VERSION_2)
        elif "memory" in controllers.split(","):
            yield from _of_branch(cgroups / "memory", group, _VERSION_1)


def _of_branch(root: Path, group: str, names: tuple[str, str, str]) -> Iterator[int]:
    # Inside a container its own group is mounted as the root, and the name means nothing.
    path = root / group.strip("/")
    for folder in (path, *path.parents):
        if folder.is_relative_to(root) and (left := _left(folder, names)) is not None:
            yield left


def _left(folder: Path, names: tuple[str, str, str]) -> int | None:
    limit, usage, cached = names
    allowed, used = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not allowed.isdigit() or not used.isdigit() or int(allowed) >= _NO_LIMIT:
        return None
    match = re.search(rf"^{cached} (\d+)$", _text(folder / "memory.stat"), flags=re.MULTILINE)
    return max(0, int(allowed) - int(used) + (int(match[1]) if match else 0))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
