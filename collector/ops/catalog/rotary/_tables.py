"""Tables of half-width cos and sin, in vLLM's format, rotation by them, and the size of a head."""

import re
from math import gcd, tau
from typing import Any

from collector.ops.spec import TensorMaker

_SIZE = re.compile(r"[1-9][0-9]{0,5}")


def make_rotary_table(make: TensorMaker, rows: int, size: int, dtype: str) -> Any:
    """Return a table with one row per position: cos, then sin, as in vLLM."""
    angles = make.uniform((rows, size // 2), "FLOAT", 0.0, tau)
    return make.torch.cat((angles.cos(), angles.sin()), -1).to(make.dtype(dtype))


def rotate_first_dims(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Rotate the first dimensions of x by half-width cos and sin, in float32 and in place."""
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    x[..., : 2 * half] = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return x


def head_size(width: int, narrow: int, rotary: int, recorded_size: str | None = None) -> int:
    """Return the size of a head: the recorded one, if it divides queries and keys; else 0.

    Without a recorded size: the rotation's size where it divides both, or the next larger common
    divisor."""
    if recorded_size is not None:
        size = int(recorded_size) if _SIZE.fullmatch(recorded_size) else 0
        return 0 if size < rotary or width % size or narrow % size else size
    common = gcd(width, narrow)
    return next((size for size in range(rotary, common + 1) if common % size == 0), 0)
