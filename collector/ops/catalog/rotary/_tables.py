"""Tables of half-width cos and sin, as vLLM keeps them, and turning by them."""

from math import tau
from typing import Any

from collector.ops.spec import TensorMaker


def make_table(make: TensorMaker, rows: int, size: int, dtype: str) -> Any:
    """A row for each position, cos in its first half and sin in the other, as vLLM keeps them."""
    angles = make.uniform((rows, size // 2), "FLOAT", 0.0, tau)
    return make.torch.cat((angles.cos(), angles.sin()), -1).to(make.dtype(dtype))


def turn(torch: Any, x: Any, cos: Any, sin: Any) -> Any:
    """The first dimensions of x turned by half-width cos and sin, in float32 and in place."""
    half = cos.shape[-1]
    a, b = x[..., :half].float(), x[..., half : 2 * half].float()
    x[..., : 2 * half] = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    return x
