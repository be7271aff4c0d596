"""A sum, its RMS normalisation, and rows quantised to INT8."""

from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops.catalog.norm._rms_norm import normalised
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.parts.int8 import quantise_rows, to_int8
from collector.ops.slots import (
    given,
    input_shape,
    output_slot,
)
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_OPTIONAL = {3: "smooth_scale1", 4: "smooth_scale2", 5: "beta"}
_SMOOTH2, _Y2 = 4, 1


def _is_twofold(case: Case) -> bool:
    """Return whether the row has a second output or, without outputs, a second smoothing scale."""
    second = output_slot(case, _Y2)
    return second.shape is not None if second else given(case, _SMOOTH2) is not None


def _build(case: Case, make: TensorMaker) -> Call:
    x1, x2, gamma = (like.normal(slot, make) for slot in (case.inputs or ())[:3])
    options = {
        name: like.uniform_like(slot, make, 0.5, 1.5)
        for i, name in _OPTIONAL.items()
        if (slot := given(case, i))
    }
    return Call(x1, x2, gamma, **options, output_mask=[True, _is_twofold(case)])


def _reference(
    torch: Any,
    x1: Any,
    x2: Any,
    gamma: Any,
    *,
    output_mask: list[bool],
    smooth_scale1: Any = None,
    smooth_scale2: Any = None,
    beta: Any = None,
) -> Any:
    total = torch.add(x1, x2)
    y, _ = normalised(total, gamma)
    if beta is not None:
        y.add_(beta)
    second = (None, None)
    if output_mask[1]:
        second = quantise_rows(torch, y.clone() if smooth_scale2 is None else y * smooth_scale2)
    first = quantise_rows(torch, y if smooth_scale1 is None else y.mul_(smooth_scale1))
    return first[0], second[0], total, first[1], second[1]


def _launch(add: Any, x1: Any, x2: Any, gamma: Any, **options: Any) -> Any:
    y1, y2, total, scale1, scale2 = add(x1, x2, gamma, **options)
    if not options["output_mask"][1]:
        y2 = scale2 = None  # the API returns an empty tensor
    return y1, y2, total, scale1, scale2


# A sum, its RMS normalisation, and rows quantised to INT8 by their own absolute maximum: once, or
# twice with separate smoothing scales.
ADD_RMS_NORM_DYNAMIC_QUANT = OpSpec(
    kernel="AddRmsNormDynamicQuant",
    twins=("AddRmsNormDynamicQuantAiCore",),
    call="torch_npu.npu_add_rms_norm_dynamic_quant",
    signature="x1 T:half[*rows, d], x2 T[*rows, d], gamma T[d], smooth_scale1 T[d]?, "
    "smooth_scale2 T[d]?, beta T[d]? -> y1 INT8[*rows, d], y2 INT8[*rows, d]?, sum T[*rows, d], "
    "scale1 FLOAT[*rows], scale2 FLOAT[*rows]? where rows_rank > 0, rows * d > 0, "
    "has_y2 == has_scale2, has_smooth_scale2 <= has_smooth_scale1, has_smooth_scale2 <= has_y2",
    reference=_reference,
    build=_build,
    # 5 for the sum and its norm, 3 for a quantisation, and 1 for each smoothing and a beta
    operations="(8 + 3 * max(has_y2, has_smooth_scale2) + has_smooth_scale1 + has_smooth_scale2"
    " + has_beta) * rows * d",
    npu=NpuCall(run=_launch),
    lookups=make_lookups(
        "tensor_cast.add_rms_norm_dynamic_quant_symmetric.default",
        "tensor_cast.add_rms_norm_dynamic_quant2_symmetric.default",
        "tensor_cast.add_rms_norm_dynamic_quant_asymmetric.default",
        "tensor_cast.add_rms_norm_dynamic_quant2_asymmetric.default",
        tc_input_count=3,
    ),
    launched_by={"aclnnAddRmsNormDynamicQuantV2": arguments_at(outputs=7)},
)


# The norm alone, and its rows quantised to INT8: of vLLM-Ascend's own library, for the queries of
# DeepSeek-V4 (`vllm_ascend/attention/dsa_v1.py` of 0.23), without smoothing.
_NORM_SMOOTH, _NORM_BETA = 2, 4
_NORM_SECOND = (1, 3)


def _norm_build(case: Case, make: TensorMaker) -> Call:
    x, gamma, *_ = case.inputs or ()
    smooth, beta = given(case, _NORM_SMOOTH), given(case, _NORM_BETA)
    second = (output_slot(case, i) for i in _NORM_SECOND)
    return Call(
        like.normal(x, make),
        like.normal(gamma, make),
        smooth_scale=like.uniform_like(smooth, make, 0.5, 1.5),
        beta=like.normal(beta, make),
        second=tuple(like.full(slot, make, 0) if slot and slot.shape else None for slot in second),
    )


