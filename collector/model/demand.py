"""Demand for durations: the misses of queries, and manifests of queries; one JSON object a line.

A file of misses has the cases that a query found no duration for:

    {"kernel_type": "Add", "cells": {"Input Shapes": "8,8;8,8", ...}, "reason": "outside",
     "count": 12, "weight": 480.0}

`cells` are those of a row of a tree. `count` is how often the case was missed, `weight` what these
misses count: launches, unless the querying program has a better measure.

A manifest has the queries that a database version must answer, by workload:

    {"workload_id": "llama-8b decode", "critical": true,
     "query": {"kernel_type": "Add", "Input Shapes": "8,8;8,8", "Input Data Types": "FLOAT;FLOAT"}}

`query` has the kernel type and columns of a tree. A critical query must be measured; others may be
interpolated.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from collector.codec.canonical import canonical_json, decode_object
from collector.codec.errors import BadInput, file_errors
from collector.codec.files import MOST_TABLE_BYTES, read_small_file
from collector.codec.table import is_text
from collector.model.case import is_kernel_type
from collector.model.record import CaseRecord, ProfileStatistics
from collector.model.vocabulary import (
    BASE_CELLS,
    EP_SIZE,
    INPUT_SHAPES,
    NOT_KNOWN,
    OUTPUT_SHAPES,
    RUNTIME_PREFIX,
)

# The column of a record that says how urgent its demand is. It is not part of the case.
DEMAND = "Demand"
KERNEL_TYPE = "kernel_type"


class Urgency(StrEnum):
    """How urgent a case is. A campaign measures cases in this order.

    - `critical`: a critical query of a manifest, or a required value of a density standard.
    - `frequent`: one of the heaviest cases, which together have 80 % of the weight of their source.
    - `rare`: the others."""

    CRITICAL = "critical"
    FREQUENT = "frequent"
    RARE = "rare"


_FREQUENT_SHARE = 0.8
MOST_WEIGHT = 10**15  # of a count and a weight, whose sums remain exact


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
    def demand(self) -> "Demand":
        return Demand(record_of_cells(self.kernel_type, self.cells), self.weight, self.count)


@dataclass(frozen=True, slots=True)
class Demand:
    """A case that is requested: its weight, how many queries request it, and by which workloads."""

    record: CaseRecord
    weight: float = 1.0
    count: int = 1
    is_critical: bool = False
    workloads: tuple[str, ...] = ()


def demanded_records(demands: Iterable[Demand]) -> tuple[CaseRecord, ...]:
    """Return the cases as a source has them, each once, the most urgent first.

    A record has its urgency, and its weight in the place of the time in a profile."""
    joined: dict[str, Demand] = {}
    for one in demands:
        known = joined.get(one.record.case_id)
        joined[one.record.case_id] = one if known is None else _both(known, one)
    ordered = sorted(
        joined.values(), key=lambda one: (not one.is_critical, -one.weight, one.record.case_id)
    )
    left = _FREQUENT_SHARE * sum(one.weight for one in ordered if not one.is_critical)
    found = []
    for one in ordered:
        urgency = Urgency.CRITICAL
        if not one.is_critical:
            urgency = Urgency.FREQUENT if left > 0 else Urgency.RARE
            left -= one.weight
        mean = one.weight / one.count
        extra = {**one.record.extra, DEMAND: urgency.value}
        profile = ProfileStatistics(one.count, mean, mean, 0.0)
        found.append(replace(one.record, extra=extra, profile=profile))
    return tuple(found)


def urgency_of(record: CaseRecord) -> Urgency | None:
    """Return the urgency of a record; None for one that no query requests."""
    text = record.extra.get(DEMAND)
    return Urgency(text) if text in set(Urgency) else None


def _both(one: Demand, other: Demand) -> Demand:
    return Demand(
        one.record,
        one.weight + other.weight,
        one.count + other.count,
        one.is_critical or other.is_critical,
        tuple(dict.fromkeys((*one.workloads, *other.workloads))),
    )


def record_of_cells(kernel_type: str, cells: Mapping[str, str]) -> CaseRecord:
    """Return the record of a query: columns of a tree that it leaves out are empty, unknown outputs
    `N/A`. Raises BadInput for other columns and for cells that are no case."""
    for name, text in cells.items():
        if name not in (*BASE_CELLS, EP_SIZE) and not name.startswith(RUNTIME_PREFIX):
            raise BadInput(f"{name}: expected a column of a case, such as {INPUT_SHAPES!r}")
        if not is_text(text):
            raise BadInput(f"{name}: expected text that UTF-8 can encode, without NUL")
    if not is_kernel_type(kernel_type):
        raise BadInput(f"{KERNEL_TYPE}: expected the name of a kernel, got {kernel_type!r}")
    if INPUT_SHAPES not in cells:
        raise BadInput(f"expected a column {INPUT_SHAPES!r}")
    base = {name: cells.get(name, "") for name in BASE_CELLS}
    if OUTPUT_SHAPES not in cells:
        base[OUTPUT_SHAPES] = NOT_KNOWN
    extra = {name: text for name, text in cells.items() if name not in BASE_CELLS}
    record = CaseRecord(kernel_type, base, extra)
    _ = record.case_id  # raises BadInput for cells that are no case
    return record


# Files of misses.


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
    return misses_from_lines(_bytes_of(path), path=str(path))


def misses_from_lines(data: bytes, *, path: str) -> tuple[MissedCase, ...]:
    """Return the misses of a file. Raises BadInput, with the line, for other data."""
    found = []
    for number, one in _objects(MissedCase, data, "a missed case", path):
        if not (0 < one.count <= MOST_WEIGHT and 0 < one.weight <= MOST_WEIGHT):
            expected = f"expected a count and a weight above 0, at most {MOST_WEIGHT:.0e}"
            raise BadInput(expected, path=path, line=number)
        _record_at(one.kernel_type, one.cells, path, number)
        found.append(one)
    return joined_misses(found)


# Manifests of queries.


@dataclass(frozen=True, slots=True)
class ManifestLine:
    """One line of a manifest, as it is written."""

    workload_id: str
    critical: bool
    query: Mapping[str, str]


def read_queries_file(path: Path) -> tuple[Demand, ...]:
    """Return the queries of a manifest, or the cases of a file of misses, as its first line is.
    Raises BadInput for a file that cannot be read or has other data."""
    data = _bytes_of(path)
    first = data.lstrip().partition(b"\n")[0]
    if b'"cells"' in first and b'"query"' not in first:
        return tuple(one.demand for one in misses_from_lines(data, path=str(path)))
    return manifest_from_lines(data, path=str(path))


def read_manifest_file(path: Path) -> tuple[Demand, ...]:
    """Return the queries of a manifest; see `manifest_from_lines`."""
    return manifest_from_lines(_bytes_of(path), path=str(path))


def manifest_from_lines(data: bytes, *, path: str) -> tuple[Demand, ...]:
    """Return each query of a manifest once, the critical ones first. Its weight is the number of
    workloads that have it; a repeated line of one workload counts once.

    Raises BadInput, with the line, for other data."""
    found: dict[tuple[str, str], Demand] = {}
    for number, one in _objects(ManifestLine, data, "a query of a manifest", path):
        cells = dict(one.query)
        record = _record_at(cells.pop(KERNEL_TYPE, ""), cells, path, number)
        key = (one.workload_id, record.case_id)
        critical = one.critical or (key in found and found[key].is_critical)
        found[key] = Demand(record, 1.0, 1, critical, (one.workload_id,))
    by_case: dict[str, Demand] = {}
    for demand in found.values():
        known = by_case.get(demand.record.case_id)
        by_case[demand.record.case_id] = demand if known is None else _both(known, demand)
    ordered = sorted(by_case.values(), key=lambda one: (not one.is_critical, -one.weight))
    return tuple(ordered)


_Line = TypeVar("_Line", MissedCase, ManifestLine)


def _bytes_of(path: Path) -> bytes:
    with file_errors(path):
        return read_small_file(path, MOST_TABLE_BYTES)


def _objects(cls: type[_Line], data: bytes, what: str, path: str) -> Iterator[tuple[int, _Line]]:
    """Yield the objects of the lines that are not blank, with their numbers."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            yield number, decode_object(cls, line, what=what, key=f"{path}:{number}")


def _record_at(kernel_type: str, cells: Mapping[str, str], path: str, line: int) -> CaseRecord:
    try:
        return record_of_cells(kernel_type, cells)
    except BadInput as error:
        raise BadInput(str(error), path=path, line=line) from error
