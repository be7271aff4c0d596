"""The cases of one kernel type for its page: sizes, durations with intervals, work, warnings, and
the measurements that they come from."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.curves import read_forms, work_of_forms
from collector.database.state import TEXT
from collector.database.version_quality import ShownVersion
from collector.model.stack import Stack
from collector.model.vocabulary import INPUT_SHAPES
from collector.ops.floor import described_peaks
from collector.ops.registry import family_of
from collector.report.case_groups import (
    CaseGroup,
    compute_dtype,
    differing_sizes,
    groups_of,
    independent_sizes,
    label_of,
)

A_CHUNK = 200  # cases whose measurements are in one data file
_MOST_FAILURES = 500
_NUMBERS = (
    *("mean_us", "ci_low_us", "ci_high_us", "median_us", "min_us", "p10_us", "p90_us", "spread"),
    *(
        "n_accepted",
        "n_observed",
        "outlier_share",
        "untrimmed_us",
        "opened_clock_mhz",
        "closed_clock_mhz",
        "opened_temperature_c",
    ),
)
_TEXTS = (
    *("measurement", "outcome", "reason", "cache", "core", "library", "identity", "assumes"),
    *("campaign", "plan", "shard", "attempt", "session", "node", "device_serial", "rank"),
    *("image_digest", "collector_version", "started_at", "raw_key", "counters", "disturbance"),
    "warnings",
)
CERTIFICATE_COLUMNS = ("case", *_NUMBERS, *_TEXTS)
KERNEL_COLUMNS = (
    *("case", "input_dtypes", "input_formats", "input_shapes", "settings"),
    *("mean_us", "low_us", "high_us", "sessions", "warnings"),
    *("operations", "traffic_bytes", "tflop_per_s", "gib_per_s", "roofline_share", "outlier"),
)
_SHORT = (
    *("mean_us", "low_us", "high_us", "operations", "traffic_bytes"),
    *("flop_per_s", "bytes_per_s", "roofline_share"),
)
Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class KernelData:
    """The data of a kernel type's page; the rows of its CSV (KERNEL_COLUMNS); and its row in the
    table of kernel types. `chunks` are the measurements, of A_CHUNK cases each."""

    kernel: str
    page: Mapping[str, Any]
    rows: Iterable[Sequence[object]]
    summary: Mapping[str, Any]
    chunks: Iterator[Mapping[str, Any]]


def kernel_data(
    shown: ShownVersion, stack: Stack, measurements: pa.Table, kernel: str
) -> KernelData:
    """Return the data of one kernel type of a version directory.

    `measurements` are those of the kernel type on this stack, with CERTIFICATE_COLUMNS."""
    cases = shown.cases.filter(pc.equal(shown.cases["kernel_type"], kernel))
    best = shown.best.filter(pc.is_in(shown.best["case"], value_set=_plain(cases["case"])))
    good = best.filter(best["good"])
    measured = cases.filter(pc.is_in(cases["case"], value_set=_plain(good["case"])))
    forms, single = read_forms(measured)
    alone = list(single)
    groups = groups_of(measured.num_rows, forms, alone)
    order = np.array([place for group in groups for place in group.places], np.int64)
    found = work_of_forms(forms, alone, measured.num_rows, stack, is_checked=False)
    work = np.array([found.operations, found.traffic])[:, order]
    del forms, alone
    measured = measured.take(pa.array(order))
    columns = _columns(measured, shown, stack, good, groups, work)
    failures = _failures(cases, best)
    page = {
        "kernel": kernel,
        "family": family_of(kernel),
        "version": shown.path,
        "device": stack.device,
        "cases": cases.num_rows,
        "groups": _described_groups(groups, columns),
        "columns": {
            name: short_numbers(values) if name in _SHORT else values
            for name, values in columns.items()
        },
        "roof": _roof(stack),
        "failures": failures,
        "chunk": A_CHUNK,
    }
    return KernelData(
        kernel,
        page,
        _csv_rows(groups, columns),
        _summary(kernel, cases.num_rows, columns, failures),
        _chunks(measurements, measured["case"].to_pylist()),
    )


def _plain(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks()


# The columns of the measured cases, group by group.


def _columns(
    measured: pa.Table,
    shown: ShownVersion,
    stack: Stack,
    good: pa.Table,
    groups: Sequence[CaseGroup],
    work: Floats,
) -> dict[str, list[Any]]:
    names = measured["case"].to_pylist()
    by_case = dict(zip(*(good[name].to_pylist() for name in ("case", "measurement")), strict=True))
    own = {
        case: (float(low) if low else None, float(high) if high else None)
        for case, low, high in zip(
            *(good[name].to_pylist() for name in ("case", "ci_low_us", "ci_high_us")), strict=True
        )
    }
    intervals = [shown.intervals.of.get(by_case[case]) for case in names]
    mean_us = [shown.mean_us[case] for case in names]
    low_us = [
        own[case][0] if one is None else one.low_us
        for case, one in zip(names, intervals, strict=True)
    ]
    high_us = [
        own[case][1] if one is None else one.high_us
        for case, one in zip(names, intervals, strict=True)
    ]
    seconds = np.array(mean_us) / 1e6
    operations, traffic = np.where(work > 0, work, np.nan)
    return {
        "case": names,
        "shapes": [text.strip('"') for text in measured[INPUT_SHAPES].to_pylist()],
        "mean_us": mean_us,
        "low_us": low_us,
        "high_us": high_us,
        "sessions": [1 if one is None else one.sessions for one in intervals],
        "warnings": ["; ".join(sorted(shown.warnings.get(case, ()))) for case in names],
        "operations": operations.tolist(),
        "traffic_bytes": traffic.tolist(),
        "flop_per_s": (operations / seconds).tolist(),
        "bytes_per_s": (traffic / seconds).tolist(),
        "roofline_share": _roofline_shares(groups, operations, traffic, seconds, stack).tolist(),
        "outlier": _outliers(groups, np.array(mean_us), np.array(high_us, np.float64)).tolist(),
    }


def _roof(stack: Stack) -> dict[str, Any] | None:
    """Return the published peaks of a device; None if there are none."""
    peaks = described_peaks(stack.device)
    if peaks is None:
        return None
    tflops = {dtype: rate * 1e12 for dtype, rate in sorted(peaks.tflops.items())}
    return {"flop_per_s": tflops, "bytes_per_s": peaks.bytes_per_s, "source": peaks.source}


def _roofline_shares(
    groups: Sequence[CaseGroup], operations: Floats, traffic: Floats, seconds: Floats, stack: Stack
) -> Floats:
    """Return how much of the duration the work takes at the peaks of the device; NaN if unknown, or
    if that is longer than the duration: then the data came from a cache, and memory is no bound."""
    found = np.full(len(seconds), np.nan)
    peaks = described_peaks(stack.device)
    at = 0
    for group in groups:
        part = slice(at, at + len(group.places))
        at = part.stop
        rate = peaks.tflops.get(compute_dtype(group.case)) if peaks else None
        if peaks is not None and rate is not None:
            computed_s = np.nan_to_num(operations[part]) / (rate * 1e12)
            ideal_s = np.maximum(computed_s, traffic[part] / peaks.bytes_per_s)
            share = ideal_s / seconds[part]
            found[part] = np.where(share <= 1, share, np.nan)
    return found


def _outliers(
    groups: Sequence[CaseGroup], mean_us: Floats, high_us: Floats
) -> npt.NDArray[np.bool_]:
    """Return which durations are off the curve of their neighbours: a case between two that differ
    in one size only, and off the line through them, in logarithms, by more than its interval and a
    factor of 1.5."""
    found = np.zeros(len(mean_us), np.bool_)
    least = np.maximum(np.nan_to_num(np.log(high_us / mean_us)), _OFF)
    at = 0
    for group in groups:
        own = slice(at, at + len(group.places))
        at = own.stop
        found[own] = off_curves(independent_sizes(group), np.log(mean_us[own]), least[own])
    return found


_OFF = np.log(1.5)
_FAR = np.log(16)  # of the sizes of two neighbours: a curve between them may bend


def off_curves(sizes: Floats, logs: Floats, least: Floats) -> npt.NDArray[np.bool_]:
    """Return which logarithms of durations differ by more than `least` from the line through their
    neighbours: of the cases (rows of `sizes`) that differ in one size only, the next ones."""
    found = np.zeros(len(logs), np.bool_)
    varying = [at for at in range(sizes.shape[1]) if len(np.unique(sizes[:, at])) > 2]
    if len(logs) < 5:
        return found
    for axis in varying:
        same = [
            at for at in range(sizes.shape[1]) if not np.array_equal(sizes[:, at], sizes[:, axis])
        ]
        order = np.lexsort((sizes[:, axis], *sizes[:, same].T))
        ordered, x, y = sizes[order][:, same], np.log(sizes[order, axis] + 1), logs[order]
        is_same = (ordered[:-2] == ordered[2:]).all(axis=1) & (x[2:] > x[1:-1]) & (x[1:-1] > x[:-2])
        span = np.where(is_same, x[2:] - x[:-2], 1.0)
        between = y[:-2] + (y[2:] - y[:-2]) * (x[1:-1] - x[:-2]) / span
        is_near = is_same & (span <= _FAR)
        is_off = is_near & (np.abs(y[1:-1] - between) > least[order[1:-1]])
        found[order[1:-1][is_off]] = True
    return found


def _described_groups(
    groups: Sequence[CaseGroup], columns: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    found, at = [], 0
    for group in groups:
        end = at + len(group.places)
        found.append(
            {
                **label_of(group.case),
                "begin": at,
                "end": end,
                "axes": differing_sizes(group),
                "dtype": compute_dtype(group.case),
            }
        )
        at = end
    return found


def _csv_rows(
    groups: Sequence[CaseGroup], columns: Mapping[str, Sequence[Any]]
) -> Iterator[list[object]]:
    labels = (label for one in groups for label in [label_of(one.case)] * len(one.places))
    names = ("mean_us", "low_us", "high_us", "sessions", "warnings", "operations")
    for at, label in enumerate(labels):
        flop_per_s, bytes_per_s = columns["flop_per_s"][at], columns["bytes_per_s"][at]
        yield [
            *(columns["case"][at], label.get("dtypes", ""), label.get("formats", "")),
            *(columns["shapes"][at], label.get("settings", "")),
            *(columns[name][at] for name in names),
            *(columns["traffic_bytes"][at], flop_per_s / 1e12, bytes_per_s / 2**30),
            *(columns["roofline_share"][at], int(columns["outlier"][at])),
        ]


def _failures(cases: pa.Table, best: pa.Table) -> dict[str, Any]:
    """Return the cases without a duration, by reason, and some of them."""
    bad = best.filter(pc.invert(best["good"]))
    reasons = dict(
        zip(
            bad["case"].to_pylist(),
            zip(bad["outcome"].to_pylist(), bad["reason"].to_pylist(), strict=True),
            strict=True,
        )
    )
    is_good = pc.is_in(cases["case"], value_set=_plain(best.filter(best["good"])["case"]))
    rest = cases.filter(pc.invert(is_good))
    rows = [
        [case, shapes.strip('"'), *reasons.get(case, ("not measured", ""))]
        for case, shapes in zip(
            rest["case"].to_pylist(), rest[INPUT_SHAPES].to_pylist(), strict=True
        )
    ]
    counts = Counter((row[2], row[3]) for row in rows)
    return {
        "count": len(rows),
        "reasons": [[count, *reason] for reason, count in counts.most_common(20)],
        "rows": rows[:_MOST_FAILURES],
    }


def _summary(
    kernel: str, cases: int, columns: Mapping[str, Sequence[Any]], failures: Mapping[str, Any]
) -> dict[str, Any]:
    mean, high = np.array(columns["mean_us"]), np.array(columns["high_us"], np.float64)
    shares = np.array(columns["roofline_share"], np.float64)
    shares = shares[np.isfinite(shares)]
    return {
        "kernel": kernel,
        "family": family_of(kernel),
        "cases": cases,
        "durations": len(mean),
        "without": failures["count"],
        "warned": sum(map(bool, columns["warnings"])),
        "several": sum(one > 1 for one in columns["sessions"]),
        "total_us": float(mean.sum()),
        "median_us": float(np.median(mean)) if len(mean) else None,
        "half_width": float(np.nanmedian(high / mean - 1)) if len(mean) else None,
        "roofline_share": float(np.median(shares)) if len(shares) else None,
    }


# The measurements of the cases.


def _chunks(measurements: pa.Table, cases: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the measurements of A_CHUNK cases at a time, column by column; a column in which all
    are equal is the value itself."""
    index = pc.index_in(measurements["case"], value_set=pa.array(cases, TEXT)).to_numpy()
    known = np.flatnonzero(np.isfinite(index))  # NaN for a case without a duration
    known = known[np.argsort(index[known], kind="stable")]
    row = index[known].astype(np.int64)
    order = pa.array(known)
    numbers = {name: short_numbers(_numbers(measurements[name]), order) for name in _NUMBERS}
    for begin in range(0, len(cases), A_CHUNK):
        first, last = np.searchsorted(row, [begin, begin + A_CHUNK]).tolist()
        own = measurements.select(_TEXTS).take(order.slice(first, last - first))
        yield {
            "row": row[first:last].tolist(),
            **{name: _collapsed(values[first:last]) for name, values in numbers.items()},
            **{name: _collapsed(own[name].to_pylist()) for name in _TEXTS},
        }


def _numbers(texts: pa.ChunkedArray) -> Floats:
    """Return the numbers of a column of texts, NaN where there is none."""
    known = pc.if_else(pc.equal(texts, ""), pa.scalar(None, texts.type), texts)
    found: Floats = known.cast(pa.float64()).to_numpy()
    return found


def _collapsed(values: list[Any]) -> Any:
    return values[0] if values and all(value == values[0] for value in values) else values


def short_numbers(values: Any, order: Any = None) -> list[Any]:
    """Return numbers with six digits, which halves the size of a page's data; None for NaN."""
    found = np.asarray(values, np.float64)
    if order is not None:
        found = found[order.to_numpy()]
    is_known = np.isfinite(found) & (found != 0)
    places = 5 - np.floor(np.log10(np.abs(np.where(is_known, found, 1.0))))
    scale = 10.0 ** np.abs(places)
    # A whole number over a power of ten is the nearest float to its decimal digits.
    short = np.where(places >= 0, np.rint(found * scale) / scale, np.rint(found / scale) * scale)
    plain = np.where(is_known, short, found).astype(object)
    plain[~np.isfinite(found)] = None
    return list(plain.tolist())
