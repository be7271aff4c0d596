"""The collectives of a profile as cases: which sizes and groups a real step asks for, and how much
of its communication time each of them is.

A profile tells what a rank sent, not what it was asked to send. Of a ring, a mesh and whatever else
moves each byte as rarely as can be, both follow from each other; the size that comes out is that of
the message to within its padding. What a rank sends of a broadcast depends on the rank, and what
an AIV kernel sends is not told at all: such rows are counted, and are no cases.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collector.collective import BY_KERNEL_TYPE, Collective, whole_bytes
from collector.profiles.transfers import Transfer
from collector.topology import Grid


@dataclass(frozen=True, slots=True)
class Profiled:
    """Rows of a profile that are one case, or that are none for one reason."""

    collective: Collective | None
    kernel_type: str
    reason: str
    count: int
    total_us: float
    durations_us: tuple[float, ...] = ()


def profiled(transfers: Iterable[Transfer], grid: Grid, dtype: str) -> tuple[Profiled, ...]:
    """The rows by what they are, those that took longest first. `dtype` is not in a profile."""
    gathered: dict[tuple[Collective | None, str, str], list[float]] = {}
    for one in transfers:
        collective, reason = _case(one, grid, dtype)
        key = (collective, one.kernel_type, reason)
        gathered.setdefault(key, []).append(one.duration_us)
    found = [Profiled(*key, len(all_), sum(all_), tuple(all_)) for key, all_ in gathered.items()]
    return tuple(sorted(found, key=lambda one: -one.total_us))


def share(found: Sequence[Profiled]) -> float:
    """How much of the communication time is of cases; 0 of none."""
    total_us = sum(one.total_us for one in found)
    return sum(one.total_us for one in found if one.collective) / total_us if total_us else 0.0


def _case(one: Transfer, grid: Grid, dtype: str) -> tuple[Collective | None, str]:
    operation = BY_KERNEL_TYPE.get(one.kernel_type)
    if operation is None:
        return None, "no operation of this bench"
    if operation.name == "broadcast":
        return None, "what a rank sends of a broadcast does not tell its size"
    if one.group_size is None or not one.sent_bytes:
        return None, "the profile does not tell what was sent"
    if one.group_size > grid.size:
        return None, f"{one.group_size} ranks, and the grid {grid} has {grid.size}"
    exact_bytes = one.sent_bytes / operation.crosses(one.group_size)
    tier = grid.natural_tier(one.group_size)
    found = Collective(operation.name, 0, dtype, one.group_size, tier)
    whole = whole_bytes(found)
    message_bytes = max(whole, round(exact_bytes / whole) * whole)
    return replace(found, message_bytes=message_bytes), ""
