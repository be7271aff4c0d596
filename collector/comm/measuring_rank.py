"""One rank's part in measuring a collective; all ranks go through the same steps, idle ones too."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from collector.collective import OPERATIONS, Collective, check
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.buffers import Buffers, Member
from collector.comm.rank_device import RankDevice
from collector.comm.timed_calls import Gathered, TimedCalls
from collector.errors import BadInput

# What serving runs before each of these.
_PEERS = {"all_reduce": "all_gather", "all_gather": "reduce_scatter"}
_PEER_OF_OTHERS = "all_gather"


def peer_case(plan: BenchPlan, case: Collective) -> Collective | None:
    """What runs before each call of a case, where its mode has something do so."""
    if plan.mode_of(case) is not Mode.ALTERNATING:
        return None
    other = replace(case, operation=_PEERS.get(case.operation, _PEER_OF_OTHERS))
    try:
        check(other)
    except BadInput:
        return None
    return other


class MeasuringRank:
    """`groups` are torch's, by their ranks; `timed` times this rank's calls with the others'."""

    def __init__(
        self,
        plan: BenchPlan,
        device: RankDevice,
        timed: TimedCalls,
        groups: Mapping[tuple[int, ...], Any],
    ) -> None:
        self._plan, self._device, self._timed, self._groups = plan, device, timed, groups
        self._rank = dist.get_rank()

    def measure(self, case: Collective) -> Gathered:
        """The same in every rank: what rank 0 returns is what all saw."""
        plan, working = self._plan, self._plan.groups(case)
        mine = next((ranks for ranks in working if self._rank in ranks), None)
        target = None if mine is None else self._buffers(case, mine)
        peer = None if mine is None else self._peer(case, mine)
        is_right = self._first_calls(target, peer)
        call = None if target is None else target.call
        count = self._timed.agreed(call, plan.budget_s, plan.iterations)
        if plan.mode_of(case) is Mode.KERNEL:
            kernel_type = OPERATIONS[case.operation].kernel_type
            times, _ = self._timed.kernels(kernel_type, call, count)
        else:
            times = self._timed.each(call, count, None if peer is None else peer.call)
        members = [rank for ranks in working for rank in ranks]
        return self._timed.gathered(times, count, is_right, members)

    def _buffers(self, case: Collective, ranks: tuple[int, ...]) -> Buffers:
        member = Member(ranks, ranks.index(self._rank), self._groups[ranks])
        return Buffers(case, member, self._device.name)

    def _peer(self, case: Collective, ranks: tuple[int, ...]) -> Buffers | None:
        other = peer_case(self._plan, case)
        return None if other is None else self._buffers(other, ranks)

    def _first_calls(self, target: Buffers | None, peer: Buffers | None) -> bool:
        """Untimed: the first call of an operation in a group sets up its channels, which takes ten
        times as long. Its result is looked at."""
        if target is None:
            return True
        self._device.timed(_nothing, target.call)
        is_right = target.is_right()
        target.rest()
        if peer is not None:
            self._device.timed(_nothing, peer.call)
            peer.rest()
        return is_right


def _nothing() -> None:
    return None
