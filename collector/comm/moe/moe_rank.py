"""One rank of a bench of mixtures of experts: `python -m collector.comm.moe.moe_rank FOLDER`,
started by torchrun.

On an NPU it times the kernels, elsewhere their references over the ranks' own collectives. The
first result of each case is compared with the one that a process computes alone.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from collector.comm.bench_plan import Mode
from collector.comm.moe.dispatch_combine import MakeTrial, open_trials
from collector.comm.moe.fused_kernel import MOST_ROWS
from collector.comm.moe.moe_plan import MoeCase, MoePlan
from collector.comm.rank import Membership, join_ranks, turns, write_results
from collector.comm.rank_files import TOO_LARGE
from collector.comm.timed_calls import Gathered, TimedCalls
from collector.model.measurement import Proof
from collector.ranks.experts import ExpertCall


def main(folder: Path) -> None:
    with join_ranks(folder, MoePlan) as (plan, member):
        write_results(folder, _seen(plan, member), member.rank)


def _seen(plan: MoePlan, member: Membership) -> Iterator[tuple[int, int, Gathered]]:
    limit_bytes = member.memory_of_all()
    make = open_trials(plan.backend)
    timed = TimedCalls(member.device, member.control)
    for round_number, at in turns(plan.rounds, len(plan.cases)):
        case = plan.cases[at]
        if at == 0 and round_number:  # clocks drift, and a bench may last for hours
            timed.renew_clock()
        member.journal.write(step=f"{case} (round {round_number + 1} of {plan.rounds})")
        if reason := _too_large(plan, case, limit_bytes):
            yield round_number, at, Gathered((), reason)
        else:
            yield round_number, at, _measured(plan, case, member, timed, make, not round_number)


def _too_large(plan: MoePlan, case: MoeCase, limit_bytes: int) -> str:
    """Return why the busiest rank cannot hold its rows; empty if it can."""
    call = case.call
    rows = case.routing().busiest_rows(call.ep_size)
    if plan.backend == "npu" and isinstance(call, ExpertCall) and rows > MOST_ROWS:
        return f"{TOO_LARGE} {MOST_ROWS} rows that the operator allows a rank, got {rows}"
    if (size_bytes := call.rank_bytes(rows)) > limit_bytes:
        return f"{TOO_LARGE} {limit_bytes >> 20} MiB of a rank, requires {size_bytes >> 20} MiB"
    return ""


def _measured(
    plan: MoePlan,
    case: MoeCase,
    member: Membership,
    timed: TimedCalls,
    make: MakeTrial,
    is_checked: bool,
) -> Gathered:
    """Measure a case together with all ranks; rank 0 returns the results of all."""
    trial = make(case, member.rank, member.device.name)
    first = trial.run()

    def tick(expert: int) -> None:
        member.journal.write(step=f"{case}: computing expert {expert} alone")

    is_right = not is_checked or trial.is_right(first, tick)
    del first
    count = timed.agreed(trial.run, plan.budget_s, plan.iterations, trial.before)
    if plan.mode is Mode.KERNEL:
        requested = case.call.case if plan.backend == "npu" else None
        times, measured = timed.kernels(case.call.kernel, trial.run, count, trial.before, requested)
    else:
        times = timed.each(trial.run, count, trial.before)
        measured = (
            Proof.UNVERIFIED if plan.backend == "npu" else Proof.NONE
        )  # events show no tensors
    return timed.gathered(times, count, is_right, range(plan.world), measured)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
