"""RMS normalisation, alone or after a sum, and its gradient."""

from dataclasses import replace
from typing import Any

from collector.model.case import Case, Shape
from collector.model.lookup import looked_up
from collector.ops import rules
from collector.ops.catalog.norm import _rms_norm
from collector.ops.parts import like
from collector.ops.parts.tensors import per_element
from collector.ops.slots import input_shape, outputs_agree
from collector.ops.spec import Call, Constraint, Need, NpuCall, OpSpec, TensorMaker


def _reference(torch: Any, x: Any, gamma: Any) -> Any:
    y, rstd = _rms_norm.normalised(x, gamma)
    return y.to(x.dtype), rstd


def _rows(case: Case) -> Shape | None:
    return _rms_norm.rows_shape(case, 0, 1)


# RMS normalisation in float32: x / rms(x) * gamma, and 1 / rms(x) for the gradient.
RMS_NORM = OpSpec(
    kernel="RmsNorm",
    call="torch_npu.npu_rms_norm",
    slots=("x", "gamma"),
    reference=_reference,
    flops=per_element(4),  # a square, a sum, and two products
    constraints=(
        rules.floating((0, 1)),
        rules.one_dtype((0,)),
        rules.outputs_are(("FLOAT",), (1,)),
        rules.reads("expected a gamma with the last dimensions of x", _rows),
        Constraint(
            "expected outputs with the shape of x, and with one number a row",
            lambda case: outputs_agree(case, input_shape(case, 0), _rows(case)),
        ),
    ),
    lookups=looked_up("tensor_cast.rms_norm.default"),
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
    flops=per_element(4),
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
    slots=("x", "gamma"),
    reference=_cast_reference,
    flops=per_element(4),
    npu=NpuCall(
        run=lambda api, x, gamma: api(x, gamma, 1e-6),
        needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND}),
    ),
    constraints=(
        rules.inputs_are(rules.HALF_DTYPES, (0,)),
        rules.one_dtype((0, 1)),
        rules.outputs_are(("FLOAT",), (1,)),
        rules.reads("expected a gamma with the last dimensions of x", _rows),
        Constraint(
            "expected two outputs with the shape of x",
            lambda case: outputs_agree(case, input_shape(case, 0), input_shape(case, 0)),
        ),
    ),
)


def _grad_build(case: Case, make: TensorMaker) -> Call:
    dy, x, rstd, gamma = case.inputs or ()
    terms = (like.normal(slot, make) for slot in (dy, x))
    # as for rows of N(0, 1)
    return Call(*terms, like.uniform(rstd, make, 0.9, 1.1), like.normal(gamma, make))


def _grad_reference(torch: Any, dy: Any, x: Any, rstd: Any, gamma: Any) -> Any:
    dims = _rms_norm.normal_dims(gamma)
    wide, scaled = dy.float(), x.float() * rstd
    dgamma = (wide * scaled).sum_to_size(gamma.shape)
    dscaled = wide * gamma
    along = (dscaled * scaled).mean(dims, keepdim=True)
    dx = dscaled.sub_(scaled.mul_(along)).mul_(rstd)
    return dx.to(x.dtype), dgamma


def _inputs_fit(case: Case) -> bool:
    rows = _rms_norm.rows_shape(case, 1, 3)
    return input_shape(case, 0) == input_shape(case, 1) and rows == input_shape(case, 2)


# Gradient of RMS normalisation, in float32: of x, and of gamma as FLOAT.
RMS_NORM_GRAD = OpSpec(
    kernel="RmsNormGrad",
    call="torch_npu.npu_rms_norm_backward",
    slots=("dy", "x", "rstd", "gamma"),
    reference=_grad_reference,
    build=_grad_build,
    # five products, a sum for gamma, a sum for the mean, a difference, a product
    flops=per_element(9, 1),
    npu=NpuCall(run=lambda api, dy, x, rstd, gamma: api(dy, x, gamma, rstd)),
    constraints=(
        rules.floating((0, 1, 3)),
        rules.inputs_are(("FLOAT",), (2,)),
        rules.one_dtype((1,)),
        rules.outputs_are(("FLOAT",), (1,)),
        Constraint(
            "expected dy with the shape of x, one rstd a row, and gamma with the last "
            "dimensions of x",
            _inputs_fit,
        ),
        Constraint(
            "expected outputs with the shapes of x and gamma",
            lambda case: outputs_agree(case, input_shape(case, 1), input_shape(case, 3)),
        ),
    ),
)

# A sum and its RMS normalisation: a layer's residual addition and norm.
ADD_RMS_NORM = OpSpec(
    kernel="AddRmsNorm",
    call="torch_npu.npu_add_rms_norm",
    slots=("x1", "x2", "gamma"),
    reference=_rms_norm.add_and_normalise,
    build=_rms_norm.build_sum,
    flops=_rms_norm.sum_flops,
    constraints=_rms_norm.SUM_CONSTRAINTS,
    lookups=looked_up(
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
    slots=("x1", "x2", "gamma", "beta"),
    optional=frozenset({3}),
    reference=_rms_norm.add_and_normalise,
    build=_rms_norm.build_sum,
    flops=_rms_norm.sum_flops,
    npu=NpuCall(needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=_rms_norm.SUM_CONSTRAINTS,
    lookups=looked_up(
        "tensor_cast.add_rms_norm.default", "tensor_cast.add_rms_norm2.default", tc_input_count=3
    ),
)


def _inplace_build(case: Case, make: TensorMaker) -> Call:
    """Build a gamma near 1: sums grow by about 1 per launch, and stay finite."""
    x1, x2, gamma = case.inputs or ()
    terms = (like.normal(slot, make) for slot in (x1, x2))
    return Call(*terms, like.uniform(gamma, make, 0.5, 1.0))


def _inplace_reference(torch: Any, x1: Any, x2: Any, gamma: Any) -> Any:
    y, rstd, total = _rms_norm.add_and_normalise(torch, x1, x2, gamma)
    return x1.copy_(y), rstd, x2.copy_(total)


# A sum and its RMS normalisation, written over the terms: the norm over the first, the sum over the
# second.
INPLACE_ADD_RMS_NORM = OpSpec(
    kernel="InplaceAddRmsNorm",
    is_shown_otherwise=True,
    call="torch_npu.npu_add_rms_norm_v2",
    slots=("x1", "x2", "gamma"),
    reference=_inplace_reference,
    build=_inplace_build,
    flops=_rms_norm.sum_flops,
    npu=NpuCall(run=lambda api, x1, x2, gamma: (x1, api(x1, x2, gamma), x2)),
    constraints=_rms_norm.SUM_CONSTRAINTS,
)
