"""Calls that ranks make together: their count, start on one clock, and duration."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from collector.comm.kernels import (
    OTHER_TENSORS,
    Span,
    proof_of_calls,
    proof_of_ranks,
    spans_of_calls,
)
from collector.comm.rank_device import Call, RankDevice
from collector.model.case import Case
from collector.ranks.collective import Collective

# One clock for all ranks: the offset of each rank's own clock from that of rank 0.
#
# Ranks of one machine share a clock; ranks of several machines do not. Twenty short round trips
# show the offset to half of the shortest round trip (Cristian's algorithm).

_ROUND_TRIPS = 20
_SPIN_S = 200e-6  # above the scheduler's own lateness
# More than a reading of both clocks errs by, less than NTP sets a clock by; both clocks are slewed
# alike.
_MOST_STEP_NS = 100_000
_CLOCK_SET = -1.0  # in place of the number of kernels


class ReferenceClock:
    """The time of rank 0, in us, as estimated by this rank. All ranks construct it together.

    `control` is a group of all ranks whose messages are in host memory (gloo)."""

    def __init__(self, control: "dist.ProcessGroup") -> None:
        self._control = control
        self._ahead_us = 0.0
        rank, world = dist.get_rank(control), dist.get_world_size(control)
        message = torch.zeros(1, dtype=torch.float64)
        for other in range(1, world):
            if rank == 0:
                for _ in range(_ROUND_TRIPS):
                    dist.recv(message, other, group=control)
                    message[0] = _own_us()
                    dist.send(message, other, group=control)
            elif rank == other:
                self._ahead_us = self._offset_us(message)

    def now_us(self) -> float:
        return _own_us() - self._ahead_us

    def of_wall(self, moments_ns: Iterable[int]) -> list[float]:
        """Convert moments of this machine's wall clock, which profilers use."""
        ahead_ns = _wall_ahead_ns()
        return [(moment - ahead_ns) / 1e3 - self._ahead_us for moment in moments_ns]

    def begin_together(self, after_us: float) -> None:
        """Return at the same time in all ranks, `after_us` from now; rank 0 chooses the time."""
        when = torch.tensor([self.now_us() + after_us], dtype=torch.float64)
        dist.broadcast(when, 0, group=self._control)
        begin_us = float(when[0])
        while (left_us := begin_us - self.now_us()) > 0:
            if left_us * 1e-6 > _SPIN_S:
                time.sleep(left_us * 1e-6 - _SPIN_S)

    def _offset_us(self, message: torch.Tensor) -> float:
        """Return by how much this rank's clock is ahead, from the shortest round trip."""
        found = []
        for _ in range(_ROUND_TRIPS):
            sent_at = _own_us()
            dist.send(message, 0, group=self._control)
            dist.recv(message, 0, group=self._control)
            replied_at = _own_us()
            found.append((replied_at - sent_at, (sent_at + replied_at) / 2 - float(message[0])))
        return min(found)[1]


def _wall_ahead_ns() -> int:
    """Return by how much the wall clock is ahead of the own clock, from the quickest reading."""
    found = []
    for _ in range(_ROUND_TRIPS):
        before_ns = time.perf_counter_ns()
        wall_ns = time.time_ns()
        after_ns = time.perf_counter_ns()
        found.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
    return min(found)[1]


def _own_us() -> float:
    return time.perf_counter_ns() / 1e3


_LEAD_US = 500.0  # between announcing the start and starting: a broadcast takes less
_PILOTS = 2


@dataclass(frozen=True, slots=True)
class Gathered:
    """The results of all ranks for one case: (rank, starts in us, durations in us), or the reason
    why it was not run. `wrong` lists the ranks with a wrong result, `identity` records how their
    kernels are proved to be those of the case, `extra` is a size outside the plan."""

    ranks: tuple[tuple[int, tuple[float, ...], tuple[float, ...]], ...]
    left_out: str = ""
    wrong: tuple[int, ...] = ()
    identity: str = ""
    extra: Collective | None = None


