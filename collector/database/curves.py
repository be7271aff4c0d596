"""The curves of a version directory that are no times of kernels, held back from what it shows.

All good measurements of one kernel type, core, state of the caches and input dtypes on one stack
are a curve. It is judged whether its durations hide its work (`quality/hidden_work`) and whether
they are microseconds (`quality/unit_mistake`). Which curves are held back follows from the set of
measurements alone, so that merges stay commutative; it is asked again at every view, and a curve
may be held back, or shown again, when more of it is measured. The measurements stay as they are.

Only operators are judged whose work is declared. On a cpu the host is the device, and what ranks
do together waits for a network: neither is judged.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.database.case_work import work_of
from collector.database.row_sets import places_alike
from collector.database.state import TEXT, Version
from collector.distribute_call import DISTRIBUTE_KERNELS
from collector.measurement import Outcome
from collector.ops.peaks import described_peaks
from collector.ops.registry import find
from collector.quality.curve import Floats
from collector.quality.evidence import Whole
from collector.quality.hidden_work import WorkCurve, find_hidden_work, may_hide
from collector.quality.unit_mistake import find_unit_mistake, may_be_mistaken
from collector.stack import Stack, backend_of
from collector.vocabulary import INPUT_DTYPES

# Measurement ids are hashes: the first so many of a curve are a fair part of it.
_MOST_OF_CURVE = 4000
_CURVE = ("kernel_type", "core", "cache", INPUT_DTYPES)
CURVE_COLUMNS = ("measurement", "case", "kernel_type", "core", "cache", "mean_us")

Faults = Mapping[str, str]  # measurement -> why its curve is held back


def curve_faults(good: pa.Table, cases: pa.Table, version: Version) -> Faults:
    """The measurements on curves that are held back. `good` are the good ones (CURVE_COLUMNS) that
    compete to show in a version directory, sorted by id, and `cases` the case records of that
    directory."""
    stack = version.shown_stack
    return {} if backend_of(stack.device) == "cpu" else dict(_faults(good, cases, stack))


def with_curve_faults(rows: pa.Table, faults: Faults) -> pa.Table:
    """The rows of measurements; those on a curve that is held back have the outcome `implausible`,
    with the reason, and are the same otherwise."""
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


def _faults(good: pa.Table, cases: pa.Table, stack: Stack) -> Iterator[tuple[str, str]]:
    """Each measurement of a curve that is held back, with the reason."""
    good = good.select(CURVE_COLUMNS)  # a filter copies all that it is given
    declared = [kind for kind in pc.unique(good["kernel_type"]).to_pylist() if _declared(kind)]
    good = good.filter(pc.is_in(good["kernel_type"], value_set=pa.array(declared, TEXT)))
    place = pc.index_in(good["case"], value_set=cases["case"].combine_chunks())
    good, place = good.filter(pc.is_valid(place)), place.drop_null()
    if not good.num_rows:
        return
    good = good.append_column(INPUT_DTYPES, cases[INPUT_DTYPES].take(place))
    duration_us = good["mean_us"].cast(pa.float64()).to_numpy()
    places = place.to_numpy()
    for curve in places_alike(good, _CURVE):
        part = curve[:_MOST_OF_CURVE]
        if not (may_hide(duration_us[part]) or may_be_mistaken(duration_us[part])):
            continue
        own, of_own = np.unique(places[part], return_inverse=True)
        fault = _fault(cases.take(pa.array(own)), of_own, duration_us[part], stack)
        if fault:
            for measurement in good["measurement"].take(pa.array(curve)).to_pylist():
                yield measurement, fault


def _fault(cases: pa.Table, measured: Whole, duration_us: Floats, stack: Stack) -> str:
    """Why the curve of measurements of these cases is held back; empty where it is not. `measured`
    has the place of each one's case."""
    work = work_of(cases, stack, is_checked=True)
    is_known = work.is_known[measured]
    measured, duration_us = measured[is_known], duration_us[is_known]
    if described_peaks(stack.device) is not None and may_be_mistaken(duration_us):
        fault = find_unit_mistake(duration_us, work.floors_us(stack)[measured])
        if fault:
            return fault
    curve = WorkCurve(work.operations[measured], work.traffic[measured], duration_us)
    hidden = find_hidden_work(curve)
    return hidden.fault if hidden else ""


def _declared(kernel_type: str) -> bool:
    return kernel_type not in DISTRIBUTE_KERNELS and find(kernel_type) is not None
