"""Operators whose requirements this host lacks, in addition to the catalogue: named by
`SessionSpec.catalog`, and found by the session through PYTHONPATH."""

import atexit
import os
import time

from collector.ops import registry
from collector.ops.spec import Need, NpuCall, OpSpec

# A session that ends late, like one whose profiler has much to flush.
atexit.register(time.sleep, float(os.environ.get("TEST_FLUSH_S", "0")))


def _operator(name: str, call: str, *needs: Need) -> OpSpec:
    return OpSpec(
        kernel=name,
        call=call,
        signature="x -> y",
        reference=lambda torch, x: torch.abs(x),
        flops=lambda case: 0,
        npu=NpuCall(needs=frozenset(needs)),
    )


_OPERATORS = {
    op.kernel: op
    for op in (
        _operator("NeedsOpp", "torch.abs", Need.CUSTOM_OPP),
        _operator("NeedsVllm", "torch.abs", Need.VLLM_ASCEND),
        _operator("NoAttribute", "torch_npu.npu_no_such_thing"),
        _operator("NoTorchOp", "torch.ops._C_ascend.no_such_thing"),
    )
}


def find_operator(kernel_type: str) -> OpSpec | None:
    return _OPERATORS.get(kernel_type) or registry.find_operator(kernel_type)
