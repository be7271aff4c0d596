"""RMS normalisation, alone or of a sum, whose results are MX numbers, on Ascend 950."""

from dataclasses import replace
from functools import partial
from typing import Any

from collector.model.case import Case
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.catalog.norm._rms_norm import normalised
from collector.ops.parts import like, narrow
from collector.ops.slots import (
    agrees,
    elements,
    given,
    input_shape,
    output_slot,
    outputs_agree,
    spelling,
)
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker

_X, _GAMMA, _BETA = range(3)
_RSTD = 2
_ABSENT_RSTD = "the reciprocal of the root mean square, which only gradients need, is not replayed"


def _build(case: Case, make: TensorMaker, gamma: int = _GAMMA) -> Call:
    tensors = (like.normal(slot, make) for slot in (case.inputs or ())[: gamma + 1])
    beta = like.normal(given(case, gamma + 1), make)
    return Call(*tensors, beta=beta, dst_type=narrow.output_type(case, make))


def _reference(torch: Any, x: Any, gamma: Any, *, beta: Any, dst_type: Any) -> Any:
    y, _ = normalised(x, gamma)
    if beta is not None:
        y.add_(beta)
    return *narrow.quantised(torch, y, dst_type), None


def _launch(norm: Any, *args: Any, **options: Any) -> Any:
    *results, _no_rstd = norm(*args, **options)
    return *results, None


def _flops(case: Case) -> int:
    """Return per element 4 for the norm, 1 for a beta and 3 for the quantisation."""
    return (8 if given(case, _BETA) else 7) * elements(input_shape(case, _X))


def _fits(case: Case) -> bool:
    x, gamma, beta = (input_shape(case, i) for i in (_X, _GAMMA, _BETA))
    is_row = bool(x) and gamma == x[-1:] and (given(case, _BETA) is None or beta == gamma)
    return is_row and outputs_agree(case, x, narrow.scales_shape(x))


def _dtypes_fit(case: Case, gamma: int = _GAMMA, beta: int = _BETA) -> bool:
    x, weight, offset = (spelling(given(case, i)) for i in (_X, gamma, beta))
    return weight in (x, "FLOAT") and offset in ("", weight)


def _has_no_rstd(case: Case, position: int = _RSTD) -> bool:
    slot = output_slot(case, position)
    return slot is None or slot.shape is None


# The norm of each row as FLOAT8 or FLOAT4 with one power of two for each 32 numbers: what a pass of
# vLLM-Ascend 0.23 makes of RmsNorm and DynamicMxQuant. torch_npu passes an empty tensor for `rstd`
# (aclnnRmsNormDynamicMxQuant of ops-nn).
RMS_NORM_DYNAMIC_MX_QUANT = OpSpec(
    kernel="RmsNormDynamicMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_rms_norm_dynamic_mx_quant",
    slots=("x", "gamma", "beta"),
    optional=frozenset({_BETA}),
    optional_outputs=frozenset({_RSTD}),
    reference=_reference,
    build=_build,
    flops=_flops,
    narrow=narrow.OF_MX,
    npu=NpuCall(run=_launch, needs=frozenset({Need.ASCEND_950})),
    constraints=(
        rules.reads("expected outputs: their dtype is unknown", output_slot),
        rules.inputs_are(rules.HALF_DTYPES, (_X,)),
        Constraint("expected gamma with the dtype of x or FLOAT, and beta like it", _dtypes_fit),
        *narrow.mx_outputs(),
        Constraint(
            "expected gamma and beta with the shape of a row, an output of the shape of x and "
            "scales (.., K / 64, 2)",
            _fits,
        ),
        Constraint(_ABSENT_RSTD, _has_no_rstd),
        rules.NOTHING_EMPTY,
    ),
    lookups=looked_up("tensor_cast.rms_norm_dynamic_quant_mxfp4.default", tc_input_count=2),
)


_X2, _SUM_GAMMA, _SUM_BETA, _X3 = range(1, 5)
_SUM, _SUM_SCALES, _SUM_RSTD = range(1, 4)


def _sum_reference(torch: Any, x1: Any, x2: Any, gamma: Any, **options: Any) -> Any:
    total = torch.add(x1, x2)
    y, scales, rstd = _reference(torch, total, gamma, **options)
    return y, total, scales, rstd


def _sum_fits(case: Case) -> bool:
    x1, x2, gamma, beta = (input_shape(case, i) for i in (_X, _X2, _SUM_GAMMA, _SUM_BETA))
    are_rows = gamma == x1[-1:] and (given(case, _SUM_BETA) is None or beta == gamma)
    is_scaled = agrees(case, _SUM_SCALES, narrow.scales_shape(x1)) if x1 else False
    return x1 == x2 and are_rows and is_scaled and outputs_agree(case, x1, x1)


# The same of a sum of two, which is an output too. CANN 9.2 has a third term, for which the stock
# torch_npu has no argument.
ADD_RMS_NORM_DYNAMIC_MX_QUANT = replace(
    RMS_NORM_DYNAMIC_MX_QUANT,
    kernel="AddRmsNormDynamicMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_add_rms_norm_dynamic_mx_quant",
    slots=("x1", "x2", "gamma", "beta", "x3"),
    optional=frozenset({_SUM_BETA, _X3}),
    optional_outputs=frozenset({_SUM_RSTD}),
    reference=_sum_reference,
    build=partial(_build, gamma=_SUM_GAMMA),
    # per element 1 for the sum, 4 for the norm, 1 for a beta and 3 for the quantisation
    flops=lambda case: (9 if given(case, _SUM_BETA) else 8) * elements(input_shape(case, _X)),
    constraints=(
        rules.reads("expected outputs: their dtype is unknown", output_slot),
        rules.absent_inputs(frozenset({_X3}), "a third term"),
        rules.inputs_are(rules.HALF_DTYPES, (_X,)),
        rules.one_dtype((_X, _X2), (_SUM,)),
        Constraint(
            "expected gamma with the dtype of x or FLOAT, and beta like it",
            lambda case: _dtypes_fit(case, _SUM_GAMMA, _SUM_BETA),
        ),
        *narrow.mx_outputs(_SUM_SCALES),
        Constraint(
            "expected terms of one shape, gamma and beta with the shape of a row, two outputs of "
            "the shape of x and scales (.., K / 64, 2)",
            _sum_fits,
        ),
        Constraint(_ABSENT_RSTD, lambda case: _has_no_rstd(case, _SUM_RSTD)),
        rules.NOTHING_EMPTY,
    ),
    lookups=looked_up(
        "tensor_cast.add_rms_norm_dynamic_quant_mxfp4.default",
        "tensor_cast.add_rms_norm_dynamic_quant2_mxfp4.default",
        tc_input_count=3,
    ),
)
