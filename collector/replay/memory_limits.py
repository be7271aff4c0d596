"""The memory of a session: what a case will need, what there is, what a process holds."""

import os
from pathlib import Path

from collector.codec.errors import OpmeterError
from collector.codec.text import GIB
from collector.host.machine import GroupMemory
from collector.model.case import Case

_FULL = 0.9  # of a container's limit
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NotEnoughMemory(OpmeterError):
    """A case that would not fit, refused before it could harm the session; with the figures."""


def check_memory(needed: int, limit_gb: float, free: int | None) -> None:
    """Raises NotEnoughMemory where so many bytes exceed a limit (GiB) or what is free (bytes)."""
    if needed > limit_gb * GIB:
        raise NotEnoughMemory(f"requires {gib(needed)}, the limit is {limit_gb:g} GiB")
    if free is not None and needed > free:
        raise NotEnoughMemory(f"requires {gib(needed)}, {gib(free)} are free")


def exceeds(needed: int, limit_gb: float, free: int | None, held: int = 0) -> bool:
    """Whether so many bytes more than `held` exceed the limit, or what is free."""
    return held + needed > limit_gb * GIB or (free is not None and needed > free)


def too_much(held: int, limit_gb: float, container: GroupMemory | None, at_once: int) -> str:
    """Why a session that holds so many bytes has to end; empty where it may go on.

    A container at its limit is killed whole, and nobody is left to say why: it is relieved before
    that, of a session that holds its share where `at_once` measure together.
    """
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
    """Bytes of a case's tensors, those of `emulated` dtypes as float32; what an operator needs
    besides is not foreseen."""
    total = 0
    for slot in (*(case.inputs or ()), *(case.outputs or ())):
        dtype = slot.known_dtype
        if dtype is not None:
            is_wide = dtype.torch_name in emulated
            total += slot.numel * 4 if is_wide else dtype.bytes_of(slot.numel)
    return total


def resident_bytes(process: int) -> int:
    """What a process holds; 0 for one that is gone."""
    try:
        fields = Path(f"/proc/{process}/statm").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def gib(size_bytes: float) -> str:
    """`1.50 GiB`: for messages."""
    return f"{size_bytes / GIB:.2f} GiB"
