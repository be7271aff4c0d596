"""A case in a rank: the function that runs it, and the check of its first result against that of
one process.

On an NPU the kernels run, elsewhere their references over the ranks' own collectives. CANN requires
a dispatch and a combine alternately: the one that is not timed runs before each call of the other.
"""

from collections.abc import Callable

import torch.distributed as dist

from collector.comm.moe import reference
from collector.comm.moe.fused_kernel import Outputs, fused_tensors, open_fused
from collector.comm.moe.moe_plan import MoeCase

# The runner of a case in a rank: the fused kernel on an NPU, its reference elsewhere.

Run = Callable[[], Outputs]
Prepare = Callable[[MoeCase, int, str], Run]
"""Creates a case's tensors in a rank, on a device, and returns the function that runs it."""


def open_runner(backend: str, operator: str) -> Prepare:
    """Return the function that prepares cases on a backend; on an NPU, by an operator of the
    extension. Raises HostFault if that is missing."""
    return open_fused(operator) if backend == "npu" else prepare_reference


def prepare_reference(case: MoeCase, rank: int, device: str) -> Run:
    """Return the reference's call over the ranks of this process's world."""
    call, experts, tokens = fused_tensors(case, rank, device)
    return lambda: reference.expert_outputs(call, tokens, experts, dist.group.WORLD)
