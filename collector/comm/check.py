"""Checks of collective rows against the link's bandwidth, neighbouring sizes and other tiers."""

from collections.abc import Iterable
from dataclasses import dataclass

from collector.codec.errors import BadInput
from collector.codec.numbers import integer_of, parse_number
from collector.comm.comm_table import CommTable
from collector.comm.measured import NOISE, Measured
from collector.comm.timing import AlphaBeta, fitted
from collector.ranks.collective import DURATION, OPERATIONS, key_cells

_PASS, _WARN = 2.0, 4.0  # largest ratio, from the consumer's own rule


@dataclass(frozen=True, slots=True)
class CheckedRow:
    """The checked columns of a row."""

    operation: str
    message_bytes: int
    group_size: int
    dtype: str
    tier: str
    duration_us: float
    spread: float = 0.0  # between rounds, relative

    def is_faster_than(self, other: "CheckedRow") -> bool:
        """Return whether this point is faster by more than the noise of both."""
        noise = max(NOISE, self.spread, other.spread)
        return self.duration_us < other.duration_us * max(0.0, 1.0 - noise)

    @property
    def key(self) -> tuple[str, ...]:
        """Return the row's key, in the order of `comm_table.KEY`."""
        return str(self.message_bytes), str(self.group_size), self.dtype, self.tier

    @property
    def bus_bandwidth_gbps(self) -> float:
        crosses = OPERATIONS[self.operation].crosses(self.group_size)
        return self.message_bytes * crosses / self.duration_us / 1e3

    def __str__(self) -> str:
        return (
            f"{self.operation} of {self.message_bytes} bytes over {self.group_size} ranks "
            f"({self.dtype}, tier {self.tier}): {self.duration_us:g} us"
        )


@dataclass(frozen=True, slots=True)
class Series:
    """The sizes of one operation, dtype, group size and tier, ascending, and the line fitted
    through them."""

    points: tuple[CheckedRow, ...]
    line: AlphaBeta | None


def timed_points(operation: str, table: CommTable, path: str) -> list[CheckedRow]:
    """Return the rows of a file that have a duration. Raises BadInput, with the row, for cells that
    are not numbers and for impossible durations."""
    found = []
    for number, row in enumerate(table.rows, 2):
        text = row.get(DURATION, "")
        if not text:
            continue
        try:
            size, ranks = (integer_of(row[name]) for name in ("message_bytes", "num_devices"))
            duration_us, spread = parse_number(text), parse_number(row.get("round_spread") or "0")
        except ValueError as error:
            raise BadInput(f"expected numbers: {error}", path=path, line=number) from error
        if not (size > 0 and ranks > 1 and 0 < duration_us < float("inf")):
            message = (
                "expected message_bytes above 0, num_devices above 1 and a finite duration above 0 "
                f"us, got {size} bytes, {ranks} ranks and {text} us"
            )
            raise BadInput(message, path=path, line=number)
        dtype, tier = row.get("dtype", ""), row.get("topology_tier", "")
        found.append(CheckedRow(operation, size, ranks, dtype, tier, duration_us, spread))
    return found


def point_of(measured: Measured) -> CheckedRow:
    """Return the row of a measured case."""
    one, cells = measured.collective, key_cells(measured.collective)
    size = (one.operation, one.message_bytes, one.group_size)
    key = (cells["dtype"], cells["topology_tier"])
    return CheckedRow(*size, *key, measured.duration_us, measured.spread)


def series_of(points: Iterable[CheckedRow]) -> list[Series]:
    """Group the points by operation, dtype, group size and tier; fit a line to each group."""
    gathered: dict[tuple[str, str, int, str], list[CheckedRow]] = {}
    for point in points:
        key = (point.operation, point.dtype, point.group_size, point.tier)
        gathered.setdefault(key, []).append(point)
    found = []
    for _, one in sorted(gathered.items()):
        ordered = tuple(sorted(one, key=lambda point: point.message_bytes))
        line = fitted([(point.message_bytes, point.duration_us) for point in ordered])
        found.append(Series(ordered, line))
    return found


def problems(series: Series, link_gbps: float | None = None) -> list[str]:
    """Return the problems of a series: a bus bandwidth above the link's, and a larger message that
    is faster than a smaller one by more than the noise."""
    found = [
        f"{point}: bus bandwidth {point.bus_bandwidth_gbps:.1f} GB/s, expected at most "
        f"{link_gbps:g} GB/s"
        for point in series.points
        if link_gbps is not None and point.bus_bandwidth_gbps > link_gbps
    ]
    slowest = series.points[0]
    for point in series.points[1:]:
        if point.is_faster_than(slowest):
            found.append(
                f"{point}, faster than the smaller message of {slowest.message_bytes} bytes: "
                f"{slowest.duration_us:g} us"
            )
        if point.duration_us > slowest.duration_us:
            slowest = point
    return found


def tier_problems(all_series: Iterable[Series]) -> list[str]:
    """Return the groups that are slower than a group of a farther tier, by more than the noise."""
    points = [point for series in all_series for point in series.points if point.tier.isdigit()]
    by_place = {(*_message(point), int(point.tier)): point for point in points}
    found = []
    for point in points:
        farther = by_place.get((*_message(point), int(point.tier) - 1))
        if farther and farther.is_faster_than(point):
            found.append(
                f"{point}, slower than the farther tier {farther.tier}: {farther.duration_us:g} us"
            )
    return found


def ratio_verdict(ratio: float) -> str:
    """Return PASS for two times of a message within a factor of 2, WARN within 4, FAIL beyond."""
    factor = max(ratio, 1 / ratio)
    return "PASS" if factor <= _PASS else "WARN" if factor <= _WARN else "FAIL"


def _message(point: CheckedRow) -> tuple[str, str, int, int]:
    return point.operation, point.dtype, point.group_size, point.message_bytes
