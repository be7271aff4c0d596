"""A sum and its layer normalisation, with the statistics that its gradient needs."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._layer_norm import EPSILON, layer_norm, statistics_fit
from collector.ops.dtypes import inputs_are, one_dtype, outputs_are
from collector.ops.slots import agrees, elements, input_shape, output_slot
from collector.ops.spec import Call, Constraint, NpuCall, OpSpec, TensorMaker, build_from_slots

_X1, _X2, _GAMMA, _BETA = range(4)
_Y, _MEAN, _RSTD, _SUM = range(4)
_SUM_OUTPUT = frozenset({_SUM})


def _keeps_the_sum(case: Case) -> bool:
    """Whether the sum is an output too."""
    slot = output_slot(case, _SUM)
    return slot is not None and slot.shape is not None


def _build(case: Case, make: TensorMaker) -> Call:
    return Call(build_from_slots(case, make).args, {"keeps_the_sum": _keeps_the_sum(case)})


def _reference(torch: Any, x1: Any, x2: Any, gamma: Any, beta: Any, *, keeps_the_sum: bool) -> Any:
    total = torch.add(x1, x2)
    return *layer_norm(torch, total, gamma, beta), total if keeps_the_sum else None


def _launch(add: Any, *tensors: Any, keeps_the_sum: bool) -> Any:
    *norm, total = add(*tensors, EPSILON, keeps_the_sum)
    return *norm, total if keeps_the_sum else None


def _flops(case: Case) -> int:
    """An element: a sum, then 7 as in LayerNormV3."""
    return 8 * elements(input_shape(case, _X1))


def _shapes_fit(case: Case) -> bool:
    x1 = input_shape(case, _X1)
    return (
        elements(x1) > 0
        and len(input_shape(case, _GAMMA)) == 1
        and x1 == input_shape(case, _X2)
        and input_shape(case, _GAMMA) == input_shape(case, _BETA)
        and agrees(case, _Y, x1)
        and (not _keeps_the_sum(case) or agrees(case, _SUM, x1))
        and statistics_fit(case, _GAMMA, (_MEAN, _RSTD))
    )


OP = OpSpec(
    kernel="AddLayerNorm",
    call="torch_npu.npu_add_layer_norm",
    slots=("x1", "x2", "gamma", "beta"),
    optional_outputs=_SUM_OUTPUT,
    reference=_reference,
    build=_build,
    flops=_flops,
    npu=NpuCall(run=_launch),
    constraints=(
        inputs_are(("FLOAT", "FLOAT16", "DT_BF16"), (_X1,)),
        one_dtype((_X1, _X2, _GAMMA, _BETA), (_Y, _SUM)),
        outputs_are(("FLOAT",), (_MEAN, _RSTD)),
        Constraint(
            "terms of one shape are wanted, gamma and beta like their last dimension; outputs are "
            "wanted like x, twice with one number a row, and the sum or nothing",
            _shapes_fit,
        ),
    ),
)
