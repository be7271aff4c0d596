"""A bench or a probe of DispatchFFNCombine, from its plan to its results."""

from collections.abc import Iterable
from pathlib import Path

from collector.comm.gang import PATIENCE_S, GangWork, Rendezvous, Tick, run_gang
from collector.comm.moe.moe_plan import MoePlan, buffsize_settings
from collector.comm.moe.moe_table import MoeFound, moe_found
from collector.comm.moe.probe_plan import ProbePlan, Region, Try
from collector.comm.moe.prober_process import STARTING_S
from collector.comm.rank_files import read_results

# A bench of DispatchFFNCombine from its plan to what was found: what a verb or a worker calls.

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


# A probe from its plan to what became of each try: what a verb calls.

_KEEPER = "collector.comm.moe.keeper"
_PARTS = 6  # of a try that have a deadline, and some time to end a process


def probe(plan: ProbePlan, meeting: Rendezvous, folder: Path, tick: Tick) -> None:
    """Have the ranks of this node probe, in an empty folder; `tick` is told how many points were
    tried. Raises GangFailed and BadInput as a bench does; what was tried until then is in the
    folder."""
    patience_s = STARTING_S + _PARTS * plan.patience_s
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    run_gang(GangWork(plan, _KEEPER, patience_s, tick, environment), meeting, folder)


def told(plan: ProbePlan, tries: Iterable[Try]) -> Region:
    """What the tries tell of the region."""
    region = plan.region()
    for one in tries:
        region.tell(one.point, one.is_accepted)
    return region
