"""What the two directions of rotary positions share: the rotation, and which shapes fit."""

from typing import Any

from collector.case import Case
from collector.ops.slots import broadcast, input_shape
from collector.ops.spec import Constraint


def rotate(torch: Any, x: Any) -> Any:
    """(a, b) -> (-b, a), the halves of the last dimension."""
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def _positions_fit(case: Case) -> bool:
    x, cos, sin = (input_shape(case, i) for i in range(3))
    halves = bool(x) and x[-1] % 2 == 0 and cos[-1:] == x[-1:]
    return halves and cos == sin and broadcast(x, cos) == x


POSITIONS_FIT = Constraint(
    "an even last dimension is wanted, and cos and sin that broadcast to it",
    _positions_fit,
)
