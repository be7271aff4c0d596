"""The pages of one version of a database: for each version directory a page of its coverage,
quality, warnings and provenance, and a page for each kernel type."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.commits import Commit
from collector.database.query import of_stack
from collector.database.state import State
from collector.database.version_quality import (
    ShownVersion,
    VersionQuality,
    quality_of,
    shown_version,
    warned_cases,
)
from collector.report.kernel_data import (
    CERTIFICATE_COLUMNS,
    KERNEL_COLUMNS,
    KernelData,
    kernel_data,
)
from collector.report.pages import Folder, Page, Table, file_stem

_SPAN_COLUMNS = ("node", "device_serial", "started_at")
_MOST_SUSPECTS = 2000  # on the page; the CSV has all
_EDGES = np.logspace(-3, 1, 41)  # of the histogram of half-widths, from 0.1 % to 1000 %
_SUMMARY = (
    *("kernel", "family", "cases", "durations", "without", "warned", "several"),
    *("median_us", "half_width", "roofline_share"),
)
_SUSPECTS = ("kernel", "case", "description", "mean_us", "half_width", "gates", "reasons")


@dataclass(frozen=True, slots=True)
class WorkloadCoverage:
    """How far a version directory covers a workload: for each status the cases, launches and time
    as shares, and for each kernel type the time, its shares by status, and the median half-width of
    the workload's own measured cases, None if there are none. `missing` is the command
    that writes the cases without a duration, empty if there are none."""

    name: str
    shares: Mapping[str, Mapping[str, float]]
    kernels: Sequence[Mapping[str, Any]]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class DatabaseSource:
    """Where the database is: the address of its store, and how the address of an object in it is
    written."""

    address: str
    address_of: Callable[[str], str]


def write_database(
    folder: Folder,
    source: DatabaseSource,
    commit: Commit,
    paths: Sequence[str],
    state_of: Callable[[str], State],
    coverage: Mapping[str, Sequence[WorkloadCoverage]],
) -> int:
    """Write the pages of a version of the database; return their number.

    `state_of` returns the state of one of its version directories (`paths`), and `coverage` has
    how far each covers workloads. One version directory is the first page; several have a folder
    each, and the first page lists them."""
    listed, count = [], 0
    for path in paths:
        room, up = ("", "") if len(paths) == 1 else (f"{file_stem(path)}/", "index")
        state = state_of(path)
        writer = _VersionPages(folder, room, up, source, commit, shown_version(state, path), state)
        listed.append(writer.write(coverage.get(path, ())))
        count += writer.pages
    if len(paths) != 1:
        facts = _facts(commit, source)
        data = {**facts, "versions": listed}
        rows = [[one[name] for name in _LISTED] for one in listed]
        title = f"opmeter database, version {commit.number}"
        folder.write(Page("index", "versions", title, data, {"index": Table(_LISTED, rows)}))
        count += 1
    return count


_LISTED = ("version", "device", "durations", "cases", "kernels", "warned", "median_half_width")


class _VersionPages:
    """The pages of one version directory, in a part `room` of the folder."""

    def __init__(
        self,
        folder: Folder,
        room: str,
        up: str,
        source: DatabaseSource,
        commit: Commit,
        shown: ShownVersion,
        state: State,
    ) -> None:
        self._folder, self._room, self._up, self._source = folder, room, up, source
        self._commit, self._shown = commit, shown
        version = state.versions[shown.path]
        self._stack = version.shown_stack
        self._version, self._all = version, state.measurements
        self.pages = 0

    def write(self, coverage: Sequence[WorkloadCoverage]) -> dict[str, Any]:
        """Write the pages; return the entry of the version directory in the list of all."""
        kernels = []
        pa.default_memory_pool().release_unused()  # a fifth of all at 150,000 cases
        for name in sorted(pc.unique(self._shown.cases["kernel_type"]).to_pylist()):
            measurements = self._measurements(CERTIFICATE_COLUMNS, name)
            found = kernel_data(self._shown, self._stack, measurements, name)
            kernels.append({**found.summary, "stem": self._write_kernel(found)})
        quality = quality_of(self._shown)
        suspects = self._suspect_rows()
        data = {
            **_facts(self._commit, self._source),
            "version": self._shown.path,
            "stack": self._stack.as_json(),
            "quality": _quality(quality),
            "widths": self._widths(),
            "sessions": _session_factors(self._shown),
            "spans": _spans(self._measurements(_SPAN_COLUMNS)),
            "kernels": kernels,
            "coverage": [asdict(one) for one in coverage],
            "pull": f"opmeter db pull tree --root {shlex.quote(self._source.address)}",
            "measure": f"opmeter measure --root {shlex.quote(self._source.address)} --file",
            "suspects": len(suspects),
        }
        tables = {
            f"{self._room}index": Table(
                _SUMMARY, [[one[name] for name in _SUMMARY] for one in kernels]
            ),
            f"{self._room}warnings": Table(_SUSPECTS, suspects),
        }
        title = f"{self._shown.path} · version {self._commit.number}"
        self._folder.write(Page(f"{self._room}index", "database", title, data, tables, self._up))
        stems = {one["kernel"]: one["stem"] for one in kernels}
        rows = [[*row, stems.get(str(row[0]), "")] for row in suspects[:_MOST_SUSPECTS]]
        self._folder.write_data(f"{self._room}warnings", rows)
        self.pages += 1
        return {
            "version": self._shown.path,
            "device": self._stack.device,
            "href": f"{self._room}index.html",
            "durations": quality.durations,
            "cases": self._shown.cases.num_rows,
            "kernels": len(kernels),
            "warned": quality.warned,
            "median_half_width": quality.median_reach,
        }

    def _measurements(self, names: Sequence[str], kernel: str = "") -> pa.Table:
        """Return these columns of the measurements that belong to the stack of the version: of one
        kernel type, or all."""
        more = ("kernel_type", "version_path", "stack_id", "cache")
        rows = self._all.select([*dict.fromkeys((*names, *more))])  # a filter copies all columns
        if kernel:
            rows = rows.filter(pc.equal(rows["kernel_type"], kernel))
        return of_stack(rows, self._version, self._shown.path).select(names)

    def _write_kernel(self, found: KernelData) -> str:
        stem = file_stem(found.kernel)
        path = f"{self._room}kernels/{stem}"
        raw = self._source.address_of("raw-key")
        data = {**found.page, "database": self._commit.number, "raw": raw, "chunks": stem}
        title = f"{found.kernel} · {self._shown.path}"
        tables = {path: Table(KERNEL_COLUMNS, found.rows)}
        self._folder.write(Page(path, "kernel", title, data, tables, f"{self._room}index"))
        for number, chunk in enumerate(found.chunks):
            self._folder.write_data(f"{path}/{number}", chunk)
        self.pages += 1
        return stem

    def _suspect_rows(self) -> list[list[object]]:
        kernel = dict(
            zip(*(self._shown.cases[n].to_pylist() for n in ("case", "kernel_type")), strict=True)
        )
        return [
            [
                *(kernel.get(one.case_id, ""), one.case_id, one.description, one.mean_us),
                *(one.half_width, "; ".join(one.warnings), "; ".join(one.reasons)),
            ]
            for one in warned_cases(self._shown)
        ]

    def _widths(self) -> dict[str, Any]:
        """Return the histogram of the half-widths of the intervals."""
        good = self._shown.best.filter(self._shown.best["good"])["measurement"].to_pylist()
        known = (self._shown.intervals.of.get(name) for name in good)
        reach = [one.high_us / one.mean_us - 1 for one in known if one is not None]
        counts, _ = np.histogram(np.clip(reach, _EDGES[0], _EDGES[-1]), _EDGES)
        return {"edges": [float(f"{edge:.4g}") for edge in _EDGES], "counts": counts.tolist()}


def _facts(commit: Commit, source: DatabaseSource) -> dict[str, Any]:
    return {
        "database": commit.number,
        "store": source.address,
        "time": commit.time,
        "author": commit.author,
        "runtime": commit.runtime.value,
        "content": commit.content_hash,
        "written_by": commit.written_by,
        "plans": [[plan.campaign, plan.number] for plan in commit.plans],
    }


def _quality(quality: VersionQuality) -> dict[str, Any]:
    plain = asdict(quality)
    for name in ("origins", "refused", "suspect", "proofs"):
        counts: Mapping[str, int] = getattr(quality, name)  # `asdict` breaks a Counter
        plain[name] = dict(sorted(counts.items(), key=lambda pair: -pair[1]))
    return plain


def _session_factors(shown: ShownVersion) -> list[list[object]]:
    """Return for each session with canaries its device, its begin, how slow it was, and why it is
    suspect."""
    found = [
        [one.of.device, one.of.began, one.factor.factor, one.factor.low, one.factor.high, one.fault]
        for one in shown.evidence.canaries
    ]
    return sorted(found, key=lambda row: (str(row[1]), str(row[0])))


def _spans(measurements: pa.Table) -> list[list[object]]:
    """Return for each node and device the number of measurements, and the first and last day."""
    names = ["node", "device_serial"]
    days = pc.utf8_slice_codeunits(measurements["started_at"], 0, 10)
    days = pc.if_else(pc.equal(days, ""), None, days)  # of a case that was not run
    found = (
        measurements.select(names)
        .append_column("day", days)
        .group_by(names)
        .aggregate([([], "count_all"), ("day", "min"), ("day", "max")])
    )
    columns = (found[n].to_pylist() for n in (*names, "count_all", "day_min", "day_max"))
    return sorted([list(row) for row in zip(*columns, strict=True)], key=lambda row: -row[2])
