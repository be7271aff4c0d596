"""The collectives of a profile as cases: the sizes and groups that a real step uses, and the share
of its communication time that each case has.

If a profile records the elements and the dtype that HCCL was called with, the case is exactly that.
HCCL counts elements as messages are counted here, with two exceptions: all_to_all_single, where it
counts those of one rank, and batchSendRecv, where it counts one of the parts. Otherwise the case is
derived. A profile records the bytes that a rank sent. For a ring, a mesh and every other algorithm
that moves each byte as rarely as possible, the message size follows from them; the size is near:
0.01 to 0.12 % below the real one in one real run, for a reason that is not documented. The bytes
that a rank sends for a broadcast depend on the rank, and the bytes that an AIV kernel sends are not
recorded: such rows are counted, and are not cases. If a profile does not name the ranks of a group,
the nearest ranks are assumed, and the tier is marked as assumed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from collector.profiles.transfers import Transfer
from collector.ranks.collective import (
    BY_KERNEL_TYPE,
    DTYPES,
    OPERATIONS,
    Collective,
    Operation,
    whole_bytes,
)
from collector.ranks.topology import Grid

_BY_HCCL_NAME = {"BFP16": "bfloat16", "FP16": "float16", "FP32": "float32", "INT8": "int8"}


@dataclass(frozen=True, slots=True)
class Profiled:
    """Rows of a profile that are one case, or that are not cases for one reason. The tier is
    assumed if that of any row is; the case is derived if no row records it exactly."""

    collective: Collective | None
    kernel_type: str
    reason: str
    count: int
    total_us: float
    durations_us: tuple[float, ...] = ()
    tier_assumed: bool = False
    is_derived: bool = False


def profiled_collectives(
    transfers: Iterable[Transfer], grid: Grid, dtype: str
) -> tuple[Profiled, ...]:
    """Group the rows by case, those that took longest first. `dtype` applies to rows whose dtype
    the profile does not record."""
    gathered: dict[tuple[Collective | None, str, str], list[Transfer]] = {}
    exact: set[Collective] = set()
    for one in transfers:
        collective, reason = _case(one, grid, dtype)
        if collective is not None:
            operation = OPERATIONS[collective.operation]
            # Exactly the call of HCCL, and not an approximation.
            if _called_bytes(one, operation, collective.dtype) == collective.message_bytes:
                exact.add(collective)
        key = (collective, one.kernel_type, reason)
        gathered.setdefault(key, []).append(one)
    found = [
        _row(grid, *key, rows, is_derived=key[0] is not None and key[0] not in exact)
        for key, rows in gathered.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.total_us))


def share_in_cases(found: Sequence[Profiled]) -> float:
    """Return the share of the communication time that belongs to cases; 0 if there are no rows."""
    total_us = sum(one.total_us for one in found)
    return sum(one.total_us for one in found if one.collective) / total_us if total_us else 0.0


def _row(
    grid: Grid,
    collective: Collective | None,
    kernel_type: str,
    reason: str,
    rows: Sequence[Transfer],
    *,
    is_derived: bool,
) -> Profiled:
    durations_us = tuple(one.duration_us for one in rows)
    # A dimension of extent 1 separates no ranks, and a group that large has only one tier.
    outer = grid.extents[: collective.tier] if collective is not None else ()
    assumed = any(extent > 1 for extent in outer) and not all(one.ranks for one in rows)
    return Profiled(
        *(collective, kernel_type, reason, len(rows), sum(durations_us), durations_us),
        tier_assumed=assumed,
        is_derived=is_derived,
    )


def _case(one: Transfer, grid: Grid, dtype: str) -> tuple[Collective | None, str]:
    operation = BY_KERNEL_TYPE.get(one.kernel_type)
    if operation is None:
        return None, "operation not supported by this bench"
    if one.dtype is not None and one.dtype not in _BY_HCCL_NAME:
        return None, f"dtype: expected one of {', '.join(DTYPES)}, got {one.dtype}"
    known_dtype = dtype if one.dtype is None else _BY_HCCL_NAME[one.dtype]
    message_bytes = _called_bytes(one, operation, known_dtype)
    if operation.name == "broadcast" and not message_bytes:
        return None, "the bytes that a rank sends do not determine the size of a broadcast"
    if one.group_size is None or not (message_bytes or one.sent_bytes):
        return None, "the profile does not record what was sent"
    if one.group_size > grid.size:
        return None, f"expected at most {grid.size} ranks in the grid {grid}, got {one.group_size}"
    if one.ranks and one.ranks[-1] >= grid.size:
        return None, f"expected ranks 0 to {grid.size - 1} in the grid {grid}, got {one.ranks[-1]}"
    tier = grid.tier(one.ranks) if one.ranks else grid.natural_tier(one.group_size)
    if not grid.has_group(one.group_size, tier, grid.size):
        return None, f"{one.group_size} ranks of tier {tier} are uneven in the grid {grid}"
    found = Collective(operation.name, 0, known_dtype, one.group_size, tier)
    near_bytes = message_bytes or one.sent_bytes / operation.crosses(one.group_size)
    whole = whole_bytes(found)
    return replace(found, message_bytes=max(whole, round(near_bytes / whole) * whole)), ""


def _called_bytes(one: Transfer, operation: Operation, dtype: str) -> int:
    """Return the message's bytes from the call of HCCL; 0 if the call does not determine them."""
    if one.elements is None or operation.name == "send_recv":
        return 0
    parts = one.group_size or 0 if operation.name == "all_to_all_single" else 1
    return one.elements * DTYPES[dtype][1] * parts
