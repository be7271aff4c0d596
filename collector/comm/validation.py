"""Rows of collectives compared with other measurements: a real network, hccl_test of CANN."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from collector.codec.errors import BadInput
from collector.comm.check import Point
from collector.comm.profiled import Profiled
from collector.ranks.collective import DTYPES, Collective

# What collectives took in a real network, held against what they take by themselves.
#
# In a network a collective's time holds waiting for ranks that come late: the same message takes 17
# us in one run and 5 ms in another. So of a message's times the middle counts, p10 to p90, by its
# median, and a row need only come within factors of it (`check.verdict`, the consumer's own rule).

# Seen: 1 to 16 us (Atlas A3, below 1 MB). Above that it is waiting, and below 0 another thing.
_LARGEST_OFFSET_US = 20.0


@dataclass(frozen=True, slots=True)
class InNetwork:
    """A message of a profile: how often it was sent, what it took there, and whether the profile
    left the tier open."""

    collective: Collective
    count: int
    duration_us: float
    tier_assumed: bool = False

    def __str__(self) -> str:
        one, times = self.collective, "time" if self.count == 1 else "times"
        what = f"{one.operation} of {one.message_bytes} bytes over {one.group_size} ranks"
        what += f", tier {one.tier}{' assumed' if self.tier_assumed else ''}"
        return f"{what}, {self.count} {times} in the profile: {self.duration_us:g} us"


@dataclass(frozen=True, slots=True)
class Held:
    """A message of a profile beside what a tree says of it: of the row of its size, or of the two
    around it by a line between them (`below`, `above`)."""

    in_network: InNetwork
    below: Point
    above: Point

    @property
    def is_exact(self) -> bool:
        return self.below is self.above

    @property
    def isolated_us(self) -> float:
        if self.is_exact:
            return self.below.duration_us
        sizes = (self.below.message_bytes, self.above.message_bytes)
        durations = (self.below.duration_us, self.above.duration_us)
        return float(np.interp(self.in_network.collective.message_bytes, sizes, durations))

    @property
    def ratio(self) -> float:
        """Above 1 where the tree's time is longer than the network's."""
        return self.isolated_us / self.in_network.duration_us

    @property
    def is_own(self) -> bool:
        """Whether the rows are of the message's own tier and dtype."""
        one = self.in_network.collective
        return (self.below.tier, self.below.dtype) == (str(one.tier), DTYPES[one.dtype][0])

    @property
    def offset_us(self) -> float | None:
        """What the network adds; None where there is no row of this size, tier and dtype, and of a
        difference that is none: waiting, or less than nothing."""
        added_us = self.in_network.duration_us - self.isolated_us
        is_the_same = self.is_exact and self.is_own
        return added_us if is_the_same and 0 <= added_us <= _LARGEST_OFFSET_US else None


def in_network(found: Iterable[Profiled]) -> list[InNetwork]:
    """The messages of a profile, by operation, group and size."""
    timed = ((one, [us for us in one.durations_us if us > 0]) for one in found)
    messages = [
        InNetwork(one.collective, one.count, trimmed_median(durations_us), one.tier_assumed)
        for one, durations_us in timed
        if one.collective is not None and durations_us
    ]
    return sorted(messages, key=lambda one: _order(one.collective))


def trimmed_median(durations_us: Sequence[float]) -> float:
    """The median of those from p10 to p90. At least one is wanted."""
    low, high = np.quantile(durations_us, (0.1, 0.9))
    return float(np.median([one for one in durations_us if low <= one <= high] or durations_us))


