"""Memory of a session: the need of a case, the free memory, and what a process uses."""

import os
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.codec.text import GIB
from collector.host.space import GroupMemory
from collector.model.case import Case

_FULL = 0.9  # of a container's limit
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NotEnoughMemory(OpmeterError):
    """A case that does not fit, refused before it could harm the session; the message has the
    figures."""


def check_memory(needed: int, limit_gb: float, free: int | None) -> None:
    """Raise NotEnoughMemory if this many bytes exceed a limit (GiB) or the free memory (bytes)."""
    if needed > limit_gb * GIB:
        raise NotEnoughMemory(f"requires {gib(needed)}, the limit is {limit_gb:g} GiB")
    if free is not None and needed > free:
        raise NotEnoughMemory(f"requires {gib(needed)}, {gib(free)} are free")


def exceeds(needed: int, limit_gb: float, free: int | None, held: int = 0) -> bool:
    """Return whether this many bytes in addition to `held` exceed the limit, or the free memory."""
    return held + needed > limit_gb * GIB or (free is not None and needed > free)


def too_much(held: int, limit_gb: float, container: GroupMemory | None, at_once: int) -> str:
    """Return why a session that uses this many bytes must end; empty if it may continue.

    A container at its limit is killed completely, so that no process can report the reason. Before
    that, a session ends that uses its share, where `at_once` sessions measure concurrently."""
    if held > limit_gb * GIB:
        return f"the session uses {gib(held)}, the limit is {limit_gb:g} GiB"
    if container is None or container.held <= _FULL * container.limit:
        return ""
    if held <= container.limit / (2 * at_once):
        return ""
    return (
        f"the session uses {gib(held)}, its container uses {gib(container.held)} "
        f"of {gib(container.limit)}"
    )


def needed_bytes(case: Case, emulated: frozenset[str] = frozenset()) -> int:
    """Return the bytes of a case's tensors, those of `emulated` dtypes as float32; additional
    memory of an operator is not included."""
    total = 0
    for slot in (*(case.inputs or ()), *(case.outputs or ())):
        dtype = slot.known_dtype
        if dtype is not None:
            is_wide = dtype.torch_name in emulated
            total += slot.numel * 4 if is_wide else dtype.bytes_of(slot.numel)
    return total


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def gib(size_bytes: float) -> str:
    """Return `1.50 GiB`, for messages."""
    return f"{size_bytes / GIB:.2f} GiB"