class TimedCalls:
    """Timed calls of one rank. All ranks run the same steps; idle ranks pass a call of None.
    `control` is a group of all ranks, on the host."""

    def __init__(self, device: RankDevice, control: "dist.ProcessGroup") -> None:
        self._device, self._control = device, control
        self._clock = ReferenceClock(control)

    def renew_clock(self) -> None:
        """Measure again how far this rank's clock is ahead of rank 0's."""
        self._clock = ReferenceClock(self._control)

    def agreed(
        self,
        call: Call | None,
        budget_s: float,
        iterations: tuple[int, int],
        before: Call | None = None,
    ) -> int:
        """Return the number of calls that fit the budget, by the rank with the longest pilot,
        between the fewest and the most. The budget does not include `before`."""
        took_us = 0.0
        for _ in range(_PILOTS):
            if call is not None:
                if before is not None:
                    self._device.timed(before)
                began = time.perf_counter()
                self._device.timed(call)
                took_us = (time.perf_counter() - began) * 1e6
        longest = torch.tensor([took_us], dtype=torch.float64)
        dist.all_reduce(longest, dist.ReduceOp.MAX, group=self._control)
        fewest, most = iterations
        return max(fewest, min(most, int(budget_s * 1e6 / (float(longest[0]) + _LEAD_US))))

    def each(self, call: Call | None, count: int, before: Call | None = None) -> torch.Tensor:
        """Return the starts of `count` calls on rank 0's clock, their durations, and the number of
        calls seen. `before` runs ahead of each call, without waiting in between."""
        times = torch.zeros(2 * count + 1, dtype=torch.float64)
        times[-1] = count
        for at in range(count):
            self._clock.begin_together(_LEAD_US)
            if call is not None:
                times[at] = self._clock.now_us()
                times[count + at] = self._device.timed(call, before)
                if before is not None:  # the call began when `before` had ended
                    times[at] = self._clock.now_us() - times[count + at]
        return times

    def kernels(
        self,
        kernel_type: str,
        call: Call | None,
        count: int,
        before: Call | None = None,
        requested: Case | None = None,
    ) -> tuple[torch.Tensor, str]:
        """Return the same for the kernels of a type, and the result of comparing their rows with
        the requested case. `before` must not run kernels of that type. The ranks begin together
        once; after that each call follows the previous one on the device, as if each had waited for
        all ranks."""

        if call is None:
            self._clock.begin_together(_LEAD_US)
            return torch.zeros(2 * count + 1, dtype=torch.float64), ""

        def one_after_another(call: Call = call) -> None:
            self._clock.begin_together(_LEAD_US)
            for _ in range(count):
                if before is not None:
                    before()
                call()

        ahead_ns = _wall_ahead_ns()
        spans = self._device.kernels(kernel_type, one_after_another)
        is_set = abs(_wall_ahead_ns() - ahead_ns) > _MOST_STEP_NS
        runs = spans_of_calls(spans, count) or [Span(0, 0)] * count
        starts = self._clock.of_wall(run.start_ns for run in runs)
        took = [run.duration_ns / 1e3 for run in runs]
        recorded = _CLOCK_SET if is_set else len(spans)
        times = torch.tensor([*starts, *took, recorded], dtype=torch.float64)
        return times, "" if requested is None else proof_of_calls(spans, count, requested)

    def gathered(
        self,
        times: torch.Tensor,
        count: int,
        is_right: bool,
        members: Sequence[int],
        proof: str = "",
    ) -> Gathered:
        """Return the results of the ranks that made calls, in rank 0; nothing in other ranks.
        `proof` is the proof from this rank's records of the kernel."""
        is_first, world = dist.get_rank() == 0, dist.get_world_size()
        reports: list[Any] | None = [None] * world if is_first else None
        own = (times.tolist(), is_right, proof)
        dist.gather_object(own, reports, dst=0, group=self._control)
        if reports is None:
            return Gathered(())
        seen = {rank: reports[rank] for rank in sorted(members)}
        wrong = tuple(rank for rank, (_, right, _) in seen.items() if not right)
        for rank, (found, _, _) in seen.items():
            if found[-1] == _CLOCK_SET:
                what = f"the wall clock of rank {rank}'s machine was set while it was profiled"
                return Gathered((), what, wrong)
            if not found[-1] or found[-1] % count:
                kernels = f"{found[-1]:g} kernels for {count} calls"
                return Gathered((), f"the profiler of rank {rank} recorded {kernels}", wrong)
        identity = proof_of_ranks({rank: one for rank, (_, _, one) in seen.items()})
        if identity.startswith(OTHER_TENSORS):
            return Gathered((), identity, wrong)
        ranks = tuple(
            (rank, tuple(found[:count]), tuple(found[count:-1]))
            for rank, (found, _, _) in seen.items()
        )
        return Gathered(ranks, wrong=wrong, identity=identity)
