"""Sampling's filter by k and p, with vLLM-Ascend's own kernel; its function sorts first."""

from typing import Any

from collector.case import Case
from collector.ops.catalog.rowwise._top_k_top_p import build_limits, top_k_top_p
from collector.ops.spec import Call, Need, NpuCall, TensorMaker


def _build(case: Case, make: TensorMaker) -> Call:
    logits, p, k = build_limits(case, make)
    named: dict[str, Any] = {"p": p, "k": k}
    return Call((logits,), named)


OP = top_k_top_p(
    "ApplyTopKTopPCustom",
    "torch.ops._C_ascend.npu_apply_top_k_top_p",
    NpuCall(build=_build, needs=frozenset({Need.VLLM_ASCEND, Need.CUSTOM_OPP})),
)
