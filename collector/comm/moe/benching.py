"""A bench or a probe of DispatchFFNCombine, from its plan to its results."""

from collections.abc import Iterable
from pathlib import Path

from collector.comm.gang import PATIENCE_S, GangWork, Rendezvous, Tick, run_gang
from collector.comm.moe.moe_plan import MoePlan, buffsize_settings
from collector.comm.moe.moe_table import MoeFound, moe_found
from collector.comm.moe.probe_plan import ProbePlan, Region, Try
from collector.comm.moe.prober_process import STARTING_S
from collector.comm.rank_files import read_results

# A bench of DispatchFFNCombine from its plan to its results, for commands and workers.

MOE_RANK = "collector.comm.moe.moe_rank"


def bench(
    plan: MoePlan,
    meeting: Rendezvous,
    folder: Path,
    *,
    patience_s: float = PATIENCE_S,
    tick: Tick = lambda measured: None,
) -> None:
    """Measure with the ranks of this node, in an empty folder; `tick` gets the number of measured
    cases of all rounds. Raises GangFailed and BadInput as a bench of collectives does; the results
    so far are in the folder."""
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    run_gang(GangWork(plan, MOE_RANK, patience_s, tick, environment), meeting, folder)


def found_in(folder: Path, plan: MoePlan) -> MoeFound:
    """Return the results of a bench; there are none on other nodes than the first."""
    return moe_found(plan, read_results(folder))


# A probe from its plan to the outcome of each try, for commands.

_KEEPER = "collector.comm.moe.keeper"
_PARTS = 6  # of a try that have a deadline, plus time to end a process


def probe(plan: ProbePlan, meeting: Rendezvous, folder: Path, tick: Tick) -> None:
    """Probe with the ranks of this node, in an empty folder; `tick` gets the number of tried
    points. Raises GangFailed and BadInput as a bench does; the tries so far are in the folder."""
    patience_s = STARTING_S + _PARTS * plan.patience_s
    environment = buffsize_settings(plan.backend, plan.largest_buffsize_mb())
    run_gang(GangWork(plan, _KEEPER, patience_s, tick, environment), meeting, folder)


def region_of_tries(plan: ProbePlan, tries: Iterable[Try]) -> Region:
    """Return the region as the tries determine it."""
    region = plan.region()
    for one in tries:
        region.record(one.point, one.is_accepted)
    return region
