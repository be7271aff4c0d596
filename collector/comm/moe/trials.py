"""A case in a rank: what runs it, and whether its first result is what one process computes.

On an NPU the kernels run, elsewhere their references over the ranks' own collectives. CANN wants a
dispatch and a combine in turns: the one that is not timed runs before each call of the other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from collector.comm.moe.distribute_npu import combine_on_npu, dispatch_on_npu
from collector.comm.moe.distributing import (
    Dispatched,
    combine_after,
    combined,
    dispatch_before,
    dispatched,
    expected,
    expected_tokens,
    holds_rows,
    is_as_expected,
    made_of,
)
from collector.comm.moe.moe_plan import MoeCase
from collector.comm.moe.probe_plan import OPERATOR
from collector.comm.moe.reference import alone, is_alike, make_tokens
from collector.comm.moe.runner import Prepare, open_runner
from collector.distribute_call import DISPATCH, DistributeCall
from collector.expert_call import ExpertCall

Tick = Callable[[int], object]
"""Told each expert whose result is computed alone: of hundreds that takes minutes."""


@dataclass(frozen=True, slots=True)
class Trial:
    """`run` is one call, by all ranks at once; `is_right` looks at what it returned in this one.
    `before` is what has to be called ahead of each, but for the first."""

    run: Callable[[], Any]
    is_right: Callable[[Any, Tick], bool]
    before: Callable[[], Any] | None = None


MakeTrial = Callable[[MoeCase, int, str], Trial]
"""Makes a case's tensors in a rank, on a device; by all ranks at once."""


def open_trials(backend: str) -> MakeTrial:
    """What makes trials on a backend. HostFault, of the first case that needs it, where what an NPU
    runs is not there."""
    fused = cache(lambda: open_runner(backend, OPERATOR))

    def made(case: MoeCase, rank: int, device: str) -> Trial:
        if isinstance(case.call, ExpertCall):
            return _of_experts(backend, fused(), case, case.call, rank, device)
        if case.call.kernel == DISPATCH:
            return _of_dispatch(backend, case, case.call, rank, device)
        return _of_combine(backend, case, case.call, rank, device)

    return made


def _of_experts(
    backend: str, prepare: Prepare, case: MoeCase, call: ExpertCall, rank: int, device: str
) -> Trial:
    def is_right(outputs: tuple[torch.Tensor, torch.Tensor], tick: Tick) -> bool:
        (out, rows), routing = outputs, case.routing()
        wanted = alone(call, case.seed, rank, routing, tick)
        mine = slice(rank * call.local_experts, (rank + 1) * call.local_experts)
        is_exact = call.is_int8 and backend != "npu"
        return (
            is_alike(out.cpu(), wanted, is_exact=is_exact)
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
        return dispatched(call, tokens, rank, _world())

    def is_right(got: Dispatched, tick: Tick) -> bool:
        wanted = expected(call, case.seed, rank, routing)
        return holds_rows(got, wanted) if backend == "npu" else is_as_expected(got, wanted)

    if backend != "npu":
        return Trial(run, is_right)
    back = _combine(backend, case, combine_after(call), rank, device)
    back()
    return Trial(run, is_right, back)


def _of_combine(backend: str, case: MoeCase, call: DistributeCall, rank: int, device: str) -> Trial:
    """Of what a dispatch has given, which is not timed."""

    def is_right(out: torch.Tensor, tick: Tick) -> bool:
        wanted = expected_tokens(call, case.seed, rank, case.routing())
        return is_alike(out.cpu(), wanted, is_exact=backend == "cpu")

    run = _combine(backend, case, call, rank, device)
    if backend != "npu":
        return Trial(run, is_right)
    there = dispatch_before(call)
    tokens = make_tokens(there, case.seed, rank, case.routing(), device)
    return Trial(run, is_right, lambda: dispatch_on_npu(there, tokens, rank))


def _combine(
    backend: str, case: MoeCase, call: DistributeCall, rank: int, device: str
) -> Callable[[], torch.Tensor]:
    """Sends back what experts made of the rows of a dispatch, which it makes first."""
    routing, there = case.routing(), dispatch_before(call)
    tokens = make_tokens(call, case.seed, rank, routing, device)
    if backend == "npu":
        given = dispatch_on_npu(there, tokens, rank)
        results = made_of(call, rank, routing, given)
        return lambda: combine_on_npu(call, results, given, tokens, rank)
    given = dispatched(there, tokens, rank, _world())
    results = made_of(call, rank, routing, given)
    return lambda: combined(call, results, given, tokens, _world())


def _world() -> "dist.ProcessGroup":
    world = dist.group.WORLD
    assert world is not None
    return world
