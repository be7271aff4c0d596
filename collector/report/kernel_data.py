"""The cases of one kernel type for its page: sizes, durations with intervals, work, warnings, and
the measurements that they come from."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.numbers import number_of
from collector.database.curves import Form, read_forms, work_of_forms
from collector.database.state import TEXT
from collector.database.version_quality import ShownVersion
from collector.model.case import Case, Slot
from collector.model.stack import Stack
from collector.model.vocabulary import INPUT_SHAPES, LENGTH_COLUMNS, RUNTIME_PREFIX
from collector.ops.floor import described_peaks
from collector.ops.registry import family_of
from collector.ops.together import lengths_of

A_CHUNK = 200  # cases whose measurements are in one data file
_WHOLE = re.compile(r"[0-9]{1,15}(?:,[0-9]{1,15})*")
_MOST_AXES = 6
_MOST_FAILURES = 500
_NUMBERS = (
    *("mean_us", "ci_low_us", "ci_high_us", "median_us", "min_us", "p10_us", "p90_us", "spread"),
    *("n_accepted", "n_observed", "opened_clock_mhz", "closed_clock_mhz", "opened_temperature_c"),
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


_Lengths = Mapping[str, tuple[int, float, float]]  # by column: the count, maximum and sum of a list


class _Group:
    """The cases of a kernel type that differ in sizes and lengths only: their indices, and for each
    case its sizes, slot by slot, and its lists of lengths."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.places: list[int] = []
        self.sizes: list[list[int]] = []
        self.lengths: list[_Lengths] = []


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
    groups = _groups(measured.num_rows, forms, alone)
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


# Groups of cases, and the sizes that differ in each.


def _groups(
    count: int, forms: Sequence[tuple[Whole, Form]], alone: Sequence[tuple[int, Case]]
) -> list[_Group]:
    """Return the groups of so many cases, the largest first; cases that cannot be read are in the
    last one."""
    found: dict[object, _Group] = {}
    read = [(places.tolist(), form.lengths.tolist(), form.first) for places, form in forms]
    read += [([place], [lengths_of(case)], case) for place, case in alone]
    for places, sizes, case in read:
        lengths = _lengths(case)
        group = found.setdefault((_signature(case), tuple(sorted(lengths))), _Group(case))
        group.places += places
        group.sizes += sizes
        group.lengths += [lengths] * len(places)
    groups = sorted(found.values(), key=lambda one: (-len(one.places), str(_label(one.case))))
    known = {place for group in groups for place in group.places}
    if unread := [place for place in range(count) if place not in known]:
        rest = _Group(Case("", None, None))
        rest.places, rest.sizes = unread, [[] for _ in unread]
        rest.lengths = [{} for _ in unread]
        groups.append(rest)
    for group in groups:
        by_size = sorted(range(len(group.places)), key=group.sizes.__getitem__)
        group.places = [group.places[at] for at in by_size]
        group.lengths = [group.lengths[at] for at in by_size]
        group.sizes = [group.sizes[at] for at in by_size]
    return groups


def _signature(case: Case) -> object:
    slots = tuple(
        None if of is None else tuple((s.dtype, s.format, len(s.shape or ())) for s in of)
        for of in (case.inputs, case.outputs)
    )
    return slots, case.op_state, _settings(case)


def _settings(case: Case) -> tuple[tuple[str, str], ...]:
    return tuple((name, text) for name, text in case.attributes if name not in LENGTH_COLUMNS)


def _lengths(case: Case) -> _Lengths:
    found = {}
    for name, text in case.attributes:
        if name in LENGTH_COLUMNS:
            parts = text.split(",")
            try:
                numbers: Sequence[float]
                # `number_of` takes ten times as long, and there are millions.
                numbers = list(map(int if _WHOLE.fullmatch(text) else number_of, parts))
            except ValueError:
                continue
            found[name.removeprefix(RUNTIME_PREFIX)] = (len(parts), max(numbers), sum(numbers))
    return found


