"""One clock for all ranks: how far each rank's own is from that of rank 0.

Ranks of one machine share a clock; of several they do not. Twenty short messages there and back
tell the difference to half of the shortest round trip (Cristian's algorithm).
"""

import time
from collections.abc import Iterable

import torch
import torch.distributed as dist

_ROUND_TRIPS = 20
_SPIN_S = 200e-6  # the scheduler's own lateness is below that


class Clock:
    """The time of rank 0, in us, as this rank can tell it. Made by all ranks at once.

    `control` is a group of all ranks whose messages are in host memory (gloo).
    """

    def __init__(self, control: "dist.ProcessGroup") -> None:
        self._control = control
        self._ahead_us = 0.0
        rank, world = dist.get_rank(control), dist.get_world_size(control)
        for other in range(1, world):
            if rank == 0:
                self._answer(other)
            elif rank == other:
                self._ahead_us = self._ask()

    def now_us(self) -> float:
        return _own_us() - self._ahead_us

    def of_wall(self, moments_ns: Iterable[int]) -> list[float]:
        """Moments of this machine's wall clock, by which profilers tell theirs."""
        ahead_ns = _wall_ahead_ns()
        return [(moment - ahead_ns) / 1e3 - self._ahead_us for moment in moments_ns]

    def begin_together(self, after_us: float) -> None:
        """Return at the same time in all ranks, `after_us` from now by rank 0's choice."""
        when = torch.tensor([self.now_us() + after_us], dtype=torch.float64)
        dist.broadcast(when, 0, group=self._control)
        begin_us = float(when[0])
        while (left_us := begin_us - self.now_us()) > 0:
            if left_us * 1e-6 > _SPIN_S:
                time.sleep(left_us * 1e-6 - _SPIN_S)

    def _answer(self, other: int) -> None:
        message = torch.zeros(1, dtype=torch.float64)
        for _ in range(_ROUND_TRIPS):
            dist.recv(message, other, group=self._control)
            message[0] = _own_us()
            dist.send(message, other, group=self._control)

    def _ask(self) -> float:
        """By how much this rank's clock is ahead: from the shortest round trip."""
        message = torch.zeros(1, dtype=torch.float64)
        found = []
        for _ in range(_ROUND_TRIPS):
            asked = _own_us()
            dist.send(message, 0, group=self._control)
            dist.recv(message, 0, group=self._control)
            answered = _own_us()
            found.append((answered - asked, (asked + answered) / 2 - float(message[0])))
        return min(found)[1]


def _wall_ahead_ns() -> int:
    """By how much the wall clock is ahead of the own one: of some readings the quickest."""
    found = []
    for _ in range(_ROUND_TRIPS):
        before_ns, wall_ns, after_ns = (
            time.perf_counter_ns(),
            time.time_ns(),
            time.perf_counter_ns(),
        )
        found.append((after_ns - before_ns, wall_ns - (before_ns + after_ns) // 2))
    return min(found)[1]


def _own_us() -> float:
    return time.perf_counter_ns() / 1e3
