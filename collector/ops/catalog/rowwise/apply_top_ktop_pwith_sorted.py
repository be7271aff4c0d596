"""Sampling's filter by k and p, with CANN's kernel; its function sorts first."""

from collector.case import Case
from collector.ops.catalog.rowwise._top_k_top_p import build_limits, top_k_top_p
from collector.ops.spec import Call, NpuCall, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    return Call(build_limits(case, make))


OP = top_k_top_p("ApplyTopKTopPWithSorted", "torch_npu.npu_top_k_top_p", NpuCall(build=_build))
