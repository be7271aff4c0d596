"""The fused kernel itself, called as serving does: by vLLM-Ascend's own extension.

Its releases differ in what they take: 0.18.0 has no biases, no mask and no limit of SwiGLU, 0.23.0
has. What a release takes is read from its schema. There are two kernels for such a call, and the
second is for the few tokens of decoding: it takes the same tensors by other names.
"""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.reference import make_experts, make_tokens
from collector.errors import HostFault
from collector.expert_call import ExpertCall
from collector.host.custom_opp import custom_opp_problem
from collector.replay.calls import import_vllm_ascend

_FRACTAL_NZ = 29  # torch_npu's number of the format
MOST_ROWS = 65_536  # that a rank may get, as vLLM-Ascend says it

Outputs = tuple[torch.Tensor, torch.Tensor]


def open_fused(name: str) -> Callable[[MoeCase, int, str], Callable[[], Outputs]]:
    """What prepares calls of an operator. HostFault where the extension is not there, or does not
    have it."""
    if not hasattr(torch.ops._C_ascend, name):
        if problem := custom_opp_problem(os.environ):
            raise HostFault(problem)
        try:
            import_vllm_ascend(os.environ)
        except ImportError as error:
            raise HostFault(f"{name} requires vllm_ascend: {error}") from error
    operator = getattr(torch.ops._C_ascend, name, None)
    if operator is None:
        raise HostFault(f"the installed vllm_ascend does not have {name}; install 0.18.0 or 0.23.0")
    npu: Any = getattr(torch, "npu")  # noqa: B009  (torch_npu adds it)
    npu.config.allow_internal_format = True  # else a cast to FRACTAL_NZ is left out

    def prepare(case: MoeCase, rank: int, device: str) -> Callable[[], Outputs]:
        given = arguments(operator, case, rank, device, group_name(rank))
        run: Callable[[], Outputs] = partial(operator, **given)
        return run

    return prepare


def arguments(operator: Any, case: MoeCase, rank: int, device: str, group: str) -> dict[str, Any]:
    """What an operator is called with; `group` is HCCL's name of the ranks."""
    call = case.call
    assert isinstance(call, ExpertCall)
    mine = range(rank * call.local_experts, (rank + 1) * call.local_experts)
    experts = make_experts(call, case.seed, mine, device)
    tokens = make_tokens(call, case.seed, rank, case.routing(), device)
    none = torch.empty(0, dtype=torch.float32, device=device)
    gate_up, down, chosen = _nz(experts.gate_up), _nz(experts.down), tokens.experts.to(torch.int32)
    given = {
        "x": tokens.x,
        "weight1": [gate_up],
        "weight2": [down],
        "expert_idx": chosen,
        "scale1": [_as_int64(experts.gate_up_scale)],
        "scale2": [_as_int64(experts.down_scale)],
        "bias1": [none],
        "bias2": [none],
        "probs": tokens.weights,
        "group": group,
        "max_output_size": MOST_ROWS,
        "out": torch.empty_like(tokens.x),
        "expert_token_nums": torch.empty(call.local_experts, dtype=torch.int32, device=device),
        "expert_ids": chosen,
        "gmm1_permuted_weight": [gate_up],
        "gmm1_permuted_weight_scale": [experts.gate_up_scale],
        "gmm2_weight": [down],
        "gmm2_weight_scale": [experts.down_scale],
        "expert_scales": tokens.weights,
        "group_ep": group,
        "ep_rank_size": call.ep_size,
        "ep_rank_id": rank,
        "moe_expert_num": call.experts,
        "global_bs": call.tokens * call.ep_size,
    }
    takes = {one.name for one in operator.default._schema.arguments}
    return {name: value for name, value in given.items() if name in takes}


def _nz(weight: torch.Tensor) -> torch.Tensor:
    cast: Callable[[torch.Tensor, int], torch.Tensor] = torch.ops.npu.npu_format_cast
    return cast(weight, _FRACTAL_NZ)


def _as_int64(scale: torch.Tensor) -> torch.Tensor:
    """Each FLOAT as the lower half of an INT64, in one dimension."""
    bits = scale.cpu().flatten().view(torch.int32).long() & 0xFFFF_FFFF
    return bits.to(scale.device)


def group_name(rank: int) -> str:
    """HCCL's name of the group of all ranks."""
    world: Any = dist.group.WORLD
    name: str = world._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    return name
