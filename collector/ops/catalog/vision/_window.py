"""What a row leaves unsaid of a window that slides over an image: strides and paddings.

Sizes of input, output and window leave few of them: `(in + 2 p - window) // s + 1 == out`. What is
taken are windows side by side, as patches are (224 to 14 by 16); else the least stride, and with it
the least padding: 224 to 55 by 11 is a stride of 4 and a padding of 2. Where several would do, as
many numbers are computed from as many.
"""

from dataclasses import dataclass

from collector.ops.slots import Shape

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
