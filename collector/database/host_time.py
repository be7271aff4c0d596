"""The curves of a version directory that hide their work, held back from what it shows.

All good measurements of one kernel type, core, state of the caches and input dtypes on one stack
are a curve; `quality/hidden_work` judges it. Which curves those are follows from the set of
measurements alone, so that merges stay commutative; it is asked again at every view, and a curve
may be held back, or shown again, when more of it is measured. The measurements stay as they are.

Only operators are judged whose work is declared. On a cpu the host is the device, and what ranks
do together waits for a network: neither is judged.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.case import case_from_cells
from collector.database.state import TEXT, Version
from collector.distribute_call import DISTRIBUTE_KERNELS
from collector.errors import BadInput, CaseRejected
from collector.measurement import Outcome
from collector.ops.registry import find
from collector.ops.spec import OpSpec
from collector.quality.hidden_work import WorkCurve, hidden_work, may_hide
from collector.vocabulary import BASE_CELLS, INPUT_DTYPES

# Measurement ids are hashes: the first so many of a curve are a fair part of it.
_MOST_OF_CURVE = 4000
_CURVE = ("kernel_type", "core", "cache", INPUT_DTYPES)
CURVE_COLUMNS = ("measurement", "case", "kernel_type", "core", "cache", "mean_us")


def with_host_time(rows: pa.Table, good: pa.Table, cases: pa.Table, version: Version) -> pa.Table:
    """The rows of measurements; those on a curve that hides its work have the outcome
    `implausible`, with the reason, and are the same otherwise. `good` are the good measurements
    (CURVE_COLUMNS) that compete to show in a version directory, sorted by id, and `cases` the case
    records of that directory."""
    if version.shown_stack.device.startswith("CPU_"):
        return rows
    faults = dict(_faults(good, cases))
    if not faults:
        return rows
    at = pc.index_in(rows["measurement"], value_set=pa.array(faults, TEXT))
    is_fault = pc.is_valid(at)
    reasons = pc.take(pa.array(faults.values(), TEXT), at)
    rows = _replaced(rows, "outcome", is_fault, pa.scalar(Outcome.IMPLAUSIBLE.value, TEXT))
    return _replaced(rows, "reason", is_fault, reasons)


def _replaced(rows: pa.Table, name: str, chosen: Any, texts: Any) -> pa.Table:
    at = rows.column_names.index(name)
    return rows.set_column(at, name, pc.if_else(chosen, texts, rows[name]))


def _faults(good: pa.Table, cases: pa.Table) -> Iterator[tuple[str, str]]:
    """Each measurement of a curve that hides its work, with the reason."""
    declared = [kind for kind in pc.unique(good["kernel_type"]).to_pylist() if _declared(kind)]
    good = good.filter(pc.is_in(good["kernel_type"], value_set=pa.array(declared, TEXT)))
    place = pc.index_in(good["case"], value_set=cases["case"].combine_chunks())
    good, place = good.filter(pc.is_valid(place)), place.drop_null()
    if not good.num_rows:
        return
    good = good.append_column(INPUT_DTYPES, cases[INPUT_DTYPES].take(place))
    duration_us = good["mean_us"].cast(pa.float64()).to_numpy()
    for curve in _curves(good):
        if not may_hide(duration_us[curve]):
            continue
        op = _declared(good["kernel_type"][int(curve[0])].as_py())
        part = curve[:_MOST_OF_CURVE]
        work = _work(op, cases.take(place.take(pa.array(part)))) if op else None
        found = work and hidden_work(work.curve(duration_us[part]))
        if found and found.fault:
            for measurement in good["measurement"].take(pa.array(curve)).to_pylist():
                yield measurement, found.fault


def _declared(kernel_type: str) -> OpSpec | None:
    return None if kernel_type in DISTRIBUTE_KERNELS else find(kernel_type)


def _curves(good: pa.Table) -> list[Any]:
    """The places of the measurements of each curve, in their order."""
    texts = [good[name].combine_chunks() for name in _CURVE]
    names = pc.binary_join_element_wise(*texts, pa.scalar("|", TEXT))
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(codes[order])) + 1)


@dataclass(frozen=True, slots=True)
class _Work:
    """Operations and bytes of cases; NaN of one whose declaration refuses it."""

    operations: Any
    traffic: Any

    def curve(self, duration_us: Any) -> WorkCurve:
        known = np.isfinite(self.operations)
        return WorkCurve(self.operations[known], self.traffic[known], duration_us[known])


def _work(op: OpSpec, cases: pa.Table) -> _Work:
    names = ("kernel_type", "extra", *BASE_CELLS)
    rows = zip(*(cases[name].to_pylist() for name in names), strict=True)
    amounts = [_amounts(op, kernel, extra, cells) for kernel, extra, *cells in rows]
    operations, traffic = np.array(amounts, np.float64).T
    return _Work(operations, traffic)


def _amounts(op: OpSpec, kernel_type: str, extra: str, cells: list[str]) -> tuple[float, float]:
    more = json.loads(extra) if extra else {}
    try:
        case = case_from_cells(kernel_type, {**more, **dict(zip(BASE_CELLS, cells, strict=True))})
        op.check(case, "npu")  # which has every layout that the others have
    except (BadInput, CaseRejected):
        return np.nan, np.nan
    return float(op.flops(case)), float(op.traffic(case))
