"""The fused kernel itself, called as serving does: by vLLM-Ascend's own extension.

Its releases differ in their arguments: 0.18.0 has no biases, no mask and no limit of SwiGLU,
0.23.0 has them. The arguments of a release are read from its schema. There are two kernels for
such a call; the second is for the few tokens of decoding and takes the same tensors by other
names."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from collector.codec.errors import HostFault
from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.reference import (
    ExpertWeights,
    Tokens,
    make_experts,
    make_tokens,
)
from collector.host.custom_operators import custom_opp_problem
from collector.ranks.experts import ExpertCall
from collector.replay.calls import import_vllm_ascend

_FRACTAL_NZ = 29  # torch_npu's number of the format
MOST_ROWS = 65_536  # that a rank may get, according to vLLM-Ascend

Outputs = tuple[torch.Tensor, torch.Tensor]


def open_fused(name: str) -> Callable[[MoeCase, int, str], Callable[[], Outputs]]:
    """Return the function that prepares calls of an operator. Raises HostFault if the extension is
    missing, or does not have the operator."""
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
    npu.config.allow_internal_format = True  # otherwise a cast to FRACTAL_NZ is skipped

    def prepare(case: MoeCase, rank: int, device: str) -> Callable[[], Outputs]:
        given = arguments(operator, case, rank, device, group_name(rank))
        run: Callable[[], Outputs] = partial(operator, **given)
        return run

    return prepare


def arguments(operator: Any, case: MoeCase, rank: int, device: str, group: str) -> dict[str, Any]:
    """Return the arguments of an operator; `group` is HCCL's name of the ranks."""
    call, experts, tokens = fused_tensors(case, rank, device)
    chosen = tokens.experts.to(torch.int32)
    weights = (experts.gate_up, experts.down)
    biases = [torch.empty(0, dtype=torch.float32, device=device)] * len(weights)
    if call.weight_bits == 4:
        scales = (experts.gate_up_scale, experts.down_scale)
        biases = [_correction(*one) for one in zip(weights, scales, strict=True)]
        gate_up, down = (_nz(_pairs(weight)).view(torch.int32) for weight in weights)
    else:
        gate_up, down = map(_nz, weights)
    given = {
        "x": tokens.x,
        "weight1": [gate_up],
        "weight2": [down],
        "expert_idx": chosen,
        "scale1": [_as_int64(experts.gate_up_scale)],
        "scale2": [_as_int64(experts.down_scale)],
        "bias1": biases[:1],
        "bias2": biases[1:],
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
    if call.weight_bits == 4 and "bias1" not in takes:
        raise HostFault("INT4 weights: expected an operator with biases: vllm_ascend 0.23.0 has it")
    return {name: value for name, value in given.items() if name in takes}


def fused_tensors(
    case: MoeCase, rank: int, device: str
) -> tuple[ExpertCall, ExpertWeights, Tokens]:
    call = case.call
    assert isinstance(call, ExpertCall)
    mine = range(rank * call.local_experts, (rank + 1) * call.local_experts)
    experts = make_experts(call, case.seed, mine, device)
    return call, experts, make_tokens(call, case.seed, rank, case.routing(), device)


def _nz(weight: torch.Tensor) -> torch.Tensor:
    cast: Callable[[torch.Tensor, int], torch.Tensor] = torch.ops.npu.npu_format_cast
    return cast(weight, _FRACTAL_NZ)


def _pairs(weight: torch.Tensor) -> torch.Tensor:
    """Return INT8 numbers of four bits, two in a byte, the first in the lower half."""
    return (weight[..., 1::2] << 4) | (weight[..., ::2] & 15)


def _correction(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the term that the kernel's split of tokens into halves requires."""
    return 8 * scale * weight.sum(1, dtype=torch.float32)


def _as_int64(scale: torch.Tensor) -> torch.Tensor:
    """Return each FLOAT as the lower half of an INT64, in one dimension."""
    bits = scale.cpu().flatten().view(torch.int32).long() & 0xFFFF_FFFF
    return bits.to(scale.device)


def group_name(rank: int) -> str:
    """Return HCCL's name of the group of all ranks."""
    world: Any = dist.group.WORLD
    name: str = world._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    return name
