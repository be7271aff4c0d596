"""The control groups under which a node keeps its pods: one in each hierarchy."""

from pathlib import Path

_HIERARCHIES = Path("/sys/fs/cgroup")
_CPUSET = ("cpuset.cpus", "cpuset.mems")


def make(name: str) -> None:
    """Make the group as a kubelet requires it: in every hierarchy."""
    for hierarchy in _all():
        if hierarchy.name != "unified":
            (hierarchy / name).mkdir(exist_ok=True)
    for file in _CPUSET:  # empty in a new group, where no process could run
        everything = (_HIERARCHIES / "cpuset" / file).read_text()
        (_HIERARCHIES / "cpuset" / name / file).write_text(everything)


def holds(name: str, pid: int) -> bool:
    """Return whether a process is in the group, or in one below it."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except OSError:
        return False
    return any(f"{line.split(':', 2)[2]}/".startswith(f"/{name}/") for line in lines)


def remove(name: str) -> None:
    """Remove the group and those below it, which must have no processes."""
    for hierarchy in _all():
        group = hierarchy / name
        if group.is_dir():
            below = sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True)
            for folder in [*below, group]:
                folder.rmdir()


def _all() -> list[Path]:
    """Return every hierarchy once: some have a second name, which is a link."""
    return [p for p in _HIERARCHIES.iterdir() if p.is_dir() and not p.is_symlink()]
