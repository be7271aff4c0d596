"""MoeDistributeDispatchV2 and MoeDistributeCombineV2 themselves, called as serving does: by
torch_npu.

CANN wants a group of ranks in which nothing else runs: that of the whole world, since ranks agree
with each other over a group of their own, on the host.
"""

from typing import Any

import torch

from collector.comm.moe.distributing import Dispatched
from collector.comm.moe.fused import group_name
from collector.comm.moe.reference import Tokens
from collector.distribute_call import EXPAND_SCALES, MASK, TP_COUNTS, WEIGHTS, DistributeCall
from collector.errors import HostFault

_DYNAMIC = 2  # quantised with a scale a row


def dispatch_on_npu(call: DistributeCall, tokens: Tokens, rank: int) -> Dispatched:
    """This rank's outputs. HostFault where torch_npu has no such function."""
    given = {
        **_world(call, rank),
        "expert_scales": tokens.weights if WEIGHTS in call.optional else None,
        "x_active_mask": _mask(call, tokens),
        "quant_mode": _DYNAMIC if call.is_int8 else 0,
    }
    api = _api("npu_moe_distribute_dispatch_v2")
    return Dispatched(*api(tokens.x, tokens.experts.to(torch.int32), **given)[:7])


def combine_on_npu(
    call: DistributeCall, results: torch.Tensor, of: Dispatched, tokens: Tokens, rank: int
) -> torch.Tensor:
    """The tokens of this rank. HostFault as above."""
    given = {
        **_world(call, rank),
        "tp_send_counts": of.tp_counts if TP_COUNTS in call.optional else None,
        "expand_scales": of.weights if EXPAND_SCALES in call.optional else None,
        "x_active_mask": _mask(call, tokens),
    }
    ids = tokens.experts.to(torch.int32)
    api = _api("npu_moe_distribute_combine_v2")
    out: torch.Tensor = api(results, ids, of.info, of.ends, tokens.weights, **given)
    return out


def _world(call: DistributeCall, rank: int) -> dict[str, Any]:
    """The group of all ranks, and how many tokens one of them may have."""
    group = group_name(rank)
    tp = {"group_tp": group, "tp_world_size": 1} if TP_COUNTS in call.optional else {}
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
    """That all tokens count."""
    if MASK not in call.optional:
        return None
    return torch.ones(call.tokens, dtype=torch.bool, device=tokens.x.device)


def _api(name: str) -> Any:
    found = getattr(torch.ops.npu, name, None)
    if found is None:
        raise HostFault(f"the installed torch_npu does not have {name}")
    return found
