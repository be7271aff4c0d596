"""The curves of a version directory whose durations are not times of kernels, which are withheld
(docs/explanation/how-a-measurement-is-made.md).

All good measurements of one kernel type, core, state of the caches and input dtypes on one stack
are a curve. Which curves are withheld follows from the set of measurements alone, and is computed
again for every view. The measurements do not change. Only operators with declared work are checked,
and none on a CPU or over several ranks.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.codec.errors import BadInput
from collector.database.state import TEXT, places_alike, text_bytes, with_column
from collector.database.versions import VersionProperties
from collector.model.case import Case, case_from_cells, split_cell
from collector.model.measurement import Outcome
from collector.model.stack import Stack, backend_of
from collector.model.vocabulary import (
    AI_CPU,
    BASE_CELLS,
    INPUT_DTYPES,
    INPUT_SHAPES,
    OUTPUT_SHAPES,
    core_class,
)
from collector.ops import together
from collector.ops.floor import described_peaks, flops_per_s, lower_bounds_us
from collector.ops.registry import find_operator
from collector.ops.sizes import SizeGroup, length_lists, list_sizes, size_group
from collector.ops.together import Evaluate, Floats, Truths, Whole
from collector.quality import gates
from collector.quality.gates import WorkCurve
from collector.ranks.distribution import DISTRIBUTE_KERNELS

# The work of the cases of a table, as their declarations count it.
#
# A merge needs it for 100,000s of cases. Most cases of a kernel have one of a few forms, which
# differ only in the numbers of their shapes: these are read and evaluated together.

_CELLS = ("kernel_type", "extra", *BASE_CELLS)
_SHAPES = (INPUT_SHAPES, OUTPUT_SHAPES)
_MARK = "#"
_FORM = re.compile(f'[{_MARK},;"]*')  # as most sources spell shapes, a mark for each number
_BLANKS = bytes(byte if byte in b"0123456789" else ord(" ") for byte in range(256))
_MOST_ELEMENTS = 2.0**62  # and of one number; larger ones are read as 2^63 - 1


@dataclass(frozen=True, slots=True)
class Work:
    """For each case the operations and bytes of a launch, NaN if they are not known, and how many
    operations its dtypes allow in a second."""

    operations: Floats
    traffic: Floats
    flops_per_s: Floats

    @property
    def is_known(self) -> Truths:
        return np.isfinite(self.operations)

    def lower_bounds_us(self, stack: Stack) -> Floats:
        """Return the lower bound of a launch of each case on a stack's device; NaN if the work is
        not known."""
        found: Floats = lower_bounds_us(self.operations, self.traffic, self.flops_per_s, stack)
        return found


def work_of(cases: pa.Table, stack: Stack, *, is_checked: bool) -> Work:
    """Return the work of the cases of these records, 0 without a declaration. With `is_checked`,
    which takes longer, it is unknown for cases that the declaration refuses; otherwise the work of
    such cases is arbitrary."""
    return work_of_forms(*read_forms(cases), cases.num_rows, stack, is_checked=is_checked)


def work_of_forms(
    forms: Iterable[tuple[Whole, "Form"]],
    alone: Iterable[tuple[int, Case]],
    count: int,
    stack: Stack,
    *,
    is_checked: bool,
) -> Work:
    """Return the work of so many cases that `read_forms` read."""
    found = np.full((count, 3), np.nan)
    for places, form in forms:
        found[places, :2] = together.evaluate_together(
            _evaluation_of(form.first, is_checked), *form
        )
        found[places, 2] = flops_per_s(form.first, stack)
    for place, case in alone:
        numbers = together.evaluate_alone(_evaluation_of(case, is_checked), case)
        found[place] = (*numbers, flops_per_s(case, stack))
    return Work(*found.T)


def lengths_of_forms(cases: pa.Table) -> Iterator[tuple[Whole, Whole]]:
    """Yield, for each group of cases that differ in sizes alone, the indices of the cases in
    ascending order, and the sizes of each: of its tensors, and the means of its lists of lengths.
    """
    found: dict[SizeGroup, list[tuple[Whole, Whole]]] = defaultdict(list)
    forms, alone = read_forms(cases)
    read = [(places, form.first, form.lengths) for places, form in forms]
    for place, case in alone:
        lengths = np.array([together.lengths_of(case)], np.int64)
        read.append((np.array([place]), case, lengths))
    for places, case, lengths in read:
        means = np.array(list_sizes(length_lists(case))[::2], np.int64)
        sizes = np.hstack([lengths, np.tile(means, (len(places), 1))])
        group = size_group(case)
        sizes[:, list(group.free)] = 0
        found[group].append((places, sizes))
    for parts in found.values():
        places, sizes = (np.concatenate(recorded) for recorded in zip(*parts, strict=True))
        order = np.argsort(places)
        yield places[order], sizes[order]


def read_forms(cases: pa.Table) -> tuple[list[tuple[Whole, "Form"]], Iterator[tuple[int, Case]]]:
    """Return the indices of the cases that are read together, with their form, and all others that
    can be read, each with its index."""
    cases = cases.select(_CELLS)  # `take` copies all columns
    forms: list[tuple[Whole, Form]] = []
    alone: list[int] = []
    # The shapes of each case, concatenated.
    ends = (pa.scalar("", TEXT), pa.scalar(";", TEXT))
    shapes = pc.binary_join_element_wise(*(cases[name] for name in _SHAPES), *ends)
    marked = cases
    for name in _SHAPES:
        marked = with_column(marked, name, _marked(cases[name].combine_chunks()))
    for places in places_alike(marked, _CELLS):  # the cases of one form
        form = _form(cases, shapes, places) if len(places) >= together.FEW else None
        if form is None:
            alone += places.tolist()
        else:
            forms.append((places, form))
    read = zip(alone, cases_of(cases.take(pa.array(alone, pa.int64()))), strict=True)
    return forms, ((place, case) for place, case in read if case is not None)


def _evaluation_of(case: Case, is_checked: bool) -> Evaluate:
    op = find_operator(case.kernel_type)
    if op is None:
        return lambda case: (0.0, 0.0)

    def evaluate(case: Case) -> tuple[float, float]:
        if is_checked and op.rejection_reason(
            case, "npu"
        ):  # npu has every layout that the others have
            return np.nan, np.nan
        return op.flops(case), op.traffic(case)

    return evaluate


def _marked(texts: pa.Array) -> pa.Array:
    """Return the texts with a mark for each number; regular expressions take several times as
    long."""
    data = np.frombuffer(text_bytes(texts), np.uint8)
    ends = np.cumsum(pc.binary_length(texts).to_numpy())
    is_digit = data - ord("0") < 10  # smaller bytes have wrapped around
    is_first = is_digit.copy()
    is_first[1:] &= ~is_digit[:-1]
    begins = np.append(0, ends)[:-1]
    begins = begins[begins < len(data)]
    is_first[begins] = is_digit[begins]
    kept = is_first | ~is_digit
    marked = np.where(is_first, ord(_MARK), data)[kept].astype(np.uint8)
    offsets = np.append(0, np.cumsum(kept))[np.append(0, ends)].astype(np.int64)
    buffers = (pa.py_buffer(offsets), pa.py_buffer(marked))
    return pa.LargeStringArray.from_buffers(len(texts), *buffers)


class Form(NamedTuple):
    """One case of a form, and the lengths of all its cases."""

    first: Case
    lengths: Whole


def _form(cases: pa.Table, shapes: pa.ChunkedArray, places: Whole) -> Form | None:
    """Return the form of these cases; None if each must be read by itself."""
    own = shapes.take(pa.array(places)).combine_chunks()
    marked = _marked(own[:1])[0].as_py()
    if _MARK not in marked or not _FORM.fullmatch(marked):
        return None
    first = next(cases_of(cases.take(pa.array(places[:1]))))
    numbers = np.fromstring(bytes(text_bytes(own)).translate(_BLANKS), np.int64, sep=" ")
    lengths = numbers.reshape(len(places), -1)
    # Reading each by itself would give the same: as many numbers, in the same order, none too
    # large.
    if first is None or lengths[0].tolist() != together.lengths_of(first):
        return None
    # Where a row omits arguments, the sizes of the others may determine which ones.
    printed = len(split_cell(cases[INPUT_SHAPES][int(places[0])].as_py().rstrip(';" ')))
    if len(first.inputs or ()) > printed:
        return None
    at = 0
    for slot in (*(first.inputs or ()), *(first.outputs or ())):
        sizes = np.maximum(lengths[:, at : at + len(slot.shape or ())], 1)
        if sizes.prod(axis=1, dtype=np.float64).max() > _MOST_ELEMENTS:
            return None
        at += sizes.shape[1]
    return Form(first, lengths)


def cases_of(rows: pa.Table) -> Iterator[Case | None]:
    """Return the case of each row; None if the row has no valid case."""
    columns = (rows[name].to_pylist() for name in _CELLS)
    for kernel, extra, *cells in zip(*columns, strict=True):
        more = json.loads(extra) if extra else {}
        try:
            yield case_from_cells(kernel, {**more, **dict(zip(BASE_CELLS, cells, strict=True))})
        except BadInput:
            yield None


# Measurement ids are hashes: the first ones of a curve are a fair sample of it.
_MOST_OF_CURVE = 4000
_CURVE = ("kernel_type", "core", "cache", INPUT_DTYPES)
CURVE_COLUMNS = ("measurement", "case", "kernel_type", "core", "cache", "mean_us")

Faults = Mapping[str, str]  # measurement -> why its curve is withheld


def curve_faults(good: pa.Table, cases: pa.Table, version: VersionProperties) -> Faults:
    """Return the measurements on withheld curves. `good` are the good ones (CURVE_COLUMNS) that
    compete to show in a version directory, sorted by id, and `cases` the case records of that
    directory."""
    stack = version.shown_stack
    if backend_of(stack.device) == "cpu":
        return {}
    good = good.select(CURVE_COLUMNS)  # a filter copies all of its columns
    declared = [
        kind
        for kind in pc.unique(good["kernel_type"]).to_pylist()
        if kind not in DISTRIBUTE_KERNELS and find_operator(kind) is not None
    ]
    good = good.filter(pc.is_in(good["kernel_type"], value_set=pa.array(declared, TEXT)))
    place = pc.index_in(good["case"], value_set=cases["case"].combine_chunks())
    good, place = good.filter(pc.is_valid(place)), place.drop_null()
    if not good.num_rows:
        return {}
    good = good.append_column(INPUT_DTYPES, cases[INPUT_DTYPES].take(place))
    duration_us = good["mean_us"].cast(pa.float64()).to_numpy()
    places = place.to_numpy()
    faults: dict[str, str] = {}
    for curve in places_alike(good, _CURVE):
        part = curve[:_MOST_OF_CURVE]
        if not (
            gates.may_hide_work(duration_us[part]) or gates.may_have_wrong_unit(duration_us[part])
        ):
            continue
        own, of_own = np.unique(places[part], return_inverse=True)
        core = good["core"][int(part[0])].as_py()
        if fault := _fault(cases.take(pa.array(own)), of_own, duration_us[part], stack, core):
            withheld = good["measurement"].take(pa.array(curve)).to_pylist()
            faults |= dict.fromkeys(withheld, fault)
    return faults


def with_curve_faults(rows: pa.Table, faults: Faults) -> pa.Table:
    """Return the rows of measurements. Those on a withheld curve have the outcome `implausible`,
    with the reason; nothing else of them changes."""
    if not faults:
        return rows
    at = pc.index_in(rows["measurement"], value_set=pa.array(faults, TEXT))
    is_fault = pc.is_valid(at)
    reasons = pc.take(pa.array(faults.values(), TEXT), at)
    implausible = pa.scalar(Outcome.IMPLAUSIBLE.value, TEXT)
    rows = with_column(rows, "outcome", pc.if_else(is_fault, implausible, rows["outcome"]))
    return with_column(rows, "reason", pc.if_else(is_fault, reasons, rows["reason"]))


def _fault(cases: pa.Table, measured: Whole, duration_us: Floats, stack: Stack, core: str) -> str:
    """Return why the curve of measurements of these cases, all on one core, is withheld; empty if
    it is not. `measured` has the index of each one's case."""
    work = work_of(cases, stack, is_checked=True)
    is_known = work.is_known[measured]
    measured, duration_us = measured[is_known], duration_us[is_known]
    if described_peaks(stack.device) is not None and gates.may_have_wrong_unit(duration_us):
        fault = gates.find_unit_mistake(duration_us, work.lower_bounds_us(stack)[measured])
        if fault:
            return fault
    is_of_cores = core_class(core) != AI_CPU
    curve = WorkCurve(work.operations[measured], work.traffic[measured], duration_us, is_of_cores)
    hidden = gates.find_hidden_work(curve)
    return hidden.fault if hidden else ""


