"""The control groups around this process: where a container's limits stand."""

from collections.abc import Iterator
from pathlib import Path

MEMBERSHIP = Path("/proc/self/cgroup")
CGROUPS = Path("/sys/fs/cgroup")


def group_folders(
    controller: str, membership: Path = MEMBERSHIP, cgroups: Path = CGROUPS
) -> Iterator[tuple[int, Path]]:
    """The folders of the groups that a controller (`cpu`, `memory`) has this process in, from its
    own outwards, each with the version of its files: 2, or the older 1."""
    for line in text_of(membership).splitlines():
        number, controllers, group = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            yield from ((2, folder) for folder in _branch(cgroups, group))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _branch(cgroups / controller, group))


def _branch(root: Path, group: str) -> Iterator[Path]:
    # Inside a container its own group is mounted as the root, and the name means nothing.
    path = root / group.strip("/")
    return (folder for folder in (path, *path.parents) if folder.is_relative_to(root))


def text_of(path: Path) -> str:
    """What a file of the kernel says; nothing where it is not there."""
    try:
        return path.read_text()
    except OSError:
        return ""
