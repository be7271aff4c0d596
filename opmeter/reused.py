"""The durations that a version directory reuses of older ones, as the records of plans allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from collector.database.index import Index
from collector.database.reuse import Reuse, ReusedKernel
from collector.quality.changes import KnownMeans
from collector.quality.upgrades import reused_means
from opmeter.answers import Answer, Channel, ExplainedRow
from opmeter.cases import Query


class OldVersion(Protocol):
    """The version directory of an older stack, as `Version` is."""

    index: Index

    def exact_rows(self, query: Query) -> Iterator[int]: ...

    def measured(self, row: int) -> Answer: ...

    def explained_row(self, row: int) -> ExplainedRow: ...

    def several(self, rows: Sequence[int], values_us: Sequence[float]) -> tuple[str, ...]: ...


class ReusedCases:
    """The cases of older version directories that one version directory reuses.

    `records` are sorted by time; of two with a case the later counts. `open_version` returns an
    older version directory, and is called when a query first needs it."""

    def __init__(self, records: Sequence[Reuse], open_version: Callable[[str], OldVersion]) -> None:
        self._open = open_version
        self._opened: dict[str, OldVersion] = {}
        self._kernels: dict[str, tuple[Reuse, ReusedKernel]] = {}
        for record in records:
            for kernel in record.kernels:
                self._kernels.update(dict.fromkeys(kernel.cases, (record, kernel)))
        self._paths = list(dict.fromkeys(record.of for record in reversed(records)))

    def __len__(self) -> int:
        return len(self._kernels)

    def answer(self, query: Query) -> Answer | None:
        """Return the duration of a case that is reused; None if it is none."""
        found = self._find(query)
        return found and found[0]

    def explained(self, query: Query) -> tuple[Answer, ExplainedRow] | None:
        """Return the duration and the measured case of the older directory behind it."""
        found = self._find(query)
        return found and (found[0], found[1].explained_row(found[2]))

    def _find(self, query: Query) -> tuple[Answer, OldVersion, int] | None:
        """Return the duration of a case that is reused, its older directory and its row there."""
        for path in self._paths:
            if path not in self._opened:
                self._opened[path] = self._open(path)
            version = self._opened[path]
            rows = [row for row in version.exact_rows(query) if self._is_reused(version, row, path)]
            if rows:
                answers = [self._answer(version, row) for row in rows]
                several = version.several(rows, [one.value_us for one in answers])
                first = answers[0]._replace(warnings=(*several, *answers[0].warnings))
                return first, version, rows[0]
        return None

    def _is_reused(self, version: OldVersion, row: int, path: str) -> bool:
        known = self._kernels.get(version.index.case(row))
        return known is not None and known[0].of == path

    def _answer(self, version: OldVersion, row: int) -> Answer:
        index = version.index
        record, kernel = self._kernels[index.case(row)]
        degrees = index.arrays["degrees"][row]
        old = KnownMeans(
            *(np.array([n]) for n in (index.mean_us[row], index.high_us[row], degrees))
        )
        found, known = reused_means(old, kernel.ratio), version.measured(row)
        mean_us, high_us = float(found.mean_us[0]), float(found.high_us[0])
        # Near the profiler's shortest duration the lower end of the old interval is lower.
        reach = max(high_us / mean_us, known.value_us / known.low_us)
        low, high = kernel.ratio.interval()
        note = (
            f"reused from {record.of}, version {record.head_commit}: x{kernel.ratio.ratio:.3f} "
            f"[{low:.3f}, {high:.3f}] of {kernel.ratio.cases} measured cases"
        )
        return Answer(
            *(mean_us, mean_us / reach, high_us, Channel.REUSED, known.support),
            (*known.warnings, note),
        )
