"""One rank's part in measuring one case; all ranks go through the same steps, idle ones too."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from collector.collective import Collective, check
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.buffers import Buffers, Member
from collector.comm.clock import Clock
from collector.comm.kernels import Span, spans_of_calls
from collector.comm.rank_device import RankDevice
from collector.errors import BadInput

# What serving runs before each of these.
_PEERS = {"all_reduce": "all_gather", "all_gather": "reduce_scatter"}
_PEER_OF_OTHERS = "all_gather"
_LEAD_US = 500.0  # between saying when to begin and beginning: a broadcast takes less
_PILOTS = 2


@dataclass(frozen=True, slots=True)
class Gathered:
    """What all ranks saw of one case: (rank, starts in us, durations in us), or why it was not run.
    `wrong` are the ranks whose result was not what it must be, `extra` a size that no plan holds.
    """

    ranks: tuple[tuple[int, tuple[float, ...], tuple[float, ...]], ...]
    left_out: str = ""
    wrong: tuple[int, ...] = ()
    extra: Collective | None = None

    def to_json(self) -> dict[str, object]:
        return asdict(self)


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
    """`groups` are torch's, by their ranks; `control` is one of all ranks, on the host."""

    def __init__(
        self,
        plan: BenchPlan,
        device: RankDevice,
        control: "dist.ProcessGroup",
        groups: Mapping[tuple[int, ...], Any],
    ) -> None:
        self._plan, self._device, self._control, self._groups = plan, device, control, groups
        self._clock = Clock(control)
        self._rank = dist.get_rank()

    def renew_clock(self) -> None:
        """Find out anew how far this rank's clock is ahead of rank 0's; by all ranks at once."""
        self._clock = Clock(self._control)

    def measure(self, case: Collective) -> Gathered:
        """The same in every rank: what rank 0 returns is what all saw."""
        working = self._plan.groups(case)
        mine = next((ranks for ranks in working if self._rank in ranks), None)
        target = None if mine is None else self._buffers(case, mine)
        peer = None if mine is None else self._peer(case, mine)
        is_right = self._first_calls(target, peer)
        iterations = self._agreed_iterations(target)
        if self._plan.mode_of(case) is Mode.KERNEL:
            times = self._kernel_times(case.operation, target, iterations)
        else:
            times = self._call_times(target, peer, iterations)
        return self._gathered(torch.cat([times, _number(not is_right)]), working, iterations)

    def _call_times(self, target: Buffers | None, peer: Buffers | None, calls: int) -> torch.Tensor:
        """When each call began on rank 0's clock, how long each took, and how many were seen."""
        times = torch.zeros(2 * calls + 1, dtype=torch.float64)
        times[-1] = calls
        for at in range(calls):
            self._clock.begin_together(_LEAD_US)
            if target is not None:
                times[at] = self._clock.now_us()
                times[calls + at] = self._timed(target, peer)
                if peer is not None:  # the call began when its peer had ended
                    times[at] = self._clock.now_us() - times[calls + at]
        return times

    def _kernel_times(self, operation: str, target: Buffers | None, calls: int) -> torch.Tensor:
        """The same of kernels. Ranks begin together once: after that a call follows the one before
        on the device, as if each had waited for all."""
        begin = functools.partial(self._clock.begin_together, _LEAD_US)
        if target is None:
            begin()
            return torch.zeros(2 * calls + 1, dtype=torch.float64)
        spans = self._device.kernels(operation, lambda: _one_after_another(begin, target, calls))
        runs = spans_of_calls(spans, calls) or [Span(0, 0)] * calls
        starts = self._clock.of_wall(run.start_ns for run in runs)
        took = [run.duration_ns / 1e3 for run in runs]
        return torch.tensor([*starts, *took, len(spans)], dtype=torch.float64)

    def _timed(self, target: Buffers, peer: Buffers | None) -> float:
        return self._device.timed(_nothing if peer is None else peer.call, target.call)

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

    def _agreed_iterations(self, target: Buffers | None) -> int:
        """As many as the budget pays for, by the rank whose pilot took longest."""
        took_us = 0.0
        for _ in range(_PILOTS):
            if target is not None:
                began = time.perf_counter()
                self._device.timed(_nothing, target.call)
                took_us = (time.perf_counter() - began) * 1e6
        longest = _number(took_us)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._control)
        fewest, most = self._plan.iterations
        paid_for = self._plan.budget_s * 1e6 / (float(longest[0]) + _LEAD_US)
        return max(fewest, min(most, int(paid_for)))

    def _gathered(
        self, times: torch.Tensor, working: tuple[tuple[int, ...], ...], iterations: int
    ) -> Gathered:
        world = dist.get_world_size()
        found = [torch.zeros_like(times) for _ in range(world)] if self._rank == 0 else None
        dist.gather(times, found, dst=0, group=self._control)
        if found is None:
            return Gathered(())
        members = sorted(rank for ranks in working for rank in ranks)
        seen = {rank: found[rank].tolist() for rank in members}
        wrong = tuple(rank for rank, all_ in seen.items() if all_[-1])
        for rank, all_ in seen.items():
            if not all_[-2] or all_[-2] % iterations:
                told = f"the profiler of rank {rank} tells of {all_[-2]:g} kernels"
                return Gathered((), f"{told}, {iterations} calls were made", wrong)
        return Gathered(
            tuple(
                (rank, tuple(all_[:iterations]), tuple(all_[iterations:-2]))
                for rank, all_ in seen.items()
            ),
            wrong=wrong,
        )


def _one_after_another(begin: Callable[[], object], target: Buffers, calls: int) -> None:
    begin()
    for _ in range(calls):
        target.call()


def _number(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _nothing() -> None:
    return None