# The durations of a version that are above those of larger cases. No decision depends on them, and
# no certificate has them, because the larger case may be measured later.

# Case ids are hashes: the first ones of a kernel type are a fair sample of it.
_MOST_OF_KERNEL = 2000
# The share of all cases of a group, from this number on. Of 731 parts of clean published tables one
# exceeds it.
_FEWEST, _MOST_ABOVE = 40, 0.05


@dataclass(frozen=True, slots=True)
class AboveEnvelope:
    """A case that takes more than twice as long as one that is at least as large in every shape."""

    case: Case
    mean_us: float
    larger: Case
    larger_us: float


@dataclass(frozen=True, slots=True)
class OutOfOrder:
    """A kernel type with more cases above the envelope than tiles and alignment ever cause: a host
    delayed some of its launches, or its records are mixed up."""

    kernel_type: str
    above: int
    cases: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """The cases above the envelope, the farthest first, and the kernel types that have too many of
    them."""

    above: tuple[AboveEnvelope, ...] = ()
    out_of_order: tuple[OutOfOrder, ...] = ()


def envelope_of(cases: pa.Table, mean_us: Mapping[str, float], device: str) -> Envelope:
    """Return the envelope's exceptions; `cases` are records, sorted by id, and `mean_us` the
    durations of those to check. There are none on a CPU, where threads are added at some size."""
    if backend_of(device) == "cpu":
        return Envelope()
    cases = cases.filter(pc.is_in(cases["case"], value_set=pa.array(mean_us, TEXT)))
    kernels = [places[:_MOST_OF_KERNEL] for places in places_alike(cases, ("kernel_type",))]
    cases = cases.take(pa.array(np.sort(np.concatenate(kernels))))
    duration_us = np.array([mean_us[case] for case in cases["case"].to_pylist()], np.float64)
    larger = np.full(cases.num_rows, -1, np.int64)  # the index of a larger and faster case
    for places, lengths in lengths_of_forms(cases):
        faster = gates.larger_and_faster(lengths.astype(np.float64), duration_us[places])
        larger[places] = np.where(faster >= 0, places[faster], -1)
    above = np.flatnonzero(larger >= 0)
    above_envelope = _above_envelope(cases, duration_us, above, larger[above])
    counts = Counter(cases["kernel_type"].to_pylist())
    found = Counter(cases["kernel_type"].take(pa.array(above)).to_pylist())
    return Envelope(
        tuple(sorted(above_envelope, key=lambda one: one.larger_us / one.mean_us)),
        tuple(
            OutOfOrder(kernel_type, found[kernel_type], count)
            for kernel_type, count in sorted(counts.items())
            if count >= _FEWEST and found[kernel_type] > _MOST_ABOVE * count
        ),
    )


def _above_envelope(
    cases: pa.Table, duration_us: Floats, above: Whole, larger: Whole
) -> Iterator[AboveEnvelope]:
    pairs = (cases_of(cases.take(pa.array(places))) for places in (above, larger))
    for at, than, case, other in zip(above.tolist(), larger.tolist(), *pairs, strict=True):
        if case is not None and other is not None:  # a row without a valid case has no lengths
            yield AboveEnvelope(case, float(duration_us[at]), other, float(duration_us[than]))
