"""RMS normalisation in float32: x / rms(x) * gamma, and 1 / rms(x) for the way back."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._rms_norm import normalised, rows_shape
from collector.ops.dtypes import floating, one_dtype, outputs_are
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, OpSpec


def _reference(torch: Any, x: Any, gamma: Any) -> Any:
    y, rstd = normalised(x, gamma)
    return y.to(x.dtype), rstd


def _flops(case: Case) -> int:
    """An element: a square, a sum, and two products."""
    return 4 * elements(input_shape(case, 0))


def _outputs_fit(case: Case) -> bool:
    return agrees(case, 0, input_shape(case, 0)) and agrees(case, 1, rows_shape(case, 0, 1))


OP = OpSpec(
    kernel="RmsNorm",
    call="torch_npu.npu_rms_norm",
    slots=("x", "gamma"),
    reference=_reference,
    flops=_flops,
    constraints=(
        floating((0, 1)),
        one_dtype((0,)),
        outputs_are(("FLOAT",), (1,)),
        Constraint(
            "gamma wants the last dimensions of x", lambda case: rows_shape(case, 0, 1) is not None
        ),
        Constraint("outputs are wanted like x, and with one number a row", _outputs_fit),
    ),
)
