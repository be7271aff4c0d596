"""A tensor as torch has it, and the same in blocks: which a row of TransData converts, and how it
is done in plain torch."""

from dataclasses import dataclass
from typing import Any

from collector.case import Case
from collector.ops.catalog.vision._blocks import (
    BLOCK,
    FILTER,
    IMAGE,
    IMAGE_OF_POOLING,
    blocks,
    channels_of,
    filter_of,
    image_of,
)
from collector.ops.slots import Shape
from collector.vocabulary import FRACTAL_NZ, is_plain_format

FORMATS = frozenset({IMAGE, IMAGE_OF_POOLING, FILTER, FRACTAL_NZ})


@dataclass(frozen=True, slots=True)
class Conversion:
    """The plain shape, the format of the blocks and their last dimension, and the direction."""

    plain: Shape
    layout: str
    channels: int
    is_into_blocks: bool


def read_conversion(case: Case) -> Conversion | None:
    """What a case converts; None where its two tensors are not one."""
    slots = (*(case.inputs or ()), *(case.outputs or ()))
    if len(slots) != 2 or any(slot.shape is None or 0 in slot.shape for slot in slots):
        return None
    is_into_blocks = is_plain_format(slots[0].format)
    plain, blocked = slots if is_into_blocks else slots[::-1]
    if not is_plain_format(plain.format) or blocked.format not in FORMATS:
        return None
    channels = BLOCK if blocked.format == IMAGE_OF_POOLING else channels_of(blocked)
    shape = plain.shape or ()
    if not channels or _in_blocks(shape, blocked.format, channels) != blocked.shape:
        return None
    return Conversion(shape, blocked.format, channels, is_into_blocks)


def converted(torch: Any, x: Any, way: Conversion) -> Any:
    """The tensor in the other layout, as new memory."""
    if not way.is_into_blocks:
        return _out_of_blocks(x, way).contiguous()
    padded = torch.nn.functional.pad(x, _padding(way)) if any(_padding(way)) else x
    split, order = _split(way)
    shape = _in_blocks(way.plain, way.layout, way.channels)
    return padded.view(split).permute(order).contiguous().view(shape)


def _out_of_blocks(x: Any, way: Conversion) -> Any:
    split, order = _split(way)
    lying = x.view([split[place] for place in order])
    back = sorted(range(len(order)), key=order.__getitem__)
    whole = lying.permute(back).reshape(_whole(way))
    for dimension, size in enumerate(way.plain):
        whole = whole.narrow(dimension, 0, size)
    return whole


def _in_blocks(plain: Shape, layout: str, channels: int) -> Shape | None:
    """How a plain shape lies; None where it cannot."""
    if layout == FRACTAL_NZ:
        if len(plain) < 2:
            return None
        *outer, rows, columns = plain
        return (*outer, blocks(columns, channels), blocks(rows, BLOCK), BLOCK, channels)
    if len(plain) != 4:
        return None
    return filter_of(plain, channels) if layout == FILTER else image_of(plain, channels)


def _split(way: Conversion) -> tuple[Shape, tuple[int, ...]]:
    """The whole blocks' shape as torch has it with each blocked dimension cut in two, and the order
    in which these lie."""
    c0, whole = way.channels, _whole(way)
    if way.layout == FRACTAL_NZ:
        *outer, rows, columns = whole
        n = len(outer)
        shape = (*outer, rows // BLOCK, BLOCK, columns // c0, c0)
        return shape, (*range(n), n + 2, n, n + 1, n + 3)
    n, c, h, w = whole
    if way.layout == FILTER:
        return (n // BLOCK, BLOCK, c // c0, c0, h, w), (2, 4, 5, 0, 1, 3)
    return (n, c // c0, c0, h, w), (0, 1, 3, 4, 2)


def _whole(way: Conversion) -> Shape:
    """The plain shape, padded to whole blocks."""
    c0, plain = way.channels, way.plain
    if way.layout == FRACTAL_NZ:
        *outer, rows, columns = plain
        return (*outer, blocks(rows, BLOCK) * BLOCK, blocks(columns, c0) * c0)
    n, c, h, w = plain
    n = blocks(n, BLOCK) * BLOCK if way.layout == FILTER else n
    return (n, blocks(c, c0) * c0, h, w)


def _padding(way: Conversion) -> list[int]:
    """What torch's pad takes: of each dimension before and behind, the last dimension first."""
    behind = [w - p for w, p in zip(_whole(way), way.plain, strict=True)]
    return [size for b in reversed(behind) for size in (0, b)]
