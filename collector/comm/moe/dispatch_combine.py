"""MoeDistributeDispatchV2 and MoeDistributeCombineV2 themselves, called as serving does: by
torch_npu.

CANN requires a group of ranks in which nothing else runs. The group of the whole world is such a
group, since ranks use a separate group on the host to agree with each other."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from collector.codec.errors import HostFault
from collector.comm.moe import distributing, reference
from collector.comm.moe.distributing import Dispatched
from collector.comm.moe.fused_kernel import group_name
from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.probe_plan import OPERATOR
from collector.comm.moe.reference import (
    Tokens,
    make_tokens,
    outputs_agree,
)
from collector.comm.moe.trials import Prepare, open_runner
from collector.ranks import distribution
from collector.ranks.distribution import DistributeCall
from collector.ranks.experts import ExpertCall

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