def _norm_reference(
    torch: Any, x: Any, gamma: Any, *, smooth_scale: Any, beta: Any, second: Any
) -> Any:
    y, _ = normalised(x, gamma)
    if beta is not None:
        y.add_(beta)
    y, scale = quantise_rows(torch, y if smooth_scale is None else y.mul_(smooth_scale))
    return y, second[0], scale, second[1]


def _norm_launch(api: Any, *args: Any, second: Any, **options: Any) -> Any:
    """Call the function. It passes the kernel memory for a second result, which is not written."""
    y, scale = api(*args, **options)
    return y, second[0], scale, second[1]


RMS_NORM_DYNAMIC_QUANT = OpSpec(
    kernel="RmsNormDynamicQuant",
    call="torch.ops._C_ascend.npu_rms_norm_dynamic_quant",
    signature="x T:half[*rows, d], gamma T[d], smooth_scale1 T[d]?, -smooth_scale2, beta T[d]?"
    " -> y INT8[*rows, d], y2 INT8[#]?, scale FLOAT[*rows], scale2 FLOAT[*rows]?"
    " where rows_rank > 0, rows * d > 0",
    reference=_norm_reference,
    build=_norm_build,
    # per element 4 for the norm, 3 for the quantisation, and one for each of smoothing and beta
    operations="(7 + has_smooth_scale1 + has_beta) * rows * d",
    npu=NpuCall(run=_norm_launch, needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    lookups=make_lookups("tensor_cast.rms_norm_dynamic_quant_symmetric.default", tc_input_count=2),
    launched_by={"aclnnRmsNormDynamicQuant": arguments_at(outputs=-4)},
)


_SCALES, _ZEROS, _STATIC_BETA = 3, 5, 7


def _build_for_npu(case: Case, make: TensorMaker) -> Call:
    slots = case.inputs or ()
    return Call(
        *(like.normal(slot, make) for slot in slots[:3]),
        like.uniform_like(slots[_SCALES], make, 0.02, 0.1),
        like.uniform_like(given(case, _ZEROS), make, -5, 5),
        like.normal(given(case, _STATIC_BETA), make),
    )


def _static_build(case: Case, make: TensorMaker) -> Call:
    """Build the call with memory for the second result, where the row has it."""
    x1, second = input_shape(case, 0), output_slot(case, _Y2)
    second_output = make.empty(x1, "INT8") if second and second.shape is not None else None
    return Call(*_build_for_npu(case, make).args, second_output)


def _static_reference(
    torch: Any, x1: Any, x2: Any, gamma: Any, scales: Any, zeros: Any, beta: Any, second_output: Any
) -> Any:
    total = torch.add(x1, x2)
    y, _ = normalised(total, gamma)
    if beta is not None:
        y.add_(beta)
    y.div_(scales)
    return to_int8(torch, y if zeros is None else y.add_(zeros)), second_output, total


# A sum, its RMS normalisation, and rows quantised to INT8 by given scales: y / scale + zero point,
# rounded.
#
# A second quantisation, with scales of its own, is not replayed. torch_npu allocates its result
# anyway, so rows have an output that no kernel writes.
ADD_RMS_NORM_QUANT = OpSpec(
    kernel="AddRmsNormQuant",
    twins=("AddRmsNormQuantV2",),
    call="torch_npu.npu_add_rms_norm_quant",
    signature=";".join(
        f"x1 T:{x}[*rows, d], x2 T[*rows, d], gamma T[d], scales1 {scales}[d], -scales2, "
        f"zero_points1 {zeros}[d]?, -zero_points2, beta T[d]?"
        " -> y INT8[*rows, d], y2 INT8[*rows, d]?, sum T[*rows, d] where rows * d > 0"
        for x, scales, zeros in (("DT_BF16", "T", "T"), ("FLOAT16", "FLOAT", "INT32"))
    ),
    reference=_static_reference,
    build=_static_build,
    # 5 for the sum and its norm, 2 for the quantisation, and 1 for each of zero point and beta
    operations="(7 + has_zero_points1 + has_beta) * rows * d",
    npu=NpuCall(build=_build_for_npu),
    lookups=make_lookups(
        "tensor_cast.add_rms_norm_quant.default",
        "tensor_cast.add_rms_norm_quant2.default",
        tc_input_count=3,
    ),
    launched_by={"aclnnAddRmsNormQuantV2": arguments_at(outputs=10)},
)
