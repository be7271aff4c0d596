"""RMS normalisation, alone or after a sum, and its gradient."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case
from collector.model.lookup import make_lookups
from collector.ops.catalog.norm import _rms_norm
from collector.ops.launching import arguments_at
from collector.ops.parts import like
from collector.ops.spec import Call, Need, NpuCall, OpSpec, TensorMaker

_OPERATIONS = "4 * rows * c * d"  # a square, a sum, and two products


def _reference(torch: Any, x: Any, gamma: Any) -> Any:
    y, rstd = _rms_norm.normalised(x, gamma)
    return y.to(x.dtype), rstd


# RMS normalisation in float32: x / rms(x) * gamma, and 1 / rms(x) for the gradient.
RMS_NORM = OpSpec(
    kernel="RmsNorm",
    call="torch_npu.npu_rms_norm",
    signature="x T:floating[*rows, *c, d], gamma floating[*c, d]"
    " -> y T[*rows, *c, d], rstd FLOAT[*rows, 1*c, 1]",
    reference=_reference,
    operations=_OPERATIONS,
    lookups=make_lookups("tensor_cast.rms_norm.default"),
)


def _gemma_reference(torch: Any, x: Any, gamma: Any) -> Any:
    y, rstd = _rms_norm.normalised(x, gamma.float() + 1)
    return y.to(x.dtype), rstd


# The same with a weight of one more than gamma, as Gemma and Qwen3-Next have it.
GEMMA_RMS_NORM = replace(
    RMS_NORM,
    kernel="GemmaRmsNorm",
    lookups=(),
    call="torch_npu.npu_gemma_rms_norm",
    reference=_gemma_reference,
    npu=NpuCall(served="torch.ops._C_ascend.npu_gemma_rms_norm"),
)


def _cast_reference(torch: Any, x: Any, gamma: Any) -> Any:
    y = _rms_norm.normalised(x, gamma)[0].to(x.dtype)
    return y, y.float()


# The same, returned as FLOAT too, which a router of experts reads: vLLM-Ascend's own kernel of its
# main branch of September 2026, which no release has.
RMS_NORM_CAST = OpSpec(
    kernel="RmsNormCast",
    call="torch.ops._C_ascend.npu_rms_norm_cast",
    signature="x T:half[*rows, *c, d], gamma T[*c, d] -> y T[*rows, *c, d], y2 FLOAT[*rows, *c, d]",
    reference=_cast_reference,
    operations=_OPERATIONS,
    npu=NpuCall(
        run=lambda api, x, gamma: api(x, gamma, 1e-6),
        needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
    ),
)


def _grad_build(case: Case, make: TensorMaker) -> Call:
    dy, x, rstd, gamma = case.inputs or ()
    terms = (like.normal(slot, make) for slot in (dy, x))
    # as for rows of N(0, 1)
    return Call(*terms, like.uniform_like(rstd, make, 0.9, 1.1), like.normal(gamma, make))


def _grad_reference(torch: Any, dy: Any, x: Any, rstd: Any, gamma: Any) -> Any:
    dims = _rms_norm.normal_dims(gamma)
    wide, scaled = dy.float(), x.float() * rstd
    dgamma = (wide * scaled).sum_to_size(gamma.shape)
    dscaled = wide * gamma
    along = (dscaled * scaled).mean(dims, keepdim=True)
    dx = dscaled.sub_(scaled.mul_(along)).mul_(rstd)
    return dx.to(x.dtype), dgamma


# Gradient of RMS normalisation, in float32: of x, and of gamma as FLOAT.
RMS_NORM_GRAD = OpSpec(
    kernel="RmsNormGrad",
    call="torch_npu.npu_rms_norm_backward",
    signature="dy floating[*rows, *c, d], x T:floating[*rows, *c, d], rstd FLOAT[*rows, 1*c, 1], "
    "gamma floating[*c, d] -> dx T[*rows, *c, d], dgamma FLOAT[*c, d]",
    reference=_grad_reference,
    build=_grad_build,
    # five products, a sum for gamma, a sum for the mean, a difference, a product
    operations="9 * rows * c * d",
    npu=NpuCall(run=lambda api, dy, x, rstd, gamma: api(dy, x, gamma, rstd)),
)

# A sum and its RMS normalisation: a layer's residual addition and norm.
ADD_RMS_NORM = OpSpec(
    kernel="AddRmsNorm",
    call="torch_npu.npu_add_rms_norm",
    signature=f"{_rms_norm.TERMS} {_rms_norm.RESULTS}",
    reference=_rms_norm.add_and_normalise,
    build=_rms_norm.build_sum,
    operations=_rms_norm.SUM_OPERATIONS,
    lookups=make_lookups(
        "tensor_cast.add_rms_norm.default",
        "tensor_cast.add_rms_norm2.default",
        order=1,
        tc_input_count=3,
    ),
)

# A sum, its RMS normalisation, and a bias: vLLM-Ascend's own kernel.

ADD_RMS_NORM_BIAS = OpSpec(
    kernel="AddRmsNormBias",
    call="torch.ops._C_ascend.npu_add_rms_norm_bias",
    signature=f"{_rms_norm.TERMS}, beta T[*c, d]? {_rms_norm.RESULTS}",
    reference=_rms_norm.add_and_normalise,
    build=_rms_norm.build_sum,
    operations=f"{_rms_norm.SUM_OPERATIONS} + has_beta * rows * c * d",
    npu=NpuCall(needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    lookups=make_lookups(
        "tensor_cast.add_rms_norm.default", "tensor_cast.add_rms_norm2.default", tc_input_count=3
    ),
    launched_by={"aclnnAddRmsNormBias": arguments_at(outputs=4)},
)


def _inplace_build(case: Case, make: TensorMaker) -> Call:
    """Build a gamma near 1: sums grow by about 1 per launch, and stay finite."""
    x1, x2, gamma = case.inputs or ()
    terms = (like.normal(slot, make) for slot in (x1, x2))
    return Call(*terms, like.uniform_like(gamma, make, 0.5, 1.0))


def _inplace_reference(torch: Any, x1: Any, x2: Any, gamma: Any) -> Any:
    y, rstd, total = _rms_norm.add_and_normalise(torch, x1, x2, gamma)
    return x1.copy_(y), rstd, x2.copy_(total)


# A sum and its RMS normalisation, written over the terms: the norm over the first, the sum over the
# second.
INPLACE_ADD_RMS_NORM = OpSpec(
    kernel="InplaceAddRmsNorm",
    is_shown_otherwise=True,
    call="torch_npu.npu_add_rms_norm_v2",
    signature=f"{_rms_norm.TERMS} {_rms_norm.RESULTS}",
    reference=_inplace_reference,
    build=_inplace_build,
    operations=_rms_norm.SUM_OPERATIONS,
    npu=NpuCall(run=lambda api, x1, x2, gamma: (x1, api(x1, x2, gamma), x2)),
    launched_by={"aclnnInplaceAddRmsNorm": arguments_at(outputs=(0, 3, 1))},
)
