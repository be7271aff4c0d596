"""The layouts in which CANN keeps images and filters, as rows of a profile tell them.

    NC1HWC0    (N, C1, H, W, C0)         channels in blocks of C0, the last one padded
    FRACTAL_Z  (C1 * kh * kw, N1, 16, C0)  a filter (N, C, kh, kw), both kinds of channels padded

C0 are as many numbers as 32 bytes hold; pooling has 16 of any dtype, and its rows a `:1` behind
the format's name (one group). How many channels were padded no row of such tensors tells: a kernel
computes with all of them, so that a case stands for as many as the blocks hold.
"""

from collector.case import Slot
from collector.ops.slots import Shape

BLOCK = 16  # rows of a block, and channels of one of pooling
IMAGE, IMAGE_OF_POOLING, FILTER = "NC1HWC0", "NC1HWC0:1", "FRACTAL_Z"
_BLOCK_BITS = 256


def is_image(slot: Slot | None, *, of_pooling: bool = False) -> bool:
    """Whether a slot is an image in blocks of as many channels as its dtype has there."""
    shape = slot.shape if slot else None
    if slot is None or shape is None or len(shape) != 5 or 0 in shape:
        return False
    formats = (IMAGE, IMAGE_OF_POOLING) if of_pooling else (IMAGE,)
    return slot.format in formats and shape[-1] == (BLOCK if of_pooling else channels_of(slot))


def is_filter(slot: Slot | None) -> bool:
    """Whether a slot is a filter in blocks of 16 by 32 bytes."""
    shape = slot.shape if slot else None
    if slot is None or shape is None or len(shape) != 4 or 0 in shape:
        return False
    return slot.format == FILTER and shape[2:] == (BLOCK, channels_of(slot))


def channels_of(slot: Slot) -> int:
    """How many numbers of a slot's dtype 32 bytes hold; 0 where that is not known."""
    return _BLOCK_BITS // slot.known_dtype.item_bits if slot.known_dtype else 0


def image_of(shape: Shape, channels: int) -> Shape:
    """How an image (N, C, H, W) lies in blocks of so many channels."""
    n, c, h, w = shape
    return (n, blocks(c, channels), h, w, channels)


def filter_of(shape: Shape, channels: int) -> Shape:
    """How a filter (N, C, kh, kw) lies in blocks of so many channels."""
    n, c, kh, kw = shape
    return (blocks(c, channels) * kh * kw, blocks(n, BLOCK), BLOCK, channels)


def blocks(size: int, of: int) -> int:
    """How many blocks hold so many."""
    return -(-size // of)
