"""A file of misses: cases that a query found no duration for, one JSON object in each line.

    {"kernel_type": "Add", "cells": {"Input Shapes": "8,8;8,8", ...}, "reason": "outside",
     "count": 12, "weight": 480.0}

`cells` are those of a row of a tree. `count` is how often the case was missed, `weight` what these
misses count: launches, unless the program that asked has a better measure.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from collector.codec.canonical import canonical_json, decode_object
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, read_small_file
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.vocabulary import BASE_CELLS


@dataclass(frozen=True, slots=True)
class MissedCase:
    """A case without a duration, the reason, and how much it counts."""

    kernel_type: str
    cells: Mapping[str, str]
    reason: str
    count: int
    weight: float

    @property
    def identity(self) -> bytes:
        return canonical_json([self.kernel_type, dict(self.cells)])

    @property
    def record(self) -> CaseRecord:
        """Return the case as a source has it. Its weight takes the place of the time in a profile,
        by which campaigns order cases."""
        cells = {name: self.cells.get(name, "") for name in BASE_CELLS}
        extra = {name: text for name, text in self.cells.items() if name not in BASE_CELLS}
        mean = self.weight / self.count
        profile = ProfileStatistics(self.count, mean, mean, 0.0)
        return CaseRecord(self.kernel_type, cells, extra, profile)


def joined_misses(misses: Iterable[MissedCase]) -> tuple[MissedCase, ...]:
    """Return each case once, with the sums of its counts and weights, the greatest weight first."""
    found: dict[bytes, MissedCase] = {}
    for one in misses:
        before = found.get(one.identity)
        count, weight = (before.count, before.weight) if before else (0, 0.0)
        found[one.identity] = MissedCase(
            *(one.kernel_type, one.cells, one.reason), one.count + count, one.weight + weight
        )
    return tuple(sorted(found.values(), key=lambda one: (-one.weight, one.identity)))


def misses_to_lines(misses: Iterable[MissedCase]) -> bytes:
    """Return the file of misses."""
    return b"".join(canonical_json(asdict(one)) + b"\n" for one in misses)


def read_misses(path: Path) -> tuple[MissedCase, ...]:
    """Return the misses of a file. Raises BadInput for a file that cannot be read or has other
    data."""
    with file_errors(path):
        data = read_small_file(path, MOST_TABLE_BYTES)
    return misses_from_lines(data, path=str(path))


def misses_from_lines(data: bytes, *, path: str) -> tuple[MissedCase, ...]:
    """Return the misses of a file. Raises BadInput, with the line, for other data."""
    found = []
    for number, line in enumerate(data.splitlines(), start=1):
        if line.strip():
            one = decode_object(MissedCase, line, what="a missed case", key=f"{path}:{number}")
            if one.count < 1 or not one.weight > 0:
                raise BadInput("expected a count and a weight > 0", path=path, line=number)
            found.append(one)
    return joined_misses(found)
