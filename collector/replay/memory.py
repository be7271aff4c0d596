"""The memory of a session: what a case will need, what there is, what a process holds."""

import os
from pathlib import Path

from collector.case import Case

_GIB = 1 << 30
_PAGE = os.sysconf("SC_PAGE_SIZE")


class NotEnoughMemory(MemoryError):
    """A case that would not fit, refused before it could harm the session; with the figures."""


def check_memory(needed: int, limit_gb: float, free: int | None) -> None:
    """Raises NotEnoughMemory where so many bytes exceed a limit (GiB) or what is free (bytes)."""
    if needed > limit_gb * _GIB:
        raise NotEnoughMemory(f"{gib(needed)} are needed, the limit is {limit_gb:g} GiB")
    if free is not None and needed > free:
        raise NotEnoughMemory(f"{gib(needed)} are needed, {gib(free)} are free")


def exceeds(needed: int, limit_gb: float, free: int | None, held: int = 0) -> bool:
    """Whether so many bytes more than `held` exceed the limit, or what is free."""
    return held + needed > limit_gb * _GIB or (free is not None and needed > free)


def needed_bytes(case: Case, emulated: frozenset[str] = frozenset()) -> int:
    """Bytes of a case's tensors, those of `emulated` dtypes as float32; what an operator needs
    besides is not foreseen."""
    total = 0
    for slot in (*(case.inputs or ()), *(case.outputs or ())):
        dtype = slot.known_dtype
        if dtype is not None:
            total += slot.numel * (4 if dtype.torch_name in emulated else dtype.item_bytes)
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
    return f"{size_bytes / _GIB:.2f} GiB"
