"""Layer normalisation, with the statistics that its gradient needs.

The kernel writes these as FLOAT, or mean and deviation in the dtypes of gamma and beta, which aclnn
converts for torch (CANN's open sources, ops-nn).
"""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._layer_norm import EPSILON, layer_norm, statistics_fit
from collector.ops.dtypes import inputs_are, one_dtype, outputs_are, spelling
from collector.ops.slots import agrees, elements, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, build_from_slots
from collector.vocabulary import dtype_of

_X, _GAMMA, _BETA = range(3)
_FLOATS = ("FLOAT", "FLOAT16", "DT_BF16")


def _build(case: Case, make: TensorMaker) -> Call:
    statistics = output_slot(case, 1)
    dtype = make.dtype(statistics.dtype if statistics else "FLOAT")
    return Call((*build_from_slots(case, make).args, dtype))


def _reference(torch: Any, x: Any, gamma: Any, beta: Any, dtype: Any) -> Any:
    y, *statistics = layer_norm(torch, x, gamma, beta)
    return y, *(number.to(dtype) for number in statistics)


def _launch(native: Any, x: Any, gamma: Any, beta: Any, dtype: Any) -> Any:
    """One kernel; torch has its statistics as FLOAT, whatever the row says."""
    y, *statistics = native(x, gamma.shape, gamma, beta, EPSILON)
    return y, *(number.to(dtype) for number in statistics)


def _flops(case: Case) -> int:
    """An element: a sum, a difference, a square and a sum, then a product, and gamma and beta."""
    return 7 * elements(input_shape(case, _X))


def _statistics_fit(case: Case) -> bool:
    gamma = (case.inputs or ())[_GAMMA]
    told = {spelling(output_slot(case, i)) for i in (1, 2)} - {""}
    return len(told) < 2 and told <= {"FLOAT", spelling(gamma)}


def _shapes_fit(case: Case) -> bool:
    return (
        elements(input_shape(case, _X)) > 0
        and input_shape(case, _GAMMA) == input_shape(case, _BETA)
        and agrees(case, 0, input_shape(case, _X))
        and statistics_fit(case, _GAMMA, (1, 2))
    )


OP = OpSpec(
    kernel="LayerNormV3",
    twins=("LayerNormV3WithImplMode",),
    call="torch.native_layer_norm",
    slots=("x", "gamma", "beta"),
    reference=_reference,
    build=_build,
    flops=_flops,
    npu=NpuCall(run=_launch),
    constraints=(
        inputs_are(_FLOATS, (_X, _GAMMA, _BETA)),
        one_dtype((_X,)),
        one_dtype((_GAMMA, _BETA), ()),
        Constraint(
            "gamma and beta want the dtype of x, or FLOAT",
            lambda case: (
                {slot.known_dtype for slot in (case.inputs or ())[_GAMMA:]}
                <= {(case.inputs or ())[_X].known_dtype, dtype_of("FLOAT")}
            ),
        ),
        outputs_are(_FLOATS, (1, 2)),
        Constraint("statistics are wanted as FLOAT, or in the dtype of gamma", _statistics_fit),
        Constraint(
            "gamma and beta want the last dimensions of x; outputs are wanted like x, and twice "
            "with one number a row",
            _shapes_fit,
        ),
    ),
)