def held(message: InNetwork, points: Iterable[Point]) -> Held | None:
    """The rows that tell of a message: of its operation and group size, and of several tiers and
    dtypes those of its own, if they are there. None where its size is beyond all of them."""
    one = message.collective
    alike: dict[tuple[bool, bool, str, str], list[Point]] = {}
    for point in points:
        if (point.operation, point.group_size) == (one.operation, one.group_size):
            is_other = point.tier != str(one.tier), point.dtype != DTYPES[one.dtype][0]
            alike.setdefault((*is_other, point.tier, point.dtype), []).append(point)
    for _, rows in sorted(alike.items()):
        rows.sort(key=lambda point: point.message_bytes)
        around = [(row, row) for row in rows if row.message_bytes == one.message_bytes]
        around += [
            pair
            for pair in pairwise(rows)
            if pair[0].message_bytes < one.message_bytes < pair[1].message_bytes
        ]
        if around:
            return Held(message, *around[0])
    return None


def offsets_by_key(operation: str, found: Iterable[Held]) -> dict[tuple[str, ...], float]:
    """What the network adds to an operation's rows, by their key in its file."""
    return {
        one.below.key: one.offset_us
        for one in found
        if one.below.operation == operation and one.offset_us is not None
    }


def _order(one: Collective) -> tuple[str, int, int, int]:
    return one.operation, one.group_size, one.message_bytes, one.tier


# What CANN's hccl_test printed, held against the rows of a tree.
#
# Its `data_size` is a whole tensor: the output of all_gather and the input of reduce_scatter, whose
# share of one rank is what the consumer calls message_bytes (oam-tools, `init_malloc_Ksize_by_data`
# of hccl_allgather_rootinfo_test.cc and hccl_reducescatter_rootinfo_test.cc).

_SHARED = ("all_gather", "reduce_scatter")
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]+)?)"
_HCCL_ROW = re.compile(rf"\s*([0-9]{{1,18}})\s*\|\s*{_NUMBER}\s*\|\s*{_NUMBER}\s*\|\s*(\w+)\s*")
_HCCL_FAILED = re.compile(r"rank_id\s+([0-9]{1,9})\b.*check result failed")


@dataclass(frozen=True, slots=True)
class HcclTest:
    """What a run of hccl_test printed: (bytes, us), and the ranks whose result was wrong. Its
    bandwidths are not read: they were GiB/s once and are GB/s now, under one heading."""

    rows: tuple[tuple[int, float], ...]
    failed_ranks: tuple[int, ...]


def read_hccl_test(lines: Sequence[str], path: str) -> HcclTest:
    """BadInput where no row is found. A line about a failing rank holds a row and is none."""
    rows, failed = [], set()
    for number, line in enumerate(lines, 1):
        if broken := _HCCL_FAILED.search(line):
            failed.add(int(broken[1]))
        elif found := _HCCL_ROW.fullmatch(line):
            size, took_us = int(found[1]), float(found[2])
            if not (size and took_us):
                raise BadInput(
                    f"expected a size and a time above 0, got {size} bytes in {took_us:g} us",
                    path=path,
                    line=number,
                )
            rows.append((size, took_us))
    if not rows:
        raise BadInput(
            "expected rows of hccl_test (size | time | bandwidth | check), got none", path=path
        )
    return HcclTest(tuple(rows), tuple(sorted(failed)))


@dataclass(frozen=True, slots=True)
class Compared:
    """A row of the tree and hccl_test's time of the same message."""

    point: Point
    hccl_us: float

    @property
    def ratio(self) -> float:
        return self.point.duration_us / self.hccl_us


def compared(
    test: HcclTest, operation: str, group_size: int, points: Iterable[Point]
) -> list[Compared]:
    """The rows of that operation and group size whose message hccl_test sent, too. BadInput where
    there are none."""
    shares = group_size if operation in _SHARED else 1
    times = {size // shares: us for size, us in test.rows if size % shares == 0}
    found = [
        Compared(point, times[point.message_bytes])
        for point in points
        if (point.operation, point.group_size) == (operation, group_size)
        and point.message_bytes in times
    ]
    if not found:
        raise BadInput(
            f"no row of {operation} over {group_size} ranks has a message size of the hccl_test run"
        )
    return found
