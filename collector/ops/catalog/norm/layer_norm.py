"""Layer normalisation, alone or after a sum."""

from collections.abc import Sequence
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops.launching import Positions, arguments_at
from collector.ops.slots import output_slot
from collector.ops.spec import (
    Call,
    NpuCall,
    OpSpec,
    TensorMaker,
    build_from_slots,
    dense_bytes,
)

# Shared code of the layer normalisation operators.
EPSILON = 1e-5


def layer_norm(torch: Any, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    """Return (x - mean) / deviation * gamma + beta, and the statistics of each row.

    The statistics are the mean and 1 / deviation, as FLOAT. A CPU would return the statistics in
    the dtype of gamma."""
    y, mean, rstd = torch.native_layer_norm(x, gamma.shape, gamma, beta, EPSILON)
    return y, mean.float(), rstd.float()


def _build(case: Case, make: TensorMaker) -> Call:
    statistics = output_slot(case, 1)
    dtype = make.dtype(statistics.dtype if statistics else "FLOAT")
    return Call(*build_from_slots(case, make).args, dtype)


def _reference(torch: Any, x: Any, gamma: Any, beta: Any, dtype: Any) -> Any:
    y, *statistics = layer_norm(torch, x, gamma, beta)
    return y, *(number.to(dtype) for number in statistics)


def _launch(native: Any, x: Any, gamma: Any, beta: Any, dtype: Any) -> Any:
    """Run one kernel; torch returns its statistics as FLOAT, independent of the row."""
    y, *statistics = native(x, gamma.shape, gamma, beta, EPSILON)
    return y, *(number.to(dtype) for number in statistics)


# Layer normalisation, with the statistics that its gradient needs.
#
# The kernel writes these as FLOAT, or mean and deviation in the dtypes of gamma and beta, which
# aclnn converts for torch (CANN's open sources, ops-nn).
LAYER_NORM_V3 = OpSpec(
    kernel="LayerNormV3",
    twins=("LayerNormV3WithImplMode",),
    call="torch.native_layer_norm",
    signature="x T:float[*rows, *c, d], gamma G:T|FLOAT[*c, d], beta G[*c, d]"
    " -> y T[*rows, *c, d], mean S:FLOAT|G[*rows, 1*c, 1], rstd S[*rows, 1*c, 1]"
    " where rows * c * d > 0",
    reference=_reference,
    build=_build,
    # a sum, a difference, a square and a sum, then a product, and gamma and beta
    operations="7 * rows * c * d",
    npu=NpuCall(run=_launch),
    lookups=make_lookups(
        "aten.native_layer_norm.default", "tensor_cast.layer_norm.default", tc_input_count=3
    ),
    launched_by={"aclnnLayerNorm": arguments_at(gamma=2, beta=3, outputs=4)},
    shown={"mean": "gamma", "rstd": "beta"},
)


_SUM = 3  # an output


def _keeps_the_sum(case: Case) -> bool:
    slot = output_slot(case, _SUM)
    return slot is not None and slot.shape is not None


def _add_build(case: Case, make: TensorMaker) -> Call:
    return Call(*build_from_slots(case, make).args, keeps_the_sum=_keeps_the_sum(case))


def _add_reference(
    torch: Any, x1: Any, x2: Any, gamma: Any, beta: Any, *, keeps_the_sum: bool
) -> Any:
    total = torch.add(x1, x2)
    return *layer_norm(torch, total, gamma, beta), total if keeps_the_sum else None


def _add_launch(add: Any, *tensors: Any, keeps_the_sum: bool) -> Any:
    *norm, total = add(*tensors, EPSILON, keeps_the_sum)
    return *norm, total if keeps_the_sum else None


def _positions_with_sum(arguments: Sequence[str]) -> Positions:
    """The call has a tensor for the sum, and a truth value that says whether it is written."""
    return arguments_at(outputs=6, empty=("sum",) if arguments[5] == "0" else ())


# A sum and its layer normalisation, with the statistics that its gradient needs.
ADD_LAYER_NORM = OpSpec(
    kernel="AddLayerNorm",
    is_shown_otherwise=True,
    call="torch_npu.npu_add_layer_norm",
    signature="x1 T:float[*rows, d], x2 T[*rows, d], gamma T[d], beta T[d] -> y T[*rows, d], "
    "mean FLOAT[*rows, 1], rstd FLOAT[*rows, 1], sum T[*rows, d]? where rows * d > 0",
    traffic=lambda case: dense_bytes(case),
    reference=_add_reference,
    build=_add_build,
    operations="8 * rows * d",  # a sum, then 7 as in LayerNormV3
    npu=NpuCall(run=_add_launch),
    launched_by={"aclnnAddLayerNorm": _positions_with_sum},
)
