"""A sum, its RMS normalisation, and a bias: vLLM-Ascend's own kernel."""

from collector.ops.catalog.norm._rms_norm import (
    SUM_CONSTRAINTS,
    add_and_normalise,
    build_sum,
    sum_flops,
)
from collector.ops.spec import Need, NpuCall, OpSpec, dense_bytes

_BETA = frozenset({3})

OP = OpSpec(
    kernel="AddRmsNormBias",
    call="torch.ops._C_ascend.npu_add_rms_norm_bias",
    slots=("x1", "x2", "gamma", "beta"),
    optional=_BETA,
    reference=add_and_normalise,
    build=build_sum,
    flops=sum_flops,
    traffic=lambda case: dense_bytes(case, absent=_BETA),
    npu=NpuCall(needs=frozenset({Need.CUSTOM_OPP, Need.VLLM_ASCEND})),
    constraints=SUM_CONSTRAINTS,
)
