"""Gradient of RMS normalisation, in float32: of x, and of gamma as FLOAT."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._rms_norm import normal_dims, rows_shape
from collector.ops.dtypes import floating, inputs_are, one_dtype, outputs_are
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    dy, x, rstd, gamma = case.inputs or ()
    return Call(
        (
            make.normal(dy.shape or (), dy.dtype),
            make.normal(x.shape or (), x.dtype),
            make.uniform(rstd.shape or (), rstd.dtype, 0.9, 1.1),  # as rows of N(0, 1) have it
            make.normal(gamma.shape or (), gamma.dtype),
        )
    )


def _reference(torch: Any, dy: Any, x: Any, rstd: Any, gamma: Any) -> Any:
    dims = normal_dims(gamma)
    wide, scaled = dy.float(), x.float() * rstd
    dgamma = (wide * scaled).sum_to_size(gamma.shape)
    dscaled = wide * gamma
    along = (dscaled * scaled).mean(dims, keepdim=True)
    dx = dscaled.sub_(scaled.mul_(along)).mul_(rstd)
    return dx.to(x.dtype), dgamma


def _launch(backward: Any, dy: Any, x: Any, rstd: Any, gamma: Any) -> Any:
    return backward(dy, x, gamma, rstd)


def _flops(case: Case) -> int:
    """An element: five products, a sum for gamma, a sum for the mean, a difference, a product."""
    return 9 * elements(input_shape(case, 1))


def _inputs_fit(case: Case) -> bool:
    rows = rows_shape(case, 1, 3)
    return input_shape(case, 0) == input_shape(case, 1) and rows == input_shape(case, 2)


OP = OpSpec(
    kernel="RmsNormGrad",
    call="torch_npu.npu_rms_norm_backward",
    slots=("dy", "x", "rstd", "gamma"),
    reference=_reference,
    build=_build,
    flops=_flops,
    npu=NpuCall(run=_launch),
    constraints=(
        floating((0, 1, 3)),
        inputs_are(("FLOAT",), (2,)),
        one_dtype((1,)),
        outputs_are(("FLOAT",), (1,)),
        Constraint("dy like x, one rstd a row, and gamma like x's last dimensions", _inputs_fit),
        Constraint(
            "outputs are wanted like x and like gamma",
            lambda case: (
                agrees(case, 0, input_shape(case, 1)) and agrees(case, 1, input_shape(case, 3))
            ),
        ),
    ),
)
