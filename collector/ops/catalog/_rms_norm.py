"""What the two directions of RMS normalisation share: which dimensions a gamma covers."""

from typing import Any

from collector.case import Case
from collector.ops.slots import Shape, input_shape


def rows_shape(case: Case, x: int, gamma: int) -> Shape | None:
    """The shape of `rstd`: one number a row, gamma's dimensions kept as 1; None where the last
    dimensions of x are not gamma's."""
    whole, weight = input_shape(case, x), input_shape(case, gamma)
    rows = len(whole) - len(weight)
    if not weight or rows < 0 or whole[rows:] != weight:
        return None
    return whole[:rows] + (1,) * len(weight)


def normal_dims(gamma: Any) -> list[int]:
    """The dimensions of x that are normalised together."""
    return list(range(-gamma.dim(), 0))
