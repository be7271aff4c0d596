"""Cases on a grid: a kernel's pattern with the dtypes and formats of existing rows.

The result is a sample of the cases that would run ("Add shapes" of
docs/how-to/turn-profiles-into-a-tree.md). The same seed gives the same cases, independent of other
kernels.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Any

from collector.codec.errors import BadInput
from collector.model import vocabulary
from collector.model.case import Case, Slot, tensor_cells
from collector.model.record import CaseRecord
from collector.ops.expression import in_blocks
from collector.ranks.collective import is_collective
from collector.ranks.experts import largest_buffsize_mb
from collector.ranks.gangs import is_of_gangs, routed_call
from collector.workloads.patterns import Dims, GridPattern, SlotTemplates
from collector.workloads.step import uneven_ends

# Memory that a case takes on a device during its replay.

_BUFFERS = 2
_DIMS_OF_BLOCKS = 4  # at least: a row with fewer dimensions records a plain matrix


def case_bytes(case: Case) -> int:
    """Return the bytes of all tensors together, and of the buffers of experts over ranks.

    Tensors in FRACTAL_NZ count in whole blocks, and twice, since they are made from a plain tensor.
    HCCL has one buffer of HCCL_BUFFSIZE to receive and one to send. Other memory of a kernel is
    unknown: a reserve covers it."""
    total = 0
    for slot in (*(case.inputs or ()), *(case.outputs or ())):
        is_nz = slot.format == vocabulary.FRACTAL_NZ and slot.shape and slot.known_dtype
        if is_nz and 2 <= len(slot.shape or ()) < _DIMS_OF_BLOCKS:
            slot = in_blocks(slot.dtype, slot.shape or ())
        total += (2 if is_nz else 1) * slot.size_bytes
    if not is_collective(case.kernel_type) and is_of_gangs(case):
        with suppress(BadInput):  # a row without its ranks, which is not replayed
            total += _BUFFERS * (largest_buffsize_mb([routed_call(case)]) << 20)
    return total


_MAX_EXAMINED = 1_000_000
_LIST = re.compile(r"\s*-?[0-9]+(\s*,\s*-?[0-9]+)+\s*")
Numbers = tuple[int, ...]
# The reason why there is no case, in place of the case.
Refusal = str


@dataclass(frozen=True, slots=True)
class SlotProperties:
    """The properties of a slot besides its shape.

    `is_empty` means that a row has none, as for a scalar; `in_blocks` that the row has the blocks
    of a matrix."""

    dtype: str
    format: str
    is_empty: bool
    in_blocks: bool


@dataclass(frozen=True, slots=True)
class Template:
    """The properties of a row besides its shapes: dtype and format of each slot, and its settings.

    Lists of lengths and similar lists are not included: they belong to the row's own shapes."""

    kernel_type: str
    inputs: tuple[SlotProperties, ...]
    outputs: tuple[SlotProperties, ...]
    op_state: str
    settings: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """The new records, and the number of points examined out of all points.

    `known` counts cases that existed already, `repeated` those found a second time, `refused` those
    refused (`why` is the first reason), and `too_large` those too large. `largest_bytes` is the
    size of the largest new record."""

    records: tuple[CaseRecord, ...]
    examined: int
    points: int
    known: int
    repeated: int
    refused: int
    why: Refusal
    too_large: int
    largest_bytes: int


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request for at most `rows` cases (None: all), existing ones included.

    No new case needs more than `largest_bytes`."""

    rows: int | None
    seed: int
    largest_bytes: float


# Returns the case as its operator runs it, with all its columns; or the reason why it does not run.
ResolveCase = Callable[[CaseRecord], CaseRecord | Refusal]


def templates(cases: Iterable[Case]) -> tuple[Template, ...]:
    """Return the properties of a kernel's distinct rows besides their shapes, in their order.

    Rows with unknown inputs, and rows that run on an AI_CPU, are left out."""
    found = (template_of(case) for case in cases if case.inputs is not None)
    return tuple(dict.fromkeys(one for one in found if one is not None))


def choose(
    pattern: GridPattern,
    like: Sequence[Template],
    sizes: Sequence[Numbers],
    known: Collection[str],
    resolve: ResolveCase,
    wish: SampleRequest,
) -> Sample:
    """Return cases of a kernel whose ids are not in `known`.

    `sizes` are those that only models define together, where the pattern has such an axis."""
    # The columns that a point sets replace those of a row.
    own = {*pattern.columns, *([pattern.ends.column] if pattern.ends else [])}
    settings = (tuple(pair for pair in one.settings if pair[0] not in own) for one in like)
    pairs = zip(like, settings, strict=True)
    like = tuple(dict.fromkeys(replace(one, settings=left) for one, left in pairs))
    axes = (like, *pattern.axes.values(), *([sizes] if pattern.model_axes else []))
    points = prod(map(len, axes))
    order = _order(points, wish, like[0].kernel_type if like else "")
    places = (_point_of(pattern, axes, point) for point in order)
    found = (case_at_point(pattern, template, names, resolve) for template, names in places)
    return pick(found, points, known, wish)


def pick(
    results: Iterable[CaseRecord | Refusal],
    points: int,
    known: Collection[str],
    wish: SampleRequest,
) -> Sample:
    """Return the first of these cases that satisfy the request, in the order of their shapes."""
    found: dict[str, CaseRecord] = {}
    existing_ids: set[str] = set()
    examined = repeated = refused = too_large = largest = 0
    why = ""
    for record in results:
        examined += 1
        if isinstance(record, Refusal):
            refused += 1
            why = why or record
        elif record.case_id in found or record.case_id in existing_ids:
            repeated += 1
        elif record.case_id in known:
            existing_ids.add(record.case_id)
        elif (size := case_bytes(record.case)) > wish.largest_bytes:
            too_large += 1
        else:
            found[record.case_id] = record
            largest = max(largest, size)
        if wish.rows is not None and len(found) + len(existing_ids) >= wish.rows:
            break
    records = tuple(sorted(found.values(), key=lambda record: _shapes(record.case)))
    return Sample(
        *(records, examined, points, len(existing_ids), repeated, refused, why, too_large, largest)
    )


def in_random_order(records: Sequence[CaseRecord], wish: SampleRequest) -> Sequence[CaseRecord]:
    """Return all records of a kernel, in the random order in which they are requested."""
    kernel_type = records[0].kernel_type if records else ""
    return [records[at] for at in _order(len(records), wish, kernel_type)]


def _order(points: int, wish: SampleRequest, kernel_type: str) -> Sequence[int]:
    """Return all points in order, or a random sample.

    The sample has at most one million points, or 50 for each requested row if that is more."""
    if wish.rows is None:
        return range(points)
    sample_size = min(points, max(_MAX_EXAMINED, 50 * wish.rows))
    return Random(f"{wish.seed} {kernel_type}").sample(range(points), sample_size)


def template_of(case: Case) -> Template | None:
    """Return the properties of a row besides its shapes; None for a row that runs on an AI_CPU."""
    attributes = dict(case.attributes)
    if attributes.pop(vocabulary.ACCELERATOR_CORE, None):
        return None
    has_shapes = any(slot.shape is not None for slot in case.inputs or ())
    inputs, outputs = (
        tuple(_word(slot, has_shapes) for slot in side or ())
        for side in (case.inputs, case.outputs)
    )
    settings = tuple(sorted(one for one in attributes.items() if not _LIST.fullmatch(one[1])))
    return Template(case.kernel_type, inputs, outputs, case.op_state, settings)


def _word(slot: Slot, has_shapes: bool) -> SlotProperties:
    """Return the word of a slot.

    Some rows record FRACTAL_NZ only as a format, with the plain shape of the matrix. A row of
    scalars alone is valid for its dtypes."""
    in_blocks = slot.format == vocabulary.FRACTAL_NZ and len(slot.shape or ()) >= _DIMS_OF_BLOCKS
    is_empty = vocabulary.is_absent_dtype(slot.dtype) or (slot.shape is None and has_shapes)
    return SlotProperties(slot.dtype, slot.format, is_empty, in_blocks)


def _point_of(
    pattern: GridPattern, axes: Sequence[Sequence[Any]], point: int
) -> tuple[Template, Mapping[str, int]]:
    """Return the template and the numbers of a point; the last axis varies fastest."""
    digits = []
    for axis in reversed(axes):
        point, digit = divmod(point, len(axis))
        digits.append(axis[digit])
    template, *numbers = reversed(digits)
    names = dict(zip(pattern.axes, numbers, strict=False))
    if pattern.model_axes:
        names.update(zip(pattern.model_axes, numbers[-1], strict=True))
    return template, names


def case_at_point(
    pattern: GridPattern, template: Template, names: Mapping[str, int], resolve: ResolveCase
) -> CaseRecord | Refusal:
    """Return the first way that the operator accepts, or the reason why it refuses the last."""
    broken = next((rule.text for rule in pattern.keep if not rule.value(names)), None)
    if broken is not None:
        return f"requires {broken}"
    why = "the pattern does not define every slot or its format, or a size is negative"
    columns = _columns(pattern, names)
    for record in _ways(pattern.ways, template, names):
        result = resolve(replace(record, extra={**record.extra, **columns}) if columns else record)
        if not isinstance(result, Refusal):
            return result
        why = result
    return why


def _columns(pattern: GridPattern, names: Mapping[str, int]) -> dict[str, str]:
    columns = {column: str(text.value(names)) for column, text in pattern.columns.items()}
    uneven = pattern.ends
    if uneven is None or not (percent := uneven.percent.value(names)):
        return columns
    ends = uneven_ends(uneven.rows.value(names), uneven.groups.value(names), percent)
    return columns | {uneven.column: ",".join(map(str, ends))}


def _ways(
    ways: Iterable[SlotTemplates], template: Template, names: Mapping[str, int]
) -> Iterator[CaseRecord]:
    for way in ways:
        inputs = _slots(way.inputs, template.inputs, names)
        outputs = _slots(way.outputs, template.outputs, names)
        if inputs is not None and outputs is not None:
            cells = {
                **dict.fromkeys(vocabulary.BASE_CELLS, ""),
                **tensor_cells(inputs, outputs),
                vocabulary.OP_STATE: template.op_state,
            }
            yield CaseRecord(template.kernel_type, cells, dict(template.settings))


def _slots(
    way: Sequence[Dims], words: Sequence[SlotProperties], names: Mapping[str, int]
) -> list[Slot] | None:
    """Return the slots of one side, as many as the template has, and empty where it has empty ones.

    None where the template has a slot that the way lacks, or blocks of unknown size, and for a
    negative size."""
    slots = []
    for at, word in enumerate(words):
        dims = way[at] if at < len(way) else None
        if word.is_empty:
            slots.append(Slot(None, word.dtype, word.format))
            continue
        if dims is None:
            return None
        shape = tuple(one.value(names) for one in dims)
        if any(size < 0 for size in shape):
            return None
        if word.in_blocks and (len(shape) < 2 or vocabulary.dtype_of(word.dtype) is None):
            return None
        plain = Slot(shape, word.dtype, word.format)
        slots.append(in_blocks(word.dtype, shape) if word.in_blocks else plain)
    return slots


def _shapes(case: Case) -> list[tuple[int, ...]]:
    return [slot.shape or () for slot in (*(case.inputs or ()), *(case.outputs or ()))]
