"""A case in a rank: the function that runs it, and the check of its first result against that of
one process.

On an NPU the kernels run, elsewhere their references over the ranks' own collectives. CANN requires
a dispatch and a combine alternately: the one that is not timed runs before each call of the other.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist

from collector.codec.errors import HostFault
from collector.comm.moe import distributing, reference
from collector.comm.moe.distributing import Dispatched
from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.probe_plan import OPERATOR
from collector.comm.moe.reference import (
    ExpertWeights,
    Tokens,
    make_experts,
    make_tokens,
    outputs_agree,
)
from collector.host.custom_operators import custom_opp_problem
from collector.ranks import distribution
from collector.ranks.distribution import DistributeCall
from collector.ranks.experts import ExpertCall
from collector.replay.calls import import_vllm_ascend

# The fused kernel itself, called as serving does: by vLLM-Ascend's own extension.
#
# Its releases differ in their arguments: 0.18.0 has no biases, no mask and no limit of SwiGLU,
# 0.23.0 has them. The arguments of a release are read from its schema. There are two kernels for
# such a call; the second is for the few tokens of decoding and takes the same tensors by other
# names.

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
    call, experts, tokens = _tensors(case, rank, device)
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


def _tensors(case: MoeCase, rank: int, device: str) -> tuple[ExpertCall, ExpertWeights, Tokens]:
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
    call, experts, tokens = _tensors(case, rank, device)
    return lambda: reference.expert_outputs(call, tokens, experts, dist.group.WORLD)


# MoeDistributeDispatchV2 and MoeDistributeCombineV2 themselves, called as serving does: by
# torch_npu.
#
# CANN requires a group of ranks in which nothing else runs. The group of the whole world is such a
# group, since ranks use a separate group on the host to agree with each other.

_DYNAMIC = 2  # quantised with a scale per row


def dispatch_on_npu(call: DistributeCall, tokens: Tokens, rank: int) -> Dispatched:
    """Return this rank's outputs. Raises HostFault if torch_npu has no such function."""
    given = {
        **_distribute_npu_world(call, rank),
        "expert_scales": tokens.weights if distribution.WEIGHTS in call.optional else None,
        "x_active_mask": _mask(call, tokens),
        "quant_mode": _DYNAMIC if call.is_int8 else 0,
    }
    api = _api("npu_moe_distribute_dispatch_v2")
    return Dispatched(*api(tokens.x, tokens.experts.to(torch.int32), **given)[:7])


def combine_on_npu(
    call: DistributeCall, results: torch.Tensor, of: Dispatched, tokens: Tokens, rank: int
) -> torch.Tensor:
    """Return the tokens of this rank. Raises HostFault if torch_npu has no such function."""
    given = {
        **_distribute_npu_world(call, rank),
        "tp_send_counts": of.tp_counts if distribution.TP_COUNTS in call.optional else None,
        "expand_scales": of.weights if distribution.EXPAND_SCALES in call.optional else None,
        "x_active_mask": _mask(call, tokens),
    }
    ids = tokens.experts.to(torch.int32)
    api = _api("npu_moe_distribute_combine_v2")
    out: torch.Tensor = api(results, ids, of.info, of.ends, tokens.weights, **given)
    return out


def _distribute_npu_world(call: DistributeCall, rank: int) -> dict[str, Any]:
    """Return the arguments for the group of all ranks, and for the most tokens of one rank."""
    group = group_name(rank)
    tp = {"group_tp": group, "tp_world_size": 1} if distribution.TP_COUNTS in call.optional else {}
    most = call.capacity * call.ep_size if call.capacity > call.tokens else 0
    return {
        "group_ep": group,
        "ep_world_size": call.ep_size,
        "ep_rank_id": rank,
        "moe_expert_num": call.experts,
        "global_bs": most,
        **tp,
    }


def _mask(call: DistributeCall, tokens: Tokens) -> torch.Tensor | None:
    """Return the mask in which all tokens count; None for a call without one."""
    if distribution.MASK not in call.optional:
        return None
    return torch.ones(call.tokens, dtype=torch.bool, device=tokens.x.device)


def _api(name: str) -> Any:
    found = getattr(torch.ops.npu, name, None)
    if found is None:
        raise HostFault(f"the installed torch_npu does not have {name}")
    return found


