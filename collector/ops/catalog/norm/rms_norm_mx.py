"""RMS normalisation, alone or of a sum, whose results are MX numbers, on Ascend 950."""

from dataclasses import replace
from functools import partial
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops import rules
from collector.ops.catalog.norm._rms_norm import normalised
from collector.ops.parts import like, narrow
from collector.ops.slots import (
    given,
)
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_GAMMA, _SUM_GAMMA = 1, 2


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


# The norm of each row as FLOAT8 or FLOAT4 with one power of two for each 32 numbers: what a pass of
# vLLM-Ascend 0.23 makes of RmsNorm and DynamicMxQuant. torch_npu passes an empty tensor for `rstd`
# (aclnnRmsNormDynamicMxQuant of ops-nn).
RMS_NORM_DYNAMIC_MX_QUANT = OpSpec(
    kernel="RmsNormDynamicMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_rms_norm_dynamic_mx_quant",
    signature="x T:half[*rows, k], gamma G:T|FLOAT[k], beta G[k]?"
    f" -> y {narrow.MX}[*rows, k]!, scales FLOAT8_E8M0[*rows, ceil_div(k, 64), 2], -rstd",
    reference=_reference,
    build=_build,
    # 4 for the norm, 1 for a beta and 3 for the quantisation
    operations="(7 + has_beta) * rows * k",
    narrow=narrow.OF_MX,
    npu=NpuCall(run=_launch, needs=frozenset({Need.ASCEND_950})),
    constraints=(narrow.PAIRS_FIT, rules.NOTHING_EMPTY),
    lookups=make_lookups("tensor_cast.rms_norm_dynamic_quant_mxfp4.default", tc_input_count=2),
)


def _sum_reference(torch: Any, x1: Any, x2: Any, gamma: Any, **options: Any) -> Any:
    total = torch.add(x1, x2)
    y, scales, rstd = _reference(torch, total, gamma, **options)
    return y, total, scales, rstd


# The same of a sum of two, which is an output too. CANN 9.2 has a third term, for which the stock
# torch_npu has no argument.
ADD_RMS_NORM_DYNAMIC_MX_QUANT = replace(
    RMS_NORM_DYNAMIC_MX_QUANT,
    kernel="AddRmsNormDynamicMxQuant",
    is_shown_otherwise=True,
    call="torch_npu.npu_add_rms_norm_dynamic_mx_quant",
    signature="x1 T:half[*rows, k], x2 T[*rows, k], gamma G:T|FLOAT[k], beta G[k]?, -x3"
    f" -> y {narrow.MX}[*rows, k]!, sum T[*rows, k], "
    "scales FLOAT8_E8M0[*rows, ceil_div(k, 64), 2], -rstd",
    reference=_sum_reference,
    build=partial(_build, gamma=_SUM_GAMMA),
    # per element 1 for the sum, 4 for the norm, 1 for a beta and 3 for the quantisation
    operations="(8 + has_beta) * rows * k",
    lookups=make_lookups(
        "tensor_cast.add_rms_norm_dynamic_quant_mxfp4.default",
        "tensor_cast.add_rms_norm_dynamic_quant2_mxfp4.default",
        tc_input_count=3,
    ),
)
