"""Shared code of the RMS normalisation operators.

Arithmetic, the dimensions that a gamma covers, and the sum that precedes the norm in a layer.
"""

from typing import Any

from collector.model.case import Case, Shape
from collector.ops import rules
from collector.ops.parts import like
from collector.ops.slots import elements, given, input_shape, output_slot, outputs_agree, spelling
from collector.ops.spec import Call, Constraint, TensorMaker

_EPSILON = 1e-6
_X1, _X2, _GAMMA, _BETA = range(4)
_RSTD, _SUM = 1, 2


def normalised(x: Any, gamma: Any) -> tuple[Any, Any]:
    """Return x / rms(x) * gamma, and 1 / rms(x) for the gradient; both FLOAT."""
    wide = x.float()
    rstd = wide.square().mean(normal_dims(gamma), keepdim=True).add_(_EPSILON).rsqrt_()
    return (wide * rstd).mul_(gamma), rstd


def rows_shape(case: Case, x: int, gamma: int) -> Shape | None:
    """Return the shape of `rstd`: one number a row, with gamma's dimensions as 1.

    None where the last dimensions of x are not gamma's."""
    whole, weight = input_shape(case, x), input_shape(case, gamma)
    rows = len(whole) - len(weight)
    if not weight or rows < 0 or whole[rows:] != weight:
        return None
    return whole[:rows] + (1,) * len(weight)


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
    slots = [slot for i in (_X1, _X2, _GAMMA, _BETA) if (slot := given(case, i))]
    return Call(*(like.normal(slot, make) for slot in slots))


def sum_flops(case: Case) -> int:
    """Return per element the sum, a square, a sum and two products of the norm, and a beta."""
    return (6 if given(case, _BETA) else 5) * elements(input_shape(case, _X1))


def _sum_fits(case: Case) -> bool:
    x1, x2, gamma, beta = (input_shape(case, i) for i in range(4))
    beta_fits = given(case, _BETA) is None or beta == gamma
    return x1 == x2 and rows_shape(case, _X1, _GAMMA) is not None and beta_fits


def _outputs_fit(case: Case) -> bool:
    x1 = input_shape(case, _X1)
    return outputs_agree(case, x1, rows_shape(case, _X1, _GAMMA), x1)


def _dtypes_fit(case: Case) -> bool:
    """Return whether x2, gamma, beta, y and the sum have the dtype of x1."""
    slots = (*(given(case, i) for i in range(4)), output_slot(case), output_slot(case, _SUM))
    dtypes = {spelling(slot) for slot in slots if slot}
    return len(dtypes) == 1 and dtypes <= set(rules.FLOATS)


SUM_CONSTRAINTS = (
    Constraint(
        "expected terms of one shape, and gamma and beta with the shape of their last dimensions",
        _sum_fits,
    ),
    Constraint("expected one floating-point dtype for inputs, the norm and the sum", _dtypes_fit),
    rules.outputs_are(("FLOAT",), (_RSTD,)),
    Constraint(
        "expected outputs with the shape of x, with one number a row, and with the shape of x",
        _outputs_fit,
    ),
)
