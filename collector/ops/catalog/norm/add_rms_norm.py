"""A sum and its RMS normalisation: how a layer takes up the residual."""

from collector.ops.catalog.norm._rms_norm import (
    SUM_CONSTRAINTS,
    add_and_normalise,
    build_sum,
    sum_flops,
)
from collector.ops.spec import OpSpec

OP = OpSpec(
    kernel="AddRmsNorm",
    call="torch_npu.npu_add_rms_norm",
    slots=("x1", "x2", "gamma"),
    reference=add_and_normalise,
    build=build_sum,
    flops=sum_flops,
    constraints=SUM_CONSTRAINTS,
)
