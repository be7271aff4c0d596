"""FRACTAL_NZ: a matrix in blocks, as a row of a profile tells it."""

from collector.case import Slot
from collector.shapes.expression import ceil_div
from collector.vocabulary import FRACTAL_NZ, dtype_of

_ROWS, _WIDTH_BITS = 16, 256


def in_blocks(dtype: str, shape: tuple[int, ...]) -> Slot:
    """A matrix (.., R, C) of a known dtype: (.., C / 32 bytes, R / 16, 16, 32 bytes), each rounded
    up to whole blocks."""
    known = dtype_of(dtype)
    assert known is not None, dtype
    *batch, rows, columns = shape
    width = _WIDTH_BITS // known.item_bits
    blocks = (ceil_div(columns, width), ceil_div(rows, _ROWS), _ROWS, width)
    return Slot((*batch, *blocks), dtype, FRACTAL_NZ)
