"""Cases on a grid: a kernel's pattern with the dtypes and formats of rows that are there.

What is asked for is a sample of the cases that would run: points are taken in an order drawn by
chance, and those that no device takes, or that no memory holds, are left out until there are
enough. The same seed gives the same cases, whatever other kernels there are.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

from collector.case import Case, Slot, slot_cells
from collector.record import CaseRecord
from collector.shapes.blocks import in_blocks
from collector.shapes.grid_patterns import Dims, GridPattern, Way
from collector.vocabulary import (
    ACCELERATOR_CORE,
    BASE_CELLS,
    FRACTAL_NZ,
    INPUT_CELLS,
    OP_STATE,
    OUTPUT_CELLS,
    is_absent_dtype,
)

_MOST_LOOKS = 1_000_000
Pair = tuple[int, int]
Word = tuple[str, str]  # dtype and format of a slot


@dataclass(frozen=True, slots=True)
class Template:
    """What a row says beside its shapes: dtype and format of each slot, and its settings."""

    kernel_type: str
    inputs: tuple[Word, ...]
    outputs: tuple[Word, ...]
    op_state: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The records, and how many points were looked at of how many; of these how many were there
    already, were refused, and were too large."""

    records: tuple[CaseRecord, ...]
    looked_at: int
    points: int
    known: int
    refused: int
    too_large: int


@dataclass(frozen=True, slots=True)
class Wish:
    """At most so many `rows` (None: all), none of which needs more than `largest_bytes`."""

    rows: int | None
    seed: int
    largest_bytes: float


Accepts = Callable[[Case], bool]


def templates(cases: Iterable[Case]) -> tuple[Template, ...]:
    """What distinct rows of a kernel say beside their shapes, in their order. Rows whose inputs are
    unknown, or that run on an AI_CPU, are none."""
    found = (_template(case) for case in cases if case.inputs is not None)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def choose(
    pattern: GridPattern,
    like: Sequence[Template],
    products: Sequence[Pair],
    known: Collection[str],
    accepts: Accepts,
    wish: Wish,
) -> Chosen:
    """Cases of a kernel that are not among those `known` by id. `products` are the pairs (n, k) of
    weights."""
    kernel_type = like[0].kernel_type if like else ""
    sizes = [len(like), *map(len, pattern.axes.values())]
    sizes += [len(products)] if pattern.has_products else []
    points = prod(sizes)
    order = _order(points, wish, f"{wish.seed} {kernel_type}")
    found: dict[str, CaseRecord] = {}
    counts = {"known": 0, "refused": 0, "too_large": 0}
    looked_at = 0
    for point in order:
        if wish.rows is not None and len(found) >= wish.rows:
            break
        looked_at += 1
        template, names = _place(pattern, like, products, sizes, point)
        record = _record(pattern, template, names, accepts)
        if record is None:
            counts["refused"] += 1
        elif record.case_id in known or record.case_id in found:
            counts["known"] += 1
        elif _bytes(record.case) > wish.largest_bytes:
            counts["too_large"] += 1
        else:
            found[record.case_id] = record
    records = sorted(found.values(), key=lambda record: _shapes(record.case))
    return Chosen(tuple(records), looked_at, points, **counts)


def _order(points: int, wish: Wish, seed: str) -> Sequence[int]:
    """All points in their order, or some by chance: nobody looks longer than it would take to find
    one row among fifty."""
    if wish.rows is None:
        return range(points)
    looks = min(points, max(_MOST_LOOKS, 50 * wish.rows))
    return Random(seed).sample(range(points), looks)


def _template(case: Case) -> Template | None:
    attributes = dict(case.attributes)
    if attributes.pop(ACCELERATOR_CORE, None):
        return None
    inputs, outputs = (
        tuple((slot.dtype, slot.format) for slot in side or ())
        for side in (case.inputs, case.outputs)
    )
    settings = tuple(sorted(attributes.items()))
    return Template(case.kernel_type, inputs, outputs, case.op_state, settings)


def _place(
    pattern: GridPattern,
    like: Sequence[Template],
    products: Sequence[Pair],
    sizes: Sequence[int],
    point: int,
) -> tuple[Template, Mapping[str, int]]:
    """The template and the numbers of a point, the last axis counting first."""
    digits = []
    for size in reversed(sizes):
        point, digit = divmod(point, size)
        digits.append(digit)
    first, *rest = reversed(digits)
    axes = zip(pattern.axes.items(), rest, strict=False)
    names = {name: values[at] for (name, values), at in axes}
    if pattern.has_products:
        names["n"], names["k"] = products[rest[-1]]
    return like[first], names


def _record(
    pattern: GridPattern, template: Template, names: Mapping[str, int], accepts: Accepts
) -> CaseRecord | None:
    """The first way that the operator takes; None where it takes none."""
    if not all(rule.value(names) for rule in pattern.keep):
        return None
    for record in _ways(pattern.ways, template, names):
        if accepts(record.case):
            return record
    return None


def _ways(
    ways: Iterable[Way], template: Template, names: Mapping[str, int]
) -> Iterator[CaseRecord]:
    for way in ways:
        inputs = _slots(way.inputs, template.inputs, names)
        outputs = _slots(way.outputs, template.outputs, names)
        if inputs is not None and outputs is not None:
            told = {**slot_cells(INPUT_CELLS, inputs), **slot_cells(OUTPUT_CELLS, outputs)}
            cells = dict.fromkeys(BASE_CELLS, "") | told | {OP_STATE: template.op_state}
            yield CaseRecord(template.kernel_type, cells, dict(template.settings))


def _slots(
    way: Sequence[Dims], words: Sequence[Word], names: Mapping[str, int]
) -> list[Slot] | None:
    """The slots of a side, as many as the template has; None where it has one that the way does not
    know."""
    slots = []
    for at, (dtype, layout) in enumerate(words):
        dims = way[at] if at < len(way) else None
        is_absent = is_absent_dtype(dtype)
        if dims is None and not is_absent:
            return None
        if dims is None or is_absent:
            slots.append(Slot(None, dtype, layout))
        elif layout == FRACTAL_NZ and len(dims) > 1:
            slots.append(in_blocks(dtype, tuple(one.value(names) for one in dims)))
        else:
            slots.append(Slot(tuple(one.value(names) for one in dims), dtype, layout))
    return slots


def _bytes(case: Case) -> int:
    """All of its tensors at once."""
    return sum(slot.size_bytes for slot in (*(case.inputs or ()), *(case.outputs or ())))


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [slot.shape or () for slot in (*(case.inputs or ()), *(case.outputs or ()))]