def _label(case: Case) -> dict[str, str]:
    """Return what the cases of a group share, for people."""
    if case.inputs is None:
        return {"inputs": ""}
    settings = "; ".join(f"{n.removeprefix(RUNTIME_PREFIX)}={t}" for n, t in _settings(case))
    return {
        "inputs": _slots(case.inputs),
        "dtypes": ";".join(slot.dtype for slot in case.inputs),
        "formats": ";".join(slot.format for slot in case.inputs),
        "state": case.op_state,
        "settings": settings,
    }


def _slots(slots: Sequence[Slot]) -> str:
    """Return the inputs that are there, in short: `bf16[2] x 2, int8[2] FRACTAL_NZ`."""
    texts = [
        _slot(slot.dtype, slot.format, len(slot.shape or ())) for slot in slots if not slot.is_blank
    ]
    runs = [(text, len(list(same))) for text, same in groupby(texts)]
    return ", ".join(text if count == 1 else f"{text} x {count}" for text, count in runs)


def _slot(dtype: str, layout: str, rank: int) -> str:
    name = dtype.removeprefix("DT_").lower() or "-"
    return f"{name}[{rank}]" if layout in ("", "ND", "NULL") else f"{name}[{rank}] {layout}"


def _axes(group: _Group) -> list[dict[str, Any]]:
    """Return the sizes that differ among the cases of a group, by name, the most distinct first."""
    found: list[tuple[str, str, list[float]]] = []
    product = _product_axes(group)
    found += [*product, *_length_axes(group)]
    if not product and group.sizes and group.sizes[0]:
        columns = np.array(group.sizes, np.int64).T
        names = [
            f"{kind} {number + 1}, dim {dim + 1}"
            for kind, slots in (("input", group.case.inputs), ("output", group.case.outputs))
            for number, slot in enumerate(slots or ())
            for dim in range(len(slot.shape or ()))
        ]
        found += [(name, "", column.tolist()) for name, column in zip(names, columns, strict=True)]
    kept: list[dict[str, Any]] = []
    for name, unit, values in found:
        differs = len(set(values)) > 1
        if differs and all(values != one["values"] for one in kept):
            kept.append({"name": name, "unit": unit, "values": values})
    kept.sort(key=lambda one: -len(set(one["values"])))
    return kept[:_MOST_AXES]


def _product_axes(group: _Group) -> list[tuple[str, str, list[float]]]:
    """Return M, N and K, and the batch, of matrix products whose output has the plain layout."""
    case = group.case
    inputs, outputs = case.inputs or (), case.outputs or ()
    if family_of(case.kernel_type) != "matmul" or not inputs or not outputs:
        return []
    first, output = inputs[0], outputs[0]
    if "NZ" in output.format or "NZ" in first.format:
        return []
    if len(first.shape or ()) < 2 or len(output.shape or ()) < 2:
        return []
    at = sum(len(slot.shape or ()) for slot in inputs)
    columns = np.array(group.sizes, np.float64).T
    of_output = columns[at : at + len(output.shape or ())]
    batch, m, n = prod(of_output[:-2], start=np.ones(len(group.sizes))), *of_output[-2:]
    whole = prod(columns[: len(first.shape or ())], start=np.ones(len(group.sizes)))
    k = whole / np.maximum(batch * m, 1)
    if (k != np.round(k)).any():  # the first input is shared by the batch
        return []
    axes = (("M", m), ("N", n), ("K", k), ("batch", batch))
    return [(name, "", [int(v) for v in values.tolist()]) for name, values in axes]


# The lists of lengths that axes show, the first that a case has, and what one number of it is.
_LISTS = (
    ("actual_seq_lengths_kv_values", "KV length", "requests"),
    ("avg_seq_len", "mean length", "values"),
    ("group_list_values", "group", "groups"),
    ("actual_seq_lengths_values", "query length", "requests"),
)


