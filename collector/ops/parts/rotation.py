"""Rotations by cos and sin that are as wide as what they turn, and such cos and sin."""

from collections.abc import Sequence
from math import tau
from typing import Any

from collector.ops.spec import TensorMaker


def rotate(torch: Any, x: Any) -> Any:
    """(a, b) -> (-b, a), the halves of the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def halves_first(x: Any) -> Any:
    """(a0, b0, a1, b1, ..) -> (a0, a1, .., b0, b1, ..): pairs side by side become halves."""
    return x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)


def make_positions(make: TensorMaker, shape: Sequence[int], dtype: str) -> tuple[Any, Any]:
    """cos and sin of random angles, the same in both halves of the last dimension: a rotation
    keeps lengths, so that rotating in place again and again stays finite."""
    *outer, size = shape
    angles = make.uniform((*outer, size // 2), "FLOAT", 0.0, tau)
    both = make.torch.cat((angles, angles), -1)
    real = make.dtype(dtype)
    return both.cos().to(real), both.sin().to(real)
