"""What CANN's hccl_test printed, held against the rows of a tree.

Its `data_size` is a whole tensor: the output of all_gather and the input of reduce_scatter, whose
share of one rank is what the consumer calls message_bytes (oam-tools, `init_malloc_Ksize_by_data`
of hccl_allgather_rootinfo_test.cc and hccl_reducescatter_rootinfo_test.cc).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from collector.comm.check import Point
from collector.errors import BadInput

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
