"""What runs a case in a rank: the fused kernel on an NPU, its reference elsewhere."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from collector.comm.moe.fused import open_fused
from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.reference import combined, make_experts, make_tokens
from collector.expert_call import ExpertCall

Outputs = tuple[torch.Tensor, torch.Tensor]
Run = Callable[[], Outputs]
Prepare = Callable[[MoeCase, int, str], Run]
"""Makes a case's tensors in a rank, on a device, and gives what runs it."""


def open_runner(backend: str, operator: str) -> Prepare:
    """What prepares cases on a backend, an NPU's by an operator of the extension. HostFault where
    that is not there."""
    return open_fused(operator) if backend == "npu" else reference


def reference(case: MoeCase, rank: int, device: str) -> Run:
    """The reference's call over the ranks of this process's world."""
    call = case.call
    assert isinstance(call, ExpertCall)
    mine = range(rank * call.local_experts, (rank + 1) * call.local_experts)
    experts = make_experts(call, case.seed, mine, device)
    tokens = make_tokens(call, case.seed, rank, case.routing(), device)
    return lambda: combined(call, tokens, experts, dist.group.WORLD)