Tick = Callable[[int], object]
"""Gets each expert whose result is computed alone; for hundreds of experts this takes minutes."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial of a case. `run` is one call, by all ranks together; `is_right` checks the result in
    this rank. `before` must be called before each call except the first."""

    run: Callable[[], Any]
    is_right: Callable[[Any, Tick], bool]
    before: Callable[[], Any] | None = None


MakeTrial = Callable[[MoeCase, int, str], Trial]
"""Creates a case's tensors in a rank, on a device; all ranks call it together."""


def open_trials(backend: str) -> MakeTrial:
    """Return the function that makes trials on a backend. The first case that needs a missing
    kernel of an NPU raises HostFault."""
    fused = cache(lambda: open_runner(backend, OPERATOR))

    def made(case: MoeCase, rank: int, device: str) -> Trial:
        if isinstance(case.call, ExpertCall):
            return _of_experts(backend, fused(), case, case.call, rank, device)
        if case.call.sends:
            return _of_dispatch(backend, case, case.call, rank, device)
        return _of_combine(backend, case, case.call, rank, device)

    return made


def _of_experts(
    backend: str, prepare: Prepare, case: MoeCase, call: ExpertCall, rank: int, device: str
) -> Trial:
    def is_right(outputs: tuple[torch.Tensor, torch.Tensor], tick: Tick) -> bool:
        (out, rows), routing = outputs, case.routing()
        expected_values = reference.reference_alone(call, case.seed, rank, routing, tick)
        mine = slice(rank * call.local_experts, (rank + 1) * call.local_experts)
        is_exact = call.is_int8 and backend != "npu"
        return (
            outputs_agree(out.cpu(), expected_values, is_exact=is_exact)
            and rows.tolist() == routing.loads[mine].tolist()
        )

    return Trial(prepare(case, rank, device), is_right)


def _of_dispatch(
    backend: str, case: MoeCase, call: DistributeCall, rank: int, device: str
) -> Trial:
    routing = case.routing()
    tokens = make_tokens(call, case.seed, rank, routing, device)

    def run() -> Dispatched:
        if backend == "npu":
            return dispatch_on_npu(call, tokens, rank)
        return distributing.dispatched(call, tokens, rank, dist.group.WORLD)

    def is_right(got: Dispatched, tick: Tick) -> bool:
        expected_values = distributing.expected(call, case.seed, rank, routing)
        return (
            distributing.has_expected_rows(got, expected_values)
            if backend == "npu"
            else distributing.is_as_expected(got, expected_values)
        )

    if backend != "npu":
        return Trial(run, is_right)
    back = _combine(backend, case, distributing.counterpart(call), rank, device)
    back()
    return Trial(run, is_right, back)


def _of_combine(backend: str, case: MoeCase, call: DistributeCall, rank: int, device: str) -> Trial:
    """Return a trial of a combine, for rows of a dispatch that is not timed."""

    def is_right(out: torch.Tensor, tick: Tick) -> bool:
        expected_values = distributing.expected_tokens(call, case.seed, rank, case.routing())
        return outputs_agree(out.cpu(), expected_values, is_exact=backend == "cpu")

    run = _combine(backend, case, call, rank, device)
    if backend != "npu":
        return Trial(run, is_right)
    there = distributing.counterpart(call)
    tokens = make_tokens(there, case.seed, rank, case.routing(), device)
    return Trial(run, is_right, lambda: dispatch_on_npu(there, tokens, rank))


def _combine(
    backend: str, case: MoeCase, call: DistributeCall, rank: int, device: str
) -> Callable[[], torch.Tensor]:
    """Return a call that sends back the experts' results for the rows of a dispatch; make that
    dispatch first."""
    routing, there = case.routing(), distributing.counterpart(call)
    tokens = make_tokens(call, case.seed, rank, routing, device)
    if backend == "npu":
        given = dispatch_on_npu(there, tokens, rank)
        results = distributing.expert_results(call, rank, routing, given)
        return lambda: combine_on_npu(call, results, given, tokens, rank)
    given = distributing.dispatched(there, tokens, rank, dist.group.WORLD)
    results = distributing.expert_results(call, rank, routing, given)
    return lambda: distributing.combine_tokens(call, results, given, tokens, dist.group.WORLD)
