"""Layer normalisation, alone or after a sum."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import looked_up
from collector.model.vocabulary import dtype_of
from collector.ops import rules
from collector.ops.catalog.norm._rms_norm import rows_shape
from collector.ops.parts.tensors import per_element
from collector.ops.slots import elements, input_shape, output_slot, outputs_agree, spelling
from collector.ops.spec import (
    Call,
    Constraint,
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


_X, _GAMMA, _BETA = range(3)
_FLOATS = ("FLOAT", "FLOAT16", "DT_BF16")


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


def _statistics_fit(case: Case) -> bool:
    gamma = (case.inputs or ())[_GAMMA]
    statistic_dtypes = {spelling(output_slot(case, i)) for i in (1, 2)} - {""}
    return len(statistic_dtypes) < 2 and statistic_dtypes <= {"FLOAT", spelling(gamma)}


def _shapes_fit(case: Case) -> bool:
    x, gamma, beta = (input_shape(case, i) for i in range(3))
    rows = rows_shape(case, _X, _GAMMA)
    return elements(x) > 0 and gamma == beta and outputs_agree(case, x, rows, rows)


# Layer normalisation, with the statistics that its gradient needs.
#
# The kernel writes these as FLOAT, or mean and deviation in the dtypes of gamma and beta, which
# aclnn converts for torch (CANN's open sources, ops-nn).
LAYER_NORM_V3 = OpSpec(
    kernel="LayerNormV3",
    twins=("LayerNormV3WithImplMode",),
    call="torch.native_layer_norm",
    slots=("x", "gamma", "beta"),
    reference=_reference,
    build=_build,
    # a sum, a difference, a square and a sum, then a product, and gamma and beta
    flops=per_element(7, _X),
    npu=NpuCall(run=_launch),
    constraints=(
        rules.inputs_are(_FLOATS, (_X, _GAMMA, _BETA)),
        rules.one_dtype((_X,)),
        rules.one_dtype((_GAMMA, _BETA), ()),
        Constraint(
            "expected gamma and beta with the dtype of x, or FLOAT",
            lambda case: (
                {slot.known_dtype for slot in (case.inputs or ())[_GAMMA:]}
                <= {(case.inputs or ())[_X].known_dtype, dtype_of("FLOAT")}
            ),
        ),
        rules.outputs_are(_FLOATS, (1, 2)),
        Constraint("expected statistics as FLOAT, or in the dtype of gamma", _statistics_fit),
        Constraint(
            "expected gamma and beta with the last dimensions of x, and three outputs: one "
            "with the shape of x, two with one number a row",
            _shapes_fit,
        ),
    ),
    lookups=looked_up(
        "aten.native_layer_norm.default", "tensor_cast.layer_norm.default", tc_input_count=3
    ),
)


_X1, _X2, _ADD_GAMMA, _ADD_BETA = range(4)
_Y, _MEAN, _RSTD, _SUM = range(4)


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


def _add_shapes_fit(case: Case) -> bool:
    x1, x2, gamma, beta = (input_shape(case, i) for i in range(4))
    rows, sums = rows_shape(case, _X1, _ADD_GAMMA), [x1] if _keeps_the_sum(case) else []
    is_sum = elements(x1) > 0 and x1 == x2 and len(gamma) == 1 and gamma == beta
    return is_sum and outputs_agree(case, x1, rows, rows, *sums)


# A sum and its layer normalisation, with the statistics that its gradient needs.
ADD_LAYER_NORM = OpSpec(
    kernel="AddLayerNorm",
    is_shown_otherwise=True,
    call="torch_npu.npu_add_layer_norm",
    slots=("x1", "x2", "gamma", "beta"),
    optional_outputs=frozenset({_SUM}),
    traffic=lambda case: dense_bytes(case),
    reference=_add_reference,
    build=_add_build,
    flops=per_element(8, _X1),  # a sum, then 7 as in LayerNormV3
    npu=NpuCall(run=_add_launch),
    constraints=(
        rules.inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (_X1,)),
        rules.one_dtype((_X1, _X2, _ADD_GAMMA, _ADD_BETA), (_Y, _SUM)),
        rules.outputs_are(("FLOAT",), (_MEAN, _RSTD)),
        Constraint(
            "expected terms of one shape, gamma and beta with the shape of their last "
            "dimension, and outputs: one with the shape of x, two with one number a row, and "
            "the sum or none",
            _add_shapes_fit,
        ),
    ),
)