def _length_axes(group: _Group) -> list[tuple[str, str, list[float]]]:
    first = group.lengths[0] if group.lengths else {}
    known = next((one for one in _LISTS if first.get(one[0])), None)
    if known is None:
        return []
    column, name, counted = known
    lists = [lengths.get(column, (0, 0.0, 0.0)) for lengths in group.lengths]
    names = ((counted, ""), (f"{name}, longest", "tokens"), (f"{name}, total", "tokens"))
    return [
        (axis, unit, list(values))
        for (axis, unit), values in zip(names, zip(*lists, strict=True), strict=True)
    ]


# The columns of the measured cases, group by group.


def _columns(
    measured: pa.Table,
    shown: ShownVersion,
    stack: Stack,
    good: pa.Table,
    groups: Sequence[_Group],
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
    groups: Sequence[_Group], operations: Floats, traffic: Floats, seconds: Floats, stack: Stack
) -> Floats:
    """Return how much of the duration the work takes at the peaks of the device; NaN if unknown."""
    found = np.full(len(seconds), np.nan)
    peaks = described_peaks(stack.device)
    at = 0
    for group in groups:
        part = slice(at, at + len(group.places))
        at = part.stop
        rate = peaks.tflops.get(_compute_dtype(group.case)) if peaks else None
        if peaks is not None and rate is not None:
            computed_s = np.nan_to_num(operations[part]) / (rate * 1e12)
            ideal_s = np.maximum(computed_s, traffic[part] / peaks.bytes_per_s)
            found[part] = ideal_s / seconds[part]
    return found


def _compute_dtype(case: Case) -> str:
    """Return torch's name of the dtype that a launch computes in, as far as its inputs show: that
    of the first input, or of the first floating one."""
    dtypes = [slot.known_dtype for slot in case.inputs or ()]
    if dtypes and dtypes[0] is not None and dtypes[0].torch_name == "int8":
        return "int8"
    floating = [dtype.torch_name for dtype in dtypes if dtype is not None and dtype.is_floating]
    return floating[0] if floating else ""


def _outliers(groups: Sequence[_Group], mean_us: Floats, high_us: Floats) -> npt.NDArray[np.bool_]:
    """Return which durations are off the curve of their neighbours: a case between two that differ
    in one size only, and off the line through them, in logarithms, by more than its interval and a
    factor of 1.5."""
    found = np.zeros(len(mean_us), np.bool_)
    least = np.maximum(np.nan_to_num(np.log(high_us / mean_us)), _OFF)
    at = 0
    for group in groups:
        own = slice(at, at + len(group.places))
        at = own.stop
        found[own] = off_curves(_independent_sizes(group), np.log(mean_us[own]), least[own])
    return found


_OFF = np.log(1.5)
_FAR = np.log(16)  # of the sizes of two neighbours: a curve between them may bend


def _independent_sizes(group: _Group) -> Floats:
    """Return the sizes of each case that can differ alone: other sizes follow from the lengths of
    attention, or from M, N and K."""
    named = _product_axes(group)
    if lengths := _length_axes(group):
        (count, _, counts), (_, _, longest), (_, _, total) = lengths
        whole = np.maximum(np.array(counts, np.float64) * np.array(longest, np.float64), 1)
        skew = np.round(np.array(total, np.float64) / whole, 2)
        named = [(count, "", counts), ("longest", "", longest), ("skew", "", skew.tolist())]
    if named:
        return np.array([values for _, _, values in named], np.float64).T
    return np.array(group.sizes, np.float64).reshape(len(group.places), -1)


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
    groups: Sequence[_Group], columns: Mapping[str, Sequence[Any]]
) -> list[dict[str, Any]]:
    found, at = [], 0
    for group in groups:
        end = at + len(group.places)
        found.append(
            {
                **_label(group.case),
                "begin": at,
                "end": end,
                "axes": _axes(group),
                "dtype": _compute_dtype(group.case),
            }
        )
        at = end
    return found


def _csv_rows(
    groups: Sequence[_Group], columns: Mapping[str, Sequence[Any]]
) -> Iterator[list[object]]:
    labels = (label for one in groups for label in [_label(one.case)] * len(one.places))
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
