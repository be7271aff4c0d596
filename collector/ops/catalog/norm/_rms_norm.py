"""Shared code of the RMS normalisation operators: arithmetic, and the sum that precedes the norm in
a layer."""

from typing import Any

from collector.model.case import Case
from collector.ops.parts import like
from collector.ops.spec import Call, TensorMaker

_EPSILON = 1e-6
TERMS = "x1 T:float[*rows, *c, d], x2 T[*rows, *c, d], gamma T[*c, d]"
RESULTS = "-> y T[*rows, *c, d], rstd FLOAT[*rows, 1*c, 1], sum T[*rows, *c, d]"
SUM_OPERATIONS = "5 * rows * c * d"  # the sum, a square, a sum and two products of the norm


def normalised(x: Any, gamma: Any) -> tuple[Any, Any]:
    """Return x / rms(x) * gamma, and 1 / rms(x) for the gradient; both FLOAT."""
    wide = x.float()
    rstd = wide.square().mean(normal_dims(gamma), keepdim=True).add_(_EPSILON).rsqrt_()
    return (wide * rstd).mul_(gamma), rstd


def normal_dims(gamma: Any) -> list[int]:
    """Return the dimensions of x that are normalised together."""
    return list(range(-gamma.dim(), 0))


def add_and_normalise(
    torch: Any, x1: Any, x2: Any, gamma: Any, beta: Any = None
) -> tuple[Any, Any, Any]:
    """Return the normalised sum, its rstd, and the sum."""
    total = torch.add(x1, x2)
    y, rstd = normalised(total, gamma)
    return (y if beta is None else y.add_(beta)).to(x1.dtype), rstd, total


def build_sum(case: Case, make: TensorMaker) -> Call:
    """Build two terms, gamma, and beta where the row has one."""
    return Call(*(like.normal(slot, make) for slot in case.inputs or () if slot.shape))
