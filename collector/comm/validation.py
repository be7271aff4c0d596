"""Rows of collectives compared with other measurements: a real network, hccl_test of CANN."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np

from collector.codec.errors import BadInput
from collector.comm.check import CheckedRow
from collector.comm.profiled import Profiled
from collector.ranks.collective import DTYPES, Collective

# Durations of collectives in a real network, compared with isolated durations.
#
# In a network, a collective's time includes waiting for late ranks: the same message takes 17 us in
# one run and 5 ms in another. So the median of a message's times from p10 to p90 counts, and a row
# only has to be within a factor of it (`check.ratio_verdict`, the consumer's own rule).

# Observed: 1 to 16 us (Atlas A3, below 1 MB). More is waiting, and less than 0 has another cause.
_LARGEST_OFFSET_US = 20.0


@dataclass(frozen=True, slots=True)
class InNetwork:
    """A message of a profile: its count, its duration there, and whether the profile does not
    record the tier."""

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
class ComparedMessage:
    """A message of a profile compared with a tree: with the row of its size, or with the two rows
    around it by linear interpolation (`below`, `above`)."""

    in_network: InNetwork
    below: CheckedRow
    above: CheckedRow

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
        """Return the ratio of times; above 1 if the tree's time is longer than the network's."""
        return self.isolated_us / self.in_network.duration_us

    @property
    def is_own(self) -> bool:
        """Return whether the rows have the message's tier and dtype."""
        one = self.in_network.collective
        return (self.below.tier, self.below.dtype) == (str(one.tier), DTYPES[one.dtype][0])

    @property
    def offset_us(self) -> float | None:
        """Return the time that the network adds. None if no row has this size, tier and dtype, or
        if the difference is no offset: waiting, or negative."""
        added_us = self.in_network.duration_us - self.isolated_us
        is_the_same = self.is_exact and self.is_own
        return added_us if is_the_same and 0 <= added_us <= _LARGEST_OFFSET_US else None


_ORDER = ("operation", "group_size", "message_bytes", "tier")


def in_network(found: Iterable[Profiled]) -> list[InNetwork]:
    """Return the messages of a profile, sorted by operation, group and size."""
    timed = ((one, [us for us in one.durations_us if us > 0]) for one in found)
    messages = [
        InNetwork(one.collective, one.count, trimmed_median(durations_us), one.tier_assumed)
        for one, durations_us in timed
        if one.collective is not None and durations_us
    ]
    return sorted(messages, key=attrgetter(*(f"collective.{name}" for name in _ORDER)))


def trimmed_median(durations_us: Sequence[float]) -> float:
    """Return the median of the durations from p10 to p90. Requires at least one."""
    low, high = np.quantile(durations_us, (0.1, 0.9))
    return float(np.median([one for one in durations_us if low <= one <= high] or durations_us))


def compare_with_tree(message: InNetwork, points: Iterable[CheckedRow]) -> ComparedMessage | None:
    """Return the rows for a message: of its operation and group size, and of its own tier and dtype
    if there are such rows. None if its size is outside all rows."""
    one = message.collective
    alike: dict[tuple[bool, bool, str, str], list[CheckedRow]] = {}
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
            return ComparedMessage(message, *around[0])
    return None


def offsets_by_key(
    operation: str, found: Iterable[ComparedMessage]
) -> dict[tuple[str, ...], float]:
    """Return the time that the network adds to an operation's rows, by their key in its file."""
    return {
        one.below.key: one.offset_us
        for one in found
        if one.below.operation == operation and one.offset_us is not None
    }


# Output of CANN's hccl_test, compared with the rows of a tree.
#
# Its `data_size` is a whole tensor: the output of all_gather and the input of reduce_scatter. One
# rank's share of it is the consumer's message_bytes (oam-tools, `init_malloc_Ksize_by_data` of
# hccl_allgather_rootinfo_test.cc and hccl_reducescatter_rootinfo_test.cc).

