"""Layer normalisation, with the statistics that its gradient needs."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._layer_norm import EPSILON, layer_norm, statistics_fit
from collector.ops.dtypes import inputs_are, one_dtype, outputs_are
from collector.ops.slots import agrees, elements, input_shape
from collector.ops.spec import Constraint, NpuCall, OpSpec
from collector.vocabulary import dtype_of

_X, _GAMMA, _BETA = range(3)
_FLOATS = ("FLOAT", "FLOAT16", "DT_BF16")


def _launch(native: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return native(x, gamma.shape, gamma, beta, EPSILON)


def _flops(case: Case) -> int:
    """An element: a sum, a difference, a square and a sum, then a product, and gamma and beta."""
    return 7 * elements(input_shape(case, _X))


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
    reference=layer_norm,
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
        outputs_are(("FLOAT",), (1, 2)),
        Constraint(
            "gamma and beta want the last dimensions of x; outputs are wanted like x, and twice "
            "with one number a row",
            _shapes_fit,
        ),
    ),
)
