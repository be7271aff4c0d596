"""One rank's part in measuring a collective; all ranks run the same steps, idle ranks too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist

from collector.codec.errors import BadInput
from collector.comm.bench_plan import BenchPlan, Mode
from collector.comm.rank_device import RankDevice
from collector.comm.timed_calls import Gathered, TimedCalls
from collector.ranks.collective import OPERATIONS, Collective, check_collective

# The tensors of a collective, the call, and the expected result.
#
# Element i that rank g of a group sends is a small number that depends on both, so that a part in
# the wrong place is detected; sums of it are exact in every dtype for groups of up to 23 ranks. The
# result is checked at some ten thousand places, including its ends: checking all of 512 MB in each
# rank would take longer than measuring it.

_MOST_CHECKED_VALUES = 16_384
_MODULUS = 11
_PERIOD = _MODULUS**2  # number of places after which the sent values repeat
_EXACT_SUM = 256  # of whole numbers, in bfloat16's 8 bits
_ROUNDED = 0.02  # relative; of bfloat16 sums of many ranks

# Their older names will be removed after torch 2.13.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True, slots=True)
class Member:
    """A rank's place in its group: index `at` in `ranks`, which are numbers of the world."""

    ranks: tuple[int, ...]
    at: int
    group: Any  # torch's

    @property
    def size(self) -> int:
        return len(self.ranks)


class Buffers:
    """The tensors that one rank sends and receives in one collective."""

    def __init__(self, collective: Collective, member: Member, device: str) -> None:
        self._what, self._member, self._device = collective, member, device
        sends = collective.input_bytes // collective.message_bytes
        self._sent = self._values(collective.elements * sends, member.at)
        self._got = self._sent
        if collective.operation not in ("all_reduce", "broadcast"):
            self._got = torch.empty(self._received(), dtype=self._dtype, device=device)
        self.call = self._call()

    def is_right(self) -> bool:
        """Return whether the result is right after the first call of all ranks."""
        places = torch.linspace(
            0,
            self._got.numel() - 1,
            min(_MOST_CHECKED_VALUES, self._got.numel()),
            dtype=torch.float64,
        ).long()
        got = self._got[places.to(self._device)].cpu()
        expected = self._expected(places)
        sums = self._what.operation in ("all_reduce", "reduce_scatter")
        largest_sum = self._member.size * (_MODULUS - 1)
        if sums and self._dtype.is_floating_point and largest_sum > _EXACT_SUM:
            return bool(torch.allclose(got.double(), expected.double(), rtol=_ROUNDED))
        return bool(torch.equal(got, expected.to(self._dtype)))

    def rest(self) -> None:
        """Zero the sent values if a result is sent again: sums would grow beyond the range of the
        dtype."""
        if self._what.operation == "all_reduce":
            self._sent.zero_()

    @property
    def _dtype(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self._what.dtype)
        return found

    def _received(self) -> int:
        """Return the number of elements that this rank receives."""
        return self._what.elements * self._what.output_bytes // self._what.message_bytes

    def _values(self, count: int, at: int) -> torch.Tensor:
        """Return one period, repeated: computing whole numbers for every place would need many
        times the message, and a reduce_scatter of 512 MB over 16 ranks sends 8 GiB from each."""
        period = _value(torch.arange(_PERIOD), torch.tensor(at)).to(self._dtype).to(self._device)
        return period.repeat(-(-count // _PERIOD))[:count]

    def _call(self) -> Callable[[], object]:
        sent, got, group = self._sent, self._got, self._member.group
        if self._what.operation == "send_recv":
            return self._exchange
        parts = [self._what.elements // self._member.size] * self._member.size
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(sent, group=group),
            "all_gather": lambda: _all_gather(got, sent, group=group),
            "reduce_scatter": lambda: _reduce_scatter(got, sent, group=group),
            "all_to_all": lambda: dist.all_to_all_single(got, sent, parts, parts, group=group),
            "all_to_all_single": lambda: dist.all_to_all_single(got, sent, group=group),
            "broadcast": lambda: dist.broadcast(sent, self._member.ranks[0], group=group),
        }
        return calls[self._what.operation]

    def _exchange(self) -> None:
        member = self._member
        following = member.ranks[(member.at + 1) % member.size]
        both = [
            dist.P2POp(dist.isend, self._sent, following, group=member.group),
            dist.P2POp(dist.irecv, self._got, member.ranks[member.at - 1], group=member.group),
        ]
        for one in dist.batch_isend_irecv(both):
            one.wait()

    def _expected(self, places: torch.Tensor) -> torch.Tensor:
        """Return the expected values at those places of the result, as whole numbers."""
        at, size, count = self._member.at, self._member.size, self._what.elements
        match self._what.operation:
            case "all_gather":
                return _value(places % count, places // count)
            case "all_to_all" | "all_to_all_single":
                part = count // size
                return _value(at * part + places % part, places // part)
            case "broadcast":
                return _value(places, torch.tensor(0))
            case "send_recv":
                return _value(places, torch.tensor((at - 1) % size))
        first = at * count if self._what.operation == "reduce_scatter" else 0
        summed = sum(_value(first + places, torch.tensor(rank)) for rank in range(size))
        assert isinstance(summed, torch.Tensor)
        return summed


def _value(place: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """Return the value that rank `rank` of a group sends at `place`: 0 to 10."""
    return (place * 31 + place // _MODULUS * 7 + rank * 17) % _MODULUS


# The operation that serving runs before each operation.
_PEERS = {"all_reduce": "all_gather", "all_gather": "reduce_scatter"}
_PEER_OF_OTHERS = "all_gather"


def peer_case(plan: BenchPlan, case: Collective) -> Collective | None:
    """Return the case that runs before each call of `case`, if its mode requires one."""
    if plan.mode_of(case) is not Mode.ALTERNATING:
        return None
    other = replace(case, operation=_PEERS.get(case.operation, _PEER_OF_OTHERS))
    try:
        check_collective(other)
    except BadInput:
        return None
    return other


class MeasuringRank:
    """The measuring part of a rank: `groups` are torch's, by their ranks; `timed` times this rank's
    calls together with those of the others."""

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
        """Measure a case together with all ranks; rank 0 returns the results of all."""
        plan, working = self._plan, self._plan.groups(case)
        mine = next((ranks for ranks in working if self._rank in ranks), None)
        target = None if mine is None else self._buffers(case, mine)
        other = peer_case(plan, case)
        peer = None if mine is None or other is None else self._buffers(other, mine)
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

    def _first_calls(self, target: Buffers | None, peer: Buffers | None) -> bool:
        """Run the untimed first calls and check the result of the target. The first call of an
        operation in a group sets up its channels, which takes ten times as long."""
        if target is None:
            return True
        self._device.timed(target.call)
        is_right = target.is_right()
        target.rest()
        if peer is not None:
            self._device.timed(peer.call)
            peer.rest()
        return is_right
