"""Layouts of images and filters in blocks of 16 channels, and sliding windows over them."""

from dataclasses import dataclass

from collector.model.case import Slot
from collector.ops.slots import Shape

# The layouts in which CANN keeps images and filters, as rows of a profile tell them.
#
#     NC1HWC0    (N, C1, H, W, C0)         channels in blocks of C0, the last one padded
#     FRACTAL_Z  (C1 * kh * kw, N1, 16, C0)  a filter (N, C, kh, kw), both kinds of channels padded
#
# C0 are as many numbers as 32 bytes hold; pooling has 16 of any dtype, and its rows a `:1` behind
# the format's name (one group). How many channels were padded no row of such tensors tells: a
# kernel computes with all of them, so that a case stands for as many as the blocks hold.
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


# What a row leaves unsaid of a window that slides over an image: strides and paddings.
#
# Sizes of input, output and window leave few of them: `(in + 2 p - window) // s + 1 == out`. What
# is taken are windows side by side, as patches are (224 to 14 by 16); else the least stride, and
# with it the least padding: 224 to 55 by 11 is a stride of 4 and a padding of 2. Where several
# would do, as many numbers are computed from as many.
ASSUMED = (
    "windows side by side where these make the output's size of the input's, else the least stride "
    "that does and then the least padding, the same on both sides and at most half a window; a "
    "square window where its area is one; no dilation, one group"
)
_LARGEST_WINDOW, _LARGEST_STRIDE = 255, 63  # Conv2D of CANN's operator library


@dataclass(frozen=True, slots=True)
class Window:
    """A window, how far it goes on, and what surrounds the image, each over H and W."""

    size: Shape
    stride: Shape
    padding: Shape

    @property
    def area(self) -> int:
        """Pixels of it."""
        return self.size[0] * self.size[1]

    def seen(self, image: Shape, output: Shape) -> int:
        """Pixels of an image (H, W) that an output of that size can have seen, at most."""
        sides = zip(image, output, self.size, strict=True)
        height, width = (min(size, out * window) for size, out, window in sides)
        return height * width


def read_window(image: Shape, output: Shape, area: int) -> Window | None:
    """The window of that area which makes an output (H, W) of an image (H, W); None where there is
    none, or several and no square among them."""
    if not 0 < area <= _LARGEST_WINDOW**2 or 0 in (*image, *output):
        return None
    fitting = [window for size in _sizes(area) if (window := _sliding(image, output, size))]
    square = [window for window in fitting if window.size[0] == window.size[1]]
    found = square or fitting
    return found[0] if len(found) == 1 else None


def _sizes(area: int) -> list[Shape]:
    sides = range(1, min(area, _LARGEST_WINDOW) + 1)
    return [(h, area // h) for h in sides if area % h == 0 and area // h <= _LARGEST_WINDOW]


def _sliding(image: Shape, output: Shape, size: Shape) -> Window | None:
    sides = [_step(*side) for side in zip(image, output, size, strict=True)]
    if None in sides:
        return None
    strides, paddings = zip(*(side for side in sides if side is not None), strict=True)
    return Window(size, strides, paddings)


def _step(size: int, out: int, window: int) -> tuple[int, int] | None:
    """Stride and padding over one dimension: `(224, 55, 11)` -> `(4, 2)`."""
    if window <= _LARGEST_STRIDE and size // window == out:
        return window, 0
    found = []
    for padding in range(window // 2 + 1):
        way = size + 2 * padding - window
        stride = way // out + 1  # the least with which no more than `out` fit
        if way >= 0 and stride <= _LARGEST_STRIDE and way // stride == out - 1:
            found.append((stride, padding))
    return min(found, default=None)
