"""The cases of a kernel type in groups that differ in sizes only, and the sizes of each group as
axes: M, N and K of products, lengths of attention, and dimensions of tensors."""

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from collector.codec.numbers import parse_number
from collector.database.curves import Form
from collector.model.case import Case, Slot
from collector.model.vocabulary import (
    GROUP_ENDS,
    KEY_LENGTHS,
    LENGTH_COLUMNS,
    MEAN_LENGTH,
    QUERY_LENGTHS,
    RUNTIME_PREFIX,
)
from collector.ops.registry import is_product
from collector.ops.sizes import SizeGroup, product_sizes, size_group
from collector.ops.together import lengths_of

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

_WHOLE = re.compile(r"[0-9]{1,15}(?:,[0-9]{1,15})*")
_MOST_AXES = 6

_Lengths = Mapping[str, tuple[int, float, float]]  # by column: the count, maximum and sum of a list


class CaseGroup:
    """The cases of a kernel type that differ in sizes and lengths only: their indices, and for each
    case its sizes, slot by slot, and its lists of lengths."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.places: list[int] = []
        self.sizes: list[list[int]] = []
        self.lengths: list[_Lengths] = []


def groups_of(
    count: int, forms: Sequence[tuple[Whole, Form]], alone: Sequence[tuple[int, Case]]
) -> list[CaseGroup]:
    """Return the groups of so many cases, the largest first; cases that cannot be read are in the
    last one."""
    found: dict[SizeGroup, CaseGroup] = {}
    read = [(places.tolist(), form.lengths.tolist(), form.first) for places, form in forms]
    read += [([place], [lengths_of(case)], case) for place, case in alone]
    for places, sizes, case in read:
        lengths = _lengths(case)
        group = found.setdefault(size_group(case), CaseGroup(case))
        group.places += places
        group.sizes += sizes
        group.lengths += [lengths] * len(places)
    groups = sorted(found.values(), key=lambda one: (-len(one.places), str(label_of(one.case))))
    known = {place for group in groups for place in group.places}
    if unread := [place for place in range(count) if place not in known]:
        rest = CaseGroup(Case("", None, None))
        rest.places, rest.sizes = unread, [[] for _ in unread]
        rest.lengths = [{} for _ in unread]
        groups.append(rest)
    for group in groups:
        by_size = sorted(range(len(group.places)), key=group.sizes.__getitem__)
        group.places = [group.places[at] for at in by_size]
        group.lengths = [group.lengths[at] for at in by_size]
        group.sizes = [group.sizes[at] for at in by_size]
    return groups


def _settings(case: Case) -> tuple[tuple[str, str], ...]:
    return tuple((name, text) for name, text in case.attributes if name not in LENGTH_COLUMNS)


def _lengths(case: Case) -> _Lengths:
    found = {}
    for name, text in case.attributes:
        if name in LENGTH_COLUMNS:
            parts = text.split(",")
            try:
                numbers: Sequence[float]
                # `parse_number` takes ten times as long, and there are millions.
                numbers = list(map(int if _WHOLE.fullmatch(text) else parse_number, parts))
            except ValueError:
                continue
            found[name] = (len(parts), max(numbers), sum(numbers))
    return found


def label_of(case: Case) -> dict[str, str]:
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


def differing_sizes(group: CaseGroup) -> list[dict[str, Any]]:
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


def _product_axes(group: CaseGroup) -> list[tuple[str, str, list[float]]]:
    """Return M, N and K, and the batch, of matrix products whose output has the plain layout."""
    case = group.case
    inputs, outputs = case.inputs or (), case.outputs or ()
    if not is_product(case.kernel_type) or not inputs or not outputs:
        return []
    first, output = inputs[0], outputs[0]
    if "NZ" in output.format or "NZ" in first.format:
        return []
    if len(first.shape or ()) < 2 or len(output.shape or ()) < 2:
        return []
    at = sum(len(slot.shape or ()) for slot in inputs)
    columns = np.array(group.sizes, np.float64).T
    of_output = columns[at : at + len(output.shape or ())]
    batch, m, n, k = product_sizes(columns[: len(first.shape or ())], of_output)
    axes = (("M", m), ("N", n), ("K", k), ("batch", np.broadcast_to(batch, m.shape)))
    return [(name, "", [int(v) for v in values.tolist()]) for name, values in axes]


# The lists of lengths that axes show, the first that a case has, and what one number of it is.
_LISTS = (
    (KEY_LENGTHS, "KV length", "requests"),
    (MEAN_LENGTH, "mean length", "values"),
    (GROUP_ENDS, "group", "groups"),
    (QUERY_LENGTHS, "query length", "requests"),
)


def _length_axes(group: CaseGroup) -> list[tuple[str, str, list[float]]]:
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


def independent_sizes(group: CaseGroup) -> Floats:
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


def compute_dtype(case: Case) -> str:
    """Return torch's name of the dtype that a launch computes in, as far as its inputs show: that
    of the first input, or of the first floating one."""
    dtypes = [slot.known_dtype for slot in case.inputs or ()]
    if dtypes and dtypes[0] is not None and dtypes[0].torch_name == "int8":
        return "int8"
    floating = [dtype.torch_name for dtype in dtypes if dtype is not None and dtype.is_floating]
    return floating[0] if floating else ""
