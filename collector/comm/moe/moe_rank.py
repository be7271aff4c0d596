"""One rank of a bench of mixtures of experts: `python -m collector.comm.moe.moe_rank FOLDER`,
started by torchrun.

On an NPU its kernels are timed, elsewhere their references over the ranks' own collectives. The
first result of each case is held against the one that a process computes alone.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from collector.comm.clock import Clock
from collector.comm.measuring_rank import Gathered
from collector.comm.moe.fused import MOST_ROWS
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.moe.trials import MakeTrial, open_trials
from collector.comm.rank import Membership, joined, turns, write_results
from collector.comm.rank_files import TOO_LARGE
from collector.expert_call import ExpertCall

_LEAD_US = 500.0  # between saying when to begin and beginning: a broadcast takes less


def main(folder: Path) -> None:
    with joined(folder, MoePlan.from_json) as (plan, member):
        write_results(folder, _seen(plan, member), member.rank)


def _seen(plan: MoePlan, member: Membership) -> Iterator[tuple[int, int, Gathered]]:
    limit_bytes = member.memory_of_all()
    make = open_trials(plan.backend)
    for round_number, at in turns(plan.rounds, len(plan.cases)):
        case = plan.cases[at]
        if at == 0:  # clocks drift, and a bench may last for hours
            clock = Clock(member.control)
        member.journal.say(step=f"{case} (round {round_number + 1} of {plan.rounds})")
        if reason := _too_large(plan, case, limit_bytes):
            yield round_number, at, Gathered((), reason)
        else:
            yield round_number, at, _measured(plan, case, member, clock, make, not round_number)


def _too_large(plan: MoePlan, case: MoeCase, limit_bytes: int) -> str:
    """Why the busiest rank could not hold what it gets; empty where it can."""
    call = case.call
    rows = case.routing().busiest_rows(call.ep_size)
    if plan.backend == "npu" and isinstance(call, ExpertCall) and rows > MOST_ROWS:
        return f"{TOO_LARGE} {MOST_ROWS} rows that the operator gives a rank: {rows}"
    if (wanted := call.rank_bytes(rows)) > limit_bytes:
        return f"{TOO_LARGE} {limit_bytes >> 20} MiB a rank can have: {wanted >> 20}"
    return ""


def _measured(
    plan: MoePlan,
    case: MoeCase,
    member: Membership,
    clock: Clock,
    make: MakeTrial,
    is_looked_at: bool,
) -> Gathered:
    """The same in every rank: what rank 0 returns is what all saw."""
    trial = make(case, member.rank, member.device.name)
    first = trial.run()

    def tick(expert: int) -> None:
        member.journal.say(step=f"{case}: computing expert {expert} alone")

    is_right = not is_looked_at or trial.is_right(first, tick)
    del first
    count = _agreed(plan, member, trial.run)
    times = torch.zeros(2 * count + 1, dtype=torch.float64)
    times[-1] = float(not is_right)
    for at in range(count):
        clock.begin_together(_LEAD_US)
        times[at] = clock.now_us()
        times[count + at] = member.device.timed(_nothing, trial.run)
    return _gathered(times, member, count)


def _agreed(plan: MoePlan, member: Membership, run: Callable[[], object]) -> int:
    """As many calls as the budget pays for, by the rank whose pilot took longest."""
    began = time.perf_counter()
    member.device.timed(_nothing, run)
    longest = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    dist.all_reduce(longest, dist.ReduceOp.MAX, group=member.control)
    fewest, most = plan.iterations
    return max(fewest, min(most, int(plan.budget_s / float(longest[0]))))


def _gathered(times: torch.Tensor, member: Membership, count: int) -> Gathered:
    world = dist.get_world_size()
    found = [torch.zeros_like(times) for _ in range(world)] if member.rank == 0 else None
    dist.gather(times, found, dst=0, group=member.control)
    seen = {rank: one.tolist() for rank, one in enumerate(found or [])}
    return Gathered(
        tuple((rank, tuple(of[:count]), tuple(of[count:-1])) for rank, of in seen.items()),
        wrong=tuple(rank for rank, of in seen.items() if of[-1]),
    )


def _nothing() -> None:
    return None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
