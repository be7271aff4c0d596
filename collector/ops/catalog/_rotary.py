"""What the operators of rotary positions share: rotations, their tables, and which shapes fit."""

from collections.abc import Sequence
from math import tau
from typing import Any

from collector.case import Case
from collector.ops.slots import broadcast, input_shape
from collector.ops.spec import Constraint, TensorMaker


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


def _positions_fit(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    halves = bool(x) and x[-1] % 2 == 0 and cos[-1:] == x[-1:]
    return halves and cos == sin and broadcast(x, cos) == x


POSITIONS_FIT = Constraint(
    "an even last dimension is wanted, and cos and sin that broadcast to it",
    _positions_fit,
)
# npu_rotary_mul's own rules, where it does not compile (jit_compile=False).
_MOST = 896
FOUR_DIMENSIONS = Constraint(
    f"4 dimensions are wanted, the last one below {_MOST}",
    lambda case: len(input_shape(case, 0)) == 4 and input_shape(case, 0)[-1] < _MOST,
)
