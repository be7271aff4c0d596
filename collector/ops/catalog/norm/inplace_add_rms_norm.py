"""A sum and its RMS normalisation, written over the terms: the norm over the first, the sum over
the second."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.norm._rms_norm import SUM_CONSTRAINTS, add_and_normalise, sum_flops
from collector.ops.spec import Call, NpuCall, OpSpec, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    """With a gamma about 1, sums grow by about 1 a launch, and stay finite."""
    x1, x2, gamma = case.inputs or ()
    terms = (make.normal(slot.shape or (), slot.dtype) for slot in (x1, x2))
    return Call((*terms, make.uniform(gamma.shape or (), gamma.dtype, 0.5, 1.0)))


def _reference(torch: Any, x1: Any, x2: Any, gamma: Any) -> Any:
    y, rstd, total = add_and_normalise(torch, x1, x2, gamma)
    return x1.copy_(y), rstd, x2.copy_(total)


def _launch(add: Any, x1: Any, x2: Any, gamma: Any) -> Any:
    return x1, add(x1, x2, gamma), x2


OP = OpSpec(
    kernel="InplaceAddRmsNorm",
    call="torch_npu.npu_add_rms_norm_v2",
    slots=("x1", "x2", "gamma"),
    reference=_reference,
    build=_build,
    flops=sum_flops,
    npu=NpuCall(run=_launch),
    constraints=SUM_CONSTRAINTS,
)
