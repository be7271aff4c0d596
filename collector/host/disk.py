"""How much a folder can still take: of its disk, and of a pod's volume with a limit of its own.

Kubernetes measures a volume on the node's disk now and then, and evicts a pod that is past its
limit: the disk itself says nothing of that. OPMETER_VOLUME_BYTES does.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from collector.errors import BadInput

_LIMIT = "OPMETER_VOLUME_BYTES"
_BLOCK = 512  # the unit of st_blocks, whatever the file system's own is


def free_bytes(folder: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Bytes that can still be written below a folder. Raises BadInput for a limit that is none."""
    free = shutil.disk_usage(folder).free
    limit = _limit(environment)
    return free if limit is None else min(free, max(0, limit - used_bytes(volume_of(folder))))


def volume_of(folder: Path) -> Path:
    """The volume that a folder lies on: the nearest mount above it; itself where that is the root
    of all, which is nobody's volume."""
    found = folder.resolve()
    for place in (found, *found.parents):
        if os.path.ismount(place) and place != Path(place.anchor):
            return place
    return found


def used_bytes(folder: Path) -> int:
    """What the files below a folder take on disk. Files that go meanwhile are left out."""
    return sum(_blocks(folder)) * _BLOCK


def _blocks(folder: Path) -> Iterator[int]:
    seen: set[tuple[int, int]] = set()  # files of several names count once
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            try:
                status = os.lstat(os.path.join(place, name))
            except OSError:
                continue
            if (file := (status.st_dev, status.st_ino)) not in seen:
                seen.add(file)
                yield status.st_blocks


def _limit(environment: Mapping[str, str]) -> int | None:
    text = environment.get(_LIMIT, "").strip()
    if not text:
        return None
    if not text.isdigit():
        raise BadInput(f"{_LIMIT}: expected a number of bytes, got {text!r}")
    return int(text)
