"""The work of the cases of a table, as their declarations count it.

A merge asks for it by the 100,000. Most cases of a kernel are of a few forms, which differ in the
numbers of their shapes alone: those of one form are read and asked together, all others one after
the other. By the answers nobody can tell which was done.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from collector.case import Case, case_from_cells
from collector.database.row_sets import places_alike, text_bytes
from collector.database.state import TEXT
from collector.errors import BadInput
from collector.ops.floor import floors_us, flops_per_s
from collector.ops.registry import find
from collector.ops.together import (
    FEW,
    Ask,
    Floats,
    Truths,
    Whole,
    asked_alone,
    asked_together,
    lengths_of,
    without_lengths,
)
from collector.stack import Stack
from collector.vocabulary import BASE_CELLS, INPUT_SHAPES, OUTPUT_SHAPES

_CELLS = ("kernel_type", "extra", *BASE_CELLS)
_SHAPES = (INPUT_SHAPES, OUTPUT_SHAPES)
_MARK = "#"
_FORM = re.compile(f'[{_MARK},;"]*')  # as most sources spell shapes, a mark for each number
_BLANKS = bytes(byte if byte in b"0123456789" else ord(" ") for byte in range(256))
_MOST_ELEMENTS = 2.0**62  # and of one number; larger ones are read as 2^63 - 1


@dataclass(frozen=True, slots=True)
class Work:
    """Of each of so many cases the operations and bytes of a launch, NaN where they are not known,
    and how many operations its dtypes allow in a second."""

    operations: Floats
    traffic: Floats
    flops_per_s: Floats

    @property
    def is_known(self) -> Truths:
        return np.isfinite(self.operations)

    def floors_us(self, stack: Stack) -> Floats:
        """Below which no launch can be on a stack's device; NaN where the work is not known."""
        found: Floats = floors_us(self.operations, self.traffic, self.flops_per_s, stack)
        return found


def work_of(cases: pa.Table, stack: Stack, *, is_checked: bool) -> Work:
    """The work of the cases of these records: none where nobody declared it. Of what a declaration
    refuses it is not known; that is asked, which takes longer, where it `is_checked`, and without
    it any work may be told of such a case."""
    found = np.full((cases.num_rows, 3), np.nan)
    forms, alone = _read(cases)
    for places, form in forms:
        found[places, :2] = asked_together(_ask(form.first, is_checked), *form)
        found[places, 2] = flops_per_s(form.first, stack)
    for place, case in alone:
        told = asked_alone(_ask(case, is_checked), case)
        found[place] = (*told, flops_per_s(case, stack))
    return Work(*found.T)


def lengths_of_forms(cases: pa.Table) -> Iterator[tuple[Whole, Whole]]:
    """The places, in their order, of the cases of these records that are the same but for their
    lengths, and the lengths of each."""
    found: dict[Case, list[tuple[Whole, Whole]]] = defaultdict(list)
    forms, alone = _read(cases)
    for places, form in forms:
        found[without_lengths(form.first)].append((places, form.lengths))
    for place, case in alone:
        lengths = np.array([lengths_of(case)], np.int64)
        found[without_lengths(case)].append((np.array([place]), lengths))
    for parts in found.values():
        places, lengths = (np.concatenate(told) for told in zip(*parts, strict=True))
        order = np.argsort(places)
        yield places[order], lengths[order]


def _read(cases: pa.Table) -> tuple[list[tuple[Whole, "_Form"]], Iterator[tuple[int, Case]]]:
    """The places of the cases that are read together, with their form, and all others that can be
    read, each with its place."""
    cases = cases.select(_CELLS)  # a table copies all that it is taken from
    forms: list[tuple[Whole, _Form]] = []
    alone: list[int] = []
    # The shapes of each, one behind the other.
    ends = (pa.scalar("", TEXT), pa.scalar(";", TEXT))
    shapes = pc.binary_join_element_wise(*(cases[name] for name in _SHAPES), *ends)
    for places in _forms(cases):
        form = _form(cases, shapes, places) if len(places) >= FEW else None
        if form is None:
            alone += places.tolist()
        else:
            forms.append((places, form))
    read = zip(alone, cases_of(cases.take(pa.array(alone, pa.int64()))), strict=True)
    return forms, ((place, case) for place, case in read if case is not None)


def _ask(case: Case, is_checked: bool) -> Ask:
    """What the declaration of a case's kernel is asked."""
    op = find(case.kernel_type)
    if op is None:
        return lambda case: (0.0, 0.0)

    def ask(case: Case) -> tuple[float, float]:
        if is_checked and op.complaint(case, "npu"):  # which has every layout that the others have
            return np.nan, np.nan
        return op.flops(case), op.traffic(case)

    return ask


def _forms(cases: pa.Table) -> list[Whole]:
    """The places of the cases of each form."""
    for name in _SHAPES:
        at = cases.column_names.index(name)
        cases = cases.set_column(at, name, _marked(cases[name].combine_chunks()))
    return places_alike(cases, _CELLS)


def _marked(texts: pa.Array) -> pa.Array:
    """The texts with a mark for each number; patterns take some times as long."""
    data = np.frombuffer(text_bytes(texts), np.uint8)
    ends = np.cumsum(pc.binary_length(texts).to_numpy())
    is_digit = data - ord("0") < 10  # what is below has gone round
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


class _Form(NamedTuple):
    """One of the cases of a form, and the lengths of all."""

    first: Case
    lengths: Whole


def _form(cases: pa.Table, shapes: pa.ChunkedArray, places: Whole) -> _Form | None:
    """None where each is read by itself."""
    own = shapes.take(pa.array(places)).combine_chunks()
    marked = _marked(own[:1])[0].as_py()
    if _MARK not in marked or not _FORM.fullmatch(marked):
        return None
    first = next(cases_of(cases.take(pa.array(places[:1]))))
    numbers = np.fromstring(bytes(text_bytes(own)).translate(_BLANKS), np.int64, sep=" ")
    lengths = numbers.reshape(len(places), -1)
    # Read by themselves they would be the same: as many, in the same order, and not too many.
    if first is None or lengths[0].tolist() != lengths_of(first):
        return None
    return _Form(first, lengths) if _are_shapes(first, lengths) else None


def _are_shapes(form: Case, lengths: Whole) -> bool:
    at = 0
    for slot in (*(form.inputs or ()), *(form.outputs or ())):
        own = np.maximum(lengths[:, at : at + len(slot.shape or ())], 1)
        if own.prod(axis=1, dtype=np.float64).max() > _MOST_ELEMENTS:
            return False
        at += own.shape[1]
    return True


def cases_of(rows: pa.Table) -> Iterator[Case | None]:
    """The case of each row; None where it is none."""
    columns = (rows[name].to_pylist() for name in _CELLS)
    for kernel, extra, *cells in zip(*columns, strict=True):
        more = json.loads(extra) if extra else {}
        try:
            yield case_from_cells(kernel, {**more, **dict(zip(BASE_CELLS, cells, strict=True))})
        except BadInput:
            yield None
