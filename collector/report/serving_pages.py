"""Configurations that served a load, and their page: throughput and TPOT per NPU."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from typing import Any

from collector.quality.statistics import percentile
from collector.report.model_pages import BETWEEN, EXACT, IMPORTED
from collector.report.pages import Folder, Page, Table, short_row
from collector.workloads.served_requests import ServingTimes

TTFT, TPOT, THROUGHPUT = "TTFT", "TPOT", "throughput"
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
MOST_WITHOUT_DATA = 0.1  # share of the device's time, from which on only a range is shown
Ends = tuple[float, float, float]  # value, low, high
_COLUMNS = (
    *("configuration", "npus", "ttft_p50_ms", "ttft_p50_low_ms", "ttft_p50_high_ms"),
    *("tpot_p50_ms", "tpot_p50_low_ms", "tpot_p50_high_ms", "tokens_per_s_per_npu"),
    *("tokens_per_s_per_npu_low", "tokens_per_s_per_npu_high", "share_with_data", "front"),
    "refused",
)


@dataclass(frozen=True, slots=True)
class ServedConfiguration:
    """What a configuration made of a load in three runs: with durations at their values, and at
    both ends of their intervals; without a run, why it was refused.

    name    of the configuration, empty for the only one
    npus    how many it takes
    shares  of the device's time, by the source of durations"""

    name: str
    npus: int
    host: str = ""
    runs: tuple[ServingTimes, ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    refused: str = ""

    @property
    def known(self) -> float:
        """Return the share of the device's time for which the database has data."""
        return fsum(self.shares.get(name, 0.0) for name in (EXACT, IMPORTED, BETWEEN))

    @property
    def is_known(self) -> bool:
        """Return whether the times have values, and not only a range."""
        return self.known > 1 - MOST_WITHOUT_DATA

    def metrics(self) -> Iterator[tuple[str, str, Ends]]:
        """Yield the metrics with their ends: TTFT and TPOT in ms, tokens per second."""
        for metric, name in ((TTFT, "ttft_ms"), (TPOT, "tpot_ms")):
            ordered = [sorted(getattr(run, name)) for run in self.runs]
            if not (ordered and ordered[0]):  # no request has a second token
                continue
            for label, share in PERCENTILES.items():
                yield metric, label, _ends([percentile(values, share) for values in ordered])
        yield THROUGHPUT, "tokens_per_s", _ends([run.tokens_per_s for run in self.runs])

    def middle(self, metric: str) -> Ends | None:
        """Return the median of TTFT or TPOT, or the tokens per second and NPU; None without any."""
        for found, label, (value, low, high) in self.metrics() if self.runs else ():
            if metric == found == THROUGHPUT:
                return value / self.npus, low / self.npus, high / self.npus
            if found == metric and label == "p50":
                return value, low, high
        return None

    def point(self, run: int) -> tuple[float, float] | None:
        """Return the median TPOT of a run, and its tokens per second and NPU."""
        one = self.runs[run] if self.runs else None
        if one is None or not one.tpot_ms:
            return None
        return percentile(sorted(one.tpot_ms), 0.5), one.tokens_per_s / self.npus


def _ends(values: Sequence[float]) -> Ends:
    """Return the value of a quantity, and the ends of its range, from the three runs."""
    return values[0], min(values), max(values)


def runs_on_front(configurations: Sequence[ServedConfiguration]) -> list[int]:
    """Return for each configuration in how many of the runs it is on the Pareto front: no other one
    has a lower TPOT and more tokens per second and NPU. Durations of a run are those of the same
    end for all, so that the runs of configurations are compared one by one."""
    found = [0] * len(configurations)
    for run in range(max((len(one.runs) for one in configurations), default=0)):
        points = [one.point(run) for one in configurations]
        for at, point in enumerate(points):
            found[at] += point is not None and not any(
                other is not None
                and other != point
                and other[0] <= point[0]
                and other[1] >= point[1]
                for other in points
            )
    return found


def front_text(runs: int, of: int) -> str:
    """Return whether a configuration is on the front: in all runs, in some, or in none."""
    return "yes" if runs == of else "in part of the range" if runs else "no"


def write_serving(
    folder: Folder, title: str, place: str, configurations: Sequence[ServedConfiguration]
) -> None:
    """Write the page of configurations that served the same load."""
    rows = [
        _row(one, runs)
        for one, runs in zip(configurations, runs_on_front(configurations), strict=True)
    ]
    data = {"model": title, "place": place, "rows": [short_row(row) for row in rows]}
    tables = {"index": Table(_COLUMNS, rows)}
    folder.write(Page("index", "serving", f"{title} · {place}", data, tables))


def _row(one: ServedConfiguration, runs_on: int) -> list[Any]:
    """Return a configuration by _COLUMNS; a value is None where only its range is known."""
    cells: list[Any] = []
    for metric in (TTFT, TPOT, THROUGHPUT):
        value, low, high = one.middle(metric) or (None, None, None)
        cells += [value if one.is_known else None, low, high]
    front = front_text(runs_on, len(one.runs)) if one.runs else ""
    known = one.known if one.runs else None
    return [one.name, one.npus, *cells, known, front, one.refused]
