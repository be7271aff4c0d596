"""A bench of DispatchFFNCombine from its plan to what was found: what a verb or a worker calls."""

from pathlib import Path

from collector.comm.gang import PATIENCE_S, GangWork, Rendezvous, Tick, run_gang
from collector.comm.moe.buffsize import buffsize_settings
from collector.comm.moe.moe_measured import MoeFound, moe_found
from collector.comm.moe.moe_plan import MoePlan
from collector.comm.rank_files import read_results

MOE_RANK = "collector.comm.moe.moe_rank"


def bench(
    plan: MoePlan,
    meeting: Rendezvous,
    folder: Path,
    *,
    patience_s: float = PATIENCE_S,
    tick: Tick = lambda measured: None,
) -> None:
    """Have the ranks of this node measure, in an empty folder; `tick` is told how many cases of all
    rounds are measured. Raises GangFailed and BadInput as a bench of collectives does; what was
    measured until then is in the folder."""
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    run_gang(GangWork(plan, MOE_RANK, patience_s, tick, environment), meeting, folder)


def found_in(folder: Path, plan: MoePlan) -> MoeFound:
    """What a bench found; nothing on any node but the first."""
    return moe_found(plan, read_results(folder))
