"""Many legal cases from a few: fixture rows in which one size is replaced everywhere."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from collector.codec.errors import CaseRejected
from collector.model.case import parse_shape, shape_text, split_cell
from collector.model.record import CaseRecord
from collector.model.vocabulary import INPUT_SHAPES, OUTPUT_SHAPES
from collector.ops.registry import find_operator

_SIDES = (INPUT_SHAPES, OUTPUT_SHAPES)
_SIZES = (3, 5, 6, 7, 9, 10, 11, 12, 14, 18, 20, 24, 28, 33, 40, 48, 56, 64, 72, 96, 100)
_FRUITLESS = 40


def many(rows: list[CaseRecord], expected: int, seed: int = 0) -> list[CaseRecord]:
    """Return this many distinct cases that the operators accept for an NPU, distributed over the
    kernels of all rows as evenly as their shapes allow."""
    found = {row.case_id: row for row in rows}
    makers = [_variants(row, Random(f"{seed} {i}")) for i, row in enumerate(rows)]
    while makers and len(found) < expected:
        for maker in list(makers):
            row = next(maker, None)
            if row is None:
                makers.remove(maker)
            elif len(found) < expected:
                found[row.case_id] = row
    return list(found.values())


def _variants(row: CaseRecord, chance: Random) -> Iterator[CaseRecord]:
    """Yield accepted variants of a row, each once, until none has been found for a while."""
    seen, fruitless = {row.case_id}, 0
    while fruitless < _FRUITLESS:
        variant = _substituted(row, chance)
        if variant is None or variant.case_id in seen or not _is_accepted(variant):
            fruitless += 1
            continue
        seen.add(variant.case_id)
        fruitless = 0
        yield variant


def _substituted(row: CaseRecord, chance: Random) -> CaseRecord | None:
    """Return the row with one size replaced in all shapes; None if it has no size to replace."""
    sizes = sorted(
        {size for side in _SIDES for shape in _shapes(row, side) for size in shape or ()}
    )
    sizes = [size for size in sizes if size > 1]
    if not sizes:
        return None
    old, new = chance.choice(sizes), chance.choice(_SIZES)
    cells = {
        side: '"' + ";".join(_text(shape, old, new) for shape in _shapes(row, side)) + '"'
        for side in _SIDES
        if row.cells[side] != "N/A"
    }
    return replace(row, cells={**row.cells, **cells}, extra={})


def _shapes(row: CaseRecord, side: str) -> list[tuple[int, ...] | None]:
    text = row.cells[side]
    return [] if text == "N/A" else [parse_shape(slot) for slot in split_cell(text)]


def _text(shape: tuple[int, ...] | None, old: int, new: int) -> str:
    return shape_text(shape and tuple(new if size == old else size for size in shape))


def _is_accepted(row: CaseRecord) -> bool:
    op = find_operator(row.case.kernel_type)
    try:
        op.check(row.case, "npu")
    except CaseRejected:
        return False
    return True