_SHARED = ("all_gather", "reduce_scatter")
_NUMBER = r"([0-9]{1,15}(?:\.[0-9]+)?)"
_HCCL_ROW = re.compile(rf"\s*([0-9]{{1,18}})\s*\|\s*{_NUMBER}\s*\|\s*{_NUMBER}\s*\|\s*(\S+)\s*")
_HCCL_FAILED = re.compile(r"rank_id\s+([0-9]{1,9})\b.*check result failed")
# MPI may name the rank: `[1,0]<stdout>:` (mpirun --tag-output), `[0] ` (mpiexec -prepend-rank).
_MPI_RANK = re.compile(r"\s*\[[\w.,@-]{1,200}\](?:<std\w{3}>)?:?")
# Its `check_result`. NULL: the results were not checked (-c 0).
_PASSED, _FAILED = ("success", "NULL"), "failed"


@dataclass(frozen=True, slots=True)
class HcclTest:
    """The output of an hccl_test run: (bytes, us), the bytes of rows whose check failed, and the
    ranks with a wrong result. Its bandwidth is not read: it was GiB/s in an older version and is
    GB/s now, under the same heading."""

    rows: tuple[tuple[int, float], ...]
    failed_bytes: tuple[int, ...]
    failed_ranks: tuple[int, ...]


def read_hccl_test(lines: Sequence[str], path: str) -> HcclTest:
    """Read the output of hccl_test, of which MPI may have named the rank in each line.

    A line about a failed rank contains a row that does not count. Raises BadInput if no row is
    found, for a second row of a size, and for an unknown check result."""
    rows: dict[int, float] = {}
    failed_bytes, failed_ranks = [], set()
    for number, line in enumerate(lines, 1):
        if broken := _HCCL_FAILED.search(line):
            failed_ranks.add(int(broken[1]))
        elif found := _HCCL_ROW.fullmatch(_MPI_RANK.sub("", line, count=1)):
            size, took_us, check = int(found[1]), float(found[2]), found[4]
            if problem := _problem_of(size, took_us, check, rows):
                raise BadInput(problem, path=path, line=number)
            rows[size] = took_us
            failed_bytes += [size] * (check == _FAILED)
    if not rows:
        raise BadInput(
            "expected rows of hccl_test (size | time | bandwidth | check), got none", path=path
        )
    good = tuple((size, us) for size, us in rows.items() if size not in failed_bytes)
    return HcclTest(good, tuple(failed_bytes), tuple(sorted(failed_ranks)))


def _problem_of(size: int, took_us: float, check: str, earlier: Mapping[int, float]) -> str:
    """Return why a row cannot be used, empty if it can."""
    if not (size and took_us):
        return f"expected a size and a time above 0, got {size} bytes in {took_us:g} us"
    if check not in (*_PASSED, _FAILED):
        return f"check_result: expected {', '.join(_PASSED)} or {_FAILED}, got {check!r}"
    if size in earlier:
        return f"expected one row of {size} bytes, got a second one: give the output of one run"
    return ""


@dataclass(frozen=True, slots=True)
class HcclComparison:
    """A row of the tree and the time of the same message in hccl_test."""

    point: CheckedRow
    hccl_us: float

    @property
    def ratio(self) -> float:
        return self.point.duration_us / self.hccl_us


def compared(
    test: HcclTest, operation: str, group_size: int, points: Iterable[CheckedRow]
) -> list[HcclComparison]:
    """Return the rows of that operation and group size whose message hccl_test sent, too, with a
    result that is not wrong. Raises BadInput if there are none of a run without wrong results."""
    shares = group_size if operation in _SHARED else 1
    times = {size // shares: us for size, us in test.rows if size % shares == 0}
    found = [
        HcclComparison(point, times[point.message_bytes])
        for point in points
        if (point.operation, point.group_size) == (operation, group_size)
        and point.message_bytes in times
    ]
    if not found and not test.failed_bytes:
        raise BadInput(
            f"no row of {operation} over {group_size} ranks has a message size of the hccl_test run"
        )
    return found
