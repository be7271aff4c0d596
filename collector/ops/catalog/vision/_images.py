"""Layouts of images and filters in blocks of 16 channels, and sliding windows over them."""

from dataclasses import dataclass

from collector.model.case import Shape, Slot

# The layouts in which CANN stores images and filters, as a profile records them.
#
#     NC1HWC0    (N, C1, H, W, C0)         channels in blocks of C0, the last one padded
#     FRACTAL_Z  (C1 * kh * kw, N1, 16, C0)  a filter (N, C, kh, kw), both kinds of channels padded
#
# C0 is the number of elements in 32 bytes (Atlas 910: 16). Pooling has 16 for any dtype, and its
# rows have a `:1` after the format's name (one group). No row records how many channels were
# padded. A kernel computes all of them, so a case represents as many as the blocks hold.
BLOCK = 16  # rows of a block, and channels of a block in pooling
IMAGE, IMAGE_OF_POOLING, FILTER = "NC1HWC0", "NC1HWC0:1", "FRACTAL_Z"
_BLOCK_BITS = 256


def is_image(slot: Slot | None, *, of_pooling: bool = False) -> bool:
    """Return whether a slot is an image in blocks with the channel count of its dtype."""
    shape = slot.shape if slot else None
    if slot is None or shape is None or len(shape) != 5 or 0 in shape:
        return False
    formats = (IMAGE, IMAGE_OF_POOLING) if of_pooling else (IMAGE,)
    return slot.format in formats and shape[-1] == (BLOCK if of_pooling else channels_of(slot))


def is_filter(slot: Slot | None) -> bool:
    """Return whether a slot is a filter in blocks of 16 by 32 bytes."""
    shape = slot.shape if slot else None
    if slot is None or shape is None or len(shape) != 4 or 0 in shape:
        return False
    return slot.format == FILTER and shape[2:] == (BLOCK, channels_of(slot))


def channels_of(slot: Slot) -> int:
    """Return how many elements of a slot's dtype a block has; 0 where the dtype is unknown.

    These are 32 bytes, and for FLOAT on Atlas 910 (A1) 16 elements, as for the FLOAT16 in which it
    convolves."""
    if slot.known_dtype is None:
        return 0
    of_a1 = slot.known_dtype.spelling == "FLOAT" and (slot.shape or ())[-1:] == (BLOCK,)
    return BLOCK if of_a1 else _BLOCK_BITS // slot.known_dtype.item_bits


def image_of(shape: Shape, channels: int) -> Shape:
    """Return the blocked shape of an image (N, C, H, W), with this many channels per block."""
    n, c, h, w = shape
    return (n, blocks(c, channels), h, w, channels)


def filter_of(shape: Shape, channels: int) -> Shape:
    """Return the blocked shape of a filter (N, C, kh, kw), with this many channels per block."""
    n, c, kh, kw = shape
    return (blocks(c, channels) * kh * kw, blocks(n, BLOCK), BLOCK, channels)


def blocks(size: int, of: int) -> int:
    """Return the number of blocks that hold `size` elements."""
    return -(-size // of)


# The parameters of a sliding window that a row does not record: strides and paddings.
#
# The sizes of input, output and window allow only few of them: `(in + 2 p - window) // s + 1 ==
# out`. The choice is windows side by side, as patches are (224 to 14 by 16); else the least stride,
# and with it the least padding: 224 to 55 by 11 is a stride of 4 and a padding of 2. If several
# choices fit, they compute as many numbers from as many.
ASSUMED = (
    "windows side by side where these make the output's size of the input's, else the least stride "
    "that does and then the least padding, the same on both sides and at most half a window; a "
    "square window where its area is one; no dilation, one group"
)
_LARGEST_WINDOW, _LARGEST_STRIDE = 255, 63  # limits of Conv2D in CANN's operator library


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """A window, its stride, and the padding of the image, each over H and W."""

    size: Shape
    stride: Shape
    padding: Shape

    @property
    def area(self) -> int:
        """Return the number of pixels in the window."""
        return self.size[0] * self.size[1]

    def seen(self, image: Shape, output: Shape) -> int:
        """Return the maximum number of image pixels (H, W) that an output of that size reads."""
        sides = zip(image, output, self.size, strict=True)
        height, width = (min(size, out * window) for size, out, window in sides)
        return height * width


def read_window(image: Shape, output: Shape, area: int) -> SlidingWindow | None:
    """Return the window of that area that turns an image (H, W) into an output (H, W).

    None where there is none, or where there are several and none of them is square."""
    if not 0 < area <= _LARGEST_WINDOW**2 or 0 in (*image, *output):
        return None
    fitting = [window for size in _sizes(area) if (window := _sliding(image, output, size))]
    square = [window for window in fitting if window.size[0] == window.size[1]]
    found = square or fitting
    return found[0] if len(found) == 1 else None


def _sizes(area: int) -> list[Shape]:
    sides = range(1, min(area, _LARGEST_WINDOW) + 1)
    return [(h, area // h) for h in sides if area % h == 0 and area // h <= _LARGEST_WINDOW]


def _sliding(image: Shape, output: Shape, size: Shape) -> SlidingWindow | None:
    sides = [_step(*side) for side in zip(image, output, size, strict=True)]
    if None in sides:
        return None
    strides, paddings = zip(*(side for side in sides if side is not None), strict=True)
    return SlidingWindow(size, strides, paddings)


def _step(size: int, out: int, window: int) -> tuple[int, int] | None:
    """Return stride and padding over one dimension: `(224, 55, 11)` -> `(4, 2)`."""
    if window <= _LARGEST_STRIDE and size // window == out:
        return window, 0
    found = []
    for padding in range(window // 2 + 1):
        way = size + 2 * padding - window
        stride = way // out + 1  # the least stride for which no more than `out` windows fit
        if way >= 0 and stride <= _LARGEST_STRIDE and way // stride == out - 1:
            found.append((stride, padding))
    return min(found, default=None)
